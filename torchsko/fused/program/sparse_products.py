"""Products of sparse matrices of expressions by dense operations on rows of equal sparsity.

The rows of a robot's matrices come in groups: those of the joints of a limb have entries in the same columns.
One operation multiplies all rows of a group (`torchsko.fused.program.dense_block`), without the zeros; small
groups are unrolled. Rows that are equal up to their sign, as those of a limit on both sides, are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from torchsko.fused.program.dense_block import DenseBlock
from torchsko.fused.program.elementwise import flat_list, ids_tensor
from torchsko.fused.program.graph import Graph

_MIN_ENTRIES = 48
"""Fewest entries of a group for which its products are one operation."""

_UNROLLED_TIME = 4
"""Time of an unrolled product, in products of an operation."""

Row = tuple[int, ...]
Groups = dict[Row, dict[Row, int]]
"""For the columns of the nonzero entries, the rows with these entries alone, and the sum of their weights."""


def gram(graph: Graph, rows: Tensor, weights: Tensor) -> Tensor:
    """The symmetric matrix A* w A, with a diagonal matrix w."""
    total: dict[tuple[int, int], int] = {}
    for columns, group in _grouped(graph, rows, flat_list(weights), squared=True).items():
        pairs = [(i, j) for i in range(len(columns)) for j in range(i + 1)]
        block = DenseBlock("gram", len(columns), len(group))
        entries = _by_block(graph, block, group.values(), group) or [
            graph.sum(graph.mul(graph.mul(w, row[i]), row[j]) for row, w in group.items())
            for i, j in pairs
        ]
        for (i, j), x in zip(pairs, entries, strict=True):
            place = columns[i], columns[j]
            total[place] = graph.add(total.get(place, 0), x)
    n = rows.shape[1]
    entries = [total.get((max(i, j), min(i, j)), 0) for i in range(n) for j in range(n)]
    return ids_tensor(entries, (n, n))


def vector_product(graph: Graph, A: Tensor, x: Tensor) -> Tensor:
    """Product of a matrix and a vector, by groups of rows or of columns."""
    by_rows = _grouped(graph, A, [0] * len(A))
    by_columns = _grouped(graph, A.mT, flat_list(x))
    if _time(by_rows) <= _time(by_columns):
        return _by_rows(graph, by_rows, A, flat_list(x))
    total = [0] * len(A)
    for rows, group in by_columns.items():
        block = DenseBlock("adjoint_product", len(rows), len(group), 1)
        entries = _by_block(graph, block, group.values(), group) or [
            graph.sum(graph.mul(column[i], w) for column, w in group.items())
            for i in range(len(rows))
        ]
        for i, entry in zip(rows, entries, strict=True):
            total[i] = graph.add(total[i], entry)
    return ids_tensor(total, (len(total),))


def _by_rows(graph: Graph, groups: Groups, A: Tensor, x: list[int]) -> Tensor:
    known: dict[tuple[Row, Row], int] = {}
    for columns, group in groups.items():
        chosen = [x[k] for k in columns]
        block = DenseBlock("product", len(group), len(columns), 1)
        entries = _by_block(graph, block, chosen, group) or [
            graph.sum(map(graph.mul, row, chosen)) for row in group
        ]
        known |= {(columns, row): y for row, y in zip(group, entries, strict=True)}
    found = []
    for row in A.tolist():
        columns, entries, sign = _entries(row)
        found.append(sign * known[columns, entries] if columns else 0)
    return ids_tensor(found, (len(found),))


def _by_block(
    graph: Graph, block: DenseBlock, variable: Iterable[int], rows: Iterable[Row]
) -> list[int]:
    """The result of one operation, or nothing for small matrices."""
    fixed = [x for row in rows for x in row]
    if len(fixed) < _MIN_ENTRIES:
        return []
    node = graph.block(block, [*variable, *fixed])
    return [graph.part(node, k) for k in range(block.sizes[2])]


def _grouped(graph: Graph, rows: Tensor, weights: Sequence[int], squared: bool = False) -> Groups:
    groups: Groups = {}
    for row, weight in zip(rows.tolist(), weights, strict=True):
        columns, entries, sign = _entries(row)
        if columns:
            group = groups.setdefault(columns, {})
            weight = weight if squared else sign * weight
            group[entries] = graph.add(group.get(entries, 0), weight)
    return groups


def _entries(row: Sequence[int]) -> tuple[Row, Row, int]:
    """Columns of the nonzero entries of a row, these entries with a positive first one, and their sign."""
    columns = tuple(k for k, x in enumerate(row) if x)
    sign = -1 if columns and row[columns[0]] < 0 else 1
    return columns, tuple(sign * row[k] for k in columns), sign


def _time(groups: Groups) -> int:
    """Time of the products of all rows with a vector, in products of an operation."""
    sizes = [len(columns) * len(group) for columns, group in groups.items()]
    return sum(size if size >= _MIN_ENTRIES else _UNROLLED_TIME * size for size in sizes)
