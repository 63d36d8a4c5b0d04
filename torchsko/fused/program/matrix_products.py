"""Products of matrices of expressions: unrolled if they are small, otherwise loops over columns.

Unrolled, zeros cost nothing and equal entries are computed once. For a humanoid, however, unrolled
products can be a hundred thousand instructions, each executed once a sample. They run at the speed
of the instruction fetch from memory, and compile for minutes. The body of a loop multiplies a few
columns and stays in the cache. There is one loop for each group of columns
(`torchsko.fused.program.column_groups`); `_loops_over_columns` decides by counting operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.fused.program.column_groups import Group, group_columns
from torchsko.fused.program.elementwise import flat_list, ids_in_body, ids_tensor, invariant_ids
from torchsko.fused.program.graph import Graph, MatrixProduct
from torchsko.fused.program.lower import lower
from torchsko.fused.program.program import MAX_OPERATIONS, Loop, Port, refuse_size
from torchsko.implicit.loop_roles import LoopRoles

_MAX_UNROLLED = 4000
"""Largest number of scalar products that is always unrolled."""
_MAX_EXTRA_WORK = 1.9
"""Largest ratio of scalar products in loops to unrolled ones; loops do not use symmetry."""
_MIN_PRODUCTS_PER_OPERAND = 4
"""Fewest scalar products for each operand, since operands are copied to the scratch of the loop."""
_ROWS_PER_BLOCK = 4
"""Rows that a loop body multiplies together, with one read of each column entry."""


def bmm(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Products of two stacks of matrices."""
    pairs = list(zip(x, y, strict=True))
    if 2 * x.numel() * y.shape[-1] > MAX_OPERATIONS:
        refuse_size(2 * sum(_products_in_code(a, b) for a, b in pairs))
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


def _num_unrolled(x: Tensor, y: Tensor) -> int:
    """Number of scalar products of nonzero entries."""
    return int(((x != 0).sum(-2) * (y != 0).sum(-1)).sum())


def _loops_over_columns(x: Tensor, y: Tensor) -> bool | None:
    """True for loops over columns of y, False for loops over rows of x, None for an unrolled product."""
    unrolled = _num_unrolled(x, y)
    if x.shape == y.mT.shape and torch.equal(x, y.mT):
        unrolled //= 2  # the result is symmetric: equal entries are computed once
    if unrolled <= _MAX_UNROLLED:
        return None
    columns, rows = (
        sum(group.products for group in group_columns([a != 0], b != 0))
        for a, b in ((x, y), (y.mT, x.mT))
    )
    operands = int((x != 0).sum() + (y != 0).sum())
    fewest = min(columns, rows)
    use_loops = _MIN_PRODUCTS_PER_OPERAND * operands < fewest < _MAX_EXTRA_WORK * unrolled
    return columns <= rows if use_loops else None


def _products_in_code(x: Tensor, y: Tensor) -> int:
    """Number of scalar products in the program: all if unrolled, else those of one iteration of each loop."""
    over_columns = _loops_over_columns(x, y)
    if over_columns is None:
        return _num_unrolled(x, y)
    first, last = (x, y) if over_columns else (y.mT, x.mT)
    return sum(group.products_in_code for group in group_columns([first != 0], last != 0))


def _product(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    over_columns = _loops_over_columns(x, y)
    if over_columns is None:
        return _unrolled(graph, x.tolist(), y.mT.tolist(), rows_per_block=1)
    return _looped(graph, x, y) if over_columns else _looped(graph, y.mT, x.mT).mT


def _unrolled(
    graph: Graph, rows: list[list[int]], columns: list[list[int]], rows_per_block: int
) -> Tensor:
    add, mul = graph.add, graph.mul
    flat = []
    for first in range(0, len(rows), rows_per_block):
        block = rows[first : first + rows_per_block]
        entries = [[0] * len(columns) for _ in block]
        # The outer loop runs over k, so that each entry is used for the whole block after it is read.
        for k, block_column in enumerate(zip(*block, strict=True)):
            for i, a in enumerate(block_column):
                for j, column in enumerate(columns if a else ()):
                    if b := column[k]:
                        entries[i][j] = add(entries[i][j], mul(a, b))
        flat += [x for row in entries for x in row]
    return ids_tensor(flat, (len(rows), len(columns)))


def _looped(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Product x y by loops over columns of y. If y is such a product as well, the same loops compute it."""
    nodes = (graph.nodes[abs(k)] for k in flat_list(y) if k)
    inner = next((graph.products.get(node[1]) for node in nodes if node[0] == "part"), None)
    factors, columns = [x], y
    if inner is not None and torch.equal(inner.result, y):
        factors, columns = [x, *inner.factors], inner.columns
    result = x.new_zeros(x.shape[0], y.shape[1])
    loops = []
    for group in group_columns([factor != 0 for factor in factors], columns != 0):
        rows, entries, node = _loop(graph, factors, columns, group)
        result[rows[:, None], torch.tensor(group.columns)] = entries
        loops.append(node)
    graph.products.update((node, MatrixProduct(factors, columns, result)) for node in loops)
    return result


def _loop(
    graph: Graph, factors: Sequence[Tensor], y: Tensor, group: Group
) -> tuple[Tensor, Tensor, int]:
    """One group of columns of the product of all factors and y, ``group.width`` columns an iteration.

    Returns:
        The indices of rows that are not zero, the entries of these rows, and the node of the loop.
    """
    rows = _nonzero_rows(y[:, group.columns] != 0)
    # The last column is repeated to fill the last iteration.
    streamed = y[rows][
        :, [*group.columns, *[group.columns[-1]] * (-len(group.columns) % group.width)]
    ]
    matrices = []
    for factor in reversed(factors):
        matrix = factor[:, rows]
        rows = _nonzero_rows(matrix != 0)
        matrices.append(matrix[rows])
    body, num_streamed = Graph(), streamed.shape[0] * group.width
    columns = ids_tensor(
        [body.input(k) for k in range(num_streamed)], (group.width, streamed.shape[0])
    )
    invariant = invariant_ids(graph, factors)  # equal for all groups, which share their slots
    inputs = {x: body.input(num_streamed + k) for k, x in enumerate(invariant)}
    for x in matrices:
        matrix = ids_in_body(graph, body, inputs, x)
        columns = _unrolled(body, matrix.tolist(), columns.tolist(), _ROWS_PER_BLOCK).mT
    ports = [Port("columns", (group.width, streamed.shape[0])), Port("matrix", (len(invariant),))]
    program = lower(body, flat_list(columns), ports, [Port("products", tuple(columns.shape))])
    loop = Loop.of(program, LoopRoles(0, 1, 1, 0), streamed.shape[1] // group.width)
    node = graph.loop(loop, [*flat_list(streamed.mT), *invariant])
    parts = [graph.part(node, k) for k in range(loop.num_parts)]
    entries = ids_tensor(parts, (streamed.shape[1], rows.shape[0])).mT
    return rows, entries[:, : len(group.columns)], node


def _nonzero_rows(is_nonzero: Tensor) -> Tensor:
    """Indices of rows with a nonzero entry."""
    return is_nonzero.any(1).nonzero()[:, 0]
