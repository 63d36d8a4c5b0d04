"""Goal for the pose of a frame, or parts of it, also relative to another frame.

The rows are log(R_target R*) and r_target - r, in the axes of the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchsko.control.ik.goal import (
    BoundGoal,
    FrameBoundGoal,
    FrameBoundRows,
    GoalState,
    join_rows,
    weight_rows,
)
from torchsko.control.joint_space.gains import Batches, check_gain_pair
from torchsko.errors import ShapeError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.mechanism.validation import check_placement
from torchsko.spatial.rotation import matrix_log, translation_jacobian_inverse
from torchsko.utils.shapes import concatenate
from torchsko.verbs.frame import Frame


@dataclass(frozen=True, eq=False)
class FrameGoal(FrameBoundGoal):
    """A frame reaches a pose, a position, an orientation, or some coordinates of them.

    Attributes:
        frame: a name of ``mech.frame_names``, or a `Frame`.
        target: a `Pose`, a pair of rotation `[*batch, 3, 3]` and position `[*batch, 3]` [m], either of which
            may be None, or a position alone; in the inertial frame, or in `relative_to`.
        weight: factors of the errors in rotation [1/rad] and position [1/m]; each a number, or one for each
            axis of the inertial frame or of `relative_to`, `[*batch, 3]`. A coordinate of weight 0 is free.
        priority: goals of larger numbers give way.
        relative_to: frame in which the target is given, and which may move; None for the inertial frame.

    Raises:
        MechanismError: on weights that are not a pair of finite numbers of 0 or more, an invalid rotation, or
            a position that is not finite.
        ShapeError: on a target that is neither a pair nor a tensor.

    Example:
        >>> import torch, torchsko as ts
        >>> from torchsko.control import FrameGoal
        >>> level = torch.eye(3, dtype=torch.float64), torch.tensor([0.0, 0.0, 0.5]).double()
        >>> free_yaw_and_xy = torch.tensor([1.0, 1.0, 0.0]).double(), torch.tensor([0.0, 0.0, 1.0]).double()
        >>> arm = ts.load(ts.robots.panda)
        >>> goals = [FrameGoal("flange", level, free_yaw_and_xy)]
        >>> ts.inverse_kinematics(arm, arm.middle(), goals).converged
        tensor(True)
    """

    frame: str | Frame
    target: Any
    weight: tuple[float | Tensor, float | Tensor] = (1.0, 1.0)
    priority: int = 0
    relative_to: str | Frame | None = None

    def __post_init__(self) -> None:
        self.check_priority()
        check_gain_pair(
            f"the weight of the goal for {self.frame!r}", self.weight,
            "Rotation and position errors each have a weight.",
            "weight=(1.0, 1.0), with tensors for one value per axis",
        )  # fmt: skip
        R, r = target_pair(self.frame, self.target)
        check_rotation(f"rotation of the target of {self.frame!r}", R)
        check_position(f"position of the target of {self.frame!r}", r)

    def bind(self, mech: Mechanism, frames: Sequence[str]) -> BoundGoal:
        """See `Goal`."""
        pair, parts = target_pair(self.frame, self.target), ("rotation", "position")
        tensors, shapes, weights = [], [], []
        batches: Batches = {}
        for x, shape, part, weight in zip(pair, ((3, 3), (3,)), parts, self.weight, strict=True):
            if x is None:
                continue
            what = f"{part} of the target of {self.frame!r}"
            batches[f"the {what}"] = check_placement(mech, what, x, shape)
            factors, more = weight_rows(mech, f"weight of the {what}", weight, 3)
            batches |= more
            tensors.append(x)
            shapes.append(shape)
            weights.append(factors)
        has_rotation, has_position = (x is not None for x in pair)
        rows = FrameGoalRows(*frames, has_rotation=has_rotation, has_position=has_position)
        shapes.append((rows.num_rows,))
        return BoundGoal(rows, (*tensors, join_rows(weights)), tuple(shapes), batches)


@dataclass(frozen=True)
class FrameGoalRows(FrameBoundRows):
    """Rows of a `FrameGoal`.

    Attributes:
        frame, base: see `FrameBoundRows`.
        has_rotation: whether the rotation counts.
        has_position: whether the position counts.
    """

    has_rotation: bool = True
    has_position: bool = True

    @property
    def num_rows(self) -> int:
        """Three for each part."""
        return 3 * (self.has_rotation + self.has_position)

    def error(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """Rotation vector to the target [rad], and vector to it [m]."""
        R, r = at.pose(self.frame, self.base)
        parts = [matrix_log(tensors[0] @ R.mT)] if self.has_rotation else []
        return join_rows([*parts, tensors[-1] - r] if self.has_position else parts)

    def jacobian(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """The rate of the rotation vector is -V(e)^-* omega, with V of the SE(3) exponential."""
        angular, linear = at.jacobian(self.frame, self.base)
        parts = []
        if self.has_rotation:
            R, _ = at.pose(self.frame, self.base)
            e = matrix_log(tensors[0] @ R.mT)
            parts.append(translation_jacobian_inverse(e).mT @ angular)
        return concatenate([*parts, linear] if self.has_position else parts, -2)


def target_pair(frame: Any, target: Any) -> tuple[Any, Any]:
    """Rotation and position of a frame's target; None for a part that does not count."""
    pair = (None, target) if isinstance(target, Tensor) else target
    if not isinstance(pair, Sequence) or len(pair) != 2 or all(x is None for x in pair):
        raise ShapeError(
            f"the target of frame {frame!r} is {target!r}.",
            "A target is a pair of rotation and position, one of which may be None.",
            "Pass (rotation, position), (None, position), or a position, as tensors.",
        )
    return pair[0], pair[1]
