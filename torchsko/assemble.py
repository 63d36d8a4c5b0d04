r"""The bridge: a mechanism at a state becomes an SKO model.

In body frames, with R taking child to parent coordinates and r the child origin in the parent,

.. math::
    A(p,k) = \begin{bmatrix} R & \tilde r R \\ 0 & R \end{bmatrix}, \quad
    a(k) = \dot H^* \dot q + V(k) \times_m H^* \dot q, \quad b(k) = V(k) \times_f M V(k) - f_{ext}(k).

Gravity enters as the acceleration -g of the inertial frame: A*(0,k) [0; -g] is added to a(k) of the base
bodies.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, section 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algebra.edges import DenseEdges, EdgeWeight, LevelEdges
from torchsko.algebra.hinge import apply_blocks, spread_all
from torchsko.algebra.model import SKOModel
from torchsko.algebra.sweeps import scatter
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.mechanism.verb import verb
from torchsko.rigid_edges import RigidEdges
from torchsko.spatial.inertia import spatial_inertia
from torchsko.spatial.motion import cross_force, cross_motion
from torchsko.spatial.transform import force_matrix


@verb
def assemble(
    mech: Mechanism, q: Tensor, qd: Tensor | None = None, f_ext: Tensor | None = None
) -> SKOModel:
    """The SKO model of a mechanism at a state.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]`; at rest when left out.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body's frame at its origin,
            [moment; force] [N m, N].

    Returns:
        The model (tree, H, A, M, a, b), with the armature; passive joint forces (damping, friction,
        springs) are no part of it: see `torchsko.passive_force`.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    check_state(mech, q=q, qd=qd, f_ext=f_ext)
    layout = mech.layout
    edge_weight = edge_weights(mech, q)
    H = joint_maps(mech, q)
    M = spatial_inertia(
        layout.breadth_first(mech.mass, -1),
        layout.breadth_first(mech.com, -2),
        layout.breadth_first(mech.inertia, -3),
    )
    base = gravity_accel(mech, edge_weight)
    if qd is None:
        coriolis, gyro = torch.zeros_like(M[..., :1]), torch.zeros_like(M[..., :1])
    else:
        V, coriolis = body_velocities(mech, edge_weight, H, q, qd)
        gyro = cross_force(V, apply_blocks(M, V))
    if f_ext is not None:
        gyro = gyro - layout.breadth_first(f_ext, -2)[..., None]
    armature = layout.dofs.pack(mech.armature[..., None]) if mech.has_armature else None
    return SKOModel(
        layout,
        edge_weight,
        H,
        M,
        coriolis + base,
        gyro,
        armature=armature,
        straight=straight_rows(mech, H),
        aligned=aligned_joints(mech),
    )


def edge_weights(mech: Mechanism, q: Tensor) -> EdgeWeight:
    """The edge weights A(p(k), k) at a configuration `[*batch, num_q]`, breadth first.

    Dense 6 x 6 matrices, or factored transforms for a mechanism that is to be traced to scalars.
    """
    if mech.scalar:
        turn, shift = joint_poses(mech, q)
        placed = mech.layout.breadth_first(mech.joint_rotation, -3)
        position = mech.layout.breadth_first(mech.joint_position, -2)
        aligned = tuple(
            mech.aligned and mech.joints.kinds[k].one_axis
            for level in mech.layout.tree.levels
            for k in level
        )
        axis = mech.layout.breadth_first(mech.axis, -2)
        return RigidEdges((turn, shift, placed, position), axis, aligned)
    parts = []
    for group in mech.joints.groups:
        placement = force_matrix(
            mech.joint_rotation.index_select(-3, group.bodies),
            mech.joint_position.index_select(-2, group.bodies),
        )
        constants, coordinates = group.constants(mech), group.coordinates(q)
        parts.append(group.kind.weight_terms(constants, coordinates, placement))
    levels = [
        mech.joints.level(depth, lambda g, first, n: parts[g].narrow(first, n), -3)
        for depth in range(len(mech.joints.runs))
    ]
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


def body_velocities(
    mech: Mechanism, edge_weight: EdgeWeight, joint_map: Tensor, q: Tensor, qd: Tensor
) -> tuple[Tensor, Tensor]:
    """V = A* H* qd and a = Hdot* qd + V x_m H* qd of every body, `[*batch, n, 6, 1]`, breadth first."""
    rate = spread_all(mech.layout, joint_map, mech.layout.dofs.pack(qd[..., None]))
    V = scatter(mech.layout, edge_weight, rate)
    bias = joint_bias_accels(mech, q, qd)
    coriolis = cross_motion(V, rate)
    return V, coriolis if bias is None else coriolis + bias[..., None]


def straight_rows(mech: Mechanism, joint_map: Tensor) -> Tensor:
    """H of the joints where its rows are orthonormal, zero at others, `[*batch, n, d, 6]`."""
    if mech.joints.orthonormal:
        return joint_map
    parts = [
        mech.axis.new_full((group.bodies.shape[0], 1, 1), float(group.kind.orthonormal))
        for group in mech.joints.groups
    ]
    return joint_map * mech.joints.nodes(parts, -3)


def aligned_joints(mech: Mechanism) -> tuple[bool, ...]:
    """For each joint, whether the rows that `straight_rows` gives are unit vectors, or zero."""
    return tuple(
        not kind.orthonormal or (kind.unit_rows and (mech.aligned or not kind.has_axis))
        for kind in mech.joints.kinds
    )


def gravity_accel(mech: Mechanism, edge_weight: EdgeWeight) -> Tensor:
    """A*(0,k) [0; -g] at the base bodies, zero at the others, `[*batch, n, 6, 1]`."""
    g = mech.gravity[..., None, :, None]
    base = torch.cat([torch.zeros_like(g), -g], -2)
    at_base = edge_weight.split(mech.layout.level_sizes)[0].down(base)
    return torch.nn.functional.pad(at_base, (0, 0, 0, 0, 0, mech.num_bodies - at_base.shape[-3]))
