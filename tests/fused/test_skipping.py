"""Kernels skip what rare conditions alone read, with the results of programs that compute everything."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.fused.evaluate import evaluate
from tests.fused.programs import with_rare_conditions
from tests.fused.test_cpp import DTYPES, TARGETS, TOLERANCE, toolchain_for
from torchsko.fused.calls.kernel import build_kernel
from torchsko.fused.emit.statements import chunk_lines
from torchsko.fused.layout import skipping
from torchsko.fused.layout.schedule import depth_first, schedule
from torchsko.fused.layout.skipping import conditions_of, group_by_condition
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.lower import lower
from torchsko.fused.program.program import Instr, Port, Program
from torchsko.fused.tracing.tracer import trace

PORTS = [Port("x", (4,)), Port("y", (5,))]


@pytest.fixture(scope="module")
def program():
    return trace(with_rare_conditions, PORTS)


def samples(dtype):
    """Vectors of samples in which each condition holds nowhere, in one lane, in some and everywhere."""
    g = torch.Generator().manual_seed(0)
    x, y = (torch.rand(128, n, generator=g, dtype=dtype) for n in (4, 5))
    x[37, 0] = x[40, 1] = x[64:68, 2] = x[80:, :3] = 1.5
    return x, y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_that_skip_compute_the_same(program, target, dtype):
    x, y = samples(dtype)
    (found,) = build_kernel(program, dtype, toolchain_for(target))([x, y])
    expected = torch.vmap(with_rare_conditions)(x.double(), y.double()).to(dtype)
    assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_samples_do_not_depend_on_the_others_of_their_vector(program):
    x, y = samples(torch.float64)
    kernel = build_kernel(program, torch.float64)
    (together,), order = kernel([x, y]), torch.randperm(128)
    (shuffled,) = kernel([x[order], y[order]])
    assert torch.equal(shuffled, together[order])


def test_terms_under_a_condition_stand_in_blocks(program):
    outer = schedule(program, 200)
    ((_, body),) = outer.regions.values()
    depths = []
    for part in (outer, body):
        for chunk in part.chunks:
            depth = 0
            for line in chunk_lines(part, chunk, 64):
                depth += line.startswith("if (in_any_lane(") - (line == "}")
                depths += [depth] if "vexp(" in line else []
    assert depths == [1] * 3 * 5 * 7


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "where", "rare"]), *[st.integers(0, 99)] * 3),
                min_size=20, max_size=80), st.integers(0, 2**32))  # fmt: skip
def test_values_without_their_condition_have_no_effect(steps, seed):
    code = [Instr("input", (k,)) for k in range(4)]
    for op, *at in steps:
        args = tuple(k % len(code) for k in at)[: {"add": 2, "where": 3, "rare": 1}[op]]
        code.append(Instr(op, args))
    program = Program((Port("x", (4,)),), (Port("y", (2,)),), tuple(code), (),
                      (len(code) - 1, len(code) - 2))  # fmt: skip
    with patch.object(skipping, "MIN_SKIPPED", 1):
        order, conditions = group_by_condition(program, depth_first(program))
    done = set(range(4))
    for value in order:
        assert done.issuperset(program.operands(value)) and conditions.get(value, 0) in done
        done.add(value)
    assert sorted(order) == sorted(depth_first(program))
    x = torch.rand(4, generator=torch.Generator().manual_seed(seed)).round().double()
    for value, condition in conditions_of(program).items():
        every = Program(program.inputs, (Port("v", (1,)),), program.code, (), (condition,))
        if program.code[value].op == "add" and not evaluate(every, [x])[0]:
            other = (*code[:value], Instr("rare", (value - 1,)), *code[value + 1 :])
            changed = Program(program.inputs, program.outputs, other, (), program.results)
            assert torch.equal(evaluate(changed, [x])[0], evaluate(program, [x])[0])


def test_terms_under_one_condition_are_added_first():
    graph = Graph()
    start, c, *terms = (graph.input(k) for k in range(6))
    condition = graph.binary("lt", 0, c)
    graph.mark_rare([condition])
    cases = [graph.where(condition, x, 0) for x in terms]
    total = graph.add(graph.add(graph.sub(start, cases[0]), cases[1]), -cases[2])
    ports = [Port("x", (6,))], [Port("y", ())]
    program = lower(graph, [graph.sub(total, cases[3])], *ports)
    assert sum(op == "where" for op, _ in program.code) == 1
    x = torch.tensor([[1.0, 1, 2, 3, 4, 5], [1, -1, 2, 3, 4, 5]]).double()
    assert evaluate(program, [x])[0].tolist() == [1 - 2 + 3 - 4 - 5, 1]
