"""Elementwise rules on tensors of expressions; see `torchsko.fused.program.rules`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count, islice, repeat
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.fused.program.graph import Graph
from torchsko.fused.program.program import Port

Rule = Callable[..., Tensor]
Number = Tensor | float


def flat_list(ids: Tensor) -> list[Any]:
    """The entries as a flat list, read without notifying modes that look for reads of traced values."""
    with torch._C.DisableTorchFunction():
        return ids.reshape(-1).tolist()


def id_array(ids: Tensor) -> np.ndarray:
    """The numbers of expressions as an array of the same memory; no active mode sees its operations."""
    with torch._C.DisableTorchFunction():
        return ids.numpy()


def constants(graph: Graph, values: Tensor) -> Tensor:
    """Expressions of the entries of a concrete tensor, without rounding."""
    if values._is_zerotensor():  # tangents of PyTorch without memory
        return torch.zeros(values.shape, dtype=torch.int64)
    flat = flat_list(values.detach().to(torch.float64))
    numbers = {v: graph.const(v) for v in dict.fromkeys(flat)}
    # Another nan object is another key.
    return ids_tensor([numbers[v] if v == v else graph.const(v) for v in flat], values.shape)


def ids_tensor(flat: list[int], shape: Sequence[int]) -> Tensor:
    """A tensor of expressions from a flat list of their numbers."""
    # `torch.tensor` takes three times as long; active modes need not see a new tensor of numbers.
    with torch._C._DisableTorchDispatch():
        return torch.from_numpy(np.array(flat, dtype=np.int64).reshape(tuple(shape)))


def input_ids(graph: Graph, ports: Sequence[Port]) -> list[Tensor]:
    """Expressions of the inputs, one tensor for each port."""
    numbers = map(graph.input, count())
    return [ids_tensor([*islice(numbers, port.size)], port.shape) for port in ports]


def invariant_ids(graph: Graph, tensors: Sequence[Tensor]) -> list[int]:
    """The distinct entries of invariant inputs of a loop that are not constant."""
    entries = (abs(x) for tensor in tensors for x in flat_list(tensor))
    return list(dict.fromkeys(x for x in entries if graph.value(x) is None))


def ids_in_body(graph: Graph, body: Graph, inputs: Mapping[int, int], tensor: Tensor) -> Tensor:
    """Expressions in a loop body of an invariant input; constants and signs are known in the body.

    Args:
        graph: the graph that contains the loop.
        body: the graph of the loop body.
        inputs: the input of the body for each entry of `invariant_ids`.
        tensor: expressions of ``graph``.
    """

    def entry(x: int) -> int:
        if (value := graph.value(x)) is not None:
            return body.const(value)
        return inputs[x] if x > 0 else -inputs[-x]

    return ids_tensor([*map(entry, flat_list(tensor))], tensor.shape)


def ids_of(graph: Graph, x: Number) -> Tensor:
    """Expressions of a number, or the tensor itself."""
    return x if isinstance(x, Tensor) else ids_tensor([graph.const(float(x))], ())


def apply_elementwise(function: Callable[..., int], graph: Graph, *operands: Number) -> Tensor:
    """Apply a function of expressions elementwise, with broadcasting."""
    arrays = [ids_of(graph, x).numpy() for x in operands]
    shapes = {x.shape for x in arrays if x.ndim}
    if not shapes:
        return ids_tensor([function(*(int(x) for x in arrays))], ())
    if len(shapes) > 1:
        arrays = np.broadcast_arrays(*arrays)
        shapes = {arrays[0].shape}
    columns = [x.ravel().tolist() if x.ndim else repeat(int(x)) for x in arrays]
    return ids_tensor([*map(function, *columns)], *shapes)


def unary(op: str) -> Rule:
    """The rule of a function of one expression."""
    return lambda graph, x: apply_elementwise(partial(graph.unary, op), graph, x)


def binary(op: str) -> Rule:
    """The rule of a function of two expressions."""
    return lambda graph, x, y: apply_elementwise(partial(graph.binary, op), graph, x, y)


def add(graph: Graph, x: Number, y: Number, alpha: float = 1) -> Tensor:
    """Expressions x + alpha * y."""
    if alpha != 1:
        y = mul(graph, alpha, y)
    return apply_elementwise(graph.add, graph, x, y)


def sub(graph: Graph, x: Number, y: Number, alpha: float = 1) -> Tensor:
    """Expressions x - alpha * y."""
    return add(graph, x, -ids_of(graph, y), alpha)


def rsub(graph: Graph, x: Number, y: Number, alpha: float = 1) -> Tensor:
    """Expressions y - alpha * x."""
    return sub(graph, y, x, alpha)


def mul(graph: Graph, x: Number, y: Number) -> Tensor:
    """Expressions x * y."""
    return apply_elementwise(graph.mul, graph, _factor(graph, x), _factor(graph, y))


def _factor(graph: Graph, x: Number) -> Tensor:
    """Expressions of a factor: the number 0 is no structural zero."""
    return x if isinstance(x, Tensor) else ids_tensor([graph.factor(float(x))], ())


def div(graph: Graph, x: Number, y: Number, rounding_mode: str | None = None) -> Tensor:
    """Expressions x / y, rounded down or towards zero if a rounding mode is given."""
    if rounding_mode == "trunc":
        exact = apply_elementwise(graph.quotient, graph, x, y)
        return apply_elementwise(partial(graph.unary, "trunc"), graph, exact)
    quotient = apply_elementwise(graph.div, graph, _factor(graph, x), y)
    return quotient if rounding_mode is None else _floor_of(graph, x, y, quotient)


def _floor_of(graph: Graph, x: Number, y: Number, quotient: Tensor) -> Tensor:
    """Floor of x / y as PyTorch computes it: from the remainder, since the quotient may be rounded up."""
    exact = div(graph, sub(graph, x, remainder(graph, x, y)), y)
    below = apply_elementwise(partial(graph.unary, "floor"), graph, exact)
    short = apply_elementwise(partial(graph.binary, "lt"), graph, 0.5, sub(graph, exact, below))
    by_zero = apply_elementwise(partial(graph.binary, "eq"), graph, y, 0.0)
    return where(graph, by_zero, quotient, add(graph, below, short))


def remainder(graph: Graph, x: Number, y: Number) -> Tensor:
    """Expressions of the remainder of x / y, with the sign of y."""
    rest = apply_elementwise(partial(graph.binary, "fmod"), graph, x, y)
    signs = (apply_elementwise(partial(graph.binary, "lt"), graph, z, 0.0) for z in (rest, y))
    has_wrong_sign = logical_and(graph, rest, logical_xor(graph, *signs))
    return where(graph, has_wrong_sign, add(graph, rest, y), rest)


def ceil(graph: Graph, x: Tensor) -> Tensor:
    """Expressions of the next larger integers."""
    return -apply_elementwise(partial(graph.unary, "floor"), graph, -x)


def rounded(graph: Graph, x: Tensor, decimals: int = 0) -> Tensor:
    """Expressions rounded to a number of decimals, halves to even."""
    ten = 10.0 ** abs(decimals)
    scale, unscale = (mul, div) if decimals > 0 else (div, mul)
    scaled = scale(graph, x, ten)
    return unscale(graph, apply_elementwise(partial(graph.unary, "round"), graph, scaled), ten)


def logarithm(base: float) -> Rule:
    """The rule of a logarithm."""
    return lambda graph, x: mul(
        graph, apply_elementwise(partial(graph.unary, "log"), graph, x), 1 / log(base)
    )


def exp2(graph: Graph, x: Tensor) -> Tensor:
    """Expressions 2 ** x; exp(x * log(2)) would amplify the rounding error of the product."""
    return apply_elementwise(graph.pow, graph, 2.0, x)


def hypot(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Expressions sqrt(x * x + y * y)."""
    return apply_elementwise(graph.sqrt, graph, add(graph, mul(graph, x, x), mul(graph, y, y)))


def rsqrt(graph: Graph, x: Tensor) -> Tensor:
    """Expressions 1 / sqrt(x)."""
    return apply_elementwise(lambda k: graph.recip(graph.sqrt(k)), graph, x)


def where(graph: Graph, condition: Tensor, x: Number, y: Number) -> Tensor:
    """Expressions x where the condition holds, else y."""
    return apply_elementwise(graph.where, graph, condition, x, y)


def masked_fill(graph: Graph, x: Tensor, mask: Tensor, value: Number) -> Tensor:
    """Expressions x, but the value where the mask holds."""
    return where(graph, mask, value, x)


def clamp(graph: Graph, x: Tensor, low: Number | None = None, high: Number | None = None) -> Tensor:
    """Expressions x clamped to the interval from low to high."""
    bounded = x if low is None else apply_elementwise(partial(graph.binary, "max"), graph, x, low)
    return (
        bounded
        if high is None
        else apply_elementwise(partial(graph.binary, "min"), graph, bounded, high)
    )


def tanh_backward(graph: Graph, gradient: Tensor, y: Tensor) -> Tensor:
    """Gradient by x of y = tanh(x)."""
    return mul(graph, gradient, sub(graph, 1.0, mul(graph, y, y)))


def truth(graph: Graph, k: int) -> int:
    """1 where an expression is not 0, else 0; the expression itself if it is known to be 0 or 1."""
    return k if _is_truth(graph, k) else graph.binary("ne", k, 0)


def _is_truth(graph: Graph, k: int) -> bool:
    if k < 2:
        return k >= 0  # constants 0 and 1; a negative number is not a truth value
    op, *args = graph.nodes[k]
    return op in _TRUTHS or (op == "mul" and all(_is_truth(graph, x) for x in args))


_TRUTHS = frozenset("lt le eq ne".split())


def logical_not(graph: Graph, x: Tensor) -> Tensor:
    """1 where x is 0, else 0."""
    return apply_elementwise(lambda k: graph.binary("eq", k, 0), graph, x)


def logical_and(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """1 where neither x nor y is 0, else 0."""
    # Operands become 0 or 1 first, since the product of small numbers may underflow to 0.
    return apply_elementwise(lambda k, m: graph.mul(truth(graph, k), truth(graph, m)), graph, x, y)


def logical_or(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """1 where x or y is not 0, else 0."""
    return logical_not(graph, logical_and(graph, logical_not(graph, x), logical_not(graph, y)))


def logical_xor(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """1 where exactly one of x and y is 0, else 0."""
    return apply_elementwise(
        lambda k, m: graph.binary("ne", truth(graph, k), truth(graph, m)), graph, x, y
    )


def full_like(graph: Graph, x: Tensor, value: Number, **_: Any) -> Tensor:
    """A tensor of the shape of x filled with the value."""
    return ids_of(graph, value).expand(x.shape).clone()


def new_full(graph: Graph, x: Tensor, size: Sequence[int], value: Number, **_: Any) -> Tensor:
    """A new tensor filled with the value."""
    return ids_of(graph, value).expand(tuple(size)).clone()


def constant_pad_nd(graph: Graph, x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Padding by a constant."""
    return torch.constant_pad_nd(x, list(pad), graph.const(float(value)))


def triangle(keep: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """The rule of tril or triu. PyTorch's function starts its threads, which takes a hundred times longer."""

    def rule(graph: Graph, x: Tensor, diagonal: int = 0) -> Tensor:
        rows, columns = (torch.arange(n) for n in x.shape[-2:])
        return x * keep(columns - rows[:, None], torch.tensor(diagonal))

    return rule


def copy(graph: Graph, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The source, broadcast to the shape of x."""
    return source.expand(x.shape)
