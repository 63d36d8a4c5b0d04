"""Constraints of a held mechanism as rows of inverse kinematics; the rows are minus their residual.

A frame that is held where it is has rows without a residual. Here it is held at its pose in the initial
guess.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from torchsko.control.ik.goal import BoundGoal, GoalRows, GoalState
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.loops.placements import Placements
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.frame import Frame
from torchsko.verbs.frames import frame_pose
from torchsko.verbs.held.held_rows import HeldFrame, HeldRows


@dataclass(frozen=True)
class HeldGoalRows(GoalRows):
    """Rows of the constraints of a mechanism.

    Attributes:
        key: the constraints without their numbers.
        rows: the constraints.
    """

    key: tuple[Hashable, ...]
    rows: HeldRows = field(compare=False)

    @property
    def num_rows(self) -> int:
        """Those of all constraints."""
        return self.rows.num_rows

    def error(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """Minus the residual [rad, m]."""
        return -self.rows.at(at.kinematics, Placements(*tensors), at_rest=True).residual

    def jacobian(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """The Jacobian of the residual."""
        return self.rows.at(at.kinematics, Placements(*tensors), at_rest=True).jacobian


def bind_held(mech: Mechanism, rows: HeldRows, q0: Tensor) -> BoundGoal:
    """The constraints of a mechanism, with frames that stay at their pose in q0 `[*batch, num_q]`."""
    constraints = [_placed(mech, c, q0) for c in rows.constraints]
    placed = HeldRows(mech, constraints)
    numbers = placed.numbers(mech)
    weight = mech.mass.new_ones(placed.num_rows)
    ranks = (3, 2, 1)
    shapes = tuple(tuple(x.shape[x.ndim - rank :]) for x, rank in zip(numbers, ranks, strict=True))
    batches = {
        f"the placements of held frames ({k})": tuple(x.shape[: x.ndim - rank])
        for k, (x, rank) in enumerate(zip(numbers, ranks, strict=True))
    }
    key = tuple(map(_key, constraints))
    return BoundGoal(
        HeldGoalRows(key, placed), (*numbers, weight), (*shapes, tuple(weight.shape)), batches
    )


def _placed(mech: Mechanism, constraint: HeldFrame | Closure, q0: Tensor) -> HeldFrame | Closure:
    """A held frame without a placement, with that of the initial guess."""
    if not isinstance(constraint, HeldFrame) or constraint.placement is not None:
        return constraint
    pose = frame_pose(mech, q0, constraint.frame)
    return replace(
        constraint, placement=tuple(pose) if constraint.rows == "weld" else pose.position
    )


def _key(constraint: HeldFrame | Closure) -> Any:
    """A constraint without its numbers, which are inputs of a kernel."""
    if isinstance(constraint, Closure):
        return constraint
    frame = constraint.frame
    name = ("on", frame.body) if isinstance(frame, Frame) else frame
    return (name, constraint.rows)
