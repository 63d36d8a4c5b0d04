"""External forces of a rollout: a series of steps, or a function of the state."""

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
"""Maps (t, q, qd) to forces on all bodies, `[*batch, num_bodies, 6]`."""


def wrenches_at(
    wrenches: Tensor | Wrenches | None, t: float, q: Tensor, qd: Tensor
) -> tuple[Tensor, ...]:
    """External forces at a state as further arguments of forward dynamics: a tuple of none or one."""
    if wrenches is None:
        return ()
    return (wrenches if isinstance(wrenches, Tensor) else wrenches(t, q, qd),)


def check_wrenches(
    mech: Mechanism, f_ext: Tensor | Wrenches | None, steps: int, batch: torch.Size
) -> tuple[Tensor | Wrenches | None, torch.Size]:
    """Check external forces as `torchsko.rollout` takes them.

    Returns:
        The forces, and the batch dimensions with theirs.
    """
    if callable(f_ext) and not accepts_arguments(f_ext, 3):
        raise TorchskoError(
            f"f_ext is {getattr(f_ext, '__name__', f_ext)}, which cannot be called with t, q and qd.",
            "It maps time [s], configuration and velocity to forces on all bodies.",
            f"Pass a function such as lambda t, q, qd: qd.new_zeros({mech.num_bodies}, 6), or a series.",
        )
    if f_ext is None or callable(f_ext):
        return f_ext, batch
    if not isinstance(f_ext, Tensor):
        raise ShapeError(*no_tensor("f_ext", f_ext, mech))
    last, time = (mech.num_bodies, 6), f_ext.shape[-3] if f_ext.ndim > 2 else None
    series_batch = f_ext.shape[:-3]
    if (
        tuple(f_ext.shape[-2:]) != last
        or time not in (1, steps)
        or not are_broadcastable(series_batch, batch)
    ):
        raise ShapeError(
            f"f_ext has shape {list(f_ext.shape)} for {steps} steps and the batch {list(batch)}.",
            "External forces of a rollout are a series over its steps, or a function (t, q, qd).",
            f"Pass [*batch, {steps}, {last[0]}, 6], or [*batch, 1, {last[0]}, 6] for constant forces.",
        )
    return f_ext, broadcast_shapes(series_batch, batch)


def with_checks(
    mech: Mechanism, f_ext: Tensor | Wrenches | None, batch: torch.Size
) -> Tensor | Wrenches | None:
    """External forces; a function is wrapped such that its results are checked."""
    return CheckedWrenches(mech, f_ext, batch) if callable(f_ext) else f_ext


@dataclass(frozen=True, eq=False)
class CheckedWrenches:
    """A function that returns external forces, with checks of its results."""

    mech: Mechanism
    function: Wrenches
    batch: torch.Size

    def __call__(self, t: float, q: Tensor, qd: Tensor) -> Tensor:
        """External forces at a state."""
        f_ext = self.function(t, q, qd)
        shape = [*self.batch, self.mech.num_bodies, 6]
        if not isinstance(f_ext, Tensor):
            raise ShapeError(
                f"f_ext is a function that returned {type(f_ext).__name__}.",
                "It returns forces on all bodies.",
                f"Return a tensor of shape {shape}, with zeros where there is no force.",
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
