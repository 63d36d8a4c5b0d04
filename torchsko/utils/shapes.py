"""Tensors with batch dimensions: their shapes, their entries, products and joins of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """The shape that tensors of these shapes broadcast to, as `torch.broadcast_shapes`.

    In torch 2.13 the first call of that one imports sympy, which takes longer than to load a robot.
    """
    if torch.compiler.is_compiling():  # which knows what to do with symbolic sizes
        return torch.broadcast_shapes(*shapes)
    found = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for i in range(1, len(shape) + 1):
            if found[-i] == 1:
                found[-i] = shape[-i]
            elif shape[-i] not in (1, found[-i]):
                return torch.broadcast_shapes(*shapes)  # says which do not fit
    return torch.Size(found)


def expands(shape: Sequence[int], batch: Sequence[int]) -> bool:
    """Whether a shape can be expanded to another."""
    pairs = zip(reversed(shape), reversed(batch), strict=False)
    return len(shape) <= len(batch) and all(a in (1, b) for a, b in pairs)


def broadcasts(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two shapes broadcast."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def entries_at(x: Tensor, index: Tensor) -> Tensor:
    """`x[..., index]` for an int64 vector; on a CPU a gather takes a tenth of `index_select`'s time."""
    return x.gather(-1, index.expand(*x.shape[:-1], index.shape[0]))


def matvec(A: Tensor, x: Tensor) -> Tensor:
    """A x of matrices `[*, m, n]` and vectors `[*, n]`, batch dimensions broadcast: `[*, m]`."""
    return (A @ x[..., None])[..., 0]


def joined(parts: Sequence[Tensor], dim: int = -1, batch: Sequence[int] = ()) -> Tensor:
    """Tensors one after the other along a dimension; what stands before it broadcasts.

    Args:
        parts: of one shape from `dim` on, but for `dim` itself.
        dim: counted from the end, negative.
        batch: a shape with which the dimensions before `dim` broadcast, too.
    """
    shape = broadcast_shapes(batch, *(part.shape[:dim] for part in parts))
    return torch.cat([part.expand(*shape, *part.shape[dim:]) for part in parts], dim)
