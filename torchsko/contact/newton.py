r"""Newton's method for the accelerations of a mechanism with soft constraints.

The acceleration minimizes the strictly convex function

.. math::
    \tfrac12 x^* \mathcal M x - h^* x + s(J x - a_{ref}),

with the mass matrix, the smooth generalized forces h and the cost s of the constraints. Each round solves
with the Hessian :math:`\mathcal M + J^* H J` and searches along the step with Newton's method in one
variable, kept within a bracket of the minimum.

The unknowns are the accelerations and not the constraint forces: models of robots have more candidate rows
(limits, dry friction, pairs of shapes) than dofs.

Reference: E. Todorov, *Convex and analytically-invertible dynamics with contacts and constraints*, ICRA
2014; MuJoCo documentation, "Computation", Newton solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from torchsko.contact.cost import SoftRows
from torchsko.contact.line_search import step_length
from torchsko.implicit.loop import iterate
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.linalg.symmetric import mirror_upper, spd_solve
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import broadcast_shapes, matvec
from torchsko.utils.traced_tensor import mark_regular

MAX_ROUNDS = 40
"""Largest number of Newton rounds."""

MAX_START = 1e3
"""Largest inertial force at the start over the smooth forces; otherwise the iteration starts at rest."""

MAX_SCALAR_ROWS = 40
"""Rows up to which a kernel eliminates by scalar operations, which use the zeros of the tree."""


def minimize(
    M: Tensor, h: Tensor, rows: SoftRows, start: Tensor, coupled: Tensor
) -> tuple[Tensor, Tensor]:
    """The minimizing acceleration and the gradient there, without derivatives.

    A sample whose error is not a number stops at once.

    Args:
        M: mass matrix, `[*batch, n, n]`.
        h: smooth generalized forces, `[*batch, n]`.
        rows: constraints.
        start: acceleration to start from, `[*batch, n]`; rest where that is huge.
        coupled: whether two dofs can have an entry in M, `[n, n]`, bool.
    """
    eps = float(torch.finfo(compute_dtype(h)).eps)
    least = eps**1.75
    tensors, rebuild = _flatten(rows)
    batch = broadcast_shapes(M.shape[:-2], h.shape[:-1], rows.reference.shape[:-1])
    h_square = _square(h)

    def evaluate(
        rows: SoftRows, h_square: Tensor, jar: Tensor, inertial: Tensor
    ) -> tuple[Tensor, ...]:
        """The gradient, and its square relative to that of the forces."""
        push = rows.generalized_forces(rows.derivatives(jar)[0])
        gradient = inertial + push
        size = h_square + _square(inertial) + _square(push)
        return gradient, _square(gradient) / torch.where(size > 0, size, 1.0)

    def newton_round(*state: Tensor) -> tuple[Tensor, ...]:
        change, inertial, gradient, _, _, M, h_square, origin, less, *fields = state
        M, rows = torch.where(coupled, M, 0.0), rebuild(fields)
        jar = rows.motion(change, less)
        _, diagonal, hessians = rows.derivatives(jar)
        H = M + rows.curvature(diagonal, hessians)
        step = -solve_from_leaves(H, gradient)
        along, M_step = rows.motion(step), matvec(M, step)
        linear, quadratic = (step * inertial).sum(-1), (step * M_step).sum(-1)
        size = _square(origin + change)
        start, is_last = (step * gradient).sum(-1), ~(_square(step) > least * size)
        length = step_length(rows, jar, along, linear, quadratic, start, is_last)[..., None]
        change, inertial = change + length * step, inertial + length * M_step
        gradient, error = evaluate(rows, h_square, rows.advance(jar, length, along), inertial)
        moved = _square(step) / _square(origin + change).clamp(min=eps * eps)
        return change, inertial, gradient, error, moved

    def is_done(*state: Tensor) -> Tensor:
        _, _, _, error, moved, *_ = state
        # Rounding bounds the error from below; the square of a small last step bounds it from above. In
        # float32 a weaker bound (eps^1.8) leaves errors above 1e-5 in three times as many states.
        # Stiff rows change much in a small step, but not in one of the size of rounding errors.
        goes_on = (moved > eps) | (error > eps**0.5)
        return ~((error > eps**1.9) & goes_on & (moved > least))

    x, M_x = _usable(start.expand(*batch, h.shape[-1]), matvec(M, start), h)
    jar, inertial = rows.motion(x, rows.reference), M_x - h
    gradient, error = evaluate(rows, h_square, jar, inertial)
    # The rounds carry the change of x. A kernel computes the few active rows of J from it, which takes less
    # time than to carry all rows.
    carry = (torch.zeros_like(x), inertial, gradient, error, torch.ones_like(error))
    args = (M, h_square, x, -jar.expand(*batch, jar.shape[-1]), *tensors)
    change, _, gradient, *_ = iterate(newton_round, carry, MAX_ROUNDS, args, until=is_done)
    return x + change, gradient


def _usable(x: Tensor, M_x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The acceleration to start from and M times it; zeros where it is huge or not finite.

    No Newton step leads back from a start that is huge, as after an impact, or not finite.
    """
    is_usable = (_square(M_x) <= MAX_START**2 * _square(h))[..., None]
    return torch.where(is_usable, x, 0.0), torch.where(is_usable, M_x, 0.0)


def _square(x: Tensor) -> Tensor:
    """Squared length of vectors, `[*batch, n]` to `[*batch]`."""
    return (x * x).sum(-1)


def solve_from_leaves(H: Tensor, rhs: Tensor) -> Tensor:
    """H^-1 rhs, eliminated from the leaves of the tree to its root.

    If every contact has one moving body, H has the zeros of the mass matrix, and the elimination in this
    order fills none of them.

    Args:
        H: symmetric positive definite, `[*batch, n, n]`.
        rhs: `[*batch, n]`.

    Reference: R. Featherstone, *Rigid Body Dynamics Algorithms*, Springer 2008, section 6.5.
    """
    n = rhs.shape[-1]
    if not is_scalar_form() or n > MAX_SCALAR_ROWS:
        reversed_rhs = rhs.flip(-1)[..., None]
        return spd_solve(H.flip(-1, -2), reversed_rhs)[..., 0].flip(-1)
    shares, columns = [], []
    for i in reversed(range(n)):
        pivot, row = H[..., i, i], H[..., i, :i]
        mark_regular(pivot)
        column, last = row / pivot[..., None], rhs[..., i]
        columns.append(column)
        shares.append(last / pivot)
        H = mirror_upper(H[..., :i, :i] - row[..., :, None] * column[..., None, :])
        rhs = rhs[..., :i] - column * last[..., None]
    x = rhs
    for share, column in zip(reversed(shares), reversed(columns), strict=True):
        x = torch.cat([x, (share - (column * x).sum(-1))[..., None]], -1)
    return x


def _flatten(rows: SoftRows) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], SoftRows]]:
    """Tensors of the rows that the rounds read, and a function that rebuilds the rows from them."""
    parts = (rows.bodies, *rows.cones, *rows.placements)
    names = [[f.name for f in fields(x) if isinstance(getattr(x, f.name), Tensor)] for x in parts]
    tensors = [rows.jacobian, rows.weight, rows.loss]
    tensors += [
        getattr(x, name) for x, of_part in zip(parts, names, strict=True) for name in of_part
    ]

    def rebuild(found: Sequence[Tensor]) -> SoftRows:
        jacobian, weight, loss, *rest = found
        # A loop in a kernel does not know which of its inputs are zero.
        jacobian = torch.where(rows.moving[: jacobian.shape[-2]], jacobian, 0.0)
        remaining = iter(rest)
        changed: list[Any] = [
            replace(x, **{name: next(remaining) for name in of_part})
            for x, of_part in zip(parts, names, strict=True)
        ]
        num = 1 + len(rows.cones)
        return replace(
            rows,
            jacobian=jacobian,
            weight=weight,
            loss=loss,
            bodies=changed[0],
            cones=tuple(changed[1:num]),
            placements=tuple(x.with_zeros_shown() for x in changed[num:]),
        )

    return [x.detach() for x in tensors], rebuild
