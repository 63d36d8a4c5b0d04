"""Arithmetic of ATen operations on tensors of expressions.

Every rule takes the graph and the arguments of the ATen operation, with each tensor of values
replaced by the int64 tensor of its expressions; tensors named ``index`` or ``indices`` stay as they
are, and so do Python numbers. It returns the expressions of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.program import entries
from torchsko.fused.program.entries import Number, Rule, add, div, ids_of, mul, sub, tensor_of
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.matrix_products import bmm, dot, mm, mv

# -- reductions ----------------------------------------------------------------------------------


def _reduced(
    fold: Callable[[list[int]], int], x: Tensor, dim: int | Sequence[int] | None, keepdim: bool
) -> Tensor:
    dims = [dim] if isinstance(dim, int) else list(dim if dim else range(x.ndim))
    dims = sorted(d % x.ndim for d in dims if x.ndim)  # a number alone has dimension 0 or -1, too
    kept = [d for d in range(x.ndim) if d not in dims]
    rows = x.permute(*kept, *dims).flatten(len(kept)) if dims else x[..., None]
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
    flat = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1]).tolist()
    return tensor_of([fold(row) for row in flat], shape)


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
    listed = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1]).tolist()
    flat = [k for row in listed for k in _running(graph.add, row)]
    return tensor_of(flat, rows.shape).movedim(-1, dim).contiguous()


# -- products ------------------------------------------------------------------------------------


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
    return sub(graph, plus, mul(graph, x[..., behind], y[..., ahead])).movedim(-1, dim).contiguous()


# -- accumulation at indices ---------------------------------------------------------------------


def _accumulated(graph: Graph, x: Tensor, positions: Tensor, source: Tensor) -> Tensor:
    """Expressions x with the source added at flat positions, which may repeat."""
    flat = x.reshape(-1).tolist()
    source = source.expand(positions.shape)
    for k, s in zip(positions.reshape(-1).tolist(), source.reshape(-1).tolist(), strict=True):
        flat[k] = graph.add(flat[k], s)
    return tensor_of(flat, x.shape)


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


def scatter(
    graph: Graph, x: Tensor, dim: int, index: Tensor, source: Number, reduce: str | None = None
) -> Tensor:
    """Entries of x replaced at an index, or added to."""
    ids = ids_of(graph, source)
    ids = ids if ids.ndim else ids.expand(index.shape)
    if reduce is None:
        return x.scatter(dim, index, ids)
    if reduce == "add":
        return scatter_add(graph, x, dim, index, ids)
    raise FusedError(
        f"torch.scatter(reduce={reduce!r}) has no derivative and no kernel.",
        advice="Multiply what torch.gather takes, and put it back by a plain scatter.",
    )


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
        "not": entries.logical_not,
        "and": entries.logical_and,
        "or": entries.logical_or,
        "xor": entries.logical_xor,
    }.items()
}

RULES: dict[str, Rule] = {
    **{name: entries.unary(op) for name, op in _UNARY.items()},
    **{name: entries.binary(op) for name, op in (_BINARY | _COMPARE).items()},
    "neg": lambda graph, x: -x,
    "add": add,
    "sub": sub,
    "rsub": entries.rsub,
    "mul": mul,
    "div": div,
    "floor_divide": partial(div, rounding_mode="floor"),
    "remainder": entries.remainder,
    "ceil": entries.ceil,
    "round": entries.rounded,
    "rsqrt": entries.rsqrt,
    "log2": entries.logarithm(2.0),
    "log10": entries.logarithm(10.0),
    "exp2": entries.exp2,
    "hypot": entries.hypot,
    "where": entries.where,
    "masked_fill": entries.masked_fill,
    "clamp": entries.clamp,
    "clamp_min": entries.clamp,
    "clamp_max": lambda graph, x, high: entries.clamp(graph, x, None, high),
    "relu": partial(entries.clamp, low=0.0),
    "tanh_backward": entries.tanh_backward,
    **_LOGIC,
    "fill": entries.full_like,
    "full_like": entries.full_like,
    "ones_like": partial(entries.full_like, value=1.0),
    "new_full": entries.new_full,
    "new_ones": partial(entries.new_full, value=1.0),
    "constant_pad_nd": entries.constant_pad_nd,
    "copy": entries.copy,
    "triu": entries.triangle(torch.ge),
    "tril": entries.triangle(torch.le),
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

ELEMENTWISE = frozenset(
    [*_UNARY, *_BINARY, *_COMPARE, *_LOGIC]
    + "neg add sub rsub mul div floor_divide remainder ceil round rsqrt log2 log10 exp2 hypot where "
    "masked_fill clamp clamp_min clamp_max relu full_like ones_like".split()
)
"""Operations entry by entry, whose results lie in memory as their operands do."""
