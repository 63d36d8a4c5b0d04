"""Logs of motor currents: torque constants are found, and what follows is in N m."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import texts
from tests.identification.test_fit import arm, friction, log_of
from torchsko.identification import drive_gains as currents
from torchsko.identification.drive_gains import torque_constants
from torchsko.identification.signals.filter_settings import design_filters

CONSTANTS = np.array([8.0, 0.5, -3.0])


def currents_of(truth, seed=0, friction=friction):
    log, _ = log_of(truth, friction, seed=seed, noise=0.02)
    return ts.identification.Log(log.t, log.q, log.tau / CONSTANTS, log.qd, current=True)


def found_by(nominal, log):
    return torque_constants(nominal, log, design_filters(log, 8.0)).value.numpy()


def test_constants_are_exact_for_an_exact_nominal_robot():
    truth, _ = arm()
    np.testing.assert_allclose(found_by(truth, currents_of(truth)), CONSTANTS, rtol=0.01)


def test_standard_errors_of_constants_are_their_spread_over_noise():
    """Of friction as it is told from a rigid robot's force, so that noise alone is wrong."""
    truth, _ = arm()
    known = lambda q, qd: 0.3 * qd + 0.5 * (qd / 0.05).tanh() + 0.2  # noqa: E731
    logs = [currents_of(truth, seed, known) for seed in range(12)]
    found = [torque_constants(truth, log, design_filters(log, 8.0)) for log in logs]
    value = np.stack([x.value.numpy() for x in found])
    told = np.stack([x.deviation.numpy() for x in found]).mean(0)
    away = (value - CONSTANTS) / told
    assert (np.abs(away) < 4).all()
    assert 0.5 < np.sqrt((away**2).mean()) < 1.5


def test_a_robot_twice_as_heavy_has_constants_twice_as_large():
    """Currents are the same then: only the nominal robot says how heavy a robot is."""
    truth, nominal = arm()
    log = currents_of(truth)
    heavy = nominal.replace(mass=2 * nominal.mass, inertia=2 * nominal.inertia)
    once, twice = found_by(nominal, log), found_by(heavy, log)
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-6)


def test_ratios_of_constants_do_not_depend_on_errors_of_nominal_links():
    truth, nominal = arm()
    found = found_by(nominal, currents_of(truth)) / CONSTANTS
    assert np.ptp(found) < 0.02 * found.mean()


def test_a_fit_to_currents_is_in_newton_meters():
    truth, _ = arm()
    fit = ts.identification.identify(truth, currents_of(truth), cutoff=8.0)
    _, (q, qd, qdd, tau) = log_of(truth, friction, seed=5)
    error = (fit.inverse_dynamics(q, qd, qdd, series=True) - tau).square().mean(0).sqrt()
    assert (error < 0.02 * tau.std(0)).all()
    assert_close(
        fit.mechanism.damping, 0.3 * torch.ones_like(fit.mechanism.damping), rtol=0.1, atol=0
    )
    assert fit.info.constants is not None
    np.testing.assert_allclose(fit.info.constants.numpy(), CONSTANTS, rtol=0.01)
    assert fit.info.constant_deviations is not None
    assert "Torque constants" in str(fit)


def test_a_saved_fit_has_its_constants(tmp_path):
    truth, _ = arm()
    fit = ts.identification.identify(
        truth, currents_of(truth), cutoff=8.0, joint_terms=[], prior=1e-2
    )
    fit.save(tmp_path)
    assert_close(
        ts.identification.Fit.load(tmp_path).info.constants, fit.info.constants, rtol=0, atol=0
    )


def without_constant():
    """A robot, and currents of which those of joint1 are noise."""
    truth, _ = arm()
    log = currents_of(truth)
    tau = np.array(log.tau)
    tau[:, 1] = np.random.default_rng(0).normal(size=len(tau))
    return truth, ts.identification.Log(log.t, log.q, tau, log.qd, current=True)


def test_a_joint_without_a_determined_constant_is_named_and_the_others_are_fitted():
    truth, blind = without_constant()
    fit = ts.identification.identify(truth, blind, cutoff=8.0)
    (note,) = texts(fit, "unknown_constant")
    assert "joint1" in note and "--gain joint1=" in note
    assert fit.info.constants is not None
    found = fit.info.constants.numpy()
    assert np.isnan(found[1]) and fit.terms[1] == ()
    np.testing.assert_allclose(found[[0, 2]], CONSTANTS[[0, 2]], rtol=0.02)
    nothing = ts.identification.Log(
        blind.t, blind.q, blind.tau[:, [1, 1, 1]], blind.qd, current=True
    )
    with pytest.raises(ts.FitError, match="no torque constant can be estimated"):
        ts.identification.identify(truth, nothing)


def test_joints_with_known_constants_or_measured_forces_are_not_estimated():
    truth, _ = arm()
    log, names = currents_of(truth), truth.joint_names
    known = log.calibrate(truth, gain={names[1]: CONSTANTS[1]})
    assert known.current_joints(names) == (names[0], names[2])
    found = torque_constants(truth, known, design_filters(known, 8.0))
    np.testing.assert_allclose(found.value.numpy(), [CONSTANTS[0], 1.0, CONSTANTS[2]], rtol=0.01)
    assert float(found.deviation[1]) == 0
    units = {"tau": {names[0]: "A", names[2]: "mA"}}
    scale = np.array([1.0, CONSTANTS[1], 1000.0])
    mixed = ts.identification.Log(log.t, log.q, log.tau * scale, log.qd).calibrate(
        truth, units=units
    )
    assert mixed.current_joints(names) == (names[0], names[2])
    np.testing.assert_allclose(mixed.tau, known.tau)


def test_constants_that_do_not_converge_are_refused(monkeypatch):
    truth, _ = arm()
    monkeypatch.setattr(currents, "MAX_ITERATIONS", 1)
    with pytest.raises(ts.FitError, match="did not converge in 1 iterations"):
        found_by(truth, currents_of(truth))


LIFT = """<robot name="lift"><link name="base"/>
<link name="column"><inertial><origin xyz="0 0 0.1"/><mass value="8"/>
<inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="upper"><inertial><origin xyz="0.2 0.01 0"/><mass value="2"/>
<inertia ixx=".02" iyy=".02" izz=".02" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="fore"><inertial><origin xyz="0.15 0 0.02"/><mass value="1"/>
<inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="lift" type="prismatic"><parent link="base"/><child link="column"/><axis xyz="0 0 1"/>
<limit lower="0" upper="0.35" effort="2000" velocity="0.1"/></joint>
<joint name="shoulder" type="revolute"><parent link="column"/><child link="upper"/><origin xyz="0 0 0.5"/>
<axis xyz="0 1 0"/><limit lower="-1.5" upper="1.5" effort="60" velocity="2"/></joint>
<joint name="elbow" type="revolute"><parent link="upper"/><child link="fore"/><origin xyz="0.4 0 0"/>
<axis xyz="0 0 1"/><limit lower="-1.5" upper="1.5" effort="30" velocity="2"/></joint></robot>"""

NO_CURRENTS = {
    "an oscillation": lambda t, qd: 2.0 + 0.3 * np.sin(7 * t),
    "a constant": lambda t, qd: np.full_like(t, 1.7),
    "zeros": lambda t, qd: np.zeros_like(t),
    "nothing": lambda t, qd: np.full_like(t, np.nan),
    "its velocity": lambda t, qd: 0.3 * qd,
}


@pytest.mark.parametrize("joint", ["lift", "elbow"])
@pytest.mark.parametrize("column", NO_CURRENTS)
def test_a_column_that_is_no_current_of_its_joint_leaves_its_constant_unknown(column, joint):
    """The mass of the lift acts on the lift alone, so no other current determines it."""
    mech = ts.load(LIFT)
    log, _ = log_of(mech, friction, rate=100.0, noise=0.02)
    k, constants = mech.joint_names.index(joint), np.array([100.0, 10.0, 8.0])
    tau = log.tau / constants
    tau[:, k] = NO_CURRENTS[column](log.t, log.qd[:, k])
    currents = ts.identification.Log(log.t, log.q, tau, log.qd, current=True)
    fit = ts.identification.identify(mech, currents, select=False)
    (note,) = texts(fit, "unknown_constant")
    assert f"of {joint}." in note
    found = fit.info.constants.numpy()
    assert np.isnan(found[k]) and not fit.terms[k]
    others = np.arange(3) != k
    np.testing.assert_allclose(found[others], constants[others], rtol=0.05)


@pytest.mark.parametrize("column", NO_CURRENTS)
def test_a_log_without_any_current_of_its_joints_has_no_constants(column):
    mech = ts.load(LIFT)
    log, _ = log_of(mech, friction, rate=100.0)
    tau = np.stack([NO_CURRENTS[column](log.t, x) for x in log.qd.T], -1)
    currents = ts.identification.Log(log.t, log.q, tau, log.qd, current=True)
    message = "no force is a finite number" if column == "nothing" else "no torque constant can be"
    with pytest.raises(ts.FitError, match=message):
        ts.identification.identify(mech, currents, select=False)


def test_the_constant_of_a_lift_alone_is_not_identifiable():
    mech = ts.load(LIFT).lock({"shoulder": 0.0, "elbow": 0.0})
    log, _ = log_of(mech, lambda q, qd: 0.0 * q, rate=100.0)
    currents = ts.identification.Log(log.t, log.q, log.tau / 100, log.qd, current=True)
    with pytest.raises(ts.FitError, match="no torque constant can be estimated"):
        ts.identification.identify(mech, currents)
