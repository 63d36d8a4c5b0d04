r"""The parallel solution scheme: inverse dynamics without sweeps.

In one frame (inertial axes) and about one reference point all weights of a rigid tree are the identity,
and its SPO is the mask B of ancestors and descendants. With S = H* carried to that frame, x the centers of
mass, and all products over all bodies at once,

.. math::
    V = B^* S \dot q, \quad \alpha = B^* (S \ddot q + \dot S \dot q), \quad
    F = B f(V, \alpha), \quad T = S^* F.

The number of operations does not depend on the depth, save for rotations: they do not commute, and are
multiplied by pointer doubling, O(log depth). Connectivity is data: the mask follows from the tree, or from
a tensor of parents that may differ between calls and between samples.

All positions of a tree are relative to the origin of its base body. The result is therefore independent of
the robot's distance from the world origin, also in float32. The float32 error is proportional to the extent
of the robot over the size of its links.

DEPARTS: the paper sums forces and then moments over the lengths of the links, with L the mask times
the lengths; about one reference point both become one product. The paper also differentiates positions by
Newmark's method; here velocities and accelerations are given.

Reference: D. Isobe, A. Yagi, *General-purpose expression of structural connectivity in the parallel
solution scheme of inverse dynamics*, Eq. 2; A. Jain, *Graph Theoretic Foundations of Multibody Dynamics,
Part II*, Multibody System Dynamics 26(3), 2011, Algorithm 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.bridge.joint_motion import joint_bias_accels
from torchsko.bridge.kinematics import Kinematics
from torchsko.bridge.level_free import relative_poses
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import broadcast_shapes, matvec


@dataclass(frozen=True, eq=False)
class Connectivity:
    """Ancestor relations of bodies, breadth first.

    Attributes:
        below: 1 where body j is i or a descendant of it, else 0; `[*batch, n, n]`.
        above: index of the 1st, 2nd, 4th, ... ancestor of each body, n if there is none; int64 `[*batch, n]`.
        lost: true for bodies on a cycle, from which no base is reached, `[*batch, n]`; None without cycles.
    """

    below: Tensor
    above: tuple[Tensor, ...]
    lost: Tensor | None = None

    @staticmethod
    def of(mech: Mechanism) -> Connectivity:
        """Connectivity of the tree of a mechanism."""
        layout = mech.layout
        tables = tuple(jump.table() for jump in layout.jumps)
        return Connectivity(layout.pairs.below.to(mech.dtype), tables)

    @staticmethod
    def from_parents(mech: Mechanism, parents: Tensor) -> Connectivity:
        """Connectivity of parents, int64 `[*batch, num_bodies]`, bodies in file order, -1 for bases."""
        layout, n = mech.layout, mech.num_bodies
        rank = torch.nn.functional.pad(layout.rank, (0, 1), value=n)
        parents = parents.index_select(-1, layout.order)
        table = rank[torch.where(parents < 0, n, parents)]
        up, tables = torch.eye(n, dtype=torch.bool, device=parents.device), []
        no_bodies, no_body = up.new_zeros(n), table.new_full((1,), n)
        for _ in range((n - 1).bit_length()):
            tables.append(table)
            up = up | _fetch(up, table, no_bodies)
            table = _fetch(table[..., None], table, no_body)[..., 0]
        return Connectivity(up.mT.to(mech.dtype), tuple(tables), table < n)

    def multiply(self, R: Tensor) -> Tensor:
        """Products of rotations from the base to every body, `[*batch, n, 3, 3]`."""
        for table in self.above:
            R = self._ancestor_rows(R, table) @ R
        return R

    def on_parents(self, R: Tensor, r: Tensor) -> Tensor:
        """R(p) r(k) for vectors r `[*batch, n, 3]`; zero for base bodies."""
        if not self.above:
            return torch.zeros_like(r)
        table = self.above[0]
        turned = matvec(self._ancestor_rows(R, table), r)
        return torch.where(table[..., None] < r.shape[-2], turned, 0.0)

    def refuse(self, tau: Tensor) -> Tensor:
        """Return tau `[*batch, num_dof]`, nan for samples whose parents have a cycle."""
        if self.lost is None:
            return tau
        return torch.where(self.lost.any(-1, keepdim=True), torch.nan, tau)

    @staticmethod
    def _ancestor_rows(R: Tensor, table: Tensor) -> Tensor:
        one = torch.eye(3, dtype=R.dtype, device=R.device)
        return _fetch(R.flatten(-2), table, one.flatten()).unflatten(-1, (3, 3))


def parallel_inverse_dynamics(
    state: Kinematics,
    qdd: Tensor,
    f_ext: Tensor | None = None,
    connectivity: Connectivity | None = None,
) -> Tensor:
    """Joint forces of given accelerations, without passive forces; see `torchsko.inverse_dynamics`.

    Args:
        state: the mechanism at a configuration and velocity.
        qdd: accelerations of the independent dofs, `[*batch, num_dof]`.
        f_ext: `[*batch, num_bodies, 6]`, or None. The force of an unactuated joint that closes a loop is
            passed here, as a force on one body and its opposite on the other.
        connectivity: ancestor relations; those of the mechanism's tree by default.

    Returns:
        Forces on all joints of the tree, `[*batch, num_tree_dof]` [N m or N].

    Reference: Isobe and Yagi (undated), General-purpose expression, Eq. 2 and section II.B.
    """
    mech, tree_qdd = state.tree, state.tree_accels(qdd)
    layout = mech.layout
    tree = Connectivity.of(mech) if connectivity is None else connectivity
    R, r = relative_poses(mech, state.tree_q)
    R = tree.multiply(R)
    p = tree.below.mT @ tree.on_parents(R, r)
    S = _subspaces(R, p, state.joint_map)
    rate, change = ((S @ layout.dofs.pack(x[..., None]))[..., 0] for x in (state.tree_qd, tree_qdd))
    V = tree.below.mT @ rate
    change = change + _cross_motion(V, rate)
    bias = joint_bias_accels(mech, state.tree_q, state.tree_qd)
    if bias is not None:
        change = change + _subspaces(R, p, bias[..., None, :])[..., 0]
    alpha = tree.below.mT @ change
    alpha = alpha + torch.cat([torch.zeros_like(mech.gravity), -mech.gravity], -1)[..., None, :]
    force = _inertial_force(mech, R, p, V, alpha)
    if f_ext is not None:
        moment, push = _turn(R, layout.breadth_first(f_ext, -2))
        force = force - _rows(moment + cross(p, push), push)
    tau = S.mT @ (tree.below @ force)[..., None]
    tau = layout.dofs.collect(tau)[..., 0]
    return tree.refuse(tau + mech.armature * tree_qdd if mech.has_armature else tau)


def _subspaces(R: Tensor, p: Tensor, H: Tensor) -> Tensor:
    """H* of every body in the common frame about its reference point, `[*batch, n, 6, d]`."""
    w, v = R @ H.mT[..., :3, :], R @ H.mT[..., 3:, :]
    lever = torch.linalg.cross(*torch.broadcast_tensors(p[..., None], w), dim=-2)
    return torch.cat([w.expand_as(lever), v + lever], -2)


def _inertial_force(mech: Mechanism, R: Tensor, p: Tensor, V: Tensor, alpha: Tensor) -> Tensor:
    """Rate of momentum of every body about the reference point, `[*batch, n, 6]`.

    Taken at the center of mass, where it is smallest, then carried to the reference point.
    """
    layout = mech.layout
    mass = layout.breadth_first(mech.mass, -1)[..., None]
    inertia = layout.breadth_first(mech.inertia, -3)
    x = p + matvec(R, layout.breadth_first(mech.com, -2))
    (w, v), (dw, a) = V.split(3, -1), alpha.split(3, -1)
    inertia = (inertia + inertia.mT) / 2

    def turned(y: Tensor) -> Tensor:
        return (R @ (inertia @ (R.mT @ y[..., None])))[..., 0]

    push = mass * (a + cross(dw, x) + cross(w, v + cross(w, x)))
    moment = turned(dw) + cross(w, turned(w)) + cross(x, push)
    return _rows(moment, push)


def _cross_motion(V: Tensor, S: Tensor) -> Tensor:
    """V x_m S for rows `[*, n, 6]`."""
    (w, v), (s, u) = V.split(3, -1), S.split(3, -1)
    return _rows(cross(w, s), cross(w, u) + cross(v, s))


def _rows(upper: Tensor, lower: Tensor) -> Tensor:
    """Spatial rows `[*, n, 6]` from their halves, batch dimensions broadcast."""
    return torch.cat(torch.broadcast_tensors(upper, lower), -1)


def _turn(R: Tensor, wrench: Tensor) -> tuple[Tensor, Tensor]:
    """The halves of rows `[*, n, 6]`, from body axes to the common ones."""
    moment, push = (R @ wrench.unflatten(-1, (2, 3)).mT).unbind(-1)
    return moment, push


def _fetch(x: Tensor, table: Tensor, last: Tensor) -> Tensor:
    """Row table(k) of x `[*batch, n, w]` for every k, `last` `[w]` where table(k) = n."""
    x = torch.cat([x, last.expand(*x.shape[:-2], 1, -1)], -2)
    if table.ndim == 1:
        return x.index_select(-2, table)
    batch = broadcast_shapes(x.shape[:-2], table.shape[:-1])
    places = table[..., None].expand(*batch, -1, x.shape[-1])
    return x.expand(*batch, -1, -1).gather(-2, places)
