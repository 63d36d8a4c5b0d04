"""The frequencies of torque ripple are found, and ripple does not bias other parameters."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import texts
from tests.identification.test_fit import arm, friction, log_of
from torchsko.identification.friction import Offset, Periodic, SmoothCoulomb, Viscous

TEETH = torch.tensor([24.0, 31.5, 40.0], dtype=torch.float64)
"""Periods per turn of each joint; the second is not an integer, as of a motor behind a gear."""


def rippled(q, qd):
    return friction(q, qd) + 0.15 * (TEETH * q + 0.7).cos()


@pytest.fixture(scope="module")
def seen():
    truth, nominal = arm()
    log, _ = log_of(truth, rippled, noise=0.02)
    return truth, nominal, log


def test_ripple_is_found_and_predicted(seen):
    truth, nominal, log = seen
    fit = ts.identification.identify(nominal, log, cutoff=8.0, ripple=True)
    for some, numbers, times in zip(fit.terms, fit.numbers, TEETH.tolist(), strict=True):
        waves = [k for k, x in enumerate(some) if isinstance(x, Periodic) and x.times > 2]
        assert len(waves) == 2 and all(abs(some[k].times - times) < 0.02 for k in waves)
        assert_close(numbers[waves].norm().item(), 0.15, rtol=0.05, atol=0)
    _, (q, qd, qdd, tau) = log_of(truth, rippled, seed=5)
    error = (fit.inverse_dynamics(q, qd, qdd, series=True) - tau).square().mean(0).sqrt()
    assert (error < 0.2 * 0.15 / 2**0.5).all()  # a fifth of the ripple's own size


def test_friction_without_ripple_has_no_ripple():
    """Unmodelled friction spreads over many frequencies."""
    truth, nominal = arm()
    stribeck = lambda q, qd: friction(q, qd) + 0.4 * (qd / 0.03).tanh() * (-((qd / 0.2) ** 2)).exp()  # noqa: E731
    log, _ = log_of(truth, stribeck, noise=0.02)
    fit = ts.identification.identify(nominal, log, cutoff=8.0, ripple=True)
    assert not any(isinstance(x, Periodic) and x.times > 1 for some in fit.terms for x in some)
    assert not texts(fit, "torque_ripple")


def test_unmodelled_friction_is_not_reported_as_ripple(seen):
    """Residuals of unmodelled friction repeat with the motion, and were reported as ripple."""
    truth, nominal, log = seen
    smooth, _ = log_of(truth, friction, noise=0.02)
    fit = ts.identification.identify(
        nominal, smooth, cutoff=8.0, joint_terms=(), prior=1e-3, ripple=True
    )
    assert not texts(fit, "torque_ripple")
    fit = ts.identification.identify(
        nominal, log, cutoff=8.0, joint_terms=(), prior=1e-3, ripple=True
    )
    assert "24 times a turn" in " ".join(texts(fit, "torque_ripple"))


def test_ripple_of_a_joint_with_given_terms_is_reported(seen):
    _, nominal, log = seen
    plain = [Viscous(), SmoothCoulomb(0.1), Offset()]
    fit = ts.identification.identify(
        nominal, log, cutoff=8.0, joint_terms={"joint0": plain}, prior=1e-3, ripple=True
    )
    told = texts(fit, "torque_ripple")
    assert len(told) == 1 and "residual of joint0" in told[0]
    assert "24 times a turn, by 0.1" in told[0] and "Periodic(times=24.0, phase=0.0)" in told[0]
    named = [*plain, Periodic(24.0, 0.0), Periodic(24.0, 0.25)]
    fit = ts.identification.identify(
        nominal, log, cutoff=8.0, joint_terms={"joint0": named}, prior=1e-3, ripple=True
    )
    assert not texts(fit, "torque_ripple")
