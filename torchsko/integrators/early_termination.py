"""Samples of a rollout that end before its last step.

In reverse mode, zero times a derivative that is not finite is nan. Steps of ended samples must therefore be
finite, besides being masked: they are evaluated at the sample's initial state without forces. Laws may be
singular at later times. They are evaluated at the state and the inputs of the first running sample; once all
samples have ended, and in kernels, which compute one sample, at the start time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from torchsko.actuators.implicit_forces import ImplicitForce
from torchsko.actuators.sampled_control import SampledControl
from torchsko.errors import ShapeError
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import are_broadcastable, is_expandable


@dataclass(frozen=True, eq=False)
class EarlyTermination:
    """Number of steps of each sample of a rollout, and the state at which later steps are evaluated.

    Attributes:
        lengths: integers `[*batch]`.
        rest: configuration, velocity and memory of the start, as constants.
    """

    lengths: Tensor
    rest: tuple[Tensor, ...]

    def running(self, step: int) -> Tensor:
        """True if each sample takes a step, `[*batch]`."""
        return self.lengths > step

    def have_ended(self, step: int) -> bool:
        """True if no sample takes a step, where values can be read."""
        read = concrete_values(self.lengths)
        return read is not None and not (read > step).any()

    def series(self, steps: int, like: Tensor) -> Tensor:
        """Positive numbers for the steps that each sample takes, else 0, `[*batch, steps]`."""
        return (self.lengths[..., None] > torch.arange(steps, device=like.device)).to(like.dtype)


def check_lengths(lengths: Any, steps: int, every: int, batch: torch.Size) -> Tensor:
    """Check lengths as `torchsko.rollout` takes them.

    Returns:
        Steps of each sample, `[*batch]`.
    """
    if not isinstance(lengths, Tensor):
        raise ShapeError(
            f"lengths were given as {type(lengths).__name__}.",
            "Lengths are an integer tensor, the number of steps of each sample.",
            f"Pass torch.as_tensor(lengths), of shape {list(batch)}.",
        )
    integer = not (lengths.is_floating_point() or lengths.is_complex())
    if (
        not integer
        or lengths.dtype == torch.bool
        or not is_expandable(tuple(lengths.shape), tuple(batch))
    ):
        raise ShapeError(
            f"lengths are {lengths.dtype} of shape {list(lengths.shape)}, the batch is {list(batch)}.",
            "Each sample takes an integer number of steps.",
            f"Pass integers of shape {list(batch)}.",
        )
    read = concrete_values(lengths)
    if read is not None and read.size:
        least, most = int(read.min()), int(read.max())
        if not 0 <= least <= most <= steps:
            raise ShapeError(
                f"lengths range from {least} to {most}, the rollout has {steps} steps.",
                f"The length of a sample is between 0 and {steps}.",
                f"Pass lengths.clamp(0, {steps}), or more steps.",
            )
    return (torch.div(lengths, every, rounding_mode="floor") * every).expand(batch)


def select_running(
    running: Tensor, now: Sequence[Tensor], rest: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Select configuration, velocity and memory by whether samples are running.

    Args:
        running: mask of running samples, `[*batch]`.
        now: values in these; a memory without batch dimensions is always returned.
        rest: values in the others.
    """
    q, qd, memory = (_where(running, x, y) for x, y in zip(now, rest, strict=True))
    return q, qd, memory


def _where(running: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if x.ndim < running.ndim or not are_broadcastable(
        tuple(x.shape[: running.ndim]), tuple(running.shape)
    ):
        return x
    return torch.where(running[(..., *[None] * (x.ndim - running.ndim))], x, y)


def borrow_running(running: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Replace the values of ended samples by those of the first running sample.

    Args:
        running: mask of running samples, `[*batch]`.
        *tensors: values of samples; tensors without batch dimensions are returned as they are.
    """
    if not running.ndim:
        return tensors
    flat = running.reshape(-1)
    own = torch.arange(flat.shape[0], device=flat.device)
    index = torch.where(flat, own, flat.to(torch.int8).argmax())
    return tuple(take_samples(x, index, running.shape) for x in tensors)


def take_samples(
    x: Tensor, index: Tensor, batch: Sequence[int], event_dims: int | None = None
) -> Tensor:
    """A tensor `[*batch, ...]` with other samples.

    Args:
        x: the tensor; without batch dimensions it is returned as it is.
        index: numbers of the samples in the flattened batch, `[count]`.
        batch: batch dimensions.
        event_dims: number of dimensions of one sample; by default those after the batch.
    """
    event = x.shape[len(batch) if event_dims is None else x.ndim - event_dims :]
    lead = x.shape[: x.ndim - len(event)]
    if not lead or not is_expandable(tuple(lead), tuple(batch)):
        return x
    flat = x.expand(*batch, *event).reshape(prod(batch), *event)
    return flat.index_select(0, index).reshape(*batch, *event)


def mask_forces(running: Tensor, force: Any, event_dims: int = 1) -> Any:
    """Forces, or a function that returns them, set to zero in ended samples.

    Args:
        running: mask of running samples, `[*batch]`.
        force: a tensor, a function that returns one, an implicit force, a sampled control, or None.
        event_dims: number of dimensions of the force of one sample.
    """
    if force is None:
        return None
    if isinstance(force, ImplicitForce):
        names = ("push", "damping", "row_damping")
        return replace(
            force, **{name: mask_forces(running, getattr(force, name)) for name in names}
        )
    if isinstance(force, SampledControl):
        return replace(force, ctrl=mask_forces(running, force.ctrl))
    if isinstance(force, Tensor):
        return torch.where(running[(..., *[None] * event_dims)], force, torch.zeros_like(force))
    return _MaskedForces(running, force, event_dims)


@dataclass(frozen=True, eq=False)
class _MaskedForces:
    running: Tensor
    force: Callable[..., Tensor]
    event_dims: int

    def __call__(self, t: Any, q: Tensor, qd: Tensor) -> Tensor:
        force = self.force(t, *borrow_running(self.running, q, qd))
        return mask_forces(self.running, force, self.event_dims)
