"""Prediction errors on a log that a fit did not use, and the order of the report."""

import html
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.log_corrections import findings_of
from tests.identification.test_fit import TERMS, arm, friction, log_of
from torchsko.identification.diagnostics.findings import finding
from torchsko.identification.results.error_table import error_table
from torchsko.identification.results.html_report import write_report
from torchsko.identification.results.summary import report, unused_section
from torchsko.mechanism.description import UnsupportedElement

ORDER = ("verdict", "Prediction error on", "A finding.", "Condition number")


@pytest.fixture(scope="module")
def fitted():
    truth, nominal = arm()
    log, _ = log_of(truth, friction, seconds=10.0, noise=0.1)
    return (
        truth,
        ts.identification.identify(nominal, log, joint_terms=TERMS, cutoff=8.0, prior=1e-2),
        log,
    )


def test_the_score_on_the_fitted_log_is_the_error_of_its_residuals(fitted):
    _, fit, log = fitted
    scores = fit.test(log)
    assert_close(scores.errors["physical"], fit.residuals.variance.sqrt(), rtol=1e-9, atol=0)
    assert_close(scores.nrmse["physical"], scores.errors["physical"] / fit.residuals.spread)
    assert list(scores.errors) == list(fit.errors)


def test_scores_on_an_unseen_log_are_the_errors_of_predicted_forces(fitted):
    """Without noise, the filtered error equals that of `Fit.inverse_dynamics`, as motions are slow."""
    truth, fit, _ = fitted
    log, (q, qd, qdd, tau) = log_of(truth, friction, seconds=10.0, seed=5)
    scores = fit.test(log)
    predicted = (fit.inverse_dynamics(q, qd, qdd) - tau).square().mean(0).sqrt()
    assert_close(scores.errors["physical"], predicted, rtol=0.3, atol=0)
    assert (scores.nrmse["physical"] < 0.01).all() and (scores.nrmse["nominal"] > 0.05).all()
    assert (scores.errors["physical"] < scores.errors["least squares"]).all()


def test_a_saved_fit_has_the_same_scores(fitted, tmp_path):
    truth, fit, _ = fitted
    log, _ = log_of(truth, friction, seconds=5.0, seed=5)
    fit.save(tmp_path)
    again = ts.identification.Fit.load(tmp_path)
    for name, error in fit.test(log).errors.items():
        assert_close(again.test(log).errors[name], error)
    assert_close(again.least_squares, fit.least_squares)


def test_a_log_without_a_piece_as_long_as_the_filter_is_an_error(fitted):
    truth, fit, _ = fitted
    log, _ = log_of(truth, friction, seconds=0.1)
    with pytest.raises(ts.FitError, match="too short to test the fit"):
        fit.test(log)


def test_currents_need_the_torque_constants_of_the_fit(fitted):
    _, fit, log = fitted
    currents = ts.identification.Log(log.t, log.q, log.tau, log.qd, current=True)
    with pytest.raises(ts.FitError, match="the fit has no torque constants"):
        fit.test(currents)


def test_the_report_has_verdicts_then_findings_then_numbers_then_unused_elements(fitted, tmp_path):
    pytest.importorskip("matplotlib")
    _, fit, log = fitted
    scores = fit.test(log)
    unused = ts.load(ts.robots.panda).unused[:1]
    fit = replace(
        fit,
        nominal=fit.nominal.replace(unused=unused),
        findings=(finding("interrupted", "A finding."),),
    )
    write_report(fit, tmp_path / "report.html", scores)
    page = html.unescape((tmp_path / "report.html").read_text("utf-8"))
    for text in (report(fit, scores), page):
        places = [text.index(x) for x in (*ORDER, unused[0].reason)]
        assert places == sorted(places)


def test_a_dof_has_the_verdict_of_the_last_model():
    relative = {
        "nominal": torch.tensor([0.05, 0.05, 0.05]),
        "physical": torch.tensor([0.09, 0.2, 0.4]),
    }
    rows = error_table("abc", relative, relative)
    assert [line.split()[-1] for line in rows[1:4]] == ["good", "fair", "poor"]


def test_columns_are_named_for_what_they_are(fitted):
    """The nominal robot has fitted friction, and unweighted least squares looks terrible at small joints."""
    _, fit, log = fitted
    for text in (str(fit), str(fit.test(log))):
        head = next(line for line in text.splitlines() if line.endswith("  verdict"))
        assert head.split("  ")[-2].strip() == "fit (physical)"
        assert "nominal + friction" in head and "unweighted LS" in head
        assert "the nominal robot with fitted viscous and dry friction" in text


def test_elements_without_effect_of_one_kind_share_a_line(fitted):
    _, fit, _ = fitted
    unused = [
        UnsupportedElement(f"link 'l{k}' <visual>", "shapes have no dynamics") for k in range(20)
    ]
    unused += [
        UnsupportedElement("<transmission> 'a'", "no rotor"),
        UnsupportedElement("a limit", "not used"),
    ]
    lines = unused_section(replace(fit, nominal=fit.nominal.replace(unused=tuple(unused))))
    assert lines[2:] == [
        "<visual> (20 elements, such as link 'l0'): shapes have no dynamics",
        "<transmission> 'a': no rotor",
        "a limit: not used",
    ]


def test_the_join_of_two_logs_is_no_gap(fitted):
    _, fit, log = fitted
    mech = fit.nominal
    rows = np.delete(np.arange(len(log)), slice(1500, 1700))
    holed = ts.identification.Log(log.t[rows], log.q[rows], log.tau[rows], log.qd[rows])
    for logs, expected in (([log, log], []), ([log, holed], ["1 gap in time"])):
        joined = ts.identification.Log.concatenate(logs)
        found = findings_of(mech, joined, cutoff=8.0)
        gaps = [str(x) for x in found if x.code == "gaps"]
        assert len(gaps) == len(expected)
        assert all(x in y for x, y in zip(expected, gaps, strict=True))


def test_measured_points_of_friction_curves_have_the_velocities_of_the_log(fitted):
    _, fit, log = fitted
    rates, t = fit.residuals.rates, fit.residuals.t
    assert rates.shape == fit.residuals.error.shape
    for j in range(3):
        logged = torch.from_numpy(np.interp(t.numpy(), log.t, log.qd[:, j]))
        assert_close(rates[:, j], logged, rtol=0, atol=0.02 * float(logged.abs().max()))
