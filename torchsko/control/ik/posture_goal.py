"""Goal for the configuration; the rows are the tangent step to the target, `torchsko.difference`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from torchsko.control.ik.goal import BoundGoal, Goal, GoalRows, GoalState, weight_rows
from torchsko.mechanism.configuration import subtract
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.validation import check_placement
from torchsko.verbs.configuration_derivatives import difference_derivatives


@dataclass(frozen=True, eq=False)
class PostureGoal(Goal):
    """All joints, or some of them, come near a configuration.

    A posture of a small weight, or of a later priority, chooses one of many solutions of other goals.

    Attributes:
        q: the configuration, `[*batch, num_q]`.
        weight: factor of the errors, a number, or one for each dof, `[*batch, num_dof]` [1/rad or 1/m].
        priority: goals of larger numbers give way.

    Raises:
        MechanismError: on a weight that is negative or not finite.

    Example:
        >>> import torchsko as ts
        >>> from torchsko.control import FrameGoal, PostureGoal
        >>> arm = ts.load(ts.robots.panda)
        >>> place = ts.frame_pose(arm, arm.middle(), "flange").position + 0.1
        >>> goals = [FrameGoal("flange", place), PostureGoal(arm.middle(), priority=1)]
        >>> found = ts.inverse_kinematics(arm, arm.middle(), goals)
        >>> (ts.frame_pose(arm, found.q, "flange").position - place).norm() < 1e-6
        tensor(True)
    """

    q: Tensor
    weight: float | Tensor = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        self.check_priority()

    def bind(self, mech: Mechanism, frames: Sequence[str]) -> BoundGoal:
        """See `Goal`."""
        meaning = "It is a configuration, in the order of mech.joint_names."
        shapes, n = ((mech.num_q,), (mech.num_dof,)), mech.num_dof
        batch = check_placement(mech, "posture", self.q, shapes[0], meaning, required=True)
        weight, more = weight_rows(mech, "weight of the posture", self.weight, n)
        return BoundGoal(
            PostureGoalRows(n), (self.q, weight), shapes, {"the posture": batch} | more
        )


@dataclass(frozen=True)
class PostureGoalRows(GoalRows):
    """Rows of a `PostureGoal`.

    Attributes:
        num_dof: number of dofs.
    """

    num_dof: int

    @property
    def num_rows(self) -> int:
        """One for each dof."""
        return self.num_dof

    def error(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """The step to the posture [rad or m]."""
        return subtract(at.kinematics.mech, at.q, tensors[0])

    def jacobian(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """Minus the derivative of the difference to its start."""
        return -difference_derivatives(at.kinematics.mech, at.q, tensors[0])[0]
