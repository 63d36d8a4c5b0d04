"""Integrators: order of accuracy, energy, momentum, unit quaternions."""

import functools

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.newton import kinetic_energy, momentum, potential_energy
from tests.states import normal_state
from tests.strategies import KINDS, MORE_KINDS, random_mechanism
from torchsko.integrators.adaptive_steps import dormand_prince
from torchsko.integrators.integrators import INTEGRATORS, NewmarkBeta, RungeKutta
from torchsko.integrators.midpoint import ImplicitMidpoint, Variational


def robot(kinds=KINDS, passive=True, gravity=True):
    parents = [-1, 0, 0, 1, 0, 4][: len(kinds)]
    mech = random_mechanism(list(kinds), parents, seed=5, passive=passive)
    smooth = mech.replace(friction=torch.zeros_like(mech.friction))
    return smooth if gravity else smooth.replace(gravity=torch.zeros_like(mech.gravity))


def spring(t, q, qd):
    """A force that depends on time and velocity."""
    return torch.sin(torch.tensor(3.0 * t, dtype=qd.dtype)) - 0.3 * qd


def end(mech, method, steps):
    """The state after 0.1 s."""
    with torch.no_grad():
        start, dt = normal_state(mech, vectors=1), 0.1 / steps
        qs, qds, *_ = ts.rollout(mech, ts.State(*start), spring, steps=steps, dt=dt, method=method)
    return qs[-1], qds[-1]


@functools.cache
def reference(kinds):
    """The solution by a method of order 5 with error control, independent of the methods under test."""
    return end(robot(kinds), dormand_prince(1e-12, 100, stop_early=True), 1)


def observed_order(kinds, method, steps):
    """Base-2 logarithm of the ratio of errors when the step is halved."""
    errors = []
    for n in (steps, 2 * steps):
        (q, qd), (q_exact, qd_exact) = end(robot(kinds), method, n), reference(kinds)
        apart = ts.difference(robot(kinds), q_exact, q)
        errors.append(torch.cat([apart, qd - qd_exact]).norm())
    return torch.log2(errors[0] / errors[1]).item()


MIDPOINT = RungeKutta(rows=((0.5,),), weights=(0.0, 1.0), order=2)
OTHERS = {
    "midpoint": MIDPOINT,
    "damped newmark": NewmarkBeta(delta=0.7),
    "implicit midpoint": ImplicitMidpoint(),
    "variational": Variational(),
}
METHODS = {**INTEGRATORS, **OTHERS}
STEPS = {1: 10, 2: 8, 3: 5, 4: 3}
"""Steps by order: fewer for higher orders, whose errors would reach rounding."""


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "kinds",
    [KINDS, ("revolute", "prismatic"), ("spherical",), ("free",), *((k,) for k in MORE_KINDS)],
)
@pytest.mark.parametrize("name", METHODS)
def test_the_error_falls_with_the_order_that_the_method_declares(kinds, name):
    method = METHODS[name]
    assert observed_order(kinds, method, STEPS[method.order]) == pytest.approx(
        method.order, abs=0.3
    )


def energies(mech, qs, qds):
    return torch.stack(
        [
            kinetic_energy(mech, q, v) + potential_energy(mech, q)
            for q, v in zip(qs, qds, strict=True)
        ]
    )


def test_semi_implicit_euler_keeps_the_energy_of_a_pendulum_bounded():
    builder = ts.MechanismBuilder().link("rod", mass=1.0, com=(0, 0, -1))
    mech = builder.joint("hinge", "revolute", child="rod", axis=(0, 1, 0)).build()
    q, qd = torch.tensor([1.0], dtype=mech.dtype), torch.zeros(1, dtype=mech.dtype)
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=800, dt=4e-2)
    drift = (energies(mech, qs[::7], qds[::7]) - energies(mech, qs[:1], qds[:1])).abs()
    early, late = drift[:57].max(), drift[-57:].max()  # ten periods apart
    assert 0 < late < 1.05 * early


@pytest.mark.parametrize("kinds", [KINDS, ("free", "revolute", "revolute")])
def test_rk4_conserves_energy_to_its_order(kinds):
    mech = robot(kinds, passive=False)
    q, qd = normal_state(mech, vectors=1)
    errors = []
    for steps in (6, 12):
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=steps, dt=0.2 / steps, method="rk4")
        ends = energies(mech, qs[[0, -1]], qds[[0, -1]])
        errors.append((ends[1] - ends[0]).abs().item())
    assert errors[1] < errors[0] / 10
    assert errors[1] < 1e-4 * ends[0].abs()


def test_a_free_floating_robot_keeps_its_momentum_without_gravity():
    mech = robot(("free", "revolute", "spherical", "prismatic"), passive=False, gravity=False)
    q, qd = normal_state(mech, vectors=1)
    internal = torch.cat(
        [torch.zeros(6, dtype=q.dtype), torch.ones(mech.num_dof - 6, dtype=q.dtype)]
    )
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), internal, steps=16, dt=1e-2, method="rk4")
    moving = torch.stack([momentum(mech, qs[k], qds[k]) for k in (0, 8, 16)])
    assert_close(moving, moving[:1].expand_as(moving), rtol=1e-7, atol=1e-7)
    assert (qs[-1] - qs[0]).abs().max() > 0.1


@pytest.mark.parametrize("method", INTEGRATORS)
def test_quaternions_stay_of_unit_length(method):
    mech = robot(("spherical", "free"))
    q, qd = normal_state(mech, vectors=1)
    qs = ts.rollout(mech, ts.State(q, 5 * qd), steps=10, dt=4e-2, method=method).q
    for joint, offset in (("joint0", 0), ("joint1", 3)):
        quat = qs[:, mech.q_slice(joint)][:, offset:]
        assert_close(quat.norm(dim=-1), torch.ones(11, dtype=q.dtype))


@pytest.mark.parametrize("method", INTEGRATORS)
def test_a_body_in_free_fall_falls_freely(method):
    mech = ts.MechanismBuilder().link("stone", mass=2.0, inertia=torch.eye(3).tolist())
    mech = mech.joint("root", "free", child="stone").build()
    q, qd = mech.neutral(), torch.zeros(6, dtype=mech.dtype)
    qs = ts.rollout(mech, ts.State(q, qd), steps=10, dt=0.1, method=method).q
    # Methods of order 1 are half a step ahead of the parabola.
    ahead = 0.5 * 9.81 * 0.1 if INTEGRATORS[method].order == 1 else 0.0
    assert qs[-1, 2].item() == pytest.approx(-0.5 * 9.81 - ahead, rel=1e-9)
