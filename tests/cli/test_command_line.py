"""`python -m torchsko info`: what a robot file holds, and errors without tracebacks."""

import os
import subprocess
import sys
import warnings

import pytest

import torchsko as ts
from torchsko.cli.main import COMMANDS, main

FAULTY = """
<robot name="faulty">
  <link name="base"/>
  <link name="arm"><inertial><mass value="2"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0"
    iyz="0"/></inertial></link>
  <link name="tool"><inertial><mass value="1"/></inertial></link>
  <link name="finger"><inertial><mass value="0.5"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0"
    iyz="0"/></inertial><visual/></link>
  <joint name="hinge" type="revolute"><parent link="base"/><child link="arm"/><axis xyz="0 0 1"/>
    <limit lower="-1" upper="2" velocity="3" effort="40"/></joint>
  <joint name="weld" type="fixed"><parent link="arm"/><child link="tool"/></joint>
  <joint name="grip" type="prismatic"><parent link="arm"/><child link="finger"/><axis xyz="1 0 0"/>
    <limit lower="-1" upper="2" velocity="3" effort="40"/>
    <mimic joint="hinge" multiplier="0.5" offset="0.1"/></joint>
</robot>
"""


def test_the_command_lists_the_parts_of_the_mechanism(tmp_path, capsys):
    file = tmp_path / "faulty.urdf"
    file.write_text(FAULTY)
    with pytest.warns(ts.RobotFileWarning):
        mech = ts.load(file)
    assert main(["info", str(file)]) == 0
    out, err = capsys.readouterr()
    assert not err
    for name in (*mech.tree_joint_names, *mech.body_names, *mech.frame_names):
        assert name in out
    assert "grip = 0.5 hinge + 0.1" in out
    for note in (*mech.report, *mech.unused):
        assert str(note) in out
    row = next(line for line in out.splitlines() if line.startswith("hinge")).split()
    assert row == ["hinge", "revolute", "-", "arm", "3", *(f"{x:.4g}" for x in numbers(mech))]


def test_changed_limits_and_joints_without_inertia_are_listed_once(tmp_path, capsys):
    """A leader had the efforts of those that follow it in its own without a word."""
    file = tmp_path / "faulty.urdf"
    bare = '<joint name="bare" type="continuous"><parent link="arm"/><child link="hair"/></joint>'
    file.write_text(FAULTY.replace("</robot>", f'<link name="hair"/>{bare}</robot>'))
    assert main(["info", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (told,) = (line for line in lines if line.startswith("  limits of joint 'hinge' in the file"))
    assert "effort 40" in told and "velocity" not in told
    with pytest.warns(ts.RobotFileWarning):
        mech = ts.load(file)
    assert not any("in the file" in str(note) for note in mech.lock({"hinge": 0.0}).unused)
    assert len([line for line in lines if line.startswith("  joint 'bare'")]) == 1


def test_passive_forces_are_listed_once_for_equal_joints(tmp_path, capsys):
    joint = "<joint name='{}' axis='0 1 0' armature='{}' damping='0.5'/>"
    arms = [joint.format(f"j{k}", a) for k, a in enumerate((0.25, 0.25, 3, 0.25))]
    arms[1] += "<joint name='lift' type='slide' stiffness='7'/>"
    bodies = "".join(f"<body>{text}<geom size='1'/></body>" for text in arms)
    file = tmp_path / "arms.xml"
    file.write_text(f"<mujoco><worldbody>{bodies}</worldbody></mujoco>")
    pytest.importorskip("mujoco")
    assert main(["info", str(file)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "j0, j3: damping 0.5, armature 0.25" in lines
    assert "j1+lift: damping 0.5 0, armature 0.25 0, stiffness 0 7" in lines
    assert "j2: damping 0.5, armature 3" in lines


def test_unusual_springs_gravity_and_compensation_are_listed(tmp_path, capsys):
    """Verbs compute with all of them, and the page said none."""
    pytest.importorskip("mujoco")
    hinge = "<joint name='{}' axis='0 1 0' {}/><geom size='1'/>"
    bodies = [
        ("bent", "stiffness='4' springref='20' damping='0.5 0.25'", ""),
        ("straight", "stiffness='4'", ""),
        ("lifted", "", "gravcomp='0.5'"),
    ]
    body = "".join(f"<body name='{n}' {b}>{hinge.format(n, j)}</body>" for n, j, b in bodies)
    ball = "<body><joint name='ball' type='ball' stiffness='2'/><geom size='1'/></body>"
    file = tmp_path / "arms.xml"

    def told(option):
        file.write_text(f"<mujoco>{option}<worldbody>{body}{ball}</worldbody></mujoco>")
        assert main(["info", str(file)]) == 0
        return [line.strip() for line in capsys.readouterr().out.splitlines()]

    lines = told("<option gravity='0 1 -3.5'/>")
    assert "bent: damping 0.5, higher_damping 0.25 0, stiffness 4, spring_reference 0.3491" in lines
    assert "straight: stiffness 4" in lines and "ball: stiffness 2 2 2" in lines
    assert "0 1 -3.5 m/s^2" in lines and "gravcomp of lifted: 0.5 of its weight" in lines
    assert not any("m/s^2" in line for line in told(""))


def test_lines_fit_the_width_of_the_terminal(capsys, monkeypatch):
    """Tables of long names, and notes, ran into the next line of the screen."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    told = {}
    for width in ("60", "200"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["info", str(ts.robots.humanoid)]) == 0
        told[width] = capsys.readouterr().out.splitlines()
        assert max(map(len, told[width])) <= int(width)
    narrow, wide = ([line.split() for line in lines] for lines in told.values())
    at = next(k for k, line in enumerate(narrow) if line[:1] == ["left_elbow"])
    row = next(line for line in wide if line[:1] == ["left_elbow"])
    assert narrow[at] == [row[0], *row[4:]]
    assert (
        narrow[at + 1] == ["revolute:", "left_upper_arm", "->", "left_forearm"]
        and row[3] == "left_forearm"
    )
    words = (" ".join(" ".join(x) for x in told).split("Frames:")[1] for told in (narrow, wide))
    assert next(words) == next(words)


def test_limits_of_a_compound_joint_have_a_row_for_each_motion(tmp_path, capsys):
    pytest.importorskip("mujoco")
    joints = "<joint name='hip_x' range='-10 90'/><joint name='hip_y' axis='0 1 0' range='0 45'/>"
    leg = f"<freejoint name='base'/><geom size='1'/><body>{joints}<geom size='1'/></body>"
    body = f"<body name='leg' pos='0 0 2'>{leg}</body>"
    key = "<keyframe><key name='home' qpos='0 0 1 1 0 0 0 0 0'/></keyframe>"
    file = tmp_path / "leg.xml"
    file.write_text(f"<mujoco><worldbody>{body}</worldbody>{key}</mujoco>")
    assert main(["info", str(file)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["hip_x", "-0.1745", "1.571"] in lines and ["hip_y", "0", "0.7854"] in lines
    assert "mech.initial() has base at 0 0 2 1 0 0 0".split() in lines
    assert "mech.keyframes: home".split() in lines


def numbers(mech):
    """Limits of the hinge, which count what the finger allows."""
    fields = ("lower", "upper", "velocity_limit", "effort_limit")
    return [getattr(mech, field)[0].item() for field in fields]


def test_the_options_are_those_of_load(tmp_path, capsys):
    file = tmp_path / "faulty.urdf"
    file.write_text(FAULTY)
    assert main(["info", str(file), "--floating-base", "--independent"]) == 0
    out = capsys.readouterr().out
    assert "root_joint" in out
    assert "8 dofs" in out
    assert "follow" not in out.splitlines()[0]
    assert main(["info", str(file), "--strict"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_warnings_have_no_line_of_source_code(monkeypatch, capsys):
    def command(commands):
        commands.add_parser("info")
        return lambda given: print(
            warnings.formatwarning(UserWarning("a\nb"), UserWarning, "x.py", 3)
        )

    before = warnings.formatwarning
    monkeypatch.setitem(COMMANDS, "info", command)
    assert main(["info"]) == 0
    assert capsys.readouterr().out == "Warning: a\nb\n\n"
    assert warnings.formatwarning is before


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{ts.__version__}\n"


def test_the_option_in_a_refusal_trusts_the_folder(tmp_path, capsys):
    pytest.importorskip("mujoco")
    for folder in ("robots/a/b/c", "parts"):  # four folders apart; three are permitted
        (tmp_path / folder).mkdir(parents=True)
    body = "<body name='arm'><joint name='hinge'/><geom size='1'/></body>"
    (tmp_path / "parts" / "arm.xml").write_text(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    file = tmp_path / "robots" / "a" / "b" / "c" / "robot.xml"
    file.write_text('<mujoco><include file="../../../../parts/arm.xml"/></mujoco>')
    assert main(["info", str(file)]) == 2
    assert f"mesh_path=[{str(tmp_path.resolve())!r}] (--mesh-path)" in capsys.readouterr().err
    assert main(["info", str(file), "--mesh-path", str(tmp_path)]) == 0
    assert "hinge" in capsys.readouterr().out


@pytest.mark.some(1)
@pytest.mark.parametrize("text", [None, "<robot", "<robot name='none'/>"])
def test_errors_are_three_lines_and_exit_code_2(text, tmp_path):
    file = tmp_path / "robot.urdf"
    if text is not None:
        file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "torchsko", "info", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert not done.stdout
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 3


@pytest.mark.some(1)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
@pytest.mark.parametrize("options", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_output_that_cannot_be_written_is_an_error_without_a_traceback(options):
    words = [sys.executable, *options, "-m", "torchsko", "info", str(ts.robots.panda)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 3, done.stderr
    assert "No space left on device" in done.stderr


def test_a_command_runs_without_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as of a process whose output is closed
    assert main(["info", str(ts.robots.panda)]) == 0


def test_every_robot_of_the_package_is_listed(capsys):
    assert main(["info", str(ts.robots.panda)]) == 0
    out = capsys.readouterr().out
    assert "7 bodies, 7 dofs" in out
    assert max(map(len, out.splitlines())) < 200


def test_unused_elements_are_listed_once_for_names_that_differ(tmp_path, capsys):
    file = tmp_path / "shapes.urdf"
    links = [f"<link name='l{k}'><visual/><collision/></link>" for k in range(5)]
    weld = (
        "<joint name='j{0}' type='fixed'><parent link='base'/><child link='l{0}'/><limit/></joint>"
    )
    more = "".join([*links, *(weld.format(k) for k in range(5))])
    file.write_text(FAULTY.replace('<link name="base"/>', '<link name="base"/>' + more))
    assert main(["info", str(file)]) == 0
    told = capsys.readouterr().out.split("Not used by the dynamics:")[1]
    for tag, first, count in (("visual", "l0", 5), ("collision", "l0", 4), ("limit", "j0", 4)):
        assert told.count(f"<{tag}>:") == 1
        assert (
            f"'{first}' and {count} more <{tag}>:" in told
        )  # the finger has something to see, too


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("words", "buffered"),
    [
        (["info", str(ts.robots.panda)], True),
        (["--help"], False),
        (["--version"], True),
        pytest.param(["info", str(ts.robots.panda)], False, marks=pytest.mark.nightly),
        pytest.param(["--help"], True, marks=pytest.mark.nightly),
        pytest.param(["--version"], False, marks=pytest.mark.nightly),
    ],
)
def test_a_closed_pipe_is_no_error(words, buffered):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "torchsko", *words],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"},
        )
    assert not done.stderr
    # argparse itself passes over what it cannot print.
    assert done.returncode == (0 if words == ["--help"] and not buffered else 141)
