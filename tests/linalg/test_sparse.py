"""Products with matrices whose rows come in groups of equal sparsity, traced and in eager mode."""

import torch
from torch import Tensor

from tests.fused.evaluate import evaluate
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.linalg.sparse import gram_matrix, sparse_matvec

LIMBS = ((range(9), range(10)), (range(9, 18), range(10, 18)), (range(18, 20), range(3)))
"""Rows and columns with entries; the last group is small."""


def limbs(entries: Tensor) -> Tensor:
    """A matrix of limbs, and the same rows with the opposite sign."""
    mask = torch.zeros(20, 18, dtype=torch.bool)
    for rows, columns in LIMBS:
        mask[rows.start : rows.stop, columns.start : columns.stop] = True
    A = torch.where(mask, entries, 0.0)
    return torch.cat([A, -A], -2)


def products(entries: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Products by rows and by columns, and A* x A."""
    A = limbs(entries)
    return sparse_matvec(A, x), sparse_matvec(A.mT, y), gram_matrix(A, y)


def differentiated(entries: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """The products, their gradients and their derivatives along the inputs."""
    found, pull_back = torch.func.vjp(products, entries, x, y)
    gradients = pull_back(tuple(z.sin() for z in found))
    changes = torch.func.jvp(products, (entries, x, y), (entries.cos(), x.cos(), y.cos()))[1]
    return *found, *gradients, *changes


def test_values_and_derivatives_are_those_of_eager_mode():
    g = torch.Generator().manual_seed(0)
    shapes = {"entries": (20, 18), "x": (18,), "y": (40,)}
    inputs = [torch.randn(3, *s, generator=g, dtype=torch.float64) for s in shapes.values()]
    program = trace(differentiated, [Port(name, shape) for name, shape in shapes.items()])
    expected = torch.vmap(differentiated)(*inputs)
    for x, y in zip(evaluate(program, inputs), expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12 * float(y.abs().max()))


def test_limbs_are_operations_and_rows_of_both_signs_are_one():
    ports = [Port("entries", (20, 18)), Port("x", (18,)), Port("y", (40,))]
    program = trace(products, ports)
    kinds = [loop.program.block.kind for loop in program.loops if loop.program.block]
    assert sorted(kinds) == ["adjoint_product"] * 2 + ["gram"] * 2 + ["product"] * 2
    assert program.num_flops < 200  # the small group, and sums of weights
