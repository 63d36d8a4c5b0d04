"""Schedules compute the same as their program, in chunks of bounded size."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchsko as ts
from tests.fused import toy
from tests.fused.evaluate import evaluate
from tests.fused.programs import random_program
from torchsko.fused.layout.register_order import NUM_REGISTERS, order_for_registers
from torchsko.fused.layout.schedule import Schedule, depth_first, num_live, schedule
from torchsko.fused.program.program import Port, Program
from torchsko.fused.tracing.tracer import trace

ARM = toy.random_arm(4)
PORTS = [Port(name, (4,)) for name in ("q", "qd", "tau")]
FREE = ("const", "input")


@pytest.fixture(scope="module")
def program() -> Program:
    return trace(lambda *a: toy.forward_dynamics(ARM, *a), PORTS)


def arithmetic(program: Program, instrs) -> list[int]:
    return [value for value in instrs if program.code[value].op not in FREE]


def run(schedule: Schedule, inputs: tuple[Tensor, ...]) -> Tensor:
    """Execute chunk by chunk with nothing but scratch between them, as generated code does."""
    program = schedule.program
    everything = Program(
        program.inputs, (Port("values", (len(program.code),)),), program.code, program.constants,
        tuple(range(len(program.code))),
    )  # fmt: skip
    truth = evaluate(everything, inputs)[0].tolist()
    scratch: list[int | None] = [None] * schedule.num_slots
    results: list[float | None] = [None] * len(program.results)
    for chunk in schedule.chunks:
        held = set()
        for value, slot in chunk.loads:
            assert scratch[slot] == value, "the slot was overwritten or never written"
            held.add(value)
        for value in chunk.instrs:
            op, args = program.code[value]
            assert op in FREE or held.issuperset(args)
            held.add(value)
        for value, slot in chunk.stores:
            assert value in held
            scratch[slot] = value
        for scalar, value in chunk.outputs:
            assert value in held
            results[scalar] = truth[value]
    return torch.tensor(results, dtype=torch.float64)


@pytest.mark.parametrize("max_ops", [1, 2, 7, 50, 200, 10_000])
def test_schedule_computes_the_program_in_bounded_chunks(program, max_ops):
    split = schedule(program, max_ops)
    g = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(3, 4, dtype=torch.float64, generator=g))
    torch.testing.assert_close(run(split, inputs), evaluate(program, inputs)[0], rtol=0, atol=0)
    sizes = [len(arithmetic(program, chunk.instrs)) for chunk in split.chunks]
    assert max(sizes) <= max_ops
    assert len(sizes) <= 1 + sum(sizes) // max(1, 3 * max_ops // 4)


@pytest.mark.parametrize("max_ops", [7, 50, 10_000])
def test_every_operation_is_computed_once(program, max_ops):
    split = schedule(program, max_ops)
    computed = [v for chunk in split.chunks for v in arithmetic(program, chunk.instrs)]
    assert tuple(computed) == split.order
    assert sorted(computed) == arithmetic(program, range(len(program.code)))


@pytest.mark.parametrize("max_ops", [7, 50])
def test_no_chunk_loads_and_stores_one_slot(program, max_ops):
    for chunk in schedule(program, max_ops).chunks:
        assert not {slot for _, slot in chunk.loads} & {slot for _, slot in chunk.stores}


def test_slots_are_reused(program):
    split = schedule(program, 50)
    stores = sum(len(chunk.stores) for chunk in split.chunks)
    assert split.num_slots < stores / 2


def test_small_program_is_one_function_without_scratch(program):
    (chunk,) = schedule(program, program.num_flops).chunks
    assert not chunk.loads and not chunk.stores


def test_operands_come_before_their_readers(program):
    place = {value: k for k, value in enumerate(depth_first(program))}
    for value, k in place.items():
        assert all(place[x] < k for x in program.code[value].args if x in place)


def test_program_without_arithmetic_is_scheduled():
    program = trace(lambda x: (x.flip(0), torch.ones(2)), [Port("x", (2,))])
    split = schedule(program, 500)
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert run(split, (x,)).tolist() == [4.0, 3.0, 1.0, 1.0]


def test_matrices_of_pairs_are_computed_from_the_tips_inward():
    """Each order computes all values once; outermost first, fewer values wait in scratch."""
    arm = ts.load(ts.robots.panda)
    ports = [Port(name, (7,)) for name in ("q", "qd", "qdd")]
    program = trace(lambda *x: ts.inverse_dynamics_derivatives(arm, *x), ports)
    as_given, outermost = (depth_first(program, outermost_first=way) for way in (False, True))
    assert sorted(as_given) == sorted(outermost)
    given, least = (sum(num_live(program, order)) for order in (as_given, outermost))
    assert least < 0.7 * given
    assert schedule(program, 500).order == tuple(order_for_registers(program, outermost))


def far(program: Program, order: Sequence[int]) -> int:
    """Number of operands that are not among the values used last."""
    used: list[int] = []
    count = 0
    for value in order:
        reads = [x for x in program.code[value].args if program.code[x].op != "const"]
        count += sum(x not in used for x in reads)
        used = [x for x in used if x not in reads] + reads + [value]
        used = used[-NUM_REGISTERS:]
    return count


def most_waiting(program: Program, order: Sequence[int]) -> int:
    """Largest number of live values and inputs."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, value in enumerate(order):
        for x in (value, *(x for x in program.code[value].args if program.code[x].op != "const")):
            first.setdefault(x, k)
            last[x] = k
    return max(sum(first[x] <= k < last[x] for x in first) for k in range(len(order)))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), num_ops=st.integers(1, 400))
def test_moving_forward_keeps_an_order_and_lets_no_more_values_wait(seed, num_ops):
    program = random_program(seed, num_ops=num_ops)
    order = depth_first(program)
    moved = order_for_registers(program, order)
    assert sorted(moved) == sorted(order)
    place = {value: k for k, value in enumerate(moved)}
    for value, k in place.items():
        assert all(place[x] < k for x in program.code[value].args if x in place)
    # A product waits for the sum that it is one instruction with, and so may one operand more.
    assert most_waiting(program, moved) <= most_waiting(program, order) + 1


def test_values_are_used_while_they_are_in_registers(program):
    order = depth_first(program)
    assert far(program, order_for_registers(program, order)) < 0.85 * far(program, order)
