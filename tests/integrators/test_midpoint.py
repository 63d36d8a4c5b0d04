"""Implicit methods: orders, conserved quantities, and negative time steps."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.integrators.test_adaptive import (
    apart,
    assert_gradients_are_those_of_differences,
    end,
    robot,
)
from tests.states import normal_state
from tests.strategies import KINDS, MORE_KINDS
from torchsko.integrators.adaptive_steps import dormand_prince
from torchsko.integrators.midpoint import ImplicitMidpoint, Variational

METHODS = {"midpoint": ImplicitMidpoint(), "variational": Variational()}


def conservative(kinds, gravity=True):
    mech = robot(kinds, gravity=gravity)
    return mech.replace(damping=torch.zeros_like(mech.damping))


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", [*KINDS, *MORE_KINDS])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_halving_the_step_quarters_the_error_on_every_kind_of_joint(method, kind):
    mech = robot((kind,))
    exact = end(mech, dormand_prince(1e9, 1), 12)
    errors = [apart(mech, exact, end(mech, method, n)) for n in (3, 6)]
    assert errors[1] < max(errors[0] / 3.5, 1e-13)


@pytest.mark.parametrize("kind", ["spherical", "free"])
def test_springs_without_a_potential_push_as_they_do_in_every_other_step(kind):
    """Springs of a ball joint with unequal stiffness, and of a free joint."""
    mech = robot((kind,))
    stiffness = torch.linspace(3.0, 30.0, mech.num_dof, dtype=mech.dtype)
    mech = mech.replace(stiffness=stiffness)
    exact = end(mech, dormand_prince(1e9, 1), 12)
    errors = [apart(mech, exact, end(mech, Variational(), n)) for n in (2, 4)]
    assert errors[1] < errors[0] / 3.5


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_what_goes_a_step_forth_and_back_is_where_it_was(method):
    """For symmetric methods a step of -h reverses a step of h."""
    mech = conservative(("revolute", "spherical"))
    q, qd = normal_state(mech, vectors=1)
    forces = lambda mech, t, q, qd, force=None: ts.forward_dynamics(mech, q, qd, 0 * qd)  # noqa: E731
    solved = type(method)(iterations=6)
    there = solved(mech, forces, 0.0, q, qd, 0.02)
    back = solved(mech, forces, 0.0, *there, -0.02)
    assert_close(ts.difference(mech, q, back[0]), torch.zeros_like(qd), rtol=0, atol=1e-12)
    assert_close(back[1], qd, rtol=0, atol=1e-11)


def about_the_origin(mech, q, qd):
    """Angular momentum about the world's origin, and linear momentum."""
    angular, linear = ts.centroidal_momentum(mech, q, qd).split(3, -1)
    at = ts.center_of_mass(mech, q)
    return torch.cat([angular + torch.linalg.cross(at, linear), linear], -1)


def test_the_variational_step_keeps_the_momentum_of_a_free_robot():
    """Linear and angular momentum without gravity, by Noether's theorem."""
    mech = conservative(("free", "revolute"), gravity=False)
    mech = mech.replace(stiffness=torch.zeros_like(mech.stiffness))
    q, qd = normal_state(mech, vectors=1)
    qs, qds, *_ = ts.rollout(
        mech, ts.State(q, qd), steps=3, dt=0.05, method=Variational(iterations=5)
    )
    before, after = (about_the_origin(mech, qs[k], qds[k]) for k in (0, -1))
    assert (ts.difference(mech, qs[0], qs[-1]).abs() > 0.01).any()
    assert_close(before, after, rtol=0, atol=1e-12)


def energy(mech, q, qd):
    return ts.kinetic_energy(mech, q, qd) + ts.potential_energy(mech, q)


@pytest.mark.nightly
def test_the_energy_of_a_double_pendulum_stays_for_a_million_steps():
    """The energy error in the last tenth of the motion is as large as in the first."""
    mech = conservative(("revolute", "revolute"))
    q, qd = normal_state(mech, vectors=1)
    qs, qds, *_ = ts.rollout(
        ts.fuse(mech), ts.State(q, 0 * qd), lambda t, q, qd: 0 * qd, steps=10**6, dt=5e-3,
        method=Variational(iterations=4), every=100, fused=True,
    )  # fmt: skip
    E = energy(mech, qs, qds)
    error = (E - E[0]).abs()
    first, last = error[:1000].max(), error[-1000:].max()
    assert last < 1.2 * first
    kinetic = ts.kinetic_energy(mech, qs, qds).max()
    assert first < 1e-2 * kinetic and first > 0


def test_a_stiff_spring_at_a_long_step_stays():
    """At 100 rad of a linear oscillator per step, the midpoint rule conserves its energy."""
    builder = ts.MechanismBuilder("mass")
    builder.link("mass", mass=1.0, inertia=torch.eye(3).tolist())
    builder.joint("slide", "prismatic", child="mass", stiffness=1e4)
    mech = builder.build(gravity=(0, 0, 0))
    q, qd = torch.tensor([1.0]).double(), torch.tensor([0.0]).double()
    for method in METHODS.values():
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=5, dt=1.0, method=method)
        E = energy(mech, qs, qds)
        assert_close(E, E[:1].expand_as(E), rtol=1e-9, atol=0)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_gradients_are_those_of_differences(method):
    assert_gradients_are_those_of_differences(2, method)
