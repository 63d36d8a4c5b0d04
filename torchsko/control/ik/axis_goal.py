"""Goal for the direction of an axis of a frame: the rows are d - R a, of length 2 sin(angle / 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from torchsko.control.ik.goal import (
    BoundGoal,
    FrameBoundGoal,
    FrameBoundRows,
    GoalState,
    weight_rows,
)
from torchsko.errors import MechanismError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.validation import check_placement
from torchsko.spatial.rotation import skew
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import matvec
from torchsko.verbs.frame import Frame


@dataclass(frozen=True, eq=False)
class AxisGoal(FrameBoundGoal):
    """An axis of a frame points in a direction; the frame may turn about it.

    Attributes:
        frame: a name of ``mech.frame_names``, or a `Frame`.
        axis: the axis in the frame, `[*batch, 3]` of any length.
        direction: its direction in the inertial frame, or in `relative_to`, `[*batch, 3]` of any length.
        weight: factor of the errors, a number, or one for each axis, `[*batch, 3]` [1/rad].
        priority: goals of larger numbers give way.
        relative_to: frame in which the direction is given, and which may move; None for the inertial frame.

    Raises:
        MechanismError: on a weight that is negative or not finite, or a vector of length zero.

    Example:
        >>> import torch, torchsko as ts
        >>> from torchsko.control import AxisGoal
        >>> z = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
        >>> arm = ts.load(ts.robots.panda)
        >>> found = ts.inverse_kinematics(arm, arm.middle(), [AxisGoal("flange", z, -z)])
        >>> torch.allclose(ts.frame_pose(arm, found.q, "flange").rotation[:, 2], -z)
        True
    """

    frame: str | Frame
    axis: Tensor
    direction: Tensor
    weight: float | Tensor = 1.0
    priority: int = 0
    relative_to: str | Frame | None = None

    def __post_init__(self) -> None:
        self.check_priority()

    def bind(self, mech: Mechanism, frames: Sequence[str]) -> BoundGoal:
        """See `Goal`."""
        batches, tensors = {}, []
        for part in ("axis", "direction"):
            what = f"{part} of the goal for {self.frame!r}"
            unit, batches[f"the {what}"] = unit_vector(mech, what, getattr(self, part))
            tensors.append(unit)
        weight, more = weight_rows(mech, f"weight of the axis of {self.frame!r}", self.weight, 3)
        rows = AxisGoalRows(*frames)
        return BoundGoal(rows, (*tensors, weight), ((3,), (3,), (3,)), batches | more)


@dataclass(frozen=True)
class AxisGoalRows(FrameBoundRows):
    """Rows of an `AxisGoal`."""

    def error(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """The direction less the axis."""
        axis, direction = tensors[:2]
        return direction - matvec(at.pose(self.frame, self.base).rotation, axis)

    def jacobian(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """The rate of the axis is omega x R a."""
        axis = matvec(at.pose(self.frame, self.base).rotation, tensors[0])
        return -skew(axis) @ at.jacobian(self.frame, self.base)[0]


def unit_vector(mech: Mechanism, what: str, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """A vector divided by its length, and its batch dimensions.

    Raises:
        ShapeError: when it is no vector in space.
        MechanismError: when its length is zero.
    """
    batch = check_placement(mech, what, x, (3,), "It is a vector in space.", required=True)
    length = (x * x).sum(-1, keepdim=True).sqrt()
    read = concrete_values(length)
    if read is not None and not (read > 0).all():
        raise MechanismError(
            f"the {what} has the length 0.",
            "A vector of length 0 has no direction.",
            "Pass (0, 0, 1), say.",
        )
    return x / length, batch
