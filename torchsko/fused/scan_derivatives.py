"""The steps of a scan's derivatives, which are scans again; see `torchsko.fused.scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from torchsko.fused.cpp import Roles
from torchsko.fused.derivatives import Flags, Tensors, gradients_of, tangents_of
from torchsko.fused.program import Port
from torchsko.fused.register import FusedFunction, expanded
from torchsko.fused.saved import digest

T = TypeVar("T")


def pulled_step(
    step: FusedFunction, roles: Roles, needed: Flags, all_states: bool
) -> tuple[FusedFunction, Roles]:
    """The step that carries cotangents back, and the roles of its ports.

    Args:
        step: the step.
        roles: of its ports.
        needed: which of its inputs after the state want gradients.
        all_states: whether every state has a cotangent, not the last alone.
    """
    count = roles.carry
    flags = (True,) * count + needed
    num_inputs, num_outputs = len(step.inputs), step.num_outputs
    # Cotangent of the state; state, stream, cotangents of all states, of what is stacked; the rest is
    # what stays, and the cotangent of what is summed.
    sizes = (count, count, roles.stream, count * all_states, roles.stacked)

    def made_of(fn: Callable[..., Tensors]) -> Callable[..., Tensors]:
        gradients = gradients_of(fn, flags, num_outputs, False)

        def back(*tensors: Tensor) -> Tensors:
            by, before, streams, marked, stacked, rest = parted(tensors, sizes)
            stay = rest[: num_inputs - count - roles.stream]
            summed = rest[len(stay) :]
            found = gradients(*before, *streams, *stay, *by, *stacked, *summed)
            own = [x + y for x, y in zip(found, marked, strict=False)] or found[:count]
            return (*own, *found[count:])

        return back

    state, streams, stay = parted(step.inputs, (count, roles.stream))
    _, stacked, summed = parted(step.outputs, (count, roles.stacked))
    ports = [*state, *state, *streams, *(state if all_states else ()), *stacked, *stay, *summed]
    wanted = [port for port, flag in zip((*streams, *stay), needed, strict=True) if flag]
    num_streams = sum(needed[: roles.stream])
    function = _derived(step, roles, made_of, ports, [*state, *wanted], ("vjp", needed, all_states))
    own = Roles(
        count,
        count + roles.stream + count * all_states + roles.stacked,
        num_streams,
        len(wanted) - num_streams,
    )
    return function, own


def pushed_step(step: FusedFunction, roles: Roles, given: Flags) -> tuple[FusedFunction, Roles]:
    """The step of states with their tangents, and the roles of its ports.

    Args:
        step: the step.
        roles: of its ports.
        given: which of its inputs after the state have tangents.
    """
    count, flags = roles.carry, (True,) * roles.carry + given
    num_given = sum(given[: roles.stream])
    num_stay = len(step.inputs) - count - roles.stream

    def made_of(fn: Callable[..., Tensors]) -> Callable[..., Tensors]:
        tangents = tangents_of(fn, flags)

        def along(*tensors: Tensor) -> Tensors:
            sizes = (count, count, roles.stream, num_given, num_stay)
            state, turn, streams, moving, stay, changing = parted(tensors, sizes)
            inputs = (*state, *streams, *stay)
            found = tangents(*inputs, *turn, *moving, *changing)
            return (*fn(*inputs)[:count], *found)

        return along

    state, streams, stay = parted(step.inputs, (count, roles.stream))
    moving = [p for p, flag in zip(streams, given, strict=False) if flag]
    changing = [p for p, flag in zip(stay, given[roles.stream :], strict=True) if flag]
    ports = [*state, *state, *streams, *moving, *stay, *changing]
    outputs = [*state, *step.outputs]
    function = _derived(step, roles, made_of, ports, outputs, ("jvp", given))
    own = Roles(2 * count, roles.stream + len(moving), roles.stacked, roles.summed)
    return function, own


def _derived(
    step: FusedFunction,
    roles: Roles,
    made_of: Callable[[Callable[..., Tensors]], Callable[..., Tensors]],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    kind: tuple[object, ...],
) -> FusedFunction:
    batched = made_of(step.eager)
    return FusedFunction(
        made_of(step.sample),
        inputs,
        num_outputs=len(outputs),
        order=step.order - 1,
        batched=lambda *tensors: batched(*expanded(inputs, tensors)),
        outputs=outputs,
        identity=step.identity and digest(step.identity, "scan", kind, roles),
        around=step.around,
    )


def parted(items: Sequence[T], sizes: Sequence[int]) -> tuple[tuple[T, ...], ...]:
    """Parts of these sizes, and the rest."""
    parts, start = [], 0
    for size in sizes:
        parts.append(tuple(items[start : start + size]))
        start += size
    return (*parts, tuple(items[start:]))
