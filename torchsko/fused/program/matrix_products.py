"""Products of matrices of expressions: unrolled if they are small or sparse, otherwise dense operations.

Unrolled, zeros cost nothing and equal entries are computed once. For a humanoid, however, unrolled
products can be a hundred thousand instructions, each executed once a sample. They run at the speed
of the instruction fetch from memory, and compile for minutes. A dense operation
(`torchsko.fused.program.dense_block`) is one instruction for each group of columns
(`torchsko.fused.program.column_groups`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.fused.program.column_groups import Group, group_columns
from torchsko.fused.program.dense_block import DenseBlock
from torchsko.fused.program.elementwise import flat_list, ids_tensor
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.program import MAX_OPERATIONS, refuse_size

_MAX_UNROLLED = 4000
"""Largest number of scalar products that is always unrolled."""
_MAX_EXTRA_WORK = 1.9
"""Largest ratio of dense scalar products to unrolled ones; dense operations do not use symmetry."""
_MIN_PRODUCTS_PER_OPERAND = 4
"""Fewest scalar products for each operand, since operands are copied for the operation."""
_MIN_DENSE_VECTOR, _MAX_ZEROS = 500, 0.1
"""Fewest scalar products of a dense matrix with a vector, and the largest share of its zeros: operations
on one matrix share its copy."""


def bmm(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """Products of two stacks of matrices."""
    pairs = list(zip(x, y, strict=True))
    if 2 * x.numel() * y.shape[-1] > MAX_OPERATIONS:
        refuse_size(sum(_num_statements(a, b) for a, b in pairs))
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


def _num_statements(x: Tensor, y: Tensor) -> int:
    """Code length of a product: its operations, or the entries that dense operations read and write."""
    chosen = _groups(x, y)
    if chosen is None:
        return 2 * _num_unrolled(x, y)
    return sum(group.num_entries for group in chosen[0])


def _groups(x: Tensor, y: Tensor) -> tuple[list[Group], bool] | None:
    """Groups of columns of y, or of rows of x if the flag is set; None for an unrolled product."""
    unrolled = _num_unrolled(x, y)
    if y.shape[1] == 1 and unrolled >= max(_MIN_DENSE_VECTOR, (1 - _MAX_ZEROS) * x.numel()):
        return group_columns(x != 0, y != 0), False
    if x.shape == y.mT.shape and torch.equal(x, y.mT):
        unrolled //= 2  # the result is symmetric: equal entries are computed once
    if unrolled <= _MAX_UNROLLED:
        return None
    by_columns, by_rows = (group_columns(a != 0, b != 0) for a, b in ((x, y), (y.mT, x.mT)))
    columns, rows = (sum(group.products for group in groups) for groups in (by_columns, by_rows))
    operands = int((x != 0).sum() + (y != 0).sum())
    if not _MIN_PRODUCTS_PER_OPERAND * operands < min(columns, rows) < _MAX_EXTRA_WORK * unrolled:
        return None
    return (by_columns, False) if columns <= rows else (by_rows, True)


def _product(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    # Small products are unrolled whatever their zeros.
    limit = _MIN_DENSE_VECTOR if y.shape[1] == 1 else _MAX_UNROLLED + 1
    chosen = None if x.numel() * y.shape[1] < limit else _groups(x, y)
    if chosen is None:
        return _unrolled(graph, x.tolist(), y.mT.tolist())
    groups, by_rows = chosen
    return _dense(graph, y.mT, x.mT, groups).mT if by_rows else _dense(graph, x, y, groups)


def _unrolled(graph: Graph, rows: list[list[int]], columns: list[list[int]]) -> Tensor:
    add, mul = graph.add, graph.mul
    flat = []
    for row in rows:
        entries = [0] * len(columns)
        for k, a in enumerate(row):
            for j, column in enumerate(columns if a else ()):
                if b := column[k]:
                    entries[j] = add(entries[j], mul(a, b))
        flat += entries
    return ids_tensor(flat, (len(rows), len(columns)))


def _dense(graph: Graph, x: Tensor, y: Tensor, groups: list[Group]) -> Tensor:
    """Product x y, one operation for each group of columns of y."""
    result = x.new_zeros(x.shape[0], y.shape[1])
    for group in groups:
        rows, inner, columns = map(torch.tensor, (group.rows, group.inner, group.columns))
        left, right = x[rows[:, None], inner], y[inner[:, None], columns]
        # Results of an earlier operation are in order, so that all readers share one copy.
        by_rows, by_columns = flat_list(left), flat_list(left.mT)
        is_adjoint = by_columns == sorted(by_columns) and by_rows != sorted(by_rows)
        kind, fixed = ("adjoint_product", by_columns) if is_adjoint else ("product", by_rows)
        block = DenseBlock(kind, len(rows), len(inner), len(columns))
        node = graph.block(block, [*flat_list(right), *fixed])
        entries = [graph.part(node, k) for k in range(len(rows) * len(columns))]
        result[rows[:, None], columns] = ids_tensor(entries, (len(rows), len(columns)))
    return result
