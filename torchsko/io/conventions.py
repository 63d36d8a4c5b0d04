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

from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.io._conventions import LIBRARIES, FreeRates, Library, PlanarRates, Rates
from torchsko.mechanism.coordinates import (
    all_q,
    all_rates,
    among_all_dofs,
    own_forces,
    own_q,
    own_rates,
)
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.mechanism.verb import MechanismLike, as_mechanism
from torchsko.shapes import broadcast_shapes


@dataclass(frozen=True, eq=False)
class Conventions:
    """What takes states of a mechanism to another library and back; made by `torchsko.conventions`.

    Methods are pure functions of tensors, differentiable, of any batch shape. q, and qd beside an
    acceleration, are always ours.

    Attributes:
        mech: the mechanism.
        joint_names: in the other library's order.
        num_q: length of its configurations.
        num_dof: length of its velocities.
    """

    mech: Mechanism
    joint_names: tuple[str, ...]
    num_q: int
    num_dof: int
    _round: tuple[int, ...]
    _special: tuple[Rates, ...]
    _q_take: Tensor
    _q_back: Tensor
    _round_places: tuple[int, ...]
    _dof_take: Tensor
    _dof_back: Tensor
    _special_places: tuple[Tensor, ...]

    def q_to(self, q: Tensor) -> Tensor:
        """Their configuration `[*batch, num_q]` of ours."""
        check_state(self.mech, q=q)
        every = all_q(self.mech, q)
        angles = every[..., self._round]
        parts = [every, angles.cos(), angles.sin()] if self._round else [every]
        return torch.cat(parts, -1).index_select(-1, self._q_take)

    def q_from(self, q: Tensor) -> Tensor:
        """Our configuration of theirs; angles that they give by cosine and sine are within a half turn."""
        self._check("q", q, self.num_q)
        parts = [q, torch.zeros_like(q[..., :1])]
        if self._round:
            c = q[..., self._round_places]
            s = q[..., [i + 1 for i in self._round_places]]
            parts.append(torch.atan2(s, c))
        return own_q(self.mech, torch.cat(parts, -1).index_select(-1, self._q_back))

    def qd_to(self, q: Tensor, qd: Tensor) -> Tensor:
        """Their velocity `[*batch, num_dof]` of ours."""
        check_state(self.mech, q=q, qd=qd)
        return self._to(q, all_rates(self.mech, qd), "rates")

    def qd_from(self, q: Tensor, qd: Tensor) -> Tensor:
        """Our velocity of theirs."""
        self._check("qd", qd, self.num_dof)
        return own_rates(self.mech, self._from(q, qd, "rates_back"))

    def qdd_to(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Their acceleration, the rate of their velocity, of ours."""
        check_state(self.mech, q=q, qd=qd, qdd=qdd)
        return self._to(q, all_rates(self.mech, qdd), "rates") + self._drift(q, qd)

    def qdd_from(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Our acceleration of theirs."""
        self._check("qdd", qdd, self.num_dof)
        check_state(self.mech, q=q, qd=qd)
        return own_rates(self.mech, self._from(q, qdd - self._drift(q, qd), "rates_back"))

    def tau_to(self, q: Tensor, tau: Tensor) -> Tensor:
        """Their joint forces of ours; joints that follow others get none."""
        check_state(self.mech, q=q, tau=tau)
        return self._to(q, among_all_dofs(self.mech, tau), "forces")

    def tau_from(self, q: Tensor, tau: Tensor) -> Tensor:
        """Our joint forces of theirs; those on joints that follow others act on what they follow."""
        self._check("tau", tau, self.num_dof)
        return own_forces(self.mech, self._from(q, tau, "forces_back"))

    def jacobian_to(self, q: Tensor, jacobian: Tensor) -> Tensor:
        """The columns `[*batch, r, num_dof]` of a Jacobian, for their velocities; rows stay as they are."""
        return self._of_rows().tau_to(q[..., None, :], jacobian)

    def jacobian_from(self, q: Tensor, jacobian: Tensor) -> Tensor:
        """The columns of a Jacobian of theirs for our velocities."""
        return self._of_rows().tau_from(q[..., None, :], jacobian)

    def mass_matrix_to(self, q: Tensor, M: Tensor) -> Tensor:
        """Their mass matrix of ours, `[*batch, num_dof, num_dof]`; zero at joints that follow others."""
        return self.jacobian_to(q, self.jacobian_to(q, M).mT).mT

    def mass_matrix_from(self, q: Tensor, M: Tensor) -> Tensor:
        """Our mass matrix of theirs; of all joints or of independent ones, whichever have names."""
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
        return _joined(parts, q).index_select(-1, self._dof_take)

    def _from(self, q: Tensor, x: Tensor, way: str) -> Tensor:
        check_state(self.mech, q=q)
        coordinates = all_q(self.mech, q)
        parts = [x, torch.zeros_like(x[..., :1])] + [
            getattr(joint, way)(coordinates[..., joint.q], x.index_select(-1, places))
            for joint, places in zip(self._special, self._special_places, strict=True)
        ]
        return _joined(parts, q).index_select(-1, self._dof_back)

    def _drift(self, q: Tensor, qd: Tensor) -> Tensor:
        coordinates, rates = all_q(self.mech, q), all_rates(self.mech, qd)
        parts = [torch.zeros_like(rates)] + [
            joint.drift(coordinates[..., joint.q], rates[..., joint.dofs])
            for joint in self._special
        ]
        return _joined(parts, q).index_select(-1, self._dof_take)

    def _check(self, name: str, x: Tensor, size: int) -> None:
        if x.shape[-1:] != (size,):
            raise ShapeError(
                f"{name} of the other library has shape {list(x.shape)}.\n"
                f"Its {len(self.joint_names)} joints of {self.mech.name!r} have {self.num_q} coordinates "
                f"and {self.num_dof} dofs, in the order of joint_names.\n"
                f"Pass a tensor of shape [*batch, {size}]."
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
            Joints stacked in one of ours may be named one by one. Joints that follow others may be there or
            not; a floating base that is not named stands first.
        cos_sin: joints whose angle the library gives by cosine and sine, as Pinocchio does for continuous
            joints of a URDF file.

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
        raise MechanismError(unknown_name("library", library, tuple(LIBRARIES)))
    theirs = LIBRARIES[library]
    names = _named(mech, joint_names)
    places = [joint_place(mech, name) for name in names]
    _check_kinds(mech, library, {k for k, _ in places})
    _check_all_there(mech, names, places)
    return _built(mech, theirs, names, places, tuple(cos_sin))


Place = tuple[int, int | None]
"""A joint of the tree, and which of its coordinates; None for all."""


def _built(
    mech: Mechanism,
    library: Library,
    names: Sequence[str],
    places: Sequence[Place],
    cos_sin: tuple[str, ...],
) -> Conventions:
    kinds, tree_names = mech.joints.kinds, mech.tree_joint_names
    n_q, n_dof = mech.num_tree_q, mech.num_tree_dof
    flat = [k for k, _ in places if kinds[k].name == "planar" and library.planar_in_body]
    turns = {_round_joint(mech, name): 0 for name in cos_sin} | dict.fromkeys(flat, 2)
    angle_at = {k: mech.tree_q_slice(tree_names[k]).start + i for k, i in turns.items()}
    rank = {k: i for i, k in enumerate(turns)}
    special = [
        _special(mech, library, k) for k, _ in places if kinds[k].name == "free" or k in flat
    ]
    at_block = {}
    for joint in special:
        at_block[joint.dofs.start] = n_dof + sum(
            s.dofs.stop - s.dofs.start for s in special[: len(at_block)]
        )
    q_take: list[int] = []
    dof_take: list[int] = []
    round_places = dict.fromkeys(turns, 0)
    for k, part in places:
        q, dofs = mech.tree_q_slice(tree_names[k]), mech.tree_dof_slice(tree_names[k])
        own_q = list(range(q.start, q.stop))
        if k in turns:
            i = angle_at[k] - q.start
            round_places[k] = len(q_take) + i
            own_q[i : i + 1] = [n_q + rank[k], n_q + len(turns) + rank[k]]
        first = at_block.get(dofs.start, dofs.start)
        own_dofs = list(range(first, first + dofs.stop - dofs.start))
        if part is not None:
            own_q, own_dofs = own_q[part : part + 1], own_dofs[part : part + 1]
        q_take += _reordered(kinds[k].name, own_q, library)
        swap = kinds[k].name == "free" and not library.angular_first
        dof_take += own_dofs[3:] + own_dofs[:3] if swap else own_dofs
    where_q = {i: j for j, i in enumerate(q_take)}
    where_dof = {i: j for j, i in enumerate(dof_take)}
    many_q, many_dof = len(q_take), len(dof_take)
    back_q = [where_q.get(i, many_q) for i in range(n_q)]
    for k, i in angle_at.items():
        back_q[i] = many_q + 1 + rank[k]
    back_dof = [where_dof.get(i, many_dof) for i in range(n_dof)]
    special_places, done = [], many_dof + 1
    for joint in special:
        size, block = joint.dofs.stop - joint.dofs.start, at_block[joint.dofs.start]
        special_places.append([where_dof[block + i] for i in range(size)])
        back_dof[joint.dofs] = range(done, done + size)
        done += size

    def index(x: Sequence[int]) -> Tensor:
        return torch.tensor(x, dtype=torch.int64, device=mech.device)

    return Conventions(
        mech=mech,
        joint_names=tuple(names),
        num_q=many_q,
        num_dof=many_dof,
        _round=tuple(angle_at.values()),
        _special=tuple(special),
        _q_take=index(q_take),
        _q_back=index(back_q),
        _round_places=tuple(round_places.values()),
        _dof_take=index(dof_take),
        _dof_back=index(back_dof),
        _special_places=tuple(map(index, special_places)),
    )


def _reordered(kind: str, places: list[int], library: Library) -> list[int]:
    """The places of a joint's coordinates in the library's order."""
    if kind not in ("free", "spherical"):
        return places
    position, quaternion = places[:-4], places[-4:]
    if library.scalar_last:
        quaternion = quaternion[1:] + quaternion[:1]
    return quaternion + position if library.quaternion_first else position + quaternion


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


def joint_place(mech: Mechanism, name: str) -> Place:
    """The joint of a name, or the coordinate of a compound joint whose parts have names.

    Raises:
        MechanismError: when there is none.
    """
    if name in mech.tree_joint_names:
        return mech.tree_joint_names.index(name), None
    for k, joint in enumerate(mech.tree_joint_names):
        parts = joint.split("+")
        if name in parts and len(parts) == mech.joints.kinds[k].num_dof:
            return k, parts.index(name)
    raise MechanismError(unknown_name("moving joint", name, mech.tree_joint_names))


def _check_kinds(mech: Mechanism, library: str, joints: set[int]) -> None:
    for k in sorted(joints):
        kind = mech.joints.kinds[k].name
        if kind not in LIBRARIES[library].kinds:
            raise MechanismError(
                f"joint {mech.tree_joint_names[k]!r} is {kind}, and is not converted to {library!r}.\n"
                f"Known there: {', '.join(LIBRARIES[library].kinds)}; others it has not, or in coordinates "
                "of its own.\nConvert that joint by hand, or write it as several joints."
            )


def _check_all_there(mech: Mechanism, names: Sequence[str], places: Sequence[Place]) -> None:
    """Refuse joints named twice, and independent joints left out."""
    for name in names:
        if names.count(name) > 1:
            raise MechanismError(
                f"joint {name!r} is named twice.\nIts coordinates have one place.\nName it once."
            )
    there = {k for k, _ in places}
    parts = {k: [i for j, i in places if j == k] for k in there}
    for k in mech.independent_joints:
        some = parts.get(k, [])
        if None not in some and len(some) < mech.joints.kinds[k].num_dof:
            raise MechanismError(
                f"joint {mech.tree_joint_names[k]!r} is not among the {len(names)} joints named.\n"
                "Its coordinates would be lost.\nName all joints that follow no others."
            )


def _round_joint(mech: Mechanism, name: str) -> int:
    k = mech.joint_index(name)
    if mech.joints.kinds[k].name != "revolute":
        raise MechanismError(
            f"joint {name!r} of cos_sin is {mech.joints.kinds[k].name}.\n"
            "An angle has a cosine and a sine.\nName revolute joints there."
        )
    return k


def _joined(parts: list[Tensor], q: Tensor) -> Tensor:
    """Side by side, in one batch shape, which is that of q too."""
    batch = broadcast_shapes(q.shape[:-1], *(x.shape[:-1] for x in parts))
    return torch.cat([x.expand(*batch, x.shape[-1]) for x in parts], -1)
