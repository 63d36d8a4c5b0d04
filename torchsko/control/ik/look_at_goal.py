r"""Goal for a camera: an axis of a frame points to a point p.

With the distance l and the direction d = (p - r) / l, the rows are e = d - R a, and

.. math:: -\dot e = \frac{1 - d d^*}{l}\, v - \widetilde{R a}\, \omega .
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.control.ik.axis_goal import unit_vector
from torchsko.control.ik.goal import (
    BoundGoal,
    FrameBoundGoal,
    FrameBoundRows,
    GoalState,
    weight_rows,
)
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_position
from torchsko.mechanism.validation import check_placement
from torchsko.spatial.rotation import skew
from torchsko.utils.shapes import matvec
from torchsko.verbs.frame import Frame


@dataclass(frozen=True, eq=False)
class LookAtGoal(FrameBoundGoal):
    """An axis of a frame, such as the optical axis of a camera, points from its origin to a point.

    Attributes:
        frame: a name of ``mech.frame_names``, or a `Frame`.
        point: in the inertial frame, or in `relative_to`, `[*batch, 3]` [m].
        axis: the axis in the frame, `[*batch, 3]` of any length; None for z.
        weight: factor of the errors, a number, or one for each axis, `[*batch, 3]` [1/rad].
        priority: goals of larger numbers give way.
        relative_to: frame in which the point is given, and which may move; None for the inertial frame.

    Raises:
        MechanismError: on a weight that is negative or not finite, or an axis of length zero.

    Example:
        >>> import torch, torchsko as ts
        >>> from torchsko.control import LookAtGoal
        >>> arm, point = ts.load(ts.robots.panda), torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
        >>> found = ts.inverse_kinematics(arm, arm.middle(), [LookAtGoal("flange", point)])
        >>> R, r = ts.frame_pose(arm, found.q, "flange")
        >>> torch.allclose(R[:, 2], (point - r) / (point - r).norm())
        True
    """

    frame: str | Frame
    point: Tensor
    axis: Tensor | None = None
    weight: float | Tensor = 1.0
    priority: int = 0
    relative_to: str | Frame | None = None

    def __post_init__(self) -> None:
        self.check_priority()
        check_position(f"point that {self.frame!r} looks at", self.point)

    def bind(self, mech: Mechanism, frames: Sequence[str]) -> BoundGoal:
        """See `Goal`."""
        what = f"point that {self.frame!r} looks at"
        batches = {f"the {what}": check_placement(mech, what, self.point, (3,), required=True)}
        axis = self.axis
        if axis is None:
            axis = torch.tensor([0.0, 0.0, 1.0], dtype=mech.dtype, device=mech.device)
        what = f"axis of {self.frame!r}"
        axis, batches[f"the {what}"] = unit_vector(mech, what, axis)
        weight, more = weight_rows(mech, f"weight of the axis of {self.frame!r}", self.weight, 3)
        rows = LookAtGoalRows(*frames)
        return BoundGoal(rows, (self.point, axis, weight), ((3,), (3,), (3,)), batches | more)


@dataclass(frozen=True)
class LookAtGoalRows(FrameBoundRows):
    """Rows of a `LookAtGoal`."""

    def error(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """The direction of the point less the axis."""
        R, r = at.pose(self.frame, self.base)
        direction, _ = _direction(tensors[0] - r)
        return direction - matvec(R, tensors[1])

    def jacobian(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """See the module."""
        R, r = at.pose(self.frame, self.base)
        angular, linear = at.jacobian(self.frame, self.base)
        d, length = _direction(tensors[0] - r)
        across = linear - d[..., None] * (d[..., None, :] @ linear)
        return across / length[..., None] - skew(matvec(R, tensors[1])) @ angular


def _direction(x: Tensor) -> tuple[Tensor, Tensor]:
    """A vector divided by its length, and its length `[*, 1]`; zero and 1 at the origin."""
    square = (x * x).sum(-1, keepdim=True)
    length = torch.where(square > 0, square, 1.0).sqrt()
    return x / length, length
