"""The default call recovers known robots, keeps to the limits of joints, and states calibrated errors."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchsko as ts
from tests.identification.test_fit import arm, friction, log_of
from torchsko.identification.friction import (
    Coulomb,
    Dahl,
    LuGre,
    Offset,
    Periodic,
    RotorInertia,
    SmoothCoulomb,
    Spring,
    TermInput,
    Viscous,
)
from torchsko.identification.friction.candidates import CANDIDATE_TERMS, DEFAULT_TERMS
from torchsko.identification.term_syntax import parse_candidates

POSITION_TERMS = (Spring(), Periodic(1.0, 0.0), Periodic(1.0, 0.25))


def random_log(mech, force, seed, seconds=20.0, rate=100, noise=0.1):
    """A log of an exciting motion with known joint forces `force(q, qd, qdd)` and white noise."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(int(seconds * rate), dtype=mech.dtype) / rate
    q, qd, qdd = ts.identification.exciting_trajectory(mech, generator=g)(t)
    tau = force(q, qd, qdd) + noise * torch.randn(q.shape, generator=g, dtype=q.dtype)
    return ts.identification.Log(t.numpy(), q.numpy(), tau.numpy(), qd.numpy()), (q, qd, qdd, tau)


def relative_errors(fit, states, *, series=False):
    q, qd, qdd, tau = states
    error = fit.inverse_dynamics(q, qd, qdd, series=series) - tau
    return error.square().mean(0).sqrt() / tau.std(0)


def with_friction(mech, seed_force=0.5):
    bare = mech.replace(damping=0 * mech.damping, friction=0 * mech.friction)
    return lambda q, qd, qdd: (
        ts.inverse_dynamics(bare, q, qd, qdd) + 0.4 * qd + seed_force * (qd / 0.05).tanh()
    )


def test_rotor_inertias_that_the_nominal_robot_lacks_are_found():
    """Without the term, springs and periodic forces were invented, with a relative error of 0.168."""
    nominal = ts.load(ts.robots.panda)
    rotors = nominal.armature.new_tensor([0.6, 0.6, 0.5, 0.5, 0.2, 0.2, 0.1])
    force = with_friction(nominal.replace(armature=rotors), 0.6)
    log, _ = random_log(nominal, force, 0)
    fit = ts.identification.identify(nominal, log)
    _, states = random_log(nominal, force, 1)
    assert relative_errors(fit, states).mean() < 0.05
    assert {type(x) for some in fit.terms for x in some} <= {type(x) for x in DEFAULT_TERMS} | {
        Coulomb
    }
    torch.testing.assert_close(fit.mechanism.armature, rotors, rtol=0, atol=0.02)
    for terms, number, deviation in zip(fit.terms, fit.numbers, fit.deviations, strict=True):
        friction = torch.tensor([x == Viscous() or bool(x.friction) for x in terms])
        assert (number > deviation)[friction].all()


def test_joints_without_rotors_and_offsets_have_no_such_terms():
    truth, nominal = arm()
    log, _ = random_log(truth, with_friction(truth), 3, seconds=15.0, rate=200, noise=0.02)
    fit = ts.identification.identify(nominal, log)
    kinds = [type(x) for some in fit.terms for x in some]
    assert kinds.count(Viscous) == kinds.count(SmoothCoulomb) == 3
    assert kinds.count(RotorInertia) + kinds.count(Offset) <= 1


@pytest.mark.parametrize("candidates", [CANDIDATE_TERMS, (*CANDIDATE_TERMS, *POSITION_TERMS)])
def test_no_selected_force_exceeds_the_effort_limit_or_its_standard_error(candidates):
    truth, nominal = arm()
    limit = torch.full_like(nominal.effort_limit, 60.0)
    log, _ = random_log(truth, with_friction(truth), 8, seconds=6.0, rate=200, noise=0.5)
    nominal = nominal.replace(effort_limit=limit)
    fit = ts.identification.identify(nominal, log, candidate_terms=candidates)
    q, qd = torch.as_tensor(log.q), torch.as_tensor(log.qd)
    motion = TermInput(q, qd, 0 * qd, 0 * qd, ordered=False)
    for j, (terms, numbers, stds) in enumerate(
        zip(fit.terms, fit.numbers, fit.deviations, strict=True)
    ):
        assert (numbers.abs() > stds).all()
        forces = [x * term.basis(motion)[:, j] for term, x in zip(terms, numbers, strict=True)]
        assert all(force.abs().max() < 60.0 for force in forces)


def test_friction_with_memory_has_two_models_each_fitted_for_its_use():
    """The steady state of a fitted Dahl model was 1.08 times as wrong as least squares on a real arm."""
    truth, nominal = arm()

    def force(q, qd, qdd):
        motion = TermInput(q, qd, qdd, qd)
        return ts.inverse_dynamics(truth, q, qd, qdd) + 0.8 * Dahl(0.03).basis(motion) + 0.1 * qd

    log, _ = random_log(truth, force, 0, seconds=15.0, rate=200, noise=0.02)
    fit = ts.identification.identify(nominal, log)
    assert fit.memory is not None
    assert any(isinstance(x, Dahl) for some in fit.memory.terms for x in some)
    assert not any(x.memory for some in fit.terms for x in some)
    _, states = random_log(truth, force, 1, seconds=15.0, rate=200, noise=0.02)
    plain, series = (relative_errors(fit, states, series=x) for x in (False, True))
    assert (series < 0.7 * plain).all()
    # It predicts single states better than the steady state of the model with memory.
    steady = ts.identification.identify(
        nominal, log, joint_terms=[Viscous(), Dahl(0.03), Offset()], method="wls"
    )
    assert steady.memory is not None
    wrong = replace(
        fit, phi=steady.memory.phi, terms=steady.memory.terms, numbers=steady.memory.numbers
    )
    assert plain.mean() < relative_errors(wrong, states).mean()
    assert set(fit.errors) == {"nominal", "least squares", "physical", "with memory"}
    assert (fit.errors["with memory"] < fit.errors["physical"]).all()
    assert "series=True" in str(fit)


def test_given_terms_with_memory_have_a_memoryless_model_as_well():
    truth, nominal = arm()
    log, _ = log_of(truth, friction, noise=0.02, rate=200.0)
    names = nominal.joint_names
    terms = {names[0]: [Viscous(), Dahl(0.01)], names[1]: [LuGre(0.01, speed=0.2, ratio=1.2)]}
    fit = ts.identification.identify(nominal, log, joint_terms=terms, method="wls")
    assert fit.terms[0] == (Viscous(), Coulomb())
    assert fit.terms[1] == (LuGre(0.01, speed=0.2, ratio=1.2).memoryless,)
    assert fit.memory is not None and fit.memory.terms[0] == (Viscous(), Dahl(0.01))
    assert fit.memory.terms[2] == fit.terms[2]


def panda(share):
    """A robot whose masses differ from those of a Panda by up to this share, and the Panda."""
    nominal, g = ts.load(ts.robots.panda), torch.Generator().manual_seed(1)
    factor = 1 + share * (2 * torch.rand(nominal.mass.shape, generator=g, dtype=nominal.dtype) - 1)
    shift = share / 15 * torch.randn(nominal.com.shape, generator=g, dtype=nominal.dtype)
    inertia = factor[:, None, None] * nominal.inertia
    changes = {"mass": factor * nominal.mass, "com": nominal.com + shift, "inertia": inertia}
    return nominal.replace(**changes), nominal


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("robots", "logs", "settings"),
    [
        (arm, 30, (10.0, 200, 0.05)),
        (lambda: panda(0.0), 3, (20.0, 100, 0.1)),
        (lambda: panda(0.3), 3, (20.0, 100, 0.1)),
    ],
    ids=["arm", "exact nominal Panda", "wrong nominal Panda"],
)
def test_standard_errors_of_base_parameters_are_calibrated(robots, logs, settings):
    scores = []
    for seed in range(logs):
        truth, nominal = robots()
        log, _ = random_log(truth, with_friction(truth), seed, *settings)
        fit = ts.identification.identify(nominal, log)
        true = fit.base.of(ts.inertial_parameters(truth).flatten())
        scores.append((fit.value - true) / fit.deviation)
    assert 0.7 < torch.cat(scores).square().mean().sqrt() < 1.2


@pytest.mark.nightly
def test_a_humanoid_with_joint_friction_is_recovered():
    nominal = ts.load(ts.robots.humanoid)
    truth = nominal.replace(mass=1.1 * nominal.mass)
    log, _ = random_log(nominal, with_friction(truth), 0, seconds=20.0, rate=200, noise=0.05)
    fit = ts.identification.identify(nominal, log)
    for terms, numbers in zip(fit.terms, fit.numbers, strict=True):
        assert numbers.isfinite().all()
        found = dict(zip(terms, numbers.tolist(), strict=True))
        assert found[Viscous()] == pytest.approx(0.4, abs=0.02)
        assert found[SmoothCoulomb(0.05)] == pytest.approx(0.5, abs=0.01)
    assert fit.phi.isfinite().all() and fit.value.isfinite().all()


@pytest.mark.nightly
@pytest.mark.skipif("TORCHSKO_PANDA_LOG" not in os.environ, reason="has no log of a real robot")
def test_the_default_fit_of_a_real_arm_beats_least_squares_on_unseen_data():
    """TORCHSKO_PANDA_LOG is the path of an NPZ file of a Panda with t, q, qd and tau."""
    script = Path(__file__).parents[2] / "benchmarks" / "unseen_data.py"
    command = [sys.executable, str(script), os.environ["TORCHSKO_PANDA_LOG"]]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first = text.split("Fit.test")[0]
    ratios = {
        row.split("|")[1].strip(): float(row.split("|")[-2])
        for row in first.splitlines()
        if row.startswith("| ") and row.count("|") > 5 and "joint1" not in row
    }
    assert ratios["memoryless"] < 0.95
    assert ratios["with memory"] < 0.75


def test_candidates_on_the_command_line_add_to_the_default_ones_or_replace_them():
    added = parse_candidates(["+RotorInertia,Spring", "+LuGre(0.01)"])
    assert added == (*CANDIDATE_TERMS, Spring(), LuGre(0.01))
    assert parse_candidates(["Viscous,Coulomb"]) == (Viscous(), Coulomb())
    assert parse_candidates([]) == CANDIDATE_TERMS
    with pytest.raises(ts.FitError, match="--candidates"):
        parse_candidates(["+Spring()x"])
