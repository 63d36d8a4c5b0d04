"""A learned residual force: it explains what laws do not, and does no harm elsewhere."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import torchsko as ts
from tests.identification.test_fit import TERMS, arm, friction, log_of


def odd(q, qd):
    """What no term of the library is: joints that pull at one another."""
    return friction(q, qd) + 2.0 * (0.5 * q.roll(1, -1)).tanh()


@pytest.fixture(scope="module")
def fits():
    truth, nominal = arm()
    log, _ = log_of(truth, odd, seconds=15.0, noise=0.02)
    torch.manual_seed(0)
    options = {"joint_terms": TERMS, "cutoff": 8.0, "prior": 1e-2, "folds": 2}
    network = ts.identification.Network(3, hidden=16)
    both = [
        ts.identification.identify(nominal, log, residual=more, **options)
        for more in (None, network)
    ]
    return truth, both, network


def missed(fit, data):
    q, qd, qdd, tau = data
    return (fit.inverse_dynamics(q, qd, qdd) - tau).square().mean().sqrt()


def test_a_network_explains_the_residual_and_fades_outside_of_the_data(fits):
    truth, (plain, more), _ = fits
    _, near = log_of(truth, odd, seed=0)
    assert missed(more, near) < 0.6 * missed(plain, near)
    assert (more.errors["with residual"] <= more.errors["physical"]).all()
    q, qd, qdd, tau = near
    far = (q, 6 * qd, 36 * qdd, tau)  # six times as fast
    same = plain.inverse_dynamics(*far[:3])
    assert_close(more.inverse_dynamics(*far[:3]).norm(), same.norm(), rtol=1e-3, atol=0)


def test_the_module_given_is_not_touched(fits):
    assert not any(x.any() for x in fits[2].layers[-1].parameters())


def test_a_fit_with_a_network_is_saved_and_read_without_code(fits, tmp_path):
    _, (_, fit), _ = fits
    fit.save(tmp_path)
    again = ts.identification.Fit.load(tmp_path)
    state = torch.randn(3, 5, 3, dtype=torch.float64)
    assert torch.equal(again.inverse_dynamics(*state), fit.inverse_dynamics(*state))


class Pull(nn.Module):
    """One number times a known function."""

    def __init__(self):
        super().__init__()
        self.size = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, q, qd, qdd):
        return self.size * (0.5 * q.roll(1, -1)).tanh()


class Nothing(nn.Module):
    """No force."""

    def forward(self, q, qd, qdd):
        return None


class Zero(nn.Module):
    """Force of zero."""

    def forward(self, q, qd, qdd):
        return 0 * q


class Stays(Pull):
    """The same, and dear."""

    def regularizer(self):
        return 1e6 * self.size.square().sum()


def test_a_zero_force_has_exactly_the_score_without_it():
    """The column "with residual" has the folds and the solutions of the column without."""
    truth, nominal = arm()
    log, _ = log_of(truth, odd, seconds=6.0, noise=0.3)
    fit = ts.identification.identify(
        nominal, log, residual=Zero(), joint_terms=TERMS, cutoff=8.0, prior=1.0
    )
    assert torch.equal(fit.errors["with residual"], fit.errors["physical"])
    assert torch.equal(fit.test(log).errors["with residual"], fit.test(log).errors["physical"])


def test_a_module_of_ones_own_is_trained_under_its_own_regulariser(tmp_path):
    truth, nominal = arm()
    log, _ = log_of(truth, odd, seconds=10.0, noise=0.02)
    options = {"joint_terms": TERMS, "cutoff": 8.0, "prior": 1.0, "folds": 2}
    fit, held = (
        ts.identification.identify(nominal, log, residual=module, **options)
        for module in (Pull(), Stays())
    )
    # Inertial numbers have taken most of the force before.
    assert fit.residual.module.size.abs().max() > 0.1
    assert (fit.errors["with residual"] <= fit.errors["physical"]).all()
    assert held.residual.module.size.abs().max() < 0.1 * fit.residual.module.size.abs().max()
    fit.save(tmp_path)
    with pytest.raises(ts.FitError, match="a module of an unknown class"):
        ts.identification.Fit.load(tmp_path)
    again = ts.identification.Fit.load(tmp_path, residual=Pull())
    state = torch.randn(3, 5, 3, dtype=torch.float64)
    assert torch.equal(again.inverse_dynamics(*state), fit.inverse_dynamics(*state))


def test_a_residual_that_gives_no_forces_is_refused():
    truth, nominal = arm()
    log, _ = log_of(truth, friction, seconds=4.0)
    options = {"joint_terms": TERMS, "cutoff": 8.0, "prior": 1.0}
    with pytest.raises(ts.FitError, match="the residual Network gives an error"):
        ts.identification.identify(nominal, log, residual=ts.identification.Network(2), **options)
    with pytest.raises(ts.FitError, match="the residual Nothing gives NoneType"):
        ts.identification.identify(nominal, log, residual=Nothing(), **options)
    with pytest.raises(
        ts.FitError, match=r"(?s)Linear gives an error.*called as module\(q, qd, qdd\)"
    ):
        ts.identification.identify(nominal, log, residual=torch.nn.Linear(3, 3), **options)


class Noisy(Pull):
    """A number, and a network that drops parts and scales by the batch while it trains."""

    def __init__(self):
        super().__init__()
        double = torch.float64
        self.net = nn.Sequential(
            nn.BatchNorm1d(9, dtype=double), nn.Dropout(0.3), nn.Linear(9, 3, dtype=double)
        )

    def forward(self, q, qd, qdd):
        return super().forward(q, qd, qdd) + self.net(torch.cat([q, qd, qdd], -1))


def test_dropout_and_batch_norm_are_in_evaluation_mode_in_a_fit(tmp_path):
    truth, nominal = arm()
    log, (q, qd, qdd, _) = log_of(truth, odd, seconds=5.0, noise=0.02)
    torch.manual_seed(0)
    module = Noisy()
    fit = ts.identification.identify(
        nominal, log, residual=module, joint_terms=TERMS, cutoff=8.0, prior=1.0, folds=2
    )
    told = fit.inverse_dynamics(q, qd, qdd)
    assert fit.residual.part.max() > 0
    assert module.training and module.net[0].num_batches_tracked == 0
    assert_close(fit.inverse_dynamics(q[:5], qd[:5], qdd[:5]), told[:5])
    fit.save(tmp_path)
    again = ts.identification.Fit.load(tmp_path, residual=Noisy())
    assert torch.equal(again.inverse_dynamics(q, qd, qdd), told)


def test_a_residual_in_float32_is_refused_with_advice():
    truth, nominal = arm()
    log, _ = log_of(truth, friction, seconds=4.0)
    with pytest.raises(ts.FitError, match=r"pass residual=module\.double\(\)"):
        ts.identification.identify(
            nominal, log, residual=Noisy().float(), joint_terms=TERMS, cutoff=8.0, prior=1.0
        )
