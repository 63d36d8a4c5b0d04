r"""Line search along a step of the solver of soft constraints.

Along a line the normal component of a cone is linear in the length of the step, and the squared length of the
others is quadratic. Their coefficients are computed once, so that an evaluation needs few operations.

Reference: MuJoCo documentation, "Computation", Newton solver (exact line search).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.contact.cost import Cones, EllipticCones, Pyramids, SoftRows
from torchsko.implicit.jacobian_products import Tensors
from torchsko.implicit.loop import iterate
from torchsko.implicit.table_loop import Read, Write
from torchsko.utils.shapes import MIN_LENGTH

SEARCH_ROUNDS = 4
"""Evaluations of every line search."""

MAX_SLOPE, MAX_END_SLOPE = 0.5, 100.0
"""Largest slopes at the last length and at the end of the bracket, relative to the slope at the start."""

MAX_BISECTIONS = 60
"""Largest number of further evaluations, where a slope is larger.

Forces of stiff rows, such as those of a cone with friction 1e-5, change by orders of magnitude within such a
bracket, so that a step into it need not decrease the cost.
"""

Derivatives = Callable[[Tensor], tuple[Tensor, Tensor]]
"""First and second derivative, `[*batch]` each, at a length of the step, `[*batch]`."""


class _Bracket(NamedTuple):
    """Lengths around the minimum, `[*batch]` each.

    Attributes:
        length: of the next evaluation.
        low: largest length with a negative slope.
        high: smallest length with another slope; infinite before there is one.
        at_low: slope at the low end, 0 before its first evaluation.
        at_high: slope at the high end, 0 before its first evaluation.
    """

    length: Tensor
    low: Tensor
    high: Tensor
    at_low: Tensor
    at_high: Tensor

    def narrowed(self, slope: Tensor, curvature: Tensor, *, first: bool, secant: bool) -> _Bracket:
        """The bracket after an evaluation; its length is that of Newton's method if it narrows fast."""
        length, low, high, at_low, at_high = self
        low = torch.where(slope < 0, length, low)
        high = torch.where(slope < 0, high, length)
        at_low = torch.where(slope < 0, slope, at_low)
        at_high = torch.where(slope < 0, at_high, slope)
        newton = length - slope / torch.where(curvature > 0, curvature, 1.0)
        is_open = torch.isinf(high)
        middle = torch.where(is_open, 2 * low, (low + torch.where(is_open, 0.0, high)) / 2)
        is_taken = (newton > low) & (newton < high)
        if not first:
            # Where the slope jumps, Newton steps alternate between the ends of the bracket.
            is_taken = is_taken & (2 * (newton - length).abs() < high - low)
        if secant:
            chord = low - (high - low) * at_low / (at_high - at_low)
            middle = torch.where((low > 0) & ~is_open, chord, middle)
        length = torch.where(slope == 0, length, torch.where(is_taken, newton, middle))
        return _Bracket(length, low, high, at_low, at_high)


def step_length(
    rows: SoftRows,
    x: Tensor,
    along: Tensor,
    linear: Tensor,
    quadratic: Tensor,
    start: Tensor,
    is_last: Tensor,
) -> Tensor:
    """Length of a step that minimizes the cost of the rows and a quadratic function, `[*batch]`.

    Args:
        rows: constraints.
        x: J qdd - aref at the start, `[*batch, r]`.
        along: change of x by the whole step, `[*batch, r]`.
        linear: slope of the quadratic function at the start, `[*batch]`.
        quadratic: its second derivative, `[*batch]`.
        start: slope of the sum at the start, `[*batch]`.
        is_last: whether the step is so small that any length will do, `[*batch]`, bool.
    """
    lines = [_scalar_line(rows, x, along)]
    lines += [_cone_line(cone, cone.select(x), cone.select(along)) for cone in rows.cones]

    def derivatives(length: Tensor) -> tuple[Tensor, Tensor]:
        slope, curvature = linear + length * quadratic, quadratic
        for line in lines:
            of_slope, of_curvature = line(length)
            slope, curvature = slope + of_slope, curvature + of_curvature
        return slope, curvature

    zero = torch.zeros_like(linear)
    bracket = _Bracket(zero + 1, zero, torch.full_like(linear, torch.inf), zero, zero)
    slope = zero
    for k in range(SEARCH_ROUNDS):
        slope, curvature = derivatives(bracket.length)
        bracket = bracket.narrowed(slope, curvature, first=k == 0, secant=k > 0)
    if not rows.has_small_friction:
        return bracket.length
    # Rounding changes slopes of the last step.
    start = torch.where(is_last, torch.inf, start.abs())

    def bisect(*tensors: Tensor) -> tuple[Tensor, ...]:
        bracket = _Bracket(*tensors[:5])
        slope, curvature = derivatives(bracket.length)
        return *bracket.narrowed(slope, curvature, first=False, secant=False), slope

    def is_done(*tensors: Tensor) -> Tensor:
        *_, at_high, slope = tensors
        return ~((slope.abs() > MAX_SLOPE * start) | (at_high > MAX_END_SLOPE * start))

    return iterate(bisect, (*bracket, slope), MAX_BISECTIONS, until=is_done)[0]


def _scalar_line(rows: SoftRows, x: Tensor, along: Tensor) -> Derivatives:
    """Derivatives of the costs of dry friction and unilateral rows."""
    num_loss, num_scalar = rows.loss.shape[-1], rows.weight.shape[-1]
    x, along = x[..., :num_scalar], along[..., :num_scalar]
    force, rate = rows.weight * x, rows.weight * along
    curvature = rate * along
    bound = rows.loss.expand_as(force[..., :num_loss])

    def derivatives(length: Tensor) -> tuple[Tensor, Tensor]:
        at = force + length[..., None] * rate
        loss, sided = at[..., :num_loss], at[..., num_loss:]
        loss_slope = torch.minimum(torch.maximum(loss, -bound), bound)
        sided_slope = torch.where(sided < 0, sided, 0.0)
        slope = torch.cat([loss_slope, sided_slope], -1) * along
        is_quadratic = torch.cat([loss.abs() < bound, sided < 0], -1)
        return slope.sum(-1), torch.where(is_quadratic, curvature, 0.0).sum(-1)

    return derivatives


def _cone_line(cone: Cones, x: Tensor, along: Tensor) -> Derivatives:
    """Derivatives of the costs of cones; x and its change are `[*batch, C, size]`."""
    of_rows = _pyramid_line if isinstance(cone, Pyramids) else _elliptic_line
    coefficients, dims = of_rows(cone, x, along)
    reads = [Read(y, dim, is_sparse=True) for y, dim in zip(coefficients, dims, strict=True)]
    slopes = _pyramid_slope if isinstance(cone, Pyramids) else _elliptic_slope

    def derivatives(length: Tensor) -> tuple[Tensor, Tensor]:
        a = length[..., None]
        total = Write(-1, is_total=True)
        slope, curvature = cone.by_cone(partial(slopes, a), reads, [total, total])
        return slope, curvature

    return derivatives


def _pyramid_line(cone: Cones, x: Tensor, along: Tensor) -> tuple[Tensors, Sequence[int]]:
    """Motion along the edges, its rate, and forces and stiffness of the rate, `[*batch, C, edges]`."""

    def of_rows(cone: Pyramids, x: Tensor, along: Tensor) -> Tensors:
        edges, rate = cone.edges(x), cone.edges(along)
        pull = cone.weight[..., None] * rate
        return edges, rate, pull, pull * rate

    reads = [Read(x, -2), Read(along, -2)]
    return cone.by_cone(of_rows, reads, [Write(-2, is_sparse=True)] * 4), (-2,) * 4


def _pyramid_slope(
    a: Tensor, cone: Pyramids, edges: Tensor, rate: Tensor, pull: Tensor, curvature: Tensor
) -> Tensors:
    """Derivatives of the costs of pyramids, `[*batch, C]`, at lengths `[*batch, 1]`."""
    at = edges + a[..., None] * rate
    bend = torch.where(at < 0, curvature, 0.0)
    return (at.clamp(max=0.0) * pull).sum(-1), bend.sum(-1)


def _elliptic_line(cone: Cones, x: Tensor, along: Tensor) -> tuple[Tensors, Sequence[int]]:
    """Coefficients of the normal motion, of squares of the sliding, and of sticking, `[*batch, C]` each."""

    def of_rows(cone: EllipticCones, x: Tensor, along: Tensor) -> Tensors:
        u, v = cone.scale * x, cone.scale * along
        start, speed = u[..., 0], v[..., 0]
        u, v = u[..., 1:], v[..., 1:]
        square, mixed, square_rate = (u * u).sum(-1), (u * v).sum(-1), (v * v).sum(-1)
        pull = cone.weight * along
        stick, stick_rate = (pull * x).sum(-1), (pull * along).sum(-1)
        return start, speed, square, mixed, square_rate, stick, stick_rate

    reads = [Read(x, -2), Read(along, -2)]
    return cone.by_cone(of_rows, reads, [Write(-1, is_sparse=True)] * 7), (-1,) * 7


def _elliptic_slope(
    a: Tensor,
    cone: EllipticCones,
    start: Tensor,
    speed: Tensor,
    square: Tensor,
    mixed: Tensor,
    square_rate: Tensor,
    stick: Tensor,
    stick_rate: Tensor,
) -> Tensors:
    """Derivatives of the costs of elliptic cones, `[*batch, C]`, at lengths `[*batch, 1]`."""
    mu = cone.mu
    normal, half = start + a * speed, mixed + a * square_rate
    squared_T = square + a * (mixed + half)
    slides = squared_T > MIN_LENGTH**2
    inverse = 1 / torch.where(slides, squared_T, 1.0).sqrt()
    T, rate = torch.where(slides, squared_T * inverse, 0.0), half * inverse
    polar, dual = mu * normal + T <= 0, normal >= mu * T
    change = speed - mu * rate
    push = cone.stiffness * (normal - mu * T)
    turn = mu * push * inverse * (square_rate - rate * rate)
    bend = cone.stiffness * change * change - turn
    slope = torch.where(polar, stick + a * stick_rate, torch.where(dual, 0.0, push * change))
    return slope, torch.where(polar, stick_rate, torch.where(dual, 0.0, bend))
