"""Inequalities and cones of phases: the conditions of Karush, Kuhn and Tucker, and quadratic programs."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.control.test_ilqr import mass_on_a_spring
from tests.control.test_phases import (
    DT,
    HELD,
    LEG,
    STEPS,
    end_cost,
    free_cost,
    held_cost,
    simulated,
    task,
)
from torchsko.control.ilqr.inequalities import Inequalities

COUNT, PERIOD, EFFORT, PUSH = 8, 0.05, 0.02, 5
"""Steps and time step [s] of the mass, the weight of inputs in its cost, and their limit [N]."""


def mass_problem(speed, push):
    """The mass moves to 0.3 m within limits of its speed and of the inputs."""
    phase = ts.control.Phase(
        mass_on_a_spring(),
        COUNT,
        PERIOD,
        lambda mech, q, qd, u: EFFORT * u,
        lambda mech, q, qd: torch.cat([20 * (q - 0.3), 5 * qd], -1),
        inequalities=lambda mech, q, qd, u: torch.cat([speed - qd, push - u, push + u], -1),
    )
    return ts.control.optimal_control([phase])


def test_a_limit_of_velocities_and_inputs_is_that_of_a_quadratic_program():
    """The optimum of the linear system by SciPy, with all states eliminated."""
    optimize = pytest.importorskip("scipy.optimize")
    mech, still, limit = mass_on_a_spring(), torch.zeros(1).double(), 0.4
    found = ts.control.ilqr(mass_problem(limit, PUSH), still, still, torch.zeros(COUNT, 1).double())
    assert found.converged and found.violation < 1e-6
    assert (found.qd[:-1] > limit - 1e-5).any() and (found.u.abs() > PUSH - 1e-5).any()
    A, B = ts.linearize(mech, ts.State(still, still), still, dt=PERIOD)
    maps = [torch.zeros(2, COUNT).double()]
    for t in range(COUNT):
        maps.append(A @ maps[-1] + B @ torch.eye(COUNT).double()[t : t + 1])
    weights = torch.tensor([[20.0], [5.0]])
    R = torch.cat([EFFORT * torch.eye(COUNT).double(), weights * maps[-1]])
    r = torch.nn.functional.pad(torch.tensor([-6.0, 0.0]).double(), (COUNT, 0))
    speeds = torch.stack(maps[:-1])[:, 1].numpy()
    slower = {"type": "ineq", "fun": lambda u: limit - speeds @ u, "jac": lambda u: -speeds}
    best = optimize.minimize(
        lambda u: float((R @ torch.tensor(u) + r).square().sum() / 2),
        torch.zeros(COUNT).numpy(),
        jac=lambda u: (R.T @ (R @ torch.tensor(u) + r)).numpy(),
        bounds=[(-PUSH, PUSH)] * COUNT,
        constraints=[slower],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 300},
    )
    assert_close(found.cost.item(), best.fun, rtol=1e-6, atol=0)
    assert_close(found.u[:, 0], torch.tensor(best.x), rtol=0, atol=1e-3)


def test_limits_that_are_not_reached_change_nothing():
    still = torch.zeros(1).double()
    found = ts.control.ilqr(mass_problem(9.0, 90.0), still, still, torch.zeros(COUNT, 1).double())
    assert found.converged and found.iterations == 1 and (found.multipliers == 0).all()


MU = 0.3


def friction(mech, q, qd, u, forces, height):
    """The friction cone of the foot."""
    return torch.stack([MU * forces[..., 2], forces[..., 0], forces[..., 1]], -1)[..., None, :]


def pushes(mech, q, qd, u, forces, height):
    """The foot pushes the ground with at least 30 N and at most 48 N."""
    return torch.stack([forces[..., 2] - 30, 48 - forces[..., 2]], -1)


def leg_problem(mech=LEG, **options):
    held, limits = (
        ts.constrain(mech, [ts.HeldFrame("foot")]),
        {"inequalities": pushes, "cones": friction},
    )
    phases = [
        ts.control.Phase(held, STEPS[0], DT, held_cost, end_cost, **limits),
        ts.control.Phase(mech, STEPS[1], DT, free_cost),
        ts.control.Phase(held, STEPS[2], DT, held_cost, end_cost, True, **limits),
    ]
    return ts.control.optimal_control(
        phases, goals={"height": (1,)}, actuated=["hip", "knee"], **options
    )


def lagrangian(found, q, qd, u, height):
    """Cost less multipliers times values, and the values, by the verbs of both mechanisms."""
    qs, qds, cost = simulated(q, qd, u, height)
    values = []
    for t in range(sum(STEPS)):
        if STEPS[0] <= t < STEPS[0] + STEPS[1]:
            values.append(torch.zeros(5).double())
            continue
        speed = qds[t]
        if t == STEPS[0] + STEPS[1]:
            speed = HELD.impulse(qs[t], speed)[0]
        f = HELD.forward_dynamics(qs[t], speed, torch.nn.functional.pad(u[t], (2, 0)))[1]
        arguments = LEG, qs[t], speed, u[t], f, height
        values.append(torch.cat([pushes(*arguments), friction(*arguments)[0]]))
    values = torch.stack(values)
    return cost - (found.multipliers * values).sum(), values


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_forces_in_cones_obey_the_conditions_of_karush_kuhn_and_tucker(exact):
    q, qd, u, height = task()
    options = {"tolerance": 1e-6, "max_iterations": 300, "exact": exact}
    found = ts.control.ilqr(leg_problem(), q, qd, 0 * u, height, **options)
    assert found.converged and found.violation < 1e-6
    leaf = found.u.clone().requires_grad_()
    total, values = lagrangian(found, q, qd, leaf, height)
    (gradient,) = torch.autograd.grad(total, leaf)
    assert gradient.norm() < 1e-5
    values, multipliers = values.detach(), found.multipliers
    active = (multipliers.abs() > 1e-4).any(0)
    assert active[0] and active[2]  # the least push, and the cone
    assert (values[:, :2] > -1e-6).all() and (multipliers[:, :2] > -1e-12).all()
    assert (values[:, 3:].norm(dim=-1) - values[:, 2] < 1e-6).all()
    assert (multipliers[:, 3:].norm(dim=-1) - multipliers[:, 2] < 1e-9).all()
    assert ((multipliers * values)[:, :2].abs() < 1e-8).all()
    assert ((multipliers * values)[:, 2:].sum(-1).abs() < 1e-8).all()


def test_projections_are_the_nearest_points_of_the_cone():
    """Moreau: x = P(x) - P(-x), with orthogonal parts in the cone."""
    g = torch.Generator().manual_seed(0)
    cone = Inequalities(None, None, 2, (4, 3))
    x = torch.randn(50, 14, generator=g).double()
    x[0, 2:5] = 0
    x[1, 3:5] = 0
    one, other = cone.project(x), cone.project(-x)
    assert_close(one - other, x)
    assert_close((one * other).sum(-1), torch.zeros(50).double(), rtol=0, atol=1e-12)
    y = one[:, 2:].unflatten(-1, (4, 3))
    assert (y[..., 1:].norm(dim=-1) <= y[..., 0] + 1e-12).all() and (one[:, :2] >= 0).all()


@pytest.mark.nightly
def test_samples_with_inequalities_are_independent_and_have_kernels():
    q, qd, u, height = task(2)
    options = {"max_iterations": 8, "tolerance": 1e-3}
    together = ts.control.ilqr(leg_problem(), q, qd, 0 * u, height, **options)
    alone = ts.control.ilqr(leg_problem(), q[1], qd[1], 0 * u[1], height[1], **options)
    for one, other in zip(together, alone, strict=True):
        assert_close(one[1], other, rtol=1e-6, atol=1e-7)
    fused = ts.control.ilqr(leg_problem(fuse=ts.fuse), q, qd, 0 * u, height, **options)
    for one, other in zip(fused, together, strict=True):
        assert_close(one, other, rtol=1e-5, atol=1e-6)
