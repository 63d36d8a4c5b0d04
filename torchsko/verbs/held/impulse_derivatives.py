"""Closed-form derivatives of an impact with constraints, by the KKT identity.

With the velocities v before and v' after the impact, the impulses f and the restitution e, the residuals are
R1 = M (v' - v) - G* f and R2 = G (v' + e v). They are those of constrained dynamics at rest, without gravity
and springs, for the acceleration v' - v; see `torchsko.verbs.held.held_derivatives`.

Reference: R. Budhiraja, J. Carpentier, C. Mastalli, N. Mansard, *Differential dynamic programming for
multi-phase rigid contact dynamics*, IEEE-RAS Humanoids 2018, section III-D.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import model_at
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import broadcast_shapes, matvec
from torchsko.verbs.held.held_derivatives import (
    have_markers,
    marker_residuals,
    range_change,
    row_rates,
    solve_columns,
)
from torchsko.verbs.held.held_dynamics import HeldConstraints, impulse
from torchsko.verbs.manifold_derivatives import state_jacobians


def impulse_derivatives(
    held: HeldConstraints,
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    active: Tensor | None = None,
    restitution: float = 0.0,
) -> tuple[Tensor, ...]:
    """Derivatives of the velocity after an impact and of the impulses to q and qd."""
    return impulse_expanded(held, mech, q, qd, active, restitution)[2:]


def impulse_expanded(
    held: HeldConstraints,
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    active: Tensor | None = None,
    restitution: float = 0.0,
) -> tuple[Tensor, ...]:
    """Velocity after an impact, impulses, and their derivatives to q and qd."""
    after, f = impulse(held, mech, q, qd, active, restitution)
    weightless = mech.replace(gravity=0 * mech.gravity, stiffness=0 * mech.stiffness)
    rest = torch.zeros_like(after)
    state = Kinematics.of(weightless, q, rest)
    found, _ = held.multipliers(state, active)
    jump, forces = after - qd, found.mask * f
    if have_markers(held, mech):
        R1_q = marker_residuals(held, state, q, jump, forces, None)[0]
    else:
        R1_q = _along_the_manifold(held, weightless, q, jump, forces)
    R2_q = row_rates(held, state, q, after + restitution * qd)
    batch, n = broadcast_shapes(R1_q.shape[:-2], R2_q.shape[:-2], found.G.shape[:-2]), mech.num_dof
    motion, change = solve_columns(
        found,
        R1_q.expand(*batch, n, n),
        (found.mask[..., None] * R2_q).expand(*batch, *found.G.shape[-2:]),
    )
    if held.redundant:
        change = change + range_change(held, state, q, found, f)
    to_velocity = (1 + restitution) * found.compliance_solve(found.G)
    identity = torch.eye(n, dtype=q.dtype, device=q.device)
    return after, f, motion, identity - found.accelerate(to_velocity), change, -to_velocity


def _along_the_manifold(
    held: HeldConstraints, mech: Mechanism, q: Tensor, jump: Tensor, f: Tensor
) -> Tensor:
    """Derivative of R1 to q along tangent steps of the closed manifold."""
    numbers = held.rows.numbers(mech)

    def residual(q: Tensor, rate: Tensor) -> Tensor:
        at = Kinematics.of(mech, q, rate)
        G = held.rows.at(at, numbers, at_rest=True).jacobian
        return algorithms.inverse_dynamics(model_at(at), jump) - matvec(G.mT, f)

    return state_jacobians(mech, residual, q, torch.zeros_like(jump), jump.shape[:-1])[0]
