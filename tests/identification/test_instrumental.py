"""Standard errors of instrumental variables are calibrated for noise of positions, which cancels in time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.test_fit import TERMS, arm, friction
from torchsko.identification.regression.normal_equations import lagged_rows


def test_a_lagged_pair_counts_if_both_of_its_rows_are_valid():
    good = torch.tensor([1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1]).bool()[:, None]
    t = torch.arange(12.0)
    chunks = [(t[k], t[k, None, None], good[k]) for k in (slice(5), slice(5, 7), slice(7, 12))]
    problem = SimpleNamespace(filtered_rows=lambda motions: chunks)
    rows = [torch.cat(x) for x in zip(*lagged_rows(problem, [None], 3), strict=True)]
    pairs = rows[1].flatten(1).tolist()
    assert pairs == [[k, k - 3] for k in range(3, 12)]
    valid = good[:, 0].tolist()
    assert rows[2][:, 0].tolist() == [valid[k] and valid[k - 3] for k in range(3, 12)]


def found(noise, seconds, *, teeth=0.0, logged=False, count=8, cutoff=8.0):
    """Errors and standard errors of base parameters over repetitions of one motion, `[repetitions, base]`."""
    truth, nominal = arm()
    motion = ts.identification.exciting_trajectory(
        truth, generator=torch.Generator().manual_seed(0)
    )
    t = torch.arange(int(200 * seconds), dtype=truth.dtype) / 200
    q, qd, qdd = motion(t)
    force = ts.inverse_dynamics(truth, q, qd, qdd) + friction(q, qd) + teeth * torch.sin(24 * q)
    errors, deviations = [], []
    for seed in range(count):
        draw = np.random.default_rng(seed).normal
        shown = q.numpy() + noise * draw(size=q.shape)
        tau = force.numpy() + 0.02 * draw(size=q.shape)
        speeds = qd.numpy() + 0.01 * draw(size=q.shape) if logged else None
        log = ts.identification.Log(t.numpy(), shown, tau, speeds)
        fit = ts.identification.identify(
            nominal, log, joint_terms=TERMS, method="iv", cutoff=cutoff
        )
        true = fit.base.of(ts.inertial_parameters(truth).flatten())
        errors.append(fit.value - true)
        deviations.append(fit.deviation)
    return torch.stack(errors), torch.stack(deviations)


@pytest.mark.parametrize(
    "noise, seconds, logged",
    [(1e-3, 6.0, False), pytest.param(0.0, 20.0, True, marks=pytest.mark.nightly)],
)
def test_deviations_are_the_spread_of_estimates_and_cover_their_errors(noise, seconds, logged):
    errors, deviations = found(noise, seconds, logged=logged)
    assert 0.5 < (errors / deviations).square().mean().sqrt() < 1.8
    over = deviations.mean(0) / errors.std(0)
    assert 0.8 < over.median() < 2.0


def test_deviations_of_errors_that_cancel_are_no_larger_than_they_spread():
    """Blocks without a taper cut pairs of canceling errors: standard errors were up to 3 times too large."""
    errors, deviations = found(1e-4, 20.0, cutoff=20.0, count=12)
    over = deviations.mean(0) / errors.std(0)
    assert 0.75 < over.median() < 1.2
    assert over.max() < 2.0


@pytest.mark.nightly  # by day in test_robust_covariance.py
def test_cogging_torque_enlarges_standard_errors():
    errors, deviations = found(1e-4, 20.0, teeth=0.1, count=2)
    assert (errors / deviations).square().mean().sqrt() < 2.5
