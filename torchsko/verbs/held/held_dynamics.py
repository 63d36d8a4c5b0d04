"""Constrained dynamics as functions of a mechanism and its constraints; `HeldMechanism` documents them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.algorithms.constrained_motion import Multipliers, forces_of
from torchsko.bridge.assemble import model_at
from torchsko.bridge.body_momenta import tree_forces_of
from torchsko.bridge.kinematics import Kinematics
from torchsko.implicit.loop import iterate
from torchsko.mechanism.configuration import add_step
from torchsko.mechanism.loops.row_set import Rows
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import broadcast_shapes, matvec
from torchsko.verbs.held.held_motion import HeldMotion, solve_motion
from torchsko.verbs.held.held_rows import HeldRows
from torchsko.verbs.mechanism_inputs import fixed_fields
from torchsko.verbs.passive_forces import passive_forces

PROJECTIONS = 10
"""Newton steps of `project`; each squares the error of a configuration near the constraints."""

PROJECTION_TOLERANCE = 64.0
"""Residual in units of rounding at which a sample needs no further step of `project` [m or 1]."""


@dataclass(frozen=True, eq=False)
class HeldConstraints:
    """Constraints and the way in which they are solved.

    Attributes:
        rows: rows of the constraints.
        stabilize: rate at which errors decay [1/s].
        redundant: whether rows are linearly dependent.
    """

    rows: HeldRows
    stabilize: float
    redundant: bool

    def multipliers(self, state: Kinematics, active: Tensor | None) -> tuple[Multipliers, Rows]:
        """The factored rows at a configuration."""
        rows = self.rows.at(state, self.rows.numbers(state.mech), at_rest=True)
        mask = self.rows.mask(state.tree_q, active)
        factors = algorithms.innovations(model_at(state, at_rest=True))
        return Multipliers.of(factors, rows.jacobian, mask, self.redundant), rows


def forward_dynamics(
    held: HeldConstraints,
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    active: Tensor | None = None,
    f_ext: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Accelerations and constraint forces."""
    state = Kinematics.of(mech, q, qd)
    equation = HeldMotion(fixed_fields(mech), held.rows, held.redundant, held.stabilize)
    drive = tau - passive_forces(state)
    if f_ext is not None:
        f = state.tree.layout.breadth_first(f_ext, -2)[..., None]
        drive = drive + state.independent_forces(tree_forces_of(state, f))
    return solve_motion(equation, state, drive, held.rows.mask(q, active))


def impulse(
    held: HeldConstraints,
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    active: Tensor | None = None,
    restitution: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Velocity after an impact, and impulses."""
    fixed = fixed_fields(mech)
    equation = HeldMotion(fixed, held.rows, held.redundant, 0.0, restitution, True)
    state = Kinematics.of(mech, q, qd)
    return solve_motion(equation, state, qd, held.rows.mask(q, active))


def project(
    held: HeldConstraints, mech: Mechanism, q: Tensor, active: Tensor | None = None
) -> Tensor:
    """The configuration after Newton steps to the constraints, in the metric of the mass matrix."""
    numbers, mask = held.rows.numbers(mech), held.rows.mask(q, active)
    least = PROJECTION_TOLERANCE * torch.finfo(compute_dtype(q)).eps

    def step(q: Tensor) -> Tensor:
        found, rows = held.multipliers(Kinematics.of(mech, q), active)
        f = found.compliance_solve((found.mask * rows.residual)[..., None])
        return add_step(mech, q, -found.accelerate(f)[..., 0])

    def is_closed(q: Tensor) -> Tensor:
        residual = mask * held.rows.at(Kinematics.of(mech, q), numbers).residual
        return residual.abs().amax(-1) < least

    start = q.expand(*broadcast_shapes(q.shape[:-1], mask.shape[:-1], mech.batch_shape), -1)
    return iterate(step, start, PROJECTIONS, until=is_closed)


def jacobian(
    held: HeldConstraints, mech: Mechanism, q: Tensor, active: Tensor | None = None
) -> Tensor:
    """The Jacobian of the active rows, `[*batch, rows, num_dof]`."""
    rows = held.rows.at(Kinematics.of(mech, q), held.rows.numbers(mech), at_rest=True)
    return held.rows.mask(q, active)[..., None] * rows.jacobian


def nullspace(
    held: HeldConstraints, mech: Mechanism, q: Tensor, active: Tensor | None = None
) -> Tensor:
    """The projector 1 - M^-1 G* W^+ G, `[*batch, n, n]`."""
    found, _ = held.multipliers(Kinematics.of(mech, q), active)
    G = found.G
    identity = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    return identity - found.accelerate(found.compliance_solve(G))


def constraint_forces(
    held: HeldConstraints,
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    tau: Tensor,
    active: Tensor | None = None,
    f_ext: Tensor | None = None,
) -> Tensor:
    """Forces of the constraints in a given motion."""
    state = Kinematics.of(mech, q, qd)
    found, _ = held.multipliers(state, active)
    moved = algorithms.inverse_dynamics(model_at(state, f_ext), qdd) + passive_forces(state)
    along = matvec(found.G, found.factors.solve(moved - tau))
    f = found.compliance_solve(along[..., None])
    if held.redundant:
        return forces_of(found.norm_solve(f)[..., 0], found.G, found.mask, True)
    return f[..., 0]
