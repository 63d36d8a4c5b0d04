"""Roles of the inputs and outputs of a loop body, and the bodies of its derivatives.

The terms are those of a scan, as in JAX. One *iteration* evaluates the *body*:

* the *carry* is the state, passed from one iteration to the next;
* *streamed* inputs are series, of which each iteration reads its entry;
* *invariant* inputs are the same in each iteration;
* *stacked* outputs form series, one entry for each iteration;
* *summed* outputs are summed over all iterations.

Inputs are ordered (carry, streamed, invariant), outputs (next carry, stacked, summed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from torchsko.implicit.jacobian_products import Flags, Tensors, jvp_of, vjp_of

T = TypeVar("T")


@dataclass(frozen=True)
class LoopRoles:
    """Numbers of inputs and outputs of a loop body by their role; all remaining inputs are invariant.

    Attributes:
        carry: number of carried inputs, and of carried outputs of the same shapes.
        stream: number of streamed inputs.
        stacked: number of stacked outputs.
        summed: number of summed outputs.
    """

    carry: int
    stream: int
    stacked: int
    summed: int


def vjp_body(
    body: Callable[..., Tensors],
    roles: LoopRoles,
    needed: Flags,
    num_outputs: int,
    all_carries: bool,
    finish: Callable[[Tensors, Tensors], Tensors] = lambda gradients, cotangents: gradients,
) -> Callable[..., Tensors]:
    """The body of the loop that propagates cotangents from the last iteration to the first.

    Args:
        body: the body of the forward loop.
        roles: its roles.
        needed: flags the streamed and invariant inputs whose gradients are computed.
        num_outputs: number of outputs of ``body``.
        all_carries: whether the carry of every iteration has a cotangent, not only the last.
        finish: maps the gradients of an iteration, and its cotangents, to the gradients that are used.

    Returns:
        A function with the carry: cotangent of the carry after the iteration; streamed: carry
        before the iteration, streamed inputs, cotangents of that carry if ``all_carries``,
        cotangents of stacked outputs; invariant: invariant inputs, cotangents of summed outputs. It
        returns the cotangent of the carry before the iteration and the needed gradients.
    """
    count = roles.carry
    gradients = vjp_of(body, (True,) * count + needed, num_outputs, False)
    sizes = (count, count, roles.stream, count * all_carries, roles.stacked)
    num_invariant = len(needed) - roles.stream

    def backward(*tensors: Tensor) -> Tensors:
        cotangent, carry, streamed, carry_cotangent, stacked, rest = split_by_sizes(tensors, sizes)
        invariant, summed = rest[:num_invariant], rest[num_invariant:]
        cotangents = (*cotangent, *stacked, *summed)
        found = finish(tuple(gradients(*carry, *streamed, *invariant, *cotangents)), cotangents)
        total = [x + y for x, y in zip(found, carry_cotangent, strict=False)] or found[:count]
        return (*total, *found[count:])

    return backward


def jvp_body(
    body: Callable[..., Tensors], roles: LoopRoles, moving: Flags
) -> tuple[Callable[..., Tensors], LoopRoles]:
    """The body of the loop of carries and their tangents, and its roles.

    Args:
        body: the body of the forward loop.
        roles: its roles.
        moving: flags the streamed and invariant inputs that have tangents.

    Returns:
        A function with the carry: tangent of the carry, carry; streamed: streamed inputs, their
        tangents; invariant: invariant inputs, their tangents. It returns the next tangent, the next
        carry, and the tangents of stacked and summed outputs. The carry comes after its tangent, so
        that a flag for early termination remains the last.
    """
    count = roles.carry
    tangents = jvp_of(body, (True,) * count + moving)
    num_moving = sum(moving[: roles.stream])
    sizes = (count, count, roles.stream, num_moving, len(moving) - roles.stream)

    def forward(*tensors: Tensor) -> Tensors:
        tangent, carry, streamed, streamed_tangents, invariant, invariant_tangents = split_by_sizes(
            tensors, sizes
        )
        inputs = (*carry, *streamed, *invariant)
        found = tangents(*inputs, *tangent, *streamed_tangents, *invariant_tangents)
        return (*found[:count], *body(*inputs)[:count], *found[count:])

    return forward, LoopRoles(2 * count, roles.stream + num_moving, roles.stacked, roles.summed)


def split_by_sizes(items: Sequence[T], sizes: Sequence[int]) -> tuple[tuple[T, ...], ...]:
    """Consecutive parts of the given sizes, and the remaining items."""
    parts, start = [], 0
    for size in sizes:
        parts.append(tuple(items[start : start + size]))
        start += size
    return (*parts, tuple(items[start:]))
