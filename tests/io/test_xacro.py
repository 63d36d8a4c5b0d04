"""Macros of xacro: expanded where that is asked for, and refused elsewhere with what to type."""

import pytest

import torchsko as ts
from torchsko.cli.main import main
from torchsko.view.scene import scene_of

pytest.importorskip("xacro", reason='pip install ".[xacro]"')

MACROS = """<?xml version="1.0"?>
<robot name="swing" xmlns:xacro="http://www.ros.org/wiki/xacro">
  <xacro:arg name="weight" default="2"/>
  <xacro:property name="length" value="0.5"/>
  <xacro:macro name="bob" params="name mass">
    <link name="${name}"><inertial><origin xyz="0 0 ${-length}"/><mass value="${mass}"/>
      <inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>
  </xacro:macro>
  <link name="base"/>
  <xacro:bob name="one" mass="$(arg weight)"/>
  <xacro:include filename="rest.xacro"/>
</robot>"""
REST = """<robot xmlns:xacro="http://www.ros.org/wiki/xacro"><joint name="pivot" type="continuous">
  <parent link="base"/><child link="one"/><axis xyz="0 1 0"/></joint></robot>"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "rest.xacro").write_text(REST)
    (tmp_path / "swing.urdf.xacro").write_text(MACROS)
    return tmp_path / "swing.urdf.xacro"


def test_macros_are_expanded_with_their_arguments(path):
    mech = ts.load(path, xacro={})
    assert mech.mass.tolist() == [2.0] and mech.com[0].tolist() == [0.0, 0.0, -0.5]
    assert ts.load(path, xacro={"weight": "7"}).mass.tolist() == [7.0]


def test_macros_are_refused_unless_that_is_asked_for(path):
    with pytest.raises(ts.RobotFileError, match=r"pass xacro=\{\.\.\.\}"):
        ts.load(path)


def test_what_xacro_refuses_is_refused_with_what_to_type(path):
    with pytest.raises(ts.RobotFileError, match="xacro= was given with text"):
        ts.load(MACROS, xacro={})
    path.write_text(MACROS.replace("rest.xacro", "no.xacro"))
    with pytest.raises(ts.RobotFileError, match=r"no\.xacro.*\n.*\n.*python -m xacro"):
        ts.load(path, xacro={})
    path.write_text(MACROS.replace("${-length}", "${__import__('os').getcwd()}"))
    with pytest.raises(ts.RobotFileError, match="xacro failed"):
        ts.load(path, xacro={})


@pytest.mark.parametrize(
    "old, new, error, said",
    [
        ("${mass}", "-1", ts.RobotFileError, "link 'one'.*negative"),
        ("${mass}", "1e300", ts.MechanismError, "link 'one'"),
    ],
)
def test_an_error_in_what_macros_become_names_the_file(path, old, new, error, said):
    path.write_text(MACROS.replace(old, new))
    with pytest.raises(error, match=f"swing.urdf.xacro with expanded macros: {said}"):
        ts.load(path, xacro={})


@pytest.mark.parametrize(
    "words, mass", [(["--xacro"], "2"), (["--xacro-arg", "weight:=7"], "7")], ids=["none", "one"]
)
def test_the_command_line_expands_macros_where_that_is_asked_for(path, capsys, words, mass):
    assert main(["info", str(path)]) == 2
    assert words[0] in capsys.readouterr().err
    assert main(["info", str(path), *words]) == 0
    row = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("pivot"))
    assert row.split() == ["pivot", "revolute", "-", "one", mass]


def test_a_picture_is_of_the_expanded_robot(path, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    words = [str(path), "--xacro-arg", "weight:=7", "--picture", str(tmp_path / "swing.png")]
    assert main(["view", *words]) == 0
    assert (tmp_path / "swing.png").stat().st_size > 0


@pytest.mark.parametrize("word", ["weight=7", ":=7", "weight"])
def test_an_argument_of_another_form_is_refused_by_what_it_is(path, capsys, word):
    assert main(["info", str(path), "--xacro-arg", word]) == 2
    error = capsys.readouterr().err
    assert f"--xacro-arg {word}" in error and "NAME:=VALUE" in error


def test_an_argument_that_the_file_does_not_ask_for_is_refused_with_those_it_does(path):
    """A word written wrong would leave the robot as it is without one."""
    with pytest.raises(ts.RobotFileError, match=r"no xacro argument 'wieght'(.|\n)*'weight'"):
        ts.load(path, xacro={"wieght": "7"})
    # One that is used without being declared is asked for, too.
    path.write_text(MACROS.replace('<xacro:arg name="weight" default="2"/>', ""))
    assert ts.load(path, xacro={"weight": "7"}).mass.tolist() == [7.0]


def test_meshes_of_its_package_are_found_by_a_file_of_macros(tmp_path):
    """As by the URDF that it becomes: the package is the nearest folder above with a package.xml."""
    package = tmp_path / "checkout_of_swing"
    for folder in ("urdf", "meshes"):
        (package / folder).mkdir(parents=True)
    (package / "package.xml").write_text("<package><name>swing</name></package>")
    (package / "meshes" / "bob.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\n"
    )
    mesh = '<visual><geometry><mesh filename="package://swing/meshes/bob.obj"/></geometry></visual></link>'
    (package / "urdf" / "rest.xacro").write_text(REST)
    file = package / "urdf" / "swing.urdf.xacro"
    file.write_text(MACROS.replace("</link>", mesh))
    assert not scene_of(ts.load(file, xacro={})).missing
