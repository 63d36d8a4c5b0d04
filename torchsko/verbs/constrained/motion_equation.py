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
from torchsko.mechanism.loops.constraint_rows import Placements
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.constrained.hold import ConstraintRows
from torchsko.verbs.mechanism_inputs import parameters_of, split_mechanism


@dataclass(frozen=True, eq=False)
class ConstrainedMotion:
    """Constrained dynamics; inputs are (*parameters, q, qd, drive, mask, rotation, position, numbers).

    `drive` is the joint force less the passive one, and with `is_impact` the velocity before the impact.

    Attributes:
        fixed: the fields of the mechanism that are not parameters.
        rows: the constraints.
        redundant: whether rows are linearly dependent.
        stabilise: rate at which errors of the constraints decay [1/s].
        restitution: with `is_impact`, ratio of normal velocities after and before.
        is_impact: whether the unknowns are the velocity after an impact and the impulses.
    """

    fixed: dict[str, Any]
    rows: ConstraintRows
    redundant: bool
    stabilise: float = 0.0
    restitution: float = 0.0
    is_impact: bool = False

    def _split(self, inputs: tuple[Tensor, ...]) -> tuple[Mechanism, tuple[Tensor, ...]]:
        return split_mechanism(self.fixed, inputs)

    def _at(self, inputs: tuple[Tensor, ...]) -> tuple[Any, Tensor, Tensor, Tensor, Tensor]:
        """The model, drive, G, gamma and the mask."""
        mech, (q, qd, drive, mask, *numbers) = self._split(inputs)
        placed = Placements(*numbers)
        if self.is_impact:
            model = model_at(Kinematics.of(mech.replace(gravity=torch.zeros_like(mech.gravity)), q))
            rows = self.rows.at(mech, q, None, placed)
            bias = self.restitution * matvec(rows.jacobian, drive)
            return model, drive, rows.jacobian, bias, mask
        rows = self.rows.at(mech, q, qd, placed)
        bias = stabilised_bias(rows.residual, rows.jacobian, rows.bias, qd, self.stabilise)
        return model_at(Kinematics.of(mech, q, qd)), drive, rows.jacobian, bias, mask

    def solution(self, *inputs: Tensor) -> Tensor:
        """Accelerations and multipliers, by the innovations factorisation."""
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


def stabilised_bias(
    residual: Tensor, jacobian: Tensor, bias: Tensor | None, qd: Tensor, rate: float
) -> Tensor:
    """Gamma + 2 k G qd + k^2 phi: errors of the constraints decay as (1 + k t) exp(-k t)."""
    assert bias is not None
    return bias + 2 * rate * matvec(jacobian, qd) + rate * rate * residual if rate else bias


def solve_motion(
    equation: ConstrainedMotion, mech: Mechanism, q: Tensor, qd: Tensor, drive: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """The motion `[*batch, n]` and the multipliers `[*batch, r]`, with implicit derivatives."""
    numbers = equation.rows.numbers(mech)
    x = implicit(equation, *parameters_of(mech), q, qd, drive, mask, *numbers)
    n = mech.num_dof
    qdd, y = x[..., :n], x[..., n:]
    if not equation.redundant:
        return qdd, y
    G = mask[..., None] * equation.rows.at(mech, q, None, numbers).jacobian
    return qdd, forces_of(y, G, mask, True)
