"""Register allocation of matrix-product loop bodies: no more loads than with least-recently-used eviction."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fused.test_column_groups import limbs, on_paths
from tests.fused.test_cpp import TARGETS, agree, toolchain_for
from tests.fused.test_matrix_products import masked
from torchsko.fused.calls.kernel import build_kernel
from torchsko.fused.emit.register_allocation import allocate
from torchsko.fused.layout.register_order import has_only_products, limit_parallel_sums
from torchsko.fused.layout.schedule import schedule
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

D = torch.float64
ROUNDS = {
    "n": st.integers(2, 12),
    "m": st.integers(1, 6),
    "density": st.floats(0.2, 1),
    "seed": st.integers(0, 99),
}


def rounds(n, m, density, seed):
    g = torch.Generator().manual_seed(seed)
    factor = (torch.rand(n, n, generator=g) < density).to(D)
    return trace(lambda a, b: (a * factor) @ b, [Port("a", (n, n)), Port("b", (n, m))])


def steps_of(program, chunk):
    """Computed values with their operands; a product that only the next sum reads is part of this sum."""
    steps = [v for v in chunk.instrs if program.code[v].op not in ("const", "input")]
    uses = [x for v in steps for x in program.operands(v)]
    passing = {
        v
        for v, after in pairwise(steps)
        if program.code[v].op == "mul" and uses.count(v) == 1 and v in program.operands(after)
    }
    return [(v, [x for x in program.operands(v) if x not in passing], v in passing) for v in steps]


def reads_by_habit(steps, registers):
    """Number of loads with least-recently-used eviction."""
    inside, reads, left = OrderedDict(), 0, {}
    for _, operands, _ in steps:
        for x in operands:
            left[x] = left.get(x, 0) + 1

    def hold(x):
        inside.pop(x, None)
        inside[x] = None
        if len(inside) > registers:
            inside.popitem(last=False)

    for value, operands, passes in steps:
        for x in operands:
            reads += x not in inside
            hold(x)
            left[x] -= 1
        for x in operands:
            if not left[x]:
                inside.pop(x, None)
        if not passes and left.get(value):
            hold(value)
    return reads


@settings(max_examples=25, deadline=None)
@given(**ROUNDS, registers=st.sampled_from([13, 28]))
def test_no_more_is_read_than_where_the_oldest_makes_room(n, m, density, seed, registers):
    program = rounds(n, m, density, seed)
    (chunk,) = schedule(program, 10**6).chunks
    reads, left = allocate(program, chunk, registers)
    found = [x for anew in reads.values() for x in anew]
    assert len(found) <= reads_by_habit(steps_of(program, chunk), registers)
    # What is read was an input, or is kept when it leaves; each input is read once at least.
    computed = {v for v, _, _ in steps_of(program, chunk)}
    assert {x for x in found if x in computed} <= left
    inputs = {x for _, operands, _ in steps_of(program, chunk) for x in operands} - computed
    assert inputs <= {*found}


@settings(max_examples=25, deadline=None)
@given(**ROUNDS, sums=st.integers(1, 9))
def test_by_sums_all_is_computed_once_and_no_more_sums_grow(n, m, density, seed, sums):
    program = rounds(n, m, density, seed)
    written = [v for v, instr in enumerate(program.code) if instr.op not in ("const", "input")]
    order = limit_parallel_sums(program, written, sums)
    assert sorted(order) == written
    place = {value: k for k, value in enumerate(order)}
    assert all(place[x] < k for v, k in place.items() for x in program.operands(v) if x in place)
    growing = [(start, stop) for start, stop in _spans(program, order) if start < stop]
    for k in range(len(order)):
        assert sum(start <= k < stop for start, stop in growing) <= sums


def _spans(program, order):
    """Positions of the first and last addition of each sum that is a result."""
    place = {value: k for k, value in enumerate(order)}
    for result in {value for value in program.results if value in place}:
        at = [result]
        for value in at:
            at += [
                x for x in program.operands(value) if program.code[x].op in ("add", "sub", "neg")
            ]
        yield min(place[x] for x in at), place[result]


def test_fewer_registers_serve_sums_that_grow_fewer_at_once():
    """Bodies are written for sixteen sums; with thirteen registers, eight sums at a time need fewer loads."""
    factor = limbs([7, 7, 5])
    n = factor.shape[0]
    fn = masked(
        lambda w, x: w.mT @ (w @ x), factor.to(D), torch.cat([on_paths(factor).to(D)] * 4, 1)
    )
    program = trace(fn, [Port("w", (n, n)), Port("x", (n, 4 * n))])

    def moved(sums):
        cuts = schedule(program, 10**6, sums)
        inner = {id(part): part for _, part in cuts.regions.values()}.values()
        counts = [allocate(part.program, chunk, 13) for part in inner for chunk in part.chunks]
        return sum(len(left) + sum(map(len, reads.values())) for reads, left in counts)

    assert moved(8) < moved(0)


@pytest.mark.parametrize("target", TARGETS[:1])
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.nightly)]
)
def test_kernels_of_products_over_limbs_are_what_the_interpreter_computes(target, dtype):
    factor = limbs([7, 7, 5])
    n = factor.shape[0]
    fn = masked(
        lambda w, x: w.mT @ (w @ x), factor.to(D), torch.cat([on_paths(factor).to(D)] * 4, 1)
    )
    program = trace(fn, [Port("w", (n, n)), Port("x", (n, 4 * n))])
    assert program.loops and all(has_only_products(loop.program) for loop in program.loops)
    g = torch.Generator().manual_seed(1)
    inputs = [
        torch.randn(21, *port.shape, generator=g, dtype=dtype) / n**0.5 for port in program.inputs
    ]
    agree(program, build_kernel(program, dtype, toolchain_for(target)), inputs)
