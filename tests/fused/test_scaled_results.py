"""Deferred scaling of results does not change them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchsko as ts
from tests.fused.evaluate import evaluate
from tests.fused.programs import random_program_with_inputs
from torchsko.fused.calls.kernel import build_kernel
from torchsko.fused.emit.cpp import plan
from torchsko.fused.layout.driver_passes import defer_scaling
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace


def columns(program, inputs):
    """The results of a program, one column each."""
    return torch.cat([x.reshape(len(inputs[0]), -1) for x in evaluate(program, inputs)], 1)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), num_ops=st.integers(1, 100))
def test_what_is_given_times_what_is_left_is_the_result(seed, num_ops):
    program, inputs = random_program_with_inputs(seed, num_ops)
    split, factors = defer_scaling(program)
    given = columns(split, inputs)
    flat = torch.cat([x.reshape(5, -1) for x in inputs], 1)
    for at, value in factors.items():
        op, (place,) = split.code[value]
        given[:, at] *= flat[:, place] if op == "input" else split.constants[place]
    torch.testing.assert_close(given, columns(program, inputs), rtol=0, atol=0, equal_nan=True)


def matrices(x, step, mass):
    """Results scaled by constants and by inputs, several of one value, unscaled results, zeros and sums."""
    a = x[:, None] * x.sin() - x.cos()[:, None]
    lower = torch.cat([0.25 * a, step * a], 1)
    return torch.cat([lower, -3.0 * lower, torch.zeros_like(lower)]), mass * a, a, 2.0 * x


PORTS = [Port("x", (7,)), Port("step", (), shared=True), Port("mass", ())]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("vector_bytes", [16, 32, None])
@pytest.mark.parametrize("size", [1, 5, 23, 5000])
def test_kernels_give_such_multiples(dtype, vector_bytes, size):
    program = trace(matrices, PORTS)
    assert plan(program, 32).result_factors
    kernel = build_kernel(program, dtype, vector_bytes=vector_bytes)
    x, step = torch.randn(size, 7, dtype=dtype), torch.tensor(0.01, dtype=dtype)
    mass = torch.rand(size, dtype=dtype)
    eps = torch.finfo(dtype).eps
    right = torch.vmap(matrices, (0, None, 0))(x, step, mass)
    for mine, theirs in zip(kernel([x, step, mass]), right, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=8 * eps, atol=32 * eps)
    # Sums over the batch, as the gradients of what all samples share are.
    total, *_ = kernel([x, step, mass], (True, False, False, False))
    exact = right[0].double().sum(0)
    torch.testing.assert_close(total.double(), exact, rtol=0, atol=64 * eps * size)


def test_the_matrices_of_a_step_are_such_and_those_of_a_state_are_not():
    """The other entries are derivatives plus one, and those of a rotating base."""
    arm = ts.load(ts.robots.panda)
    ports = [Port(name, (7,)) for name in ("q", "qd", "tau")]
    step = trace(lambda q, qd, tau: ts.linearize(arm, ts.State(q, qd), tau, dt=1e-3), ports)
    split, factors = defer_scaling(step)
    read = [split.constants[split.code[by].args[0]] for by in factors.values()]
    assert {1e-3, 1e-3 * 1e-3} <= {*read}
    state = trace(lambda q, qd, tau: ts.forward_dynamics_derivatives(arm, q, qd, tau), ports)
    assert defer_scaling(state) == (state, {})
