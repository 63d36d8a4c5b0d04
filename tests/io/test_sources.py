"""What a robot is loaded from: a path or a text, told apart by what is in it; all else is refused by name."""

import bz2
import gzip
import io
import lzma
import re
import zipfile
from pathlib import Path

import pytest

import torchsko as ts
from tests.refusals import assert_refused

SWING = (
    '<robot name="swing"><link name="a"/><link name="b"><inertial><mass value="1"/><inertia ixx="1" '
    'ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link><joint name="j" type="continuous">'
    '<parent link="a"/><child link="b"/></joint></robot>'
)
MJCF = (
    '<mujoco model="swing"><worldbody><body name="b"><joint name="j"/><geom size="1"/></body>'
    "</worldbody></mujoco>"
)
SDF = (
    '<sdf version="1.10"><model name="swing"><link name="b"><inertial><mass>1</mass></inertial></link>'
    '<joint name="j" type="revolute">'
    "<parent>world</parent><child>b</child><axis><xyz>1 0 0</xyz></axis></joint></model></sdf>"
)


@pytest.mark.parametrize("name", ["robot", "robot.URDF", "robot.XML", "robot.Sdf", "robot.txt"])
@pytest.mark.parametrize("text", [SWING, MJCF, SDF], ids=["urdf", "mjcf", "sdf"])
def test_the_root_element_determines_the_format(text, name, tmp_path):
    if text is MJCF:
        pytest.importorskip("mujoco")
    (tmp_path / name).write_text(text)
    for source in (tmp_path / name, str(tmp_path / name), text):
        assert ts.load(source).joint_names == ("j",)


@pytest.mark.parametrize(
    "source, said",
    [
        (SWING.encode(), r"as bytes.*decode\(\)"),
        (bytearray(SWING.encode()), r"as bytearray.*decode\(\)"),
        (io.StringIO(SWING), r"as StringIO.*read\(\)"),
        (io.BytesIO(SWING.encode()), r"as BytesIO.*read\(\) \(decoded"),
        ([ts.robots.panda], r"as list.*one by one"),
        (None, "as NoneType.*robots.panda"),
        (ts.robots, "as module.*robots.panda"),
        ("", "an empty string.*robots.panda"),
        (" \n", "an empty string.*robots.panda"),
        ("~/robot.urdf", r"No such file.*expanduser\(\)"),
        ("https://example.org/robot.urdf", "No such file.*URLs and package names"),
        ("package://robot/robot.urdf", "No such file.*are not resolved"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str) else None,
)
def test_what_is_neither_path_nor_text_is_refused_with_what_to_type(source, said):
    assert_refused(lambda: ts.load(source), said)
    assert_refused(lambda: ts.load(ts.load(ts.robots.panda)), "as Mechanism.*a mechanism already")


def test_bytes_and_open_files_load_as_their_refusal_says(tmp_path):
    (tmp_path / "a.urdf").write_text(SWING)
    with (tmp_path / "a.urdf").open() as file:
        assert ts.load(file.read()).name == "swing"
    assert ts.load((tmp_path / "a.urdf").read_bytes().decode()).name == "swing"


@pytest.mark.parametrize("kind", ["gzip", "zip", "bzip2", "xz"])
def test_a_packed_file_is_named_so(kind, tmp_path):
    file = tmp_path / "robot.urdf"
    packers = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("robot.urdf", SWING)
    else:
        file.write_bytes(packers[kind](SWING.encode()))
    assert_refused(lambda: ts.load(file), rf"robot\.urdf.*compressed \({kind}\).*Decompress")


def test_objects_of_mujoco_go_where_they_are_read():
    mujoco = pytest.importorskip("mujoco")
    spec = mujoco.MjSpec.from_string(MJCF)
    assert_refused(lambda: ts.load(spec), r"as MjSpec.*from_mujoco\(spec\.compile\(\)\)")
    assert_refused(lambda: ts.load(spec.compile()), r"as MjModel.*from_mujoco\(model\)")
    assert_refused(lambda: ts.from_mujoco(spec), r"as MjSpec.*spec\.compile\(\)")
    assert ts.from_mujoco(spec.compile()).joint_names == ("j",)
    for path in (MJCF, Path("robot.xml")):
        assert_refused(lambda path=path: ts.from_mujoco(path), r"torchsko\.load")


@pytest.mark.parametrize("folder", ["/meshes", Path("/meshes")])
def test_a_single_mesh_folder_may_be_a_string(folder):
    """Else "/", the first letter of a path, would open the whole disk to a robot file."""
    assert_refused(lambda: ts.load(SWING, mesh_path=folder), r"one path.*mesh_path=\['/meshes'\]")
    assert_refused(lambda: ts.load(SWING, mesh_path=[3]), "entry 3.*not a path")
    assert ts.load(SWING, mesh_path=[folder]).name == "swing"


@pytest.mark.parametrize(
    "data, said",
    [
        (b"t,q_1,tau_1\n0,1,2\n", "begins with 't,q_1,tau_1'"),
        (b"\n  solid part\nfacet", "begins with 'solid part'"),
        (b"\x89PNG\r\n\x1a\n\0\0", "is binary"),
        (b"\0\1\2\3", "is binary"),
        (b"", "is empty"),
        (b"\xef\xbb\xbf \n", "is empty"),
    ],
)
def test_a_file_that_is_no_xml_is_told_by_how_it_begins(data, said, tmp_path):
    file = tmp_path / "log.csv"
    file.write_bytes(data)
    for call in (ts.load, lambda x: ts.load(x, strict=True)):
        with pytest.raises(ts.RobotFileError, match=r"log\.csv: the file is not XML: it " + said):
            call(file)


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16"])
def test_xml_in_other_codings_is_xml(coding, tmp_path):
    file = tmp_path / "swing.urdf"
    told = coding.removesuffix("-sig")
    file.write_bytes(f'<?xml version="1.0" encoding="{told}"?>{SWING}'.encode(coding))
    assert ts.load(file).joint_names == ("j",)


LOOP = SWING.replace(
    "</robot>",
    '<link name="c"/><joint name="k" type="continuous"><parent link="{}"/><child link="b"/></joint></robot>',
)
CYCLE = SWING.replace("</robot>", LOOP[LOOP.index('<joint name="k"') :]).format("b")


@pytest.mark.parametrize(
    "text, error, said",
    [
        (SWING.replace("continuous", "fixed"), ts.MechanismError, "no moving joint"),
        (SWING.replace('"1"/><in', '"1e300"/><in'), ts.MechanismError, "link 'b'.*1e"),
        (SWING.replace("<inertial>", "<!--").replace("</inertial>", "-->"),
         ts.MechanismError, "no inertia resists joint 'j'"),
        (CYCLE, ts.TreeError, "."),
        (MJCF.replace('<joint name="j"/>', ""), ts.MechanismError, "no moving joint"),
        (SDF.replace("revolute", "fixed"), ts.MechanismError, "no moving joint"),
    ],
)  # fmt: skip
def test_what_makes_no_mechanism_of_a_file_is_told_with_its_name(text, error, said, tmp_path):
    if text.startswith("<mujoco"):
        pytest.importorskip("mujoco")
    file = tmp_path / "thing"
    file.write_text(text)
    for source, named in ((file, f"{file}: "), (text, "")):
        with pytest.raises(error, match=f"(?s)^{re.escape(named)}.*{said}") as told:
            ts.load(source, strict=True)
        assert str(told.value).count(str(file)) == bool(named)


def test_two_trees_that_meet_in_a_link_are_told_by_the_link():
    for parent in ("a", "c"):
        hung = LOOP if parent == "c" else LOOP.replace('<link name="c"/>', "")
        with pytest.raises(ts.TreeError, match="'b'"):
            ts.load(hung.format(parent))
