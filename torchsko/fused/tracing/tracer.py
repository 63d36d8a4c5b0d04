"""Tracing: run a function of tensors once on symbolic tensors and record its scalar program.

The function is ordinary eager code for one sample. Its PyTorch operations, torch.func transforms
and calls of torch.autograd.grad act on symbolic tensors (`torchsko.fused.tracing.symbolic`).
Captured tensors become exact constants.

PyTorch differentiates before expressions are simplified. A value that an inner derivative must hold fixed is
marked as in eager code: it is computed outside of the differentiated function, or detached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, unwrap_if_dead
from torch.overrides import _get_current_function_mode_stack

from torchsko.errors import FusedError
from torchsko.fused.program.elementwise import flat_list, input_ids
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.lower import lower
from torchsko.fused.program.program import Port, Program
from torchsko.fused.program.prune import prune
from torchsko.fused.tracing.clean import is_wrapped
from torchsko.fused.tracing.object_graph import ObjectGraph
from torchsko.fused.tracing.swap import Swap, innermost
from torchsko.fused.tracing.symbolic import Symbolic, lift
from torchsko.fused.tracing.traced_loops import Bodies, TracedGraph, traced_loop
from torchsko.fused.tracing.traced_tables import traced_table_loop
from torchsko.implicit.table_loop import TableLoop
from torchsko.implicit.tensor_loop import TensorLoop
from torchsko.linalg.scalar_form import scalar_form

Arguments = Callable[[Graph], Sequence[Tensor]]
"""Makes the expressions of a function's arguments in the graph of its program."""


def trace(
    fn: Callable[..., Any],
    inputs: Sequence[Port],
    dtype: torch.dtype = torch.float64,
    arguments: Arguments | None = None,
    *,
    stores: bool = False,
    bodies: Bodies | None = None,
) -> Program:
    """Trace a function of tensors for one sample; returns its simplified scalar program.

    Args:
        fn: a function of one float64 tensor per port, of the port's shape (no batch dimension);
            returns a tensor or a nested tuple or list of tensors.
        inputs: the input ports, in the order of the arguments.
        dtype: the dtype of the kernel, for functions whose tolerances depend on it
            (`torchsko.utils.dtype.compute_dtype`).
        arguments: makes the arguments from inputs and constants of the graph; by default one for each port.
        stores: whether solutions are further outputs: those of solvers, of a loop body all of them; see
            `torchsko.fused.tracing.stored_solutions`.
        bodies: loop bodies of earlier traces, to which those of this trace are added.

    Returns:
        A program with these inputs and one output port for each returned tensor and each stored solution.

    Raises:
        FusedError: an operation has no rule, a branch or an index depends on traced values, or a
            result is not a tensor.

    Example:
        >>> import torch
        >>> def kinetic_energy(v):
        ...     return 0.5 * 3.0 * (v * v).sum()
        >>> program = trace(torch.func.grad(kinetic_energy), [Port("v", (2,))])
        >>> [instr.op for instr in program.code]
        ['const', 'input', 'mul', 'input', 'mul']
    """
    graph = _TracedGraph(dtype)
    graph.bodies = {} if bodies is None else bodies
    is_body = arguments is not None
    args = arguments(graph) if is_body else input_ids(graph, inputs)
    outputs: list[int] = []
    ports: list[Port] = []
    with scalar_form():
        results = fn(*(Symbolic(graph, ids) for ids in args))
    for name, result in _named_tensors("out", results):
        ports.append(Port(name, tuple(result.shape)))
        outputs.extend(flat_list(lift(graph, result)))
    found = graph.solutions.found if stores else {}
    # Kernels write their results to memory; loops keep them in the cache.
    solutions = {k: x for k, x in found.items() if is_body or k in graph.solutions.iterated}
    for key, ids in solutions.items():
        ports.append(Port("_".join(["solution", *map(str, key)]), tuple(ids.shape)))
        outputs.extend(flat_list(ids))
    program = replace(lower(graph, outputs, inputs, ports), stored=tuple(solutions))
    return program if is_body else prune(program)


class _TracedGraph(TracedGraph):
    """The graph of a traced function; `trace` traces the bodies of its loops."""

    def convert_closure(self, body: Callable[..., Any]) -> tuple[Callable[..., Any], list[Tensor]]:
        return _convert_captures(body)

    def trace_loop(self, loop: TensorLoop, tensors: Sequence[Tensor]) -> list[Tensor]:
        return traced_loop(_trace_body, self, loop, tensors)

    def trace_table_loop(self, loop: TableLoop, tensors: Sequence[Tensor]) -> list[Tensor]:
        return traced_table_loop(_trace_body, self, loop, tensors)


def _trace_body(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Program:
    """The program of a loop body, which is traced outside of the transforms that are active."""
    with _unwrapped_constants(body):
        return trace(body, *args, **kwargs)


def _unwrapped_constants(fn: Callable[..., Any]) -> AbstractContextManager:
    """A mode that replaces wrapped tensors by their values, for a function outside of the transforms."""
    wrapped = [x for x in ObjectGraph(fn).tensors() if is_wrapped(x)]
    return Swap(wrapped, [_value(x) for x in wrapped]) if wrapped else nullcontext()


def _value(x: Tensor) -> Tensor:
    """A tensor without wrappers of derivatives and of transforms that have ended."""
    inner = unwrap_if_dead(x)
    if inner is x and is_functorch_wrapped_tensor(x):
        inner = get_unwrapped(x)
    return x if inner is x else _value(inner)


def _convert_captures(body: Callable[..., Any]) -> tuple[Callable[..., Any], list[Tensor]]:
    """Convert captured tensors of a loop body to additional arguments.

    The body is traced below all transforms of torch.func or, in a backward pass, after they have ended.
    Tensors become arguments if they belong to the enclosing trace, are inputs of the kernel, or are numbers
    or conditions that a transform wraps. All others are constants, among them indices.

    Returns:
        A function that takes them as its last arguments, and the tensors.
    """
    swaps = [x for x in _get_current_function_mode_stack() if isinstance(x, Swap)]
    tensors = [
        x
        for x in ObjectGraph(body).tensors()
        if isinstance(x, Symbolic)
        or (is_wrapped(x) and (x.is_floating_point() or x.dtype == torch.bool))
        or any(isinstance(innermost(swap.replacement(x)), Symbolic) for swap in swaps)
    ]
    if not tensors:
        return body, []

    def converted(*arguments: Tensor) -> Any:
        count = len(arguments) - len(tensors)
        with Swap(tensors, arguments[count:]):
            return body(*arguments[:count])

    return converted, tensors


def at_stored_solutions(
    fn: Callable[..., Any], keys: Sequence[tuple[int, ...]], first: int
) -> Callable[..., Any]:
    """A function whose trace reads stored solutions instead of solving equations.

    Args:
        fn: a derivative of the function that was traced.
        keys: ``Program.stored`` of the trace.
        first: position of the solutions, which ``fn`` does not take, among the arguments.
    """
    stop = first + len(keys)

    def call(*tensors: Tensor) -> Any:
        solutions = [x for x in tensors[first:stop] if isinstance(x, Symbolic)]
        if solutions:
            pairs = zip(keys, [x.ids for x in solutions], strict=True)
            solutions[0].graph.solutions.read(dict(pairs))
        return fn(*tensors[:first], *tensors[stop:])

    return call


def _named_tensors(name: str, result: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(result, Tensor):
        yield name, result.detach()
    elif isinstance(result, (tuple, list)):
        for k, part in enumerate(result):
            yield from _named_tensors(f"{name}_{k}", part)
    else:
        raise FusedError(
            f"the traced function returned a {type(result).__name__} as {name!r}.",
            advice="Return a tensor or a (nested) tuple of tensors.",
        )
