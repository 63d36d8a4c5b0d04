"""The XML reader accepts every text that MuJoCo's parser accepts, and finds all its elements."""

import random
from collections import Counter

import pytest

import torchsko as ts
from tests.io.test_file_access import assert_inverse_dynamics
from torchsko.io.urdf.read_urdf import read_urdf
from torchsko.io.xml.reader import read_document

mujoco = pytest.importorskip("mujoco")

BODY = """<worldbody><body name="b"><joint name="j" axis="0 1 0" damping="0.1"/>
<geom type="box" size="0.1 0.2 0.3" pos="0.1 0 0.2"/></body></worldbody>"""
PLAIN = f"<mujoco model='m'>{BODY}</mujoco>"
COMMENTED = f"<mujoco model='m'><!-- ## --><size/>{BODY}<!-- ## --></mujoco>"
LENIENT = {
    "comment with two hyphens": f"<mujoco><!-- a -- b -->{BODY}</mujoco>",
    "comment with three hyphens at its end": f"<mujoco><!-- a --->{BODY}</mujoco>",
    "comment with a control character": f"<mujoco><!-- \x01 -->{BODY}</mujoco>",
    "comment with a tag": f"<mujoco><!-- <body> -- </mujoco> -->{BODY}</mujoco>",
    "declaration as comment": f"<mujoco><! text ... />{BODY}</mujoco>",
    "element declaration": f"<mujoco><!ELEMENT body>{BODY}</mujoco>",
    "lone ampersand": f'<mujoco model="a&b">{BODY}</mujoco>',
    "less than in a value": f'<mujoco model="a<b">{BODY}</mujoco>',
    "no space between attributes": f'<mujoco><size nkey="0"nuserdata="1"/>{BODY}</mujoco>',
    "space before a name": f"<mujoco>{BODY}< /mujoco >",
    "attribute of an end tag": f'<mujoco>{BODY}</mujoco x="1">',
    "second root": f'<mujoco>{BODY}</mujoco><mujoco><worldbody><body name="c"/></worldbody></mujoco>',
    "unknown encoding": f'<?xml version="1.0" encoding="klingon"?><mujoco>{BODY}</mujoco>',
    "character data": f"<mujoco><![CDATA[ <body> ]]>{BODY}</mujoco>",
    "character reference": PLAIN.replace('name="b"', 'name="&#98;"'),
}


@pytest.mark.parametrize("name", LENIENT)
@pytest.mark.parametrize("from_file", [False, True])
def test_lenient_mjcf_has_the_dynamics_of_mujoco(name, from_file, tmp_path):
    """A box on a hinge, at 1e-9 of MuJoCo's inverse dynamics of the same text."""
    text = LENIENT[name]
    (tmp_path / "robot.xml").write_text(text)
    mech = ts.load(tmp_path / "robot.xml" if from_file else text)
    model = mujoco.MjModel.from_xml_string(text)
    assert_inverse_dynamics(mech, model)
    assert mech.joint_names == ("j",) and mech.body_names == ("b",)


SWING = (
    '<robot name="r"><link name="a"/>{}<link name="b"><inertial><mass value="1"/><inertia ixx="1" ixy="0" '
    'ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link><joint name="j" type="continuous">'
    '<parent link="a"/><child link="b"/></joint></robot>'
)


@pytest.mark.parametrize("more", ["<!-- a -- b -->", "<! text />", "<!-- \x01 -->"])
def test_urdf_with_lenient_comments_is_that_without(more):
    assert read_urdf(SWING.format(more)) == read_urdf(SWING.format(""))


def test_a_lenient_comment_is_unchanged_when_a_robot_is_saved(tmp_path):
    old, new = tmp_path / "old.urdf", tmp_path / "new.urdf"
    old.write_text(SWING.format("<!-- a -- b --><! text />").replace('xx="1" ixy', 'xx="1"ixy'))
    mech = ts.load(old)
    ts.save(mech.replace(mass=2 * mech.mass), new, like=old)
    assert new.read_text() == old.read_text().replace('mass value="1"', 'mass value="2.0"')


def test_only_the_first_root_of_a_urdf_file_may_be_written():
    with pytest.raises(ts.RobotFileError, match=r"line 2: there is text after the end of the root"):
        read_urdf(SWING.format("") + "\n" + SWING.format(""))


TOKENS = [
    "<!--", "-->", "--", "<!", "<![CDATA[", "]]>", "<?x", "?>", "<", ">", "/", "</", "/>", '"', "'", "=",
    "&", "&#98;", "&lt;", "\0", "\x01", "\n", " ", "\t", "\xe9", "x", "<body/>", "<body>", "</body>",
    "<!-- <body/> -->", "<!-- -- <body/> -->", '<site name="<body/>"/>', "</mujoco>", "<mujoco>", 'y="1"',
]  # fmt: skip


def mutated(g: random.Random) -> str:
    """A valid model with a few tokens inserted, most of them in comments and values, or slices deleted."""
    text = COMMENTED
    for _ in range(g.randint(1, 4)):
        at = g.choice(
            [text.find("##") + 1, text.rfind("##"), text.find("m'>"), g.randrange(len(text))]
        )
        text = text[:at] + g.choice(TOKENS) + text[at + g.choice([0, 0, 0, 1, 3, 12]) :]
    return text


def check_texts(count: int, seed: int) -> None:
    """Every text that MuJoCo compiles is parsed, with all bodies that MuJoCo finds."""
    g, compiled, mutations = random.Random(seed), 0, set()
    for i in range(count):
        text = mutated(g)
        try:
            model = mujoco.MjModel.from_xml_string(text)
        except (ValueError, TypeError):
            continue
        if "\0" in text or not text.startswith("<"):  # MuJoCo stops at the one, and skips the other
            continue
        compiled += 1
        mutations.add(text)
        bodies = [e for e in read_document(text, mujoco=True).root.walk() if e.tag == "body"]
        found = Counter(e.attributes.get("name", "") for e in bodies)
        # MuJoCo ignores a <body> outside <worldbody>.
        assert found >= Counter(model.body(b).name for b in range(1, model.nbody)), (seed, i, text)
    assert len(mutations) > count // 10 and compiled > count // 10


def test_all_bodies_of_mutated_texts_that_mujoco_compiles_are_found():
    check_texts(1500, seed=0)


def test_mujoco_reads_a_closed_end_tag_as_an_empty_element():
    text = "<mujoco></size/><worldbody></body/><body name='b'/></worldbody></mujoco>"
    bodies = [e for e in read_document(text, mujoco=True).root.walk() if e.tag == "body"]
    assert mujoco.MjModel.from_xml_string(text).nbody == 1 + len(bodies) == 3
    with pytest.raises(ts.RobotFileError, match="is not a tag"):
        read_document(text)


@pytest.mark.nightly
def test_all_bodies_of_20000_mutated_texts_that_mujoco_compiles_are_found():
    check_texts(20_000, seed=1)
