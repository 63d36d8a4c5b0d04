"""Files made to harm: refused at once, by name, in either format, and before MuJoCo's compiler sees them."""

import re
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchsko as ts

pytest.importorskip("mujoco")

SOONEST = 2.0
"""Seconds of the processor."""
LEAST = 2**28
"""Bytes that a refusal may take."""

LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
BOMB = f'<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY l0 "lol">{LAUGHS}]>'
LINK = '<link name="l{0}"/>'
MASS = '<inertial pos="0 0 0" mass="{m}" diaginertia="{i} {i} {i}"/>'
HINGED = "<mujoco><worldbody><body><joint{joint}/>{mass}</body></worldbody></mujoco>"


def urdf(inside: str) -> str:
    return f'<robot name="r">{inside}</robot>'


def mjcf(inside: str) -> str:
    return f"<mujoco>{inside}</mujoco>"


def hinged(m: str = "1", i: str = "1", joint: str = "") -> str:
    return HINGED.format(joint=joint, mass=MASS.format(m=m, i=i))


def moving(mass: str = "1", xyz: str = "0 0 0", more: str = "") -> str:
    return urdf(
        f'<link name="a"/><link name="b"><inertial><mass value="{mass}"/><inertia ixx="1" ixy="0" ixz="0" '
        'iyy="1" iyz="0" izz="1"/></inertial></link><joint name="j" type="continuous"><parent link="a"/>'
        f'<child link="b"/><origin xyz="{xyz}"/>{more}</joint>'
    )


REFUSED = {
    "entity bomb, urdf": lambda: BOMB + urdf("&l9;"),
    "entity bomb, mjcf": lambda: BOMB + mjcf("&l9;"),
    "entity of a file": lambda: (
        '<!DOCTYPE r [<!ENTITY f SYSTEM "file:///etc/passwd">]>' + urdf("&f;")
    ),
    "parameter entity": lambda: '<!DOCTYPE r [<!ENTITY % f SYSTEM "http://x/y"> %f;]>' + mjcf(""),
    "depth 10^5, urdf": lambda: urdf("<a>" * 10**5 + "</a>" * 10**5),
    "depth 10^5, mjcf": lambda: mjcf("<body>" * 10**5 + "</body>" * 10**5),
    "10^6 links": lambda: urdf("".join(LINK.format(k) for k in range(10**6))),
    "10^6 bodies": lambda: mjcf("<worldbody>" + "<body/>" * 10**6 + "</worldbody>"),
    "10^9 copies": lambda: mjcf(
        '<worldbody><replicate count="1000000000"><body/></replicate></worldbody>'
    ),
    "10^9 copies, written otherwise": lambda: mjcf(
        '<worldbody><replicate count="1e9"><body/></replicate></worldbody>'
    ),
    "copies of copies of copies": lambda: mjcf(
        "<worldbody>"
        + '<replicate count="100">' * 3
        + "<body/>"
        + "</replicate>" * 3
        + "</worldbody>"
    ),
    "absolute include": lambda: mjcf('<include file="/etc/passwd"/>'),
    "include that leaves the folder": lambda: mjcf('<include file="a/../../../../../b.xml"/>'),
    "include of another drive": lambda: mjcf(r'<include file="C:\b.xml"/>'),
    "include by backslashes": lambda: mjcf(r'<include file="..\b.xml"/>'),
    "absolute mesh": lambda: mjcf('<asset><mesh file="/dev/zero"/></asset>'),
    "mesh that leaves the folder": lambda: mjcf('<asset><mesh file="../x.conf"/></asset>'),
    "mesh folder elsewhere": lambda: mjcf('<compiler meshdir="/proc"/>'),
    "height field elsewhere": lambda: mjcf('<asset><hfield file="../x.conf"/></asset>'),
    "skin elsewhere": lambda: mjcf('<asset><skin file="/x.skn"/></asset>'),
    "model elsewhere": lambda: mjcf('<asset><model name="m" file="../../../../m.xml"/></asset>'),
    "model of no file": lambda: mjcf('<asset><model name="m"/></asset>'),
    "10^10 heights": lambda: mjcf(
        '<asset><hfield name="h" nrow="100000" ncol="100000" size="1 1 1 1"/></asset>'
    ),
    "texture of 10^12 pixels": lambda: mjcf(
        '<asset><texture type="2d" builtin="flat" width="1000000" height="1e6"/></asset>'
    ),
    "10^9 keyframes": lambda: mjcf('<size nkey="1000000000"/>'),
    "10^9 numbers of each body": lambda: mjcf('<size nuser_body="1000000000"/>'),
    "sensor of 10^9 numbers": lambda: mjcf('<sensor><user dim="1000000000"/></sensor>'),
    "nan, urdf": lambda: moving(xyz="nan 0 0"),
    "infinite, urdf": lambda: moving(mass="inf"),
    "infinite, mjcf": lambda: hinged(m="inf"),
    "near the end of the range, urdf": lambda: moving(mass="1e300"),
    "near the end of the range, mjcf": lambda: hinged(m="1e300", i="1e300"),
    "beyond the range, urdf": lambda: moving(mass="1e999"),
    "damping near the end of the range, mjcf": lambda: hinged(joint=' damping="1e300"'),
    "spring near the end of the range, mjcf": lambda: hinged(joint=' stiffness="-1e300"'),
}


@pytest.fixture
def measured() -> Iterator[None]:
    """Memory of what a test does."""
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < LEAST


@pytest.mark.some(25)
@pytest.mark.parametrize("name", REFUSED)
def test_hostile_text_is_refused_at_once(name, monkeypatch):
    import mujoco

    text = REFUSED[name]()
    if "range" not in name and "infinite" not in name:
        monkeypatch.delattr(mujoco.MjModel, "from_xml_string")  # it never gets there
    begun = time.process_time()
    with pytest.raises(ts.TorchskoError) as refused:
        ts.load(text)
    assert time.process_time() - begun < SOONEST
    assert refused.value.what and refused.value.advice and len(str(refused.value)) < 2000


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "name", ["10^6 links", "depth 10^5, mjcf", "entity bomb, urdf", "10^9 copies"]
)
def test_refusing_takes_little_memory(name, measured):
    text = REFUSED[name]()
    tracemalloc.reset_peak()
    with pytest.raises(ts.TorchskoError):
        ts.load(text)


NAN = {
    "mass": hinged(m="nan"),
    "inertia": hinged(i="nan"),
    "axis": hinged(joint=' axis="nan 0 1"'),
    "damping": hinged(joint=' damping="nan"'),
    "reference": hinged(joint=' ref="nan"'),
}


@pytest.mark.parametrize("name", NAN)
def test_nan_in_mjcf_is_refused(name):
    with pytest.raises(ts.TorchskoError, match=r"nan|rotation matrix|must be larger"):
        ts.load(NAN[name])


BODY = "<body name='b'><joint/><geom size='1'/></body>"
ATTACHES = (
    '<mujoco><asset><model name="m" file="child.xml"/></asset><worldbody>{0}</worldbody></mujoco>'
)
ATTACH = '<attach model="m" prefix="{0}_"/>'
SEVERAL = "".join(ATTACH.format(k) for k in range(20))


def copied(n: int) -> str:
    return mjcf(f'<worldbody><replicate count="{n}">{BODY}</replicate></worldbody>')


LED_OUT = {
    "a model that includes another folder's": (
        {"robot.xml": ATTACHES.format(ATTACH), "child.xml": mjcf('<include file="../../../../out/b.xml"/>')},
        r"'../../../../out/b.xml'.*lies outside",
    ),
    "a model inside a model": (
        {
            "robot.xml": ATTACHES.format(ATTACH),
            "child.xml": mjcf('<asset><model file="a/c.xml"/></asset>'),
            "a/c.xml": mjcf('<asset><mesh file="/x.stl"/></asset>'),
        },
        r"of 'a/c.xml': file '/x.stl'.*lies outside",
    ),
    "a model that holds itself": (
        {"robot.xml": ATTACHES.format(ATTACH), "child.xml": ATTACHES.format(ATTACH)},
        "'child.xml' contains itself",
    ),
    "copies in a model": (
        {"robot.xml": ATTACHES.format(ATTACH), "child.xml": copied(10_001)},
        "more than 10000 times",
    ),
    "copies of a model of copies": (
        {"robot.xml": ATTACHES.format(SEVERAL), "child.xml": copied(9_000)},
        "more than 200000 times",
    ),
    "attached copies of copies": (
        {
            "robot.xml": ATTACHES.format(f'<replicate count="101">{ATTACH}</replicate>'),
            "child.xml": copied(101),
        },
        "more than 10000 times",
    ),
    "copies of what is included": (
        {
            "robot.xml": mjcf('<worldbody><replicate count="101"><include file="p.xml"/>'
                              "</replicate></worldbody>"),
            "p.xml": f'<mujocoinclude><replicate count="101">{BODY}</replicate></mujocoinclude>',
        },
        "more than 10000 times",
    ),
    "a link to a file": ({"robot.xml": mjcf('<include file="link.xml"/>')}, "'link.xml'.*lies outside"),
    "a linked folder": ({"robot.xml": mjcf('<include file="link/b.xml"/>')}, "'link/b.xml'.*lies outside"),
    "a linked model": (
        {"robot.xml": mjcf('<asset><model file="link.xml"/></asset>')}, "'link.xml'.*lies outside"
    ),
    "a part that is not there": (
        {"robot.xml": mjcf('<include file="a/no.xml"/>')},
        "line 1: <include> of 'a/no.xml': the file cannot be read: No such file",
    ),
    "a part that is no XML": (
        {"robot.xml": mjcf('\n<include file="p.xml"/>'), "p.xml": "<mujocoinclude>\n\n\n<a></b>"},
        r"line 2: <include> of 'p.xml': malformed XML: .*line 4",
    ),
    "a model that is not there": (
        {"robot.xml": ATTACHES.format(ATTACH)}, "<model> of 'child.xml': the file cannot be read"
    ),
    "a mesh in a linked folder": (
        {"robot.xml": mjcf('<compiler meshdir="link"/><asset><mesh file="b.stl"/></asset>')}, "lies outside"
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder four levels below another folder, with links into that."""
    folder = tmp_path / "1" / "2" / "3" / "in"
    folder.mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.xml").write_text(mjcf(f"<worldbody>{BODY}</worldbody>"))
    (tmp_path / "out" / "b.stl").write_bytes(b"")
    (folder / "link").symlink_to(tmp_path / "out")
    (folder / "link.xml").symlink_to("../../../../out/b.xml")
    return folder


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder / "robot.xml"


@pytest.mark.parametrize("name", LED_OUT)
def test_every_file_that_a_file_leads_to_is_looked_through(name, folder, monkeypatch):
    import mujoco

    files, said = LED_OUT[name]
    monkeypatch.delattr(mujoco.MjModel, "from_xml_path")  # it never gets there
    with pytest.raises(ts.RobotFileError, match=said) as told:
        ts.load(written(folder, files))
    assert str(told.value).startswith(f"{folder / 'robot.xml'}: ")  # which of many is said
    (folder.parent / "trusted").mkdir()
    with pytest.raises(ts.RobotFileError, match=said):
        ts.load(folder / "robot.xml", mesh_path=[folder.parent / "trusted"])


SCENE = {
    "a mesh": '<mujoco><asset><mesh file="{0}/tip.obj"/></asset><worldbody>{1}</worldbody></mujoco>',
    "a folder of meshes": '<mujoco><compiler meshdir="{0}"/><asset><mesh file="tip.obj"/></asset>'
    "<worldbody>{1}</worldbody></mujoco>",
    "what is included": '<mujoco><include file="{0}/b.xml"/></mujoco>',
    "a model": '<mujoco><asset><model name="m" file="{0}/b.xml"/></asset><worldbody>'
    '<attach model="m" prefix="x_"/></worldbody></mujoco>',
}


@pytest.mark.parametrize("to", ["../../../../out", "nowhere/../../../../../out", "absolute"])
@pytest.mark.parametrize("name", SCENE)
def test_folders_that_the_user_trusts_may_be_reached_as_the_refusal_says(name, to, folder):
    """As the models of gymnasium-robotics and metaworld are laid out."""
    out = folder.parents[3] / "out"
    (out / "tip.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    )
    file = folder / "robot.xml"
    file.write_text(SCENE[name].format(out if to == "absolute" else to, BODY))
    with pytest.raises(ts.RobotFileError, match="lies outside the folder") as told:
        ts.load(file)
    (trusted,) = re.findall(r"mesh_path=\['(.*)'\]", str(told.value))
    for folders in ([trusted], [out]):
        assert ts.load(file, mesh_path=folders).num_dof == 1
    with pytest.raises(ts.RobotFileError, match="lies outside the folder"):
        ts.load(file, mesh_path=[folder, out / "other"])


def test_what_a_text_includes_is_looked_through_in_the_working_directory(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(ts.RobotFileError, match=r"'link.xml'.*lies outside"):
        ts.load(mjcf('<include file="link.xml"/>'))


def test_a_folder_reached_by_a_link_is_the_users(folder):
    """What is within it is read, whatever leads to it: a folder, or the robot's file alone."""
    written(folder, {"robot.xml": mjcf('<include file="./part.xml"/>'), "a/child.xml": copied(3),
                     "part.xml": mjcf('<asset><model name="m" file="a/child.xml"/></asset>'
                                      f"<worldbody>{ATTACH}</worldbody>")})  # fmt: skip
    (folder.parent / "other").symlink_to(folder)
    assert ts.load(folder.parent / "other" / "robot.xml").num_dof == 3
    blobs = folder.parent / "snapshot"
    blobs.mkdir()
    for name in ("robot.xml", "part.xml", "a"):
        (blobs / name).symlink_to(folder / name)
    assert ts.load(blobs / "robot.xml").num_dof == 3
