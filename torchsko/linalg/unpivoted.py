"""Systems of a matrix whose symmetric part is positive definite, solved without pivots.

The scalar form (`torchsko.linalg.scalar_form`) eliminates the last unknown first: in a matrix with the zeros
of a mass matrix whose parents come before their children, none is filled in.

Reference: R. Featherstone, *Rigid Body Dynamics Algorithms*, Springer 2008, section 6.5 (the order);
G. Golub, C. Van Loan, *Unsymmetric positive definite linear systems*, Linear Algebra and its Applications
28, 1979.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.utils.shapes import matvec


def solve_without_pivots(A: Tensor, x: Tensor) -> Tensor:
    """A^-1 x; A is not checked, so that nothing waits for the device.

    Args:
        A: `[*, n, n]`, with positive definite A + A*.
        x: `[*, n]`.

    Returns:
        `[*, n]`.
    """
    if not is_scalar_form():
        # The forward derivative of torch 2.13's solve is wrong under vmap, where A is batched.
        return matvec(torch.linalg.inv_ex(A).inverse, x)
    rows, rest = [], torch.cat([A, x[..., None]], -1)
    for i in reversed(range(A.shape[-1])):
        row = rest[..., i, :] / rest[..., i, i, None]
        above = rest[..., :i, :]
        rest = above - above[..., i, None] * row[..., None, :]
        rows.append(row)
    found: list[Tensor] = []
    for row in reversed(rows):
        known = [row[..., j] * y for j, y in enumerate(found)]
        found.append(row[..., -1] - sum(known))
    return torch.stack(found, -1)
