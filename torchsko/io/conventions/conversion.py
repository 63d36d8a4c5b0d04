r"""States, forces and Jacobians in the conventions of other libraries, by joint name.

Another library's velocity is v = T(q) qd: joints in another order, free joints in other axes. Then

.. math::
    \dot v = T \ddot q + \dot T \dot q, \qquad \tau_v = T^{-*} \tau, \qquad J_v = J T^{-1},

so that power, and the velocities that Jacobians give, are the same. A mass matrix is a Jacobian of momenta
in its rows and columns both: :math:`M_v = T^{-*} M T^{-1}` is ``conv.mass_matrix_to(q, M)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from torchsko.errors import MechanismError, ShapeError, name_list, unknown_name
from torchsko.io.conventions.coordinate_order import (
    DofOrder,
    QOrder,
    check_all_there,
    check_kinds,
    check_whole,
    dof_order,
    is_special,
    q_order,
)
from torchsko.io.conventions.libraries import LIBRARIES, FreeRates, Library, PlanarRates, Rates
from torchsko.mechanism.coordinates import (
    all_q,
    all_rates,
    among_all_dofs,
    own_forces,
    own_q,
    own_rates,
)
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_coordinates
from torchsko.utils.shapes import concatenate


@dataclass(frozen=True, eq=False)
class Conventions:
    """What takes states of a mechanism to another library and back; made by `torchsko.conventions`.

    Methods are pure functions of tensors, differentiable, of any batch shape. q, and qd beside an
    acceleration, are always ours. Ours are `[*batch, mech.num_q]` and `[*batch, mech.num_dof]` in the order
    and axes of `mech`, theirs `[*batch, num_q]` and `[*batch, num_dof]` in the order of `joint_names` and
    their axes (see `torchsko.conventions`); both in SI units and radians.

    Attributes:
        mech: the mechanism.
        joint_names: in the other library's order.

    Raises:
        ShapeError: from every method, when what it takes does not fit the mechanism or the other library.
    """

    mech: Mechanism
    joint_names: tuple[str, ...]
    _q: QOrder
    _dofs: DofOrder
    _special: tuple[Rates, ...]

    def __repr__(self) -> str:
        return f"Conventions({self.mech!r}; theirs: {name_list(self.joint_names)})"

    @property
    def num_q(self) -> int:
        """Length of their configurations."""
        return self._q.take.shape[0]

    @property
    def num_dof(self) -> int:
        """Length of their velocities."""
        return self._dofs.take.shape[0]

    def q_to(self, q: Tensor) -> Tensor:
        """Their configuration `[*batch, num_q]` of ours."""
        check_coordinates(self.mech, q=q)
        every, round_ = all_q(self.mech, q), self._q.angles
        angles = every.index_select(-1, round_)
        parts = [every, angles.cos(), angles.sin()] if len(round_) else [every]
        return torch.cat(parts, -1).index_select(-1, self._q.take)

    def q_from(self, q: Tensor) -> Tensor:
        """Our configuration `[*batch, mech.num_q]` of theirs.

        Angles that they give by cosine and sine are within a half turn.
        """
        self._check("q", q, self.num_q)
        parts = [q, torch.zeros_like(q[..., :1])]
        if len(self._q.angles):
            c, s = (q.index_select(-1, self._q.cosines + i) for i in (0, 1))
            parts.append(torch.atan2(s, c))
        return own_q(self.mech, torch.cat(parts, -1).index_select(-1, self._q.back))

    def qd_to(self, q: Tensor, qd: Tensor) -> Tensor:
        """Their velocity `[*batch, num_dof]` of ours."""
        check_coordinates(self.mech, q=q, qd=qd)
        return self._to(q, all_rates(self.mech, qd), "rates")

    def qd_from(self, q: Tensor, qd: Tensor) -> Tensor:
        """Our velocity `[*batch, mech.num_dof]` of theirs."""
        self._check("qd", qd, self.num_dof)
        return own_rates(self.mech, self._from(q, qd, "rates_back"))

    def qdd_to(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Their acceleration, the rate of their velocity, `[*batch, num_dof]`, of ours."""
        check_coordinates(self.mech, q=q, qd=qd, qdd=qdd)
        return self._to(q, all_rates(self.mech, qdd), "rates") + self._drift(q, qd)

    def qdd_from(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Our acceleration `[*batch, mech.num_dof]` of theirs."""
        self._check("qdd", qdd, self.num_dof)
        check_coordinates(self.mech, q=q, qd=qd)
        return own_rates(self.mech, self._from(q, qdd - self._drift(q, qd), "rates_back"))

    def tau_to(self, q: Tensor, tau: Tensor) -> Tensor:
        """Their joint forces `[*batch, num_dof]` [N m or N] of ours; joints that follow others get none."""
        check_coordinates(self.mech, q=q, tau=tau)
        return self._to(q, among_all_dofs(self.mech, tau), "forces")

    def tau_from(self, q: Tensor, tau: Tensor) -> Tensor:
        """Our joint forces `[*batch, mech.num_dof]` [N m or N] of theirs.

        Those on joints that follow others act on what they follow.
        """
        self._check("tau", tau, self.num_dof)
        return own_forces(self.mech, self._from(q, tau, "forces_back"))

    def jacobian_to(self, q: Tensor, jacobian: Tensor) -> Tensor:
        """The columns `[*batch, r, num_dof]` of a Jacobian, for their velocities; rows stay as they are."""
        return self._of_rows().tau_to(q[..., None, :], jacobian)

    def jacobian_from(self, q: Tensor, jacobian: Tensor) -> Tensor:
        """The columns `[*batch, r, mech.num_dof]` of a Jacobian of theirs for our velocities."""
        return self._of_rows().tau_from(q[..., None, :], jacobian)

    def mass_matrix_to(self, q: Tensor, M: Tensor) -> Tensor:
        """Their mass matrix of ours, `[*batch, num_dof, num_dof]`; zero at joints that follow others."""
        return self.jacobian_to(q, self.jacobian_to(q, M).mT).mT

    def mass_matrix_from(self, q: Tensor, M: Tensor) -> Tensor:
        """Our mass matrix of theirs, `[*batch, mech.num_dof, mech.num_dof]`.

        Theirs is of all joints or of independent ones, whichever have names.
        """
        return self.jacobian_from(q, self.jacobian_from(q, M).mT).mT

    def _of_rows(self) -> Conventions:
        """The same for vectors with one more dimension before their last."""
        ratio = self.mech.coupling_ratio[..., None, :]
        special = tuple(joint.of_rows() for joint in self._special)
        return replace(self, mech=self.mech.replace(coupling_ratio=ratio), _special=special)

    def _to(self, q: Tensor, x: Tensor, way: str) -> Tensor:
        """Rates or forces on all joints of the tree, to their axes and order."""
        coordinates = all_q(self.mech, q)
        parts = [x] + [
            getattr(joint, way)(coordinates[..., joint.q], x[..., joint.dofs])
            for joint in self._special
        ]
        return concatenate(parts, batch=q.shape[:-1]).index_select(-1, self._dofs.take)

    def _from(self, q: Tensor, x: Tensor, way: str) -> Tensor:
        check_coordinates(self.mech, q=q)
        coordinates = all_q(self.mech, q)
        parts = [x, torch.zeros_like(x[..., :1])] + [
            getattr(joint, way)(coordinates[..., joint.q], x.index_select(-1, places))
            for joint, places in zip(self._special, self._dofs.blocks, strict=True)
        ]
        return concatenate(parts, batch=q.shape[:-1]).index_select(-1, self._dofs.back)

    def _drift(self, q: Tensor, qd: Tensor) -> Tensor:
        coordinates, rates = all_q(self.mech, q), all_rates(self.mech, qd)
        parts = [torch.zeros_like(rates)] + [
            joint.drift(coordinates[..., joint.q], rates[..., joint.dofs])
            for joint in self._special
        ]
        return concatenate(parts, batch=q.shape[:-1]).index_select(-1, self._dofs.take)

    def _check(self, name: str, x: Tensor, size: int) -> None:
        if x.shape[-1:] != (size,):
            raise ShapeError(
                f"{name} of the other library has shape {list(x.shape)}.",
                f"Its {len(self.joint_names)} joints of {self.mech.name!r} have {self.num_q} coordinates "
                f"and {self.num_dof} dofs, in the order of joint_names.",
                f"Pass a tensor of shape [*batch, {size}].",
            )


def conventions(
    library: Literal["pinocchio", "mujoco", "drake", "isaaclab", "newton"],
    mech: MechanismLike,
    joint_names: Sequence[str] | None = None,
    *,
    cos_sin: Sequence[str] = (),
) -> Conventions:
    """The map between a mechanism's coordinates and those of another library.

    ========== =========== ==================== =========================================
    library    quaternion  free joint q         free joint velocity
    ========== =========== ==================== =========================================
    torchsko   w x y z     position, quaternion omega, v; both in the body
    pinocchio  x y z w     position, quaternion v, omega; both in the body
    mujoco     w x y z     position, quaternion v in the world, omega in the body
    drake      w x y z     quaternion, position omega, v; both in the world
    isaaclab   w x y z     position, quaternion v of the centre of mass, omega; in the world
    newton     x y z w     position, quaternion v of the centre of mass, omega; in the world
    ========== =========== ==================== =========================================

    The world is the frame of the free joint on its parent: the inertial one, for a floating base. Isaac Lab
    from 3.0 on is "newton"; its root pose and velocity (of the link, and of its centre of mass) stand before
    its joint positions and velocities.

    Args:
        library: whose conventions.
        mech: the mechanism.
        joint_names: the library's joints in its order: ``model.names[1:]`` of Pinocchio, the names of
            MuJoCo's joints, ``robot.joint_names`` of Isaac Lab. The mechanism's own order when left out.
            Joints stacked in one of ours may be named one by one, and so may the motions of a planar joint
            "base" and others of several numbers, as a new MJCF file has them: "base_x", "base_y",
            "base_angle". Joints that follow others may be there or not (with Pinocchio's ``mimic=True`` they
            have no coordinates: leave them out); a floating base that is not named stands first.
        cos_sin: joints whose angle the library gives by cosine and sine, as Pinocchio does for continuous
            joints of a URDF file.

    Returns:
        `Conventions`: takes q and velocities, `[*batch, num_q]` and `[*batch, num_dof]`, there and back.

    Raises:
        MechanismError: on an unknown library or joint, one named twice or left out, or one of a kind that
            the library has not, or in coordinates of which nothing is known here.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda, floating_base=True)
        >>> there = ts.conventions("pinocchio", arm)
        >>> there.q_to(arm.neutral())[:7].tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    """
    mech = as_mechanism(mech)
    if library not in LIBRARIES:
        raise MechanismError(*unknown_name("library", library, tuple(LIBRARIES)))
    theirs = LIBRARIES[library]
    names = _named(mech, joint_names)
    places = [mech.joint_place(name) for name in names]
    check_kinds(mech, library, theirs.kinds, {k for k, _ in places})
    check_whole(
        mech, library, [k for k, part in places if part is not None and is_special(mech, theirs, k)]
    )
    check_all_there(mech, names, places)
    q = q_order(mech, theirs, places, tuple(cos_sin))
    special = tuple(_special(mech, theirs, k) for k, _ in places if is_special(mech, theirs, k))
    dofs = dof_order(mech, theirs, places, special)
    return Conventions(mech, names, q, dofs, special)


def _special(mech: Mechanism, library: Library, k: int) -> Rates:
    name = mech.tree_joint_names[k]
    q, dofs = mech.tree_q_slice(name), mech.tree_dof_slice(name)
    if mech.joints.kinds[k].name == "planar":
        return PlanarRates(q, dofs)
    com = mech.com[..., k, :]
    return FreeRates(q, dofs, library, com if library.at_com else torch.zeros_like(com))


def _named(mech: Mechanism, joint_names: Sequence[str] | None) -> tuple[str, ...]:
    """The joints in the library's order, a floating base that is not named before them."""
    if joint_names is None:
        return mech.tree_joint_names
    names = tuple(joint_names)
    floating = [
        name
        for k, name in enumerate(mech.tree_joint_names)
        if mech.joints.kinds[k].name == "free" and mech.parents[k] < 0
    ]
    return (*floating, *names) if len(floating) == 1 and floating[0] not in names else names
