"""The steps of a scan's derivatives, which are scans again; see `torchsko.fused.functions.scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.program.program import Port
from torchsko.implicit.jacobians import Flags, Tensors
from torchsko.implicit.step_roles import Roles, parted, pulled, pushed


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

    def made_of(fn: Callable[..., Tensors]) -> Callable[..., Tensors]:
        return pulled(fn, roles, needed, step.num_outputs, all_states)

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
    count = roles.carry
    own = pushed(step.sample, roles, given)[1]

    def made_of(fn: Callable[..., Tensors]) -> Callable[..., Tensors]:
        return pushed(fn, roles, given)[0]

    state, streams, stay = parted(step.inputs, (count, roles.stream))
    moving = [p for p, flag in zip(streams, given, strict=False) if flag]
    changing = [p for p, flag in zip(stay, given[roles.stream :], strict=True) if flag]
    ports = [*state, *state, *streams, *moving, *stay, *changing]
    outputs = [*state, *step.outputs]
    return _derived(step, roles, made_of, ports, outputs, ("jvp", given)), own


def _derived(
    step: FusedFunction,
    roles: Roles,
    made_of: Callable[[Callable[..., Tensors]], Callable[..., Tensors]],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    kind: tuple[object, ...],
) -> FusedFunction:
    traits = step.traits.derived(inputs, outputs, made_of(step.eager), "scan", kind, roles)
    return FusedFunction(made_of(step.sample), inputs, traits)
