r"""Least squares with full column rank, without pivots.

The scalar form (`torchsko.linalg.scalar_form`) of a small or sparse matrix is the modified Gram-Schmidt
process applied to the matrix and the right-hand sides together, which is backward stable. That of a large
one is a dense operation, a factorization by reflections. With :math:`X = G^+ B` its derivatives are

.. math::
    dX = G^+ (dB - dG\, X) + (G^* G)^{-1} dG^* (B - G X), \qquad (G^* G)^{-1} = G^+ (G^+)^* .

Reference: A. Bjorck, *Numerical methods for least squares problems*, SIAM 1996, sections 1.4 and 2.4.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.linalg.dense import MAX_ROWS, over_batch
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.utils.shapes import broadcast_shapes, mapped_first
from torchsko.utils.traced_tensor import TracedTensor, can_be_nonzero, is_traced

MAX_UNROLLED = 2000
"""Largest number of products of the process that a trace spells out. For a delta robot (162 products) a
rollout is 2.3 times as fast as with reflections, for a Stewart platform (5324) reflections are faster."""


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
    batch = broadcast_shapes(G.shape[:-2], B.shape[:-2])
    return _Solution.apply("fit", *(x.expand(*batch, *x.shape[-2:]) for x in (G, B)))


class _Solution(torch.autograd.Function):
    """G^+ B ("fit"), or its adjoint G (G* G)^-1 B ("lift"), in scalar form."""

    @staticmethod
    def forward(kind: str, G: Tensor, B: Tensor) -> Tensor:
        if is_traced(G) and G.shape[-2] <= MAX_ROWS and _num_products(G) > MAX_UNROLLED:
            return over_batch(partial(_by_reflections, kind), G, B)
        return _by_projections(kind, G, B)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kind, *tensors = inputs
        ctx.save_for_backward(*tensors, output)
        ctx.save_for_forward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[None, Tensor, Tensor]:
        (G, B, found), (grad,) = (x.view_as(x) for x in ctx.saved_tensors), grad_outputs
        is_fit = ctx.kind == "fit"
        of_B = _Solution.apply("lift" if is_fit else "fit", G, grad)
        W, X, right = (of_B, found, B) if is_fit else (found, of_B, grad)
        of_G = -W @ X.mT
        if G.shape[-2] > G.shape[-1]:  # the residual of a square system is zero
            of_G = of_G + (right - G @ X) @ _Solution.apply("fit", G, W).mT
        return None, of_G, of_B

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        with forward_ad._set_fwd_grad_enabled(True):  # for outer levels
            G, B, found = (forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors)
            _, dG, dB = grad_inputs
            solve, is_square = _Solution.apply, G.shape[-2] == G.shape[-1]
            if ctx.kind == "fit":
                change = solve("fit", G, dB - dG @ found)
                normal = None if is_square else solve("lift", G, dG.mT @ (B - G @ found))
                return change if normal is None else change + solve("fit", G, normal)
            change = solve("lift", G, dB - dG.mT @ found)
            if is_square:
                return change
            moved = dG @ solve("fit", G, found)
            return change + moved - G @ solve("fit", G, moved)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        kind, *matrices = arguments
        return _Solution.apply(kind, *mapped_first(info.batch_size, in_dims[1:], matrices)), 0


def _by_projections(kind: str, G: Tensor, B: Tensor) -> Tensor:
    """`_Solution` by the modified Gram-Schmidt process."""
    d, rows, columns = G.shape[-1], [], []
    rest = torch.cat([G, B], -1) if kind == "fit" else G
    for _ in range(d):
        column, rest = rest[..., :1], rest[..., 1:]
        row = (column.mT @ rest) / (column.mT @ column)
        rest = rest - column @ row
        rows.append(row)
        columns.append(column)
    found: dict[int, Tensor] = {}
    if kind == "fit":
        for i in reversed(range(d)):
            x = rows[i][..., d - 1 - i :]
            for j, y in found.items():
                x = x - rows[i][..., j - i - 1, None] * y
            found[i] = x
        return torch.cat([found[i] for i in range(d)], -2)
    for i in range(d):
        x = B[..., i, None, :]
        for j, y in found.items():
            x = x - rows[j][..., i - j - 1, None] * y
        found[i] = x
    return sum(c @ (found[i] / (c.mT @ c)) for i, c in enumerate(columns))  # type: ignore[return-value]


def _num_products(G: Tensor) -> int:
    """Number of products of nonzero entries in the Gram-Schmidt process of a matrix."""
    rest, count = can_be_nonzero(G).reshape(-1, *G.shape[-2:])[0], 0
    while rest.shape[-1] > 1:
        column, rest = rest[:, :1], rest[:, 1:]
        row = (column & rest).any(0, keepdim=True)
        count += int((column & rest).sum()) + int((column & row).sum())
        rest = rest | (column & row)
    return count


def _by_reflections(kind: str, G: Any, B: Any) -> Tensor:
    """`_Solution` of traced matrices without batch dimensions, by dense operations."""
    traced = G if isinstance(G, TracedTensor) else B
    rows, inner = G.shape
    factors = traced.record_block("qr", rows, G.reshape(-1), inner=inner)
    sizes = {"inner": inner, "columns": B.shape[-1]}
    entries = traced.record_block(kind, rows, B.reshape(-1), factors, **sizes)
    return entries.reshape(inner if kind == "fit" else rows, -1)
