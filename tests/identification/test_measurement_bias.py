"""Noise of positions biases least squares, and the reported bias is right."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import torchsko as ts
import torchsko.identification.uncertainty.measurement_bias as looked
from tests.identification.finding_codes import texts
from torchsko.identification.friction import Coulomb, Viscous
from torchsko.identification.signals.filter_settings import design_filters
from torchsko.identification.uncertainty.measurement_bias import PositionNoise

TERMS = [Viscous(), Coulomb()]


def arm():
    """Two vertical links and a slide."""
    builder = ts.MechanismBuilder("arm")
    for name, mass in (("a", 2.0), ("b", 1.0), ("c", 0.5)):
        builder.link(name, mass=mass, com=(0.3, 0, 0), inertia=np.diag([0.02, 0.03, 0.03]).tolist())
    builder.joint("j1", "revolute", child="a", axis=(0, 1, 0))
    builder.joint("j2", "revolute", parent="a", child="b", position=(0.6, 0, 0), axis=(0, 1, 0))
    builder.joint("slide", "prismatic", parent="b", child="c", axis=(1, 0, 0))
    return builder.build()


def measured(mech, noise, *, rates=None, seconds=40, hertz=200):
    """A log of a motion in closed form, with friction, and noise of positions."""
    t = torch.arange(hertz * seconds, dtype=mech.dtype) / hertz
    w = torch.tensor([[1.3, 1.9, 1.1], [3.1, 4.3, 3.7]]).to(t)
    size = torch.tensor([[1.0, 0.8, 0.2], [0.2, 0.3, 0.05]]).to(t)
    turn = w * t[:, None, None]
    q, qd, qdd = ((size * x).sum(1) for x in (turn.sin(), w * turn.cos(), -w * w * turn.sin()))
    tau = ts.inverse_dynamics(mech, q, qd, qdd) + 0.3 * qd + 0.5 * qd.sign()
    rng = np.random.default_rng(0)
    q = q.numpy() + np.asarray(noise) * rng.standard_normal(q.shape)
    rates = None if rates is None else qd.numpy() + rates * rng.standard_normal(q.shape)
    return ts.identification.Log(
        t.numpy(), q, tau.numpy() + 0.05 * rng.standard_normal(q.shape), rates
    )


OLS = {"joint_terms": TERMS, "method": "ols", "measurement_bias": True}


def told(fit):
    """Reported bias in standard errors, 0 if there is no finding."""
    notes = texts(fit, "position_noise_bias")
    found = [re.search(r"by up to about (\S+) standard errors", note) for note in notes]
    return next((float(x[1]) for x in found if x), 0.0)


@pytest.mark.some(1)
@pytest.mark.parametrize("method", ["ols", "wls", "physical"])
def test_a_bias_by_noise_of_positions_is_reported_with_its_size(method):
    """The bias of up to ten standard errors was not reported."""
    mech = arm()
    truth = ts.base_parameters(mech).of(ts.inertial_parameters(mech).flatten())
    nominal = mech.replace(mass=1.1 * mech.mass)
    fit = ts.identification.identify(
        nominal,
        measured(mech, [1e-3, 1e-3, 2e-4]),
        joint_terms=TERMS,
        method=method,
        measurement_bias=True,
    )
    numbers = torch.cat([fit.value, *fit.numbers])
    true = torch.cat([truth, *(x.new_tensor([0.3, 0.5]) for x in fit.numbers)])
    away = float(((numbers - true) / torch.cat([fit.deviation, *fit.deviations])).abs().max())
    assert away > 3
    assert told(fit) == pytest.approx(away, rel=0.4)
    assert 'method="iv" (--method iv)' in str(fit)
    small = ts.identification.identify(
        nominal, measured(mech, 1e-4), joint_terms=TERMS, method=method, measurement_bias=True
    )
    assert told(small) == 0


def test_noise_larger_than_the_motion_of_a_joint_is_reported():
    """Additional noise changes little there, since the estimate is already attenuated."""
    mech = arm()
    truth = ts.base_parameters(mech).of(ts.inertial_parameters(mech).flatten())
    log = measured(mech, [1e-4, 1e-4, 6e-3])
    fit = ts.identification.identify(mech, log, **OLS)
    away = float(((fit.value - truth) / fit.deviation).abs().max())
    assert away > 10 and told(fit) > away / 2


@pytest.mark.nightly
def test_shooting_and_measured_velocities_have_no_bias_finding():
    mech = arm()
    log = measured(mech, 1e-3, rates=1e-3)
    assert told(ts.identification.identify(mech, log, **OLS)) == 0
    assert told(ts.identification.identify(mech, replace(log, qd=None), **OLS)) > 0


def test_noise_is_measured_where_no_robot_moves():
    mech = arm()
    sizes = np.array([1e-3, 2e-4, 3e-5])
    log = measured(mech, sizes, rates=1e-2, seconds=20)
    q = log.q.copy()
    q[::97, 0] = np.nan
    for x in (log, replace(log, q=q)):
        found = PositionNoise.of(mech, x, design_filters(x))
        np.testing.assert_allclose(found.q, sizes, rtol=0.1)
        assert found.qd is not None
        np.testing.assert_allclose(found.qd, 1e-2, rtol=0.1)
    exact = measured(mech, 0.0, seconds=20)
    assert float(PositionNoise.of(mech, exact, design_filters(exact)).q.max()) < 1e-6


def test_logs_that_are_joined_are_no_noisier_than_each():
    """Interpolation across the gap has corners, which were counted as noise."""
    mech = arm()
    log = measured(mech, 1e-5, seconds=20)
    both = ts.identification.Log.concatenate([log.part(0, 0.4), log.part(0.6, 1)])
    np.testing.assert_allclose(PositionNoise.of(mech, both, design_filters(both)).q, 1e-5, rtol=0.1)
    jolt = replace(log, q=log.q + 0.3 * (log.t > 10)[:, None])
    np.testing.assert_allclose(PositionNoise.of(mech, jolt, design_filters(log)).q, 1e-5, rtol=0.1)


def test_the_bias_is_right_if_a_sample_of_states_is_simulated(monkeypatch):
    """The first states were those of a robot at rest, which has less motion and a larger bias."""
    mech = arm()
    size = np.array([1e-3, 1e-3, 2e-4])
    log = measured(mech, size)
    still, rng = np.zeros((2 * len(log), 3)), np.random.default_rng(1)
    hold = ts.inverse_dynamics(mech, *[torch.as_tensor(still)] * 3).numpy()
    q, tau = (x + y * rng.standard_normal(still.shape) for x, y in ((still, size), (hold, 0.05)))
    rest = replace(log, t=np.arange(len(q)) / 200, q=q, tau=tau)
    fits = []
    for states in (100_000, 2000):
        monkeypatch.setattr(looked, "MAX_STATES", states)
        both = ts.identification.Log.concatenate([rest, log])
        fits.append(told(ts.identification.identify(mech, both, **OLS, cutoff=10.0)))
    assert fits[1] == pytest.approx(fits[0], rel=0.5)


def test_outliers_of_positions_do_not_count_as_noise():
    """Ten outliers made the estimated noise 0.016 rad, and the reported bias 2e4 standard errors."""
    mech = arm()
    log = measured(mech, 1e-5, seconds=20)
    q = log.q.copy()
    q[70::400, 0] += 0.5
    np.testing.assert_allclose(
        PositionNoise.of(mech, replace(log, q=q), design_filters(log)).q, 1e-5, rtol=0.1
    )


def test_a_log_with_too_few_samples_for_its_motion_says_so():
    """Estimates of a Panda at 10 Hz were up to seven standard errors off without a finding."""

    def said(hertz, **options):
        log = measured(arm(), 0.0, hertz=hertz, seconds=120)
        fit = ts.identification.identify(arm(), log, **OLS, **options)
        return texts(fit, "low_sample_rate")

    (line,) = said(10)
    enough = int(re.search(r"Log at (\d+) Hz or more", line)[1])
    assert 10 < enough < 60
    assert not said(enough)
    assert not said(10, cutoff=1.25)  # somebody's choice
