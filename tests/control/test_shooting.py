"""Multiple shooting: initial states that are inconsistent with the inputs."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.control.test_ilqr import (
    COSTS,
    DT,
    STEPS,
    mass_on_a_spring,
    problem_of,
    robot,
    solve,
    task,
    total,
)


def between(mech, q, target):
    """Interpolated configurations, with velocities inconsistent with them."""
    share = torch.linspace(0, 1, STEPS + 1, dtype=q.dtype)[:, None]
    way = share * ts.difference(mech, q, target)[..., None, :]
    return ts.integrate(mech, q[..., None, :], way), torch.zeros_like(way)


@pytest.mark.some(1)
@pytest.mark.parametrize("exact", [False, True])
def test_gaps_close_and_what_is_found_is_stationary(exact):
    mech, costs = robot(), COSTS["residuals"]
    q, qd, u, target = task(mech, 2)
    states = between(mech, q, target)
    found = solve(mech, costs, q, qd, u, target, states=states, exact=exact)
    assert found.converged.all() and (found.gap < 1e-6).all()
    leaf = found.u.requires_grad_()
    cost = total(mech, costs, q, qd, leaf, target)
    (gradient,) = torch.autograd.grad(cost.sum(), leaf)
    assert (gradient.square().sum((-1, -2)).sqrt() < 2e-6).all()
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), found.u.detach(), steps=STEPS, dt=DT)
    assert_close(ts.difference(mech, qs, found.q), torch.zeros_like(qds), rtol=0, atol=1e-6)


def test_gaps_are_those_of_the_steps_from_the_states_given():
    mech, costs = robot(), COSTS["residuals"]
    q, qd, u, target = task(mech, 2)
    states = between(mech, q, target)
    found = solve(mech, costs, q, qd, u, target, states=states, max_iterations=0)
    starts = q, qd
    worst = torch.zeros_like(found.gap)
    for t in range(STEPS):
        qs, qds, *_ = ts.rollout(mech, ts.State(*starts), u[:, t], steps=1, dt=DT)
        starts = states[0][:, t + 1], states[1][:, t + 1]
        miss = torch.cat([ts.difference(mech, qs[:, -1], starts[0]), starts[1] - qds[:, -1]], -1)
        worst = torch.maximum(worst, miss.abs().amax(-1))
    assert_close(found.gap, worst)
    assert (worst > 0.1).all() and not found.converged.any()


def test_states_that_follow_from_the_inputs_change_nothing():
    mech, costs = robot(), COSTS["residuals"]
    q, qd, u, target = task(mech, 2)
    states = ts.rollout(mech, ts.State(q, qd), u, steps=STEPS, dt=DT)[:2]
    for k in (1, 3):
        once, many = (
            solve(mech, costs, q, qd, u, target, states=x, max_iterations=k) for x in (None, states)
        )
        assert_close(once.u, many.u, rtol=1e-9, atol=1e-9)
        assert_close(once.cost, many.cost)


def test_one_step_solves_a_linear_quadratic_problem_from_any_states():
    mech = mass_on_a_spring()
    q, qd, u = (torch.tensor(x).double() for x in ([0.7], [-0.2], [[0.0]] * STEPS))
    states = torch.randn(2, STEPS + 1, 1, generator=torch.Generator().manual_seed(0)).double()
    given = q, qd, u, torch.zeros(1, dtype=q.dtype)
    costs = COSTS["residuals"]
    many = solve(mech, costs, *given, states=tuple(states), max_iterations=1)
    assert many.converged and many.gap < 1e-12
    assert_close(many.u, solve(mech, costs, *given).u)


def test_inputs_beyond_their_bounds_begin_at_them():
    """All inputs are optimal at their bounds, and the states are consistent with these."""
    builder = ts.MechanismBuilder("mass").link("mass", mass=1.0)
    mech = builder.joint("slide", "prismatic", child="mass").build(gravity=(0, 0, 0))
    most, still = torch.tensor([0.5]).double(), torch.zeros(1).double()
    costs = lambda mech, q, qd, u: 0.01 * u, lambda mech, q, qd: q - 100
    problem = problem_of(mech, costs, bounds=(-most, most))
    states = ts.rollout(mech, ts.State(still, still), most, steps=STEPS, dt=DT)[:2]
    for count in (0, 5):
        found = ts.control.ilqr(
            problem, still, still, torch.full((STEPS, 1), 7.0).double(), states=states,
            max_iterations=count,
        )  # fmt: skip
        assert found.converged and found.gap < 1e-12
        assert (found.u == most).all()


@pytest.mark.nightly
def test_a_pole_that_falls_over_under_no_forces_may_begin_upright():
    """Newton's method on a horizon much longer than the time to fall: fewer iterations, no higher cost."""
    builder = ts.MechanismBuilder("pole")
    builder.link("pole", mass=1.0, com=(0, 0, 0.5), inertia=torch.eye(3).mul(0.01).tolist())
    builder.joint("hinge", "revolute", child="pole", axis=(0, 1, 0))
    mech, steps = builder.build(), 60
    costs = (
        lambda mech, q, qd, u: torch.cat([0.1 * u, q, 0.1 * qd], -1),
        lambda mech, q, qd: torch.cat([10 * q, qd], -1),
    )
    problem = problem_of(mech, costs, steps, 0.05)
    q = torch.tensor([0.2], dtype=mech.dtype)
    u, upright = torch.zeros(steps, 1, dtype=q.dtype), torch.zeros(steps + 1, 1, dtype=q.dtype)
    once = ts.control.ilqr(problem, q, 0 * q, u)
    many = ts.control.ilqr(problem, q, 0 * q, u, states=(upright, upright))
    assert many.converged and many.iterations < once.iterations
    assert many.cost < once.cost + 1e-9


def test_states_that_do_not_fit_are_named():
    mech, costs = robot(), COSTS["residuals"]
    q, qd, u, target = task(mech)
    qs, qds = between(mech, q, target)
    with pytest.raises(ts.ShapeError, match=r"states\[1\] has shape"):
        solve(mech, costs, q, qd, u, target, states=(qs, qds[1:]))
