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
        if name.split(".")[0] in ("cases", "kinematics", "parts", "peers", "report", "timing"):
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


def gpu_script(*words):
    command = [sys.executable, str(FOLDER / "gpu.py"), "panda", "--dtypes", "float32", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU, on which it takes long")
def test_gpu_script_without_a_gpu_compiles_every_kernel():
    first, *rows = gpu_script().splitlines()
    assert first.startswith("No CUDA device: nothing is timed.")
    sizes = {row.split("|")[3].strip(): float(row.split("|")[5]) for row in rows[2:]}
    assert {"forward_dynamics with VJP", "rollout", "rollout's VJP"} <= set(sizes)
    assert all(size > 1 for size in sizes.values())


@pytest.mark.nightly
def test_gpu_script_rehearses_on_the_cpu():
    text = gpu_script("--rehearse")
    for part in ("float32, batch 256", "100 steps", "A step of training", "beside others"):
        assert part in text
    assert "| forward and VJP |" in text


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
