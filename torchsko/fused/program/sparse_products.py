"""Products of sparse matrices of expressions: dense operations on groups of rows, or unrolled.

The rows of a robot's matrices come in groups: those of the joints of a limb have entries in the same columns.
One operation multiplies all groups (`torchsko.fused.program.dense_block`), without the zeros; products of
small matrices are unrolled. Operations read stored matrices where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from torchsko.fused.program.dense_block import DenseBlock
from torchsko.fused.program.elementwise import flat_list, ids_tensor
from torchsko.fused.program.graph import Graph
from torchsko.linalg.dense import packed

_MIN_ENTRIES = 100
"""Fewest entries of a matrix whose products are one operation."""

Groups = dict[tuple[int, ...], list[int]]
"""Numbers of the rows with entries in the same columns, by these columns."""


def store(
    graph: Graph, symmetric: Tensor, matrices: Sequence[Tensor], vectors: Sequence[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Copies of tensors in consecutive memory, in the order in which products read them.

    Returns:
        All entries in their order, then copies of the arguments. Zeros of the matrices stay structural.
    """
    n, groups = symmetric.shape[-1], [_groups(A) for A in matrices]
    flat = [x for vector in vectors for x in flat_list(vector)]
    for A, of_matrix in zip(matrices, groups, strict=True):
        flat += _entries(A, of_matrix)
    flat += flat_list(packed(symmetric.mT))
    entries = _parts(graph, DenseBlock("store", len(flat)), flat)
    rest = iter(entries)
    stored_vectors = [ids_tensor([next(rest) for _ in range(len(x))], x.shape) for x in vectors]
    stored_matrices = []
    for A, of_matrix in zip(matrices, groups, strict=True):
        copy = [[0] * A.shape[1] for _ in range(A.shape[0])]
        for columns, rows in of_matrix.items():
            for row in rows:
                for column in columns:
                    copy[row][column] = next(rest)
        stored_matrices.append(ids_tensor([x for row in copy for x in row], A.shape))
    return (
        ids_tensor(entries, (len(entries),)),
        _mirrored([*rest], n),
        stored_matrices,
        stored_vectors,
    )


def gram(
    graph: Graph, A: Tensor, weights: Tensor, start: Tensor | None = None, *, shift: float = 0.0
) -> Tensor:
    """The symmetric matrix A* w A, with a diagonal matrix w, plus a symmetric matrix and a shift."""
    n, groups = A.shape[1], _groups(A)
    entries, start_entries = _entries(A, groups), []
    if start is not None:
        start_entries = flat_list(packed(start.mT))
    if len(entries) >= _MIN_ENTRIES:
        adds = start is not None
        block = DenseBlock("gram", n, len(A), groups=_table(groups), shift=shift, adds=adds)
        found = _parts(graph, block, [*flat_list(weights), *entries, *start_entries])
        return _mirrored(found, n)
    total = dict(enumerate(start_entries))
    of_row, w = A.tolist(), flat_list(weights)
    for columns, rows in groups.items():
        for a, i in enumerate(columns):
            for j in columns[: a + 1]:
                place = i * (i + 1) // 2 + j
                products = (graph.mul(graph.mul(w[k], of_row[k][i]), of_row[k][j]) for k in rows)
                total[place] = graph.add(total.get(place, 0), graph.sum(products))
    for i in range(n):
        place = i * (i + 3) // 2
        total[place] = graph.add(total.get(place, 0), graph.const(shift))
    return _mirrored([total.get(k, 0) for k in range(n * (n + 1) // 2)], n)


def vector_product(graph: Graph, A: Tensor, x: Tensor) -> Tensor:
    """Product of a matrix and a vector."""
    m, n = A.shape
    by_rows, by_columns, vector = _groups(A), _groups(A.mT), flat_list(x)
    entries, adjoint = _entries(A, by_rows), _entries(A.mT, by_columns)
    if len(entries) < _MIN_ENTRIES:
        found = [graph.sum(map(graph.mul, row, vector)) for row in A.tolist()]
    elif m == n and torch.equal(A, A.mT):
        block = DenseBlock("symmetric", n)
        found = _parts(graph, block, [*vector, *flat_list(packed(A))])
    # A stored matrix is read where it lies; otherwise few groups take the least time.
    elif (_is_increasing(adjoint), -len(by_columns)) > (_is_increasing(entries), -len(by_rows)):
        block = DenseBlock("sparse_adjoint", m, n, groups=_table(by_columns))
        found = _parts(graph, block, [*vector, *adjoint])
    else:
        block = DenseBlock("sparse", n, m, groups=_table(by_rows))
        found = _parts(graph, block, [*vector, *entries])
    return ids_tensor(found, (m,))


def forward_adjoint(graph: Graph, A: Tensor, L: Tensor) -> Tensor:
    """X with L X = A*, for L with a diagonal of ones."""
    groups = _groups(A)
    n, k = L.shape[-1], A.shape[-2]
    block = DenseBlock("sparse_forward", n, k, unit=True, groups=_table(groups))
    found = _parts(graph, block, [*_entries(A, groups), *flat_list(packed(L))])
    return ids_tensor(found, (n, k))


def _groups(A: Tensor) -> Groups:
    groups: Groups = {}
    for k, row in enumerate(A.tolist()):
        columns = tuple(j for j, x in enumerate(row) if x)
        if columns:
            groups.setdefault(columns, []).append(k)
    return groups


def _table(groups: Groups) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    return tuple((columns, tuple(rows)) for columns, rows in groups.items())


def _entries(A: Tensor, groups: Groups) -> list[int]:
    """The entries of all groups, by rows."""
    of_row = A.tolist()
    return [of_row[k][j] for columns, rows in groups.items() for k in rows for j in columns]


def _is_increasing(entries: Sequence[int]) -> bool:
    return all(x < y for x, y in pairwise(entries))


def _parts(graph: Graph, block: DenseBlock, args: Sequence[int]) -> list[int]:
    """The result of one operation."""
    node = graph.block(block, args)
    return [graph.part(node, k) for k in range(block.sizes[2])]


def _mirrored(entries: Sequence[int], n: int) -> Tensor:
    """The symmetric matrix of packed entries."""
    rows = [
        [entries[max(i, j) * (max(i, j) + 1) // 2 + min(i, j)] for j in range(n)] for i in range(n)
    ]
    return ids_tensor([x for row in rows for x in row], (n, n))
