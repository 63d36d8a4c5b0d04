"""Least squares with full column rank, without pivots.

The scalar form (`torchsko.linalg.scalar_form`) is the modified Gram-Schmidt process applied to the matrix and
the right-hand sides together, which is backward stable.

Reference: A. Bjorck, *Numerical methods for least squares problems*, SIAM 1996, section 2.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.utils.shapes import broadcast_shapes


def least_squares(G: Tensor, B: Tensor) -> Tensor:
    """The X that minimizes |G X - B|.

    Args:
        G: `[*, r, d]`, r >= d, of rank d; its rank is not checked.
        B: `[*, r, m]`.

    Returns:
        `[*, d, m]`.
    """
    if G.shape[-1] == 0:
        return B[..., :0, :]
    if not is_scalar_form():
        Q, R = torch.linalg.qr(G)
        return torch.linalg.solve_triangular(R, Q.mT @ B, upper=True)
    d = G.shape[-1]
    rest = torch.cat(
        [G.expand(*broadcast_shapes(G.shape[:-2], B.shape[:-2]), *G.shape[-2:]), B], -1
    )
    rows = []
    for _ in range(d):
        column, rest = rest[..., :1], rest[..., 1:]
        row = (column.mT @ rest) / (column.mT @ column)
        rest = rest - column @ row
        rows.append(row[..., 0, :])
    found: list[Tensor] = []
    for i in reversed(range(d)):
        x = rows[i][..., d - 1 - i :]
        for k, y in enumerate(found):
            x = x - rows[i][..., d - 2 - i - k, None] * y
        found.append(x)
    return torch.stack(found[::-1], -2)
