"""Time-varying costs: references, times and weights as series."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.control.test_ilqr import mass_on_a_spring, robot
from tests.control.test_ilqr import problem_of as problem_in_one_phase

STEPS, DT = 6, 0.04


def tracking(mech, q, qd, u, target, reference, weight):
    miss = ts.difference(mech, reference, q)
    return torch.cat([weight[..., None] * miss, 0.05 * u, 0.1 * (qd - target)], -1)


def at_end(mech, q, qd, target, reference, weight):
    return torch.cat([weight[..., None] * ts.difference(mech, reference, q), qd - target], -1)


def problem_of(mech, costs=(tracking, at_end), **options):
    return problem_in_one_phase(
        mech, costs, goals={"target": (mech.num_dof,)},
        series={"reference": (mech.num_q,), "weight": ()}, **options,
    )  # fmt: skip


def task(mech, *batch):
    g = torch.Generator().manual_seed(0)
    q, _ = mech.random_state(*batch, generator=g)
    step, target = 0.3 * torch.randn(2, *batch, mech.num_dof, generator=g, dtype=q.dtype)
    share = torch.linspace(0, 1, STEPS + 1, dtype=q.dtype)[:, None]
    reference = ts.integrate(mech, q[..., None, :], share * step[..., None, :])
    weight = torch.linspace(0, 4, STEPS + 1, dtype=q.dtype)
    u = torch.zeros(*batch, STEPS, mech.num_dof, dtype=q.dtype)
    return q, torch.zeros_like(target), u, target, reference, weight


def total(mech, q, qd, u, target, reference, weight):
    """The cost by `torchsko.rollout`, step by step."""
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), u, steps=STEPS, dt=DT)
    cost = 0
    for t in range(STEPS + 1):
        here = target, reference[..., t, :], weight[..., t].expand(q.shape[:-1])
        state = qs[..., t, :], qds[..., t, :]
        r = (
            tracking(mech, *state, u[..., t, :], *here)
            if t < STEPS
            else at_end(mech, *state, *here)
        )
        cost = cost + r.square().sum(-1) / 2
    return cost


@pytest.mark.parametrize("exact", [False, True])
def test_each_step_is_given_its_own_row(exact):
    mech = robot(("revolute",))
    given = task(mech, 2)
    found = ts.control.ilqr(problem_of(mech), *given, exact=exact)
    assert found.converged.all()
    q, qd, _, *goals = given
    leaf = found.u.requires_grad_()
    cost = total(mech, q, qd, leaf, *goals)
    assert_close(cost.detach(), found.cost)
    (g,) = torch.autograd.grad(cost.sum(), leaf)
    assert (g.square().sum((-1, -2)).sqrt() < 1.01e-6).all()


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_goals_that_are_numbers_count_whatever_the_batch(batch):
    """A cost with the weight as goal, against a problem with a constant weight."""
    mech = robot(("revolute",))
    q, qd, u, *_ = task(mech, *batch)
    g = torch.tensor(3.0, dtype=q.dtype)

    def of(weight, **options):
        costs = (
            lambda mech, q, qd, u, *g: torch.cat([weight(*g) * qd, 0.05 * u], -1),
            lambda mech, q, qd, *g: weight(*g) * (q - 0.2),
        )
        return problem_in_one_phase(mech, costs, **options)

    given = of(lambda g: g[..., None], goals={"g": ()})
    found = ts.control.ilqr(given, q, qd, u, g.expand(batch))
    written = ts.control.ilqr(of(lambda: g), q, qd, u)
    assert found.u.shape == u.shape
    assert_close(found.u, written.u)
    assert_close(found.cost, written.cost)


def test_tracking_with_a_linear_model_is_the_solution_of_riccatis_equation():
    """The Riccati recursion of the value x* V x / 2 + v* x with a time-varying reference."""
    mech = mass_on_a_spring()
    wave = torch.sin(2 * torch.arange(STEPS + 1).double())[:, None]
    costs = (
        lambda mech, q, qd, u, wave: torch.cat([2 * (q - wave), 0.1 * u], -1),
        lambda mech, q, qd, wave: 5 * (q - wave),
    )
    problem = problem_in_one_phase(mech, costs, series={"wave": (1,)})
    q, qd = torch.tensor([0.7]).double(), torch.tensor([-0.2]).double()
    found = ts.control.ilqr(problem, q, qd, torch.zeros(STEPS, 1).double(), wave, max_iterations=1)
    A, B = ts.linearize(mech, ts.State(q, qd), torch.zeros(1).double(), dt=DT)
    C = torch.tensor([[1.0, 0.0]]).double()
    V, v, laws = 25 * C.mT @ C, -25 * C.mT @ wave[-1], []
    for t in reversed(range(STEPS)):
        D = 0.01 + B.mT @ V @ B
        K, k = -(B.mT @ V @ A) / D, -(B.mT @ v) / D[0]
        v = -4 * C.mT @ wave[t] + (A + B @ K).mT @ v
        V = 4 * C.mT @ C + A.mT @ V @ (A + B @ K)
        laws.append((K, k))
    x, expected = torch.cat([q, qd]), []
    for K, k in reversed(laws):
        expected.append(K @ x + k)
        x = A @ x + B @ expected[-1]
    assert found.converged
    assert_close(found.u, torch.stack(expected))


def test_given_states_and_batches_of_robots_have_the_same_rows():
    mech = robot(("revolute",))
    given, options = task(mech, 2), {"exact": True, "tolerance": 1e-9}
    once = ts.control.ilqr(problem_of(mech), *given, **options)
    states = given[4], torch.zeros(2, STEPS + 1, mech.num_dof, dtype=mech.dtype)
    many = ts.control.ilqr(problem_of(mech), *given, states=states, **options)
    fleet = mech.replace(mass=mech.mass.expand(2, -1))
    each = ts.control.ilqr(problem_of(fleet), *given, **options)
    for other in (many, each):
        assert_close(other.u, once.u, rtol=1e-6, atol=1e-6)


@pytest.mark.nightly
def test_kernels_are_given_the_same_rows():
    mech = robot(("revolute",))
    given = task(mech, 2)
    options = {"exact": True, "max_iterations": 2}
    eager = ts.control.ilqr(problem_of(mech), *given, **options)
    fused = ts.control.ilqr(problem_of(mech, fuse=ts.fuse), *given, **options)
    assert_close(fused.u, eager.u, rtol=1e-8, atol=1e-8)
    assert_close(fused.cost, eager.cost)


def test_a_series_that_does_not_fit_is_named():
    mech = robot(("revolute",))
    *given, reference, weight = task(mech)
    with pytest.raises(ts.ShapeError, match=r"reference has shape.*\n.*\[7, 1\]"):
        ts.control.ilqr(problem_of(mech), *given, reference[1:], weight)
    with pytest.raises(ts.ShapeError, match=r"given 1 goals.*\n.*'target', 'reference'"):
        ts.control.ilqr(problem_of(mech), *given[:3], reference)
