"""`python -m torchsko identify`: a log goes in, a folder comes out; stopped runs go on."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.learn.test_fit import arm, friction, log_of
from torchsko.__main__ import main
from torchsko.learn import choosing, command, fitting, selection
from torchsko.learn.estimators import ESTIMATORS


@pytest.fixture
def files(tmp_path):
    """A robot's file and a log of another like it."""
    truth, nominal = arm()
    robot = tmp_path / "robot.urdf"
    ts.save(nominal, robot)
    log, _ = log_of(truth, friction, noise=0.02)
    names = ["t", *(f"{x}_{j}" for x in ("q", "qd", "tau") for j in nominal.joint_names)]
    columns = np.column_stack([log.t, log.q, log.qd, log.tau])
    path = tmp_path / "log.csv"
    np.savetxt(path, columns, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
    return str(robot), str(path), tmp_path / "out"


def test_a_log_goes_in_and_a_robot_with_a_report_comes_out(files, capsys):
    pytest.importorskip("matplotlib")
    robot, log, out = files
    assert main(["identify", robot, log, "--out", str(out), "--cutoff", "8"]) == 0
    assert {x.name for x in out.iterdir()} == {"fit.pt", "robot.urdf", "report.txt", "report.html"}
    told = capsys.readouterr().out
    fit = ts.learn.Fit.load(out)
    assert str(fit) in told and (out / "report.txt").read_text() == f"{fit}\n"
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<img src='data:image/png;base64,") == 4
    again = ts.load(out / "robot.urdf")
    assert torch.equal(again.mass, fit.mechanism.mass)


def test_an_interrupt_keeps_the_best_so_far_and_a_stopped_run_goes_on(files, monkeypatch, capsys):
    robot, log, out = files
    arguments = ["identify", robot, log, "--out", str(out), "--cutoff", "8"]
    main(arguments)
    whole = ts.learn.Fit.load(out)
    choose, calls = selection.with_terms_chosen, []

    def stopped(*given):
        calls.append(given[-1])
        if len(calls) == 3:
            raise stop
        return choose(*given)

    monkeypatch.setattr(choosing, "with_terms_chosen", stopped)
    stop = MemoryError()  # killed
    with pytest.raises(MemoryError):
        main(arguments)
    assert (out / command.CHECKPOINT).is_file()
    reading = fitting.read
    monkeypatch.setattr(fitting, "read", lambda *given: pytest.fail("read again"))
    main(arguments)
    assert calls[:5] == [0, 1, 2, 2, 0]  # what was chosen is not chosen again
    again = ts.learn.Fit.load(out)
    assert torch.allclose(again.phi, whole.phi, rtol=1e-6) and again.terms == whole.terms
    assert not (out / command.CHECKPOINT).exists()

    monkeypatch.setattr(fitting, "read", reading)
    calls.clear()
    stop = KeyboardInterrupt()
    assert main(arguments) == 0
    best = ts.learn.Fit.load(out)
    assert any("interrupted" in note for note in best.found.notes)
    assert best.terms[0] == whole.terms[0] or len(best.terms[0]) > 0


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        (["--use", "1:0"], "is no part of a log"),
        (["--unit", "deg"], "says no unit"),
        (["--unit", "q=inch"], "the unit of q is 'inch'"),
        (["--method", "best"], "no method is named 'best'"),
        (["--cutoff", "1000"], "the cut-off is 1000 Hz"),
    ],
)
def test_errors_are_three_lines_and_exit_code_2(files, extra, match, capsys):
    robot, log, out = files
    assert main(["identify", robot, log, "--out", str(out), *extra]) == 2
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if line.strip() and "%|" not in line]
    assert match in lines[0] and len(lines) == 3, err


def test_methods_that_the_command_names_are_those_there_are():
    assert set(command.METHODS) == set(ESTIMATORS)
