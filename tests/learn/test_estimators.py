"""Estimators withstand what they are made for: outliers, noise in positions."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.learn.test_fit import TERMS, arm, friction, log_of
from torchsko.learn.friction import Gain


def off(fit, truth):
    """How far base parameters are from the truth, over the size of each."""
    true = fit.base.of(ts.inertial_parameters(truth).flatten())
    return (fit.value - true).norm() / true.norm()


def test_blows_that_the_model_does_not_know_count_less_by_reweighting():
    truth, nominal = arm()
    log, _ = log_of(truth, friction, noise=0.02)
    rng, tau = np.random.default_rng(1), np.array(log.tau)
    for start in rng.integers(0, len(log) - 120, 12):  # a fifth of the log
        tau[start : start + 120] += rng.normal(0, 3.0, 3)
    hit = ts.learn.Log(log.t, log.q, tau, log.qd)
    wls, irls = (
        ts.learn.fit(nominal, hit, learn=TERMS, method=method, cutoff=8.0, prior=1e-3)
        for method in ("wls", "irls")
    )
    assert off(irls, truth) < 0.3 * off(wls, truth)


@pytest.mark.nightly  # test_instruments shows by day that its errors are within its deviations
def test_instruments_take_away_the_bias_of_noise_in_positions():
    truth, nominal = arm()
    _, (q, qd, qdd, force) = log_of(truth, friction, seed=9)
    missed = {"wls": [], "iv": []}
    for seed in range(4):
        log, _ = log_of(truth, friction, seconds=30.0, rate=200.0, seed=seed, noise=0.02)
        shown = log.q + np.random.default_rng(seed).normal(0, 4e-3, log.q.shape)
        noisy = ts.learn.Log(log.t, shown, log.tau)
        for method, found in missed.items():
            fit = ts.learn.fit(nominal, noisy, learn=TERMS, method=method, cutoff=8.0, prior=1e-3)
            found.append(fit.inverse_dynamics(q, qd, qdd) - force)
    bias = {m: torch.stack(found).mean(0).square().mean().sqrt() for m, found in missed.items()}
    print(bias, force.square().mean().sqrt())
    assert bias["iv"] < 0.3 * bias["wls"]


def test_what_only_the_nominal_robot_tells_apart_is_named():
    """Forces that show a part too much at all joints are those of a robot that much heavier."""
    truth, nominal = arm()
    log, _ = log_of(truth, friction, noise=0.02)
    plain, gains = (
        ts.learn.fit(nominal, log, learn=learn, method="wls", cutoff=8.0, prior=1e-3)
        for learn in (TERMS, [*TERMS, Gain()])
    )
    assert not any("told apart" in note for note in plain.found.notes)
    (line,) = (note for note in gains.found.notes if "told apart" in note)
    assert all(f"Gain of {name}" in line for name in nominal.joint_names)
    assert "Viscous" not in line and "Offset" not in line
    # Neither value nor deviation of these says anything; those of others do.
    place = gains.terms[0].index(Gain())
    assert all(x[place].isinf() and x.isfinite().sum() == 3 for x in gains.deviations)
    assert gains.deviation.isinf().any() and plain.deviation.isfinite().all()
    assert "+- inf" in str(gains)
