"""Samples of a rollout that end before it does: what their steps see from there on, and what is kept.

A gradient of zero times a derivative that is not finite is nan, so what a sample would do after its end has
to be finite, not only left out: its steps start anew from its first state, at which it has stepped before,
and no force acts on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchsko.actuation.implicit_forces import ImplicitForce
from torchsko.errors import ShapeError
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import are_broadcastable, is_expandable


@dataclass(frozen=True, eq=False)
class EarlyTermination:
    """After how many steps each sample of a rollout ends, and where it began.

    Attributes:
        lengths: integers `[*batch]`.
        rest: configuration, velocity and memory that steps past an end see, constants.
    """

    lengths: Tensor
    rest: tuple[Tensor, ...]

    def going(self, step: int) -> Tensor:
        """Whether each sample takes a step, `[*batch]`."""
        return self.lengths > step

    def series(self, steps: int, like: Tensor) -> Tensor:
        """The same of all steps as numbers, more than 0 of those taken, `[*batch, steps]`."""
        return (self.lengths[..., None] > torch.arange(steps, device=like.device)).to(like.dtype)


def check_lengths(lengths: Any, steps: int, every: int, batch: torch.Size) -> Tensor:
    """Lengths as `torchsko.rollout` takes them, checked.

    Args:
        lengths: see `torchsko.rollout`.
        steps: of the rollout.
        every: steps from row to row; lengths between rows end at the row before.
        batch: batch dimensions of the rollout.

    Returns:
        Steps of each sample, `[*batch]`.

    Raises:
        ShapeError: when they do not fit.
    """
    if not isinstance(lengths, Tensor):
        raise ShapeError(
            f"lengths were given as {type(lengths).__name__}.",
            "They are one tensor of whole numbers, steps of each sample.",
            f"Pass torch.as_tensor(lengths), of shape {list(batch)}.",
        )
    whole = not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)
    if not whole or not is_expandable(tuple(lengths.shape), tuple(batch)):
        raise ShapeError(
            f"lengths are {lengths.dtype} of shape {list(lengths.shape)}, the batch is {list(batch)}.",
            "Each sample takes a whole number of steps.",
            f"Pass integers of shape {list(batch)}.",
        )
    read = concrete_values(lengths)
    if read is not None and read.size:
        least, most = int(read.min()), int(read.max())
        if not 0 <= least <= most <= steps:
            raise ShapeError(
                f"lengths go from {least} to {most}, the rollout has {steps} steps.",
                "Each sample takes some of them.",
                f"Pass lengths.clamp(0, {steps}), or more steps.",
            )
    return (torch.div(lengths, every, rounding_mode="floor") * every).expand(batch)


def select_running(
    going: Tensor, now: Sequence[Tensor], rest: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Configuration, velocity and memory: those of samples that go on, and of those that do not.

    Args:
        going: which do, `[*batch]`.
        now: of the former; a memory that is not each sample's own is left as it is.
        rest: of the latter.
    """
    q, qd, memory = (_where(going, x, y) for x, y in zip(now, rest, strict=True))
    return q, qd, memory


def _where(going: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if x.ndim < going.ndim or not are_broadcastable(
        tuple(x.shape[: going.ndim]), tuple(going.shape)
    ):
        return x
    return torch.where(going[(..., *[None] * (x.ndim - going.ndim))], x, y)


def mask_forces(going: Tensor, force: Any, event: int = 1) -> Any:
    """Forces, or what gives them, that act on no sample but those that go on.

    Args:
        going: which do, `[*batch]`.
        force: a tensor, a function that gives one, what answers a velocity, or None.
        event: dimensions of a force of one sample.
    """
    if force is None:
        return None
    if isinstance(force, ImplicitForce):
        names = ("push", "damping", "row_damping")
        return replace(force, **{name: mask_forces(going, getattr(force, name)) for name in names})
    if isinstance(force, Tensor):
        return torch.where(going[(..., *[None] * event)], force, torch.zeros_like(force))
    return _MaskedForces(going, force, event)


@dataclass(frozen=True, eq=False)
class _MaskedForces:
    going: Tensor
    force: Callable[..., Tensor]
    event: int

    def __call__(self, *state: Any) -> Tensor:
        return mask_forces(self.going, self.force(*state), self.event)
