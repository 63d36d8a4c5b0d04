"""Bodies of loops in traced functions that close over what vmaps within the function map."""

from __future__ import annotations

import pytest
import torch

import torchsko as ts
from tests.fused.evaluate import evaluate
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

D = torch.float64
PORTS = [Port("q", (2,))]
Q = torch.tensor([0.3, -0.8], dtype=D)


def gains() -> torch.Tensor:
    return torch.tensor([0.5, 0.9, 1.5], dtype=D)


def plain(q):
    return torch.vmap(lambda g: ts.iterate(lambda x: g * x.sin(), q, 3))(gains())


def of_the_last_dimension(q):
    rows = torch.stack([gains(), -gains()])
    return torch.vmap(lambda g: ts.iterate(lambda x: g * x.sin(), q, 3), in_dims=-1)(rows)


def made_of_what_is_mapped(q):
    def one(g):
        double, on = 2 * g, g > 0.6
        return ts.iterate(lambda x: torch.where(on, double * x, x.sin()), q * g, 3)

    return torch.vmap(one)(gains())


def nested(q):
    """Another vmap of the same size around, whose samples are not these."""

    def outer(g):
        return torch.vmap(lambda h: ts.iterate(lambda x: g * x.sin(), q * h, 3))(gains().square())

    return torch.vmap(outer)(gains())


def nested_the_other_way(q):
    def outer(g):
        return torch.vmap(lambda h: ts.iterate(lambda x: h * x.sin(), q * g, 3))(gains().square())

    return torch.vmap(outer)(gains())


def loop_in_a_loop(q):
    def one(g):
        return ts.iterate(lambda x: ts.iterate(lambda y: g * y.sin(), x + g, 3), q, 4)

    return torch.vmap(one)(gains())


def until(q):
    def one(g):
        return ts.iterate(lambda x: 0.9 * x, q, 9, until=lambda x: x.abs().max() < g)

    return torch.vmap(one)(gains())


def reverse(q):
    return torch.func.jacrev(plain)(q)


def forward(q):
    return torch.func.jacfwd(plain)(q)


def mapped_gradient(q):
    def one(g):
        return torch.func.grad(lambda q: ts.iterate(lambda x: g * x.sin(), q, 3).sum())(q)

    return torch.vmap(one)(gains())


def twice(q):
    return torch.func.jacfwd(torch.func.jacrev(plain))(q)


CASES = [
    plain,
    of_the_last_dimension,
    made_of_what_is_mapped,
    nested,
    nested_the_other_way,
    loop_in_a_loop,
    until,
    reverse,
    forward,
    mapped_gradient,
    twice,
]


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_a_body_may_close_over_what_a_vmap_maps(fn):
    program = trace(fn, PORTS)
    assert program.loops
    torch.testing.assert_close(evaluate(program, [Q])[0], fn(Q), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("order", ["vmap of grad", "grad of vmap"])
def test_a_body_may_close_over_what_a_derivative_is_taken_by(order):
    def fn(q):
        def one(g):
            return ts.iterate(lambda x: g * x.sin(), q, 3).sum()

        if order == "vmap of grad":
            return torch.vmap(torch.func.grad(one))(gains())
        return torch.func.grad(lambda z: torch.vmap(one)(z).sum())(gains())

    program = trace(fn, PORTS)
    assert program.loops
    torch.testing.assert_close(evaluate(program, [Q])[0], fn(Q), rtol=1e-13, atol=1e-13)


GAIN = torch.tensor([0.3, 0.5], dtype=D)


@pytest.mark.parametrize("inputs", [(), ("mass",)])
def test_a_body_may_close_over_captured_tensors_arguments_and_the_robot(inputs):
    """A global tensor in the body was reported as an argument of the function that was not passed."""
    arm = ts.load(ts.robots.panda)
    gain = torch.linspace(0.1, 0.7, 7, dtype=D, requires_grad=True)

    def settle(mech, q, qd):
        return ts.iterate(lambda x: x - 1e-3 * gain * (ts.gravity_force(mech, x) + qd), q, 3)

    fast, states = ts.fuse(settle, arm, inputs=inputs), arm.random_state(2)
    wanted = torch.stack([settle(arm, *x) for x in zip(*states, strict=True)])
    found = fast(*states)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(x.sin().sum(), gain)[0] for x in (found, wanted)]
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-12)


def test_a_body_may_close_over_a_global_tensor():
    arm = ts.load(ts.robots.panda)
    fast = ts.fuse(lambda mech, q: ts.iterate(lambda x: GAIN[0] * x.sin(), q, 3), arm)
    q = arm.random_state(2)[0]
    torch.testing.assert_close(fast(q), ts.iterate(lambda x: GAIN[0] * x.sin(), q, 3))


def test_a_robot_for_each_sample_may_be_closed_over():
    arm = ts.load(ts.robots.panda)
    scales = torch.tensor([0.5, 1.5], dtype=D)

    def settle(mech, q):
        def one(s):
            robot = mech.replace(mass=mech.mass * s)
            return ts.iterate(lambda x: x - 1e-3 * ts.gravity_force(robot, x), q, 3)

        return torch.vmap(one)(scales.clone())

    fast, q = ts.fuse(settle, arm), arm.random_state(3)[0]
    for factor in (1.0, 0.5):  # what is mapped is read anew at each call
        scales.mul_(factor)
        wanted = torch.stack([settle(arm, x) for x in q])
        torch.testing.assert_close(fast(q), wanted, rtol=1e-12, atol=1e-12)
