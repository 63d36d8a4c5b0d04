"""Loops in a traced function: one instruction, whose body is a program that is traced once.

The instruction reads scalars in this order: carry, streamed inputs by iteration, invariant inputs.
Its parts are the carry before and after each iteration, stacked outputs by iteration, and summed
outputs. `torchsko.implicit.loop_roles` defines these terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.fused.program.elementwise import (
    flat_list,
    id_array,
    ids_in_body,
    ids_tensor,
    input_ids,
    invariant_ids,
)
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.program import Loop, Port, Program
from torchsko.fused.tracing.content import Known, digest_of_content
from torchsko.fused.tracing.stored_solutions import Solutions, StoredSolutions
from torchsko.implicit.loop_roles import split_by_sizes
from torchsko.implicit.table_loop import TableLoop
from torchsko.implicit.tensor_loop import TensorLoop

Bodies = dict[object, tuple[Program, frozenset[tuple[int, ...]]]]
"""Programs of loop bodies and keys of their iterated solutions, by everything that a trace depends on."""


class TracedGraph(Graph, ABC):
    """The graph of a function that is being traced; `torchsko.fused.tracing.tracer` implements it.

    Attributes:
        solutions: solutions of equations; see `torchsko.fused.tracing.stored_solutions`.
        bodies: programs of loop bodies that were traced before.
        mechanisms: mechanisms whose content was digested before.
    """

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype)
        self.solutions = StoredSolutions(self)
        self.bodies: Bodies = {}
        self.mechanisms: Known = {}

    @abstractmethod
    def convert_closure(self, body: Callable[..., Any]) -> tuple[Callable[..., Any], list[Tensor]]:
        """See `torchsko.fused.tracing.symbolic.Symbolic.convert_closure`."""

    @abstractmethod
    def trace_loop(self, loop: TensorLoop, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Expressions of the outputs of a loop, from those of its inputs."""

    @abstractmethod
    def trace_table_loop(self, loop: TableLoop, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Expressions of the outputs of a loop over rows, from those of its inputs."""


def traced_loop(
    trace: Callable[..., Program], graph: TracedGraph, loop: TensorLoop, tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Expressions of the outputs of `TensorLoop.run`, from those of its inputs.

    Constant entries of invariant inputs are constants of the body, and equal entries are one input
    of it. Zeros and symmetry of a matrix are therefore known in the body. Entries of streamed inputs that are
    the same in all iterations are invariant. Solutions of equations in the body are stacked, and the loop of
    a VJP reads them; see `torchsko.fused.tracing.stored_solutions`.

    Args:
        trace: makes a program of the loop body; `torchsko.fused.tracing.tracer.trace`.
        graph: the graph that contains the loop.
        loop: the loop.
        tensors: expressions of its inputs.
    """
    outputs: list[Tensor] = []

    def trace_with(known: Solutions) -> tuple[Solutions, frozenset[tuple[int, ...]]]:
        found, stacked, iterated = _traced_loop(trace, graph, loop, tensors, known)
        outputs.extend(found)
        return stacked, iterated

    graph.solutions.record_loop(loop, trace_with)
    return outputs


def _traced_loop(
    trace: Callable[..., Program],
    graph: TracedGraph,
    loop: TensorLoop,
    tensors: Sequence[Tensor],
    known: Solutions,
) -> tuple[list[Tensor], Solutions, frozenset[tuple[int, ...]]]:
    """Expressions of outputs and of stacked solutions, and keys of the body's iterated solutions.

    Args:
        trace: see `traced_loop`.
        graph: see `traced_loop`.
        loop: see `traced_loop`.
        tensors: see `traced_loop`.
        known: stored solutions, stacked over the iterations.
    """
    roles, n = loop.roles, loop.count
    carry, streamed, invariant = split_by_sizes(list(tensors), (roles.carry, roles.stream))
    streamed = (*streamed, *known.values())
    shapes = (*(x.shape for x in carry), *(x.shape[1:] for x in streamed))
    ports = [Port(f"x{k}", tuple(shape)) for k, shape in enumerate(shapes)]
    series = [id_array(x) for x in streamed]
    same = [(x == x[0]).all(0) for x in series]
    steady = [torch.from_numpy(np.where(z, x[0], 0)) for z, x in zip(same, series, strict=True)]
    entries = invariant_ids(graph, [*invariant, *steady])
    ports.append(Port("invariant", (len(entries),)))

    bodies: list[TracedGraph] = []

    def arguments(body: TracedGraph) -> list[Tensor]:
        bodies.append(body)
        body.bodies, body.mechanisms = graph.bodies, graph.mechanisms
        *variable, inputs = input_ids(body, ports)
        input_of = dict(zip(entries, flat_list(inputs), strict=True))
        fixed = [ids_in_body(graph, body, input_of, x) for x in (*steady, *invariant)]
        of_carry, varying = variable[: roles.carry], variable[roles.carry :]
        mixed = [
            torch.from_numpy(np.where(z, id_array(x), id_array(y)))
            for z, x, y in zip(same, fixed, varying, strict=False)
        ]
        body.solutions.read(dict(zip(known, mixed[roles.stream :], strict=True)))
        return [*of_carry, *mixed[: roles.stream], *fixed[len(steady) :]]

    # Iterations that are left out store nothing, and summed outputs are the last ones.
    stores = not loop.stops_early and not roles.summed
    # The trace of a body depends on its content, on zeros, constants and equal entries of its inputs.
    parts = loop.body, roles, n, loop.reverse, loop.stops_early
    content = digest_of_content(*parts, known=graph.mechanisms)
    pattern = _pattern(graph, entries, [*steady, *invariant])
    key = (
        content,
        graph.dtype,
        tuple(ports),
        *(tuple(x.ravel().tolist()) for x in same),
        *known,
        *pattern,
        stores,
    )
    found = None if content is None else graph.bodies.get(key)
    if found is None:
        program = trace(loop.body, ports, graph.dtype, arguments, stores=stores)
        found = program, frozenset(bodies[0].solutions.iterated)
        if content is not None:
            graph.bodies[key] = found
    program, iterated = found
    num_stacked = roles.stacked + len(program.stored)
    all_roles = replace(roles, stream=len(streamed), stacked=num_stacked)
    instruction = Loop.of(program, all_roles, n, reverse=loop.reverse, stops_early=loop.stops_early)
    start = _flat(carry)
    args = [*start, *(x for k in range(n) for y in series for x in y[k].ravel().tolist()), *entries]
    node = graph.loop(instruction, args)
    outputs = _outputs(graph, node, instruction, start, [port.shape for port in program.outputs])
    count = len(outputs) - len(program.stored)
    stacked = dict(zip(program.stored, outputs[count:], strict=True))
    return outputs[:count], stacked, iterated


def _pattern(graph: Graph, entries: list[int], tensors: Sequence[Tensor]) -> list[Any]:
    """For each entry of the tensors its value, or the position among the entries with its sign."""
    places = {x: k for k, x in enumerate(entries, 1)}

    def entry_key(x: int) -> Any:
        value = graph.value(x)
        return (places[x] if x > 0 else -places[-x]) if value is None else repr(value)

    return [(tuple(x.shape), *map(entry_key, flat_list(x))) for x in tensors]


def _flat(tensors: Sequence[Tensor]) -> list[int]:
    return [x for tensor in tensors for x in flat_list(tensor)]


def _outputs(
    graph: Graph, node: int, loop: Loop, start: list[int], shapes: list[tuple[int, ...]]
) -> list[Tensor]:
    """Expressions of the carries, the stacked and the summed outputs."""
    carries, stacked, summed = split_by_sizes(shapes, (loop.ports[0], loop.ports[2]))
    known = dict(enumerate(start, loop.count * loop.carry if loop.reverse else 0))

    first_stacked = (loop.count + 1) * loop.carry
    first_summed = first_stacked + loop.count * loop.stacked
    for k, value in _constant_results(loop):
        known[first_stacked + k] = graph.const(value)

    def part(j: int) -> int:
        return known[j] if j in known else graph.part(node, j)

    def series(of: tuple[tuple[int, ...], ...], first: int, length: int) -> list[Tensor]:
        sizes = [Port("", shape).size for shape in of]
        tensors = []
        for shape, size, offset in zip(of, sizes, accumulate(sizes, initial=first), strict=False):
            ids = [part(offset + k * sum(sizes) + i) for k in range(length) for i in range(size)]
            tensors.append(ids_tensor(ids, (length, *shape)))
        return tensors

    return [
        *series(carries, 0, loop.count + 1),
        *series(stacked, first_stacked, loop.count),
        *(ids_tensor(flat_list(x), x.shape[1:]) for x in series(summed, first_summed, 1)),
    ]


def _constant_results(loop: Loop) -> Iterator[tuple[int, float]]:
    """Constant outputs after the carries, such as gradients that are zero: positions and values."""
    body, count = loop.program, loop.count
    for k, x in enumerate(body.results[loop.carry :]):
        op, args = body.code[x]
        if op == "const":
            value = body.constants[args[0]]
            if k < loop.stacked:
                yield from ((j * loop.stacked + k, value) for j in range(count))
            else:
                yield (count - 1) * loop.stacked + k, count * value
