"""The equations of constrained motion, whose solution has implicit derivatives.

The unknowns are the acceleration and the multipliers f of all rows; D is the mask of active rows.

    M qdd + C - tau - G* D f = 0,        D (G qdd + gamma) + (1 - D) f = 0.

Where rows are redundant, f = S z with S = D G G* D + 1 - D and z replaces f as the unknown. Then f stays in
the range of the rows, and derivatives of the multipliers of least norm are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.algorithms.constrained_motion import Multipliers, forces_of, stacked_rows
from torchsko.bridge.assemble import model_at
from torchsko.bridge.kinematics import Kinematics
from torchsko.implicit.equation import implicit
from torchsko.mechanism.loops.placements import Placements
from torchsko.mechanism.loops.row_set import Rows
from torchsko.utils.shapes import matvec
from torchsko.verbs.held.held_rows import HeldRows
from torchsko.verbs.mechanism_inputs import parameters_of, split_mechanism


@dataclass(frozen=True, eq=False)
class HeldMotion:
    """Constrained dynamics; inputs are (*parameters, tree_q, qd, drive, mask, [X, xi], *placements).

    `drive` is the joint force less the passive one, with external forces; with `is_impact` it is the velocity
    before the impact.

    Attributes:
        fixed: the fields of the mechanism that are not parameters.
        rows: the constraints.
        redundant: whether rows are linearly dependent.
        stabilize: rate at which errors of the constraints decay [1/s].
        restitution: with `is_impact`, ratio of normal velocities after and before.
        is_impact: whether the unknowns are the velocity after an impact and the impulses.
    """

    fixed: dict[str, Any]
    rows: HeldRows
    redundant: bool
    stabilize: float = 0.0
    restitution: float = 0.0
    is_impact: bool = False

    def _at(self, inputs: tuple[Tensor, ...]) -> tuple[Any, Tensor, Tensor, Tensor, Tensor]:
        """The model, drive, G, gamma and the mask."""
        mech, (tree_q, qd, drive, mask, *rest) = split_mechanism(self.fixed, inputs)
        placed = Placements(*rest[-3:])
        if self.is_impact:
            mech = mech.replace(gravity=torch.zeros_like(mech.gravity))
        state = Kinematics(mech, tree_q, qd).with_loop_motion(*rest[:-3])
        rows = self.rows.at(state, placed, at_rest=self.is_impact)
        model = model_at(state, at_rest=self.is_impact)
        if self.is_impact:
            bias = self.restitution * matvec(rows.jacobian, drive)
        else:
            bias = stabilized_bias(rows, qd, self.stabilize)
        return model, drive, rows.jacobian, bias, mask

    def solution(self, *inputs: Tensor) -> Tensor:
        """Accelerations and multipliers, by the innovations factorization."""
        model, drive, G, bias, mask = self._at(inputs)
        factors = algorithms.innovations(model)
        found = Multipliers.of(factors, G, mask, self.redundant)
        free = drive if self.is_impact else factors.forward_dynamics(drive)
        error = matvec(found.G, free) + mask * bias
        f = -found.compliance_solve(error[..., None])
        qdd = free[..., None] + found.accelerate(f)
        return stacked_rows(qdd, found.norm_solve(f) if self.redundant else f)[..., 0]

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Equations of motion, then rows."""
        model, drive, G, bias, mask = self._at(inputs)
        n = G.shape[-1]
        qdd, f = x[..., :n], x[..., n:]
        G = mask[..., None] * G
        f = forces_of(f, G, mask, self.redundant)
        moved = algorithms.inverse_dynamics(model, qdd - drive if self.is_impact else qdd)
        moved = moved if self.is_impact else moved - drive
        rows = matvec(G, qdd) + mask * bias + (1 - mask) * f
        return stacked_rows((moved - matvec(G.mT, f))[..., None], rows[..., None])[..., 0]

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """The Jacobian of the residual, or its transpose, solved."""
        model, _, G, _, mask = self._at(inputs)
        found = Multipliers.of(algorithms.innovations(model), G, mask, self.redundant)
        return found.solve(rhs[..., None], transposed=transposed)[..., 0]


def stabilized_bias(rows: Rows, qd: Tensor, rate: float) -> Tensor:
    """Gamma + 2 k G qd + k^2 phi: errors of the constraints decay as (1 + k t) exp(-k t)."""
    assert rows.bias is not None
    if not rate:
        return rows.bias
    return rows.bias + 2 * rate * matvec(rows.jacobian, qd) + rate * rate * rows.residual


def solve_motion(
    equation: HeldMotion, state: Kinematics, drive: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """The motion `[*batch, n]` and the multipliers `[*batch, r]`, with implicit derivatives."""
    mech, numbers = state.mech, equation.rows.numbers(state.mech)
    assert state.qd is not None
    at = (state.tree_q, state.qd, drive, mask, *state.loop_motion)
    x = implicit(equation, *parameters_of(mech), *at, *numbers)
    n = mech.num_dof
    qdd, y = x[..., :n], x[..., n:]
    if not equation.redundant:
        return qdd, y
    G = mask[..., None] * equation.rows.at(state, numbers, at_rest=True).jacobian
    return qdd, forces_of(y, G, mask, True)
