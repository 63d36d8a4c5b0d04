"""`python -m torchsko identify`: a log goes in, a folder comes out."""

import argparse
import dataclasses
import importlib
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.test_coupled import GRIPPER
from tests.identification.test_fit import arm, friction, log_of
from tests.io.test_saving import commented
from torchsko.cli.held_out import held_out_part
from torchsko.cli.main import main
from torchsko.identification import fit as fitting
from torchsko.identification.diagnostics.findings import CODES
from torchsko.identification.estimators.estimators import ESTIMATORS
from torchsko.identification.friction import (
    Dahl,
    LuGre,
    Offset,
    RotorInertia,
    SmoothCoulomb,
    Viscous,
    term_classes,
)
from torchsko.identification.selection import model_selection
from torchsko.identification.term_syntax import parse_joint_terms
from torchsko.utils.atomic_write import temporary_prefix


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


def test_the_command_writes_a_robot_and_a_report(files, capsys):
    pytest.importorskip("matplotlib")
    robot, log, out = files
    assert main(["identify", robot, log, "--out", str(out), "--cutoff", "8"]) == 0
    assert {x.name for x in out.iterdir()} == {"fit.pt", "robot.urdf", "report.txt", "report.html"}
    told = capsys.readouterr().out
    fit = ts.identification.Fit.load(out)
    assert "in SI units" in told and "kg, kg m and kg m^2" in told
    assert str(fit) in told and (out / "report.txt").read_text() == f"{fit}\n"
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<img src='data:image/png;base64,") == 4
    again = ts.load(out / "robot.urdf")
    assert torch.equal(again.mass, fit.mechanism.mass)


@pytest.mark.parametrize(
    "more", [[], ["--test", "LOG"], ["--test", "LOG", "0.7:1"], ["--test", "0.7:1"]]
)
def test_the_rest_of_the_fitted_log_is_scored(files, more, capsys):
    """The whole log was scored, and called one that the fit did not use."""
    robot, log, out = files
    options = [
        "--cutoff",
        "8",
        "--method",
        "ols",
        "--use",
        "0:0.7",
        *(log if x == "LOG" else x for x in more),
    ]
    assert main(["identify", robot, log, "--out", str(out), *options]) == 0
    fit = ts.identification.Fit.load(out)
    rest = ts.identification.Log.load(log, fit.mechanism.joint_names).part(0.7, 1)
    scores = fit.test(dataclasses.replace(rest, name="the part 0.7:1 of log.csv"))
    assert str(scores) in capsys.readouterr().out
    assert str(scores) in (out / "report.txt").read_text()


def test_a_rest_that_is_too_short_to_be_tested_loses_no_fit(files, capsys):
    robot, log, out = files
    words = [
        "identify",
        robot,
        log,
        "--out",
        str(out),
        "--cutoff",
        "8",
        "--method",
        "ols",
        "--use",
        "0:0.99",
    ]
    assert main(words) == 0
    assert "The rest of the log was not tested" in capsys.readouterr().err
    assert main([*words, "--test", "0.99:1"]) == 2
    assert "too short to test the fit" in capsys.readouterr().err
    assert ts.identification.Fit.load(out).mechanism.num_dof == 3


PARTS = {
    "0:1": (
        None,
        {"log.csv": "uses all of it", "log.csv 0.5:1": "uses all of it", "new.csv": [(0, 1)]},
    ),
    "0:0.6": (
        [(0.6, 1)],
        {
            "log.csv": [(0.6, 1)],
            "./log.csv": [(0.6, 1)],
            "log.csv 0.8:1": [(0.8, 1)],
            "0.7:0.9": [(0.7, 0.9)],
            "log.csv 0.5:1": "overlap.*within 0.6:1",
            "new.csv": [(0, 1)],
            "new.csv 0:0.5": [(0, 0.5)],
            "log.csv new.csv": "beside other logs",
            "log.csv 1:0": "--test 1:0 is not a part",
        },
    ),
    "0.2:0.6": (
        [(0, 0.2), (0.6, 1)],
        {"log.csv": [(0, 0.2), (0.6, 1)], "log.csv 0:0.1": [(0, 0.1)]},
    ),
}
"""Parts that test a fit, by --use: without --test, and by its words; or the message of the error."""


@pytest.mark.parametrize("use", PARTS)
def test_a_test_never_has_data_that_the_fit_uses(use):
    default, cases = PARTS[use]

    def parts(words):
        found = held_out_part(argparse.Namespace(use=use, test=words, log=["log.csv"]))
        return None if found is None else [*found.parts]

    assert parts([]) == default
    for words, expected in cases.items():
        if isinstance(expected, str):
            with pytest.raises(ts.FitError, match=f"(?s){expected}"):
                parts(words.split())
        else:
            assert parts(words.split()) == expected


SDF = """<sdf version="1.10"><model name="arm"><link name="rod"><inertial><pose>0 0 0.3 0 0 0</pose>
<mass>{mass}</mass><inertia><ixx>0.1</ixx><iyy>0.1</iyy><izz>0.05</izz></inertia></inertial></link>
<joint name="hinge" type="revolute"><parent>world</parent><child>rod</child>
<axis><xyz>1 0 0</xyz></axis></joint></model></sdf>"""


def test_a_robot_of_sdf_is_written_as_a_new_file(tmp_path):
    truth = ts.load(SDF.format(mass=2.0))
    t = torch.arange(0, 6, 0.01, dtype=torch.float64)[:, None]
    moves = [(1.0, 2.0), (0.5, 5.0)]
    q = sum(a * torch.sin(w * t) for a, w in moves)
    qd = sum(a * w * torch.cos(w * t) for a, w in moves)
    qdd = sum(-a * w * w * torch.sin(w * t) for a, w in moves)
    noise = 0.01 * torch.randn(t.shape, generator=torch.Generator().manual_seed(0), dtype=t.dtype)
    np.savez(tmp_path / "log.npz", t=t[:, 0], q=q, qd=qd,
             tau=ts.inverse_dynamics(truth, q, qd, qdd) + noise)  # fmt: skip
    robot, out = tmp_path / "robot.sdf", tmp_path / "out"
    robot.write_text(SDF.format(mass=1.0))
    words = ["identify", str(robot), str(tmp_path / "log.npz"), "--out", str(out), "--cutoff", "20"]
    assert main(words) == 0
    found = ts.identification.Fit.load(out).mechanism
    assert torch.equal(ts.load(out / "robot.urdf").mass, found.mass)
    weight = ts.gravity_force(truth, q)
    assert (ts.gravity_force(found, q) - weight).abs().max() < 0.01 * weight.abs().max()


def test_an_interrupt_while_terms_are_selected_keeps_the_best_so_far(files, monkeypatch, capsys):
    robot, log, out = files
    select, calls = model_selection.select_terms, []

    def interrupted(*given, **options):
        calls.append(given[-1])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return select(*given, **options)

    monkeypatch.setattr(model_selection, "select_terms", interrupted)
    assert main(["identify", robot, log, "--out", str(out), "--cutoff", "8"]) == 0
    assert calls == [0, 1, 2]
    best = ts.identification.Fit.load(out)
    assert "interrupted" in {x.code for x in best.findings}
    assert "[interrupted]" in capsys.readouterr().out


def test_an_interrupt_while_torch_is_imported_prints_nothing(tmp_path):
    """It was a traceback of whatever module was being imported."""
    (tmp_path / "torch.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport math\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(ts.__file__).parents[1])])
    run = [sys.executable, "-m", "torchsko", "identify", "a.urdf", "a.csv", "--out", "b"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # jobs behind a shell ignore it
    done = subprocess.run(
        run, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=False,
        preexec_fn=heard,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    # Of a script that imports the package the interrupt is its own.
    script = "try:\n    import torchsko\nexcept KeyboardInterrupt:\n    print('mine')"
    done = subprocess.run(
        [sys.executable, "-c", script, "torchsko"], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=True, preexec_fn=heard,
    )  # fmt: skip
    assert done.stdout == b"mine\n"


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "place", ["torchsko.identification.results.html_report.write_report", "torch.save"]
)
def test_an_interrupt_while_files_are_written_leaves_no_incomplete_file(
    files, place, monkeypatch, capsys
):
    robot, log, out = files
    arguments = ["identify", robot, log, "--out", str(out), "--cutoff", "8", "--prior", "0.01"]
    room, name = place.rsplit(".", 1)
    module = importlib.import_module(room)
    true, started = getattr(module, name), []

    def stopped(value, file, *more):
        path = file if isinstance(file, Path) else Path(file.name)
        if name != "save" or "fit.pt" in path.name:
            started.append(path)
            path.write_text("half")
            raise KeyboardInterrupt
        return true(value, file, *more)

    monkeypatch.setattr(module, name, stopped)
    assert main(arguments) == 130
    complete = set() if name == "save" else {"fit.pt", "robot.urdf"}  # in their order
    assert started and {x.name for x in out.iterdir()} == complete
    monkeypatch.setattr(module, name, true)
    assert main(arguments) == 0
    assert {x.name for x in out.iterdir()} >= {"fit.pt", "robot.urdf", "report.txt"}
    ts.identification.Fit.load(out)


def test_a_fit_to_mjcf_is_written_apart_from_meshes_and_included_files(tmp_path):
    pytest.importorskip("mujoco")
    file = commented(tmp_path / "model")
    mech = ts.load(file)
    log, _ = log_of(mech, lambda q, qd: 0.1 * qd, seconds=8.0)
    fit = ts.identification.identify(mech, log, joint_terms=[Viscous()], prior=1e-2, cutoff=8.0)
    fit.save(tmp_path / "out", like=file)
    assert torch.equal(
        ts.identification.Fit.load(tmp_path / "out").mechanism.mass, fit.mechanism.mass
    )
    for part in ("shapes/rod.obj", "parts/defaults.xml"):
        assert (tmp_path / "out" / part).read_bytes() == (file.parent / part).read_bytes()


@pytest.mark.parametrize("where", ["robot.urdf", "robot.urdf/out"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_fit(
    files, where, capsys, monkeypatch
):
    robot, log, out = files
    monkeypatch.setattr(fitting, "identify", lambda *given, **options: pytest.fail("fitted"))
    assert main(["identify", robot, log, "--out", str(out.parent / where)]) == 2
    err = capsys.readouterr().err
    assert "cannot be written" in err and len(err.splitlines()) == 3, err


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        (["--use", "1:0"], "is not a part of a log"),
        (["--unit", "deg"], "is not a quantity and a unit"),
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


def test_the_help_names_all_methods_terms_and_codes(capsys):
    with pytest.raises(SystemExit):
        main(["identify", "--help"])
    text = capsys.readouterr().out
    for name in (*ESTIMATORS, *CODES, *(x for x in term_classes() if x != "Wall")):
        assert name in text, name


def test_a_finding_that_stops_the_fit_is_ignored_by_its_code(files, capsys):
    robot, log, out = files
    words = ["identify", robot, log, "--out", str(out), "--cutoff", "8", "--method", "ols"]
    wrong = [*words, "--unit", "tau=kNm"]
    assert main(wrong) == 2
    assert "--ignore force_scale" in capsys.readouterr().err
    assert main([*wrong, "--ignore", "force_scale"]) == 0
    assert main([*words, "--ignore", "forces"]) == 2
    assert "no finding is named 'forces'" in capsys.readouterr().err


KILLED = """
import os, sys
from torchsko.cli.main import main
replace, left = os.replace, [int(sys.argv[1])]
def put(*paths):
    left[0] -= 1
    return replace(*paths) if left[0] else os.kill(os.getpid(), 9)
os.replace = put
main(sys.argv[2:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9")
@pytest.mark.nightly
@pytest.mark.parametrize("writes", [1, 2])
def test_a_run_removes_the_temporary_files_of_killed_runs_only(files, writes):
    robot, log, out = files
    words = ["identify", robot, log, "--out", str(out), "--cutoff", "8", "--prior", "0.01"]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(writes), *words], check=False)
    assert killed.returncode == -9
    (left,) = (x for x in out.iterdir() if x.name.startswith(".torchsko-"))
    own = {
        out / ".notes",
        out / ".abcd1234",
        out / f"{temporary_prefix()}other.pt",
    }  # a living run's
    for path in own:
        path.write_text("kept")
    assert main(words) == 0
    assert not left.exists()
    assert {x for x in out.iterdir() if x.name.startswith(".")} == own


RIG = """<mujoco model="rig"><compiler meshdir="../../../../shapes"/>
<include file="../../../../parts/defaults.xml"/>
<asset><mesh name="rod" file="rod.obj"/></asset><worldbody><body name="rod">
<joint name="hinge" type="hinge" axis="1 0 0"/>
<inertial pos="0 0 0.3" mass="1" diaginertia="0.1 0.1 0.05"/><geom type="mesh" mesh="rod"/>
</body></worldbody></mujoco>"""


def test_a_robot_with_parts_in_trusted_folders_is_fitted_and_loaded_again(tmp_path, capsys):
    """As a refusal advises; the fit's file names in full what stays where it is."""
    pytest.importorskip("mujoco")
    truth = ts.load(SDF.format(mass=2.0))
    t = torch.arange(0, 6, 0.01, dtype=torch.float64)[:, None]
    q, qd, qdd = (
        torch.sin(2 * t) + 0.5 * torch.cos(5 * t),
        2 * torch.cos(2 * t),
        -4 * torch.sin(2 * t),
    )
    qd, qdd = qd - 2.5 * torch.sin(5 * t), qdd - 12.5 * torch.cos(5 * t)
    tau = ts.inverse_dynamics(truth, q, qd, qdd) + 0.01 * torch.cos(77 * t)
    np.savez(tmp_path / "log.npz", t=t[:, 0], q=q, qd=qd, tau=tau)
    for name in ("robots/a/b/c", "parts", "shapes"):  # four folders apart; three are permitted
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "parts" / "defaults.xml").write_text("<mujocoinclude><size/></mujocoinclude>")
    (tmp_path / "shapes" / "rod.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    )
    robot = tmp_path / "robots" / "a" / "b" / "c" / "rig.xml"
    out = tmp_path / "fits" / "a" / "b" / "c" / "one"
    robot.write_text(RIG)
    words = ["identify", str(robot), str(tmp_path / "log.npz"), "--out", str(out), "--cutoff", "20"]
    assert main(words) == 2
    assert "(--mesh-path)" in capsys.readouterr().err
    assert main([*words, "--mesh-path", str(tmp_path)]) == 0
    fit = ts.identification.Fit.load(out, mesh_path=[tmp_path])
    assert torch.equal(ts.load(out / "robot.xml", mesh_path=[tmp_path]).mass, fit.mechanism.mass)
    with pytest.raises(ts.RobotFileError, match="lies outside the folder"):
        ts.identification.Fit.load(out)


def test_a_xacro_robot_with_independent_mimic_joints_is_fitted(tmp_path):
    """Options of `info` and `view` are those of `identify`: no argument of xacro was known to it."""
    pytest.importorskip("xacro", reason='pip install ".[xacro]"')
    robot, out = tmp_path / "gripper.urdf.xacro", tmp_path / "out"
    macros = 'xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:arg name="kg" default="1"/>'
    text = GRIPPER.replace('"gripper">', f'"gripper" {macros}').replace('"3"', '"$(arg kg)"')
    robot.write_text(text)
    mech = ts.load(robot, xacro={"kg": "3"}, mimic="independent")
    log, _ = log_of(mech, friction)
    np.savez(tmp_path / "log.npz", t=log.t, q=log.q, qd=log.qd, tau=log.tau)
    words = [
        "identify",
        str(robot),
        str(tmp_path / "log.npz"),
        "--out",
        str(out),
        "--method",
        "ols",
    ]
    options = ["--cutoff", "8", "--xacro-arg", "kg:=3", "--independent"]
    assert main([*words, *options]) == 0
    assert ts.identification.Fit.load(out).mechanism.joint_names == mech.joint_names
    assert "xacro:arg" not in (out / "robot.urdf").read_text()
    assert ts.load(out / "robot.urdf").mass.tolist() == [3.0, 2.0, 1.0]  # "ols" leaves masses alone


def test_terms_are_named_on_the_command_line(tmp_path, capsys, monkeypatch):
    """Python took `learn=`; by the command nobody could have a rotor's inertia."""
    monkeypatch.setattr(
        "torchsko.identification.results.html_report.write_report", lambda *given: None
    )
    truth, nominal = arm()
    elbow = nominal.joint_names[1]
    log, (q, qd, qdd, tau) = log_of(
        truth, lambda q, qd: friction(q, qd) - 0.2, seconds=10.0, rate=200.0
    )
    tau = tau + torch.tensor([0.0, 0.3, 0.0]) * qdd
    np.savez(tmp_path / "log.npz", t=log.t, q=q, qd=qd, tau=tau)
    robot, out = tmp_path / "robot.urdf", tmp_path / "out"
    ts.save(nominal, robot)
    words = ["identify", str(robot), str(tmp_path / "log.npz"), "--out", str(out), "--cutoff", "8"]
    named = ["--terms", "Viscous, SmoothCoulomb(0.1)", "--terms"]
    more = f"{elbow}=Viscous,SmoothCoulomb(speed=0.1),RotorInertia"
    assert main([*words, *named, more, "--method", "ols"]) == 0
    fit = ts.identification.Fit.load(out)
    plain = (Viscous(), SmoothCoulomb(0.1))
    assert set(fit.terms[0]) == set(fit.terms[2]) == set(plain)
    (x,) = (x for t, x in zip(fit.terms[1], fit.numbers[1], strict=True) if t == RotorInertia())
    assert abs(float(x) - 0.3) < 0.01
    assert "RotorInertia 0.3" in capsys.readouterr().out
    for said, match in {
        "Friction": "no term is named 'Friction'",
        "shoulder=Viscous": "no joint is named 'shoulder'",
        "Dahl(0.1, 2)": "'2' is not a parameter of Dahl",
        "Dahl(width=1)": "'width=1' is not a parameter of Dahl",
        "Viscous Offset": "'Viscous Offset' is not a term",
        "": "'' is not a term",
        "Dahl(-1)": "distance of Dahl is -1.0",
    }.items():
        assert main([*words, "--terms", said]) == 2
        err = capsys.readouterr().err
        assert match in err and len(err.splitlines()) == 3, err
    assert main([*words, "--terms", "Viscous", "--terms", "Offset"]) == 2
    assert "repeats the terms of all joints" in capsys.readouterr().err


def test_terms_of_the_command_are_those_of_python():
    mech = arm()[1]
    first, second, _ = mech.joint_names
    assert parse_joint_terms(mech, []) is None
    assert parse_joint_terms(mech, [f"{first}=none"]) == {first: []}
    assert parse_joint_terms(mech, ["Dahl(0.02)", f"{second}=LuGre(0.01, ratio=2),Offset"]) == {
        **{name: [Dahl(0.02)] for name in mech.joint_names},
        second: [LuGre(0.01, ratio=2.0), Offset()],
    }
