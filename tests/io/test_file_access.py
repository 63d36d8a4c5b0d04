"""Robot files may use meshes, textures and models up to three folders above, and nothing else outside."""

import os
import struct
import zlib

import pytest
import torch

import torchsko as ts
from tests.strategies import agree
from torchsko.io.common import file_access
from torchsko.io.common.meshes import mesh_file
from torchsko.shapes.mesh import Mesh

mujoco = pytest.importorskip("mujoco")

TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


def png(width: int, height: int) -> bytes:
    """A gray PNG image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    rows = chunk(
        b"IDAT", zlib.compress(b"".join(b"\0" + bytes(range(width)) for _ in range(height)))
    )
    return b"\x89PNG\r\n\x1a\n" + header + rows + chunk(b"IEND", b"")


BODY = '<body name="b"><joint name="j" axis="1 0.5 0"/><geom type="mesh" mesh="tip"/></body>'
PLAIN_BODY = (
    '<body name="b"><joint name="j" axis="1 0.5 0"/><geom size="0.1" pos="0.3 0 0"/></body>'
)
USES = {
    "mesh": f'<asset><mesh name="tip" file="UP/parts/tip.obj"/></asset><worldbody>{BODY}</worldbody>',
    "folder of meshes": '<compiler meshdir="UP/parts"/><asset><mesh name="tip" file="tip.obj"/></asset>'
    f"<worldbody>{BODY}</worldbody>",
    "texture": '<asset><texture name="t" type="2d" file="UP/parts/dot.png"/></asset>'
    f"<worldbody>{PLAIN_BODY}</worldbody>",
    "height field": '<asset><hfield name="h" file="UP/parts/dot.png" size="1 1 1 1"/></asset>'
    f"<worldbody>{PLAIN_BODY}</worldbody>",
    "included file": '<include file="UP/parts/part.xml"/>',
    "model": '<asset><model name="m" file="UP/parts/model.xml"/></asset><worldbody>'
    '<attach model="m" body="b" prefix=""/></worldbody>',
    "missing folder": f'<asset><mesh name="tip" file="none/../UP/parts/tip.obj"/></asset><worldbody>{BODY}'
    "</worldbody>",
}


@pytest.fixture
def robots(tmp_path):
    """A folder a/b/c/robots of robot files; parts lie in the folders above it."""
    folder = tmp_path / "a" / "b" / "c" / "robots"
    folder.mkdir(parents=True)
    for up in (tmp_path / "a" / "b" / "c", tmp_path / "a" / "b", tmp_path / "a", tmp_path):
        (up / "parts").mkdir()
        (up / "parts" / "tip.obj").write_text(TETRAHEDRON)
        (up / "parts" / "dot.png").write_bytes(png(2, 2))
        part = f"<worldbody>{PLAIN_BODY}</worldbody>"
        (up / "parts" / "part.xml").write_text(f"<mujocoinclude>{part}</mujocoinclude>")
        (up / "parts" / "model.xml").write_text(f"<mujoco>{part}</mujoco>")
    return folder


def robot(folder, use: str, levels: int):
    file = folder / "robot.xml"
    file.write_text(f"<mujoco>{USES[use].replace('UP', '/'.join(['..'] * levels))}</mujoco>")
    return file


def assert_inverse_dynamics(mech: ts.Mechanism, model: mujoco.MjModel) -> None:
    """Forces of a state of a hinge are those of MuJoCo."""
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:], data.qacc[:] = 0.3, 0.7, -0.4
    mujoco.mj_inverse(model, data)
    q, qd, qdd = (torch.tensor(x) for x in (data.qpos, data.qvel, data.qacc))
    agree(ts.inverse_dynamics(mech, q, qd, qdd), torch.tensor(data.qfrc_inverse), 1e-9)


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("use", USES)
def test_files_up_to_three_folders_above_load_with_the_dynamics_of_mujoco(use, levels, robots):
    file = robot(robots, use, levels)
    mech, model = ts.load(file), mujoco.MjModel.from_xml_path(str(file))
    assert_inverse_dynamics(mech, model)


@pytest.mark.parametrize("use", USES)
def test_files_four_folders_above_are_refused(use, robots, monkeypatch):
    monkeypatch.delattr(mujoco.MjModel, "from_xml_path")
    with pytest.raises(ts.RobotFileError, match="lies outside the folder"):
        ts.load(robot(robots, use, 4))


def refused_file(robots, name: str) -> str:
    """A file in the folder above that is refused for one reason; its name."""
    above = robots.parent
    if name == "other extension":
        (above / "secret.txt").write_text("<mujocoinclude/>")
        return "secret.txt"
    if name == "no extension":
        (above / "shadow").write_text("<mujocoinclude/>")
        return "shadow"
    if name == "named pipe":
        os.mkfifo(above / "pipe.xml")
        return "pipe.xml"
    if name == "device":
        (above / "zero.xml").symlink_to("/dev/zero")
        return "zero.xml"
    if name == "link out of its folder":
        (above / "linked.xml").symlink_to(robots.parent.parent / "parts" / "part.xml")
        return "linked.xml"
    if name == "linked folder":
        (above / "linked").symlink_to(robots.parent.parent / "parts")
        return "linked/part.xml"
    if name == "link of another extension":
        (above / "secret.txt").write_text("<mujocoinclude/>")
        (above / "secret.xml").symlink_to("secret.txt")
        return "secret.xml"
    assert name == "folder"
    (above / "folder.xml").mkdir()
    return "folder.xml"


REFUSED = (
    "other extension", "no extension", "named pipe", "device", "link out of its folder", "linked folder",
    "link of another extension", "folder",
)  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_only_regular_files_of_known_formats_without_links_are_used(name, robots, monkeypatch):
    monkeypatch.delattr(mujoco.MjModel, "from_xml_path")
    path = refused_file(robots, name)
    (robots / "robot.xml").write_text(f'<mujoco><include file="../{path}"/></mujoco>')
    with pytest.raises(ts.RobotFileError, match="lies outside the folder"):
        ts.load(robots / "robot.xml")


def test_large_files_above_are_refused(robots, monkeypatch):
    monkeypatch.setattr(file_access, "MAX_FILE_BYTES", 10)
    with pytest.raises(ts.RobotFileError, match="lies outside the folder"):
        ts.load(robot(robots, "mesh", 1))


def test_an_attached_model_does_not_extend_the_reach(robots):
    """Two folders up to a model, which leads two folders further up: four in all."""
    nested = robots.parents[1] / "parts" / "model.xml"
    nested.write_text('<mujoco><include file="../../../parts/part.xml"/></mujoco>')
    with pytest.raises(ts.RobotFileError, match=r"'../../../parts/part.xml'.*lies outside"):
        ts.load(robot(robots, "model", 2))
    nested.write_text('<mujoco><include file="../../parts/part.xml"/></mujoco>')
    assert ts.load(robot(robots, "model", 2)).num_dof == 1


def test_a_linked_robot_folder_reaches_the_parts_beside_its_target(robots, tmp_path):
    robot(robots, "mesh", 1)
    (tmp_path / "link").symlink_to(robots)
    assert ts.load(tmp_path / "link" / "robot.xml").num_dof == 1


@pytest.mark.parametrize("levels", [1, 3])
def test_meshes_of_urdf_files_follow_the_same_rule(levels, robots):
    path = "/".join([*[".."] * levels, "parts", "tip.obj"])
    found = mesh_file(Mesh(path, (1.0, 1.0, 1.0), str(robots), ()))
    assert found == (robots / path).resolve()
    absolute = Mesh(str(found), (1.0, 1.0, 1.0), str(robots), ())
    too_far = Mesh(f"../../../../{path}", (1.0, 1.0, 1.0), str(robots), ())
    linked = Mesh(
        f"../{refused_file(robots, 'linked folder')}/../tip.obj", (1.0, 1.0, 1.0), str(robots), ()
    )
    for mesh in (absolute, too_far, linked):
        with pytest.raises(ts.RobotFileError, match=r"lies outside|was not found"):
            mesh_file(mesh)


@pytest.mark.parametrize("use", ["mesh", "folder of meshes", "texture"])
def test_a_robot_saved_in_another_folder_refers_to_the_same_files(use, robots):
    """The new file loads without trusted folders."""
    file, new = robot(robots, use, 1), robots.parents[1] / "new" / "robot.xml"
    new.parent.mkdir()
    mech = ts.load(file)
    ts.save(mech.replace(damping=mech.damping + 1.0), new, like=file)
    assert torch.equal(ts.load(new).mass, mech.mass) and bool((ts.load(new).damping == 1.0).all())
