"""Where other libraries' coordinates differ from ours: a table of libraries, and joints whose rates differ.

Ours are those of the README: quaternions w x y z; a free joint's velocity [omega; v] in the body's axes, v
that of its origin; every rate the derivative of its coordinate where the coordinate is a number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.spatial.rotation import cross, quaternion_to_matrix
from torchsko.utils.shapes import matvec

COMMON = ("revolute", "prismatic", "free")
"""Kinds of joints that every library has."""


@dataclass(frozen=True)
class Library:
    """Conventions of one library.

    Attributes:
        kinds: of joints that are converted.
        scalar_last: quaternions are x y z w, not w x y z.
        quaternion_first: of a free joint, before its position.
        angular_first: of a free joint's velocity.
        linear_in_body: linear velocity of a free joint in the body's axes, not the joint's (the world's).
        angular_in_body: angular velocity likewise.
        at_com: linear velocity is that of the body's centre of mass, not of its origin.
        planar_in_body: a planar joint slides along the body's axes, and has cosine and sine for its angle.
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
    # Newton documentation, "Conventions"; Isaac Lab from 3.0 has its quaternions too.
    "newton": Library(COMMON, scalar_last=True, at_com=True),
}


@dataclass(frozen=True, eq=False)
class Rates(ABC):
    """A joint whose velocity another library takes in other axes or at another point: T(q) qd.

    Every method takes the joint's own coordinates and vectors, in our order.

    Attributes:
        q: where its coordinates are among all of the tree.
        dofs: likewise its rates.
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
        """T^-* x: the power is the same in both libraries."""

    @abstractmethod
    def forces_back(self, q: Tensor, x: Tensor) -> Tensor:
        """T* x."""

    def of_rows(self) -> Rates:
        """The same for vectors with one more dimension before their last."""
        return self

    @abstractmethod
    def drift(self, q: Tensor, qd: Tensor) -> Tensor:
        """The rate of T times qd: what accelerations have besides T qdd."""


@dataclass(frozen=True, eq=False)
class FreeRates(Rates):
    """[omega; v] of a free joint, in our order.

    Attributes:
        library: whose axes and point.
        com: centre of mass in the body `[*batch, 3]` [m]; zero where v is that of the origin.
    """

    library: Library
    com: Tensor

    def rates(self, q: Tensor, x: Tensor) -> Tensor:
        """The velocity of the point, and both parts in the axes wanted."""
        omega, v = x[..., :3], x[..., 3:]
        return self._turned(q, omega, v + cross(omega, self.com))

    def rates_back(self, q: Tensor, x: Tensor) -> Tensor:
        """From the axes back, and to the origin."""
        omega, v = self._turned_back(q, x)
        return _joined(omega, v - cross(omega, self.com))

    def forces(self, q: Tensor, x: Tensor) -> Tensor:
        """[moment; force], the moment about the point."""
        moment, force = x[..., :3], x[..., 3:]
        return self._turned(q, moment - cross(self.com, force), force)

    def forces_back(self, q: Tensor, x: Tensor) -> Tensor:
        """The moment about the origin."""
        moment, force = self._turned_back(q, x)
        return _joined(moment + cross(self.com, force), force)

    def of_rows(self) -> FreeRates:
        """The same for vectors with one more dimension before their last."""
        return replace(self, com=self.com[..., None, :])

    def drift(self, q: Tensor, qd: Tensor) -> Tensor:
        """The velocity of the point turns with the body where it is seen from outside."""
        omega, v = qd[..., :3], qd[..., 3:]
        if self.library.linear_in_body:
            return torch.zeros_like(qd)
        turning = cross(omega, v + cross(omega, self.com))
        return self._turned(q, torch.zeros_like(turning), turning)

    def _turned(self, q: Tensor, angular: Tensor, linear: Tensor) -> Tensor:
        return _joined(*self._each(q, angular, linear, lambda R: R))

    def _turned_back(self, q: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._each(q, x[..., :3], x[..., 3:], lambda R: R.mT)

    def _each(
        self, q: Tensor, angular: Tensor, linear: Tensor, way: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Both parts turned, unless they are seen from the body."""
        R = way(quaternion_to_matrix(q[..., 3:]))
        if not self.library.angular_in_body:
            angular = matvec(R, angular)
        if not self.library.linear_in_body:
            linear = matvec(R, linear)
        return angular, linear


@dataclass(frozen=True, eq=False)
class PlanarRates(Rates):
    """[x, y, angle] rates of a planar joint as seen from the body, as Pinocchio has them."""

    def rates(self, q: Tensor, x: Tensor) -> Tensor:
        """Turned by minus the angle."""
        return _turned_plane(-q[..., 2], x)

    def rates_back(self, q: Tensor, x: Tensor) -> Tensor:
        """Turned by the angle."""
        return _turned_plane(q[..., 2], x)

    def forces(self, q: Tensor, x: Tensor) -> Tensor:
        """As rates: a rotation is its own dual."""
        return self.rates(q, x)

    def forces_back(self, q: Tensor, x: Tensor) -> Tensor:
        """As rates."""
        return self.rates_back(q, x)

    def drift(self, q: Tensor, qd: Tensor) -> Tensor:
        """A velocity fixed outside turns backwards as seen from the body."""
        x, y, _ = self.rates(q, qd).unbind(-1)
        turn = qd[..., 2]
        return torch.stack([turn * y, -turn * x, torch.zeros_like(turn)], -1)


def _joined(angular: Tensor, linear: Tensor) -> Tensor:
    return torch.cat(torch.broadcast_tensors(angular, linear), -1)


def _turned_plane(angle: Tensor, x: Tensor) -> Tensor:
    c, s = angle.cos(), angle.sin()
    a, b, turn = x.unbind(-1)
    return torch.stack([c * a - s * b, s * a + c * b, turn + torch.zeros_like(c)], -1)
