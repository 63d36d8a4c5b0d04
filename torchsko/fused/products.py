"""Products of matrices of expressions: spelt out while that is short, as a loop when it is not.

Spelt out, zeros cost nothing and equal entries are computed once. The large products of a humanoid would
be most of its program, however: a hundred thousand instructions, each executed once a sample, come from
memory more slowly than they run, and compile for minutes. A loop has the products of some columns as its
body, which stays in the cache; `_loop_columns` decides by counting.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.fused.entries import listed, staying, tensor_of, within
from torchsko.fused.graph import Graph
from torchsko.fused.lower import lower
from torchsko.fused.program import MOST_OPERATIONS, Loop, Port, refuse_size
from torchsko.implicit.steps import Roles

_LONG = 4000  # products of entries that are spelt out without a second thought
_WASTE = 2.5  # products in the loop to one spelt out: zeros of what comes anew are multiplied, too
_USES = 4  # products an operand: each is copied to where the loop reads it
_TOGETHER = (4, 3, 2)  # columns of a round, so that what stays is read less often than multiplied


@dataclass(frozen=True)
class Products:
    """What a loop of products computes.

    Attributes:
        factors: the matrices in front, from the left.
        columns: the one whose columns come round by round.
        result: the product of all.
    """

    factors: list[Tensor]
    columns: Tensor
    result: Tensor


def bmm(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Product of stacks of matrices; zeros cost nothing."""
    pairs = list(zip(x, y, strict=True))
    if 2 * x.numel() * y.shape[-1] > MOST_OPERATIONS:  # before anyone waits for it
        refuse_size(2 * sum(_written_products(a, b) for a, b in pairs))
    products = [_product(graph, a, b) for a, b in pairs]
    return torch.stack(products) if products else x.new_zeros(*x.shape[:-1], y.shape[-1])


def mm(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Product of two matrices."""
    return bmm(graph, x[None], y[None])[0]


def mv(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Product of a matrix and a vector."""
    return mm(graph, x, y[:, None])[:, 0]


def dot(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Inner product of two vectors."""
    return mv(graph, x[None], y)[0]


def _spelt_out(x: Tensor, y: Tensor) -> int:
    """Products of entries that are not zero."""
    return int(((x != 0).sum(-2) * (y != 0).sum(-1)).sum())


def _loop_columns(x: Tensor, y: Tensor) -> bool | None:
    """Whether a loop over columns of y computes the product, or over rows of x; None for no loop."""
    spelt_out = _spelt_out(x, y)
    if x.shape == y.mT.shape and torch.equal(x, y.mT):
        spelt_out //= 2  # of two equal entries one is computed
    if spelt_out <= _LONG:
        return None
    by_columns, by_rows = ((a != 0).sum() * b.shape[1] for a, b in ((x, y), (y.mT, x.mT)))
    repeated = int(min(by_columns, by_rows))
    operands = int((x != 0).sum() + (y != 0).sum())
    pays = repeated < _WASTE * spelt_out and repeated > _USES * operands
    return bool(by_columns <= by_rows) if pays else None


def _written_products(x: Tensor, y: Tensor) -> int:
    """Products of entries that the program has: all, or those of one round."""
    columns = _loop_columns(x, y)
    if columns is None:
        return _spelt_out(x, y)
    stays, anew = (x, y.shape[1]) if columns else (y, x.shape[0])
    return int((stays != 0).sum()) * _width(anew)


def _product(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    columns = _loop_columns(x, y)
    if columns is None:
        return _written(graph, x.tolist(), y.mT.tolist())
    return _looped(graph, x, y) if columns else _looped(graph, y.mT, x.mT).mT


def _written(graph: Graph, rows: list[list[int]], columns: list[list[int]]) -> Tensor:
    add, mul = graph.add, graph.mul
    flat = []
    for row in rows:
        entries = [0] * len(columns)
        for k, a in enumerate(row):  # outside: a loop reads it once for all columns
            if a:
                for j, column in enumerate(columns):
                    if b := column[k]:
                        entries[j] = add(entries[j], mul(a, b))
        flat += entries
    return tensor_of(flat, (len(rows), len(columns)))


def _looped(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """X y as a loop over columns of y; a y that is such a product itself is computed in the same rounds."""
    first = graph.nodes[abs(int(y[0, 0]))]
    before = graph.products.get(first[1]) if first[0] == "part" else None
    if before is not None and torch.equal(before.result, y):
        return _rounds(graph, [x, *before.factors], before.columns)
    kept = (y != 0).any(1)
    return _rounds(graph, [x[:, kept]], y[kept])


def _width(columns: int) -> int:
    """How many columns are computed in one round."""
    return next((k for k in _TOGETHER if columns % k == 0), 1)


def _rounds(graph: Graph, factors: list[Tensor], y: Tensor) -> Tensor:
    """The product of all, some columns of y a round; entries of factors stay, zeros and signs in the body."""
    width = _width(y.shape[1])
    body, num_anew = Graph(), y.shape[0] * width
    columns = tensor_of([body.input(k) for k in range(num_anew)], (width, y.shape[0]))
    kept = staying(graph, factors)
    inside = {x: body.input(num_anew + k) for k, x in enumerate(kept)}
    for x in reversed(factors):
        matrix = within(graph, body, inside, x)
        columns = _written(body, matrix.tolist(), columns.tolist()).mT
    ports = [Port("columns", (width, y.shape[0])), Port("matrix", (len(kept),))]
    program = lower(body, listed(columns), ports, [Port("products", tuple(columns.shape))])
    loop = Loop.of(program, Roles(0, 1, 1, 0), y.shape[1] // width, False, False)
    node = graph.loop(loop, [*listed(y.mT), *kept])
    parts = [graph.part(node, k) for k in range(loop.num_parts)]
    result = tensor_of(parts, (y.shape[1], factors[0].shape[0])).mT
    graph.products[node] = Products(factors, y, result)
    return result
