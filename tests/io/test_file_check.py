"""One warning names the faults of a file and the missing parts of its dynamics; strict refuses them."""

import re
import warnings

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.io.urdf_texts import LINK, joint, robot
from tests.strategies import agree

mujoco = pytest.importorskip("mujoco")

GEOM = '<geom size="0.1"/>'
ANT = """<mujoco model="ant"><compiler autolimits="true"/><worldbody>
<geom name="floor" type="plane" size="1 1 1"/>
<body name="torso" pos="0 0 1"><joint name="root" type="free" frictionloss="1"/>
<geom name="torso_geom" size="0.1"/><body name="leg" pos="0.3 0 0"><joint name="hip" axis="0 1 0"/>
<geom name="leg_geom" size="0.05"/></body>
<body name="arm" pos="0 0.5 0"><joint name="shoulder" axis="0 1 0"/><geom size="0.05"/></body></body>
</worldbody><equality><connect name="strut" body1="leg" body2="arm" anchor="0 0 0"/></equality></mujoco>"""


def load_with_warnings(source, **options):
    """The mechanism, and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mech = ts.load(source, **options)
    assert all(w.category is ts.RobotFileWarning and w.filename == __file__ for w in caught)
    return mech, [str(w.message) for w in caught]


PARTS = {
    "contacts": "(floor, torso_geom, leg_geom, geom3): contact acts in ts.step",
    "loops": "loop 'strut' (connect of 'leg' and 'arm'): is cut",
    "dry friction of free joints": "1 free joints with dry friction (root): it acts along the axes",
}


def test_one_warning_names_the_parts_of_the_dynamics_that_are_missing():
    mech, texts = load_with_warnings(ANT)
    (text,) = texts
    assert all(part in text for part in PARTS.values()), text
    missing = [entry for entry in mech.unused if entry.changes_dynamics]
    assert len(missing) == len(PARTS) and all(str(entry) in text for entry in missing)
    absent = [entry for entry in missing if not entry.in_step]
    with pytest.raises(ts.RobotFileError) as refused:
        ts.load(ANT, strict=True)
    assert any(str(entry) in str(refused.value) for entry in absent) and refused.value.advice


def test_strict_accepts_the_parts_that_a_step_includes():
    text = ANT.replace(' frictionloss="1"', "")
    mech, (warning,) = load_with_warnings(text, strict=True)
    assert "ts.forward_dynamics and ts.rollout" in warning and "loop 'strut'" in warning
    contact = ts.ContactModel.of(mech)
    assert contact.pair_names and contact.equality_names == ("strut",)


def test_a_compiled_model_warns_as_its_file_does():
    (from_file,) = load_with_warnings(ANT)[1]
    with pytest.warns(ts.RobotFileWarning) as caught:
        ts.from_mujoco(mujoco.MjModel.from_xml_string(ANT))
    assert [str(w.message) for w in caught] == [from_file]


CALM = (
    ANT.replace(' frictionloss="1"', "").replace("<geom ", '<geom contype="0" ')
    .replace("<connect", '<connect active="false"')
)  # fmt: skip


def test_a_file_whose_dynamics_is_complete_loads_without_a_warning():
    mech, texts = load_with_warnings(CALM, strict=True)
    assert texts == [] and not any(entry.changes_dynamics for entry in mech.unused)


OFF = '<option><flag {}="disable"/></option>'
PAIR = '<contact><pair geom1="floor" geom2="leg_geom"/></contact>'
CONTACTS = {
    "floor": (ANT, True),
    "flag": (ANT.replace("</mujoco>", OFF.format("contact") + "</mujoco>"), False),
    "constraint flag": (ANT.replace("</mujoco>", OFF.format("constraint") + "</mujoco>"), False),
    "no bits": (ANT.replace("<geom ", '<geom contype="0" conaffinity="0" '), False),
    "one-sided bits": (ANT.replace("<geom ", '<geom contype="1" conaffinity="0" '), False),
    "pair": (CALM.replace("</mujoco>", f"{PAIR}</mujoco>"), True),
}  # fmt: skip


def body(name: str, inside: str = "", pos: str = "0 0 0") -> str:
    return (
        f'<body name="{name}" pos="{pos}"><joint name="{name}j" axis="0 1 0"/>{GEOM}{inside}</body>'
    )


def scene(inside: str, more: str = "") -> str:
    return f"<mujoco><worldbody>{inside}</worldbody>{more}</mujoco>"


EXCLUDE = '<contact><exclude body1="a" body2="c"/></contact>'
CONTACTS |= {
    "parent and child": (scene(body("a", body("b"))), False),
    "parent and child without filter": (
        scene(body("a", body("b")), OFF.format("filterparent")), True
    ),
    "grandparent": (scene(body("a", body("b", body("c")))), True),
    "excluded grandparent": (scene(body("a", body("b", body("c"))), EXCLUDE), False),
    "welded to the child": (
        scene(body("a", body("b").replace("</body>", f'<body name="c">{GEOM}</body></body>'))), False
    ),
    "body and world": (scene(GEOM + body("a")), True),
    "siblings": (scene(body("a") + body("b")), True),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTACTS)
def test_contacts_are_named_exactly_if_mujoco_can_make_them(name):
    """All bodies are put in one place, where MuJoCo finds every contact that its filters permit."""
    text, expected = CONTACTS[name]
    mech = load_with_warnings(text)[0]
    assert any("can touch" in entry.element for entry in mech.unused) == expected
    model = mujoco.MjModel.from_xml_string(text)
    model.body_pos[:], model.geom_pos[:] = 0.0, 0.0
    data = mujoco.MjData(model)
    data.qpos[:] = 0.0
    mujoco.mj_kinematics(model, data)
    mujoco.mj_collision(model, data)
    assert (data.ncon > 0) == expected


LOSSES = {"damping": "damping", "friction": "frictionloss", "armature": "armature"}
SDF = """<sdf version="1.9"><model name="m"><link name="b"><inertial><mass>1</mass></inertial></link>
<joint name="j" type="revolute"><parent>world</parent><child>b</child><axis><xyz>0 0 1</xyz><dynamics>
<{0}>-0.3</{0}></dynamics></axis></joint></model></sdf>"""


def builder(field: str) -> ts.MechanismBuilder:
    one = ts.MechanismBuilder("m").link("b", mass=1.0, inertia=np.eye(3).tolist())
    return one.joint("j", "revolute", child="b", axis=(0, 0, 1), **{field: -0.3})


def negative_files(field: str) -> dict[str, str]:
    """A joint with a negative parameter in each format that has the parameter."""
    inertial = '<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>'
    files = {
        "mjcf": f'<mujoco><worldbody><body name="b"><joint name="j" {LOSSES[field]}="-0.3"/>{inertial}'
        "</body></worldbody></mujoco>"
    }
    if field != "armature":
        files["urdf"] = robot(joint(f'<axis xyz="0 0 1"/><dynamics {field}="-0.3"/>', "continuous"))
        files["sdf"] = SDF.format(field)
    return files


@pytest.mark.parametrize("field", LOSSES)
def test_every_reader_reports_a_negative_parameter_and_refuses_it_when_strict(field):
    for text in negative_files(field).values():
        mech, (said,) = load_with_warnings(text)
        assert getattr(mech, field).tolist() == [-0.3]
        assert f"joint 'j' {field}: -0.3, which is negative: used as written" in said
        assert f"joint 'j' {field}" in {fault.element for fault in mech.report}
        with pytest.raises(ts.TorchskoError, match=f"joint 'j'.*{field}"):
            ts.load(text, strict=True)
    assert builder(field).build(strict=False).report[0].element == f"joint 'j' {field}"
    with pytest.raises(ts.MechanismError, match=f"joint 'j' has {field} = -0.3"):
        builder(field).build()


@pytest.mark.parametrize("kind", ["site", "camera"])
def test_a_site_with_the_name_of_its_body_is_named_in_the_warning(kind):
    """MuJoCo's site is 0.2 m further than the body: the frame with its name is that of the body."""
    text = scene(body("tool", f'<{kind} name="tool" pos="0 0 0.2"/>', pos="0 0 0.5"))
    mech, (said,) = load_with_warnings(text)
    assert f"{kind} 'tool': has the name of another frame: its frame is 'tool_{kind}'" in said
    q = mech.neutral()
    agree(ts.frame_pose(mech, q, "tool").position, torch.tensor([0, 0, 0.5], dtype=q.dtype), 1e-15)
    agree(
        ts.frame_pose(mech, q, f"tool_{kind}").position,
        torch.tensor([0, 0, 0.7], dtype=q.dtype),
        1e-15,
    )
    with pytest.raises(ts.RobotFileError, match=f"tool_{kind}"):
        ts.load(text, strict=True)


LOOP = """<sdf version="1.9"><model name="m">{0}<joint name="j" type="ball">
<parent>world</parent><child>a</child></joint>
<joint name="k" type="ball"><parent>a</parent><child>b</child></joint>
<joint name="l" type="ball"><parent>b</parent><child>world</child></joint></model></sdf>"""
BODIES = "".join(f"<link name='{x}'><inertial><mass>1</mass></inertial></link>" for x in "ab")


@pytest.mark.parametrize("tag", ["static", "fluid_added_mass", "velocity_decay", "enable_wind"])
def test_parts_of_sdf_that_change_the_dynamics_are_named(tag):
    open_chain = LOOP[: LOOP.index('<joint name="l"')] + "</model></sdf>"
    link, more = BODIES, f"<{tag}>true</{tag}>"
    if tag == "fluid_added_mass":
        link = link.replace("</inertial>", f"{more}</inertial>", 1)
    elif tag == "static":
        link = link + more
    else:
        link = link.replace("</link>", f"{more}</link>", 1)
    (said,) = load_with_warnings(open_chain.format(link))[1]
    assert f"<{tag}> in" in said
    with pytest.raises(ts.RobotFileError, match=f"<{tag}> in"):
        ts.load(open_chain.format(link), strict=True)


def test_a_loop_of_sdf_is_named():
    text = LOOP.replace("<parent>b</parent><child>world", "<parent>world</parent><child>b")
    mech, (said,) = load_with_warnings(text.format(BODIES), strict=True)
    assert "loop 'l' (connect of 'l_1' and 'b'): is cut" in said
    assert ts.ContactModel.of(mech).equality_names == ("l",)


SECOND_LINK = LINK.replace('"b"', '"c"').replace("<inertial>", '\n<inertial mass="3">')
SECOND_JOINT = joint("", name="k").replace('child link="b"', 'child link="c"')
ATTRIBUTES = {
    "axis": (joint("").replace("<joint ", '\n<joint axis="0 0 1" '), "joint 'j'"),
    "limit": (joint("").replace("<joint ", '\n<joint limit="-1 1" '), "joint 'j'"),
    "mass": (joint("") + SECOND_LINK + SECOND_JOINT, "link 'c' <inertial>"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_urdf_has_as_an_element_is_reported_with_its_line(name):
    inside, where = ATTRIBUTES[name]
    said = "\n".join(load_with_warnings(robot(inside))[1])
    assert (
        f"{where} attribute '{name}' (line 2): not read, since {name!r} is an element in URDF"
        in said
    )
    with pytest.raises(ts.RobotFileError, match=rf"attribute '{name}' \(line 2\)"):
        ts.load(robot(inside), strict=True)


def test_an_element_that_urdf_has_as_an_attribute_is_reported_with_its_line():
    text = robot(joint("<dynamics>\n<damping>0.3</damping></dynamics>", "continuous"))
    (said,) = load_with_warnings(text)[1]
    assert "<damping> (line 2): not read, since 'damping' is an attribute in URDF" in said


FINGER = LINK.replace('"b"', '"c"') + joint("{}", "revolute", "k").replace(
    'child link="b"', 'child link="c"'
)


def mimicking(mimic: str, kind: str = "continuous", follower: str = "revolute") -> str:
    finger = FINGER.format(f'{mimic}<limit lower="-1" upper="1"/>').replace("revolute", follower)
    return robot(joint('<axis xyz="0 1 0"/>', kind), more=finger)


def test_a_mimic_of_an_unknown_joint_is_named_in_the_warning():
    text = mimicking('<mimic joint="jj"/>')
    mech, (said,) = load_with_warnings(text)
    assert mech.num_dof == 2
    assert "joint 'k' <mimic>: refers to the unknown joint 'jj': read as an independent" in said
    with pytest.raises(ts.RobotFileError, match=r"named 'jj'\.\nThere are 2: 'j', 'k'"):
        ts.load(text, strict=True)


@pytest.mark.parametrize("attribute", ["multiplier", "offset"])
@pytest.mark.parametrize("value", [1e300, -1e60])
def test_a_mimic_whose_products_overflow_is_refused(attribute, value):
    with pytest.raises(ts.MechanismError, match=re.escape(f"coupling 'k': a number is {value:g}")):
        ts.load(mimicking(f'<mimic joint="j" {attribute}="{value}"/>'))


def test_followers_of_followers_whose_products_overflow_are_refused():
    """Four joints in a row, each at 1e49 times the angle of the one before it."""
    links = "".join(LINK.replace('"b"', f'"{x}"') for x in "bcde")
    joints = "".join(
        joint(f'<mimic joint="j{k - 1}" multiplier="1e49"/>' * (k > 0), "continuous", f"j{k}")
        .replace('"a"', f'"{parent}"').replace('child link="b"', f'child link="{child}"')
        for k, (parent, child) in enumerate(zip("abcd", "bcde", strict=True))
    )  # fmt: skip
    with pytest.raises(ts.MechanismError, match="coupling 'j2': the product"):
        ts.load(robot(links + joints, link=""))


def test_a_mimic_within_the_range_has_finite_dynamics():
    mech = ts.load(mimicking('<mimic joint="j" multiplier="1e49"/>'))
    q, qd = mech.random_state()
    assert bool(ts.inverse_dynamics(mech, q, qd, qd).isfinite().all())


def test_a_mimic_of_a_fixed_joint_is_constant():
    """As if the follower were welded at its offset."""
    moving = (
        joint('<axis xyz="0 1 0"/>', "continuous", "m").replace('"b"', '"d"').replace('"a"', '"c"')
    )
    moving += LINK.replace('"b"', '"d"')
    text = mimicking('<mimic joint="j" multiplier="3" offset="0.4"/><axis xyz="0 0 1"/>', "fixed")
    mech = ts.load(text.replace("</robot>", f"{moving}</robot>"))
    free = ts.load(text.replace("</robot>", f"{moving}</robot>"), mimic="independent")
    locked = free.lock({"k": 0.4})
    assert mech.joint_names == locked.joint_names == ("m",)
    q, qd = mech.random_state(5)
    agree(ts.inverse_dynamics(mech, q, qd, qd), ts.inverse_dynamics(locked, q, qd, qd), 1e-14)
    agree(ts.expand(mech, q)[:, 0], torch.full((5,), 0.4, dtype=q.dtype), 1e-15)


def test_a_mimic_on_a_fixed_joint_has_no_effect():
    mech = ts.load(mimicking('<mimic joint="j"/>', follower="fixed"))
    assert mech.joint_names == ("j",) and mech.coupling is None
