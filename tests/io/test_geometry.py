"""Shapes are kept where the file puts them, through all that is done to a mechanism; meshes stay shut."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.io.common.meshes import mesh_file, read_mesh
from torchsko.shapes.box import Box
from torchsko.shapes.mesh import Mesh
from torchsko.shapes.sphere import Sphere

LINKS = """
<robot name="shapes">
  <material name="paint"><color rgba="0.1 0.2 0.3 1"/></material>
  <link name="base">{base}</link>
  <link name="arm"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>
    </inertial>{arm}</link>
  <link name="hand"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>
    </inertial>{hand}</link>
  <joint name="turn" type="continuous"><parent link="base"/><child link="arm"/><axis xyz="0 0 1"/></joint>
  <joint name="weld" type="{weld}"><origin xyz="0 0 1" rpy="0.1 0.2 0.3"/><parent link="arm"/>
    <child link="hand"/></joint>
</robot>
"""

HAND = """<visual name="palm"><origin xyz="0.1 0 0" rpy="0 0 1.5707963267948966"/>
  <geometry><box size="1 2 3"/></geometry><material name="paint"/></visual>
  <collision><geometry><sphere radius="0.5"/></geometry></collision>"""

TETRAHEDRON = """o tip
v 0 0 0
v 1 0 0
v 0 1 0
v 0 0 1
f 1 3 2
f 1 2 4
f 1 4 3
f 2 3 4
"""


def robot(base="", arm="", hand="", weld="fixed", **options):
    return ts.load(LINKS.format(base=base, arm=arm, hand=hand, weld=weld), **options)


def mesh(path, scale=""):
    return f'<visual><geometry><mesh filename="{path}" {scale}/></geometry></visual>'


def in_base(mech, shape, q):
    """A point of a shape, as the robot's base sees it."""
    base = shape.frame.replace("hand", "base")
    pose = ts.frame_pose(mech, q.to(mech.dtype), base, relative_to=shape.frame)
    point = torch.tensor([0.3, -0.2, 0.7], dtype=torch.float64)
    local = torch.tensor(shape.rotation, dtype=torch.float64) @ point
    local = local + torch.tensor(shape.position, dtype=torch.float64)
    return pose.rotation.double() @ local + pose.position.double()


def test_shapes_stand_on_their_links_with_their_colors():
    palm, ball = robot(hand=HAND).geometry.shapes
    assert (palm.form, ball.form) == (Box((1.0, 2.0, 3.0)), Sphere(0.5))
    assert (palm.frame, palm.name, palm.color) == ("hand", "palm", (0.1, 0.2, 0.3, 1.0))
    assert (palm.visual, palm.collision) == (True, False)
    assert (ball.visual, ball.collision) == (False, True)
    assert np.allclose(np.array(palm.rotation) @ [1, 0, 0], [0, 1, 0])


@pytest.mark.parametrize(
    "change",
    [
        lambda mech: mech.to(torch.float32),
        lambda mech: mech.replace(mass=2 * mech.mass),
        lambda mech: (
            ts.load(ts.robots.panda)
            .append(mech, "link7", prefix="x_")
            .lock({f"joint{k}": 0.0 for k in range(1, 8)})
        ),
        lambda mech: robot(hand=HAND, weld="revolute").lock({"weld": 0.0}),
        lambda mech: mech.tree,
    ],
    ids=["to", "replace", "append and lock", "lock", "tree"],
)
def test_what_is_done_to_a_mechanism_leaves_shapes_where_they_are(change):
    mech = robot(hand=HAND)
    left = change(mech)
    q = torch.tensor([0.4], dtype=torch.float64)
    assert len(left.geometry.shapes) == 2
    for ours, theirs in zip(mech.geometry.shapes, left.geometry.shapes, strict=True):
        assert theirs.form == ours.form
        here, there = (in_base(m, shape, q) for m, shape in ((mech, ours), (left, theirs)))
        assert torch.allclose(here, there, atol=1e-6 if left.dtype == torch.float32 else 1e-12)


def test_shapes_of_a_world_move_to_the_frame_they_are_appended_to():
    mujoco = pytest.importorskip("mujoco")
    world = """<mujoco><worldbody><geom name="stand" type="box" size="1 2 3" pos="1 0 0"/>
      <body name="b"><joint name="j"/><geom size="1"/></body></worldbody></mujoco>"""
    other = ts.from_mujoco(mujoco.MjModel.from_xml_string(world))
    R = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    both = robot(hand=HAND).append(other, "hand", R, (0.0, 0.0, 5.0))
    stand = both.geometry.shapes[2]
    assert (stand.frame, stand.position) == ("hand", (0.0, 1.0, 5.0))
    many = robot(hand=HAND).append(other, "hand", R.expand(2, 3, 3), (0.0, 0.0, 5.0))
    assert len(many.geometry.shapes) == 3
    assert any("fixed to its inertial frame" in str(note) for note in many.unused)


BAD = {
    "no geometry": "<visual/>",
    "unknown": '<collision><geometry><torus r="1"/></geometry></collision>',
    "no number": '<visual><geometry><box size="1 2 x"/></geometry></visual>',
    "negative": '<visual><geometry><sphere radius="-1"/></geometry></visual>',
    "not finite": '<visual><geometry><cylinder radius="inf" length="1"/></geometry></visual>',
    "no name": "<visual><geometry><mesh/></geometry></visual>",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_shape_without_meaning_is_left_out_by_name(bad):
    with pytest.warns(ts.RobotFileWarning, match="link 'arm' <"):
        mech = robot(arm=bad, hand=HAND)
    assert len(mech.geometry.shapes) == 2
    with pytest.raises(ts.RobotFileError):
        robot(arm=bad, hand=HAND, strict=True)


@pytest.fixture
def package(tmp_path):
    """A robot in its package, a package beside it, and a mesh outside of both."""
    for place in ("ws/mine/meshes", "ws/mine/urdf", "ws/other/meshes", "secret"):
        (tmp_path / place).mkdir(parents=True)
    for place in ("ws/mine/meshes", "ws/mine/urdf", "ws/other/meshes", "secret"):
        (tmp_path / place / "tip.obj").write_text(TETRAHEDRON)
    (tmp_path / "ws/mine/package.xml").write_text("<package><name>written_name</name></package>")
    return tmp_path


def load_with(package, path, **options):
    file = package / "ws/mine/urdf/robot.urdf"
    file.write_text(LINKS.format(base="", arm=mesh(path), hand="", weld="fixed"))
    return ts.load(file, **options).geometry.shapes[0].form


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("tip.obj", "mine/urdf"),
        ("../meshes/tip.obj", "mine/meshes"),
        ("package://mine/meshes/tip.obj", "mine/meshes"),
        ("package:///mine/meshes/tip.obj", "mine/meshes"),
        ("package://written_name/meshes/tip.obj", "mine/meshes"),
        ("package://other/meshes/tip.obj", "other/meshes"),
    ],
)
def test_meshes_are_found_in_the_folder_the_package_and_the_search_path(package, path, place):
    form = load_with(package, path, mesh_path=[package / "ws"])
    assert mesh_file(form) == (package / "ws" / place / "tip.obj").resolve()


@pytest.mark.parametrize(
    ("variable", "place", "name"),
    [
        ("AMENT_PREFIX_PATH", "install/share/far", "far"),
        ("ROS_PACKAGE_PATH", "install/share/far", "far"),
        ("ROS_PACKAGE_PATH", "install/share/repository/far", "far"),
        ("ROS_PACKAGE_PATH", "install/share", "share"),
        ("GZ_SIM_RESOURCE_PATH", "install/share/far", "far"),
        ("GAZEBO_MODEL_PATH", "install/share/far", "far"),
    ],
)
def test_packages_are_found_where_the_users_shell_has_them(
    package, monkeypatch, variable, place, name
):
    folder = package / place
    (folder / "meshes").mkdir(parents=True)
    (folder / "meshes/far.obj").write_text(TETRAHEDRON)
    (folder.parent / "far.obj").write_text(TETRAHEDRON)
    form = load_with(package, f"package://{name}/meshes/far.obj")
    with pytest.raises(ts.RobotFileError, match="not found"):
        mesh_file(form)
    prefix = package / "install" / ("" if variable == "AMENT_PREFIX_PATH" else "share")
    monkeypatch.setenv(variable, os.pathsep.join(["/nowhere", "", str(prefix)]))
    assert mesh_file(form) == (folder / "meshes/far.obj").resolve()
    for leaving in (f"package://{name}/../far.obj", "package://../far.obj", "package://*/far.obj"):
        with pytest.raises(ts.RobotFileError, match=r"lies outside the folder|not found"):
            mesh_file(load_with(package, leaving))
    with pytest.raises(ts.RobotFileError, match="not found"):
        mesh_file(load_with(package, f"{name}/meshes/far.obj"))  # packages alone are found so


def test_a_package_around_the_file_is_named_as_what_to_pass(tmp_path):
    """As `share/iCub/robots/A/model.urdf` has its meshes in `share/iCub/meshes`."""
    for place in ("iCub/meshes", "iCub/robots/A"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "iCub/meshes/tip.obj").write_text(TETRAHEDRON)
    form = Mesh("package://iCub/meshes/tip.obj", home=str(tmp_path / "iCub/robots/A"))
    with pytest.raises(ts.RobotFileError, match="lies outside the folder") as told:
        mesh_file(form)
    folder = str((tmp_path / "iCub").resolve())
    assert f"mesh_path=[{folder!r}]" in str(told.value)
    trusted = Mesh(form.path, home=form.home, search=(folder,))
    assert mesh_file(trusted) == (tmp_path / "iCub/meshes/tip.obj").resolve()


@pytest.mark.parametrize(
    "path",
    [
        "package://mine/../../secret/tip.obj",
        "package://../../secret/tip.obj",
        "{root}/secret/tip.obj",
        "file://{root}/secret/tip.obj",
        "link.obj",
    ],
)
def test_meshes_that_leave_the_folders_are_refused_when_opened(package, path):
    os.symlink(package / "secret/tip.obj", package / "ws/mine/urdf/link.obj")
    form = load_with(package, path.format(root=package))
    with pytest.raises(ts.RobotFileError, match=r"(lies outside|not found)(.|\n)*mesh_path="):
        mesh_file(form)


@pytest.mark.parametrize(
    "path", ["nowhere.stl", "\0.stl", "package://mine/x" + "y" * 5000, "package://"]
)
def test_missing_meshes_are_named(package, path):
    form = Mesh(path, home=str(package / "ws/mine/urdf"))
    with pytest.raises(ts.RobotFileError, match="was not found"):
        mesh_file(form)


def test_loading_reads_no_mesh(package, monkeypatch):
    opened, path_open = [], Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *a, **k: opened.append(self.name) or path_open(self, *a, **k)
    )
    load_with(package, "tip.obj")
    assert "tip.obj" not in opened and "robot.urdf" in opened


def test_a_mesh_is_scaled_and_an_invalid_one_is_refused(package):
    pytest.importorskip("trimesh")
    file = package / "ws/mine/urdf/robot.urdf"
    text = LINKS.format(base="", arm=mesh("tip.obj", 'scale="2 1 1"'), hand="", weld="fixed")
    file.write_text(text)
    (part,) = read_mesh(ts.load(file).geometry.shapes[0].form)
    a, b, c = (part.triangles.vertices[part.triangles.faces[:, k]] for k in range(3))
    volume = np.einsum("ij,ij->", a, np.cross(b, c)) / 6
    assert volume == pytest.approx(2 / 6)
    for kind in ("stl", "obj", "dae", "ply"):
        (package / f"ws/mine/urdf/bad.{kind}").write_bytes(b"\xff\x00 rubbish" * 20)
        with pytest.raises((ts.RobotFileError, ts.MissingExtraError)):
            read_mesh(load_with(package, f"bad.{kind}"))


COLLADA = """<?xml version="1.0"?>
<COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema" version="1.4.1">
<asset><unit meter="1"/><up_axis>Z_UP</up_axis></asset>
<library_effects>{effects}</library_effects>
<library_materials><material id="red"><instance_effect url="#red-effect"/></material>
<material id="blue"><instance_effect url="#blue-effect"/></material></library_materials>
<library_geometries><geometry id="tip"><mesh>
<source id="p"><float_array id="pa" count="12">0 0 0 1 0 0 0 1 0 0 0 1</float_array><technique_common>
<accessor source="#pa" count="4" stride="3"><param name="X" type="float"/><param name="Y" type="float"/>
<param name="Z" type="float"/></accessor></technique_common></source>
<vertices id="v"><input semantic="POSITION" source="#p"/></vertices>
<triangles material="m" count="4"><input semantic="VERTEX" source="#v" offset="0"/>
<p>0 2 1 0 1 3 0 3 2 1 2 3</p></triangles></mesh></geometry></library_geometries>
<library_visual_scenes><visual_scene id="s">{nodes}</visual_scene></library_visual_scenes>
<scene><instance_visual_scene url="#s"/></scene></COLLADA>"""
NODE = """<node><translate>{x} 0 0</translate><instance_geometry url="#tip"><bind_material><technique_common>
<instance_material symbol="m" target="#{color}"/></technique_common></bind_material>
</instance_geometry></node>"""
WHOLE = """<effect id="{name}-effect"><profile_COMMON><technique sid="c"><phong><diffuse>
<color>1 0 0 1</color></diffuse></phong></technique></profile_COMMON></effect>"""
BROKEN = """<effect id="{name}-effect"><profile_COMMON><newparam sid="t"><sampler2D><source>lost</source>
</sampler2D></newparam><technique sid="c"><phong><diffuse>
<texture texture="t" texcoord="u"/></diffuse></phong></technique></profile_COMMON></effect>"""


@pytest.mark.parametrize(("broken", "colored"), [((), 2), (("red",), 0), (("red", "blue"), 0)])
def test_a_collada_file_whose_textures_are_lost_keeps_all_of_its_triangles(
    package, broken, colored
):
    pytest.importorskip("collada")
    effects = [(BROKEN if x in broken else WHOLE).format(name=x) for x in ("red", "blue")]
    nodes = [NODE.format(x=3 * k, color=x) for k, x in enumerate(("red", "blue"))]
    (package / "ws/mine/urdf/tip.dae").write_text(
        COLLADA.format(effects="".join(effects), nodes="".join(nodes))
    )
    parts = read_mesh(load_with(package, "tip.dae"))
    assert sum(len(part.triangles.faces) for part in parts) == 8
    reached = np.concatenate([part.triangles.vertices for part in parts])
    assert reached.max() == 4.0 and reached.min() == 0.0
    assert sum(part.color is not None for part in parts) == colored
