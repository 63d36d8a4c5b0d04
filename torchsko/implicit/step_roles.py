"""Steps that are repeated: what their arguments are, and the step of the derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from torchsko.implicit.jacobians import Flags, Tensors, gradients_of, tangents_of

T = TypeVar("T")


@dataclass(frozen=True)
class Roles:
    """What the ports of a step are, in their order; all further inputs stay from step to step.

    Attributes:
        carry: how many inputs are the state; as many outputs, of the same shapes, are the next one.
        stream: how many inputs after them come anew with each step.
        stacked: how many outputs after the state are kept step by step.
        summed: how many outputs after those are summed over the steps.
    """

    carry: int
    stream: int
    stacked: int
    summed: int


def pulled(
    step: Callable[..., Tensors], roles: Roles, needed: Flags, num_outputs: int, all_states: bool
) -> Callable[..., Tensors]:
    """The step that carries cotangents back, as a function of tensors.

    Args:
        step: of (state, what comes anew, what stays) to (next state, what is stacked, what is summed).
        roles: how many of each.
        needed: which of its inputs after the state want gradients.
        num_outputs: how many tensors it gives.
        all_states: whether every state has a cotangent, not the last alone.

    Returns:
        Of the cotangent of the state after the step; anew: the state before it, what came anew, cotangents
        of that state if all have one, and of what is stacked; what stays, and the cotangent of what is
        summed. Gives the cotangent of the state before, and the gradients of what came anew and stays.
    """
    count = roles.carry
    gradients = gradients_of(step, (True,) * count + needed, num_outputs, False)
    sizes = (count, count, roles.stream, count * all_states, roles.stacked)
    num_stay = len(needed) - roles.stream

    def back(*tensors: Tensor) -> Tensors:
        by, before, streams, marked, stacked, rest = parted(tensors, sizes)
        stay, summed = rest[:num_stay], rest[num_stay:]
        found = gradients(*before, *streams, *stay, *by, *stacked, *summed)
        own = [x + y for x, y in zip(found, marked, strict=False)] or found[:count]
        return (*own, *found[count:])

    return back


def pushed(
    step: Callable[..., Tensors], roles: Roles, given: Flags
) -> tuple[Callable[..., Tensors], Roles]:
    """The step of states with their tangents, as a function of tensors, and the roles of those.

    Args:
        step: of (state, what comes anew, what stays) to (next state, what is stacked, what is summed).
        roles: how many of each.
        given: which of its inputs after the state have tangents.

    Returns:
        Of the tangent of the state, and the state; anew: what came anew, and tangents of the given ones;
        what stays, and tangents of the given ones. Gives the next tangent and state, and the tangents of
        what is stacked and summed. The state comes last: a mark of what is done stays the last of all.
    """
    count = roles.carry
    tangents = tangents_of(step, (True,) * count + given)
    num_given = sum(given[: roles.stream])
    sizes = (count, count, roles.stream, num_given, len(given) - roles.stream)

    def along(*tensors: Tensor) -> Tensors:
        turn, state, streams, moving, stay, changing = parted(tensors, sizes)
        inputs = (*state, *streams, *stay)
        found = tangents(*inputs, *turn, *moving, *changing)
        return (*found[:count], *step(*inputs)[:count], *found[count:])

    return along, Roles(2 * count, roles.stream + num_given, roles.stacked, roles.summed)


def parted(items: Sequence[T], sizes: Sequence[int]) -> tuple[tuple[T, ...], ...]:
    """Parts of these sizes, and the rest."""
    parts, start = [], 0
    for size in sizes:
        parts.append(tuple(items[start : start + size]))
        start += size
    return (*parts, tuple(items[start:]))
