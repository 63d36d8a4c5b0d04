"""Loops over rows of arrays at indices from tables: programs, kernels, derivatives, and bad input."""

import pytest
import torch

from tests.fused.card import launch_on_cpu
from tests.fused.evaluate import evaluate
from torchsko.errors import ShapeError
from torchsko.fused.build.program_cache import _content, _program
from torchsko.fused.calls.cuda_kernel import CudaKernel
from torchsko.fused.emit.cpp import emit_cpp
from torchsko.fused.emit.cuda import cuda_plan
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.implicit.loop import iterate
from torchsko.implicit.table_loop import MIN_ITERATIONS, Read, Write, table_loop

ROWS = [2, 0, 1, 1, 3, 0, 2, 2, 1, 0]
PAIRS = [[0, 1], [2, 1], [0, 0], [3, 1], [1, 2], [2, 2], [3, 0], [0, 3], [1, 1], [2, 0]]
PORTS = [Port("x", (4, 3)), Port("y", (4,)), Port("z", (10,)), Port("w", (3,))]


def repeated_rows(x, y, z, w):
    """Each kind of access: by a table, by pairs of rows, row by row, of a captured tensor, sums, a total."""
    scale = torch.linspace(1.0, 2.0, 10, dtype=torch.float64)

    def body(a, b, c, factor):
        v = (a * a).sum(-1) * torch.sin(c) + b[..., 0] - 2 * b[..., 1]
        pair = torch.stack([b[..., 0] * v, b[..., 1] + c], -1)
        return v, pair, a * w * v[..., None], v * factor, torch.ones_like(v)

    reads = [Read(x, -2, ROWS), Read(y, -1, PAIRS), Read(z, -1), Read(scale, -1)]
    writes = [
        Write(-1),
        Write(-1, PAIRS, 4),
        Write(-2, ROWS, 6),
        Write(-1, is_total=True),
        Write(-1),
    ]
    return table_loop(body, reads, writes)


def skipped_rows(x, y, z, w):
    """Two loops with one guard; rows of the first that it skips have no effect."""
    guard = (z > 0.5).detach()

    def first(on, a, c):
        root = torch.where(on, c - 0.5, 1.0).sqrt()
        return torch.where(on[..., None], a / root[..., None] + w, 0.0), c * c * on

    reads = [Read(guard, -1), Read(x, -2, ROWS), Read(z, -1)]
    arms, squares = table_loop(first, reads, [Write(-2, is_sparse=True), Write(-1)], guarded=True)

    def second(on, arm, b):
        return (torch.where(on[..., None], arm * b.sum(-1, keepdim=True), 0.0),)

    reads = [Read(guard, -1), Read(arms, -2, is_sparse=True), Read(y, -1, PAIRS)]
    return squares, *table_loop(second, reads, [Write(-2, ROWS, 4)], guarded=True)


def rows_within_a_loop(x, y, z, w):
    """A loop of iterations whose body reads rows of a carried and of a captured tensor, and of a result."""
    (squares,) = table_loop(lambda a: (a * a,), [Read(x, -2, ROWS)], [Write(-2)])

    def body(state):
        def of_rows(a, b, c):
            return (torch.tanh(a * c[..., :1] + b.sum(-1)[..., None] * 0.1 + c[..., 1:2]),)

        reads = [Read(state, -2, ROWS), Read(y, -1, PAIRS), Read(squares, -2)]
        return 0.2 * table_loop(of_rows, reads, [Write(-2, ROWS, 4)])[0]

    return (iterate(body, x, 3), z + w.sum())


def rows_that_many_loops_read(x, y, z, w):
    """Three loops with one guard that read rows of the first one, whose gradient is a sum."""
    guard = (z > 0.5).detach()

    def first(on, a):
        return (torch.where(on[..., None], torch.sin(a) + w, 0.0),)

    reads = [Read(guard, -1), Read(x, -2, ROWS)]
    (arms,) = table_loop(first, reads, [Write(-2, is_sparse=True)], guarded=True)

    def power(k):
        def of_rows(on, arm):
            return (torch.where(on[..., None], arm**k, 0.0),)

        reads = [Read(guard, -1), Read(arms, -2, is_sparse=True)]
        return table_loop(of_rows, reads, [Write(-2, ROWS, 4)], guarded=True)[0]

    return power(2), y + (power(1) - power(3)).sum(-1)


CASES = [repeated_rows, skipped_rows, rows_that_many_loops_read, rows_within_a_loop]


def sample(num):
    g = torch.Generator().manual_seed(0)
    # Some guards hold in no sample, so that their iterations are skipped.
    lows = torch.tensor([0.0, 0.6, 0.0, 0.0, 0.6, 0.0, 0.0, 0.6, 0.0, 0.0], dtype=torch.float64)
    draw = [torch.rand(num, *p.shape, generator=g, dtype=torch.float64) for p in PORTS]
    draw[2] = (
        lows
        + 0.4 * draw[2]
        + 0.3 * (torch.arange(num) % 2 == 0)[:, None] * (lows == 0) * draw[3][:, :1]
    )
    return draw


def flat(results):
    if isinstance(results, torch.Tensor):
        return (results,)
    return tuple(y for x in results for y in flat(x))


def loss(case):
    return lambda *inputs: sum((y * y).sum() for y in case(*inputs))


def derivative(case, kind):
    """Results of a function of the inputs: itself or derivatives of it."""
    every, chosen = tuple(range(4)), lambda *x: case(*x)[case is not rows_within_a_loop]
    made = {
        "value": lambda: case,
        "gradient": lambda: torch.func.grad(loss(case), every),
        "jacrev": lambda: torch.func.jacrev(chosen, every),
        "jacfwd": lambda: torch.func.jacfwd(chosen, (0, 1)),
        "hessian": lambda: torch.func.jacfwd(torch.func.grad(loss(case), (1, 3)), 1),
    }[kind]()
    return lambda *inputs: flat(made(*inputs))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["value", "gradient", "jacrev", "jacfwd", "hessian"])
def test_programs_compute_what_eager_mode_does(case, kind):
    fn, inputs = derivative(case, kind), sample(5)
    program = trace(fn, PORTS)
    assert any(inner.writes for body in program.distinct_programs() for inner in body.loops)
    for mine, theirs in zip(evaluate(program, inputs), torch.vmap(fn)(*inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["value", "gradient"])
def test_kernels_compute_what_eager_mode_does(case, kind):
    """Of a CPU and of a GPU, with several vectors and a part of one."""
    fn, inputs = derivative(case, kind), sample(37)
    expected = torch.vmap(fn)(*inputs)
    program = trace(fn, PORTS)
    kernel = FusedFunction(fn, PORTS, Traits(num_outputs=len(expected), order=1))
    card = launch_on_cpu(cuda_plan(program), 64)
    on_card = CudaKernel(program.inputs, program.outputs, torch.float64, card)
    for found in (kernel(*inputs), on_card(inputs)):
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_gradients_of_skipped_rows_are_not_added():
    program = trace(derivative(rows_that_many_loops_read, "gradient"), PORTS)
    owners = [
        {program.code[x].args[0] for x in program.operands(k) if program.code[x].op == "part"}
        for k, (op, _) in enumerate(program.code)
        if op in ("add", "sub")
    ]
    counts = [{program.loop_of(x).writes[0].rows for x in of_sum} for of_sum in owners]
    assert len(ROWS) not in set().union(*counts)


def finished_samples(x, y, z, w):
    """Rounds until a sample is finished; each skips rows that are active in finished samples alone."""

    def body(state, k, guard, last):
        def of_rows(on, c):
            return (torch.where(on > 0, torch.cos(c) + 0.1 * k, 0.0),)

        reads = [Read(guard, -1), Read(state, -1)]
        return table_loop(of_rows, reads, [Write(-1)], guarded=True)[0], k + 1

    guard, last = (z - 0.5).clamp(min=0.0), (6 * w[..., 0]).floor()
    start = z, torch.zeros_like(last)
    return iterate(body, start, 7, [guard, last], until=lambda _, k, *args: k >= args[1])


def test_rows_of_finished_samples_are_skipped():
    inputs = sample(64)
    expected = [finished_samples(*(x[k] for x in inputs)) for k in range(64)]
    expected = [torch.stack(x) for x in zip(*expected, strict=True)]
    program = trace(finished_samples, PORTS)
    scheduled = cuda_plan(program)
    assert any("list_unfinished_rows(" in x for x in emit_cpp(scheduled, bits=64, vector_bytes=16))
    kernel = FusedFunction(finished_samples, PORTS, Traits(num_outputs=2, order=1))
    card = launch_on_cpu(scheduled, 64)
    on_card = CudaKernel(program.inputs, program.outputs, torch.float64, card)
    for found in (kernel(*inputs), on_card(inputs)):
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    for mine, other in zip(kernel(*inputs), kernel(*(x[order] for x in inputs)), strict=True):
        assert torch.equal(mine[order], other)


def test_loops_that_return_masks_and_counts_have_gradients():
    def weighted(x, y, z, w):
        def body(a):
            return a.square().sum(-1), a[..., 0] > 0.5, (a > 0.5).sum(-1)

        square, mask, count = table_loop(body, [Read(x, -2, ROWS)], [Write(-1)] * 3)
        return (torch.where(mask != 0, square, 2 * square) * count).sum()

    gradient = torch.func.grad(weighted)
    program, inputs = trace(gradient, PORTS), sample(5)
    assert any(body.loops for body in program.distinct_programs())
    torch.testing.assert_close(evaluate(program, inputs)[0], torch.vmap(gradient)(*inputs))


def test_programs_do_not_grow_with_rows_and_keep_what_is_read():
    def total(x):
        def body(a):
            return torch.sin(a).sum(-1), torch.exp(a)

        return table_loop(body, [Read(x, -2)], [Write(-1, is_total=True), Write(-2)])[0]

    one, two = (trace(total, [Port("x", (n, 3))]) for n in (MIN_ITERATIONS, 50))
    assert one.num_flops == two.num_flops == 3 + 2
    short = trace(total, [Port("x", (MIN_ITERATIONS - 1, 3))])
    assert not short.loops


def test_programs_are_restored_from_the_cache():
    program = trace(derivative(skipped_rows, "value"), PORTS)
    assert _program(_content(program)) == program


def test_bad_input_is_named():
    x = torch.zeros(4, 3)
    same = lambda a: (a,)  # noqa: E731
    with pytest.raises(ShapeError, match="table of input 0 of a loop has the index 4"):
        table_loop(same, [Read(x, -2, [0, 4])], [Write(-2)])
    with pytest.raises(ShapeError, match="table of output 0 of a loop has the index -1"):
        table_loop(same, [Read(x, -2)], [Write(-2, [0, 1, -1, 2], 3)])
    with pytest.raises(ShapeError, match=r"tables of a loop have the lengths \[3, 4\]"):
        table_loop(same, [Read(x, -2)], [Write(-2, [0, 1, 2], 3)])
    with pytest.raises(ShapeError, match="returns 1 instead of 2 tensors"):
        table_loop(same, [Read(x, -2)], [Write(-2), Write(-2)])


def test_bad_input_is_named_by_a_trace():
    def by_data(x):
        return table_loop(lambda a: (a,), [Read(x, -1, x)], [Write(-1)])[0]

    def of_all_rows(x):
        return table_loop(lambda a: (torch.cat([a, a]),), [Read(x, -1)], [Write(-1)])[0]

    with pytest.raises(ShapeError, match=r"depends on traced values.*[\s\S]*torch.where"):
        trace(by_data, [Port("x", (10,))])
    with pytest.raises(ShapeError, match="shape \\(2,\\) for one iteration"):
        trace(of_all_rows, [Port("x", (10,))])
