"""Products with matrices whose rows come in groups of equal sparsity, traced and in eager mode."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.fused.evaluate import evaluate
from torchsko.fused.layout.schedule import schedule
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.implicit.loop import iterate
from torchsko.implicit.table_loop import Read, Write, table_loop
from torchsko.linalg.sparse import gram_matrix, sparse_matvec, store

Products = Callable[..., tuple[Tensor, ...]]

LIMBS = ((range(9), range(10)), (range(9, 18), range(10, 18)), (range(18, 20), range(3)))
"""Rows and columns with entries; the last group is small."""


def limbs(entries: Tensor) -> Tensor:
    """A matrix of limbs."""
    mask = torch.zeros(20, 18, dtype=torch.bool)
    for rows, columns in LIMBS:
        mask[rows.start : rows.stop, columns.start : columns.stop] = True
    return torch.where(mask, entries, 0.0)


def products(entries: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Products by rows and by columns, A* y A, and products with this matrix."""
    A = limbs(entries)
    gram = gram_matrix(A, y, shift=0.5)
    again = gram_matrix(A, 2 * y, gram)
    return sparse_matvec(A, x), sparse_matvec(A.mT, y), gram, again, sparse_matvec(gram, x)


def products_of_stored(entries: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Products of stored matrices."""
    A = limbs(entries)
    stored = store(gram_matrix(A, y), (A,), (x, y))
    (A,), (x, y) = stored.matrices, stored.vectors
    again = gram_matrix(A, 2 * y, stored.symmetric)
    return sparse_matvec(A, x), sparse_matvec(A.mT, y), again, sparse_matvec(stored.symmetric, x)


def differentiated(fn: Products, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The products, their gradients and their derivatives along the inputs."""
    found, pull_back = torch.func.vjp(fn, *inputs)
    gradients = pull_back(tuple(z.sin() for z in found))
    changes = torch.func.jvp(fn, inputs, tuple(x.cos() for x in inputs))[1]
    return *found, *gradients, *changes


@pytest.mark.parametrize("fn", [products, products_of_stored])
def test_values_and_derivatives_are_those_of_eager_mode(fn):
    g = torch.Generator().manual_seed(0)
    shapes = {"entries": (20, 18), "x": (18,), "y": (20,)}
    inputs = [torch.randn(3, *s, generator=g, dtype=torch.float64) for s in shapes.values()]
    ports = [Port(name, shape) for name, shape in shapes.items()]
    program = trace(partial(differentiated, fn), ports)
    expected = torch.vmap(partial(differentiated, fn))(*inputs)
    for x, y in zip(evaluate(program, inputs), expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12 * float(y.abs().max()))


@pytest.mark.parametrize("fn", [products, products_of_stored])
def test_each_product_is_one_operation(fn):
    ports = [Port("entries", (20, 18)), Port("x", (18,)), Port("y", (20,))]
    program = trace(fn, ports)
    kinds = [loop.program.block.kind for loop in program.loops if loop.program.block]
    assert kinds.count("gram") == 2
    assert {*kinds} - {"gram", "store"} == {"sparse", "sparse_adjoint", "symmetric"}
    assert program.num_flops <= 20  # the weights


def test_operations_in_a_loop_read_stored_matrices_where_they_lie():
    """Neither the body of the loop nor the program copies a matrix."""

    def iterated(entries: Tensor, x: Tensor, y: Tensor) -> Tensor:
        A = limbs(entries)
        stored = store(gram_matrix(A, y), (A,), (x, y))

        def step(x: Tensor, _: Tensor, P: Tensor, A: Tensor, y: Tensor) -> Tensor:
            (residual,) = table_loop(
                lambda x, y: (x - y,), [Read(v, -1) for v in (x, y)], [Write(-1)]
            )
            Ax = sparse_matvec(A, sparse_matvec(gram_matrix(A, residual[..., :1].expand(20), P), x))
            return sparse_matvec(A.mT, Ax)

        others = stored.symmetric, *stored.matrices, stored.vectors[0]
        return iterate(step, stored.vectors[0], 3, (stored.entries, *others))

    ports = [Port("entries", (20, 18)), Port("x", (18,)), Port("y", (20,))]
    program = trace(iterated, ports)
    scheduled = schedule(program, 1000)
    (value,) = (x for x, inner in scheduled.regions.items() if program.loop_of(x).count == 3)
    assert len(scheduled.sources[value].copied) == 0
    inner = scheduled.regions[value][1]
    assert all(len(sources.copied) == 0 for sources in inner.sources.values())
