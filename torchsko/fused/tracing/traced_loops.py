"""Loops of a program: how they are traced, and what their instruction reads and gives.

A loop is one instruction of the program. It reads scalars in a row: the state at the start, what comes anew
round by round, what stays. Its results are parts of it: all states, round by round, what is stacked, round by
round, and what is summed. Inside is a program of its own, traced once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from torchsko.fused.program.entries import inputs_of, listed, staying, tensor_of, within
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.program import Loop, Port, Program
from torchsko.implicit.repetition import Rounds
from torchsko.implicit.step_roles import parted


class TracedGraph(Graph, ABC):
    """The graph of a function that is being traced; `torchsko.fused.tracing.tracer` implements it."""

    @abstractmethod
    def convert_closure(self, step: Callable[..., Any]) -> tuple[Callable[..., Any], list[Tensor]]:
        """See `torchsko.fused.tracing.symbolic.Symbolic.convert_closure`."""

    @abstractmethod
    def trace_loop(self, rounds: Rounds, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Expressions of the outputs of a loop, from those of its inputs."""


def traced_loop(
    trace: Callable[..., Program], graph: Graph, rounds: Rounds, tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Expressions of what `Rounds.run` gives, from those of what it takes.

    Of what stays, constants are constants of the loop's program, and equal entries are one input: zeros
    of matrices cost nothing there, and what is symmetric is known to be.

    Args:
        trace: makes a program of the step; `torchsko.fused.tracing.tracer.trace`.
        graph: numbers the expressions.
        rounds: the loop.
        tensors: expressions.

    Returns:
        Tensors of expressions.
    """
    roles, n = rounds.roles, rounds.count
    own, anew, stay = parted(list(tensors), (roles.carry, roles.stream))
    shapes = (*(x.shape for x in own), *(x.shape[1:] for x in anew))
    moving = [Port(f"x{k}", tuple(shape)) for k, shape in enumerate(shapes)]
    kept = staying(graph, stay)
    ports = [*moving, Port("stay", (len(kept),))]

    def arguments(body: Graph) -> list[Tensor]:
        *found, inputs = inputs_of(body, ports)
        inside = dict(zip(kept, listed(inputs), strict=True))
        return [*found, *(within(graph, body, inside, x) for x in stay)]

    program = trace(rounds.step, ports, graph.dtype, arguments)
    loop = Loop.of(program, roles, n, rounds.backward, rounds.halts)
    args = _flat(own)
    for k in range(n):
        args += _flat([x[k] for x in anew])
    node = graph.loop(loop, [*args, *kept])
    return _results(graph, node, loop, _flat(own), [port.shape for port in program.outputs])


def _flat(tensors: Sequence[Tensor]) -> list[int]:
    return [x for tensor in tensors for x in listed(tensor)]


def _results(
    graph: Graph, node: int, loop: Loop, start: list[int], shapes: list[tuple[int, ...]]
) -> list[Tensor]:
    """All states, what is stacked, what is summed."""
    states, stacked, summed = parted(shapes, (loop.ports[0], loop.ports[2]))
    known = dict(enumerate(start, loop.count * loop.carry if loop.backward else 0))

    def part(j: int) -> int:
        return known[j] if j in known else graph.part(node, j)

    def series(of: tuple[tuple[int, ...], ...], first: int, length: int) -> list[Tensor]:
        sizes = [Port("", shape).size for shape in of]
        found = []
        for shape, size, at in zip(of, sizes, accumulate(sizes, initial=first), strict=False):
            ids = [part(at + k * sum(sizes) + i) for k in range(length) for i in range(size)]
            found.append(tensor_of(ids, (length, *shape)))
        return found

    after = (loop.count + 1) * loop.carry
    totals = series(summed, after + loop.count * loop.stacked, 1)
    found = [
        *series(states, 0, loop.count + 1),
        *series(stacked, after, loop.count),
        *(x[0] for x in totals),
    ]
    return [torch.clone(x) for x in found]
