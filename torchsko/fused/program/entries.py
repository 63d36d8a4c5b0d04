"""Arithmetic of ATen operations on tensors of expressions, entry by entry.

See `torchsko.fused.program.rules`, which has the table, for what a rule is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor

from torchsko.fused.program.graph import Graph
from torchsko.fused.program.program import Port

Rule = Callable[..., Tensor]
Number = Tensor | float


def listed(ids: Tensor) -> list[Any]:
    """The entries in a row; who watches a traced function for reads of its values does not see this one."""
    with torch._C.DisableTorchFunction():
        return ids.reshape(-1).tolist()


def constants(graph: Graph, values: Tensor) -> Tensor:
    """Expressions of a concrete tensor's entries, exactly."""
    if values._is_zerotensor():  # a derivative's, of no memory
        return torch.zeros(values.shape, dtype=torch.int64)
    flat = listed(values.detach().to(torch.float64))
    return tensor_of([graph.const(v) for v in flat], values.shape)


def tensor_of(flat: list[int], shape: Sequence[int]) -> Tensor:
    """A tensor of expressions from a flat list."""
    return torch.tensor(flat, dtype=torch.int64).reshape(tuple(shape))


def inputs_of(graph: Graph, ports: Sequence[Port]) -> list[Tensor]:
    """Expressions of ports, input after input."""
    numbers = iter(range(sum(port.size for port in ports)))
    return [
        tensor_of([graph.input(next(numbers)) for _ in range(port.size)], port.shape)
        for port in ports
    ]


def staying(graph: Graph, tensors: Sequence[Tensor]) -> list[int]:
    """What a loop reads of tensors that stay the same in each round: entries that are no constants, once."""
    entries = (abs(x) for tensor in tensors for x in listed(tensor))
    return list(dict.fromkeys(x for x in entries if graph.value(x) is None))


def within(graph: Graph, body: Graph, inputs: Mapping[int, int], tensor: Tensor) -> Tensor:
    """Expressions of a loop's body for a tensor that stays: zeros and signs are known in there.

    Args:
        graph: the one around.
        body: the loop's.
        inputs: of the body, by the entries that are `staying`.
        tensor: of expressions of the graph around.
    """

    def entry(x: int) -> int:
        if (value := graph.value(x)) is not None:
            return body.const(value)
        return inputs[x] if x > 0 else -inputs[-x]

    return tensor_of([*map(entry, listed(tensor))], tensor.shape)


def ids_of(graph: Graph, x: Number) -> Tensor:
    """Expressions of a number or a tensor."""
    return x if isinstance(x, Tensor) else torch.tensor(graph.const(float(x)))


def by_entry(function: Callable[..., int], graph: Graph, *operands: Number) -> Tensor:
    """Apply a function of expressions entry by entry, with broadcasting."""
    tensors = torch.broadcast_tensors(*(ids_of(graph, x) for x in operands))
    columns = [x.reshape(-1).tolist() for x in tensors]
    return tensor_of([function(*xs) for xs in zip(*columns, strict=True)], tensors[0].shape)


def unary(op: str) -> Rule:
    """The rule of a function of one expression."""
    return lambda graph, x: by_entry(partial(graph.unary, op), graph, x)


def binary(op: str) -> Rule:
    """The rule of a function of two expressions."""
    return lambda graph, x, y: by_entry(partial(graph.binary, op), graph, x, y)


def add(graph: Graph, x: Number, y: Number, alpha: float = 1) -> Tensor:
    """Expressions x + alpha * y."""
    if alpha != 1:
        y = mul(graph, alpha, y)
    return by_entry(graph.add, graph, x, y)


def sub(graph: Graph, x: Number, y: Number, alpha: float = 1) -> Tensor:
    """Expressions x - alpha * y."""
    return add(graph, x, -ids_of(graph, y), alpha)


def rsub(graph: Graph, x: Number, y: Number, alpha: float = 1) -> Tensor:
    """Expressions y - alpha * x."""
    return sub(graph, y, x, alpha)


def mul(graph: Graph, x: Number, y: Number) -> Tensor:
    """Expressions x * y."""
    return by_entry(graph.mul, graph, x, y)


def div(graph: Graph, x: Number, y: Number, rounding_mode: str | None = None) -> Tensor:
    """Expressions x / y, or the whole number next to it below or towards zero."""
    if rounding_mode == "trunc":
        exact = by_entry(graph.quotient, graph, x, y)
        return by_entry(partial(graph.unary, "trunc"), graph, exact)
    quotient = by_entry(graph.div, graph, x, y)
    return quotient if rounding_mode is None else _floor_of(graph, x, y, quotient)


def _floor_of(graph: Graph, x: Number, y: Number, quotient: Tensor) -> Tensor:
    """Floor of x / y as PyTorch has it: by the remainder, since the quotient may be rounded up."""
    exact = div(graph, sub(graph, x, remainder(graph, x, y)), y)
    below = by_entry(partial(graph.unary, "floor"), graph, exact)
    short = by_entry(partial(graph.binary, "lt"), graph, 0.5, sub(graph, exact, below))
    by_zero = by_entry(partial(graph.binary, "eq"), graph, y, 0.0)
    return where(graph, by_zero, quotient, add(graph, below, short))


def remainder(graph: Graph, x: Number, y: Number) -> Tensor:
    """Expressions x less whole multiples of y, with the sign of y."""
    rest = by_entry(partial(graph.binary, "fmod"), graph, x, y)
    signs = (by_entry(partial(graph.binary, "lt"), graph, z, 0.0) for z in (rest, y))
    turned = logical_and(graph, rest, logical_xor(graph, *signs))
    return where(graph, turned, add(graph, rest, y), rest)


def ceil(graph: Graph, x: Tensor) -> Tensor:
    """Expressions of the whole numbers next above."""
    return -by_entry(partial(graph.unary, "floor"), graph, -x)


def rounded(graph: Graph, x: Tensor, decimals: int = 0) -> Tensor:
    """Expressions of the nearest numbers of so many decimals, halves to even ones."""
    ten = 10.0 ** abs(decimals)
    there, back = (mul, div) if decimals > 0 else (div, mul)
    return back(graph, by_entry(partial(graph.unary, "round"), graph, there(graph, x, ten)), ten)


def logarithm(base: float) -> Rule:
    """The rule of a logarithm."""
    return lambda graph, x: mul(
        graph, by_entry(partial(graph.unary, "log"), graph, x), 1 / log(base)
    )


def exp2(graph: Graph, x: Tensor) -> Tensor:
    """Expressions 2 ** x; by an exponential the rounding of x * log(2) would count in the result."""
    return by_entry(graph.pow, graph, 2.0, x)


def hypot(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Expressions sqrt(x * x + y * y)."""
    return by_entry(graph.sqrt, graph, add(graph, mul(graph, x, x), mul(graph, y, y)))


def rsqrt(graph: Graph, x: Tensor) -> Tensor:
    """Expressions 1 / sqrt(x)."""
    return by_entry(lambda k: graph.recip(graph.sqrt(k)), graph, x)


def where(graph: Graph, condition: Tensor, x: Number, y: Number) -> Tensor:
    """Expressions x where the condition holds, else y."""
    return by_entry(graph.where, graph, condition, x, y)


def masked_fill(graph: Graph, x: Tensor, mask: Tensor, value: Number) -> Tensor:
    """Expressions x, but the value where the mask holds."""
    return where(graph, mask, value, x)


def clamp(graph: Graph, x: Tensor, low: Number | None = None, high: Number | None = None) -> Tensor:
    """Expressions x bounded from below and above."""
    bounded = x if low is None else by_entry(partial(graph.binary, "max"), graph, x, low)
    return bounded if high is None else by_entry(partial(graph.binary, "min"), graph, bounded, high)


def tanh_backward(graph: Graph, gradient: Tensor, y: Tensor) -> Tensor:
    """Cotangent of a hyperbolic tangent y."""
    return mul(graph, gradient, sub(graph, 1.0, mul(graph, y, y)))


def truth(graph: Graph, k: int) -> int:
    """1 where an expression is not 0, else 0; itself if it is one of these already."""
    return k if _is_truth(graph, k) else graph.binary("ne", k, 0)


def _is_truth(graph: Graph, k: int) -> bool:
    if k < 2:
        return k >= 0  # a negation is none, the constants 0 and 1 are
    op, *args = graph.nodes[k]
    return op in _TRUTHS or (op == "mul" and all(_is_truth(graph, x) for x in args))


_TRUTHS = frozenset("lt le eq ne".split())


def logical_not(graph: Graph, x: Tensor) -> Tensor:
    """1 where x is 0, else 0."""
    return by_entry(lambda k: graph.binary("eq", k, 0), graph, x)


def logical_and(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """1 where neither is 0, else 0."""
    # Of truths, for the product of small numbers may be 0.
    return by_entry(lambda k, m: graph.mul(truth(graph, k), truth(graph, m)), graph, x, y)


def logical_or(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """1 where not both are 0, else 0."""
    return logical_not(graph, logical_and(graph, logical_not(graph, x), logical_not(graph, y)))


def logical_xor(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """1 where one of both is 0, else 0."""
    return by_entry(lambda k, m: graph.binary("ne", truth(graph, k), truth(graph, m)), graph, x, y)


def full_like(graph: Graph, x: Tensor, value: Number, **_: Any) -> Tensor:
    """The value in every entry."""
    return ids_of(graph, value).expand(x.shape).clone()


def new_full(graph: Graph, x: Tensor, size: Sequence[int], value: Number, **_: Any) -> Tensor:
    """A new tensor filled with the value."""
    return ids_of(graph, value).expand(tuple(size)).clone()


def constant_pad_nd(graph: Graph, x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Padding by a constant."""
    return torch.constant_pad_nd(x, list(pad), graph.const(float(value)))


def triangle(keep: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """Half of a matrix. PyTorch's own wakes its threads, which costs a hundred times the work."""

    def rule(graph: Graph, x: Tensor, diagonal: int = 0) -> Tensor:
        rows, columns = (torch.arange(n) for n in x.shape[-2:])
        return x * keep(columns - rows[:, None], torch.tensor(diagonal))

    return rule


def copy(graph: Graph, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The source, broadcast to the shape of x."""
    return source.expand(x.shape)
