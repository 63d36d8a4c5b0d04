r"""Smooth contact by a penalty, with forces at a distance and one linear solve in each step.

With the distance phi and the velocity u = [u_n; u_t] of a contact, stiffness k, width epsilon, dissipation d,
friction coefficient mu and slip speed v_s,

.. math::
    f_n = k\, \epsilon \ln(1 + e^{-\phi / \epsilon}) \Bigl(1 - \frac{d u_n}{\sqrt{1 + d^2 u_n^2}}\Bigr),
    \qquad f_t = -\mu f_n \frac{u_t}{\sqrt{|u_t|^2 + v_s^2}}.

A step of length h evaluates the forces at its end, linearized, for the acceleration x:

.. math::
    (\mathcal M + h D + J^T W J)\, x = \tau - \mathcal C + J^T (f + h f_\phi u_n), \qquad
    W = -h f_u - h^2 f_\phi e_n^T.

DEPARTS from Hunt and Crossley: the factor of the damping is bounded, so that contacts never pull.

References: K. Hunt, F. Crossley, *Coefficient of restitution interpreted as damping in vibroimpact*, Journal
of Applied Mechanics 42, 1975; D. Baraff, A. Witkin, *Large steps in cloth simulation*, SIGGRAPH 1998, Eq. 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.body_motions import BodyMotions
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.points import all_poses, contact_points, select
from torchsko.contact.scalar_rows import all_lengths, largest_forces, limit_distances
from torchsko.contact.soft_rows import point_jacobians
from torchsko.contact.soft_state import SoftState
from torchsko.linalg.unpivoted import solve_without_pivots
from torchsko.mechanism.configuration import transport_rate
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.utils.shapes import matvec


@dataclass(frozen=True, eq=False)
class SmoothContact:
    """Parameters of smooth contact, for the argument ``contact`` of `torchsko.step`.

    Every tensor may have leading batch dimensions, and has gradients. P is the number of pairs.

    Attributes:
        shapes: shapes, pairs, limits, margins and friction coefficients; sliding friction only.
        stiffness: k, `[P]` [N/m].
        width: epsilon, `[P]` [m].
        dissipation: d, `[P]` [s/m].
        slip: v_s, `[P]` [m/s]; for dry friction of joints its first entry, or 0.05 [rad/s or m/s].
        limit_stiffness: k of position limits, `[L]` [N m/rad or N/m].
        limit_width: epsilon of position limits, `[L]` [rad or m].
    """

    shapes: ContactModel
    stiffness: Tensor
    width: Tensor
    dissipation: Tensor
    slip: Tensor
    limit_stiffness: Tensor
    limit_width: Tensor

    @staticmethod
    def of(
        mech: MechanismLike,
        *,
        stiffness: float = 1e4,
        width: float | None = None,
        dissipation: float = 5.0,
        slip: float = 0.05,
        limit_stiffness: float = 200.0,
        limit_width: float = 0.01,
    ) -> SmoothContact:
        """Smooth contact of the shapes of a mechanism, with one value for all pairs.

        A body of weight W on one contact rests at the penetration width * ln(exp(W / (stiffness width)) - 1),
        which is negative for a width above 1.44 W / stiffness: the body floats.

        Args:
            mech: the mechanism.
            stiffness: [N/m].
            width: [m]; by default the weight of the mechanism divided by the stiffness.
            dissipation: [s/m].
            slip: speed below which friction is proportional to velocity [m/s].
            limit_stiffness: of position limits [N m/rad or N/m].
            limit_width: of position limits [rad or m].

        Raises:
            MechanismError: as `ContactModel.of`.

        Example:
            >>> import torch, torchsko as ts
            >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.1"><freejoint/>
            ...   <geom size="0.1" mass="1"/></body></worldbody></mujoco>'''
            >>> ball = ts.load(text)
            >>> state, contact = ts.initial_state(ball), ts.contact.SmoothContact.of(ball)
            >>> for _ in range(200):
            ...     state = ts.step(ball, state, contact=contact, dt=0.005)
            >>> f"{1e3 * (0.1 - state.q[2]):.4f} mm"  # 9.81e-4 ln(e - 1) m
            '0.5310 mm'
        """
        mech = as_mechanism(mech)
        shapes = ContactModel.of(mech)
        weight = float(mech.mass.sum() * mech.gravity.norm())
        width = weight / stiffness if width is None else width
        of_pair, of_limit = torch.ones_like(shapes.margin), torch.ones_like(shapes.limit_margin)
        return SmoothContact(
            shapes, stiffness * of_pair, width * of_pair, dissipation * of_pair, slip * of_pair,
            limit_stiffness * of_limit, limit_width * of_limit,
        )  # fmt: skip

    def replace(self, **changes: Tensor | ContactModel) -> SmoothContact:
        """A copy with some parameters changed, with any leading batch dimensions."""
        return replace(self, **changes)


class _Forces(NamedTuple):
    """Forces of rows in directions J: f, and derivatives by velocity and distance.

    Attributes:
        jacobian: J, `[*batch, c, r, num_dof]`; the first of r directions is the normal.
        force: f, `[*batch, c, r]`.
        slope: f_u, `[*batch, c, r, r]`.
        gradient: f_phi, `[*batch, c, r]`.
        speed: u_n, `[*batch, c]`.
    """

    jacobian: Tensor
    force: Tensor
    slope: Tensor
    gradient: Tensor
    speed: Tensor


def smooth_acceleration(
    state: SoftState,
    contact: SmoothContact,
    tau: Tensor,
    damping: Tensor | None,
    dt: float,
) -> Tensor:
    """Acceleration of a linearly implicit step, `[*batch, num_dof]`.

    Args:
        state: the mechanism at the start.
        contact: parameters.
        tau: joint forces, `[*batch, num_dof]`.
        damping: D of joints and actuators, `[*batch, num_dof, num_dof]`; None for zero.
        dt: time step h [s].
    """
    mech, kinematics, A = state.mech, state.kinematics, state.inertia
    qd = kinematics.qd
    assert qd is not None
    turning = transport_rate(mech, qd, qd)
    force = state.smooth_force(tau)
    if damping is not None:
        A = A + dt * damping
        force = force if turning is None else force - dt * matvec(damping, turning)
    for rows in (*_contact_forces(kinematics, contact), *_joint_forces(kinematics, contact)):
        normal = qd.new_tensor([1.0] + [0.0] * (rows.force.shape[-1] - 1))
        W = -dt * rows.slope - dt * dt * rows.gradient[..., None] * normal
        J = rows.jacobian
        pushed = rows.force + dt * rows.gradient * rows.speed[..., None]
        if turning is not None:
            pushed = pushed - matvec(W, matvec(J, turning[..., None, :]))
        A = A + (J.mT @ W @ J).sum(-3)
        force = force + matvec(J.mT, pushed).sum(-2)
    return solve_without_pivots(A, force)


def _normal(
    distance: Tensor, speed: Tensor, stiffness: Tensor, width: Tensor, dissipation: Tensor | float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normal force and its derivatives by speed and distance."""
    scaled = -distance / width
    depth = width * torch.nn.functional.softplus(scaled)
    s = dissipation * speed
    root = (1 + s * s).sqrt()
    factor = 1 - s / root
    by_speed = -stiffness * depth * dissipation / (root * root * root)
    return stiffness * depth * factor, by_speed, -stiffness * torch.sigmoid(scaled) * factor


def _contact_forces(state: Kinematics, contact: SmoothContact) -> list[_Forces]:
    pose = all_poses(state)
    points = contact_points(contact.shapes, pose)
    if not points.pair:
        return []
    q = state.tree_q
    tables = contact.shapes.tables
    bodies = BodyMotions.of(state, pose, tables.moves, tables.roots)
    J = point_jacobians(points, contact.shapes, bodies)
    u = matvec(J, state.tree_qd[..., None, :])
    J = state.independent_rows(J.flatten(-3, -2)).unflatten(-2, (-1, 3))
    un, ut = u[..., 0], u[..., 1:]
    k, width, d, slip = (
        select(x, points.pair, -1)
        for x in (contact.stiffness, contact.width, contact.dissipation, contact.slip)
    )
    sliding = q.new_tensor([float(contact.shapes.condim[pair] > 1) for pair in points.pair])
    mu = select(contact.shapes.friction, points.pair, -2)[..., :2] * sliding[:, None]
    margin = select(contact.shapes.margin, points.pair, -1)
    fn, by_speed, by_distance = _normal(points.distance - margin, un, k, width, d)
    root = ((ut * ut).sum(-1) + slip * slip).sqrt()[..., None]
    way = -mu * ut / root
    column = torch.cat([torch.ones_like(un)[..., None], way], -1)
    eye = torch.eye(2, dtype=q.dtype, device=q.device)
    turn = -mu[..., None] * (eye - ut[..., None] * ut[..., None, :] / (root * root)[..., None])
    turn = fn[..., None, None] * turn / root[..., None]
    slope = by_speed[..., None, None] * column[..., None] * eye.new_tensor([1.0, 0.0, 0.0])
    slope = slope + torch.nn.functional.pad(turn, (1, 0, 1, 0))
    return [_Forces(J, fn[..., None] * column, slope, by_distance[..., None] * column, un)]


def _joint_forces(state: Kinematics, contact: SmoothContact) -> list[_Forces]:
    """Forces of limits and of dry friction."""
    shapes, found = contact.shapes, []
    lengths, qd = all_lengths(state, shapes), state.qd
    assert qd is not None
    if shapes.num_limits:
        distance, rows, _ = limit_distances(state, shapes, lengths)
        J = state.independent_rows(rows)
        speed = matvec(J, qd)
        f, by_speed, by_distance = _normal(
            distance, speed, contact.limit_stiffness, contact.limit_width, 1.0
        )
        found.append(
            _Forces(
                J[..., None, :],
                f[..., None],
                by_speed[..., None, None],
                by_distance[..., None],
                speed,
            )
        )
    if shapes.loss_dof:
        J = state.independent_rows(select(lengths[1], shapes.loss_dof, -2))
        v, largest = matvec(J, qd), largest_forces(state.mech, shapes, 0)
        slip = contact.slip[..., :1] if contact.slip.shape[-1] else v.new_tensor([0.05])
        root = (v * v + slip * slip).sqrt()
        slope = -largest * slip * slip / (root * root * root)
        f, zero = -largest * v / root, torch.zeros_like(v)
        found.append(
            _Forces(J[..., None, :], f[..., None], slope[..., None, None], zero[..., None], zero)
        )
    return found
