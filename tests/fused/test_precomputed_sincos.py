"""Precomputed sines and cosines of inputs do not change results."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchsko as ts
from tests.fused.evaluate import evaluate
from tests.fused.programs import random_program_with_inputs
from torchsko.fused.calls.kernel import build_kernel
from torchsko.fused.emit.cpp import plan
from torchsko.fused.layout.driver_passes import precompute_sincos
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace


def given_angles(program, angles, inputs):
    """The inputs and their precomputed sines and cosines."""
    flat = torch.cat([x.reshape(len(x), -1) for x in inputs], 1)[:, list(angles)]
    return (*inputs, torch.stack([flat.sin(), flat.cos()], -1).reshape(len(flat), -1))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), num_ops=st.integers(1, 200))
def test_a_program_that_is_given_sines_and_cosines_computes_the_same(seed, num_ops):
    program, inputs = random_program_with_inputs(seed, num_ops)
    split, angles = precompute_sincos(program)
    if not angles:
        assert split is program
        return
    mine = evaluate(split, given_angles(program, angles, inputs))
    for x, y in zip(mine, evaluate(program, inputs), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def test_no_chunk_of_a_robot_calls_a_sine():
    arm = ts.load(ts.robots.panda)
    program = trace(
        lambda q, qd: ts.inverse_dynamics(arm, q, qd, qd), [Port("q", (7,)), Port("qd", (7,))]
    )
    cuts = plan(program, 32)
    assert len(cuts.sincos_inputs) == 6  # the first joint turns about gravity
    assert not {"sin", "cos"} & {op for op, _ in cuts.program.code}


def test_sines_and_cosines_as_results_and_of_one_input_alone():
    """Sine and cosine, only one of them, of a sum, and of an argument beyond the range of the reduction."""

    def fn(x, y):
        return x.sin(), y.cos(), (x + y).sin(), torch.stack([x[0].cos(), x[0], y[1].cos()])

    program = trace(fn, [Port("x", (3,)), Port("y", (3,))])
    assert precompute_sincos(program)[1] == (0, 1, 2, 3, 4, 5)
    x, y = torch.randn(2, 11, 3, dtype=torch.float64)
    x[4] = 1e300
    for mine, right in zip(
        build_kernel(program, torch.float64)([x, y]), torch.vmap(fn)(x, y), strict=True
    ):
        torch.testing.assert_close(mine, right, rtol=1e-15, atol=1e-15)
