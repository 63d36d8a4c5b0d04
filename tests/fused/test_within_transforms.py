"""Kernels made within a torch.func transform, of functions that capture wrapped tensors."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import random_mechanism

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def fast():
    return ts.fuse(random_mechanism(["revolute", "revolute"], [-1, 0], seed=1))


@pytest.fixture(scope="module")
def state(fast):
    return fast.mechanism().random_state(3, generator=torch.Generator().manual_seed(0))


TRANSFORMS = {
    "grad": lambda fn: lambda k: grad(lambda k: fn(k).sum())(k),
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "jvp": lambda fn: lambda k: jvp(fn, (k,), (torch.ones_like(k),)),
    "vmap": lambda fn: lambda k: vmap(fn)(torch.stack([k, 2 * k])),
    "vmap of grad": lambda fn: lambda k: vmap(grad(lambda k: fn(k).sum()))(torch.stack([k, 2 * k])),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_law_that_reads_what_is_differentiated_is_one_kernel(fast, state, name):
    k = torch.tensor([0.5, 1.5], dtype=torch.float64)

    def simulated(fused):
        def end(k):
            return ts.rollout(
                fast, ts.State(*state), lambda t, q, qd: -k * qd, steps=3, fused=fused
            ).q[:, -1]

        return end

    found, expected = (TRANSFORMS[name](simulated(fused)) for fused in (True, False))
    assert_close(found(k), expected(k), **CLOSE)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_function_is_fused_within_a_transform(fast, state, name):
    arm, k = fast.mechanism(), torch.tensor([0.5, 1.5], dtype=torch.float64)

    def accelerations(k):
        return ts.fuse(lambda m, q, qd: ts.forward_dynamics(m, q, qd, -k * qd), arm)(*state)

    def eager(k):
        return ts.forward_dynamics(arm, *state, -k * state[1])

    assert_close(TRANSFORMS[name](accelerations)(k), TRANSFORMS[name](eager)(k), **CLOSE)


def test_a_robot_is_fused_within_a_transform_by_what_it_differentiates(fast, state):
    arm = fast.mechanism()

    def total(mass, inputs=("mass",)):
        robot = ts.fuse(arm.replace(mass=mass), inputs=inputs)
        return robot.mass_matrix(state[0]).sum()

    def eager(mass):
        return ts.mass_matrix(arm.replace(mass=mass), state[0]).sum()

    assert_close(grad(total)(arm.mass), grad(eager)(arm.mass), **CLOSE)
    with pytest.raises(ts.FusedError, match=r"mass of .* gradients.*\n.*\n.*inputs=\('mass',\)"):
        grad(lambda mass: total(mass, ()))(arm.mass)


def test_kernels_are_made_in_anomaly_mode(state):
    """Anomaly mode checks each gradient for nan, also traced ones."""
    robot = random_mechanism(["revolute", "revolute"], [-1, 0], seed=2)

    def damped(mech, q, qd):
        return ts.forward_dynamics(mech, q, qd, -qd)

    q, qd = state[0], state[1].clone().requires_grad_()
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        (found,) = torch.autograd.grad(ts.fuse(damped, robot)(q, qd).square().sum(), qd)
    assert_close(found, *torch.autograd.grad(damped(robot, q, qd).square().sum(), qd), **CLOSE)


def test_a_policy_s_parameters_that_functional_call_puts_in_are_differentiated(fast, state):
    class Closed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.policy = torch.nn.Linear(2, 2).double()

        def forward(self, fused):
            law = lambda t, q, qd: self.policy(qd)  # noqa: E731
            return ts.rollout(fast, ts.State(*state), law, steps=3, fused=fused).q.sum()

    torch.manual_seed(0)
    closed = Closed()
    params = {name: p.detach() for name, p in closed.named_parameters()}
    found, expected = (
        grad(lambda p, fused=fused: functional_call(closed, p, (fused,)))(params)
        for fused in (True, False)
    )
    assert_close(found, expected, **CLOSE)
