"""Compound joint: several one-dof motions of one body in sequence, like stacked MJCF joints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.joints.kind import Constants, JointType, Parameter, Pose
from torchsko.mechanism.joints.revolute import rotation_about
from torchsko.spatial.motion import cross_motion
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec

Vector = tuple[float, float, float]


@dataclass(frozen=True)
class Turn:
    """A rotation about an axis through a point, part of a compound joint.

    Attributes:
        axis: direction in the joint frame at zero displacement; need not be a unit vector.
        point: point on the axis in the joint frame at zero displacement [m].
    """

    axis: Sequence[float] = (0.0, 0.0, 1.0)
    point: Sequence[float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Slide:
    """A translation along an axis, part of a compound joint.

    Attributes:
        axis: direction in the joint frame at zero displacement; need not be a unit vector.
    """

    axis: Sequence[float] = (0.0, 0.0, 1.0)


@dataclass(frozen=True)
class Compound(JointType):
    """One-dof motions in sequence, each in the frame moved by the motions before it.

    Each motion is a rotation about an axis through a point, or a translation along an axis. q is the angles
    [rad] and displacements [m] in order, qd their rates. Three rotations with crossing axes are singular when
    the first and last axes align: one degree of freedom is lost, and forward dynamics needs armature there.

    Attributes:
        turns: for each motion, whether it is a rotation.
    """

    name: str = "compound"
    coordinates: tuple[str, ...] = ()
    rates: tuple[str, ...] = ()
    usual_speed: tuple[float, ...] = ()
    orthonormal: bool = False
    unit_rows: bool = False
    turns: tuple[bool, ...] = ()

    @property
    def keywords(self) -> tuple[str, ...]:
        """``motions``, a list of `Turn` and `Slide`."""
        return ("motions",)

    def specialize(self, joint: str, data: Mapping[str, Any]) -> JointType:
        """The joint type for these motions."""
        motions = data.get("motions", ())
        if not 1 <= len(motions) <= 6 or not all(isinstance(m, (Turn, Slide)) for m in motions):
            raise MechanismError(
                f"joint {joint!r} has the motions {motions!r}.",
                "A compound joint is one to six rotations and translations, in sequence.",
                "Pass motions=[torchsko.Turn(axis, point), torchsko.Slide(axis)], for example.",
            )
        turns = tuple(isinstance(motion, Turn) for motion in motions)
        names = tuple(f"{'turn' if turn else 'slide'}{k}" for k, turn in enumerate(turns))
        n = len(turns)
        return Compound(
            coordinates=names,
            rates=names,
            usual_speed=tuple(math.pi if turn else 1.0 for turn in turns),
            parameters=(Parameter("axes", (n, 3), unit=True), Parameter("points", (n, 3))),
            turns=turns,
        )

    def parameter_values(
        self, joint: str, axis: Sequence[float], data: Mapping[str, Any]
    ) -> list[float]:
        """Unit axes, then points, which are zero for translations."""
        motions = data["motions"]
        axes = [motion.axis for motion in motions]
        points = [m.point if isinstance(m, Turn) else (0.0, 0.0, 0.0) for m in motions]
        flat = super().parameter_values(joint, axis, {"axes": axes, "points": points})
        lengths = np.linalg.norm(np.reshape(flat[: len(flat) // 2], (-1, 3)), axis=-1)
        if not ((lengths > 0) & (lengths < math.inf)).all():
            raise MechanismError(
                f"joint {joint!r} has a motion whose axis is zero.",
                "A direction needs a finite, nonzero length.",
                "Pass another axis, such as axis=(0, 0, 1).",
            )
        unit = np.reshape(flat[: len(flat) // 2], (-1, 3)) / lengths[:, None]
        return [*unit.ravel().tolist(), *flat[len(flat) // 2 :]]

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Product of the poses of all motions."""
        turn, shift = None, None
        for motion_turn, motion_shift, _ in self._motions(constants, q):
            moved = motion_shift if turn is None else matvec(turn, motion_shift)
            shift = moved if shift is None else shift + moved
            if motion_turn is not None:
                turn = motion_turn if turn is None else turn @ motion_turn
        return turn, shift

    def joint_map(self, constants: Constants) -> Tensor:
        """Rows [axis, point x axis] for rotations and [0, axis] for translations."""
        rows = [_row(*part) for part in self._parts(constants)]
        return torch.stack(torch.broadcast_tensors(*rows), -2)

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        """Row of each motion, transformed by the motions after it."""
        rows: list[Tensor] = []
        for turn, shift, row in self._motions(constants, q):
            rows = [*(_transform_row(turn, shift, x) for x in rows), row]
        return torch.stack(torch.broadcast_tensors(*rows), -2)

    def bias_accel(self, constants: Constants, q: Tensor, qd: Tensor) -> Tensor:
        """Acceleration at constant rates, accumulated from motion to motion."""
        velocity = accel = torch.zeros_like(constants["axes"][..., 0, :]).repeat_interleave(2, -1)
        for k, (turn, shift, row) in enumerate(self._motions(constants, q)):
            rate = row * qd[..., k, None]
            velocity = _transform_row(turn, shift, velocity) + rate
            accel = _transform_row(turn, shift, accel) + _cross(velocity, rate)
        return accel

    def _parts(self, constants: Constants) -> Iterator[tuple[bool, Tensor, Tensor]]:
        axes, points = constants["axes"].unbind(-2), constants["points"].unbind(-2)
        return zip(self.turns, axes, points, strict=True)

    def _motions(
        self, constants: Constants, q: Tensor
    ) -> Iterator[tuple[Tensor | None, Tensor, Tensor]]:
        """Rotation, translation and row of H of each single motion."""
        for k, (turns, axis, point) in enumerate(self._parts(constants)):
            coordinate, row = q[..., k, None], _row(turns, axis, point)
            if turns:
                turn = rotation_about(axis, coordinate)
                yield turn, point - matvec(turn, point), row
            else:
                yield None, axis * coordinate, row


def _row(turns: bool, axis: Tensor, point: Tensor) -> Tensor:
    if turns:
        return torch.cat(torch.broadcast_tensors(axis, cross(point, axis)), -1)
    return torch.cat([torch.zeros_like(axis), axis], -1)


def _transform_row(turn: Tensor | None, shift: Tensor, row: Tensor) -> Tensor:
    """A motion row `[*, g, 6]` in the frame at this pose."""
    angular, linear = row.split(3, -1)
    halves = torch.broadcast_tensors(angular, linear - cross(shift, angular))
    if turn is None:
        return torch.cat(halves, -1)
    return (turn.mT[..., None, :, :] @ torch.stack(halves, -2)[..., None]).flatten(-3)


def _cross(V: Tensor, S: Tensor) -> Tensor:
    V, S = torch.broadcast_tensors(V, S)
    return cross_motion(V[..., None], S[..., None])[..., 0]
