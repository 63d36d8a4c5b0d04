"""Interface of goals of inverse kinematics; one file of this package for each kind.

A goal has rows e of an error, and their Jacobian J = -de for a tangent step of q. J is exact wherever e is
differentiable, so that -J* W^2 e is the gradient of the weighted squared error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from torchsko.bridge.body_poses import Pose
from torchsko.bridge.kinematics import Kinematics
from torchsko.control.joint_space.gains import Batches, check_nonnegative, is_nonnegative
from torchsko.errors import MechanismError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.validation import check_placement
from torchsko.spatial.rotation import skew
from torchsko.utils.computed import computed
from torchsko.utils.numbers import as_integer
from torchsko.utils.shapes import concatenate, matvec
from torchsko.verbs.frame import Frame
from torchsko.verbs.frames import frame_jacobian, frame_pose


@dataclass(frozen=True, eq=False)
class GoalState:
    """A mechanism at a configuration, with the frames of all goals.

    Attributes:
        source: the mechanism, or its kernels.
        frames: names of the frames.
        q: configuration, `[*batch, num_q]`.
    """

    source: MechanismLike
    frames: tuple[str, ...]
    q: Tensor

    @computed
    def kinematics(self) -> Kinematics:
        """The mechanism at the configuration."""
        return Kinematics.of(as_mechanism(self.source), self.q)

    @computed
    def poses(self) -> Pose:
        """Poses of all frames in the inertial frame."""
        return frame_pose(self.source, self.q, self.frames)

    @computed
    def jacobians(self) -> Tensor:
        """Jacobians of all frames at their origins in inertial axes, `[*batch, frames, 6, num_dof]`."""
        return frame_jacobian(self.source, self.q, self.frames, reference="mixed")

    def pose(self, frame: str, base: str | None = None) -> Pose:
        """Pose of a frame in the inertial frame, or in a base that may move."""
        k = self.frames.index(frame)
        R, r = self.poses.rotation[..., k, :, :], self.poses.position[..., k, :]
        if base is None:
            return Pose(R, r)
        R_base, r_base = self.pose(base)
        return Pose(R_base.mT @ R, matvec(R_base.mT, r - r_base))

    def jacobian(self, frame: str, base: str | None = None) -> tuple[Tensor, Tensor]:
        """Angular and linear rows of a frame's motion in its base, in the base's axes, `[*batch, 3, n]`."""
        J = self.jacobians[..., self.frames.index(frame), :, :]
        angular, linear = J[..., :3, :], J[..., 3:, :]
        if base is None:
            return angular, linear
        R, r = self.pose(base)
        turn, shift = self.jacobian(base)
        arm = self.pose(frame).position - r
        return R.mT @ (angular - turn), R.mT @ (linear - shift + skew(arm) @ turn)


class GoalRows(ABC):
    """Rows of a goal without its numbers: a frozen dataclass, which a kernel's key contains."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Number of rows."""

    @abstractmethod
    def error(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """The error e, `[*batch, num_rows]`; the tensors are those of `BoundGoal` before the weight."""

    @abstractmethod
    def jacobian(self, at: GoalState, *tensors: Tensor) -> Tensor:
        """J = -de for a tangent step, `[*batch, num_rows, num_dof]`."""


class BoundGoal(NamedTuple):
    """A goal on a mechanism.

    Attributes:
        rows: its rows.
        tensors: of its target, `[*batch, *shape]`, and last the weights of its rows.
        shapes: shape of each tensor for one sample.
        batches: batch dimensions by the names that errors use.
    """

    rows: GoalRows
    tensors: tuple[Tensor, ...]
    shapes: tuple[tuple[int, ...], ...]
    batches: Batches


class Goal(ABC):
    """A goal of `torchsko.inverse_kinematics`.

    Attributes:
        priority: goals of larger numbers give way to this one; see `torchsko.inverse_kinematics`.
    """

    priority: int

    @property
    def frames(self) -> tuple[str | Frame, ...]:
        """Frames of the goal."""
        return ()

    @abstractmethod
    def bind(self, mech: Mechanism, frames: Sequence[str]) -> BoundGoal:
        """The goal on a mechanism; its last tensor is the weight of each row.

        Args:
            mech: the mechanism, with all frames of goals.
            frames: names of the goal's frames there.
        """

    def check_priority(self) -> None:
        """Refuse a priority that is not an integer."""
        if as_integer(self.priority) is None:
            raise MechanismError(
                f"the priority of a {type(self).__name__} is {self.priority!r}.",
                "Goals are ordered by integers; those of the smallest number are reached first.",
                "Pass priority=1, say.",
            )


class FrameBoundGoal(Goal):
    """A goal for a frame, in the inertial frame or relative to another frame.

    Attributes:
        frame: a name of ``mech.frame_names``, or a `Frame`.
        relative_to: frame in which the target is given, and which may move; None for the inertial frame.
    """

    frame: str | Frame
    relative_to: str | Frame | None

    @property
    def frames(self) -> tuple[str | Frame, ...]:
        """The frame, and that relative to which it moves."""
        return (self.frame,) if self.relative_to is None else (self.frame, self.relative_to)


@dataclass(frozen=True)
class FrameBoundRows(GoalRows):
    """Three rows of a goal for a frame.

    Attributes:
        frame: name of the frame.
        base: name of the frame relative to which it moves; None for the inertial frame.
    """

    frame: str
    base: str | None = None

    @property
    def num_rows(self) -> int:
        """Three; those of directions have rank two."""
        return 3


def weight_rows(mech: Mechanism, what: str, weight: Any, n: int) -> tuple[Tensor, Batches]:
    """A weight as a tensor of n rows, and its batch dimensions.

    Args:
        mech: the mechanism.
        what: name of the weight for messages.
        weight: a number, or a tensor `[*batch, n]`.
        n: number of rows.

    Raises:
        ShapeError: when a tensor does not fit.
        MechanismError: when a weight is negative or not finite.
    """
    meaning = "A weight is finite and 0 or more: one number, or one for each row."
    if isinstance(weight, Tensor) and weight.ndim:
        batch = check_placement(mech, what, weight, (n,), meaning)
        if not is_nonnegative(weight):
            raise MechanismError(f"an entry of the {what} is not valid.", meaning, "Correct it.")
        return weight, {f"the {what}": batch}
    check_nonnegative(mech, what, weight, meaning, "1.0")
    return mech.mass.new_ones(n) * weight, {}


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    """Weights or errors of several parts as one, batch dimensions broadcast."""
    return concatenate(parts, -1)
