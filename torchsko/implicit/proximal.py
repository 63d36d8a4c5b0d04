r"""Solution of least norm of a positive semidefinite system, without eigenvalues.

.. math::
    N = \mu (W + \mu)^{-1}, \qquad b \leftarrow b - N^3 b, \qquad
    x \leftarrow x + (W + \mu)^{-1} (b - W x)

N is 1 on the kernel of W and mu / (mu + lambda) on an eigenvector, so the first step removes the part of b
that is outside the range of W. The iteration then converges to W^+ b: a component with eigenvalue lambda is
wrong by (mu / (mu + lambda))^k after k rounds.

Reference: J. Carpentier, R. Budhiraja, N. Mansard, *Proximal and sparse resolution of constrained dynamic
equations*, Robotics: Science and Systems 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.implicit.loop import iterate
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.linalg.symmetric import Eliminated, ldl
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import broadcast_shapes

ROUNDS = 6
"""Proximal rounds: eigenvalues above 1e-5 of the mean converge to rounding in float64."""

FILTERS = 3
"""Power of N: components with eigenvalues above 1e-3 of the mean are kept to rounding in float64."""


def proximal_solve(W: Tensor, B: Tensor) -> Tensor:
    """The least-squares solution W^+ B of least norm.

    Args:
        W: symmetric and positive semidefinite, `[*, r, r]`.
        B: `[*, r, m]`.

    Returns:
        `[*, r, m]`.
    """
    size = W.diagonal(dim1=-2, dim2=-1).mean(-1).detach()
    mu = torch.finfo(compute_dtype(W)).eps ** 0.5 * torch.where(size > 0, size, 1.0)
    mu = mu[..., None, None]
    shifted = W + mu * torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    if is_scalar_form():
        tensors = (ldl(shifted).packed(W),)
    else:
        tensors = (torch.linalg.cholesky_ex(shifted).L,)
    B = B.expand(*broadcast_shapes(B.shape[:-2], W.shape[:-2]), *B.shape[-2:])

    def solve(B: Tensor, factors: tuple[Tensor, ...]) -> Tensor:
        if not is_scalar_form():
            return torch.cholesky_solve(B, factors[0])
        chosen = Eliminated.of(*factors)
        return chosen.backward(chosen.scaled(chosen.forward(B)))

    def apply_filter(x: Tensor, mu: Tensor, *factors: Tensor) -> Tensor:
        return mu * solve(x, factors)

    def refine(x: Tensor, W: Tensor, B: Tensor, *factors: Tensor) -> Tensor:
        return x + solve(B - W @ x, factors)

    def project_to_range(x: Tensor) -> Tensor:
        return x - iterate(apply_filter, x, FILTERS, (mu, *tensors))

    B = project_to_range(B)
    return project_to_range(iterate(refine, torch.zeros_like(B), ROUNDS, (W, B, *tensors)))
