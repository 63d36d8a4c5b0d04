"""External forces of a rollout: a series of steps, or a function of the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchsko.actuators.law import Law, Named, as_step_series, law_of
from torchsko.errors import ShapeError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state, no_tensor
from torchsko.utils.shapes import broadcast_shapes, is_expandable

Wrenches = Callable[..., Tensor]
"""Maps (t, q, qd) to forces on all bodies, `[*batch, num_bodies, 6]`; see `torchsko.actuators.law`."""

StateWrenches = Callable[[float, Tensor, Tensor], Tensor]
"""Maps (t, q, qd) to forces on all bodies, with all other arguments bound."""

StepWrenches = Tensor | StateWrenches | None
"""Forces on all bodies over one step."""


def wrenches_at(wrenches: StepWrenches, t: float, q: Tensor, qd: Tensor) -> Tensor | None:
    """External forces at a state, `[*batch, num_bodies, 6]`; None for zero."""
    if wrenches is None or isinstance(wrenches, Tensor):
        return wrenches
    return wrenches(t, q, qd)


def check_wrenches(
    mech: Mechanism,
    f_ext: Tensor | Wrenches | None,
    steps: int,
    batch: torch.Size,
    names: tuple[str, ...],
) -> tuple[Tensor | Law | None, torch.Size]:
    """Check external forces as `torchsko.rollout` takes them.

    Returns:
        The forces, a tensor as `[*batch, steps or 1, num_bodies, 6]`, and the batch dimensions with theirs.
    """
    if f_ext is None:
        return f_ext, batch
    if callable(f_ext):
        example = (
            f"a function such as lambda t, q, qd: qd.new_zeros({mech.num_bodies}, 6), or a series"
        )
        return law_of("f_ext", f_ext, names, "forces on all bodies", example), batch
    if not isinstance(f_ext, Tensor):
        raise ShapeError(*no_tensor("f_ext", f_ext, mech, (mech.num_bodies, 6)))
    event = (mech.num_bodies, 6)
    if tuple(f_ext.shape[-2:]) != event:
        raise ShapeError(
            f"f_ext has shape {list(f_ext.shape)} for {steps} steps and the batch {list(batch)}.",
            "External forces of a rollout are constant, a series over its steps, or a function (t, q, qd).",
            f"Pass [*batch, {event[0]}, 6], or [*batch, {steps}, {event[0]}, 6].",
        )
    f_ext = as_step_series("f_ext", f_ext, event, steps, batch)
    return f_ext, broadcast_shapes(f_ext.shape[:-3], batch)


def with_checks(
    mech: Mechanism, f_ext: Tensor | Law | None, batch: torch.Size
) -> Tensor | CheckedWrenches | None:
    """External forces; a law is wrapped such that its results are checked."""
    return CheckedWrenches(mech, f_ext, batch) if isinstance(f_ext, Law) else f_ext


@dataclass(frozen=True, eq=False)
class CheckedWrenches:
    """A law of external forces, with checks of its results."""

    mech: Mechanism
    law: Law
    batch: torch.Size

    def with_inputs(self, inputs: Named) -> StateWrenches:
        """The forces as a function of time and state."""
        return partial(self._evaluate, inputs)

    def _evaluate(self, inputs: Named, t: float, q: Tensor, qd: Tensor) -> Tensor:
        f_ext = self.law(self.mech, t, q, qd, inputs)
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
