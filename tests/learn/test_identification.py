"""Identification: the fit finds what makes the data, and refuses data that would spoil it."""

import sys

import pytest
import torch
from hypothesis import given
from strategies import mechanisms, random_mechanism
from torch.testing import assert_close

import torchsko as ts
from torchsko.extras import require
from torchsko.learn import InertiaLogCholesky, Positive


def state(mech, *batch, seed=0):
    g = torch.Generator().manual_seed(seed)
    q, qd = mech.random_state(*batch, generator=g)
    return q, qd, torch.randn(*batch, mech.num_dof, generator=g, dtype=mech.dtype)


@given(mechanisms(), mechanisms())
def test_divergence_is_zero_for_equals_and_positive_else(mech, other):
    itself = ts.learn.inertia_divergence(mech, mech)
    assert_close(itself, torch.zeros_like(itself), rtol=0, atol=1e-9)
    heavier = mech.replace(mass=1.1 * mech.mass)
    assert (ts.learn.inertia_divergence(heavier, mech) > 1e-4).all()


@given(mechanisms())
def test_divergence_does_not_depend_on_units_or_frames(mech):
    other = mech.replace(mass=1.3 * mech.mass, com=mech.com + 0.1, inertia=1.5 * mech.inertia)
    shift = torch.tensor([0.3, -0.2, 0.5], dtype=mech.dtype)

    def elsewhere(m):  # kilograms to grams, frame moved
        return m.replace(mass=1e3 * m.mass, inertia=1e3 * m.inertia, com=m.com + shift)

    assert_close(
        ts.learn.inertia_divergence(elsewhere(other), elsewhere(mech)),
        ts.learn.inertia_divergence(other, mech),
        rtol=1e-7,
        atol=1e-7,
    )


def test_exciting_trajectories_are_consistent_periodic_and_within_limits():
    arm = ts.load(ts.robots.panda)
    motion = ts.learn.exciting_trajectory(
        arm, reach=0.7, generator=torch.Generator().manual_seed(0)
    )
    t = torch.linspace(0, motion.period, 2001, dtype=arm.dtype)
    q, qd, qdd = motion(t)
    assert_close(q[0], q[-1])
    for f, rate in ((lambda t: motion(t)[0], qd), (lambda t: motion(t)[1], qdd)):
        assert_close(torch.func.jvp(f, (t,), (torch.ones_like(t),))[1], rate)
    center = (arm.lower + arm.upper) / 2
    part = torch.maximum(
        (q - center).abs().amax(0) / ((arm.upper - arm.lower) / 2),
        qd.abs().amax(0) / arm.velocity_limit,
    )
    # Each joint reaches one of its limits' share; between grid points it may pass it by a little.
    assert_close(part, torch.full_like(part, 0.7), rtol=0, atol=0.01)


def test_exciting_trajectories_refuse_joints_without_a_single_coordinate():
    mech = random_mechanism(["revolute", "spherical"], [-1, 0])
    with pytest.raises(ts.MechanismError, match="'joint1' is spherical"):
        ts.learn.exciting_trajectory(mech)


def test_the_fit_finds_the_torques_of_a_robot_it_has_not_seen():
    truth = random_mechanism(["revolute"] * 2, [-1, 0], seed=4)
    nominal = truth.replace(
        mass=1.3 * truth.mass,
        com=truth.com + 0.05,
        inertia=0.8 * truth.inertia,
        damping=0.5 * truth.damping,
        friction=2 * truth.friction,
    )
    learn = {body: InertiaLogCholesky() for body in nominal.body_names}
    learn |= {f"{j}.{f}": Positive() for j in nominal.joint_names for f in ("damping", "friction")}
    layer = ts.Dynamics(nominal, learn)
    q, qd, qdd = state(truth, 500)
    tau = ts.inverse_dynamics(truth, q, qd, qdd)
    losses = ts.learn.identify(
        layer, q, qd, qdd, tau, steps=120, batch=64, progress=False,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert losses.shape == (120,)
    q, qd, qdd = state(truth, 500, seed=1)
    tau = ts.inverse_dynamics(truth, q, qd, qdd)
    before = (ts.inverse_dynamics(nominal, q, qd, qdd) - tau).square().mean()
    after = (layer.inverse_dynamics(q, qd, qdd) - tau).square().mean()
    assert after < 1e-3 * before


def test_samples_of_weight_zero_do_not_count():
    mech = random_mechanism(["revolute"] * 2, [-1, 0], seed=4)
    q, qd, qdd = state(mech, 100)
    tau = torch.randn(100, 2, generator=torch.Generator().manual_seed(1), dtype=q.dtype)
    weight = torch.ones_like(tau).index_fill(0, torch.arange(50), 0.0)
    fits = []
    for torques in (tau, torch.where(weight == 0, tau + 100, tau)):
        layer = ts.Dynamics(mech, {"body1": InertiaLogCholesky()})
        g = torch.Generator().manual_seed(0)
        options = {"weight": weight, "steps": 3, "progress": False, "generator": g}
        fits.append((ts.learn.identify(layer, q, qd, qdd, torques, **options), *layer.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*fits, strict=True))


def test_a_missing_extra_names_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ts.MissingExtraError, match=r'pip install "torchsko\[identify\]"') as caught:
        require("tqdm", "identify")
    assert isinstance(caught.value, ImportError)
