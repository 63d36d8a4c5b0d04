"""Deviations hold where errors are no noise but come back with the motion."""

import numpy as np
import torch

import torchsko as ts
from tests.learn.test_fit import TERMS, arm, friction
from torchsko.learn.lasting import period


def test_a_motion_repeats_itself_after_its_period_or_never():
    mech, _ = arm()
    t = torch.arange(3000, dtype=mech.dtype) / 100
    for length in (7.0, 10.0, 20.0):
        g = torch.Generator().manual_seed(1)
        q = ts.learn.exciting_trajectory(mech, period=length, generator=g)(t)[0]
        assert period(q) == 100 * length
    sweep = torch.stack([(0.2 * t + 0.05 * t * t).sin(), (0.3 * t + 0.03 * t * t).cos()], -1)
    assert period(sweep) == len(t)
    assert period(torch.zeros(50, 2)) == 50


def test_errors_that_come_back_with_the_motion_are_counted_once():
    """Of four periods of a motion each has the same errors: they tell as much as one."""
    truth, nominal = arm()
    z = []
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        motion = ts.learn.exciting_trajectory(truth, period=5.0, generator=generator)
        t = torch.arange(8000, dtype=truth.dtype) / 400
        q, qd, qdd = motion(t)
        noise = 0.2 * torch.from_numpy(np.random.default_rng(seed).normal(size=(2000, 3)))
        tau = ts.inverse_dynamics(truth, q, qd, qdd) + friction(q, qd) + noise.repeat(4, 1)
        log = ts.learn.Log(t.numpy(), q.numpy(), tau.numpy(), qd.numpy())
        fit = ts.learn.fit(nominal, log, learn=TERMS, method="wls", cutoff=8.0, prior=1e-3)
        true = fit.base.of(ts.inertial_parameters(truth).flatten())
        z.append((fit.value - true) / fit.deviation)
    size = torch.stack(z).square().mean().sqrt()
    assert 0.6 < size < 1.5
