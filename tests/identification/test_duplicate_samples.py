"""Repeated samples of a slower sensor are interpolated."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import texts
from tests.identification.test_fit import arm
from torchsko.identification.friction import Offset, SmoothCoulomb, Viscous
from torchsko.identification.signals.duplicate_samples import find_repeated_samples

TERMS = [Viscous(), SmoothCoulomb(0.1), Offset()]


def measured(rate=1000.0, seconds=16.0):
    truth, nominal = arm()
    motion = ts.identification.exciting_trajectory(
        truth, generator=torch.Generator().manual_seed(0)
    )
    t = torch.arange(int(seconds * rate), dtype=truth.dtype) / rate
    q, qd, qdd = motion(t)
    tau = ts.inverse_dynamics(truth, q, qd, qdd) + 0.3 * qd + 0.5 * (qd / 0.1).tanh() + 0.2
    noise = np.random.default_rng(0).normal(size=tuple(tau.shape))
    return nominal, *(x.numpy() for x in (t, q, qd)), tau.numpy() + 0.02 * noise


def every(n, count):
    return np.arange(count) // n * n


def now_and_then(n, count):
    """Indices of the last new sample, if one in n is new at random."""
    new = np.random.default_rng(1).uniform(size=count) < 1 / n
    new[0] = True
    return np.maximum.accumulate(np.where(new, np.arange(count), 0))


@pytest.mark.parametrize(
    ("last", "with_rates"),
    [
        (every, False),
        (now_and_then, True),
        pytest.param(every, True, marks=pytest.mark.nightly),
        pytest.param(now_and_then, False, marks=pytest.mark.nightly),
    ],
)
def test_fits_with_repeated_and_with_complete_states_agree(last, with_rates):
    nominal, t, q, qd, tau = measured()
    k = last(5, len(t))
    rates = qd[k] if with_rates else None
    fit = ts.identification.identify(
        nominal, ts.identification.Log(t, q[k], tau, rates), joint_terms=TERMS, method="ols"
    )
    whole = ts.identification.identify(
        nominal, ts.identification.Log(t, q, tau, qd), joint_terms=TERMS, method="ols"
    )
    assert fit.info.cutoff < 2 * whole.info.cutoff
    assert_close(torch.stack(fit.numbers), torch.stack(whole.numbers), rtol=0.02, atol=5e-3)
    assert texts(fit, "repeated_samples") and not texts(whole, "repeated_samples")


@pytest.mark.nightly
def test_shooting_ignores_repeated_samples():
    nominal, t, q, _, tau = measured(200.0)
    k = every(4, len(t))
    fit = ts.identification.identify(
        nominal,
        ts.identification.Log(t, q[k], tau),
        joint_terms=TERMS,
        method="shooting",
        prior=1e-3,
    )
    assert_close(torch.stack(fit.numbers)[:, 1], torch.full((3,), 0.3).double(), rtol=0.02, atol=0)


def test_rest_and_low_resolution_encoders_are_not_repeated_samples():
    _, _, q, _, _ = measured()
    assert not find_repeated_samples(np.round(q.T / 2e-4) * 2e-4).any()
    resting = q[np.clip(np.arange(2 * len(q)) - 5000, 0, len(q) - 1)].T
    assert not find_repeated_samples(resting).any()
    held = resting[:, every(5, resting.shape[1])]
    assert find_repeated_samples(held)[:, 6000:20000].mean() > 0.7
    assert not find_repeated_samples(held)[:, 10:4900].any()
