"""Run a function of tensors once on expressions and keep the scalar program that it computes.

The function is ordinary eager code for one sample: whatever PyTorch operations, transforms of
torch.func and calls of torch.autograd.grad it makes act on symbolic tensors
(`torchsko.fused.tracing.symbolic`). Tensors that it closes over become constants, exactly.

Differentiation happens in PyTorch, before simplification sees anything. What an inner derivative
must hold fixed is therefore said as in eager code: compute it outside of the differentiated
function, or detach it. Simplification can never reconnect it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.program.entries import inputs_of, listed
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.lower import lower
from torchsko.fused.program.program import Port, Program
from torchsko.fused.tracing.closures import alive, mapped_as_arguments, refuse_differentiated
from torchsko.fused.tracing.symbolic import Symbolic, lift
from torchsko.fused.tracing.traced_loops import TracedGraph, traced_loop
from torchsko.implicit.repetition import Rounds

Arguments = Callable[[Graph], Sequence[Tensor]]
"""Expressions of a function's arguments, numbered by the graph of its program."""


def trace(
    fn: Callable[..., Any],
    inputs: Sequence[Port],
    dtype: torch.dtype = torch.float64,
    arguments: Arguments | None = None,
) -> Program:
    """The simplified scalar program of a function of tensors, for one sample.

    Args:
        fn: a function of one float64 tensor per port, of the port's shape (no batch dimension);
            returns a tensor or a nested tuple or list of tensors.
        inputs: the input ports, in the order of the arguments.
        dtype: in which the kernel will compute, for functions that ask what it rounds
            (`torchsko.utils.dtype.compute_dtype`).
        arguments: of inputs of the graph and constants, where an argument for each port is not all.

    Returns:
        A program with these inputs, and one output port for every tensor returned.

    Raises:
        FusedError: an operation without a rule, a branch on a value, an index computed from
            values, or a result that is no tensor.

    Example:
        >>> import torch
        >>> def kinetic_energy(v):
        ...     return 0.5 * 3.0 * (v * v).sum()
        >>> program = trace(torch.func.grad(kinetic_energy), [Port("v", (2,))])
        >>> [instr.op for instr in program.code]
        ['const', 'input', 'mul', 'input', 'mul']
    """
    graph = _TracedGraph(dtype)
    given = inputs_of(graph, inputs) if arguments is None else arguments(graph)
    outputs: list[int] = []
    ports: list[Port] = []
    for name, result in _named_tensors("out", fn(*(Symbolic(graph, ids) for ids in given))):
        ports.append(Port(name, tuple(result.shape)))
        outputs.extend(listed(lift(graph, result)))
    return lower(graph, outputs, inputs, ports)


class _TracedGraph(TracedGraph):
    """A graph whose loop bodies are traced by `trace`."""

    def convert_closure(self, step: Callable[..., Any]) -> tuple[Callable[..., Any], list[Tensor]]:
        refuse_differentiated(step)
        return mapped_as_arguments(step)

    def trace_loop(self, rounds: Rounds, tensors: Sequence[Tensor]) -> list[Tensor]:
        with alive(rounds.step):
            return traced_loop(trace, self, rounds, tensors)


def _named_tensors(name: str, result: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(result, Tensor):
        yield name, result.detach()
    elif isinstance(result, (tuple, list)):
        for k, part in enumerate(result):
            yield from _named_tensors(f"{name}_{k}", part)
    else:
        raise FusedError(
            f"the traced function returned a {type(result).__name__} as {name!r}: a program has "
            "tensors as results.",
            advice="Return a tensor or a (nested) tuple of tensors.",
        )
