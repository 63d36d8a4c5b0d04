"""Products with matrices whose rows come in groups of equal sparsity, such as those of a robot's limbs.

In traced functions they are a few dense operations (`torchsko.fused.program.sparse_products`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.linalg.dense import over_batch
from torchsko.utils.shapes import mapped_first, matvec
from torchsko.utils.traced_tensor import TracedTensor, is_traced


def gram_matrix(A: Tensor, weights: Tensor) -> Tensor:
    """A* w A with a diagonal matrix w.

    Args:
        A: `[*, m, n]`.
        weights: `[*, m]`.

    Returns:
        `[*, n, n]`, symmetric.
    """
    if is_traced(A) or is_traced(weights):
        return _Product.apply("gram", A, weights)
    return A.mT @ (weights[..., None] * A)


def sparse_matvec(A: Tensor, x: Tensor) -> Tensor:
    """A x of a matrix `[*, m, n]` and a vector `[*, n]`."""
    if is_traced(A) or is_traced(x):
        return _Product.apply("vector_product", A, x)
    return matvec(A, x)


class _Product(torch.autograd.Function):
    """A product of traced tensors, of which one may be constant."""

    @staticmethod
    def forward(kind: str, A: Tensor, x: Tensor) -> Tensor:
        def product(A: Tensor, columns: Any) -> Tensor:
            traced: Any = A if isinstance(A, TracedTensor) else columns
            found = traced.record_product(kind, A, columns[:, 0])
            return found if kind == "gram" else found[:, None]

        found = over_batch(product, A, x[..., None])
        return found if kind == "gram" else found[..., 0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kind, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[None, Tensor, Tensor]:
        (A, x), (grad,) = (y.view_as(y) for y in ctx.saved_tensors), grad_outputs
        if ctx.kind == "gram":
            return None, x[..., None] * (A @ (grad + grad.mT)), ((A @ grad) * A).sum(-1)
        return None, grad[..., :, None] * x[..., None, :], sparse_matvec(A.mT, grad)

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        with forward_ad._set_fwd_grad_enabled(True):  # for outer levels
            A, x = (forward_ad.unpack_dual(y).primal for y in ctx.saved_tensors)
            _, dA, dx = grad_inputs
            if ctx.kind == "gram":
                half = A.mT @ (x[..., None] * dA)
                return half + half.mT + gram_matrix(A, dx)
            return matvec(dA, x) + sparse_matvec(A, dx)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        kind, *tensors = arguments
        return _Product.apply(kind, *mapped_first(info.batch_size, in_dims[1:], tensors)), 0
