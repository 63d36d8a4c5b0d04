r"""Closed-form derivatives of constrained dynamics, by the KKT identity.

With the residuals R1 = ID(q, qd, qdd) - G* f - tau and R2 = G qdd + gamma of `motion_equation`,

.. math::
    \begin{bmatrix} d\ddot q \\ df \end{bmatrix} =
    -\begin{bmatrix} \mathcal{M} & -G^* \\ G & 0 \end{bmatrix}^{-1}
    \begin{bmatrix} dR_1 \\ dR_2 \end{bmatrix}.

On a tree the wrench w of a marker is constant in world axes, while `inverse_dynamics_derivatives` holds it in
the body's axes, in which it turns by w x dtheta. The rows change with the poses, the velocities and the
accelerations of their markers, whose derivatives are those of frames. With rows between joints or embedded
loops, both residuals are differentiated along tangent steps of the closed manifold.

Reference: R. Budhiraja, J. Carpentier, C. Mastalli, N. Mansard, *Differential dynamic programming for
multi-phase rigid contact dynamics*, IEEE-RAS Humanoids 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.algorithms.constrained_motion import Multipliers
from torchsko.bridge.assemble import model_at
from torchsko.bridge.kinematics import Kinematics
from torchsko.constraints.row_kinds import FrameRows, JointRows, Marker
from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import cross, skew
from torchsko.utils.shapes import broadcast_shapes, concatenate, matvec
from torchsko.verbs.derivatives import inverse_derivatives
from torchsko.verbs.frame import add_frames
from torchsko.verbs.frame_derivatives import frame_tangents
from torchsko.verbs.frames import frame_poses
from torchsko.verbs.held.held_dynamics import HeldConstraints, forward_dynamics
from torchsko.verbs.held.held_motion import stabilized_bias
from torchsko.verbs.manifold_derivatives import state_jacobians
from torchsko.verbs.passive_forces import passive_forces


class MarkerTangents(NamedTuple):
    """Motion of one marker in world axes at its origin, and its derivatives in tangent coordinates.

    Attributes:
        pose: rotation and position.
        V: velocity, `[*batch, 6]`.
        A: [wdot; acceleration of the origin], `[*batch, 6]`.
        J: Jacobian, `[*batch, 6, n]`.
        V_q: derivative of V to q, `[*batch, 6, n]`.
        A_q: derivative of A to q.
        A_qd: derivative of A to qd.
    """

    pose: Marker
    V: Tensor
    A: Tensor
    J: Tensor
    V_q: Tensor
    A_q: Tensor
    A_qd: Tensor


class _Pair(NamedTuple):
    """Rows of one constraint between two markers.

    Attributes:
        kind: the rows.
        one: motion of the first marker.
        two: motion of the second marker.
        numbers: parameters of the kind, `[*batch, p]`.
    """

    kind: FrameRows
    one: MarkerTangents
    two: MarkerTangents
    numbers: Tensor


def forward_dynamics_derivatives(
    held: HeldConstraints,
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    active: Tensor | None = None,
    f_ext: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Derivatives of accelerations and forces to q, qd and tau."""
    return forward_dynamics_expanded(held, mech, q, qd, tau, active, f_ext)[2:]


def forward_dynamics_expanded(
    held: HeldConstraints,
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    active: Tensor | None = None,
    f_ext: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Accelerations, forces, and their derivatives to q, qd and tau."""
    qdd, forces = forward_dynamics(held, mech, q, qd, tau, active, f_ext)
    state = Kinematics.of(mech, q, qd)
    found, _ = held.multipliers(state, active)
    mask = found.mask
    residuals = marker_residuals if have_markers(held, mech) else _along_the_manifold
    R1_q, R1_qd, R2_q, R2_qd = residuals(held, state, q, qdd, mask * forces, f_ext)
    n = mech.num_dof
    identity = torch.eye(n, dtype=q.dtype, device=q.device)
    zero = torch.zeros_like(found.G)
    batch = broadcast_shapes(R1_q.shape[:-2], R2_q.shape[:-2], found.G.shape[:-2])
    first = concatenate([R1_q, R1_qd, -identity], -1, (*batch, n))
    second = mask[..., None] * concatenate([R2_q, R2_qd, zero], -1, (*batch, found.G.shape[-2]))
    motion, change = solve_columns(found, first, second)
    if held.redundant:
        outside = range_change(held, state, q, found, forces)
        change = change + torch.nn.functional.pad(outside, (0, 2 * n))
    a_q, a_qd, a_tau = motion.split(n, -1)
    f_q, f_qd, f_tau = change.split(n, -1)
    return qdd, forces, a_q, a_qd, a_tau, f_q, f_qd, f_tau


def _kinds(held: HeldConstraints) -> list[FrameRows | JointRows]:
    return [link.kind for link in held.rows.structure.links]


def have_markers(held: HeldConstraints, mech: Mechanism) -> bool:
    """True if rows depend on the motion of markers of a tree, whose derivatives have a closed form."""
    return mech.closing is None and all(isinstance(kind, FrameRows) for kind in _kinds(held))


def _along_the_manifold(
    held: HeldConstraints,
    state: Kinematics,
    q: Tensor,
    qdd: Tensor,
    f: Tensor,
    f_ext: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Derivatives of R1 and R2 to q and qd along tangent steps of the closed manifold."""
    mech, n = state.mech, state.mech.num_dof
    numbers = held.rows.numbers(mech)

    def residuals(q: Tensor, qd: Tensor) -> Tensor:
        at = Kinematics.of(mech, q, qd)
        rows = held.rows.at(at, numbers)
        G = rows.jacobian
        bias = stabilized_bias(rows, qd, held.stabilize)
        moved = algorithms.inverse_dynamics(model_at(at, f_ext), qdd) + passive_forces(at)
        return concatenate([moved - matvec(G.mT, f), matvec(G, qdd) + bias])

    assert state.qd is not None
    to_q, to_qd = state_jacobians(mech, residuals, q, state.qd, qdd.shape[:-1])
    return to_q[..., :n, :], to_qd[..., :n, :], to_q[..., n:, :], to_qd[..., n:, :]


def marker_residuals(
    held: HeldConstraints,
    state: Kinematics,
    q: Tensor,
    qdd: Tensor,
    f: Tensor,
    f_ext: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Derivatives of R1 and R2 to q and qd from those of the motion of the markers."""
    pairs = _pairs(held, state, qdd)
    forces = f.split([pair.kind.num_rows for pair in pairs], -1)
    pieces = [_piece(x, of, held.stabilize) for x, of in zip(pairs, forces, strict=True)]
    R2_q, R2_qd = (concatenate([getattr(p, x) for p in pieces], -2) for x in ("rows_q", "rows_qd"))
    held_by, turned = _body_wrenches(held, state, pairs, [p.wrenches for p in pieces])
    total = held_by if f_ext is None else held_by + f_ext
    R1_q, R1_qd, *_ = inverse_derivatives(state, qdd, total)
    return R1_q - turned - sum(p.forces_q for p in pieces), R1_qd, R2_q, R2_qd


def solve_columns(found: Multipliers, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of dqdd and df for columns of dR1 and dR2, through W with W* W = M^-1."""
    identity = torch.eye(first.shape[-2], dtype=first.dtype, device=first.device)
    W = found.factors.whiten(identity, columns=True)
    y = W @ first
    f = found.compliance_solve(found.V.mT @ y - second)
    return W.mT @ (found.V @ f - y), f


def range_change(
    held: HeldConstraints, state: Kinematics, q: Tensor, found: Multipliers, forces: Tensor
) -> Tensor:
    """Derivative to q of the multipliers outside the range of the rows, as this range turns.

    With f = G y, the part of df outside the range is that of dG y, which is the derivative to q of the
    velocity of the rows at the rates y.
    """
    y = matvec(found.G.mT, found.norm_solve(forces[..., None])[..., 0])
    rate = row_rates(held, state, q, y)
    rate = found.mask[..., None] * rate
    outside = rate - found.norms() @ found.norm_solve(rate)
    return outside


def row_rates(held: HeldConstraints, state: Kinematics, q: Tensor, y: Tensor) -> Tensor:
    """Derivative to q of the velocities of the rows at rates y, `[*batch, r, n]`."""
    mech = state.mech
    if not have_markers(held, mech):
        numbers = held.rows.numbers(mech)
        velocities = lambda q, y: matvec(held.rows.at(Kinematics.of(mech, q), numbers).jacobian, y)  # noqa: E731
        return state_jacobians(mech, velocities, q, y)[0]
    parts = []
    for pair in _pairs(held, state.moving(y), torch.zeros_like(y)):

        def velocity(one: Marker, two: Marker, pair: _Pair = pair) -> Tensor:
            L1, L2 = pair.kind.maps(one, two, pair.numbers)
            return matvec(L1, pair.one.V) + matvec(L2, pair.two.V)

        L1, L2 = pair.kind.maps(pair.one.pose, pair.two.pose, pair.numbers)
        moved = L1 @ pair.one.V_q + L2 @ pair.two.V_q
        parts.append(moved + _along_poses(velocity, pair))
    return concatenate(parts, -2)


class _Piece(NamedTuple):
    """Derivatives of one constraint."""

    rows_q: Tensor
    rows_qd: Tensor
    forces_q: Tensor
    wrenches: tuple[Tensor, Tensor]


def _piece(pair: _Pair, f: Tensor, rate: float) -> _Piece:
    """Derivatives of the rows of one constraint, and of the joint forces of its wrenches' changes."""
    kind, one, two, numbers = pair
    L1, L2 = kind.maps(one.pose, two.pose, numbers)

    def rows(a: Marker, b: Marker, V1: Tensor, V2: Tensor) -> Tensor:
        M1, M2 = kind.maps(a, b, numbers)
        found = matvec(M1, one.A + 2 * rate * V1) + matvec(M2, two.A + 2 * rate * V2)
        found = found + kind.bias(a, b, V1, V2, numbers)
        return found + rate * rate * kind.residual(a, b, numbers) if rate else found

    rows_q = L1 @ one.A_q + L2 @ two.A_q
    rows_qd = L1 @ one.A_qd + L2 @ two.A_qd
    rows_q = rows_q + _along_poses(lambda a, b: rows(a, b, one.V, two.V), pair)
    of_V = _velocity_jacobians(lambda V1, V2: rows(one.pose, two.pose, V1, V2), pair)
    for by, marker in zip(of_V, (one, two), strict=True):
        rows_q, rows_qd = rows_q + by @ marker.V_q, rows_qd + by @ marker.J

    def wrenches(a: Marker, b: Marker) -> Tensor:
        return torch.cat([matvec(M.mT, f) for M in kind.maps(a, b, numbers)], -1)

    turned = _along_poses(wrenches, pair)
    forces_q = one.J.mT @ turned[..., :6, :] + two.J.mT @ turned[..., 6:, :]
    return _Piece(rows_q, rows_qd, forces_q, (matvec(L1.mT, f), matvec(L2.mT, f)))


def _along_poses(fn: Callable[[Marker, Marker], Tensor], pair: _Pair) -> Tensor:
    """Derivative to q of a function of both poses, `[*batch, k, n]`."""
    one, two = pair.one, pair.two

    def at_step(steps: Tensor) -> Tensor:
        ends = []
        for marker, step in zip((one.pose, two.pose), steps.split(6, -1), strict=True):
            R = marker.rotation + skew(step[..., :3]) @ marker.rotation
            ends.append(Marker(R, marker.position + step[..., 3:]))
        return fn(ends[0], ends[1])

    by_pose = _jacobian(at_step, one.V)
    return by_pose[..., :6] @ one.J + by_pose[..., 6:] @ two.J


def _velocity_jacobians(
    fn: Callable[[Tensor, Tensor], Tensor], pair: _Pair
) -> tuple[Tensor, Tensor]:
    """Derivatives of a function to both velocities, `[*batch, k, 6]` each."""
    V = torch.cat([pair.one.V, pair.two.V], -1)
    by_V = _jacobian(lambda change: fn(*(V + change).split(6, -1)), pair.one.V)
    return by_V[..., :6], by_V[..., 6:]


def _jacobian(fn: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """Jacobian `[*batch, k, 12]` of a function of 12 numbers at 0; the directions are a batch dimension."""
    unit = torch.eye(12, dtype=like.dtype, device=like.device)
    directions = unit.reshape(12, *(1,) * (like.ndim - 1), 12).expand(12, *like.shape[:-1], 12)

    def wide(x: Tensor) -> tuple[Tensor]:
        y = fn(x)
        return (y.expand(*x.shape[:-1], y.shape[-1]),)

    (columns,) = jvp_by_double_vjp(wide, (torch.zeros_like(directions),), (directions,))
    return columns.movedim(0, -1)


def _pairs(held: HeldConstraints, state: Kinematics, qdd: Tensor) -> list[_Pair]:
    """Motion of both markers of each constraint."""
    mech, numbers = state.mech, held.rows.numbers(state.mech)
    bodies = [k for link in held.rows.structure.links for k in link.ends]
    moving = [i for i, body in enumerate(bodies) if body >= 0]
    at = torch.tensor(moving, device=mech.device)
    placed = add_frames(
        mech,
        [bodies[i] for i in moving],
        numbers.rotation.index_select(-3, at),
        numbers.position.index_select(-2, at),
    )
    indices = range(mech.num_frames, placed.num_frames)
    moved = Kinematics(placed, state.tree_q, state.qd)
    pose, tangents = frame_poses(moved, indices), frame_tangents(moved, indices, qdd, "mixed", True)
    V, A = tangents.V[..., 0], tangents.A[..., 0]
    none, found = V.new_zeros(*V.shape[:-2], 6), []
    columns = none[..., None].expand(*none.shape, mech.num_dof)
    for i, body in enumerate(bodies):
        if body < 0:
            R, r = numbers.rotation[..., i, :, :], numbers.position[..., i, :]
            still = (none, none, columns, columns, columns, columns)
            found.append(MarkerTangents(Marker(R, r), *still))
            continue
        k = moving.index(i)
        R, r = pose.rotation[..., k, :, :], pose.position[..., k, :]
        vectors = (x[..., k, :] for x in (V, A))
        matrices = (x[..., k, :, :] for x in tangents[2:])
        found.append(MarkerTangents(Marker(R, r), *vectors, *matrices))
    kinds = [kind for kind in _kinds(held) if isinstance(kind, FrameRows)]
    parameters = numbers.parameters.split([len(kind.parameters) for kind in kinds], -1)
    ends = zip(found[::2], found[1::2], strict=True)
    return [_Pair(k, *two, x) for k, two, x in zip(kinds, ends, parameters, strict=True)]


def _body_wrenches(
    held: HeldConstraints,
    state: Kinematics,
    pairs: list[_Pair],
    wrenches: list[tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """External forces of the constraints on bodies, and J* times the turning of their wrenches."""
    poses = state.poses
    bodies = [k for link in held.rows.structure.links for k in link.ends]
    markers = [marker for pair in pairs for marker in (pair.one, pair.two)]
    flat = [w for pair in wrenches for w in pair]
    turned = torch.zeros_like(markers[0].J.mT @ markers[0].J)
    total: dict[int, Tensor] = {}
    for body, marker, w in zip(bodies, markers, flat, strict=True):
        if body < 0:
            continue
        moment, force = w.split(3, -1)
        J_w = marker.J[..., :3, :]
        turned = turned + marker.J.mT @ torch.cat([skew(moment) @ J_w, skew(force) @ J_w], -2)
        R, r = poses.rotation[..., body, :, :], poses.position[..., body, :]
        about = moment + cross(marker.pose.position - r, force)
        f = torch.cat([matvec(R.mT, about), matvec(R.mT, force)], -1)
        total[body] = total[body] + f if body in total else f
    like = next(iter(total.values()))
    parts = [total.get(k, torch.zeros_like(like)) for k in range(state.mech.num_bodies)]
    return torch.stack(torch.broadcast_tensors(*parts), -2), turned
