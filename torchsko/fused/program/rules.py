"""Arithmetic of ATen operations on tensors of expressions.

A rule takes the graph and the arguments of the ATen operation, and returns the expressions of the
result. Each tensor of values is replaced by the int64 tensor of its expressions. Python numbers and
tensors named ``index`` or ``indices`` are passed unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.program import elementwise
from torchsko.fused.program.elementwise import Number, Rule, add, div, ids_of, ids_tensor, mul, sub
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.matrix_products import bmm, dot, mm, mv

# -- reductions ----------------------------------------------------------------------------------


def _reduced(
    fold: Callable[[list[int]], int], x: Tensor, dim: int | Sequence[int] | None, keepdim: bool
) -> Tensor:
    dims = [dim] if isinstance(dim, int) else list(dim if dim else range(x.ndim))
    dims = sorted(d % x.ndim for d in dims if x.ndim)  # PyTorch accepts dim 0 and -1 for scalars
    others = [d for d in range(x.ndim) if d not in dims]
    rows = x.permute(*others, *dims).flatten(len(others)) if dims else x[..., None]
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
    flat = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1]).tolist()
    return ids_tensor([fold(row) for row in flat], shape)


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
    """Variance over dimensions, with denominator n - correction."""
    centered = sub(graph, x, mean(graph, x, dim if dim else range(x.ndim), keepdim=True))
    sums = total(graph, mul(graph, centered, centered), dim, keepdim)
    count = x.numel() // max(sums.numel(), 1) - (1 if correction is None else correction)
    return div(graph, sums, max(float(count), 0.0))


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
    if not x.ndim:
        return x
    rows = x.movedim(dim, -1)
    columns = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1]).tolist()
    flat = [k for row in columns for k in _running(graph.add, row)]
    return ids_tensor(flat, rows.shape).movedim(-1, dim).contiguous()


# -- products ------------------------------------------------------------------------------------


def _plus(product: Rule) -> Rule:
    def rule(
        graph: Graph, bias: Tensor, x: Tensor, y: Tensor, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        scaled = bias if beta == 1 else mul(graph, bias, beta)
        return add(graph, scaled, product(graph, x, y), alpha)

    return rule


def cross(graph: Graph, x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Vector product along a dimension of size 3."""
    x, y = (z.movedim(dim, -1) for z in torch.broadcast_tensors(x, y))
    next_axis, last_axis = [1, 2, 0], [2, 0, 1]
    plus = mul(graph, x[..., next_axis], y[..., last_axis])
    return (
        sub(graph, plus, mul(graph, x[..., last_axis], y[..., next_axis]))
        .movedim(-1, dim)
        .contiguous()
    )


# -- accumulation at indices ---------------------------------------------------------------------


def _accumulated(graph: Graph, x: Tensor, positions: Tensor, source: Tensor) -> Tensor:
    """Expressions x with the source added at flat positions; positions may repeat."""
    flat = x.reshape(-1).tolist()
    source = source.expand(positions.shape)
    for k, s in zip(positions.reshape(-1).tolist(), source.reshape(-1).tolist(), strict=True):
        flat[k] = graph.add(flat[k], s)
    return ids_tensor(flat, x.shape)


def _positions(x: Tensor) -> Tensor:
    return torch.arange(x.numel()).reshape(x.shape)


def index_add(
    graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1
) -> Tensor:
    """Expressions x with slices of the source added at an index."""
    if alpha != 1:
        source = mul(graph, source, alpha)
    return _accumulated(graph, x, _positions(x).index_select(dim, index), source)


def scatter_add(graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Expressions x with entries of the source added at an index."""
    values = source[tuple(slice(n) for n in index.shape)]
    return _accumulated(graph, x, _positions(x).gather(dim, index), values)


def scatter(
    graph: Graph, x: Tensor, dim: int, index: Tensor, source: Number, reduce: str | None = None
) -> Tensor:
    """Expressions x with entries replaced at an index, or increased for ``reduce="add"``."""
    ids = ids_of(graph, source)
    ids = ids if ids.ndim else ids.expand(index.shape)
    if reduce is None:
        return x.scatter(dim, index, ids)
    if reduce == "add":
        return scatter_add(graph, x, dim, index, ids)
    raise FusedError(
        f"torch.scatter(reduce={reduce!r}) has neither a derivative nor a kernel.",
        advice="Read the entries by torch.gather, multiply them, and write them by a plain scatter.",
    )


def index_put(
    graph: Graph, x: Tensor, indices: list[Tensor | None], source: Tensor, accumulate: bool = False
) -> Tensor:
    """Expressions x with entries replaced, or increased for ``accumulate``."""
    if not accumulate:
        return torch.index_put(x, indices, source)  # type: ignore[arg-type]
    positions = torch.ops.aten.index(_positions(x), indices)
    return _accumulated(graph, x, positions, source)


_UNARY = {"reciprocal": "recip", "sgn": "sign"} | {
    op: op
    for op in (
        "sqrt sin cos tan exp log tanh atan asin acos sign abs expm1 log1p erf sinh cosh floor trunc"
    ).split()
}
_BINARY = {"pow": "pow", "atan2": "atan2", "fmod": "fmod", "minimum": "min", "maximum": "max"}
_COMPARE = {op: op for op in "lt le gt ge eq ne".split()}
_LOGIC = {
    f"{kind}_{name}": rule
    for kind in ("logical", "bitwise")
    for name, rule in {
        "not": elementwise.logical_not,
        "and": elementwise.logical_and,
        "or": elementwise.logical_or,
        "xor": elementwise.logical_xor,
    }.items()
}

RULES: dict[str, Rule] = {
    **{name: elementwise.unary(op) for name, op in _UNARY.items()},
    **{name: elementwise.binary(op) for name, op in (_BINARY | _COMPARE).items()},
    "neg": lambda graph, x: -x,
    "add": add,
    "sub": sub,
    "rsub": elementwise.rsub,
    "mul": mul,
    "div": div,
    "floor_divide": partial(div, rounding_mode="floor"),
    "remainder": elementwise.remainder,
    "ceil": elementwise.ceil,
    "round": elementwise.rounded,
    "rsqrt": elementwise.rsqrt,
    "log2": elementwise.logarithm(2.0),
    "log10": elementwise.logarithm(10.0),
    "exp2": elementwise.exp2,
    "hypot": elementwise.hypot,
    "where": elementwise.where,
    "masked_fill": elementwise.masked_fill,
    "clamp": elementwise.clamp,
    "clamp_min": elementwise.clamp,
    "clamp_max": lambda graph, x, high: elementwise.clamp(graph, x, None, high),
    "relu": partial(elementwise.clamp, low=0.0),
    "tanh_backward": elementwise.tanh_backward,
    **_LOGIC,
    "fill": elementwise.full_like,
    "full_like": elementwise.full_like,
    "ones_like": partial(elementwise.full_like, value=1.0),
    "new_full": elementwise.new_full,
    "new_ones": partial(elementwise.new_full, value=1.0),
    "constant_pad_nd": elementwise.constant_pad_nd,
    "copy": elementwise.copy,
    "triu": elementwise.triangle(torch.ge),
    "tril": elementwise.triangle(torch.le),
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
"""Rules by the name of the ATen operation, without overload and trailing underscore."""

ELEMENTWISE = frozenset(
    [*_UNARY, *_BINARY, *_COMPARE, *_LOGIC]
    + "neg add sub rsub mul div floor_divide remainder ceil round rsqrt log2 log10 exp2 hypot where "
    "masked_fill clamp clamp_min clamp_max relu full_like ones_like".split()
)
"""Elementwise operations, whose results have the strides of their operands."""
