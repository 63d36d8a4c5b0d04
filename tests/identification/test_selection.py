"""Selected terms are significant, also for short logs and terms of the user."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.finding_codes import texts
from tests.identification.test_fit import arm, friction, log_of
from tests.identification.test_measurement_bias import arm as few_turns
from torchsko.identification.friction import Offset, RotorInertia, SmoothCoulomb, Term, Viscous
from torchsko.identification.friction.candidates import CANDIDATE_TERMS


def short_log(seed, samples):
    truth, nominal = arm()
    motion = ts.identification.exciting_trajectory(
        truth, generator=torch.Generator().manual_seed(seed)
    )
    t = torch.arange(samples, dtype=truth.dtype) / 500
    q, qd, qdd = motion(t + 1.0)
    noise = 0.02 * np.random.default_rng(seed).normal(size=q.shape)
    tau = (ts.inverse_dynamics(truth, q, qd, qdd) + friction(q, qd)).numpy() + noise
    return truth, nominal, ts.identification.Log(t.numpy(), q.numpy(), tau, qd.numpy())


@pytest.mark.parametrize("seed", [3, 6, 7])
def test_one_second_selects_no_term_beyond_friction_and_rotors(seed):
    """An offset and a periodic force of 70 N m canceled, which predicts the rest of a second alone."""
    _, nominal, log = short_log(seed, 500)
    fit = ts.identification.identify(nominal, log)
    for terms, numbers in zip(fit.terms, fit.numbers, strict=True):
        assert all(term.friction or isinstance(term, (Viscous, RotorInertia)) for term in terms)
        assert (numbers > 0).all()


def test_a_short_log_predicts_other_motions_better_than_the_nominal_robot():
    truth, nominal, log = short_log(7, 2500)
    fit = ts.identification.identify(nominal, log)
    for number, deviation in zip(fit.numbers, fit.deviations, strict=True):
        assert (number.abs() > deviation).all()
    _, (q, qd, qdd, tau) = log_of(truth, friction, seed=77)
    mine = (fit.inverse_dynamics(q, qd, qdd) - tau).square().mean(0)
    theirs = (ts.inverse_dynamics(nominal, q, qd, qdd) - tau).square().mean(0)
    assert (mine < 0.5 * theirs).all()


@dataclass(frozen=True)
class Wall(Term):
    """A cable that is tight beyond a position."""

    report_note: ClassVar[str] = "a cable pulls"
    at: float = 0.3

    def basis(self, motion):
        return (motion.q - self.at).clamp_min(0)


def test_a_term_of_the_user_is_selected_where_its_force_acts():
    truth, nominal = arm()
    only = torch.tensor([0.0, 1.0, 0.0], dtype=truth.dtype)
    pull = lambda q: 2.0 * only * (q - 0.3).clamp_min(0)  # noqa: E731
    log, _ = log_of(truth, lambda q, qd: friction(q, qd) + pull(q), noise=0.02, rate=200.0)
    fit = ts.identification.identify(
        nominal, log, candidate_terms=[*CANDIDATE_TERMS, Wall()], cutoff=8.0
    )
    assert [Wall() in some for some in fit.terms] == [False, True, False]
    number = fit.numbers[1][fit.terms[1].index(Wall())]
    assert abs(number - 2.0) < 0.1
    assert texts(fit, "term_remark") == [f"{nominal.joint_names[1]}: a cable pulls."]


def test_only_candidate_terms_are_selected():
    truth, nominal = arm()
    log, _ = log_of(truth, friction, noise=0.02, rate=200.0)
    few = [Viscous(), SmoothCoulomb(0.1)]
    fit = ts.identification.identify(nominal, log, candidate_terms=few, cutoff=8.0)
    assert all(set(some) <= set(few) for some in fit.terms)
    with pytest.raises(ts.FitError, match="with parentheses"):
        ts.identification.identify(nominal, log, candidate_terms=[Offset])  # pyright: ignore[reportArgumentType]


def test_an_insignificant_offset_stays_and_enlarges_standard_errors_of_masses():
    """Without the offset, masses were six standard errors off (18 for a Panda)."""
    truth = few_turns()
    t = torch.arange(8000, dtype=torch.float64) / 200
    w = torch.tensor([[1.3, 1.9, 1.1], [3.1, 4.3, 3.7]]).to(t)
    size = torch.tensor([[0.5, 0.4, 0.1], [0.1, 0.1, 0.03]]).to(t)
    turn = w * t[:, None, None]
    q, qd, qdd = ((size * x).sum(1) for x in (turn.sin(), w * turn.cos(), -w * w * turn.sin()))
    q = q + torch.tensor([0.6, 0.2, 0.0]).to(q)
    tau = ts.inverse_dynamics(truth, q, qd, qdd) + 0.3 * qd + 0.3
    noise = 3.0 * np.random.default_rng(0).normal(size=q.shape)
    log = ts.identification.Log(t.numpy(), q.numpy(), tau.numpy() + noise)
    fit = ts.identification.identify(truth.replace(mass=1.1 * truth.mass), log, method="wls")
    true = fit.base.of(ts.inertial_parameters(truth).flatten())
    assert ((fit.value - true) / fit.deviation).abs().max() < 3
    assert all(Offset() in some for some in fit.terms)
