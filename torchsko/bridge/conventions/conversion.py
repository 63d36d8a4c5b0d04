r"""Conversion of states, forces and Jacobians to the conventions of other libraries, by joint name.

The velocity of another library is v = T(q) qd: joints have another order, and free joints other axes. Then

.. math::
    \dot v = T \ddot q + \dot T \dot q, \qquad \tau_v = T^{-*} \tau, \qquad J_v = J T^{-1},

which preserves power and the velocities J qd. The mass matrix becomes :math:`M_v = T^{-*} M T^{-1}`, which is
``conv.mass_matrix_to(q, M)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from torchsko.bridge.conventions.coordinate_order import (
    DofOrder,
    QOrder,
    check_complete,
    check_kinds,
    check_not_split,
    dof_order,
    is_special,
    q_order,
)
from torchsko.bridge.conventions.libraries import LIBRARIES, FreeRates, Library, PlanarRates, Rates
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import MechanismError, ShapeError, name_list, unknown_name
from torchsko.mechanism.coordinates import independent_q, independent_rates, scatter_dofs
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_coordinates
from torchsko.utils.shapes import concatenate


@dataclass(frozen=True, eq=False)
class Conventions:
    """Map between states of a mechanism and those of another library; made by `torchsko.conventions`.

    Methods are pure, differentiable functions of tensors of any batch shape. Methods ``*_to`` convert to the
    other library, methods ``*_from`` from it. States of `mech` have the shapes `[*batch, mech.num_q]` and
    `[*batch, mech.num_dof]`; those of the library `[*batch, num_q]` and `[*batch, num_dof]`, in the order of
    `joint_names` and the axes of the library (see `torchsko.conventions`). Both are in SI units and radians.
    The arguments q, and qd beside an acceleration, are always those of `mech`.

    Attributes:
        mech: the mechanism.
        joint_names: names of joints in the library's order.

    Raises:
        ShapeError: from every method, if an argument does not fit the mechanism or the library.
    """

    mech: Mechanism
    joint_names: tuple[str, ...]
    _q: QOrder
    _dofs: DofOrder
    _special: tuple[Rates, ...]

    def __repr__(self) -> str:
        return f"Conventions({self.mech!r}; joints: {name_list(self.joint_names)})"

    @property
    def num_q(self) -> int:
        """Number of coordinates of the library."""
        return self._q.take.shape[0]

    @property
    def num_dof(self) -> int:
        """Number of velocities of the library."""
        return self._dofs.take.shape[0]

    def q_to(self, q: Tensor) -> Tensor:
        """Convert a configuration to the library's, `[*batch, num_q]`."""
        check_coordinates(self.mech, q=q)
        coordinates, index = Kinematics.of(self.mech, q).tree_q, self._q.angles
        angles = coordinates.index_select(-1, index)
        parts = [coordinates, angles.cos(), angles.sin()] if len(index) else [coordinates]
        return torch.cat(parts, -1).index_select(-1, self._q.take)

    def q_from(self, q: Tensor) -> Tensor:
        """Convert a configuration of the library, `[*batch, num_q]`, to that of `mech`.

        Angles from cosine and sine are in (-pi, pi].
        """
        self._check("q", q, self.num_q)
        parts = [q, torch.zeros_like(q[..., :1])]
        if len(self._q.angles):
            c, s = (q.index_select(-1, self._q.cosines + i) for i in (0, 1))
            parts.append(torch.atan2(s, c))
        return independent_q(self.mech, torch.cat(parts, -1).index_select(-1, self._q.back))

    def qd_to(self, q: Tensor, qd: Tensor) -> Tensor:
        """Convert a velocity to the library's, `[*batch, num_dof]`."""
        check_coordinates(self.mech, q=q, qd=qd)
        state = Kinematics.of(self.mech, q, qd)
        return self._to(state, state.tree_qd, "rates")

    def qd_from(self, q: Tensor, qd: Tensor) -> Tensor:
        """Convert a velocity of the library, `[*batch, num_dof]`, to that of `mech`."""
        self._check("qd", qd, self.num_dof)
        return independent_rates(self.mech, self._from(self._at(q), qd, "rates_back"))

    def qdd_to(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Convert an acceleration to the library's, the derivative of its velocity, `[*batch, num_dof]`."""
        check_coordinates(self.mech, q=q, qd=qd, qdd=qdd)
        state = Kinematics.of(self.mech, q, qd)
        return self._to(state, state.tree_accels(qdd), "rates") + self._drift(state)

    def qdd_from(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Convert an acceleration of the library, `[*batch, num_dof]`, to that of `mech`."""
        self._check("qdd", qdd, self.num_dof)
        check_coordinates(self.mech, q=q, qd=qd)
        state = Kinematics.of(self.mech, q, qd)
        accels = self._from(state, qdd - self._drift(state), "rates_back")
        return independent_rates(self.mech, accels)

    def tau_to(self, q: Tensor, tau: Tensor) -> Tensor:
        """Convert joint forces to the library's, `[*batch, num_dof]` [N m or N]; zero at coupled joints."""
        check_coordinates(self.mech, q=q, tau=tau)
        state = Kinematics.of(self.mech, q)
        return self._to(state, scatter_dofs(self.mech, tau), "forces")

    def tau_from(self, q: Tensor, tau: Tensor) -> Tensor:
        """Convert joint forces of the library, `[*batch, num_dof]` [N m or N], to those of `mech`.

        Forces on dependent joints are mapped to their leaders.
        """
        self._check("tau", tau, self.num_dof)
        state = self._at(q)
        return state.independent_forces(self._from(state, tau, "forces_back"))

    def jacobian_to(self, q: Tensor, jacobian: Tensor) -> Tensor:
        """Convert a Jacobian to the library's velocities, `[*batch, r, num_dof]`."""
        return self._of_rows().tau_to(q[..., None, :], jacobian)

    def jacobian_from(self, q: Tensor, jacobian: Tensor) -> Tensor:
        """Convert a Jacobian of the library, `[*batch, r, num_dof]`, to the velocities of `mech`."""
        return self._of_rows().tau_from(q[..., None, :], jacobian)

    def mass_matrix_to(self, q: Tensor, M: Tensor) -> Tensor:
        """Convert a mass matrix to the library's, `[*batch, num_dof, num_dof]`; zero at coupled joints."""
        return self.jacobian_to(q, self.jacobian_to(q, M).mT).mT

    def mass_matrix_from(self, q: Tensor, M: Tensor) -> Tensor:
        """Convert a mass matrix of the library, `[*batch, num_dof, num_dof]`, to that of `mech`.

        It has rows and columns of all joints in `joint_names`, dependent or not.
        """
        return self.jacobian_from(q, self.jacobian_from(q, M).mT).mT

    def _of_rows(self) -> Conventions:
        """A copy for vectors with another dimension before their last, such as rows of Jacobians."""
        ratio = self.mech.coupling_ratio[..., None, :]
        special = tuple(joint.of_rows() for joint in self._special)
        return replace(self, mech=self.mech.replace(coupling_ratio=ratio), _special=special)

    def _at(self, q: Tensor) -> Kinematics:
        check_coordinates(self.mech, q=q)
        return Kinematics.of(self.mech, q)

    def _to(self, state: Kinematics, x: Tensor, method: str) -> Tensor:
        """Convert rates or forces of all joints of the tree by a method of `Rates`."""
        q = state.tree_q
        parts = [x] + [
            getattr(joint, method)(q[..., joint.q], x[..., joint.dofs]) for joint in self._special
        ]
        return concatenate(parts, batch=q.shape[:-1]).index_select(-1, self._dofs.take)

    def _from(self, state: Kinematics, x: Tensor, method: str) -> Tensor:
        q = state.tree_q
        parts = [x, torch.zeros_like(x[..., :1])] + [
            getattr(joint, method)(q[..., joint.q], x.index_select(-1, places))
            for joint, places in zip(self._special, self._dofs.blocks, strict=True)
        ]
        return concatenate(parts, batch=q.shape[:-1]).index_select(-1, self._dofs.back)

    def _drift(self, state: Kinematics) -> Tensor:
        q, rates = state.tree_q, state.tree_qd
        parts = [torch.zeros_like(rates)] + [
            joint.drift(q[..., joint.q], rates[..., joint.dofs]) for joint in self._special
        ]
        return concatenate(parts, batch=q.shape[:-1]).index_select(-1, self._dofs.take)

    def _check(self, name: str, x: Tensor, size: int) -> None:
        if x.shape[-1:] != (size,):
            raise ShapeError(
                f"{name} of the other library has shape {list(x.shape)}.",
                f"Its {len(self.joint_names)} joints in joint_names have {self.num_q} coordinates and "
                f"{self.num_dof} dofs.",
                f"Pass a tensor of shape [*batch, {size}].",
            )


def conventions(
    library: Literal["pinocchio", "mujoco", "drake", "isaaclab", "newton"],
    mech: MechanismLike,
    joint_names: Sequence[str] | None = None,
    *,
    cos_sin: Sequence[str] = (),
) -> Conventions:
    """Conversion between the coordinates of a mechanism and those of another library.

    ========== =========== ==================== =========================================
    library    quaternion  free joint q         free joint velocity
    ========== =========== ==================== =========================================
    torchsko   w x y z     position, quaternion omega, v; both in the body
    pinocchio  x y z w     position, quaternion v, omega; both in the body
    mujoco     w x y z     position, quaternion v in the world, omega in the body
    drake      w x y z     quaternion, position omega, v; both in the world
    isaaclab   w x y z     position, quaternion v of the center of mass, omega; in the world
    newton     x y z w     position, quaternion v of the center of mass, omega; in the world
    ========== =========== ==================== =========================================

    The world is the frame of the free joint on its parent: the inertial frame for a floating base. Isaac Lab
    from version 3.0 is "newton": prepend its root pose (of the link) and root velocity (of the center of
    mass) to its joint positions and velocities.

    Pinocchio ignores the <axis> of planar joints in a URDF file; the plane is normal to z of the joint frame.
    The coordinates agree if the file's axis is 0 0 1; otherwise rotate <origin> so that its z is the normal.

    Args:
        library: name of the library.
        mech: the mechanism.
        joint_names: the library's joints in its order: ``model.names[1:]`` of Pinocchio, the names of
            MuJoCo's joints, ``robot.joint_names`` of Isaac Lab. The order of the mechanism when left out.
            Joints stacked in a compound joint may be named individually. So may the motions of a joint of
            several dofs, with the names in a new MJCF file, such as "base_x", "base_y", "base_angle" of a
            planar joint "base". Coupled joints may be left out (leave them out for Pinocchio's
            ``mimic=True``). A floating base that is not named comes first.
        cos_sin: joints whose angle the library represents by cosine and sine, such as Pinocchio for
            continuous joints of a URDF file.

    Returns:
        The conversion, whose methods convert q, velocities, accelerations, forces, Jacobians and mass
        matrices.

    Raises:
        MechanismError: for an unknown library, a joint that is unknown, repeated or missing, or a kind of
            joint that is not converted for the library.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda, floating_base=True)
        >>> pinocchio = ts.conventions("pinocchio", arm)
        >>> pinocchio.q_to(arm.neutral())[:7].tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    """
    mech = as_mechanism(mech)
    if library not in LIBRARIES:
        raise MechanismError(*unknown_name("library", library, tuple(LIBRARIES)))
    rules = LIBRARIES[library]
    names = _with_floating_base(mech, joint_names)
    places = [mech.joint_place(name) for name in names]
    check_kinds(mech, library, rules.kinds, {k for k, _ in places})
    split = [k for k, part in places if part is not None and is_special(mech, rules, k)]
    check_not_split(mech, library, split)
    check_complete(mech, names, places)
    q = q_order(mech, rules, places, tuple(cos_sin))
    special = tuple(_special(mech, rules, k) for k, _ in places if is_special(mech, rules, k))
    dofs = dof_order(mech, rules, places, special)
    return Conventions(mech, names, q, dofs, special)


def _special(mech: Mechanism, library: Library, k: int) -> Rates:
    name = mech.tree_joint_names[k]
    q, dofs = mech.tree_q_slice(name), mech.tree_dof_slice(name)
    if mech.joints.kinds[k].name == "planar":
        return PlanarRates(q, dofs)
    com = mech.com[..., k, :]
    return FreeRates(q, dofs, library, com if library.at_com else torch.zeros_like(com))


def _with_floating_base(mech: Mechanism, joint_names: Sequence[str] | None) -> tuple[str, ...]:
    """The joints in the library's order, preceded by a floating base that is not among them."""
    if joint_names is None:
        return mech.tree_joint_names
    names = tuple(joint_names)
    floating = [
        name
        for k, name in enumerate(mech.tree_joint_names)
        if mech.joints.kinds[k].name == "free" and mech.parents[k] < 0
    ]
    return (*floating, *names) if len(floating) == 1 and floating[0] not in names else names
