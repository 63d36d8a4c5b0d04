"""Optimal control with phases: held and free motion, impacts, contact forces in costs, kernels, batches."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts

DT, STEPS = 0.02, (4, 3, 3)
"""Time step [s], and the steps of stance, flight and landing."""


def leg() -> ts.Mechanism:
    """A hip that slides along x and z, a thigh and a shank with a foot: four dofs, two of them driven."""
    builder = ts.MechanismBuilder("leg")
    inertia = torch.eye(3).mul(0.02).tolist()
    builder.link("carriage", mass=0.2, inertia=inertia).joint(
        "x", "prismatic", child="carriage", axis=(1, 0, 0)
    )
    builder.link("hip", mass=3.0, inertia=inertia)
    builder.joint("z", "prismatic", parent="carriage", child="hip", axis=(0, 0, 1))
    builder.link("thigh", mass=0.8, com=(0, 0, -0.15), inertia=inertia)
    builder.joint("hip", "revolute", parent="hip", child="thigh", axis=(0, 1, 0))
    builder.link("shank", mass=0.5, com=(0, 0, -0.15), inertia=inertia)
    builder.joint(
        "knee", "revolute", parent="thigh", child="shank", position=(0, 0, -0.3), axis=(0, 1, 0)
    )
    builder.link("foot", mass=0.1, inertia=torch.eye(3).mul(0.001).tolist())
    builder.joint("sole", "fixed", parent="shank", child="foot", position=(0, 0, -0.3))
    return builder.build()


LEG = leg()
HELD = ts.constrain(LEG, [ts.HeldFrame("foot")])


def free_cost(mech, q, qd, u, height):
    return torch.cat([0.05 * u, 0.1 * qd], -1)


def held_cost(mech, q, qd, u, forces, height):
    return torch.cat([free_cost(mech, q, qd, u, height), 0.01 * forces], -1)


def end_cost(mech, q, qd, height):
    return torch.cat([3 * (q[..., 1:2] - height), 0.2 * qd], -1)


def squared(cost):
    """A scalar cost that is no sum of squares."""

    def scalar(*args):
        r = cost(*args)
        return r.square().sum(-1) / 2 + 0.01 * torch.cosh(r).sum(-1)

    return scalar


def phases(of=lambda cost: cost, mech=LEG):
    """Stance, flight, and the landing after an impact."""
    free, running, end = of(free_cost), of(held_cost), of(end_cost)
    held = ts.constrain(mech, [ts.HeldFrame("foot")])
    return [
        ts.control.Phase(held, STEPS[0], DT, running, end),
        ts.control.Phase(mech, STEPS[1], DT, free),
        ts.control.Phase(held, STEPS[2], DT, running, end, impact=True),
    ]


def problem_of(of=lambda cost: cost, mech=LEG, **options):
    return ts.control.optimal_control(
        phases(of, mech), goals={"height": (1,)}, actuated=["hip", "knee"], **options
    )


def task(*batch):
    g = torch.Generator().manual_seed(0)
    q = (
        torch.tensor([0.0, 0.5, 0.6, -1.2]).double()
        + 0.1 * torch.randn(*batch, 4, generator=g).double()
    )
    u = 3 * torch.randn(*batch, sum(STEPS), 2, generator=g).double()
    height = 0.55 + 0.05 * torch.rand(*batch, 1, generator=g).double()
    return q, torch.zeros_like(q), u, height


def simulated(q, qd, u, height, of=lambda cost: cost):
    """States and cost by the verbs of both mechanisms."""

    def total(r):
        return r if r.ndim < q.ndim else r.square().sum(-1) / 2

    states, cost, t = [(q, qd)], 0, 0
    for k, count in enumerate(STEPS):
        if k == 2:
            qd = HELD.impulse(q, qd)[0]
        for _ in range(count):
            tau = torch.nn.functional.pad(u[..., t, :], (2, 0))
            if k == 1:
                cost = cost + total(of(free_cost)(LEG, q, qd, u[..., t, :], height))
                q, qd, *_ = (
                    x[..., -1, :] for x in ts.rollout(LEG, ts.State(q, qd), tau, steps=1, dt=DT)[:2]
                )
            else:
                forces = HELD.forward_dynamics(q, qd, tau)[1]
                cost = cost + total(of(held_cost)(LEG, q, qd, u[..., t, :], forces, height))
                q, qd, *_ = (
                    x[..., -1, :]
                    for x in ts.rollout(HELD, ts.State(q, qd), tau, steps=1, dt=DT)[:2]
                )
            states.append((q, qd))
            t += 1
        if k != 1:
            cost = cost + total(of(end_cost)(LEG, q, qd, height))
    return *(torch.stack(x, -2) for x in zip(*states, strict=True)), cost


@pytest.mark.some(2)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("of", [lambda cost: cost, squared], ids=["residuals", "numbers"])
def test_what_is_found_is_a_stationary_point_of_the_simulated_cost(of, exact):
    given = task()
    found = ts.control.ilqr(problem_of(of), *given, exact=exact, tolerance=1e-7, max_iterations=200)
    assert found.converged and found.cost < simulated(*given, of)[2]
    u = found.u.clone().requires_grad_()
    q, qd, cost = simulated(given[0], given[1], u, given[3], of)
    assert_close(cost, found.cost, rtol=1e-12, atol=0)
    assert_close(q, found.q, rtol=0, atol=1e-10)
    assert_close(qd, found.qd, rtol=0, atol=1e-9)
    (gradient,) = torch.autograd.grad(cost, u)
    assert gradient.norm() < 1.1e-7
    assert_close(gradient.norm().detach(), found.gradient, rtol=1e-3, atol=1e-11)


@pytest.mark.some(1)
@pytest.mark.parametrize("of", [lambda cost: cost, squared], ids=["residuals", "numbers"])
def test_exact_iterations_converge_as_newtons_do(of):
    """The curvature of impacts, contact forces and dynamics is complete."""
    problem, given = problem_of(of), task()
    near = ts.control.ilqr(problem, *given, exact=True, tolerance=1e-2).u
    norms = [
        ts.control.ilqr(
            problem, *given[:2], near, given[3], exact=True, max_iterations=k, tolerance=1e-14
        ).gradient.item()
        for k in range(3)
    ]
    assert norms[0] > 1e-5 and all(b < a**1.5 for a, b in itertools.pairwise(norms))


@pytest.mark.nightly
def test_kernels_and_batches_find_what_eager_problems_of_one_sample_find():
    given, options = task(2), {"max_iterations": 3}
    fused = ts.control.ilqr(problem_of(fuse=ts.fuse), *given, **options)
    together = ts.control.ilqr(problem_of(), *given, **options)
    for one, other in zip(fused, together, strict=True):
        assert_close(one, other, rtol=1e-7, atol=1e-8)
    alone = ts.control.ilqr(problem_of(), *(x[1] for x in given), **options)
    for one, other in zip(together, alone, strict=True):
        assert_close(one[1], other, rtol=1e-8, atol=1e-9)


def test_gaps_close_through_an_impact():
    q, qd, u, height = task()
    states = q.expand(sum(STEPS) + 1, 4), qd.expand(sum(STEPS) + 1, 4)
    found = ts.control.ilqr(problem_of(), q, qd, 0 * u, height, states=states, tolerance=1e-8)
    assert found.converged and found.gap < 1e-8
    qs, _, cost = simulated(q, qd, found.u, height)
    assert_close(qs, found.q, rtol=0, atol=1e-8)
    assert_close(cost, found.cost, rtol=1e-8, atol=0)


FOOT = ts.load("""<mujoco><option timestep="0.01"/><worldbody><geom type="plane" size="1 1 1"/>
    <body pos="0 0 0.5"><joint name="z" type="slide" axis="0 0 1"/><geom size="0.1" mass="2"/>
    <body pos="0 0 -0.2"><joint name="leg" type="slide" axis="0 0 1" damping="1"/>
    <geom size="0.05" mass="0.3"/></body></body></worldbody></mujoco>""")


def soft_problem(mech, steps, **options):
    """A foot on a slide pushes itself off the ground; the cost sees the force of the contact."""
    phase = ts.control.Phase(
        mech,
        steps,
        0.01,
        lambda mech, q, qd, u, forces: torch.cat([0.02 * u, 0.003 * forces], -1),
        lambda mech, q, qd: torch.cat([2 * (q[..., :1] - 0.1), qd], -1),
        method=ts.ContactStep(),
    )
    return ts.control.optimal_control([phase], actuated=["leg"], **options)


@pytest.mark.nightly
def test_phases_of_soft_contact_are_those_of_the_contact_step():
    mech, step, steps = FOOT, ts.ContactStep(), 12
    problem = soft_problem(mech, steps)
    q, qd = torch.tensor([-0.25, 0.0]).double(), torch.tensor([0.0, 0.0]).double()
    u = torch.full((steps, 1), -15.0).double()
    found = ts.control.ilqr(problem, q, qd, u, tolerance=1e-6)
    assert found.converged
    fused = ts.control.ilqr(soft_problem(mech, steps, fuse=ts.fuse), q, qd, u, tolerance=1e-6)
    assert_close(fused.u, found.u, rtol=1e-7, atol=1e-7)
    leaf = found.u.clone().requires_grad_()
    tau = torch.nn.functional.pad(leaf, (1, 0))
    run = ts.rollout(mech, ts.State(q, qd), tau, steps=steps, dt=0.01, method=step)
    along = (0.02 * leaf).square().sum() + (0.003 * run.constraint_forces).square().sum()
    end = torch.cat([2 * (run.q[-1, :1] - 0.1), run.qd[-1]])
    cost = (along + end.square().sum()) / 2
    assert (run.constraint_forces > 1).any()
    assert_close(cost.detach(), found.cost)
    assert torch.autograd.grad(cost, leaf)[0].norm() < 2e-6


def test_a_phase_whose_held_frame_is_not_reached_is_named_with_its_distance():
    q, qd, _, _ = task()
    place = ts.frame_pose(LEG, q, "foot").position + torch.tensor([0.12, 0.0, 0.05]).double()
    held = ts.constrain(LEG, [ts.HeldFrame("foot", "point", place)])
    flight = ts.control.Phase(LEG, 1, DT, lambda mech, q, qd, u: u)
    stance = ts.control.Phase(held, 2, DT, lambda mech, q, qd, u, forces: u, impact=True)
    problem, u = ts.control.optimal_control([flight, stance]), torch.zeros(3, 4).double()
    with pytest.warns(
        RuntimeWarning, match=r"phase 1 holds 'foot', which is 0\.1\d m away"
    ) as found:
        ts.control.ilqr(problem, q, qd, u, max_iterations=0)
    assert len(found) == 1 and "Give phase 0 more steps" in str(found[0].message)
    at_once = ts.control.optimal_control([stance])
    with pytest.warns(RuntimeWarning, match=r"phase 0 holds 'foot', which is 0\.13 m away"):
        ts.control.ilqr(at_once, q, qd, u[:2], max_iterations=0)
