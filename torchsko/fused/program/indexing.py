"""Gather, scatter and argmax with indices that depend on traced values.

Such an index is a number of the program. Each possible index is compared with it, so that one entry
costs as many selections as its dimension has entries.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchsko.errors import FusedError


def first_index_of(x: Tensor, value: Tensor, dim: int) -> Tensor:
    """Index of the first entry along a dimension that equals a value; 0 for nan.

    Args:
        x: `[..., n, ...]`.
        value: `[..., 1, ...]`, one of the entries.
        dim: the dimension of size n.
    """
    index = torch.zeros_like(value)
    for k in reversed(range(x.shape[dim])):
        index = torch.where(x.narrow(dim, k, 1) == value, float(k), index)
    return index


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Entries of x at an index along a dimension, as `torch.gather`."""
    if not x.ndim:
        return x.expand(index.shape)
    if not index.ndim:
        return gather(x, dim, index[None])[0]
    entries = _indexed_part(x, dim, index)
    gathered = entries.narrow(dim, 0, 1).expand(index.shape)
    for k in range(1, x.shape[dim]):
        gathered = torch.where(index == k, entries.narrow(dim, k, 1), gathered)
    return gathered


def scatter(x: Tensor, dim: int, index: Tensor, source: Tensor | float) -> Tensor:
    """Tensor x with entries replaced at an index along a dimension, as `torch.scatter`."""
    return _scattered(x, dim, index, source, lambda old, new: new)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Tensor x with entries added at an index along a dimension, as `torch.scatter_add`."""
    return _scattered(x, dim, index, source, torch.add)


def _scattered(
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor | float,
    update: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    if not x.ndim:
        return update(x, torch.zeros_like(x) + source)
    if not index.ndim:
        source = source[None] if isinstance(source, Tensor) else source
        return _scattered(x, dim, index[None], source, update)
    if _indexed_part(x, dim, index).shape != x.shape:
        raise FusedError(
            f"a scatter into a tensor {list(x.shape)} has a traced index of shape {list(index.shape)}.",
            f"A traced index must have the shape of the tensor in all dimensions but dim={dim}.",
            "Expand the index, or use an index that does not depend on the inputs.",
        )
    values = source if isinstance(source, Tensor) else torch.full_like(index, source, dtype=x.dtype)
    rows = []
    for k, row in enumerate(x.split(1, dim)):
        for m, row_index in enumerate(index.split(1, dim)):
            row = torch.where(row_index == k, update(row, values.narrow(dim, m, 1)), row)
        rows.append(row)
    return torch.cat(rows, dim)


def _indexed_part(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The part of x that an index can reach: all of ``dim``, cut to the index's shape in the others."""
    part = [slice(n) for n in index.shape]
    part[dim] = slice(None)
    return x[tuple(part)]


VALUE_INDEXED: dict[str, Callable[..., Tensor]] = {
    "gather": gather,
    "scatter": scatter,
    "scatter_add": scatter_add,
}
"""Functions by the name of the ATen operation; their third argument is the index."""
