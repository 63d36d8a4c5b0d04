"""Optimal control: the Riccati step, exact gradients, Newton's convergence, bounds, and batches."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.control.ilqr.riccati_step import bounded_step, riccati_step
from torchsko.integrators.integrators import SemiImplicitEuler
from torchsko.linalg.scalar_form import scalar_form

STEPS, DT = 6, 0.04


def mass_on_a_spring() -> ts.Mechanism:
    builder = ts.MechanismBuilder("mass")
    builder.link("mass", mass=2.0, inertia=torch.eye(3).tolist())
    builder.joint("slide", "prismatic", child="mass", stiffness=3.0, damping=0.4)
    return builder.build(gravity=(0, 0, 0))


def robot(kinds=("revolute", "spherical"), seed=3):
    mech = random_mechanism(list(kinds), [-1, 0][: len(kinds)], seed=seed)
    return mech.replace(friction=torch.zeros_like(mech.friction))


def residuals(mech, q, qd, u, target):
    return torch.cat([0.1 * u, 0.1 * qd, 0.1 * ts.difference(mech, target, q)], -1)


def end_residuals(mech, q, qd, target):
    return torch.cat([5 * ts.difference(mech, target, q), qd], -1)


def running(mech, q, qd, u, target):
    """The cost as a scalar, with a term that is not a square."""
    square = residuals(mech, q, qd, u, target).square().sum(-1) / 2
    return square + 0.01 * torch.cosh(qd).sum(-1)


def final(mech, q, qd, target):
    return end_residuals(mech, q, qd, target).square().sum(-1) / 2


COSTS = {"residuals": (residuals, end_residuals), "numbers": (running, final)}


def task(mech, *batch, seed=0):
    g = torch.Generator().manual_seed(seed)
    q, _ = mech.random_state(*batch, generator=g)
    qd, step = 0.3 * torch.randn(2, *batch, mech.num_dof, generator=g, dtype=q.dtype)
    return (
        q,
        qd,
        torch.zeros(*batch, STEPS, mech.num_dof, dtype=q.dtype),
        ts.integrate(mech, q, step),
    )


def total(mech, costs, q, qd, u, target, dofs=None):
    """Cost of the inputs by `torchsko.rollout`."""
    tau = u
    if dofs is not None:
        tau = torch.zeros(*u.shape[:-1], mech.num_dof, dtype=u.dtype)
        tau = tau.index_copy(-1, torch.tensor(dofs), u)
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), tau, steps=u.shape[-2], dt=DT)
    along = costs[0](mech, qs[..., :-1, :], qds[..., :-1, :], u, target[..., None, :])
    at_end = costs[1](mech, qs[..., -1, :], qds[..., -1, :], target)
    if along.ndim == qs.ndim:
        along, at_end = along.square().sum(-1) / 2, at_end.square().sum(-1) / 2
    return along.sum(-1) + at_end


def problem_of(mech, costs, steps=STEPS, dt=DT, method="semi_implicit_euler", **options):
    phase = ts.control.Phase(mech, steps, dt, *costs, method=method)
    return ts.control.optimal_control([phase], **options)


def solve(mech, costs, *given, problem=None, **options):
    goals = {"target": (mech.num_q,)}
    problem = problem or problem_of(mech, costs, given[2].shape[-2], goals=goals)
    return ts.control.ilqr(problem, *given, **options)


@pytest.mark.some(2)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
def test_what_is_found_is_a_stationary_point_of_the_rollouts_cost(costs, exact):
    mech = robot()
    q, qd, u, target = task(mech, 3)
    found = solve(mech, costs, q, qd, u, target, exact=exact)
    assert found.converged.all()
    leaf = found.u.requires_grad_()
    cost = total(mech, costs, q, qd, leaf, target)
    (gradient,) = torch.autograd.grad(cost.sum(), leaf)
    norm = gradient.square().sum((-1, -2)).sqrt()
    assert (norm < 1.01e-6).all()
    assert_close(norm, found.gradient, rtol=1e-3, atol=1e-12)
    assert_close(cost.detach(), found.cost)
    assert (found.cost < total(mech, costs, q, qd, u, target)).all()
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), found.u.detach(), steps=STEPS, dt=DT)
    assert_close(ts.difference(mech, qs, found.q), torch.zeros_like(qds), rtol=0, atol=1e-9)


def test_exact_iterations_converge_as_newtons_do():
    """The number of correct digits doubles, since the Hessian is exact."""
    mech = robot()
    given = task(mech)
    norms = [
        solve(
            mech, COSTS["numbers"], *given, exact=True, max_iterations=k, tolerance=1e-14
        ).gradient.item()
        for k in range(4)
    ]
    assert norms[0] > 0.1 and norms[-1] < 1e-13
    assert all(b < a**2 for a, b in itertools.pairwise(norms))


def test_one_newton_step_solves_a_linear_quadratic_problem():
    """A mass on a spring with quadratic costs, against the solution of the linear system of the inputs."""
    builder = ts.MechanismBuilder("mass")
    builder.link("mass", mass=2.0, inertia=torch.eye(3).tolist())
    builder.joint("slide", "prismatic", child="mass", stiffness=3.0, damping=0.4)
    mech = builder.build(gravity=(0, 0, 0))
    q, qd, u = (
        torch.tensor([0.7]).double(),
        torch.tensor([-0.2]).double(),
        torch.zeros(STEPS, 1).double(),
    )
    target = torch.zeros(1, dtype=q.dtype)
    found = solve(mech, COSTS["residuals"], q, qd, u, target, max_iterations=1)
    assert found.converged and found.iterations == 1
    cost = lambda u: total(mech, COSTS["residuals"], q, qd, u[:, None], target)  # noqa: E731
    H, g = (f(cost)(u[:, 0]) for f in (torch.func.hessian, torch.func.grad))
    assert_close(found.u[:, 0], -torch.linalg.solve(H, g))


@pytest.mark.nightly
def test_samples_are_independent():
    mech, costs = robot(), COSTS["residuals"]
    q, qd, u, target = task(mech, 2, 2)
    both = solve(mech, costs, q, qd, u, target)
    blind = solve(mech, costs, q, qd, u, target, stop_early=False, max_iterations=5)
    some = solve(mech, costs, q, qd, u, target, max_iterations=5)
    for one, other in zip(some, blind, strict=True):
        assert_close(one, other)
    for k in ((0, 1), (1, 0)):
        alone = solve(mech, costs, *(x[k] for x in (q, qd, u, target)))
        for one, other in zip(both, alone, strict=True):
            assert_close(one[k], other, rtol=1e-6, atol=1e-8)


@pytest.mark.nightly
def test_robots_of_a_batch_have_independent_motions():
    mech, costs = robot(), COSTS["residuals"]
    scale = torch.tensor([[1.0], [2.0]], dtype=mech.dtype)
    fleet = mech.replace(mass=scale * mech.mass)
    given = task(mech)
    both = solve(fleet, costs, *given)
    assert both.u.shape == (2, STEPS, mech.num_dof) and both.converged.all()
    for k in range(2):
        alone = solve(mech.replace(mass=scale[k] * mech.mass), costs, *given)
        assert_close(both.u[k], alone.u, rtol=1e-5, atol=1e-6)


@pytest.mark.some(1)
@pytest.mark.parametrize("exact", [False, True])
def test_bounded_inputs_obey_the_conditions_of_karush_kuhn_and_tucker(exact):
    mech, costs = robot(), COSTS["residuals"]
    q, qd, u, target = task(mech, 2)
    free = solve(mech, costs, q, qd, u, target).u.abs().amax((0, 1))
    problem = problem_of(
        mech, costs, goals={"target": (mech.num_q,)}, bounds=(-0.5 * free, 0.5 * free)
    )
    found = ts.control.ilqr(problem, q, qd, u, target, exact=exact)
    assert found.converged.all()
    leaf = found.u.requires_grad_()
    (g,) = torch.autograd.grad(total(mech, costs, q, qd, leaf, target).sum(), leaf)
    low, high = found.u == -0.5 * free, found.u == 0.5 * free
    assert (found.u.abs() <= 0.5 * free).all() and (low | high).any()
    assert (g[low] > -1e-6).all() and (g[high] < 1e-6).all()
    assert (g[~(low | high)].abs() < 1e-6).all()


def test_joints_without_motors_have_no_input():
    """A cart with a pendulum: two coordinates, one input."""
    builder = ts.MechanismBuilder("cart-pole")
    turning = [[0.01, 0, 0], [0, 0.01, 0], [0, 0, 0.01]]
    builder.link("cart", mass=1.0, inertia=turning)
    builder.joint("slide", "prismatic", child="cart", axis=(1, 0, 0))
    builder.link("pole", mass=0.3, com=(0, 0, -0.5), inertia=turning)
    builder.joint("hinge", "revolute", parent="cart", child="pole", axis=(0, 1, 0))
    mech, costs = builder.build(), COSTS["residuals"]
    problem = problem_of(mech, costs, goals={"target": (2,)}, actuated=["slide"])
    start = torch.tensor([0.0, 0.3], dtype=mech.dtype)
    target, u = torch.zeros_like(start), torch.zeros(STEPS, 1, dtype=mech.dtype)
    found = ts.control.ilqr(problem, start, torch.zeros_like(start), u, target)
    assert found.converged
    leaf = found.u.requires_grad_()
    cost = total(mech, costs, start, torch.zeros_like(start), leaf, target, dofs=[0])
    assert torch.autograd.grad(cost, leaf)[0].norm() < 1.01e-6


def test_feedback_brings_a_disturbed_motion_back():
    """The cost under the feedback is the value function of the linear-quadratic problem."""
    mech, costs = robot(), COSTS["residuals"]
    q, qd, u, target = task(mech)
    found = solve(mech, costs, q, qd, u, target)
    disturbed = ts.integrate(mech, q, torch.full((mech.num_dof,), 0.05, dtype=q.dtype))
    kept = total(mech, costs, disturbed, qd, found.u, target)
    state, used = (disturbed, qd), []
    for t in range(STEPS):
        x = torch.cat([ts.difference(mech, found.q[t], state[0]), state[1] - found.qd[t]])
        used.append(found.u[t] + found.gains[t] @ x)
        qs, qds, *_ = ts.rollout(mech, ts.State(*state), used[-1], steps=1, dt=DT)
        state = qs[-1], qds[-1]
    least = solve(mech, costs, disturbed, qd, found.u, target).cost
    fed_back = total(mech, costs, disturbed, qd, torch.stack(used), target)
    assert 0 <= fed_back - least < 0.05 * (kept - least)


def test_the_riccati_step_is_that_of_scalar_programs():
    g = torch.Generator().manual_seed(0)
    mech, n, m = robot(("revolute",)), 4, 2

    def definite(k):
        x = torch.randn(5, k, k, generator=g, dtype=torch.float64)
        return x @ x.mT + torch.eye(k)

    V, hessian = definite(n), definite(n + m)
    v, gradient = (torch.randn(5, k, generator=g, dtype=torch.float64) for k in (n, n + m))
    A, B = (torch.randn(5, n, k, generator=g, dtype=torch.float64) for k in (n, m))
    none = torch.tensor([torch.inf, 0.0], dtype=torch.float64).expand(
        5, 2
    )  # the second input stays
    mu = torch.full((5,), 0.3, dtype=torch.float64)
    found = bounded_step(mech, V, v, A, B, gradient, hessian, -none, none, mu)
    both = [V, v, A, B, gradient, hessian, -none, none, mu]
    scalar = [scalar_form()(bounded_step)(mech, *(x[k] for x in both)) for k in range(5)]
    for one, others in zip(found, zip(*scalar, strict=True), strict=True):
        assert_close(one, torch.stack(others))
    V_new, _, k, K, slope, curvature, _, good = found
    assert (k[:, 1] == 0).all() and (K[:, 1] == 0).all() and (good == 1).all()
    # The reduced problem of the free input.
    b = B[..., :1]
    Q_uu = hessian[:, n : n + 1, n : n + 1] + b.mT @ V @ b + 0.3
    Q_ux = hessian[:, n : n + 1, :n] + b.mT @ V @ A
    q_u = gradient[:, n : n + 1] + (b.mT @ v[..., None])[..., 0]
    assert_close(K[:, :1], -Q_ux / Q_uu)
    closed = A + b @ K[:, :1]
    value = (
        closed.mT @ V @ closed
        + hessian[:, :n, :n]
        + K[:, :1].mT @ (Q_uu - 0.3 - b.mT @ V @ b) @ K[:, :1]
    )
    cross = hessian[:, n : n + 1, :n].mT @ K[:, :1]
    assert_close(V_new, value + cross + cross.mT)
    assert_close(slope, -(q_u**2 / Q_uu[..., 0])[:, 0])
    assert_close(curvature, (k[:, :1] ** 2 * (Q_uu[..., 0] - 0.3))[:, 0])
    worse = -9 * hessian - 99 * torch.eye(n + m)
    for step, bounds in ((riccati_step, ()), (bounded_step, (-none, none))):
        bad = step(mech, V, v, A, B, gradient, worse, *bounds, mu)
        assert (bad[-1] == 0).all()
    wide = torch.full_like(none, torch.inf)
    free = riccati_step(mech, V, v, A, B, gradient, hessian, mu)
    for one, other in zip(
        free, bounded_step(mech, V, v, A, B, gradient, hessian, -wide, wide, mu), strict=True
    ):
        assert_close(one, other)
    # A bound fixes the first input half way; the second input minimizes the rest.
    tight = torch.where(torch.tensor([True, False]), free[2].abs() / 2, wide)
    half = bounded_step(mech, V, v, A, B, gradient, hessian, -tight, tight, mu)
    b = B[..., 1:]
    Q_u = hessian[:, n + 1 :, n:] + b.mT @ V @ B + 0.3 * torch.tensor([0.0, 1.0])
    q_u = gradient[:, n + 1 :] + (b.mT @ v[..., None])[..., 0]
    assert_close(half[2][:, 0], free[2][:, 0] / 2)
    assert_close((Q_u @ half[2][..., None])[..., 0], -q_u)
    assert (half[3][:, 0] == 0).all() and (half[3][:, 1] != 0).all()


@pytest.mark.nightly  # by day bounded inputs satisfy the KKT conditions
def test_a_swing_up_whose_motor_is_at_its_limits_converges():
    """Regression: clamped unbounded plans found no descent and stopped at a cost of 0.6."""
    builder = ts.MechanismBuilder("pendulum")
    builder.link("rod", mass=1.0, com=(0, 0, -0.5), inertia=(0.02 * torch.eye(3)).tolist())
    builder.joint("hinge", "revolute", child="rod", axis=(0, 1, 0), damping=0.05)
    limit, start = torch.full((1,), 3.0).double(), torch.zeros(1).double()
    costs = (
        lambda mech, q, qd, u: torch.cat([0.1 * (q - torch.pi), 0.03 * qd, 0.03 * u], -1),
        lambda mech, q, qd: torch.cat([10 * (q - torch.pi), 3 * qd], -1),
    )
    problem = problem_of(builder.build(), costs, 16, 0.15, bounds=(-limit, limit))
    u = torch.tensor([0.4, -0.6, 0.3, 0.7]).double().repeat(4)[:, None]
    found = ts.control.ilqr(problem, start, start, u, tolerance=1e-3, max_iterations=40)
    assert found.converged and found.cost < 0.41 and (found.u.abs() == 3.0).sum() > 5


def test_samples_whose_inputs_come_to_no_bound_are_planned_once():
    """Regression: all samples were solved a second time without bounds, at twice the work."""
    mech, costs = robot(("revolute",)), COSTS["residuals"]
    mech = mech.replace(gravity=0 * mech.gravity, stiffness=0 * mech.stiffness)
    q, qd, u, target = task(mech, 2)
    near = torch.tensor([[1.0], [0.01]], dtype=q.dtype)  # the second sample starts near its optimum
    qd, target = near * qd, q + near * (target - q)
    free = solve(mech, costs, q, qd, u, target).u.abs().amax((1, 2))
    limit = 0.5 * free[:1]
    assert free[1] < 0.5 * limit
    goals = {"target": (mech.num_q,)}
    problem = problem_of(mech, costs, goals=goals, bounds=(-limit, limit))
    planned = []

    def backward(V, *rest):
        planned.append(len(V))
        return problem.backward(V, *rest)

    counting = replace(problem, backward=backward)
    calm = ts.control.ilqr(counting, *(x[1:] for x in (q, qd, u, target)))
    assert len(planned) == STEPS * (
        calm.iterations[0] + 1
    )  # the last iteration detects convergence
    planned.clear()
    both = ts.control.ilqr(counting, q, qd, u, target, max_iterations=1)
    assert planned == STEPS * [2] + STEPS * [1]  # the second solve concerns the first sample only
    assert (both.u[0].abs() == limit).any() and (both.u[1].abs() < limit).all()
    every = ts.control.ilqr(problem, q, qd, u, target, max_iterations=1, stop_early=False)
    assert_close(both.u, every.u, rtol=1e-12, atol=1e-12)


def test_dry_friction_that_creeps_faster_is_planned_with_as_without_it():
    """It takes a few iterations more, and the plan is the rollout with the same creep."""
    builder = ts.MechanismBuilder("arm")
    builder.link("arm", mass=1.0, com=(0.0, 0.0, -0.5))
    builder.joint("hinge", "revolute", child="arm", axis=(0.0, 1.0, 0.0))
    arm = builder.build()
    rough = arm.replace(friction=arm.friction + 0.05)
    goals, step = {"target": (1,)}, SemiImplicitEuler(creep=0.1)
    q, u = torch.zeros(1, dtype=arm.dtype), torch.full((12, 1), 0.01, dtype=arm.dtype)
    given = (q, q, u, q + 1.0)
    smooth, rubbed = (
        problem_of(mech, COSTS["residuals"], 12, 0.02, method, goals=goals)
        for mech, method in ((arm, "semi_implicit_euler"), (rough, step))
    )
    freely = ts.control.ilqr(smooth, *given)
    found = ts.control.ilqr(rubbed, *given, max_iterations=2 * int(freely.iterations))
    assert freely.converged and found.converged
    qs, qds, *_ = ts.rollout(rough, ts.State(q, q), found.u, steps=12, dt=0.02, method=step)
    assert_close(found.q, qs, rtol=0, atol=1e-12)
    assert_close(found.qd, qds, rtol=0, atol=1e-12)


def test_wrong_arguments_are_named():
    mech, costs = robot(), COSTS["residuals"]
    q, qd, u, target = task(mech)
    goals = {"target": (mech.num_q,)}
    with pytest.raises(ts.ShapeError, match="target has shape"):
        solve(mech, costs, q, qd, u, target[:-1])
    with pytest.raises(ts.ShapeError, match="given 0 goals"):
        solve(mech, costs, q, qd, u)
    with pytest.raises(ts.ShapeError, match="u has shape"):
        solve(mech, costs, q, qd, u[:, 1:], target, problem=problem_of(mech, costs, goals=goals))
    with pytest.raises(ts.TorchskoError, match="tolerance=0"):
        solve(mech, costs, q, qd, u, target, tolerance=0)
    with pytest.raises(ts.MechanismError, match="joint"):
        problem_of(mech, costs, goals=goals, actuated=["no such joint"])
    with pytest.raises(ts.TorchskoError, match="method"):
        problem_of(mech, costs, method="guess", goals=goals)
    with pytest.raises(ts.TorchskoError, match="bounds"):
        problem_of(mech, costs, goals=goals, bounds=(u[0, 1:], u[0, 1:]))
