"""Conventions of other libraries, and conversion of the rates of joints with other axes.

torchsko has quaternions w x y z, and the velocity [omega; v] of a free joint in the axes of the body, where v
is the velocity of the body's origin. The rate of a scalar coordinate is its derivative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.spatial.rotation import cross, quaternion_to_matrix
from torchsko.utils.shapes import matvec

COMMON = ("revolute", "prismatic", "free")
"""Kinds of joints that are converted for every library."""


@dataclass(frozen=True)
class Library:
    """Conventions of one library.

    Attributes:
        kinds: kinds of joints that are converted.
        scalar_last: quaternions are x y z w instead of w x y z.
        quaternion_first: the quaternion of a free joint precedes its position.
        angular_first: the angular velocity of a free joint precedes the linear one.
        linear_in_body: the linear velocity of a free joint is in the axes of the body, instead of the joint.
        angular_in_body: the angular velocity of a free joint is in the axes of the body.
        at_com: the linear velocity is that of the body's center of mass, instead of its origin.
        planar_in_body: the velocity of a planar joint is in the axes of the body, and its angle is
            represented by cosine and sine.
    """

    kinds: tuple[str, ...]
    scalar_last: bool = False
    quaternion_first: bool = False
    angular_first: bool = False
    linear_in_body: bool = False
    angular_in_body: bool = False
    at_com: bool = False
    planar_in_body: bool = False


LIBRARIES = {
    # Pinocchio documentation, "Dealing with Lie-group geometry"; joints/joint-{free-flyer,planar}.hpp.
    "pinocchio": Library(
        (*COMMON, "spherical", "translation", "helical", "universal", "planar"),
        scalar_last=True,
        linear_in_body=True,
        angular_in_body=True,
        planar_in_body=True,
    ),
    # MuJoCo documentation, "Computation", "Floating objects".
    "mujoco": Library(
        (*COMMON, "spherical", "translation", "universal", "planar", "cylindrical", "compound"),
        angular_in_body=True,
    ),
    # Drake, multibody/tree/quaternion_floating_joint.h: q = [q_FM; p_FM], v = [w_FM; v_FM] in F.
    "drake": Library(
        (*COMMON, "universal", "planar"),
        quaternion_first=True,
        angular_first=True,
    ),
    # Isaac Lab up to 2.x, ArticulationData: root_link_pose_w (w x y z), root_com_vel_w.
    "isaaclab": Library(COMMON, at_com=True),
    # Newton documentation, "Conventions"; Isaac Lab from 3.0 uses the same quaternions.
    "newton": Library(COMMON, scalar_last=True, at_com=True),
}


@dataclass(frozen=True, eq=False)
class Rates(ABC):
    """Conversion of a joint's velocity to other axes or another point: T(q) qd.

    The arguments of every method are the joint's coordinates and vectors, in the order of torchsko.

    Attributes:
        q: slice of the joint's coordinates in those of the tree.
        dofs: slice of the joint's rates in those of the tree.
    """

    q: slice
    dofs: slice

    @abstractmethod
    def rates(self, q: Tensor, x: Tensor) -> Tensor:
        """T x."""

    @abstractmethod
    def rates_back(self, q: Tensor, x: Tensor) -> Tensor:
        """T^-1 x."""

    @abstractmethod
    def forces(self, q: Tensor, x: Tensor) -> Tensor:
        """T^-* x, which preserves power."""

    @abstractmethod
    def forces_back(self, q: Tensor, x: Tensor) -> Tensor:
        """T* x."""

    def of_rows(self) -> Rates:
        """A copy for vectors with another dimension before their last."""
        return self

    @abstractmethod
    def drift(self, q: Tensor, qd: Tensor) -> Tensor:
        """The derivative of T times qd, which is part of accelerations."""


@dataclass(frozen=True, eq=False)
class FreeRates(Rates):
    """Conversion of the velocity [omega; v] of a free joint.

    Attributes:
        library: conventions of the library.
        com: center of mass in the body `[*batch, 3]` [m]; zero if v is the velocity of the origin.
    """

    library: Library
    com: Tensor

    def rates(self, q: Tensor, x: Tensor) -> Tensor:
        """Translate v to the library's point, and rotate both parts to its axes."""
        omega, v = x[..., :3], x[..., 3:]
        return _pack(*self._rotate(q, omega, v + cross(omega, self.com)))

    def rates_back(self, q: Tensor, x: Tensor) -> Tensor:
        """Rotate both parts back, and translate v to the origin."""
        omega, v = self._rotate(q, x[..., :3], x[..., 3:], back=True)
        return _pack(omega, v - cross(omega, self.com))

    def forces(self, q: Tensor, x: Tensor) -> Tensor:
        """Translate the moment of [moment; force] to the library's point, and rotate both parts."""
        moment, force = x[..., :3], x[..., 3:]
        return _pack(*self._rotate(q, moment - cross(self.com, force), force))

    def forces_back(self, q: Tensor, x: Tensor) -> Tensor:
        """Rotate both parts back, and translate the moment to the origin."""
        moment, force = self._rotate(q, x[..., :3], x[..., 3:], back=True)
        return _pack(moment + cross(self.com, force), force)

    def of_rows(self) -> FreeRates:
        """A copy for vectors with another dimension before their last."""
        return replace(self, com=self.com[..., None, :])

    def drift(self, q: Tensor, qd: Tensor) -> Tensor:
        """Omega x v of the library's point, if the linear velocity is in the world's axes."""
        omega, v = qd[..., :3], qd[..., 3:]
        if self.library.linear_in_body:
            return torch.zeros_like(qd)
        linear = cross(omega, v + cross(omega, self.com))
        return _pack(*self._rotate(q, torch.zeros_like(linear), linear))

    def _rotate(
        self, q: Tensor, angular: Tensor, linear: Tensor, *, back: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Rotate the parts that are in the world's axes from the body, or back."""
        R = quaternion_to_matrix(q[..., 3:])
        R = R.mT if back else R
        if not self.library.angular_in_body:
            angular = matvec(R, angular)
        if not self.library.linear_in_body:
            linear = matvec(R, linear)
        return angular, linear


@dataclass(frozen=True, eq=False)
class PlanarRates(Rates):
    """Conversion of the rates [x, y, angle] of a planar joint to the axes of the body, as in Pinocchio."""

    def rates(self, q: Tensor, x: Tensor) -> Tensor:
        """Rotate by minus the angle."""
        return _rotate_plane(-q[..., 2], x)

    def rates_back(self, q: Tensor, x: Tensor) -> Tensor:
        """Rotate by the angle."""
        return _rotate_plane(q[..., 2], x)

    def forces(self, q: Tensor, x: Tensor) -> Tensor:
        """Rotate by minus the angle: T^-* = T for a rotation."""
        return self.rates(q, x)

    def forces_back(self, q: Tensor, x: Tensor) -> Tensor:
        """Rotate by the angle."""
        return self.rates_back(q, x)

    def drift(self, q: Tensor, qd: Tensor) -> Tensor:
        """The derivative of the rotation by minus the angle, times qd."""
        x, y, _ = self.rates(q, qd).unbind(-1)
        omega = qd[..., 2]
        return torch.stack([omega * y, -omega * x, torch.zeros_like(omega)], -1)


def _pack(angular: Tensor, linear: Tensor) -> Tensor:
    return torch.cat(torch.broadcast_tensors(angular, linear), -1)


def _rotate_plane(angle: Tensor, x: Tensor) -> Tensor:
    c, s = angle.cos(), angle.sin()
    a, b, turn = x.unbind(-1)
    return torch.stack([c * a - s * b, s * a + c * b, turn + torch.zeros_like(c)], -1)
