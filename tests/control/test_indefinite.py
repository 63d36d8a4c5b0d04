"""Nonconvex costs, termination, and the feedback of a start that is already optimal."""

import dataclasses
import math

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.control.test_ilqr import problem_of

STEPS, DT = 8, 0.12


def pendulum():
    builder = ts.MechanismBuilder("pendulum")
    builder.link("bob", mass=1.0, com=(0, 0, -0.5), inertia=torch.eye(3).mul(0.1).tolist())
    builder.joint("hinge", "revolute", child="bob", axis=(0, 1, 0))
    return builder.build()


def running(mech, q, qd, u):
    return DT * (0.05 * u.square().sum(-1) + 0.1 * qd.square().sum(-1))


def below(mech, q, qd):
    """Distance from upright as a scalar cost, with its maximum at the hanging position."""
    return 10 * (1 + torch.cos(q)).sum(-1)


def below_as_residual(mech, q, qd):
    """The distance as a residual: half its square is 10 (1 + cos q)."""
    return math.sqrt(40) * torch.cos(q / 2)


def least():
    """Minimum cost from rest by SciPy's BFGS, with the pendulum's equation of motion."""
    from scipy.optimize import minimize

    def cost(x):
        leaf = torch.tensor(x, requires_grad=True)
        q, qd, value = torch.zeros(()).double(), torch.zeros(()).double(), 0
        for u in leaf:
            value = value + DT * (0.05 * u**2 + 0.1 * qd**2)
            qd = qd + DT * (u - 9.81 * 0.5 * torch.sin(q)) / (0.1 + 0.5**2)
            q = q + DT * qd
        value = value + 10 * (1 + torch.cos(q))
        return value.item(), torch.autograd.grad(value, leaf)[0].numpy()

    return minimize(cost, [0.1] * STEPS, jac=True, method="BFGS", options={"gtol": 1e-6}).fun


@pytest.mark.parametrize("exact", [False, True])
def test_a_pendulum_swings_up_by_a_cost_that_is_a_number(exact):
    mech = pendulum()
    q, u = torch.zeros(1, dtype=mech.dtype), torch.full((STEPS, 1), 0.1, dtype=mech.dtype)
    problem = problem_of(mech, (running, below), STEPS, DT)
    found = ts.control.ilqr(problem, q, 0 * q, u, exact=exact, max_iterations=40)
    assert found.converged
    assert found.cost < 3 < 19 < below(mech, q, 0 * q)
    assert_close(found.cost.item(), least(), rtol=1e-6, atol=0)


@pytest.mark.nightly
def test_a_cost_as_number_and_as_residual_has_the_same_optimum():
    mech = pendulum()
    q, u = torch.zeros(1, dtype=mech.dtype), torch.full((STEPS, 1), 0.1, dtype=mech.dtype)
    costs = [
        ts.control.ilqr(problem_of(mech, (running, end), STEPS, DT), q, 0 * q, u).cost
        for end in (below, below_as_residual)
    ]
    assert_close(*costs)


def test_samples_with_a_concave_cost_do_not_change_the_others():
    mech = pendulum()
    problem = problem_of(mech, (running, below), STEPS, DT)
    q = torch.tensor([[0.0], [math.pi - 0.2]], dtype=mech.dtype)
    u = torch.full((2, STEPS, 1), 0.1, dtype=mech.dtype)
    options = {"exact": True, "max_iterations": 3}
    both = ts.control.ilqr(problem, q, 0 * q, u, **options)
    blind = ts.control.ilqr(problem, q, 0 * q, u, stop_early=False, **options)
    for one, other in zip(both, blind, strict=True):
        assert_close(one, other)
    for k in range(2):
        alone = ts.control.ilqr(problem, q[k], 0 * q[k], u[k], **options)
        for one, other in zip(both, alone, strict=True):
            assert_close(one[k], other, rtol=1e-6, atol=1e-8)


def test_iterations_of_robots_of_their_own_end_when_all_have_converged():
    mech = pendulum()
    mech = mech.replace(mass=mech.mass * torch.tensor([[1.0], [1.3]], dtype=mech.dtype))

    def final(mech, q, qd):
        return 5 * (q - 0.5).square().sum(-1)

    problem = problem_of(mech, (running, final), STEPS, DT)
    (segment,) = problem.segments
    expanded, tried = [], []

    def expand(*args):
        expanded.append(1)
        return segment.expand(*args)

    def cost_final(*args):
        tried.append(1)
        return segment.cost_final(*args)

    counted = dataclasses.replace(segment, expand=expand, cost_final=cost_final)
    counted = dataclasses.replace(problem, segments=(counted,))
    q, u = torch.full((1,), 0.3, dtype=mech.dtype), torch.zeros(STEPS, 1, dtype=mech.dtype)
    found = ts.control.ilqr(counted, q, 0 * q, u)
    assert found.converged.all() and found.u.shape == (2, STEPS, 1)
    assert len(expanded) == found.iterations.max() + 1
    assert len(tried) < 2 * len(expanded) + 2  # a full step is taken at once


def test_a_motion_that_is_optimal_already_has_the_gains_of_riccatis_equation():
    builder = ts.MechanismBuilder("mass")
    builder.link("mass", mass=2.0, inertia=torch.eye(3).tolist())
    builder.joint("slide", "prismatic", child="mass", stiffness=3.0, damping=0.4)
    mech = builder.build(gravity=(0, 0, 0))
    costs = (
        lambda mech, q, qd, u: torch.cat([q, 0.5 * qd, 0.1 * u], -1),
        lambda mech, q, qd: torch.cat([3 * q, qd], -1),
    )
    problem = problem_of(mech, costs, STEPS, DT)
    q, qd = torch.tensor([0.7]).double(), torch.tensor([-0.2]).double()
    first = ts.control.ilqr(problem, q, qd, torch.zeros(STEPS, 1).double())
    again = ts.control.ilqr(problem, q, qd, first.u, max_iterations=1)
    assert again.converged and again.iterations == 0
    A, B = ts.linearize(mech, ts.State(q, qd), first.u[0], dt=DT)
    Q, R = torch.diag(torch.tensor([1.0, 0.25]).double()), 0.01
    V, gains = torch.diag(torch.tensor([9.0, 1.0]).double()), []
    for _ in range(STEPS):
        K = -(B.mT @ V @ A) / (R + B.mT @ V @ B)
        V = Q + A.mT @ V @ (A + B @ K)
        gains.append(K)
    expected = torch.stack(gains[::-1])
    assert_close(again.gains, expected, rtol=1e-9, atol=1e-9)
    assert_close(first.gains, expected, rtol=1e-9, atol=1e-9)
