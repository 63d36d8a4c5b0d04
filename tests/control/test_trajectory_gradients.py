"""Gradients of optimal trajectories are those of differences of solutions."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.control import test_inequalities, test_phases
from tests.control.test_ilqr import mass_on_a_spring, problem_of, robot
from tests.control.test_indefinite import DT, STEPS, below, pendulum, running
from tests.control.test_phases import LEG
from tests.refusals import assert_refused


def assert_gradients_are_differences(solve, *inputs, step=1e-3):
    """Compare gradients of a random function of solutions with differences of fourth order."""
    g = torch.Generator().manual_seed(0)

    def random(x):
        return torch.randn(x.shape, generator=g).double()

    def loss(found):
        parts = (found.q, found.qd, found.u, found.cost)
        return sum((w * x).sum() for w, x in zip(weights, parts, strict=True))

    leaves = [x.clone().requires_grad_() for x in inputs]
    found = solve(*leaves)
    weights = [random(x) for x in (*found[:3], found.cost)]
    gradients = torch.autograd.grad(loss(found), leaves)
    direction, values = [random(x) for x in inputs], []
    for s in (-2, -1, 1, 2):
        moved = solve(*(x + s * step * d for x, d in zip(inputs, direction, strict=True)))
        assert moved.converged.all(), (moved.gradient, moved.violation)
        values.append(loss(moved))
    slope = (8 * (values[2] - values[1]) - values[3] + values[0]) / (12 * step)
    along = [(d * x).sum() for d, x in zip(direction, gradients, strict=True)]
    assert all(x.abs() > 1e-3 for x in along)
    assert_close(sum(along), slope, rtol=1e-6, atol=1e-7)
    return found


@pytest.mark.nightly
def test_with_active_limits_of_velocities_and_inputs():
    """Two masses on springs, each with limits that hold in several steps."""
    start = torch.tensor([[0.0], [0.05]]).double()
    u = torch.zeros(2, test_inequalities.COUNT, 1).double()

    def solve(q, qd, goal, mass):
        phase = ts.control.Phase(
            mass_on_a_spring().replace(mass=mass),
            test_inequalities.COUNT,
            test_inequalities.PERIOD,
            lambda mech, q, qd, u, goal: test_inequalities.EFFORT * u,
            lambda mech, q, qd, goal: torch.cat([20 * (q - goal), 5 * qd], -1),
            inequalities=lambda mech, q, qd, u, goal: torch.cat([0.4 - qd, 5 - u, 5 + u], -1),
        )
        problem = ts.control.optimal_control([phase], goals={"goal": (1,)})
        return ts.control.ilqr(problem, q, qd, u, goal, tolerance=1e-10, max_iterations=300)

    mass = mass_on_a_spring().mass
    goal = torch.tensor([[0.3], [0.28]]).double()
    found = assert_gradients_are_differences(solve, start, 0 * start, goal, mass)
    assert (found.multipliers > 1e-3).any(-2)[:, :2].all()


def test_of_a_free_body_with_inputs_at_their_bounds():
    """Quaternions, a cost that is a number, a series, and lengths of links."""
    mech = robot(("free", "revolute"))
    limit = torch.full((mech.num_dof,), 0.29).double()
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(1))
    target, _ = mech.random_state(generator=torch.Generator().manual_seed(2))
    u = torch.zeros(4, mech.num_dof).double()

    def solve(step, mass, position, wave):
        start = ts.integrate(mech, q, step)
        changed = mech.replace(mass=mass, joint_position=position)
        phase = ts.control.Phase(
            changed,
            4,
            0.1,
            lambda mech, q, qd, u, wave: (u - wave[..., None]).square().sum(-1),
            lambda mech, q, qd, wave: torch.cosh(ts.difference(mech, target, q)).sum(-1) * 3,
        )
        options = {"series": {"wave": ()}, "bounds": (-limit, limit)}
        problem = ts.control.optimal_control([phase], **options)
        return ts.control.ilqr(problem, start, 0 * u[0], u, wave, exact=True, tolerance=1e-10)

    wave = torch.linspace(0, 0.3, 5).double()
    found = assert_gradients_are_differences(solve, 0 * u[0], mech.mass, mech.joint_position, wave)
    at_bound = (found.u.abs() == limit).sum()
    assert 0 < at_bound < found.u.numel()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "of", [lambda cost: cost, test_phases.squared], ids=["residuals", "numbers"]
)
def test_of_held_and_free_phases_with_an_impact(of):
    q, qd, u, height = test_phases.task(2)
    options = {"exact": True, "tolerance": 1e-11}
    u = ts.control.ilqr(test_phases.problem_of(of), q, qd, u, height, **options).u

    def solve(q, qd, height, mass, position):
        problem = test_phases.problem_of(of, mech=LEG.replace(mass=mass, joint_position=position))
        return ts.control.ilqr(problem, q, qd, u, height, **options)

    assert_gradients_are_differences(solve, q, qd, height, LEG.mass, LEG.joint_position)


@pytest.mark.nightly
def test_with_forces_at_the_edge_of_friction_cones():
    q, qd, u, height = test_phases.task()
    options = {"exact": True, "tolerance": 1e-8, "max_iterations": 300}
    found = ts.control.ilqr(test_inequalities.leg_problem(), q, qd, 0 * u, height, **options)
    states = found.q, found.qd

    def solve(q, height, mass):
        problem = test_inequalities.leg_problem(mech=LEG.replace(mass=mass))
        return ts.control.ilqr(problem, q, qd, found.u, height, states=states, **options)

    assert_gradients_are_differences(solve, q, height, LEG.mass)


@pytest.mark.nightly
def test_through_soft_contact():
    steps, foot, q = 12, test_phases.FOOT, torch.tensor([-0.2507, 0.0]).double()
    u = torch.full((steps, 1), -15.0).double()
    options = {"exact": True, "tolerance": 1e-12}  # at a touching foot, forces are not smooth

    def solve(q, mass):
        problem = test_phases.soft_problem(foot.replace(mass=mass), steps)
        return ts.control.ilqr(problem, q, 0 * q, u, **options)

    assert_gradients_are_differences(solve, q, foot.mass, step=1e-5)


@pytest.mark.nightly
def test_kernels_have_the_gradients_of_eager_problems():
    q, qd, u, height = test_phases.task(2)
    gradients = []
    for fuse in (None, ts.fuse):
        leaves = [x.clone().requires_grad_() for x in (q, height, LEG.mass)]
        problem = test_phases.problem_of(mech=LEG.replace(mass=leaves[2]), fuse=fuse)
        options = {"exact": True, "tolerance": 1e-10}
        found = ts.control.ilqr(problem, leaves[0], qd, u, leaves[1], **options)
        loss = found.u.square().sum() + found.cost.sum()
        gradients.append(torch.autograd.grad(loss, leaves))
    for eager, fused in zip(*gradients, strict=True):
        assert_close(eager, fused, rtol=1e-7, atol=1e-8)


def test_samples_that_have_not_converged_have_no_gradient():
    q = torch.tensor([[0.3], [0.0]]).double().requires_grad_()
    problem = problem_of(pendulum(), (running, below), STEPS, DT)
    u = torch.zeros(2, STEPS, 1).double()
    found = ts.control.ilqr(problem, q, 0 * q.detach(), u, max_iterations=2)
    assert found.converged.tolist() == [False, True]  # the second one hangs at rest: a maximum
    what = r"in 1 of 2 samples: sample \[0\] has not converged, with a gradient of"
    assert_refused(lambda: torch.autograd.grad(found.cost.sum(), q), what)
