"""Arithmetic of ATen operations on tensors of expressions.

Every rule takes the graph and the arguments of the ATen operation, with each tensor of values
replaced by the int64 tensor of its expressions; tensors named ``index`` or ``indices`` stay as they
are, and so do Python numbers. It returns the expressions of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.graph import Graph

Rule = Callable[..., Tensor]
Number = Tensor | float


def constants(graph: Graph, values: Tensor) -> Tensor:
    """Expressions of a concrete tensor's entries, exactly."""
    flat = values.detach().to(torch.float64).reshape(-1).tolist()
    return _tensor([graph.const(v) for v in flat], values.shape)


def _tensor(flat: list[int], shape: Sequence[int]) -> Tensor:
    return torch.tensor(flat, dtype=torch.int64).reshape(tuple(shape))


def _ids(graph: Graph, x: Number) -> Tensor:
    return x if isinstance(x, Tensor) else torch.tensor(graph.const(float(x)))


def _map(function: Callable[..., int], graph: Graph, *operands: Number) -> Tensor:
    """Apply a function of expressions entry by entry, with broadcasting."""
    tensors = torch.broadcast_tensors(*(_ids(graph, x) for x in operands))
    columns = [x.reshape(-1).tolist() for x in tensors]
    return _tensor([function(*xs) for xs in zip(*columns, strict=True)], tensors[0].shape)


# -- entry by entry ------------------------------------------------------------------------------


def _unary(op: str) -> Rule:
    return lambda graph, x: _map(partial(graph.unary, op), graph, x)


def _binary(op: str) -> Rule:
    return lambda graph, x, y: _map(partial(graph.binary, op), graph, x, y)


def add(graph: Graph, x: Number, y: Number, alpha: float = 1) -> Tensor:
    """Expressions x + alpha * y."""
    if alpha != 1:
        y = mul(graph, alpha, y)
    return _map(graph.add, graph, x, y)


def sub(graph: Graph, x: Number, y: Number, alpha: float = 1) -> Tensor:
    """Expressions x - alpha * y."""
    return add(graph, x, -_ids(graph, y), alpha)


def rsub(graph: Graph, x: Number, y: Number, alpha: float = 1) -> Tensor:
    """Expressions y - alpha * x."""
    return sub(graph, y, x, alpha)


def mul(graph: Graph, x: Number, y: Number) -> Tensor:
    """Expressions x * y."""
    return _map(graph.mul, graph, x, y)


def div(graph: Graph, x: Number, y: Number, rounding_mode: str | None = None) -> Tensor:
    """Expressions x / y."""
    if rounding_mode is not None:
        raise FusedError(
            f"torch.div(rounding_mode={rounding_mode!r}) has no derivative and no kernel.\n"
            "Use a plain division."
        )
    return _map(graph.div, graph, x, y)


def _logarithm(base: float) -> Rule:
    return lambda graph, x: mul(graph, _map(partial(graph.unary, "log"), graph, x), 1 / log(base))


def exp2(graph: Graph, x: Tensor) -> Tensor:
    """Expressions 2 ** x."""
    return _map(partial(graph.unary, "exp"), graph, mul(graph, x, log(2.0)))


def hypot(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Expressions sqrt(x * x + y * y)."""
    return _map(graph.sqrt, graph, add(graph, mul(graph, x, x), mul(graph, y, y)))


def rsqrt(graph: Graph, x: Tensor) -> Tensor:
    """Expressions 1 / sqrt(x)."""
    return _map(lambda k: graph.recip(graph.sqrt(k)), graph, x)


def where(graph: Graph, condition: Tensor, x: Number, y: Number) -> Tensor:
    """Expressions x where the condition holds, else y."""
    return _map(graph.where, graph, condition, x, y)


def masked_fill(graph: Graph, x: Tensor, mask: Tensor, value: Number) -> Tensor:
    """Expressions x, but the value where the mask holds."""
    return where(graph, mask, value, x)


def clamp(graph: Graph, x: Tensor, low: Number | None = None, high: Number | None = None) -> Tensor:
    """Expressions x bounded from below and above."""
    bounded = x if low is None else _map(partial(graph.binary, "max"), graph, x, low)
    return bounded if high is None else _map(partial(graph.binary, "min"), graph, bounded, high)


def tanh_backward(graph: Graph, gradient: Tensor, y: Tensor) -> Tensor:
    """Cotangent of a hyperbolic tangent y."""
    return mul(graph, gradient, sub(graph, 1.0, mul(graph, y, y)))


def logical_not(graph: Graph, x: Tensor) -> Tensor:
    """1 where x is 0, else 0."""
    return _map(lambda k: graph.binary("eq", k, 0), graph, x)


def logical_and(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """1 where neither is 0, else 0."""
    return _map(lambda k, m: graph.binary("ne", graph.mul(k, m), 0), graph, x, y)


def logical_or(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """1 where not both are 0, else 0."""
    return logical_not(graph, logical_and(graph, logical_not(graph, x), logical_not(graph, y)))


def full_like(graph: Graph, x: Tensor, value: Number, **_: Any) -> Tensor:
    """The value in every entry."""
    return _ids(graph, value).expand(x.shape).clone()


def new_full(graph: Graph, x: Tensor, size: Sequence[int], value: Number, **_: Any) -> Tensor:
    """A new tensor filled with the value."""
    return _ids(graph, value).expand(tuple(size)).clone()


def constant_pad_nd(graph: Graph, x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Padding by a constant."""
    return torch.constant_pad_nd(x, list(pad), graph.const(float(value)))


def _triangle(keep: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """Half of a matrix. PyTorch's own wakes its threads, which costs a hundred times the work."""

    def rule(graph: Graph, x: Tensor, diagonal: int = 0) -> Tensor:
        rows, columns = (torch.arange(n) for n in x.shape[-2:])
        return x * keep(columns - rows[:, None], torch.tensor(diagonal))

    return rule


def copy(graph: Graph, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The source, broadcast to the shape of x."""
    return source.expand(x.shape)


# -- reductions ----------------------------------------------------------------------------------


def _reduced(
    fold: Callable[[list[int]], int], x: Tensor, dim: int | Sequence[int] | None, keepdim: bool
) -> Tensor:
    dims = [dim] if isinstance(dim, int) else list(dim if dim else range(x.ndim))
    dims = sorted(d % x.ndim for d in dims)
    kept = [d for d in range(x.ndim) if d not in dims]
    rows = x.permute(*kept, *dims).flatten(len(kept)) if dims else x[..., None]
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
    flat = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1]).tolist()
    return _tensor([fold(row) for row in flat], shape)


def total(graph: Graph, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    """Sum over dimensions."""
    return _reduced(graph.sum, x, dim, keepdim)


def mean(graph: Graph, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    """Mean over dimensions."""
    sums = total(graph, x, dim, keepdim)
    return div(graph, sums, x.numel() // max(sums.numel(), 1))


def var(
    graph: Graph, x: Tensor, dim: Any = None, correction: float | None = 1, keepdim: bool = False
) -> Tensor:
    """Variance over dimensions, n - correction in its denominator."""
    centred = sub(graph, x, mean(graph, x, dim if dim else range(x.ndim), keepdim=True))
    sums = total(graph, mul(graph, centred, centred), dim, keepdim)
    count = x.numel() // max(sums.numel(), 1) - (1 if correction is None else correction)
    return div(graph, sums, float(count))


def prod(graph: Graph, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    """Product over dimensions."""
    return _reduced(lambda row: _running(graph.mul, row)[-1] if row else 1, x, dim, keepdim)


def _extreme(op: str) -> Rule:
    def rule(graph: Graph, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        return _reduced(lambda row: _running(partial(graph.binary, op), row)[-1], x, dim, keepdim)

    return rule


def _running(function: Callable[[int, int], int], row: list[int]) -> list[int]:
    results = row[:1]
    for x in row[1:]:
        results.append(function(results[-1], x))
    return results


def cumsum(graph: Graph, x: Tensor, dim: int, **_: Any) -> Tensor:
    """Running sum along a dimension."""
    rows = x.movedim(dim, -1)
    flat = [
        k for row in rows.reshape(-1, rows.shape[-1]).tolist() for k in _running(graph.add, row)
    ]
    return _tensor(flat, rows.shape).movedim(-1, dim)


# -- products ------------------------------------------------------------------------------------


def bmm(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Product of stacks of matrices; zeros cost nothing."""
    add, mul = graph.add, graph.mul
    flat = []
    for rows, columns in zip(x.tolist(), y.mT.tolist(), strict=True):
        for row in rows:
            nonzero = [(k, a) for k, a in enumerate(row) if a]
            for column in columns:
                entry = 0
                for k, a in nonzero:
                    b = column[k]
                    if b:
                        entry = add(entry, mul(a, b))
                flat.append(entry)
    return _tensor(flat, (*x.shape[:-1], y.shape[-1]))


def mm(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Product of two matrices."""
    return bmm(graph, x[None], y[None])[0]


def mv(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Product of a matrix and a vector."""
    return mm(graph, x, y[:, None])[:, 0]


def dot(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Inner product of two vectors."""
    return mv(graph, x[None], y)[0]


def _plus(product: Rule) -> Rule:
    def rule(
        graph: Graph, bias: Tensor, x: Tensor, y: Tensor, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        scaled = bias if beta == 1 else mul(graph, bias, beta)
        return add(graph, scaled, product(graph, x, y), alpha)

    return rule


def cross(graph: Graph, x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Vector product along a dimension of three."""
    x, y = (z.movedim(dim, -1) for z in torch.broadcast_tensors(x, y))
    ahead, behind = [1, 2, 0], [2, 0, 1]
    plus = mul(graph, x[..., ahead], y[..., behind])
    return sub(graph, plus, mul(graph, x[..., behind], y[..., ahead])).movedim(-1, dim)


# -- accumulation at indices ---------------------------------------------------------------------


def _accumulated(graph: Graph, x: Tensor, positions: Tensor, source: Tensor) -> Tensor:
    """Expressions x with the source added at flat positions, which may repeat."""
    flat = x.reshape(-1).tolist()
    source = source.expand(positions.shape)
    for k, s in zip(positions.reshape(-1).tolist(), source.reshape(-1).tolist(), strict=True):
        flat[k] = graph.add(flat[k], s)
    return _tensor(flat, x.shape)


def _positions(x: Tensor) -> Tensor:
    return torch.arange(x.numel()).reshape(x.shape)


def index_add(
    graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1
) -> Tensor:
    """Slices of the source added to x at an index."""
    if alpha != 1:
        source = mul(graph, source, alpha)
    return _accumulated(graph, x, _positions(x).index_select(dim, index), source)


def scatter_add(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Entries of the source added to x at an index."""
    within = source[tuple(slice(n) for n in index.shape)]
    return _accumulated(graph, x, _positions(x).gather(dim, index), within)


def scatter(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Number) -> Tensor:
    """Entries of x replaced at an index."""
    ids = _ids(graph, source)
    return x.scatter(dim, index, ids if ids.ndim else ids.expand(index.shape))


def index_put(
    graph: Graph, x: Tensor, indices: list[Tensor | None], source: Tensor, accumulate: bool = False
) -> Tensor:
    """Entries of x replaced, or with ``accumulate`` added to."""
    if not accumulate:
        return torch.index_put(x, indices, source)  # type: ignore[arg-type]
    positions = torch.ops.aten.index(_positions(x), indices)
    return _accumulated(graph, x, positions, source)


_UNARY = {"reciprocal": "recip", "sgn": "sign"} | {
    op: op
    for op in "sqrt sin cos tan exp log tanh atan asin acos sign abs expm1 log1p erf sinh cosh".split()
}
_BINARY = {"pow": "pow", "atan2": "atan2", "minimum": "min", "maximum": "max"}
_COMPARE = {op: op for op in "lt le gt ge eq ne".split()}

_LOGIC = {
    f"{kind}_{name}": rule
    for kind in ("logical", "bitwise")
    for name, rule in {"not": logical_not, "and": logical_and, "or": logical_or}.items()
}

PREDICATES = frozenset([*_COMPARE, *_LOGIC])
"""Operations with a truth value as result."""

RULES: dict[str, Rule] = {
    **{name: _unary(op) for name, op in _UNARY.items()},
    **{name: _binary(op) for name, op in (_BINARY | _COMPARE).items()},
    "neg": lambda graph, x: -x,
    "add": add,
    "sub": sub,
    "rsub": rsub,
    "mul": mul,
    "div": div,
    "rsqrt": rsqrt,
    "log2": _logarithm(2.0),
    "log10": _logarithm(10.0),
    "exp2": exp2,
    "hypot": hypot,
    "where": where,
    "masked_fill": masked_fill,
    "clamp": clamp,
    "clamp_min": clamp,
    "clamp_max": lambda graph, x, high: clamp(graph, x, None, high),
    "relu": partial(clamp, low=0.0),
    "tanh_backward": tanh_backward,
    **_LOGIC,
    "fill": full_like,
    "full_like": full_like,
    "ones_like": partial(full_like, value=1.0),
    "new_full": new_full,
    "new_ones": partial(new_full, value=1.0),
    "constant_pad_nd": constant_pad_nd,
    "copy": copy,
    "triu": _triangle(torch.ge),
    "tril": _triangle(torch.le),
    "zero": lambda graph, x: torch.zeros_like(x),
    "sum": total,
    "mean": mean,
    "var": var,
    "prod": prod,
    "amax": _extreme("max"),
    "amin": _extreme("min"),
    "cumsum": cumsum,
    "mm": mm,
    "bmm": bmm,
    "mv": mv,
    "dot": dot,
    "addmm": _plus(mm),
    "addmv": _plus(mv),
    "baddbmm": _plus(bmm),
    "linalg_cross": cross,
    "index_add": index_add,
    "scatter": scatter,
    "scatter_add": scatter_add,
    "index_put": index_put,
}
"""Rules by the name of the ATen operation, without overload and without trailing underscore."""
