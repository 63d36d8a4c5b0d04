"""Interfaces of constraint kinds; see `torchsko.constraints` for the notation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.spatial.rotation import cross


class Marker(NamedTuple):
    """Pose of markers in the shared axes.

    Attributes:
        rotation: marker coordinates to shared ones, `[*, 3, 3]`.
        position: origin, `[*, 3]` [m].
    """

    rotation: Tensor
    position: Tensor

    def axis(self, i: int) -> Tensor:
        """Unit vector of the x, y or z axis (i = 0, 1, 2) of the marker, `[*, 3]`."""
        return self.rotation[..., i]


@dataclass(frozen=True)
class ConstraintKind:
    """A kind of constraint between two ends.

    Attributes:
        name: name of the kind.
        num_rows: number of rows.
        summary: what holds, in one line of the documentation.
        parameters: names of its numbers besides the placements of both markers; those that are attributes
            of a `Closure` are read there, others from its ``parameters``.
        angular_rows: rows without unit of length, whose softness is scaled by inverse inertias.
        synonyms: further names of the kind.
        soft_synonyms: further names of the kind as a soft constraint.
        mjcf: element of a new MJCF file; empty if it has none.
        urdf: type of a loop in a new URDF file; empty if it has none.
    """

    name: str
    num_rows: int = 1
    summary: str = ""
    parameters: tuple[str, ...] = ()
    angular_rows: tuple[int, ...] = ()
    synonyms: tuple[str, ...] = ()
    soft_synonyms: tuple[str, ...] = ()
    mjcf: str = ""
    urdf: str = ""

    @property
    def soft(self) -> ConstraintKind:
        """The kind of its rows as a soft constraint."""
        return self


@dataclass(frozen=True)
class FrameRows(ConstraintKind, ABC):
    """A kind of rows between two markers."""

    @abstractmethod
    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """The residual phi, `[*, num_rows]`; parameters are `[*, len(parameters)]`."""

    @abstractmethod
    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """L1 and L2, `[*, num_rows, 6]`: rate of the residual per velocity [w; v] of each marker."""

    @abstractmethod
    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """The bias beta, `[*, num_rows]`, at the velocities `[*, 6]` of both markers."""


@dataclass(frozen=True)
class JointRows(ConstraintKind, ABC):
    """A kind of one row between the coordinates of two joints with one dof each."""

    @abstractmethod
    def residual(self, q1: Tensor, q2: Tensor, parameters: Tensor) -> Tensor:
        """The residual phi, `[*]`, at coordinates `[*]`."""

    @abstractmethod
    def slopes(self, q1: Tensor, q2: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of the residual to both coordinates, `[*]` each."""

    @abstractmethod
    def bias(self, q1: Tensor, q2: Tensor, qd1: Tensor, qd2: Tensor, parameters: Tensor) -> Tensor:
        """The second rate of the residual at zero accelerations, `[*]`."""


def point_maps(position: Tensor) -> tuple[Tensor, Tensor]:
    """L1 and L2 of x2 - x1, `[3, 6]` each; `position` provides dtype and device."""
    identity = torch.eye(3, dtype=position.dtype, device=position.device)
    L2 = torch.cat([torch.zeros_like(identity), identity], -1)
    return -L2, L2


def axis_residual(e1: Tensor, e2: Tensor) -> Tensor:
    """Scalar products e1.e2 of axes, `[*]`."""
    return (e1 * e2).sum(-1)


def axis_maps(e1: Tensor, e2: Tensor) -> tuple[Tensor, Tensor]:
    """L1 and L2 of e1.e2, `[*, 6]`: the rate is n.(w2 - w1) with n = e2 x e1."""
    n = cross(e2, e1)
    L2 = torch.cat([n, torch.zeros_like(n)], -1)
    return -L2, L2


def axis_bias(e1: Tensor, e2: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """(w2 - w1).[(w2 x e2) x e1 + e2 x (w1 x e1)], `[*]`."""
    moved = cross(cross(w2, e2), e1) + cross(e2, cross(w1, e1))
    return ((w2 - w1) * moved).sum(-1)
