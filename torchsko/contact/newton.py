r"""Newton's method for the accelerations of a mechanism with soft constraints.

The acceleration minimises the strictly convex function

.. math::
    \tfrac12 x^* \mathcal M x - h^* x + s(J x - a_{ref}),

with the mass matrix, the smooth generalised forces h and the cost s of the constraints. Each round solves
with the Hessian :math:`\mathcal M + J^* H J` and searches along the step with Newton's method in one
variable, kept within a bracket of the minimum.

The unknowns are the accelerations and not the constraint forces: models of robots have more candidate rows
(limits, dry friction, pairs of shapes) than dofs.

Reference: E. Todorov, *Convex and analytically-invertible dynamics with contacts and constraints*, ICRA
2014; MuJoCo documentation, "Computation", Newton solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchsko.contact.cost import Rows
from torchsko.implicit.loop import loop
from torchsko.linalg.symmetric import spd_solve
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import matvec

MAX_ROUNDS = 30
"""Largest number of Newton rounds."""

SEARCH_ROUNDS = 4
"""Evaluations of the line search in each round."""


def minimise(M: Tensor, h: Tensor, rows: Rows, start: Tensor, *, scalar: bool) -> Tensor:
    """The minimising acceleration, without derivatives.

    Args:
        M: mass matrix, `[*batch, n, n]`.
        h: smooth generalised forces, `[*batch, n]`.
        rows: constraints.
        start: acceleration to start from, `[*batch, n]`.
        scalar: see `torchsko.linalg.symmetric`.
    """
    tolerance = float(torch.finfo(compute_dtype(h)).eps) ** 0.8
    tensors, rebuild = _flatten(rows)
    batch = torch.broadcast_shapes(M.shape[:-2], h.shape[:-1], rows.reference.shape[:-1])
    start = start.expand(*batch, h.shape[-1])

    def gradient(x: Tensor, M: Tensor, h: Tensor, rows: Rows) -> Tensor:
        g, _, _ = rows.derivatives(matvec(rows.jacobian, x) - rows.reference)
        return matvec(M, x) - h + matvec(rows.jacobian.mT, g)

    def iterate(*state: Tensor) -> Tensor:
        x, M, h, *fields = state
        rows = rebuild(fields)
        jar = matvec(rows.jacobian, x) - rows.reference
        g, diagonal, hessians = rows.derivatives(jar)
        slope = matvec(M, x) - h + matvec(rows.jacobian.mT, g)
        H = M + rows.curvature(diagonal, hessians)
        step = -spd_solve(H, slope[..., None], scalar=scalar)[..., 0]
        return x + _line_search(M, h, rows, x, jar, step)[..., None] * step

    def is_done(*state: Tensor) -> Tensor:
        x, M, h, *fields = state
        size = h.abs().amax(-1) + matvec(M, x).abs().amax(-1)
        return gradient(x, M, h, rebuild(fields)).abs().amax(-1) <= tolerance * size

    return loop(iterate, start, MAX_ROUNDS, (M, h, *tensors), until=is_done)


def _line_search(M: Tensor, h: Tensor, rows: Rows, x: Tensor, jar: Tensor, step: Tensor) -> Tensor:
    """Length of a step that minimises the function along it, `[*batch]`."""
    along = matvec(rows.jacobian, step)
    M_step = matvec(M, step)
    linear = (step * (matvec(M, x) - h)).sum(-1)
    quadratic = (step * M_step).sum(-1)
    length = torch.ones_like(linear)
    low, high = torch.zeros_like(linear), torch.full_like(linear, torch.inf)
    for _ in range(SEARCH_ROUNDS):
        g, diagonal, hessians = rows.derivatives(jar + length[..., None] * along)
        slope = linear + length * quadratic + (g * along).sum(-1)
        curvature = quadratic + rows.second_derivative(diagonal, hessians, along)
        low = torch.where(slope < 0, length, low)
        high = torch.where(slope < 0, high, length)
        newton = length - slope / torch.where(curvature > 0, curvature, 1.0)
        middle = torch.where(
            torch.isinf(high), 2 * low, (low + torch.where(torch.isinf(high), 0.0, high)) / 2
        )
        inside = (newton > low) & (newton < high)
        length = torch.where(slope == 0, length, torch.where(inside, newton, middle))
    return length


def _flatten(rows: Rows) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Rows]]:
    """Tensors of the rows, and a function that rebuilds the rows from tensors."""
    tensors = [rows.jacobian, rows.reference, rows.weight, rows.loss]
    for cone in rows.cones:
        tensors += [cone.weight, cone.mu, cone.friction]

    def rebuild(fields: Sequence[Tensor]) -> Rows:
        jacobian, reference, weight, loss, *rest = fields
        cones = []
        for k, cone in enumerate(rows.cones):
            w, mu, friction = rest[3 * k : 3 * k + 3]
            cones.append(replace(cone, weight=w, mu=mu, friction=friction))
        return Rows(jacobian, reference, weight, loss, tuple(cones))

    return [x.detach() for x in tensors], rebuild
