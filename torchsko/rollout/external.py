"""External forces of a rollout: a series, held over each step, or a function of the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import ShapeError, TorchskoError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state, no_tensor
from torchsko.rollout.argument_checks import accepts_arguments
from torchsko.utils.shapes import are_broadcastable, broadcast_shapes, is_expandable

Wrenches = Callable[[float, Tensor, Tensor], Tensor]
"""(t, q, qd) to forces on all bodies, `[*batch, num_bodies, 6]`."""


def wrenches_at(
    wrenches: Tensor | Wrenches | None, t: float, q: Tensor, qd: Tensor
) -> tuple[Tensor, ...]:
    """Those at a state, as further arguments of forward dynamics: none, or one."""
    if wrenches is None:
        return ()
    return (wrenches if isinstance(wrenches, Tensor) else wrenches(t, q, qd),)


def check_wrenches(
    mech: Mechanism, f_ext: Tensor | Wrenches | None, steps: int, batch: torch.Size
) -> tuple[Tensor | Wrenches | None, torch.Size]:
    """External forces as `torchsko.rollout` takes them, checked; and the batch with theirs.

    Args:
        mech: the mechanism.
        f_ext: see `torchsko.rollout`.
        steps: number of steps.
        batch: batch dimensions of all else.

    Returns:
        The same, and the batch.

    Raises:
        ShapeError: when a series does not fit.
        TorchskoError: on a function of other arguments.
    """
    if callable(f_ext) and not accepts_arguments(f_ext, 3):
        raise TorchskoError(
            f"f_ext is {getattr(f_ext, '__name__', f_ext)}, which cannot be called with t, q and qd.",
            "It gives forces on all bodies at a time [s], a configuration and a velocity.",
            f"Pass a function such as lambda t, q, qd: qd.new_zeros({mech.num_bodies}, 6), or a series.",
        )
    if f_ext is None or callable(f_ext):
        return f_ext, batch
    if not isinstance(f_ext, Tensor):
        raise ShapeError(no_tensor("f_ext", f_ext, mech))
    last, time = (mech.num_bodies, 6), f_ext.shape[-3] if f_ext.ndim > 2 else None
    own = f_ext.shape[:-3]
    if (
        tuple(f_ext.shape[-2:]) != last
        or time not in (1, steps)
        or not are_broadcastable(own, batch)
    ):
        raise ShapeError(
            f"f_ext has shape {list(f_ext.shape)} for {steps} steps and the batch {list(batch)}.",
            "External forces of a rollout are a series over its steps, or a function (t, q, qd).",
            f"Pass [*batch, {steps}, {last[0]}, 6], or [*batch, 1, {last[0]}, 6] of what is constant.",
        )
    return f_ext, broadcast_shapes(own, batch)


def with_checks(
    mech: Mechanism, f_ext: Tensor | Wrenches | None, batch: torch.Size
) -> Tensor | Wrenches | None:
    """The same, a function as one whose results are checked.

    Args:
        mech: the mechanism.
        f_ext: of `check_wrenches`.
        batch: batch dimensions of the rollout.
    """
    return CheckedWrenches(mech, f_ext, batch) if callable(f_ext) else f_ext


@dataclass(frozen=True, eq=False)
class CheckedWrenches:
    """External forces that a function gives, of which each state has its own."""

    mech: Mechanism
    asked: Wrenches
    batch: torch.Size

    def __call__(self, t: float, q: Tensor, qd: Tensor) -> Tensor:
        """Those at a state, checked."""
        f_ext = self.asked(t, q, qd)
        shape = [*self.batch, self.mech.num_bodies, 6]
        if not isinstance(f_ext, Tensor):
            raise ShapeError(
                f"f_ext is a function that returned {type(f_ext).__name__}.",
                "It gives forces on all bodies at the state that it is asked for.",
                f"Return a tensor of shape {shape}, of zeros where there is no force.",
            )
        check_state(self.mech, f_ext=f_ext)
        if not is_expandable(tuple(f_ext.shape[:-2]), tuple(self.batch)):
            raise ShapeError(
                f"f_ext is a function that returned shape {list(f_ext.shape)}, the state has the batch "
                f"shape {list(self.batch)}.",
                "A rollout keeps its batch shape.",
                f"Return shape {shape}, or expand q and qd before the rollout.",
            )
        return f_ext
