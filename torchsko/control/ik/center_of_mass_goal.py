"""Goal for the center of mass; the rows are c_target - c."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from torchsko.control.ik.goal import BoundGoal, Goal, GoalRows, GoalState, weight_rows
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_position
from torchsko.mechanism.validation import check_placement
from torchsko.verbs.momenta import center_of_mass, com_jacobian


@dataclass(frozen=True, eq=False)
class CenterOfMassGoal(Goal):
    """The center of mass reaches a position, or some of its coordinates.

    Attributes:
        target: position in the inertial frame, `[*batch, 3]` [m].
        weight: factor of the errors, a number, or one for each axis, `[*batch, 3]` [1/m]. A coordinate of
            weight 0 is free.
        priority: goals of larger numbers give way.

    Raises:
        MechanismError: on a weight that is negative or not finite, or a target that is not finite.

    Example:
        >>> import torch, torchsko as ts
        >>> from torchsko.control import CenterOfMassGoal
        >>> arm, over = ts.load(ts.robots.panda), torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
        >>> goal = CenterOfMassGoal(torch.zeros(3, dtype=torch.float64), weight=over)
        >>> found = ts.inverse_kinematics(arm, arm.middle(), [goal])
        >>> ts.center_of_mass(arm, found.q)[:2].abs().max() < 1e-8
        tensor(True)
    """

    target: Tensor
    weight: float | Tensor = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        self.check_priority()
        check_position("target of the center of mass", self.target)

    def bind(self, mech: Mechanism, frames: Sequence[str]) -> BoundGoal:
        """See `Goal`."""
        what = "target of the center of mass"
        batches = {f"the {what}": check_placement(mech, what, self.target, (3,), required=True)}
        weight, more = weight_rows(mech, "weight of the center of mass", self.weight, 3)
        return BoundGoal(
            CenterOfMassGoalRows(), (self.target, weight), ((3,), (3,)), batches | more
        )


@dataclass(frozen=True)
class CenterOfMassGoalRows(GoalRows):
    """Rows of a `CenterOfMassGoal`."""

    @property
    def num_rows(self) -> int:
        """Three."""
        return 3

    def error(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """The vector to the target [m]."""
        return tensors[0] - center_of_mass(at.source, at.q)

    def jacobian(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """The Jacobian of the center of mass."""
        return com_jacobian(at.source, at.q)
