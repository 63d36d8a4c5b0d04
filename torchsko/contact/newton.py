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


def minimise(
    M: Tensor, h: Tensor, rows: Rows, start: Tensor, coupled: Tensor, *, scalar: bool
) -> Tensor:
    """The minimising acceleration, without derivatives.

    Args:
        M: mass matrix, `[*batch, n, n]`.
        h: smooth generalised forces, `[*batch, n]`.
        rows: constraints.
        start: acceleration to start from, `[*batch, n]`.
        coupled: whether two dofs can have an entry in M, `[n, n]`, bool.
        scalar: see `torchsko.linalg.symmetric`.
    """
    eps = float(torch.finfo(compute_dtype(h)).eps)
    tensors, rebuild = _flatten(rows)
    batch = torch.broadcast_shapes(M.shape[:-2], h.shape[:-1], rows.reference.shape[:-1])
    start = start.expand(*batch, h.shape[-1])

    def iterate(*state: Tensor) -> tuple[Tensor, Tensor]:
        x, _, M, h, *fields = state
        M, rows = torch.where(coupled, M, 0.0), rebuild(fields)
        jar = matvec(rows.jacobian, x) - rows.reference
        g, diagonal, hessians = rows.derivatives(jar)
        slope = matvec(M, x) - h + matvec(rows.jacobian.mT, g)
        H = M + rows.curvature(diagonal, hessians)
        step = -solve_from_leaves(H, slope, scalar=scalar)
        x = x + _line_search(M, h, rows, x, jar, step)[..., None] * step
        return x, step.abs().amax(-1) / x.abs().amax(-1).clamp(min=eps)

    def is_done(*state: Tensor) -> Tensor:
        x, last_step, M, h, *fields = state
        M, rows = torch.where(coupled, M, 0.0), rebuild(fields)
        g, _, _ = rows.derivatives(matvec(rows.jacobian, x) - rows.reference)
        inertial, push = matvec(M, x), matvec(rows.jacobian.mT, g)
        size = torch.maximum(h.abs(), torch.maximum(inertial.abs(), push.abs())).amax(-1)
        error = (inertial - h + push).abs().amax(-1)
        # Rounding bounds the error from below; the square of a small last step bounds it from above.
        return (error <= eps**0.8 * size) | (last_step <= eps**0.5)

    never = torch.ones_like(start[..., 0])
    return loop(iterate, (start, never), MAX_ROUNDS, (M, h, *tensors), until=is_done)[0]


def solve_from_leaves(H: Tensor, rhs: Tensor, *, scalar: bool) -> Tensor:
    """H^-1 rhs, eliminated from the leaves of the tree to its root.

    If every contact has one moving body, H has the zeros of the mass matrix, and the elimination in this
    order fills none of them.

    Args:
        H: symmetric positive definite, `[*batch, n, n]`.
        rhs: `[*batch, n]`.
        scalar: see `torchsko.linalg.symmetric`.

    Reference: R. Featherstone, *Rigid Body Dynamics Algorithms*, Springer 2008, section 6.5.
    """
    if not scalar:
        return spd_solve(H, rhs[..., None], scalar=False)[..., 0]
    reversed_rhs = rhs.flip(-1)[..., None]
    return spd_solve(H.flip(-1, -2), reversed_rhs, scalar=True)[..., 0].flip(-1)


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
        # A loop in a kernel does not know which of its inputs are zero.
        jacobian = torch.where(rows.moving, jacobian, 0.0)
        cones = []
        for k, cone in enumerate(rows.cones):
            w, mu, friction = rest[3 * k : 3 * k + 3]
            cones.append(replace(cone, weight=w, mu=mu, friction=friction))
        return Rows(jacobian, reference, weight, loss, tuple(cones), rows.moving)

    return [x.detach() for x in tensors], rebuild
