"""Products of matrices of expressions: spelt out while that is short, as a loop when it is not.

Spelt out, zeros cost nothing and equal entries are computed once. The large products of a humanoid would
be most of its program, however: a hundred thousand instructions, each executed once a sample, come from
memory more slowly than they run, and compile for minutes. A loop has the products of some columns as its
body, which stays in the cache, one loop for each kind of columns
(`torchsko.fused.program.column_groups`); `_by_columns`
decides by counting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.fused.program.column_groups import Group, grouped
from torchsko.fused.program.entries import listed, staying, tensor_of, within
from torchsko.fused.program.graph import Graph, MatrixProduct
from torchsko.fused.program.lower import lower
from torchsko.fused.program.program import MOST_OPERATIONS, Loop, Port, refuse_size
from torchsko.implicit.step_roles import Roles

_LONG = 4000  # products of entries that are spelt out without a second thought
_WASTE = 1.9  # products in loops to one spelt out; of symmetric ones a loop computes both halves
_USES = 4  # products an operand: each is copied to where the loop reads it
# Rows that a round multiplies with its columns, so that an entry is read once for several.
_ROWS_AT_ONCE = 4


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


def _by_columns(x: Tensor, y: Tensor) -> bool | None:
    """Whether loops over columns of y compute the product, or over rows of x; None for no loop."""
    spelt_out = _spelt_out(x, y)
    if x.shape == y.mT.shape and torch.equal(x, y.mT):
        spelt_out //= 2  # of two equal entries one is computed
    if spelt_out <= _LONG:
        return None
    columns, rows = (
        sum(group.products for group in grouped([a != 0], b != 0))
        for a, b in ((x, y), (y.mT, x.mT))
    )
    operands = int((x != 0).sum() + (y != 0).sum())
    pays = _USES * operands < min(columns, rows) < _WASTE * spelt_out
    return columns <= rows if pays else None


def _written_products(x: Tensor, y: Tensor) -> int:
    """Products of entries that the program has: all, or those of one round of each loop."""
    by_columns = _by_columns(x, y)
    if by_columns is None:
        return _spelt_out(x, y)
    first, last = (x, y) if by_columns else (y.mT, x.mT)
    return sum(group.written for group in grouped([first != 0], last != 0))


def _product(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    by_columns = _by_columns(x, y)
    if by_columns is None:
        return _written(graph, x.tolist(), y.mT.tolist(), rows_at_once=1)
    return _looped(graph, x, y) if by_columns else _looped(graph, y.mT, x.mT).mT


def _written(
    graph: Graph, rows: list[list[int]], columns: list[list[int]], rows_at_once: int
) -> Tensor:
    add, mul = graph.add, graph.mul
    flat = []
    for first in range(0, len(rows), rows_at_once):
        block = rows[first : first + rows_at_once]
        entries = [[0] * len(columns) for _ in block]
        # Outside: what is read is multiplied with all of the block before the next.
        for k, of_block in enumerate(zip(*block, strict=True)):
            for i, a in enumerate(of_block):
                for j, column in enumerate(columns if a else ()):
                    if b := column[k]:
                        entries[i][j] = add(entries[i][j], mul(a, b))
        flat += [x for row in entries for x in row]
    return tensor_of(flat, (len(rows), len(columns)))


def _looped(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """X y as loops over columns of y; a y that is such a product itself is computed in the same rounds."""
    nodes = (graph.nodes[abs(k)] for k in listed(y) if k)
    before = next((graph.products.get(node[1]) for node in nodes if node[0] == "part"), None)
    factors, columns = [x], y
    if before is not None and torch.equal(before.result, y):
        factors, columns = [x, *before.factors], before.columns
    result = x.new_zeros(x.shape[0], y.shape[1])
    loops = []
    for group in grouped([factor != 0 for factor in factors], columns != 0):
        rows, found, node = _rounds(graph, factors, columns, group)
        result[rows[:, None], torch.tensor(group.columns)] = found
        loops.append(node)
    graph.products.update((node, MatrixProduct(factors, columns, result)) for node in loops)
    return result


def _rounds(
    graph: Graph, factors: Sequence[Tensor], y: Tensor, group: Group
) -> tuple[Tensor, Tensor, int]:
    """Some columns of the product of all, some of them a round.

    Returns:
        The numbers of rows that are not zero, these rows, and the node of the loop.
    """
    rows = _kept(y[:, group.columns] != 0)
    # The last column once more, to fill the last round.
    anew = y[rows][:, [*group.columns, *[group.columns[-1]] * (-len(group.columns) % group.width)]]
    matrices = []
    for factor in reversed(factors):
        matrix = factor[:, rows]
        rows = _kept(matrix != 0)
        matrices.append(matrix[rows])
    body, num_anew = Graph(), anew.shape[0] * group.width
    columns = tensor_of([body.input(k) for k in range(num_anew)], (group.width, anew.shape[0]))
    kept = staying(graph, factors)  # of all groups the same, in one place
    inside = {x: body.input(num_anew + k) for k, x in enumerate(kept)}
    for x in matrices:
        matrix = within(graph, body, inside, x)
        columns = _written(body, matrix.tolist(), columns.tolist(), _ROWS_AT_ONCE).mT
    ports = [Port("columns", (group.width, anew.shape[0])), Port("matrix", (len(kept),))]
    program = lower(body, listed(columns), ports, [Port("products", tuple(columns.shape))])
    loop = Loop.of(program, Roles(0, 1, 1, 0), anew.shape[1] // group.width, False, False)
    node = graph.loop(loop, [*listed(anew.mT), *kept])
    parts = [graph.part(node, k) for k in range(loop.num_parts)]
    found = tensor_of(parts, (anew.shape[1], rows.shape[0])).mT
    return rows, found[:, : len(group.columns)], node


def _kept(some: Tensor) -> Tensor:
    """The numbers of rows of which some entry is not zero."""
    return some.any(1).nonzero()[:, 0]
