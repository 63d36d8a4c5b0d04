"""Default fits of simulated robots: masses stay near the nominal ones, and no reference predicts better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.finding_codes import texts
from torchsko.identification import Fit, Log, exciting_trajectory, identify
from torchsko.identification.friction import Dahl, RotorInertia, TermInput, Viscous
from torchsko.identification.regression.accumulate import time_folds

PENDULUM = """<robot name="pendulum"><link name="base"/><link name="arm"><inertial><origin xyz="0 0 -0.12"/>
<mass value="1.13"/><inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="servo" type="continuous"><parent link="base"/><child link="arm"/><axis xyz="0 1 0"/>
<limit effort="{}" velocity="8"/></joint></robot>"""
"""A servo of a hobby arm with its effort limit."""

ROTORS = (0.6, 0.6, 0.5, 0.5, 0.2, 0.2, 0.1)


def panda(share=0.0, seed=5):
    """A Panda without friction whose masses differ by up to this share, and its centers of mass."""
    nominal, g = ts.load(ts.robots.panda), torch.Generator().manual_seed(seed)
    zero = torch.zeros_like(nominal.friction)
    nominal = nominal.replace(friction=zero, damping=zero)
    factor = 1 + share * (2 * torch.rand(nominal.mass.shape, generator=g, dtype=nominal.dtype) - 1)
    shift = share / 10 * torch.randn(nominal.com.shape, generator=g, dtype=nominal.dtype)
    return nominal.replace(
        mass=factor * nominal.mass, com=nominal.com + shift,
        inertia=factor[:, None, None] * nominal.inertia,
    )  # fmt: skip


def simulate(
    robot, seed, *, noise, rotors: float | tuple[float, ...] = 0.0, viscous=0.5, dry=0.5, load=0.0,
    dahl=0.0, asymmetric=0.0, cogging=0.0, gain=1.0, drives=None, couple=False, seconds=12.0, rate=100.0,
    period=None, reach=0.5,
):  # fmt: skip
    """A log of an exciting motion with rotors, and friction of the joints or of coupled drives."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(0, seconds, 1 / rate, dtype=robot.dtype)
    motion = exciting_trajectory(robot, period=period or seconds, limit_fraction=reach, generator=g)
    q, qd, qdd = motion(t)
    dofs = robot.num_dof
    D = torch.eye(dofs, dtype=t.dtype) if drives is None else drives
    rigid, v = ts.inverse_dynamics(robot, q, qd, qdd), qd @ D.mT
    sign = (v / 0.05).tanh()
    bristle = dahl * (Dahl(0.03).basis(TermInput(q, v, qdd, v)) - sign)
    rotor = torch.as_tensor(rotors, dtype=t.dtype) * (qdd @ D.mT)
    drive = viscous * v + dry * sign + asymmetric * sign.square() + bristle + rotor
    tau = rigid + drive @ D + load * rigid.abs() * sign + cogging * (20 * q).cos()
    noise = noise * torch.randn(tau.shape, generator=g, dtype=t.dtype)
    to_joints = torch.linalg.inv(D).numpy() if couple else None
    columns = t, q, gain * tau + noise, qd
    return Log(*(x.numpy() for x in columns), robot.joint_names, drives=to_joints)


def pendulum(effort):
    return ts.load(PENDULUM.format(effort))


WRIST = torch.eye(7, dtype=torch.float64)
WRIST[6, 5] = 1.0
"""The last drive turns by the sum of the last two joints."""

SITUATIONS = {
    "heavy rotors": (panda, {"rotors": (6, 6, 2, 2, 0.4, 0.4, 0.4), "viscous": 5, "dry": 3}, 0.1),
    "no rotors": (panda, {"reach": 0.8}, 0.1),
    "four seconds": (panda, {"rotors": ROTORS, "seconds": 4.0, "period": 8.0, "reach": 0.4}, 0.15),
    "30 Hz": (panda, {"rotors": ROTORS, "seconds": 20.0, "rate": 30.0, "reach": 0.3}, 0.15),
    "small motion": (panda, {"rotors": ROTORS, "seconds": 20.0, "reach": 0.02}, 0.15),
    "repeated motion of worn gears": (
        panda,
        {"seconds": 20.0, "period": 5.0, "load": 0.2, "dahl": 0.15, "cogging": 0.3},
        0.15,
    ),
    "loaded and asymmetric friction": (
        panda, {"rotors": ROTORS, "load": 0.3, "asymmetric": 0.5, "dry": 2}, 0.15,
    ),
    "coupled wrist": (panda, {"rotors": ROTORS, "drives": WRIST, "dry": 2, "viscous": 2}, 0.15),
    "coupled wrist with its coupling": (
        panda, {"rotors": ROTORS, "drives": WRIST, "couple": True, "dry": 2, "viscous": 2}, 0.15,
    ),
    "slow arm with small motions": (
        panda, {"rotors": ROTORS, "seconds": 40.0, "rate": 10.0, "reach": 0.05}, 0.15,
    ),
    "servo whose force is in percent of another limit": (
        lambda: pendulum(5),
        {"rotors": 0.03, "viscous": 1.7, "gain": 0.4, "seconds": 10.0, "rate": 50.0},
        0.0,
    ),
    "servo above its effort limit": (
        lambda: pendulum(5), {"rotors": 0.03, "viscous": 1.7, "seconds": 10.0, "rate": 50.0}, 0.0,
    ),
    "servo at its effort limit": (
        lambda: pendulum(5), {"rotors": 0.03, "viscous": 1.0, "seconds": 10.0, "rate": 50.0}, 0.0,
    ),
}  # fmt: skip
"""The nominal robot, the simulation, and the share by which masses are wrong."""


@pytest.mark.some(3)
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_default_predicts_as_well_as_its_references_and_keeps_masses(name):
    robot, options, share = SITUATIONS[name]
    nominal = robot()
    truth = panda(share) if share else nominal
    noise = 0.2 if share else 0.05
    fit = identify(nominal, simulate(truth, 0, noise=noise, **options))
    errors = fit.test(simulate(truth, 1, noise=0.0, **options)).nrmse
    own, others = errors["physical"].mean(), [errors["nominal"], errors["least squares"]]
    assert own <= 1.05 * min(x.mean() for x in others) + 0.002
    ratio = fit.mechanism.mass / nominal.mass
    assert ((ratio > 0.5) & (ratio < 2)).all() or texts(fit, "changed_mass")
    own, others = (fit.errors[x] for x in ("physical", "nominal"))
    table = [fit.residuals.relative(x).nanmean() for x in (own, others)]
    assert table[0] <= 1.05 * table[1]


def test_rotors_of_the_first_joints_add_no_mass():
    """The fit was an arm of 121 kg with an error of 0.053."""
    nominal, truth = panda(), panda(0.1)
    options = {"rotors": (6, 6, 2, 2, 0.4, 0.4, 0.4), "viscous": 5, "dry": 3, "reach": 0.8}
    fit = identify(nominal, simulate(truth, 0, noise=0.5, **options))
    mass = fit.mechanism.mass
    assert float(mass.sum()) == pytest.approx(float(truth.mass.sum()), rel=0.1)
    assert (mass / nominal.mass).log().abs().max() < np.log(1.3)
    assert fit.test(simulate(truth, 1, noise=0.0, **options)).nrmse["physical"].mean() < 0.01
    found = fit.mechanism.armature
    torch.testing.assert_close(found, found.new_tensor(options["rotors"]), rtol=0, atol=0.1)


def test_viscous_friction_above_the_effort_limit_is_found():
    """It was removed, and forces above the limit were not used: an error of 0.52 instead of 0.01."""
    options = {"rotors": 0.03, "viscous": 1.7, "seconds": 10.0, "rate": 50.0, "reach": 0.6}
    fits = []
    for effort in (5, 50):
        log = simulate(pendulum(effort), 0, noise=0.05, **options)
        assert np.abs(log.tau).max() > 6
        fits.append(identify(pendulum(effort), log))
    for fit in fits:
        friction = dict(zip(fit.terms[0], fit.numbers[0].tolist(), strict=True))
        assert friction[Viscous()] == pytest.approx(1.7, abs=0.05)
        assert not texts(fit, "saturated_forces")
    torch.testing.assert_close(fits[0].numbers[0], fits[1].numbers[0])


def test_a_finding_names_masses_that_change_by_a_factor_of_two():
    nominal = panda()
    factor = torch.tensor([1, 1, 1, 3, 1, 1, 1], dtype=nominal.dtype)
    truth = nominal.replace(
        mass=factor * nominal.mass, inertia=factor[:, None, None] * nominal.inertia
    )
    fit = identify(nominal, simulate(truth, 0, noise=0.05, seconds=20.0, reach=0.8))
    (note,) = texts(fit, "changed_mass")
    assert "link4" in note and "the log determines them" in note
    assert fit.mechanism.mass[3] / nominal.mass[3] > 2
    assert fit.masses is not None and fit.masses.determined[3] > 0.5 > fit.masses.determined[0]
    report = str(fit)
    assert "Masses in kg: nominal, fitted, standard error, share that the log determines:" in report


@pytest.mark.nightly
def test_errors_of_masses_are_about_their_standard_errors():
    nominal, scores = panda(), []
    for seed in range(3):
        truth = panda(0.15, seed)
        fit = identify(nominal, simulate(truth, seed, noise=0.1, rotors=ROTORS))
        assert fit.masses is not None
        scores.append((fit.mechanism.mass - truth.mass) / fit.masses.deviation)
    assert 0.3 < torch.cat(scores).square().mean().sqrt() < 2.5


def test_masses_are_saved(tmp_path):
    nominal = pendulum(50)
    fit = identify(nominal, simulate(nominal, 0, noise=0.05, seconds=10.0, rate=50.0))
    fit.save(tmp_path)
    kept = Fit.load(tmp_path)
    assert fit.masses is not None and kept.masses is not None
    assert torch.equal(kept.masses.deviation, fit.masses.deviation)
    masses = [str(x).partition("Masses in kg")[2].partition("sum")[0] for x in (fit, kept)]
    assert masses[0] == masses[1] != ""


@pytest.mark.nightly
def test_folds_of_a_repeated_motion_divide_its_period():
    """Each fold was predicted from other periods, so that any error of the model seemed to be known."""
    nominal = panda()
    options = {"rotors": ROTORS, "load": 0.2, "dahl": 0.15, "cogging": 0.3, "noise": 0.2}
    log = simulate(panda(0.15), 0, seconds=20.0, period=5.0, **options)
    folds = time_folds(log, 5, 0.0)
    assert folds.period == pytest.approx(5.0, abs=0.02)
    assert folds.of(torch.tensor([0.5, 5.5, 1.5, 16.5])).tolist() == [0, 0, 1, 1]
    once = simulate(panda(0.15), 0, seconds=20.0, **options)
    assert time_folds(once, 5, 0.0).period is None
    # A longer pause between two recordings is no period.
    later = replace(once, t=np.where(once.t > 10, once.t + 7, once.t))
    assert time_folds(later, 5, 0.0).period is None
    fit = identify(nominal, log)
    assert "repeats every 5 s" in texts(fit, "repeated_motion")[0]
    # With folds of time the smallest weight of the prior was selected, and masses changed fivefold.
    assert fit.info.prior_weight is not None and fit.info.prior_weight > 1e-3
    assert not texts(identify(nominal, once), "repeated_motion")


def test_a_rotor_that_no_log_determines_has_no_standard_error():
    fit = identify(panda(), simulate(panda(0.1), 0, noise=0.1, rotors=ROTORS))
    at = fit.terms[0].index(RotorInertia())
    assert fit.deviations[0][at].isinf()
    assert any("RotorInertia" in note for note in texts(fit, "unidentifiable"))
