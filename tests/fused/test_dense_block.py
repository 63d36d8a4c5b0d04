"""Dense operations: C++ of all vector widths, CUDA and interpreter compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.fused.card import launch_on_cpu
from tests.fused.evaluate import evaluate
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.calls.cuda_kernel import CudaKernel
from torchsko.fused.calls.kernel import build_kernel
from torchsko.fused.emit.cuda import cuda_plan
from torchsko.fused.program.dense_block import DenseBlock
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.lower import lower
from torchsko.fused.program.program import Port, Program

LIMBS = (((0, 2, 3, 4, 6), (1, 2, 3, 5, 6)), ((1, 5), (0, 4)))
"""Columns and rows of the groups of a sparse matrix of 7 rows and 8 columns."""

BLOCKS = {
    "product": DenseBlock("product", 6, 5, 9),
    "adjoint product": DenseBlock("adjoint_product", 5, 6, 1),
    "ldl": DenseBlock("ldl", 11),
    "ldl with lost pivots": DenseBlock("ldl", 10, least=1e-3),
    "cholesky": DenseBlock("cholesky", 9),
    "lu": DenseBlock("lu", 7),
    "reorder": DenseBlock("reorder", 5, columns=3),
    "reorder back": DenseBlock("reorder_back", 5, columns=3),
    "forward": DenseBlock("forward", 9, columns=6),
    "forward unit": DenseBlock("forward", 6, columns=1, unit=True),
    "backward": DenseBlock("backward", 9, columns=6),
    "backward unit": DenseBlock("backward", 7, columns=1, unit=True),
    "gram": DenseBlock("gram", 8, 7, groups=LIMBS),
    "gram and a matrix": DenseBlock("gram", 8, 7, groups=LIMBS, shift=0.3, adds=True),
    "sparse": DenseBlock("sparse", 8, 7, groups=LIMBS),
    "sparse adjoint": DenseBlock("sparse_adjoint", 8, 7, groups=LIMBS),
    "sparse forward": DenseBlock("sparse_forward", 8, 7, unit=True, groups=LIMBS),
    "symmetric": DenseBlock("symmetric", 9),
    "store": DenseBlock("store", 5),
    "qr": DenseBlock("qr", 8, 6),
    "qr of a square matrix": DenseBlock("qr", 5, 5),
    "fit": DenseBlock("fit", 8, 6, 5),
    "lift": DenseBlock("lift", 8, 6, 5),
}


def program_of(blocks: list[DenseBlock]) -> Program:
    """The results of some operations, each on inputs of its own."""
    graph, ports, outputs, count = Graph(), [], [], 0
    for k, block in enumerate(blocks):
        variable, fixed, _ = block.sizes
        args = [graph.input(count + i) for i in range(variable + fixed)]
        count += len(args)
        ports.append(Port(f"x{k}", (len(args),)))
        node = graph.block(block, args)
        outputs.append([graph.part(node, i) for i in range(block.sizes[2])])
    flat = [x for part in outputs for x in part]
    return lower(graph, flat, ports, [Port(f"y{k}", (len(x),)) for k, x in enumerate(outputs)])


def inputs_of(block: DenseBlock, batch: int, seed: int) -> Tensor:
    """Random matrices; those to factorize are positive definite, or singular where pivots may be lost."""
    g = torch.Generator().manual_seed(seed)
    variable, fixed, _ = block.sizes
    x = torch.randn(batch, variable + fixed, generator=g, dtype=torch.float64)
    n = block.rows
    if block.kind in ("ldl", "cholesky"):
        k = n - 2 if block.least >= 0 else 2 * n
        A = torch.randn(batch, n, k, generator=g, dtype=torch.float64)
        rows, columns = torch.tril_indices(n, n)
        return (A @ A.mT)[:, rows, columns]
    if block.kind.startswith("reorder"):
        order = torch.rand(batch, n, generator=g).argsort(-1)
        return torch.cat([x[:, :variable], order], -1)
    if block.kind in ("fit", "lift"):
        A = x[:, variable : variable + n * block.inner].unflatten(-1, (n, -1))
        return torch.cat([x[:, :variable], *(y.flatten(1) for y in torch.geqrf(A))], -1)
    if block.kind in ("forward", "backward"):
        diagonal = [variable + i * (i + 3) // 2 for i in range(n)]
        x[:, diagonal] = x[:, diagonal].abs() + 2
    return x


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of([*BLOCKS.values()])


def compare(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> None:
    for x, y, name in zip(found, expected, BLOCKS, strict=True):
        torch.testing.assert_close(
            x.double(), y, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float64, 64), (torch.float64, 32), (torch.float32, 16)]
)
def test_kernels_agree_with_the_interpreter(program, dtype, width):
    inputs = [inputs_of(block, 11, k) for k, block in enumerate(BLOCKS.values())]
    if width > find_toolchain().vector_bytes:
        pytest.skip("the processor has narrower vectors")
    kernel = build_kernel(program, dtype, vector_bytes=width)
    found = kernel([x.to(dtype) for x in inputs])
    compare(found, evaluate(program, inputs), 1e-11 if dtype == torch.float64 else 2e-3)


@pytest.mark.nightly
def test_cuda_agrees_with_the_interpreter(program):
    inputs = [inputs_of(block, 3, k) for k, block in enumerate(BLOCKS.values())]
    launch = launch_on_cpu(cuda_plan(program), 64)
    kernel = CudaKernel(program.inputs, program.outputs, torch.float64, launch)
    compare(kernel(inputs), evaluate(program, inputs), 1e-11)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("on_card", [False, True])
def test_a_matrix_is_read_from_an_earlier_result(is_whole, on_card):
    """Where the factor of an earlier operation is the whole matrix, and where an entry is not its."""
    n, factor, solve = 9, DenseBlock("cholesky", 9), DenseBlock("forward", 9, columns=1)
    size, graph = n * (n + 1) // 2, Graph()
    A, b, last = (range(*x) for x in ((0, size), (size, size + n), (size + n, size + n + 1)))
    A, b, last = ([graph.input(k) for k in x] for x in (A, b, last))
    node = graph.block(factor, A)
    L = [graph.part(node, k) for k in range(size)]
    node = graph.block(solve, [*b, *(L if is_whole else [*L[:-1], *last])])
    x = [graph.part(node, k) for k in range(n)]
    ports = [Port("A", (size,)), Port("b", (n,)), Port("last", (1,))]
    program = lower(graph, x, ports, [Port("x", (n,))])
    g = torch.Generator().manual_seed(0)
    rest = torch.rand(11, n + 1, generator=g, dtype=torch.float64) + 1
    inputs = [inputs_of(factor, 11, 0), rest[:, :n], rest[:, n:]]
    if on_card:
        launch = launch_on_cpu(cuda_plan(program), 64)
        (found,) = CudaKernel(program.inputs, program.outputs, torch.float64, launch)(inputs)
    else:
        (found,) = build_kernel(program, torch.float64)(inputs)
    (expected,) = evaluate(program, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_equal_operations_are_one_instruction():
    graph = Graph()
    args = [graph.input(k) for k in range(3)]
    block = DenseBlock("ldl", 2)
    assert graph.block(block, args) == graph.block(block, args)
    assert graph.block(block, args) != graph.block(block, [*args[:2], args[0]])
