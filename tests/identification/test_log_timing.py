"""Lost samples, bursts, delays, and counters that wrap at any period."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import codes, texts
from tests.identification.log_corrections import corrected, findings_of
from torchsko.identification import Log
from torchsko.identification.friction import SmoothCoulomb, Viscous
from torchsko.identification.signals.unwrap import TURN, unwrap_angles

TERMS = [Viscous(), SmoothCoulomb(0.05)]


def pendulum():
    """A double pendulum with perpendicular axes."""
    build = ts.MechanismBuilder("two")
    inertia = np.diag([0.06, 0.06, 0.01]).tolist()
    build.link("upper", mass=3.0, com=(0.02, 0, -0.25), inertia=inertia)
    build.link("fore", mass=1.5, com=(0, 0.01, -0.2), inertia=np.diag([0.02, 0.02, 0.003]).tolist())
    build.joint("shoulder", "revolute", child="upper", axis=(0, 1, 0))
    build.joint(
        "elbow", "revolute", parent="upper", child="fore", axis=(1, 0, 0), position=(0, 0, -0.5)
    )
    return build.build()


MECH = pendulum()


def swinging(drift=0.0, duration=30.0, noise=0.01):
    """A log at 100 Hz of motions below 0.7 Hz."""
    t = np.arange(0, duration, 0.01)
    g = np.random.default_rng(0)
    q, qd, qdd = (np.zeros((len(t), 2)) for _ in range(3))
    for k in range(1, 6):
        w = 2 * np.pi * 0.1 * k * np.array([1.0, 1.1])
        a, phase = 1.2 * g.normal(size=2) / k**0.7, 6 * g.uniform(size=2)
        turn = w * t[:, None] + phase
        q, qd, qdd = q + a * np.sin(turn), qd + a * w * np.cos(turn), qdd - a * w**2 * np.sin(turn)
    q, qd = q + drift * t[:, None], qd + drift
    tau = ts.inverse_dynamics(MECH, *map(torch.from_numpy, (q, qd, qdd))).numpy()
    tau = tau + 0.4 * qd + 0.5 * np.tanh(qd / 0.05)
    g = np.random.default_rng(1)
    return Log(
        t,
        q + 1e-5 * g.normal(size=q.shape),
        tau + noise * g.normal(size=q.shape),
        qd + 1e-4 * g.normal(size=q.shape),
    )


LOG = swinging()


def fitted(log, **options):
    return ts.identification.identify(MECH, log, joint_terms=TERMS, method="wls", **options)


WHOLE = fitted(LOG)
TRUE = WHOLE.base.of(ts.inertial_parameters(MECH).flatten())


def test_the_automatic_cutoff_knows_the_gaps():
    kept = np.random.default_rng(0).uniform(size=len(LOG)) > 0.3
    qd = None if LOG.qd is None else LOG.qd[kept]
    log = replace(LOG, t=LOG.t[kept], q=LOG.q[kept], tau=LOG.tau[kept], qd=qd)
    fit = fitted(log)
    assert 0.25 / fit.info.cutoff > 0.04
    assert_close(fit.value, TRUE, rtol=0.02, atol=0.02)
    with pytest.raises(ts.FitError, match=r"may be 0\.025 s apart .* longest gap is 0\.0") as error:
        fitted(log, cutoff=10.0)
    (advised,) = re.findall(r"--cutoff (\S+)", str(error.value))
    assert_close(fitted(log, cutoff=float(advised)).value, TRUE, rtol=0.02, atol=0.02)


def test_a_log_without_gaps_has_the_cutoff_of_its_motion():
    one_gap = np.r_[0:1000, 1500:3000]
    qd = None if LOG.qd is None else LOG.qd[one_gap]
    log = replace(LOG, t=LOG.t[one_gap], q=LOG.q[one_gap], tau=LOG.tau[one_gap], qd=qd)
    assert abs(fitted(log).info.cutoff / WHOLE.info.cutoff - 1) < 0.15


def test_receive_times_in_bursts_are_refused_with_the_option_that_works():
    t = np.repeat(LOG.t[::5], 5) + np.tile(np.arange(5) * 1e-5, len(LOG) // 5)
    log = replace(LOG, t=t)
    with pytest.raises(ts.FitError, match=r"bursts of about 5, every 0\.05 s") as error:
        fitted(log)
    assert getattr(error.value, "code", "") == "bursts"
    fit = fitted(corrected(MECH, log, str(error.value)))
    assert_close(fit.value, TRUE, rtol=0.02, atol=0.02)
    equal = replace(LOG, t=np.repeat(LOG.t[::5], 5))
    with pytest.raises(ts.FitError, match="type --even-times") as error:
        fitted(equal)
    assert_close(fitted(equal.with_even_times()).value, TRUE, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("late", [0.02, -0.015])
def test_a_delay_of_forces_is_named_with_the_option_that_works(late):
    tau = np.stack([np.interp(LOG.t - late, LOG.t, x) for x in LOG.tau.T], -1)
    log = replace(LOG, tau=tau)
    (found,) = [x for x in findings_of(MECH, log, joint_terms=TERMS) if x.code == "delay"]
    (delay,) = re.findall(r"--delay tau=(\S+),", str(found))
    assert float(delay) == pytest.approx(late, rel=0.05)
    mended = corrected(MECH, log, str(found))
    assert "delay" not in {x.code for x in findings_of(MECH, mended, joint_terms=TERMS)}
    fit, late_fit = fitted(mended), fitted(log)
    assert (fit.errors["wls"] < 0.5 * late_fit.errors["wls"]).all()
    assert_close(fit.value, TRUE, rtol=0.03, atol=0.03)


def test_a_log_without_delay_gives_no_finding():
    assert "delay" not in {x.code for x in findings_of(MECH, LOG, joint_terms=TERMS)}


@pytest.mark.parametrize("velocities", [True, False])
@pytest.mark.parametrize("period", [2 * TURN, 3.3])
def test_counters_that_wrap_at_any_period_are_unwrapped(period, velocities):
    log = swinging(drift=1.5)
    whole, turns = (np.asarray(log.q), unwrap_angles(log))
    assert turns[1] == {}
    wrapped = replace(log, q=(whole + 0.5) % period - 0.5, qd=log.qd if velocities else None)
    unwrapped, counts = unwrap_angles(wrapped, ("shoulder", "elbow"))
    assert set(counts) == {"shoulder", "elbow"}
    np.testing.assert_allclose([x for _, x in counts.values()], period, rtol=1e-4)
    drift = unwrapped.q - whole
    np.testing.assert_allclose(drift - drift[0], 0, atol=2e-3)


def test_counters_that_wrap_give_the_fit_of_the_whole_angles():
    log = swinging(drift=1.5)
    fit = fitted(replace(log, q=(log.q + 1.65) % 3.3 - 1.65))
    (note,) = texts(fit, "unwrapped_angles")
    assert "by 3.3" in note
    # The start is known only up to a period, which is no multiple of a turn: the zero is unknown.
    assert_close(fit.errors["wls"], fitted(log).errors["wls"], rtol=0.3, atol=0.02)


def test_a_repeated_motion_is_not_unwrapped():
    s = np.linspace(0, 1, 500)
    once = 2.0 * (10 * s**3 - 15 * s**4 + 6 * s**5)
    q = np.tile(once, 6)[:, None] + 1e-5 * np.random.default_rng(0).normal(size=(3000, 1))
    log = Log(np.arange(3000) / 100, q, q)
    assert unwrap_angles(log)[1] == {}


def test_a_wrong_model_makes_physical_inertias_worse_than_least_squares():
    """Rigid forces are reversed and friction is not: only negative inertias explain that."""
    rigid = LOG.tau - 0.4 * LOG.qd - 0.5 * np.tanh(LOG.qd / 0.05)
    log = replace(LOG, tau=LOG.tau - 2 * rigid)
    fit = ts.identification.identify(
        MECH, log, joint_terms=TERMS, prior=1e-3, on_findings={"force_scale": "ignore"}
    )
    (note,) = texts(fit, "physical_gap")
    assert "shoulder" in note and "--couple" in note and "--zero" in note
    clean = ts.identification.identify(MECH, LOG, joint_terms=TERMS, prior=1e-3)
    assert "physical_gap" not in codes(clean)
