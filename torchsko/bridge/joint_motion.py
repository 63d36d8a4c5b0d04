"""Motion of the joints of a tree: edge weights, joint maps and their rates, gravity.

All breadth first, in body frames; see `torchsko.bridge.assemble` for the formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algebra.operators.edges import DenseEdges, EdgeWeight, LevelEdges
from torchsko.bridge.rigid_edges import RigidEdges
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.motion import cross_motion
from torchsko.spatial.rigid_transform import force_matrix
from torchsko.utils.shapes import matvec


def edge_weights(mech: Mechanism, q: Tensor) -> EdgeWeight:
    """The edge weights A(p(k), k) at a configuration `[*batch, num_q]`, breadth first.

    Dense 6 x 6 matrices, or factored transforms in scalar form.
    """
    if is_scalar_form():
        turn, shift = joint_poses(mech, q)
        placed = mech.layout.breadth_first(mech.joint_rotation, -3)
        position = mech.layout.breadth_first(mech.joint_position, -2)
        aligned = tuple(
            mech.aligned and mech.joints.kinds[k].one_axis
            for level in mech.layout.tree.levels
            for k in level
        )
        axis = mech.layout.breadth_first(mech.axis, -2)
        position = position if shift is None else position + matvec(placed, shift)
        return RigidEdges((turn, placed, position), axis, aligned)
    parts = []
    for group, counts in zip(mech.joints.groups, mech.joints.counts, strict=True):
        placement = force_matrix(
            mech.joint_rotation.index_select(-3, group.bodies),
            mech.joint_position.index_select(-2, group.bodies),
        )
        constants, coordinates = group.constants(mech), group.coordinates(q)
        parts.append(group.kind.weight_terms(constants, coordinates, placement).split(counts))
    levels = mech.joints.levels(parts, -3)
    return LevelEdges(tuple(DenseEdges(level) for level in levels), mech.layout.level_sizes)


def joint_poses(mech: Mechanism, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Pose of every child frame in its joint frame, breadth first: rotations and positions.

    None stands for the identity and for zero, when no joint of the mechanism turns, or shifts.
    """
    motions = [
        group.kind.pose(group.constants(mech), group.coordinates(q)) for group in mech.joints.groups
    ]
    turns, shifts = zip(*motions, strict=True)
    counts = [group.bodies.shape[0] for group in mech.joints.groups]
    turn = shift = None
    if any(t is not None for t in turns):
        identity = torch.eye(3, dtype=q.dtype, device=q.device)
        still = [identity.expand(n, 3, 3) for n in counts]
        turn = mech.joints.nodes(
            [s if t is None else t for t, s in zip(turns, still, strict=True)], -3
        )
    if any(s is not None for s in shifts):
        nothing = [q.new_zeros(n, 3) for n in counts]
        shift = mech.joints.nodes(
            [z if s is None else s for s, z in zip(shifts, nothing, strict=True)], -2
        )
    return turn, shift


def joint_maps(mech: Mechanism, q: Tensor) -> Tensor:
    """H of every body in the child frame, `[*batch, n, d, 6]`, breadth first, zero-padded.

    Without batch dimensions of q where no kind of joint has an H that depends on it.
    """
    parts = [
        group.kind.joint_map(group.constants(mech))
        if group.kind.constant_map
        else group.kind.joint_map_at(group.constants(mech), group.coordinates(q))
        for group in mech.joints.groups
    ]
    width = mech.layout.dofs.width
    padded = [torch.nn.functional.pad(H, (0, 0, 0, width - H.shape[-2])) for H in parts]
    return mech.joints.nodes(padded, -3)


def joint_bias_accels(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor | None:
    """Hdot* qd of every body, `[*batch, n, 6]`, breadth first; None where every H is constant."""
    if all(group.kind.constant_map for group in mech.joints.groups):
        return None
    parts = [
        q.new_zeros(group.bodies.shape[0], 6)
        if group.kind.constant_map
        else group.kind.bias_accel(group.constants(mech), group.coordinates(q), group.rates(qd))
        for group in mech.joints.groups
    ]
    return mech.joints.nodes(parts, -2)


def joint_map_rates(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor | None:
    r"""The rate dH/dt of every body, `[*batch, n, d, 6]`, breadth first; None where every H is constant.

    A joint type provides :math:`b(u) = \dot H^* u` along u. Its value along u on another rate v follows
    from the symmetric part of b and from the Maurer-Cartan structure equation of rigid motions:

    .. math::
        \dot H^*_u v = \tfrac14 (b(u + v) - b(u - v))
            + \tfrac12 (H^* [u, v] - H^* u \times_m H^* v).
    """
    if all(group.kind.constant_map for group in mech.joints.groups):
        return None
    parts, width = [], mech.layout.dofs.width
    for group in mech.joints.groups:
        kind, count, d = group.kind, group.bodies.shape[0], group.kind.num_dof
        if kind.constant_map:
            parts.append(q.new_zeros(count, width, 6))
            continue
        constants, at, u = group.constants(mech), group.coordinates(q), group.rates(qd)
        H = kind.joint_map_at(constants, at)
        along = H.mT @ u[..., None]
        rows = []
        for e in torch.eye(d, dtype=q.dtype, device=q.device).unbind(0):
            v = e.expand(u.shape)
            ahead, behind = (kind.bias_accel(constants, at, w) for w in (u + v, u - v))
            bracket = H.mT @ kind.bracket(u, v)[..., None]
            other = bracket - cross_motion(*torch.broadcast_tensors(along, H.mT @ v[..., None]))
            rows.append((ahead - behind) / 4 + other[..., 0] / 2)
        rows = torch.stack(torch.broadcast_tensors(*rows), -2)
        parts.append(torch.nn.functional.pad(rows, (0, 0, 0, width - d)))
    return mech.joints.nodes(parts, -3)


def gravity_accel(mech: Mechanism, edge_weight: EdgeWeight) -> Tensor:
    """A*(0,k) [0; -g] at the base bodies, zero at the others, `[*batch, n, 6, 1]`."""
    return base_motion(mech, edge_weight, -mech.gravity)


def base_motion(mech: Mechanism, edge_weight: EdgeWeight, linear: Tensor) -> Tensor:
    """A*(0,k) [0; x] at the base bodies for `[*batch, 3]`, zero at the others, `[*batch, n, 6, 1]`."""
    x = linear[..., None, :, None]
    base = torch.cat([torch.zeros_like(x), x], -2)
    at_base = edge_weight.split(mech.layout.level_sizes)[0].down(base)
    return torch.nn.functional.pad(at_base, (0, 0, 0, 0, 0, mech.num_bodies - at_base.shape[-3]))
