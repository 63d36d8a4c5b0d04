"""Products with matrices whose rows come in groups of equal sparsity, such as those of a robot's limbs.

In traced functions each is one dense operation (`torchsko.fused.program.sparse_products`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.linalg.dense import MIN_ROWS, over_batch
from torchsko.linalg.symmetric import Eliminated
from torchsko.utils.shapes import broadcast_shapes, mapped_first, matvec
from torchsko.utils.traced_tensor import TracedTensor, is_traced


def gram_matrix(
    A: Tensor, weights: Tensor, start: Tensor | None = None, *, shift: float = 0.0
) -> Tensor:
    """A* w A with a diagonal matrix w, plus a symmetric matrix.

    Args:
        A: `[*, m, n]`.
        weights: `[*, m]`.
        start: `[*, n, n]`; default zero.
        shift: added to the diagonal.

    Returns:
        `[*, n, n]`, symmetric.
    """
    tensors = (A, weights) if start is None else (A, weights, start)
    if any(map(is_traced, tensors)):
        return _Product.apply("gram_matrix", shift, *tensors)
    found = A.mT @ (weights[..., None] * A)
    found = found if start is None else start + found
    return (
        found + shift * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device) if shift else found
    )


def sparse_matvec(A: Tensor, x: Tensor) -> Tensor:
    """A x of a matrix `[*, m, n]` and a vector `[*, n]`."""
    if is_traced(A) or is_traced(x):
        return _Product.apply("sparse_matvec", 0.0, A, x)
    return matvec(A, x)


def forward_adjoint(A: Tensor, factors: Eliminated) -> Tensor:
    """X `[*, n, m]` with L X = A*, for a matrix A `[*, m, n]`, without derivatives.

    Args:
        A: `[*, m, n]`.
        factors: those of a matrix with the factor L.
    """
    if A.shape[-2] and A.shape[-1] >= MIN_ROWS and is_traced(factors.pivots[0]):
        return _Product.apply("forward_adjoint", 0.0, A.detach(), factors.matrix.detach())
    return factors.forward(A.mT)


class _Product(torch.autograd.Function):
    """A product of traced tensors, of which some may be constant."""

    @staticmethod
    def forward(kind: str, shift: float, *tensors: Tensor) -> Tensor:
        def product(*matrices: Any) -> Tensor:
            traced = next(x for x in matrices if isinstance(x, TracedTensor))
            A, *others = matrices
            if has_vector:
                others[0] = others[0][:, 0]
            found = traced.record_product(kind, shift, A, *others)
            return found[:, None] if kind == "sparse_matvec" else found

        has_vector = kind != "forward_adjoint"
        A, x, *start = tensors
        found = over_batch(product, A, x[..., None] if has_vector else x, *start)
        return found[..., 0] if kind == "sparse_matvec" else found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kind, _, *tensors = inputs
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors[:2])
        ctx.save_for_forward(*tensors[:2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (A, x), (grad,) = (y.view_as(y) for y in ctx.saved_tensors), grad_outputs
        if ctx.kind == "gram_matrix":
            to_A = x[..., None] * (A @ (grad + grad.mT))
            return None, None, to_A, ((A @ grad) * A).sum(-1), *[grad] * (ctx.count - 2)
        return None, None, grad[..., :, None] * x[..., None, :], sparse_matvec(A.mT, grad)

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        with forward_ad._set_fwd_grad_enabled(True):  # for outer levels
            A, x = (forward_ad.unpack_dual(y).primal for y in ctx.saved_tensors)
            _, _, dA, dx, *start = grad_inputs
            if ctx.kind == "gram_matrix":
                half = A.mT @ (x[..., None] * dA)
                return gram_matrix(A, dx, half + half.mT + sum(start))
            return matvec(dA, x) + sparse_matvec(A, dx)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        kind, shift, *tensors = arguments
        tensors = mapped_first(info.batch_size, in_dims[2:], tensors)
        return _Product.apply(kind, shift, *tensors), 0


class Stored(NamedTuple):
    """Tensors in consecutive memory of a kernel; see `store`.

    Attributes:
        entries: all entries in the order of memory, `[*batch, size]`.
        symmetric: `[*batch, n, n]`.
        matrices: `[*batch, m, n]` each.
        vectors: `[*batch, n]` each.
    """

    entries: Tensor
    symmetric: Tensor
    matrices: tuple[Tensor, ...]
    vectors: tuple[Tensor, ...]


def store(symmetric: Tensor, matrices: Sequence[Tensor], vectors: Sequence[Tensor]) -> Stored:
    """Store tensors of a traced function in consecutive memory, from which products read them.

    In eager mode the tensors are returned as they are.

    A loop that takes the entries as its first argument reads them there, too. Without it constants and equal
    entries of a matrix are merged, and each product copies the matrix.

    Args:
        symmetric: a symmetric matrix, `[*batch, n, n]`, of which the upper half is read.
        matrices: `[*batch, m, n]` each; structural zeros are not stored.
        vectors: `[*batch, n]` each.
    """
    tensors = (symmetric, *matrices, *vectors)
    if not any(map(is_traced, tensors)):
        return Stored(symmetric[..., :0, 0], symmetric, tuple(matrices), tuple(vectors))
    found = _Store.apply(len(matrices), *tensors)
    split = 2 + len(matrices)
    return Stored(found[0], found[1], found[2:split], found[split:])


class _Store(torch.autograd.Function):
    """`store` of traced tensors, which broadcast; the entries have no derivatives."""

    @staticmethod
    def forward(num_matrices: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        shapes = _shapes_of_samples(num_matrices, tensors)
        pairs = [*zip(tensors, shapes, strict=True)]
        batch = broadcast_shapes(*(x.shape[: x.ndim - len(shape)] for x, shape in pairs))
        flat = [x.expand(*batch, *shape).reshape(-1, *shape) for x, shape in pairs]
        traced: Any = next(x for x in tensors if isinstance(x, TracedTensor))
        samples = [traced.record_store(num_matrices, sample) for sample in zip(*flat, strict=True)]
        return tuple(
            torch.stack(x).reshape(*batch, *x[0].shape) for x in zip(*samples, strict=True)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[0])
        ctx.shapes = [x.shape for x in inputs[1:]]
        ctx.full_shapes = [x.shape for x in output[1:]]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        return None, *(
            x.sum_to_size(shape) for x, shape in zip(grad_outputs[1:], ctx.shapes, strict=True)
        )

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> tuple[Tensor | None, ...]:
        tangents = zip(grad_inputs[1:], ctx.full_shapes, strict=True)
        return None, *(dx.expand(shape) for dx, shape in tangents)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count, *tensors = arguments
        found = _Store.apply(count, *mapped_first(info.batch_size, in_dims[1:], tensors))
        return found, (0,) * len(found)


def _shapes_of_samples(num_matrices: int, tensors: Sequence[Tensor]) -> list[torch.Size]:
    """Shapes without batch dimensions of the arguments of `_Store`."""
    return [x.shape[-2:] if k <= num_matrices else x.shape[-1:] for k, x in enumerate(tensors)]
