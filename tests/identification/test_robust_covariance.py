"""Standard errors are calibrated for residuals that depend on the motion."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.test_fit import TERMS, arm, friction
from torchsko.identification.estimators.shooting.block_elimination import eliminate_chain
from torchsko.identification.estimators.shooting.cluster_covariance import (
    block_sum_products,
    cluster_std_factors,
)
from torchsko.identification.estimators.shooting.noise_variances import NoiseVariances
from torchsko.identification.estimators.shooting.sensitivities import LinearizedMotion
from torchsko.identification.regression.least_squares import parameter_uncertainty
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.solution import ModelStructure
from torchsko.identification.signals.autocorrelation import find_period
from torchsko.identification.uncertainty.residuals import integrated_autocorrelation
from torchsko.identification.uncertainty.robust_covariance import (
    tapered_sum_products,
)


def test_the_period_of_a_motion_is_found():
    mech, _ = arm()
    t = torch.arange(3000, dtype=mech.dtype) / 100
    for length in (7.0, 10.0, 20.0):
        g = torch.Generator().manual_seed(1)
        q = ts.identification.exciting_trajectory(mech, period=length, generator=g)(t)[0]
        assert find_period(q) == 100 * length
    sweep = torch.stack([(0.2 * t + 0.05 * t * t).sin(), (0.3 * t + 0.03 * t * t).cos()], -1)
    assert find_period(sweep) == len(t)
    assert find_period(torch.zeros(50, 2)) == 50


def test_tapered_blocks_let_errors_that_cancel_in_time_cancel():
    """The variance of sums grows with length for white noise, and does not for its second differences."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20_002, 1, generator=g, dtype=torch.float64)
    for series, grows in ((x, 1.0), (x[1:] + x[:-1], 4.0)):
        for over in (block_sum_products, tapered_sum_products):
            assert float(over(series, 50)) / len(x) == pytest.approx(grows, rel=0.1)
    bent = x[2:] - 2 * x[1:-1] + x[:-2]
    assert float(block_sum_products(bent, 50)) / len(x) > 0.05
    assert float(tapered_sum_products(bent, 50)) / len(x) < 1e-3


def sizes(error, seeds, positions=0.0, method="wls", after=5.0):
    """Root mean square error of base parameters in standard errors, over fits to several motions.

    With noise of positions, velocities are not logged. Motions of 20 s have the period `after` [s].
    """
    truth, nominal = arm()
    z = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        motion = ts.identification.exciting_trajectory(truth, period=after, generator=generator)
        t = torch.arange(8000, dtype=truth.dtype) / 400
        q, qd, qdd = motion(t)
        draw = np.random.default_rng(seed).normal
        noise = torch.from_numpy(draw(size=tuple(q.shape)))
        tau = ts.inverse_dynamics(truth, q, qd, qdd) + friction(q, qd) + error(q, noise)
        shown = q.numpy() + positions * draw(size=tuple(q.shape))
        log = ts.identification.Log(
            t.numpy(), shown, tau.numpy(), None if positions else qd.numpy()
        )
        fit = ts.identification.identify(nominal, log, joint_terms=TERMS, method=method, cutoff=8.0)
        true = fit.base.of(ts.inertial_parameters(truth).flatten())
        z.append((fit.value - true) / fit.deviation)
    return float(torch.stack(z).square().mean().sqrt())


@pytest.mark.nightly
def test_errors_that_repeat_with_the_motion_count_once():
    """Four periods with equal errors have the information of one."""
    assert 0.6 < sizes(lambda q, noise: 0.2 * noise[:2000].repeat(4, 1), 6) < 1.5


@pytest.mark.nightly
def test_cogging_torque_enlarges_standard_errors_of_least_squares():
    assert 0.6 < sizes(lambda q, noise: 0.1 * torch.sin(24 * q) + 0.1 * noise, 12) < 1.7


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "error",
    [
        lambda q, noise: 0.3 * noise[0] * torch.linspace(-0.5, 0.5, len(q)).to(q)[:, None],
        lambda q, noise: 0.1 * torch.sin(24 * q + 3 * noise[0]),
    ],
    ids=["drift", "teeth"],
)
def test_persistent_errors_count_beside_noise_that_cancels(error):
    """Noise of accelerations cancels in time, and smaller persistent errors beside it must not."""
    assert sizes(error, 3, positions=1e-4) < 1.7


@pytest.mark.nightly
def test_errors_longer_than_the_filter_enlarge_standard_errors_of_instruments():
    """For motions without a period, a drift caused errors of 4.4 standard errors, a random walk 2.4.

    Errors of all parameters of one motion are correlated, so that each motion is about one sample.
    """

    def drift(q, noise):
        return 0.3 * noise[0] * torch.linspace(-0.5, 0.5, len(q)).to(q)[:, None]

    def wandering(q, noise):
        return 0.003 * noise.cumsum(0)

    for error in (drift, wandering):
        assert 0.5 < sizes(error, 8, positions=1e-4, method="iv", after=20.0) < 1.6
    assert 0.7 < sizes(lambda q, n: 0.2 * n, 8, positions=1e-4, method="iv", after=20.0) < 1.4


def test_repeated_samples_do_not_change_standard_errors():
    """Residuals of samples repeated k times have the integrated autocorrelation k."""
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(5000, 1, generator=g, dtype=torch.float64).repeat_interleave(4, 0)
    assert float(integrated_autocorrelation(noise)) == pytest.approx(4.0, rel=0.1)
    columns = torch.randn(2, 50, 5, generator=g, dtype=torch.float64)
    scale, variance = columns.new_tensor([[2.0, 0.5], [0.3, 0.1]])
    model = ModelStructure(((0,), ()), scale, 0.0)

    def uncertainty(repeats):
        X = columns.repeat_interleave(repeats, 1)
        normal = NormalEquations((X.mT @ X)[None], scale.new_full((1, 2), X.shape[1]), 3)
        factor = torch.full_like(variance, repeats)
        return parameter_uncertainty(normal, model, model.choice, variance, factor)

    once, often = uncertainty(1), uncertainty(4)
    torch.testing.assert_close(often.covariance, once.covariance, rtol=1e-10, atol=0)
    torch.testing.assert_close(often.term_std, once.term_std, rtol=1e-10, atol=0)


def test_white_noise_does_not_enlarge_standard_errors():
    assert 0.6 < sizes(lambda q, noise: 0.2 * noise, 6) < 1.2


@pytest.mark.parametrize("white, common", [(1.0, 0.0), (1.0, 1.0), (0.3, 2.0)])
def test_errors_common_to_a_window_enlarge_standard_errors_by_the_design_effect(white, common):
    """N samples with variances a^2, and b^2 in common, have the design effect (a^2 + N b^2) / (a^2 + b^2)."""
    g, N, count = torch.Generator().manual_seed(0), 10, 4000
    draw = {"generator": g, "dtype": torch.float64}
    z = torch.randn(1, count, 1, **draw).expand(-1, -1, N)
    error = white * torch.randn(1, count, N, **draw) + common * torch.randn(1, count, 1, **draw)
    start = torch.ones(N).double() - 2.0 * (
        torch.arange(N) % 2
    )  # a state without information on the mean
    seen = torch.stack([start.expand_as(z), z, error], -1)
    nothing = seen.new_zeros(1, count - 1, 1, 3)
    variance = seen.new_tensor([white**2 + common**2])
    noise = NoiseVariances(variance.expand(1), variance.new_ones(0))
    real = torch.ones(1, count, dtype=torch.bool)
    windows = SimpleNamespace(seen=error[..., None], real=real)
    X = seen / variance.sqrt()
    total = X.mT @ X
    chain = eliminate_chain(
        total[..., :1, :1], nothing[..., :1], total[..., :1, 1:], total[..., 1:, 1:].sum(1)
    )
    near = LinearizedMotion(seen, nothing, nothing[..., :1])
    grown = cluster_std_factors(chain, near, windows, noise, torch.tensor([0]))
    expected = ((white**2 + N * common**2) / (white**2 + common**2)) ** 0.5
    assert grown == pytest.approx(expected, rel=0.05)
