"""Decimated logs give the same estimates with larger standard errors."""

from dataclasses import replace

import pytest

import torchsko as ts
from tests.identification.finding_codes import texts
from tests.identification.test_fit import TERMS, arm, friction, log_of
from torchsko.identification.signals import filter_settings as settings


@pytest.fixture(scope="module")
def long_log():
    truth, nominal = arm()
    return truth, nominal, log_of(truth, friction, rate=1600.0, noise=0.2)[0]


def fit(nominal, log):
    return ts.identification.identify(nominal, log, joint_terms=TERMS, cutoff=8.0, prior=1e-4)


def test_every_fourth_sample_gives_the_same_robot_with_larger_standard_errors(long_log):
    truth, nominal, log = long_log
    whole, few = fit(nominal, log), fit(nominal, log.pick(slice(1, None, 4)))
    true = whole.base.of(ts.inertial_parameters(truth).flatten())
    for found in (whole, few):
        assert ((found.value - true).abs() < 3 * found.deviation).all()
    assert ((few.value - whole.value).abs() < 3 * few.deviation).all()
    # Noise of each sample is its own: a quarter of them, twice the deviation.
    assert 1.5 < (few.deviation / whole.deviation).median() < 2.7


def test_several_logs_are_fitted_as_one_each_filtered_by_itself():
    truth, nominal = arm()
    logs = [log_of(truth, friction, seed=k, noise=0.2, seconds=8.0 + k)[0] for k in range(3)]
    logs = [replace(log, t=log.t + 100.0 - 40 * k) for k, log in enumerate(logs)]
    each, whole = (
        [fit(nominal, log) for log in logs],
        fit(nominal, ts.identification.Log.concatenate(logs)),
    )
    assert not texts(whole, "gaps")  # the joins are none
    assert whole.info.equations == sum(x.info.equations for x in each)
    true = whole.base.of(ts.inertial_parameters(truth).flatten())
    assert ((whole.value - true).abs() < 3 * whole.deviation).all()
    assert all((whole.deviation < x.deviation).all() for x in each)
    for wrong, what in (([], "there is no log"), ([logs[0], replace(logs[1], qd=None)], "3, None")):
        with pytest.raises(ts.FitError, match=what):
            ts.identification.Log.concatenate(wrong)
    with pytest.raises(ts.FitError, match=r"Log\.concatenate"):
        ts.identification.identify(nominal, logs)


def test_the_rate_of_filtered_forces_does_not_change_estimates(long_log, monkeypatch):
    """Filtered samples beyond the Nyquist rate do not change estimates and standard errors."""
    _, nominal, log = long_log
    usual = fit(nominal, log)
    monkeypatch.setattr(settings, "FORCE_RATE_RATIO", 4 * settings.FORCE_RATE_RATIO)
    more = fit(nominal, log)
    assert more.info.equations > 2.5 * usual.info.equations
    assert ((more.value - usual.value).abs() < 0.3 * usual.deviation).all()
    assert 0.7 < (more.deviation / usual.deviation).median() < 1.4
