r"""Pseudo-inverse of symmetric matrices, also within traced functions.

A kernel computes it from eigenvalues by Jacobi rotations, all disjoint pairs of rows at a time. A loop
repeats one set of rotations followed by a permutation, so the code has the size of one set. The derivative
does not pass through the rotations:

.. math:: dH^+ = -H^+ dH\, H^+ + H^+ H^+ dH\, (1 - H H^+) + (1 - H^+ H)\, dH\, H^+ H^+ ,

for changes that keep the rank.

References: R. Brent, F. Luk, *The solution of singular-value and symmetric eigenvalue problems on
multiprocessor arrays*, SIAM Journal on Scientific and Statistical Computing 6(1), 1985 (the order of pairs);
G. Golub, V. Pereyra, *The differentiation of pseudo-inverses and nonlinear least squares problems whose
variables separate*, SIAM Journal on Numerical Analysis 10(2), 1973 (the derivative).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.implicit.loop import iterate
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.linalg.symmetric import mirror_upper
from torchsko.utils.dtype import compute_dtype

MAX_SWEEPS = 12
"""Largest number of times that each pair of rows is rotated; convergence is quadratic after about four."""


def symmetric_pinv(H: Tensor, *, rank_tolerance: float) -> Tensor:
    """The pseudo-inverse of symmetric matrices.

    Args:
        H: `[*batch, n, n]`.
        rank_tolerance: eigenvalues below this fraction of the largest absolute one count as zero.
    """
    if not is_scalar_form():
        return torch.linalg.pinv(H, rtol=rank_tolerance, hermitian=True)
    return _PseudoInverse.apply(H, rank_tolerance)


def jacobi_eigenvectors(H: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues `[*batch, n]` and eigenvectors, as rows `[*batch, n, n]`, of symmetric matrices."""
    n = H.shape[-1]
    size = n + n % 2
    A = torch.nn.functional.pad(H, (0, size - n, 0, size - n))
    V = torch.eye(size, dtype=H.dtype, device=H.device).expand(A.shape)
    is_on_diagonal = torch.eye(size, dtype=torch.bool, device=H.device)
    order = torch.tensor(_next_pairs(size), device=H.device)
    eps = torch.finfo(compute_dtype(H)).eps

    def rotate_pairs(A: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        diagonal = A.diagonal(dim1=-2, dim2=-1).unflatten(-1, (size // 2, 2))
        first, second = diagonal.unbind(-1)
        coupling = A.diagonal(1, -2, -1)[..., ::2]
        distance = second - first
        root = (distance * distance + 4 * coupling * coupling).sqrt()
        scale = distance.abs() + root
        sign = torch.where(distance < 0, -2.0, 2.0)
        tangent = sign * coupling / torch.where(scale > 0, scale, 1.0)
        cosine = (1 + tangent * tangent).rsqrt()
        sine = tangent * cosine
        half = _rotate_rows(A, cosine, sine)[..., order, :]
        turned = _rotate_rows(half.mT, cosine, sine)[..., order, :]
        return mirror_upper(turned), _rotate_rows(V, cosine, sine)[..., order, :]

    def is_diagonal(A: Tensor, V: Tensor) -> Tensor:
        squares = A * A
        rest = torch.where(is_on_diagonal, 0.0, squares).sum((-2, -1))
        return rest <= eps * eps * squares.sum((-2, -1))

    rounds = MAX_SWEEPS * max(1, size - 1)
    A, V = iterate(rotate_pairs, (A, V), rounds, until=is_diagonal)
    return A.diagonal(dim1=-2, dim2=-1), V[..., :n]


def _rotate_rows(X: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate pairs of consecutive rows."""
    first, second = X.unflatten(-2, (-1, 2)).unbind(-2)
    c, s = cosine[..., None], sine[..., None]
    return torch.stack([c * first - s * second, s * first + c * second], -2).flatten(-3, -2)


def _next_pairs(size: int) -> list[int]:
    """The permutation after which consecutive rows form other pairs, until all pairs have been formed.

    Rows stand on a circle of which the first is fixed; opposite rows form a pair.
    """

    def place(k: int) -> int:
        return 2 * k if k < size // 2 else 2 * (size - 1 - k) + 1

    order = [0] * size
    for k in range(size):
        order[place(k)] = place(0 if k == 0 else size - 1 if k == 1 else k - 1)
    return order


def _change(P: Tensor, H: Tensor, dH: Tensor) -> Tensor:
    """The change of the pseudo-inverse P of H by dH; this linear map is its own adjoint."""
    identity = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    null, PP = identity - H @ P, P @ P
    return PP @ dH @ null + null.mT @ dH @ PP - P @ dH @ P


class _PseudoInverse(torch.autograd.Function):
    """Autograd function of the pseudo-inverse by Jacobi rotations."""

    @staticmethod
    def forward(H: Tensor, rank_tolerance: float) -> Tensor:
        values, V = jacobi_eigenvectors(H)
        sizes = values.abs()
        is_nonzero = sizes > rank_tolerance * sizes.amax(-1, keepdim=True)
        inverses = torch.where(is_nonzero, 1 / torch.where(is_nonzero, values, 1.0), 0.0)
        return mirror_upper(V.mT @ (inverses[..., None] * V))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[0])
        ctx.save_for_forward(output, inputs[0])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        P, H = (x.view_as(x) for x in ctx.saved_tensors)
        return _change(P, H, grad_outputs[0]), None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        with forward_ad._set_fwd_grad_enabled(True):  # for outer levels
            P, H, dH = (
                forward_ad.unpack_dual(x, level=0).primal
                for x in (*ctx.saved_tensors, grad_inputs[0])
            )
            return _change(P, H, dH)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        H, rank_tolerance = arguments
        return _PseudoInverse.apply(H.movedim(in_dims[0], 0), rank_tolerance), 0
