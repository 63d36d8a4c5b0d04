"""Entries whose places the values decide: the largest of a row, and what stands where it is.

An index that follows from values is a number like any other in a program. Each place that it may mean is
asked in turn, so that what is chosen costs as many choices as a row has entries.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchsko.errors import FusedError


def place(x: Tensor, value: Tensor, dim: int) -> Tensor:
    """Where along a dimension entries are first a value; of values that are nan, 0.

    Args:
        x: `[..., n, ...]`.
        value: `[..., 1, ...]`, among the entries.
        dim: that of n.
    """
    found = torch.zeros_like(value)
    for k in reversed(range(x.shape[dim])):
        found = torch.where(x.narrow(dim, k, 1) == value, float(k), found)
    return found


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Entries of x at an index along a dimension, as `torch.gather`."""
    if not x.ndim:
        return x.expand(index.shape)
    if not index.ndim:
        return gather(x, dim, index[None])[0]
    within = _along(x, dim, index)
    found = within.narrow(dim, 0, 1).expand(index.shape)
    for k in range(1, x.shape[dim]):
        found = torch.where(index == k, within.narrow(dim, k, 1), found)
    return found


def scatter(x: Tensor, dim: int, index: Tensor, source: Tensor | float) -> Tensor:
    """Tensor x with entries replaced at an index along a dimension, as `torch.scatter`."""
    return _placed(x, dim, index, source, lambda old, new: new)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Tensor x with entries added at an index along a dimension, as `torch.scatter_add`."""
    return _placed(x, dim, index, source, torch.add)


def _placed(
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor | float,
    put: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    if not x.ndim:
        return put(x, torch.zeros_like(x) + source)
    if not index.ndim:
        source = source[None] if isinstance(source, Tensor) else source
        return _placed(x, dim, index[None], source, put)
    if _along(x, dim, index).shape != x.shape:
        raise FusedError(
            f"entries of a tensor {list(x.shape)} are written at an index {list(index.shape)} that values "
            "decide.",
            "Each place that it may mean is asked in turn, all of them alike.",
            "Give an index of the same shape but for the dimension along which it writes.",
        )
    there = source if isinstance(source, Tensor) else torch.full_like(index, source, dtype=x.dtype)
    rows = []
    for k, row in enumerate(x.split(1, dim)):
        for m, at in enumerate(index.split(1, dim)):
            row = torch.where(at == k, put(row, there.narrow(dim, m, 1)), row)
        rows.append(row)
    return torch.cat(rows, dim)


def _along(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The part of x that an index reaches: all along its dimension."""
    reached = [slice(n) for n in index.shape]
    reached[dim] = slice(None)
    return x[tuple(reached)]


CHOICES: dict[str, Callable[..., Tensor]] = {
    "gather": gather,
    "scatter": scatter,
    "scatter_add": scatter_add,
}
"""By the name of the ATen operation; their third argument is the index."""
