"""The benchmark suite runs where no peer is installed, and lets no wrong contestant be timed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchsko as ts

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("pinocchio", "mujoco", "adam", "frax", "jax", "bard"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    yield
    for name in list(sys.modules):
        if name.split(".")[0] in (
            "cases",
            "first_light",
            "kinematics",
            "parts",
            "peers",
            "report",
            "timing",
        ):
            monkeypatch.delitem(sys.modules, name)


def test_canonical_urdf_is_the_same_robot(suite):
    import cases

    for robot in (cases.panda(), cases.robot("humanoid", cases.humanoid(), floating_base=True)):
        again = ts.load(cases.canonical_urdf(robot.mech), floating_base=robot.floating_base)
        for name in ("mass", "com", "inertia", "joint_rotation", "joint_position", "axis"):
            torch.testing.assert_close(getattr(again, name), getattr(robot.mech, name))
        assert again.joint_names == robot.mech.joint_names


@pytest.mark.parametrize("world", [False, True])
def test_conventions_map_answers_there_and_back(suite, world):
    import cases
    from peers.conventions import Convention

    robot = cases.robot("humanoid", cases.humanoid(), floating_base=True)
    case = cases.Case.random(robot, torch.float64, 3, 1)
    convention = Convention(case, world=world)
    (qdd,) = convention.forward(convention.accel)
    torch.testing.assert_close(qdd, case.qdd)
    # Power is a number that no convention changes.
    theirs = (convention.force * convention.velocity).sum(-1)
    torch.testing.assert_close(theirs, (case.tau * case.qd).sum(-1))


def test_a_wrong_contestant_is_named_and_not_timed(suite):
    import cases
    from parts.peers import Outcome, _is_right

    case = cases.Case.random(cases.panda(), torch.float64, 4, 1)
    right = case.answers["inverse"][0]
    for factor, verdict in ((1.0, True), (1.001, False)):
        entry = cases.Entry("x", "inverse", lambda: None, lambda _, f=factor: (f * right,))
        outcome = Outcome(case)
        assert _is_right(outcome, entry) is verdict
        assert any("not timed" in remark for remark in outcome.remarks) is not verdict


@pytest.mark.parametrize(
    ("arguments", "robots"), [([], ["panda", "talos"]), (["talos"], ["talos"])]
)
def test_matrices_are_timed_of_the_robots_asked_for_or_of_all(
    suite, monkeypatch, arguments, robots
):
    import kinematics

    measured = []
    monkeypatch.setattr(kinematics, "measure", lambda robot, batch, args: measured.append(robot))
    monkeypatch.setattr(sys, "argv", ["kinematics.py", *arguments])
    kinematics.main()
    assert measured == robots


def test_missing_peers_are_lines_of_the_report(suite):
    from cases import Case, MissingPeerError, panda
    from peers import MODULES, peer

    case = Case.random(panda(), torch.float64, 2, 1)
    for name in MODULES:
        module = peer(name)
        if not name.startswith("torchsko"):
            with pytest.raises(MissingPeerError):
                module.enter(case)
        else:
            assert module.NAME.startswith("torchsko")


def test_interleaved_passes_time_everybody_equally_often(suite):
    from timing import interleaved, ratio

    calls = {name: lambda: None for name in "abc"}
    seconds = interleaved(calls, passes=4, slot=1e-4)
    assert {name: len(found) for name, found in seconds.items()} == {"a": 4, "b": 4, "c": 4}
    found = ratio([2.0, 3.0, 8.0], [1.0, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (3.0, 2.0, 4.0)


def test_command_writes_a_report(tmp_path):
    output = tmp_path / "report.md"
    command = [sys.executable, str(FOLDER / "run.py"), "--quick", "--only", "counts", "--output"]
    subprocess.run([*command, str(output)], check=True, capture_output=True)
    text = output.read_text()
    assert "| 0 | operations, panda, forward | at most 1,900 |" in text
    assert "not measured" not in text


def test_a_failed_or_slow_step_on_a_card_is_recorded_and_the_next_step_runs(suite, tmp_path):
    import first_light

    out = tmp_path / "results.txt"
    slow = "import time; print('early', flush=True); time.sleep(60)"
    programs = {"broken": "1 / 0", "slow": slow, "right": "print('fine')"}
    for step, program in programs.items():
        first_light.run_step(step, [sys.executable, "-c", program], 2.0, out)
    first_light.run_step("tests", first_light.command("tests", [], True), 1.0, out)
    parts = dict(part.split("\n", 1) for part in out.read_text().split("\n## ")[1:])
    assert "ZeroDivisionError" in parts["broken"] and "failed, exit code 1" in parts["broken"]
    assert "early" in parts["slow"] and "stopped at its time limit of 2 s" in parts["slow"]
    assert "fine" in parts["right"] and "right: done" in parts["right"]
    assert "tests: skipped on a CPU" in parts["tests"]


@pytest.mark.nightly
def test_every_step_on_a_card_rehearses_on_the_cpu(tmp_path):
    out = tmp_path / "results.txt"
    command = [sys.executable, str(FOLDER / "first_light.py"), "--cpu", "--robots", "panda"]
    subprocess.run([*command, "--minutes", "20", "--out", str(out)], check=True)
    text = out.read_text()
    assert text.count(": done (") == 9 and "tests: skipped on a CPU" in text
    assert "WRONG" not in text and "FAILED" not in text
    assert "equal to the main thread's result: True" in text
    for kernel in ("forward_dynamics with VJP", "rollout", "VJP of the rollout"):
        sizes = re.findall(rf"panda, torch.float\d\d, {kernel}: (\d+),", text)
        assert len(sizes) == 2 and min(map(int, sizes)) > 1


@pytest.mark.nightly
def test_the_energy_script_prints_every_integrator_and_mujoco_s_equal_to_ours():
    pytest.importorskip("pinocchio")
    pytest.importorskip("mujoco")
    done = subprocess.run(
        [sys.executable, str(FOLDER / "energy.py"), "--robots", "double pendulum", "--scale", "0.05"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {line[2:28].strip(): line[28:] for line in done.stdout.splitlines() if line[0] == " "}
    assert rows["semi_implicit_euler"] == rows["MuJoCo's Euler"]
    assert len(rows) == 6


def results_table() -> list[tuple[str, str, str]]:
    page = (FOLDER / "results" / "README.md").read_text()
    return re.findall(r"^\| \[(.+)\]\((.+)\) \| `(.+?)` \|", page, re.MULTILINE)


def test_every_file_of_results_is_listed_with_the_script_that_wrote_it():
    table = results_table()
    files = {path.name for path in (FOLDER / "results").iterdir()}
    assert {path for _, path, _ in table} == files - {"README.md"}
    for name, path, script in table:
        assert name == path and (FOLDER.parent / script).is_file(), path


def test_every_script_of_results_prints_its_call_and_machine():
    for script in {script for _, _, script in results_table() if script.startswith("benchmarks/")}:
        source = (FOLDER.parent / script).read_text()
        assert "print(origin(" in source or "machine()" in source, script


def test_the_table_of_ratios_in_the_readme_is_made_from_the_table_of_times(suite):
    from report import ratio_table

    page = (FOLDER.parent / "docs" / "performance.md").read_text().splitlines()
    readme = (FOLDER.parent / "README.md").read_text()
    rows = ratio_table(page)
    assert len(rows) == 7
    assert all(row in readme for row in rows[2:]), rows
