"""Least squares of traced matrices, as projections and as reflections, and their derivatives."""

import pytest
import torch
from torch import Tensor

from tests.fused.evaluate import evaluate
from torchsko.fused.program.program import Port, Program
from torchsko.fused.tracing.tracer import trace
from torchsko.linalg.full_rank_solve import MAX_UNROLLED, least_squares

SIZES = [(5, 4, 3), (4, 4, 2), (20, 16, 2), (17, 17, 3)]
"""Rows, columns and right-hand sides; the last two matrices are dense operations."""


def matrices(size: tuple[int, int, int]) -> list[Tensor]:
    """A matrix, right-hand sides that it does not fit, and tangents of both; a batch of three."""
    (r, d, m), g = size, torch.Generator().manual_seed(0)
    shapes = [(3, r, d), (3, r, m)] * 2
    return [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]


def traced(fn, inputs: list[Tensor]) -> tuple[Program, tuple[Tensor, ...]]:
    ports = [Port(f"x{k}", tuple(x.shape[1:])) for k, x in enumerate(inputs)]
    program = trace(fn, ports)
    return program, evaluate(program, inputs)


def twice_differentiated(G: Tensor, B: Tensor, dG: Tensor, dB: Tensor) -> tuple[Tensor, ...]:
    """The solution, its gradient, its derivative along tangents, and the gradient of that derivative."""

    def slope(G: Tensor, B: Tensor) -> Tensor:
        return torch.func.jvp(least_squares, (G, B), (dG, dB))[1]

    X, pull_back = torch.func.vjp(least_squares, G, B)
    change, pull_back_again = torch.func.vjp(slope, G, B)
    return X, *pull_back(X.sin()), change, *pull_back_again(X.cos())


@pytest.mark.parametrize("size", SIZES)
def test_values_and_two_derivatives_are_those_of_eager_mode(size):
    inputs = matrices(size)
    program, found = traced(twice_differentiated, inputs)
    expected = torch.vmap(twice_differentiated)(*inputs)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(
            x.reshape(y.shape), y, rtol=1e-9, atol=1e-9 * float(y.abs().max())
        )
    assert bool(program.loops) == (size[0] > 8)


def test_mapped_systems_are_those_of_each_sample():
    G, B, *_ = matrices((20, 16, 2))
    _, (found,) = traced(lambda G, B: torch.vmap(least_squares)(G[None], B[None])[0], [G, B])
    torch.testing.assert_close(found.reshape(3, 16, 2), least_squares(G, B))


def test_a_matrix_of_blocks_is_spelled_out():
    """Whatever its size: the process skips products of zeros."""

    def fit(G: Tensor, B: Tensor) -> Tensor:
        return least_squares(torch.block_diag(*G.unbind(0)), B)

    G, B = torch.randn(3, 8, 3, 3, dtype=torch.float64), torch.randn(3, 24, 1, dtype=torch.float64)
    program, (found,) = traced(fit, [G, B])
    assert not program.loops and program.num_flops < MAX_UNROLLED
    torch.testing.assert_close(found.reshape(3, 24, 1), torch.vmap(fit)(G, B))
