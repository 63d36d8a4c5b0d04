"""Steps of the derivatives of a scan, which are scans too; see `torchsko.fused.functions.scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchsko.fused.functions.diverged_samples import ZeroWithoutCotangent
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import at_stored_solutions
from torchsko.implicit.jacobian_products import Flags, Tensors
from torchsko.implicit.loop_roles import LoopRoles, jvp_body, split_by_sizes, vjp_body


def vjp_step(
    step: FusedFunction, roles: LoopRoles, needed: Flags, all_states: bool, at_solutions: bool
) -> tuple[FusedFunction, LoopRoles]:
    """The step that propagates cotangents backward, and the roles of its ports.

    Args:
        step: the step of the scan.
        roles: roles of its ports.
        needed: flags the streamed and invariant inputs whose gradients are computed.
        all_states: whether every state has a cotangent, not only the last.
        at_solutions: whether the stored solutions of the step are streamed inputs, after all others.
    """
    count, solutions = roles.carry, step.solutions if at_solutions else ()

    def derived(fn: Callable[..., Tensors]) -> Callable[..., Tensors]:
        body = vjp_body(fn, roles, needed, step.num_outputs, all_states, drop)
        if not at_solutions:
            return body
        return at_stored_solutions(body, step.program.stored, len(variable) - len(solutions))

    state, streamed, invariant = split_by_sizes(step.inputs, (count, roles.stream))
    _, stacked, summed = split_by_sizes(step.outputs, (count, roles.stacked))
    variable = [*state, *state, *streamed, *(state if all_states else ()), *stacked, *solutions]
    wanted = [p for p, flag in zip((*streamed, *invariant), needed, strict=True) if flag]
    drop = ZeroWithoutCotangent(step.outputs, (*state, *wanted))
    num_streamed = sum(needed[: roles.stream])
    kind = ("vjp", needed, all_states, at_solutions)
    ports = [*variable, *invariant, *summed]
    function = _derived_step(step, roles, derived, ports, [*state, *wanted], kind)
    num_summed = len(wanted) - num_streamed
    return function, LoopRoles(count, len(variable) - count, num_streamed, num_summed)


def jvp_step(
    step: FusedFunction, roles: LoopRoles, moving: Flags
) -> tuple[FusedFunction, LoopRoles]:
    """The step of states and their tangents, and the roles of its ports.

    Args:
        step: the step of the scan.
        roles: roles of its ports.
        moving: flags the streamed and invariant inputs that have tangents.
    """

    def derived(fn: Callable[..., Tensors]) -> Callable[..., Tensors]:
        return jvp_body(fn, roles, moving)[0]

    state, streamed, invariant = split_by_sizes(step.inputs, (roles.carry, roles.stream))
    streamed_tangents = [p for p, flag in zip(streamed, moving, strict=False) if flag]
    flags = moving[roles.stream :]
    invariant_tangents = [p for p, flag in zip(invariant, flags, strict=True) if flag]
    variable = [*state, *state, *streamed, *streamed_tangents]
    ports = [*variable, *invariant, *invariant_tangents]
    outputs = [*state, *step.outputs]
    function = _derived_step(step, roles, derived, ports, outputs, ("jvp", moving))
    return function, jvp_body(step.sample, roles, moving)[1]


def _derived_step(
    step: FusedFunction,
    roles: LoopRoles,
    derived: Callable[[Callable[..., Tensors]], Callable[..., Tensors]],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    kind: tuple[object, ...],
) -> FusedFunction:
    traits = step.traits.derived(inputs, outputs, derived(step.eager), "scan", kind, roles)
    function = FusedFunction(derived(step.sample), inputs, traits)
    step.derived.add(function)
    return function
