"""Newmark's method: order 2, the energy of linear systems kept, Eq. 3 of Isobe and Yagi, transformations."""

import itertools
import math

import pytest
import torch

import torchsko as ts
from tests.states import normal_state
from tests.strategies import random_mechanism
from torchsko.integrators.integrators import NEWMARK, NewmarkBeta


def smooth(kinds, parents):
    mech = random_mechanism(kinds, parents, seed=8)
    return mech.replace(friction=torch.zeros_like(mech.friction))


def oscillator(stiffness=4.0):
    """A unit mass on a spring, without weight or damping."""
    builder = ts.MechanismBuilder("oscillator")
    builder.link("mass", mass=1.0, inertia=[[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    builder.joint("spring", "prismatic", child="mass", stiffness=stiffness)
    return builder.build(gravity=(0, 0, 0))


def end(mech, steps, method, duration=0.2):
    with torch.no_grad():
        qs, qds, *_ = ts.rollout(
            mech, ts.State(*normal_state(mech, seed=2, vectors=1)),
            lambda t, q, qd: math.sin(9 * t) - 0.3 * qd, steps=steps, dt=duration / steps, method=method,
        )  # fmt: skip
    return qs[-1], qds[-1]


@pytest.mark.some(1)
@pytest.mark.shows(
    "Isobe and Yagi (undated), General-purpose expression", "section II.A", NewmarkBeta
)
@pytest.mark.parametrize("kind", ["revolute", "spherical", "free"])
@pytest.mark.parametrize("method", ["newmark", NewmarkBeta(corrections=2)])
def test_halving_the_step_quarters_the_error(kind, method):
    mech = smooth([kind, "revolute"], [-1, 0])
    q_exact, qd_exact = end(mech, 40, "rk4")
    errors = []
    for steps in (10, 20):
        q, qd = end(mech, steps, method)
        errors.append(torch.cat([ts.difference(mech, q_exact, q), qd - qd_exact]).norm())
    assert 1.8 < math.log2(errors[0] / errors[1]) < 2.3


def test_other_values_of_delta_give_order_one():
    mech = smooth(["revolute", "revolute"], [-1, 0])
    q_exact, qd_exact = end(mech, 40, "rk4")
    errors = []
    for steps in (10, 20):
        q, qd = end(mech, steps, NewmarkBeta(delta=0.7))
        errors.append(torch.cat([q_exact - q, qd - qd_exact]).norm())
    assert 0.8 < math.log2(errors[0] / errors[1]) < 1.3


def test_a_linear_oscillator_keeps_its_energy():
    mech, start = oscillator(), torch.ones(1, dtype=torch.float64)
    method = NewmarkBeta(corrections=8)
    with torch.no_grad():
        qs, qds, *_ = ts.rollout(
            mech, ts.State(start, 0 * start), steps=120, dt=0.05, method=method
        )
    energy = (qds.square() + 4.0 * qs.square())[:, 0] / 2
    torch.testing.assert_close(energy, torch.full_like(energy, 2.0), rtol=1e-10, atol=0)


def test_the_energy_of_a_swinging_double_pendulum_does_not_drift():
    mech = random_mechanism(["revolute", "revolute"], [-1, 0], seed=1, passive=False)
    q, qd = normal_state(mech, seed=2, vectors=1)
    with torch.no_grad():
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=450, dt=5e-3, method="newmark")
        kinetic = (qds * (ts.mass_matrix(mech, qs) @ qds[..., None])[..., 0]).sum(-1) / 2
        pose = ts.forward_kinematics(mech, qs)
        com = pose.position + (pose.rotation @ mech.com[..., None])[..., 0]
        energy = kinetic - (mech.mass[:, None] * com * mech.gravity).sum((-1, -2))
    swing = kinetic.max() - kinetic.min()
    assert (energy - energy[0]).abs().max() < 1e-3 * swing
    first, last = energy[:150].mean(), energy[-150:].mean()
    assert (last - first).abs() < 2e-4 * swing


def test_corrections_approach_the_solution_of_the_implicit_equations():
    mech = smooth(["revolute", "free"], [-1, 0])
    q, qd = normal_state(mech, seed=2, vectors=1)

    def accelerate(mech, t, q, qd):
        return ts.forward_dynamics(mech, q, qd, torch.zeros_like(qd))

    def residual(corrections):
        with torch.no_grad():
            q1, qd1 = NewmarkBeta(corrections=corrections)(mech, accelerate, 0.0, q, qd, 0.02)
            return (
                qd1 - qd - 0.01 * (accelerate(mech, 0, q, qd) + accelerate(mech, 0, q1, qd1))
            ).norm()

    residuals = [residual(n) for n in (1, 2, 4, 12)]
    assert all(b < 0.2 * a for a, b in itertools.pairwise(residuals))
    assert residuals[-1] < 1e-12


@pytest.mark.shows(
    "Isobe and Yagi (undated), General-purpose expression", "Eq. 3", NewmarkBeta.rates
)
@pytest.mark.parametrize(("beta", "delta"), [(0.25, 0.5), (0.25, 0.7), (0.3, 0.6)])
def test_rates_from_displacements_are_those_of_the_step(beta, delta):
    mech, method = smooth(["revolute", "prismatic"], [-1, 0]), NewmarkBeta(beta, delta, 25)
    q, qd = normal_state(mech, 3, seed=2, vectors=1)

    def accelerate(mech, t, q, qd):
        return ts.forward_dynamics(mech, q, qd, torch.zeros_like(qd))

    with torch.no_grad():
        q1, qd1 = method(mech, accelerate, 0.0, q, qd, 0.01)
        after = method.rates(q1 - q, qd, accelerate(mech, 0.0, q, qd), 0.01)
    torch.testing.assert_close(after[0], qd1, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after[1], accelerate(mech, 0.0, q1, qd1), rtol=1e-7, atol=1e-7)


def test_rates_of_a_smooth_motion_follow_from_its_displacements_to_second_order():
    errors = []
    for steps in (50, 100):
        dt = 2.0 / steps
        t = torch.arange(steps + 1, dtype=torch.float64) * dt
        path = torch.sin(t)
        qd, qdd = torch.tensor(1.0).double(), torch.tensor(0.0).double()
        for u in path.diff():
            qd, qdd = NEWMARK.rates(u, qd, qdd, dt)
        errors.append((qd - torch.cos(t[-1])).abs())
    assert 1.8 < math.log2(errors[0] / errors[1]) < 2.2


@pytest.mark.nightly
def test_gradients_vmap_checkpoint_and_compile():
    mech, method = smooth(["revolute", "spherical"], [-1, 0]), NewmarkBeta(corrections=1)
    q, qd = normal_state(mech, 2, seed=2, vectors=1)

    def last(qd, mass, checkpoint=None):
        changed = mech.replace(mass=mass)
        qds = ts.rollout(
            changed, ts.State(q[0], qd), steps=2, dt=1e-2, method=method, checkpoint=checkpoint
        ).qd
        return qds[..., -1, :]

    leaves = [qd[0].clone().requires_grad_(), mech.mass.clone().requires_grad_()]
    assert torch.autograd.gradcheck(last, leaves, check_forward_ad=True, fast_mode=True)
    plain = torch.autograd.grad(last(*leaves).sum(), leaves)
    again = torch.autograd.grad(last(*leaves, checkpoint=1).sum(), leaves)
    torch.testing.assert_close(again, plain)
    expected = torch.stack([last(x, mech.mass) for x in qd])
    torch.testing.assert_close(torch.vmap(last, (0, None))(qd, mech.mass), expected)
    torch._dynamo.reset()
    compiled = torch.compile(last, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(qd[0], mech.mass), expected[0])
