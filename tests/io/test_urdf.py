"""The URDF reader: what it reads, what it reports, and what it refuses."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import torchsko as ts
from tests.io.urdf_texts import ENDS, ENTRIES, LINK, inertia, joint, robot
from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import rotation_from_rpy
from torchsko.io.urdf.read_urdf import read_urdf
from torchsko.io.xml.reader import MAX_DEPTH
from torchsko.mechanism.description import CouplingDescription

PANDA = Path(__file__).parents[2] / "torchsko" / "robots" / "panda.urdf"


def report(text: str, **options) -> list[str]:
    return [str(entry) for entry in read_urdf(text, **options).unused]


# What is read.


def test_a_link_keeps_mass_center_inertia_and_the_rotation_of_its_inertial_frame():
    link = robot(
        link='<link name="b"><inertial><origin xyz="1 2 3" rpy="0.1 -0.2 0.3"/><mass value="2e0"/>'
        '<inertia ixx="3" ixy="0.1" ixz=".2" iyy="4." iyz="-3e-1" izz="+5"/></inertial></link>'
    )
    b = read_urdf(link).links[1]
    assert (b.mass, b.com) == (2.0, (1.0, 2.0, 3.0))
    assert b.inertia == ((3.0, 0.1, 0.2), (0.1, 4.0, -0.3), (0.2, -0.3, 5.0))
    assert b.inertia_rotation == rotation_from_rpy((0.1, -0.2, 0.3))


def test_a_link_without_inertial_is_massless():
    a = read_urdf(robot()).links[0]
    assert a.mass == 0.0 and not np.array(a.inertia).any()


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("revolute", "revolute"),
        ("continuous", "revolute"),
        ("prismatic", "prismatic"),
        ("fixed", "fixed"),
        ("floating", "free"),
        ("planar", "planar"),
        ("spherical", "spherical"),
    ],
)
def test_each_joint_type_has_its_kind(kind, read):
    j = read_urdf(robot(joint(kind=kind))).joints[0]
    assert (j.name, j.kind, j.parent, j.child) == ("j", read, "a", "b")


def test_an_absent_origin_is_the_identity_and_an_absent_axis_is_x():
    j = read_urdf(robot(joint())).joints[0]
    assert (j.position, j.axis) == ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0))
    assert j.rotation == ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def test_half_an_origin_leaves_the_other_half_zero():
    j = read_urdf(robot(joint('<origin xyz="1 2 3"/>'))).joints[0]
    assert (j.position, j.rotation[0]) == ((1.0, 2.0, 3.0), (1.0, 0.0, 0.0))


@given(st.tuples(*[st.floats(-10, 10)] * 3), st.floats(-200, 200))
def test_axes_have_length_one_and_keep_their_direction(axis, exponent):
    norm = math.hypot(*axis)
    assume(norm > 1e-3)
    scale = 10.0**exponent
    assume(norm * scale > 1e-9)
    xyz = " ".join(repr(x * scale) for x in axis)
    read = read_urdf(robot(joint(f'<axis xyz="{xyz}"/>'))).joints[0].axis
    np.testing.assert_allclose(read, np.array(axis) / norm, rtol=0, atol=3e-14)


def test_limits_damping_and_friction_are_read():
    inside = (
        '<limit lower="-1" upper="2" velocity="3" effort="4"/><dynamics damping=".5" friction="6"/>'
    )
    j = read_urdf(robot(joint(inside))).joints[0]
    assert (j.lower, j.upper, j.velocity, j.effort) == (-1.0, 2.0, 3.0, 4.0)
    assert (j.damping, j.friction) == (0.5, 6.0)


def test_an_absent_position_limit_counts_as_zero_and_an_absent_limit_as_none():
    j = read_urdf(robot(joint('<limit upper="1"/>'))).joints[0]
    assert (j.lower, j.upper, j.velocity, j.effort) == (0.0, 1.0, math.inf, math.inf)
    assert read_urdf(robot(joint())).joints[0].upper == math.inf


def test_a_continuous_joint_has_no_limits_of_position():
    j = read_urdf(robot(joint('<limit lower="-1" upper="2" effort="4"/>', "continuous"))).joints[0]
    assert (j.lower, j.upper, j.effort) == (-math.inf, math.inf, 4.0)


def test_links_and_joints_keep_the_order_of_the_file():
    text = (
        '<robot name="r"><joint name="z" type="fixed"><parent link="a"/><child link="c"/></joint>'
        '<link name="c"/><link name="a"/><link name="b"/>'
        '<joint name="y" type="fixed"><parent link="a"/><child link="b"/></joint></robot>'
    )
    read = read_urdf(text)
    assert [x.name for x in read.links] == ["c", "a", "b"]
    assert [x.name for x in read.joints] == ["z", "y"]


def test_text_and_path_and_byte_order_mark_read_the_same(tmp_path):
    text = '\ufeff\n<?xml version="1.0" encoding="latin-1"?>' + robot(joint())
    file = tmp_path / "r.urdf"
    file.write_text(robot(joint()), encoding="utf-8-sig")
    assert read_urdf(text) == read_urdf(file) == read_urdf(str(file)) == read_urdf(robot(joint()))


LIMITS = {
    "": (-math.inf, math.inf),
    '<limit effort="1"/>': (0.0, 0.0),
    '<limit lower="-1"/>': (-1.0, 0.0),
    '<limit upper="2"/>': (0.0, 2.0),
    '<limit lower="-1" upper="2"/>': (-1.0, 2.0),
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("kind", ["revolute", "prismatic", "continuous"])
def test_an_absent_end_of_a_range_is_zero_and_an_absent_range_is_none(kind, limit):
    """As the format defines; a continuous joint has no range."""
    (read,) = read_urdf(robot(joint(limit, kind))).joints
    expected = (-math.inf, math.inf) if kind == "continuous" else LIMITS[limit]
    assert (read.lower, read.upper) == expected


# Rotations.


def elementary(axis: int, angle: float) -> np.ndarray:
    i, j = (axis + 1) % 3, (axis + 2) % 3
    R = np.eye(3)
    R[i, i] = R[j, j] = math.cos(angle)
    R[j, i] = math.sin(angle)
    R[i, j] = -math.sin(angle)
    return R


@given(st.tuples(*[st.floats(-7, 7)] * 3))
def test_rpy_turns_about_fixed_x_then_y_then_z(rpy):
    expected = elementary(2, rpy[2]) @ elementary(1, rpy[1]) @ elementary(0, rpy[0])
    np.testing.assert_allclose(rotation_from_rpy(rpy), expected, rtol=0, atol=3e-14)


@given(st.tuples(*[st.integers(-4, 4)] * 3))
def test_rotations_by_multiples_of_a_right_angle_are_exact(quarters):
    R = np.array(rotation_from_rpy(tuple(k * math.pi / 2 for k in quarters)))
    assert set(np.unique(np.abs(R))) == {0.0, 1.0}
    assert (R @ R.T == np.eye(3)).all()


# The report.


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (robot(link='<link name="b"><visual/><visual/></link>'), "link 'b' <visual> (2 times)"),
        (robot(link='<link name="b"><collision/></link>'), "link 'b' <collision>"),
        (robot(link='<link name="b" type="x"/>'), "link 'b' attribute 'type'"),
        (robot(more='<gazebo reference="a"/><gazebo/>'), "robot <gazebo> (2 times)"),
        (robot(more="<transmission/>"), "robot <transmission>"),
        (robot(more="<wings/>"), "robot <wings>"),
        (robot(joint("<safety_controller/>")), "joint 'j' <safety_controller>"),
        (robot(joint("<calibration/>")), "joint 'j' <calibration>"),
        (robot(joint('<dynamics K="1" D="2"/>')), "joint 'j' <dynamics> attribute 'K', 'D'"),
        (robot(joint('<limit current="1"/>')), "joint 'j' <limit> attribute 'current'"),
        (
            robot(joint('<limit lower="0" upper="1"/>', "continuous")),
            "joint 'j' <limit> attribute 'lower', 'upper'",
        ),
        (robot(joint('<axis xyz="0 0 1"/>', "fixed")), "joint 'j' <axis>"),
        (robot(joint('<axis xyz="0 0 1"/>', "floating")), "joint 'j' <axis>"),
        (robot(joint('<limit lower="0"/>', "fixed")), "joint 'j' <limit>"),
        (robot(joint('<dynamics damping="1"/>', "fixed")), "joint 'j' <dynamics>"),
        (robot(joint('<mimic joint="k"/>', "fixed")), "joint 'j' <mimic>"),
        (robot(joint('<origin xyz="0 0 0" w="1"/>')), "joint 'j' <origin> attribute 'w'"),
    ],
)
def test_what_is_not_used_is_reported_once_with_a_reason(text, entry):
    (line,) = report(text)
    element, reason = line.rsplit(": ", 1)
    assert element == entry and reason


def test_a_namespace_declaration_is_not_worth_reporting():
    assert report(robot().replace("<robot", '<robot xmlns:xacro="http://ros.org"')) == []


def test_a_mimic_joint_is_read_as_a_joint_that_follows():
    tag = '<mimic joint="k" multiplier="2" offset="-0.5" gain="1"/>'
    other = '<joint name="k" type="revolute"><parent link="b"/><child link="c"/></joint><link name="c"/>'
    read = read_urdf(robot(joint(tag) + other))
    assert read.joints == read_urdf(robot(joint() + other)).joints
    assert read.couplings == (CouplingDescription("j", {"k": 2.0}, -0.5),)
    (line,) = [str(line) for line in read.unused if "mimic" in str(line)]
    assert line.startswith("joint 'j' <mimic>") and "gain" in line
    plain = read_urdf(robot(joint('<mimic joint="k"/>') + other))
    assert plain.couplings == (CouplingDescription("j", {"k": 1.0}, 0.0),)


def test_an_independent_mimic_joint_is_an_ordinary_joint_and_reported():
    text = robot(joint('<mimic joint="k" multiplier="2"/>'))
    assert read_urdf(text, mimic="independent").joints == read_urdf(robot(joint())).joints
    (line,) = report(text, mimic="independent")
    assert line.startswith("joint 'j' <mimic>")


# Refusals.

TREE_OF_ITS_OWN = (
    '<link name="c"/><link name="d"/>'
    '<joint name="k" type="fixed"><parent link="c"/><child link="d"/></joint>'
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("<robot", "malformed"),
        ("<robot name='r'></link>", "malformed"),
        ("<robot name='r' name='s'/>", "malformed"),
        ("<robot name='\ud800'/>", "malformed"),
        ("<mujoco/>", "<mujoco>"),
        ("<robot name='r'/>", "no <link>"),
        ("<!DOCTYPE robot><robot name='r'/>", "DOCTYPE"),
        ("<!DOCTYPE r SYSTEM 'file:///etc/passwd'><r/>", "DOCTYPE"),
        ("<!DOCTYPE r [<!ENTITY lol 'x'><!ENTITY l2 '&lol;&lol;'>]><r>&l2;</r>", "'lol'"),
        ("<!DOCTYPE r [<!ENTITY f SYSTEM 'file:///etc/passwd'>]><r>&f;</r>", "'f'"),
        ("<!DOCTYPE r [<!ENTITY % p '<!ENTITY q \"x\">'>%p;]><r/>", "'p'"),
        ("<robot name='r'>" + "<a>" * MAX_DEPTH + "</a>" * MAX_DEPTH + "</robot>", "nested"),
        ("<html/>", "<robot> in URDF, <mujoco> in MJCF and <sdf> in SDF"),
        ("<mujocoinclude/>", "pass the file that includes it"),
        ("<package/>", "pass a robot file of that package"),
        (robot(link="<link/>"), "'name' of <link>"),
        (robot(link="<link name=' '/>"), "'name' of <link>"),
        (robot(link='<link name="a"/>'), "2 links are named 'a'"),
        (robot(joint() + joint()), "2 joints are named 'j'"),
        (robot(joint().replace('name="j"', "")), "'name' of <joint>"),
        (robot(joint().replace(' type="revolute"', "")), "joint 'j': attribute 'type'"),
        (robot(joint(kind="helical")), "joint 'j'"),
        (robot(joint(kind="hinge")), "'hinge'"),
        (
            robot(joint().replace('<parent link="a"/>', "")),
            "joint 'j': <joint> (line 1) has no <par",
        ),
        (robot(joint().replace('<child link="b"/>', "")), "has no <child>"),
        (robot(joint().replace('link="b"', 'body="b"')), "joint 'j': attribute 'link' of <child>"),
        (robot(joint().replace('link="b"', 'link="x"')), "joint 'j': its child link 'x'"),
        (robot(joint().replace('link="a"', 'link="x"')), "joint 'j': its parent link 'x'"),
        (robot(joint(ENDS)), "2 elements <parent>"),
        (robot(joint('<origin xyz="0 0"/>')), "joint 'j': attribute 'xyz' of <origin>"),
        (robot(joint('<origin rpy="0 0 x"/>')), "'x', which is not a number"),
        (robot(joint('<origin quat_xyzw="0 0 0 1"/>')), "quat_xyzw"),
        (robot(joint("<origin/><origin/>")), "2 elements <origin>"),
        (
            robot(joint('<axis xyz="0 0 0"/>')),
            "joint 'j': attribute 'xyz' of <axis> (line 1) is zero",
        ),
        (robot(joint('<axis xyz="0 0 nan"/>')), "'nan', which is not finite"),
        (robot(joint('<limit velocity="inf"/>')), "not finite"),
        (robot(joint("<mimic/>")), "mimic='independent'"),
        (robot(joint('<mimic joint="k" offset="x"/>')), "'offset'"),
        (robot(link=LINK.replace('value="2"', 'value="-2"')), "is -2.0, which is negative"),
        (robot(link=LINK.replace('value="2"', 'value="1_0"')), "not a number"),
        (robot(link=LINK.replace('value="2"', 'value="1e999"')), "not finite"),
        (robot(link=LINK.replace("<mass", "<mass value='1'/><mass")), "2 elements <mass>"),
        (robot(link=LINK.replace("</link>", "<inertial/></link>")), "2 elements <inertial>"),
        (robot(link=inertia(izz="Infinity")), "not finite"),
        (robot(more="<xacro:include filename='x'/>"), "xacro macro 'xacro:include'"),
        (robot(joint('<origin xyz="0 0 ${l}"/>')), "xacro macro '0 0 ${l}'"),
        (robot(joint("<xacro:if value='1'/>")), "xacro macro 'xacro:if'"),
        (robot() + robot(), "a separate file"),
        (robot(more=robot()), "there is a <robot> inside the <robot>"),
        (robot(joint() + TREE_OF_ITS_OWN), "2 trees, with the roots 'a' and 'c'"),
    ],
)
def test_a_file_at_fault_is_refused_once_by_name(text, named):
    for strict in (False, True):
        with pytest.raises(RobotFileError) as caught:
            read_urdf(text, strict=strict)
        what, why, remedy = str(caught.value).split("\n")
        assert named in str(caught.value) and what and why and remedy


def test_the_message_names_line_and_file(tmp_path):
    file = tmp_path / "r.urdf"
    file.write_text(robot(joint('\n\n<axis xyz="0 0 0"/>')))
    with pytest.raises(RobotFileError, match=r"r\.urdf: joint 'j'.*line 3"):
        read_urdf(file)


@pytest.mark.parametrize("name", ["absent.urdf", ".", "a\0b", "x" * 5000, "", "a\n<robot/>"])
def test_a_path_that_cannot_be_read_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RobotFileError, match="cannot be read") as told:
        read_urdf(name)
    assert told.value.advice and len(str(told.value)) < 600


def test_an_unknown_encoding_is_refused(tmp_path):
    file = tmp_path / "r.urdf"
    file.write_text('<?xml version="1.0" encoding="klingon"?>' + robot())
    with pytest.raises(RobotFileError, match="malformed"):
        read_urdf(file)


def test_a_file_far_too_large_is_not_read(monkeypatch, tmp_path):
    monkeypatch.setattr("torchsko.io.xml.reader.MAX_BYTES", 10)
    file = tmp_path / "r.urdf"
    file.write_text(robot())
    for source in (file, robot()):
        with pytest.raises(RobotFileError, match="larger"):
            read_urdf(source)


def test_mimic_takes_two_words_only():
    with pytest.raises(RobotFileError, match="mimic='independent'"):
        read_urdf(robot(), mimic="maybe")  # pyright: ignore[reportArgumentType]


# Which inertias are physical.


@given(st.lists(st.tuples(*[st.floats(-1, 1)] * 3), min_size=1, max_size=8), st.floats(-9, 9))
def test_the_inertia_of_any_cloud_of_points_loads(points, exponent):
    r = np.array(points) * 10.0**exponent
    r = r - r.mean(0)
    full = (r**2).sum() * np.eye(3) - r.T @ r
    ixx, ixy, ixz, iyy, iyz, izz = full[np.triu_indices(3)] / len(points)
    entries = {"ixx": ixx, "ixy": ixy, "ixz": ixz, "iyy": iyy, "iyz": iyz, "izz": izz}
    written = inertia(**{k: f"{v:.17g}" for k, v in entries.items()})
    read_urdf(robot(joint(), written), strict=True)


@given(
    st.floats(0.01, 1), st.floats(0.01, 1), st.floats(1e-4, 5), st.tuples(*[st.floats(-3, 3)] * 3)
)
def test_a_moment_above_the_sum_of_the_others_is_refused_in_any_axes(a, b, excess, rpy):
    R = np.array(rotation_from_rpy(rpy))
    full = R @ np.diag([a, b, a + b + excess]) @ R.T
    ixx, ixy, ixz, iyy, iyz, izz = full[np.triu_indices(3)]
    entries = {"ixx": ixx, "ixy": ixy, "ixz": ixz, "iyy": iyy, "iyz": iyz, "izz": izz}
    with pytest.raises(RobotFileError, match="link 'b': the <inertia> is unphysical"):
        read_urdf(robot(link=inertia(**{k: f"{v:.17g}" for k, v in entries.items()})), strict=True)


def dummy_link(joint_type: str, name: str = "dummy") -> str:
    ones = " ".join(f'{k}="1e-3"' for k in ENTRIES)
    return (
        f'<link name="{name}"><inertial><mass value="0.1"/><inertia {ones}/></inertial></link>'
        f'<joint name="k" type="{joint_type}"><origin xyz="1 2 3" rpy="1 2 3"/>'
        f'<parent link="b"/><child link="{name}"/></joint>'
    )


def test_an_unphysical_link_loads_if_the_rigid_body_it_is_fixed_to_is_physical():
    (line,) = report(robot(more=dummy_link("fixed")))
    assert line.startswith("link 'dummy' <inertia>") and "0.003" in line


def test_an_unphysical_link_that_moves_by_itself_is_refused():
    with pytest.raises(RobotFileError, match="link 'dummy': the <inertia> is unphysical"):
        read_urdf(robot(more=dummy_link("revolute")), strict=True)


def test_an_unphysical_link_fixed_to_massless_ones_is_refused():
    with pytest.raises(RobotFileError, match=r"link 'dummy'.*also of the 2 links"):
        read_urdf(robot(link='<link name="b"/>', more=dummy_link("fixed")), strict=True)


def test_round_off_in_the_place_of_zero_inertia_loads():
    tiny = {"ixx": "1e-20", "ixy": "0", "ixz": "0", "iyy": "0", "iyz": "0", "izz": "-1e-20"}
    assert report(robot(link=inertia(**tiny))) == []


# Any number.


def test_a_digit_of_a_real_robot_is_read_as_another_number_or_refused_by_name():
    """Most digits may be any other; letters, signs and exponents make some numbers invalid."""
    text, g, loaded = PANDA.read_text().split("-->")[1], random.Random(0), 0
    digits = [i for i, c in enumerate(text) if c.isdigit()]
    for at in g.sample(digits, 150):
        new = g.choice([*"0123456789", "e300", "e-300", "-", "."])
        try:
            loaded += len(read_urdf(text[:at] + new + text[at + 1 :]).joints) == 8
        except RobotFileError as error:
            assert error.what and error.advice
    assert 50 < loaded < 150


# The robot that ships with the package.


def test_the_panda_has_seven_joints_and_nothing_left_over():
    panda = read_urdf(PANDA)
    assert [x.name for x in panda.links] == [*(f"link{i}" for i in range(8)), "flange"]
    moving = [x for x in panda.joints if x.kind != "fixed"]
    assert [x.name for x in moving] == [f"joint{i}" for i in range(1, 8)]
    assert panda.unused == ()


def test_the_panda_is_placed_by_its_denavit_hartenberg_table():
    """In Craig's convention: turn alpha and shift a on x, then turn theta and shift d on z."""
    right = math.pi / 2
    a = [0, 0, 0, 0.0825, -0.0825, 0, 0.088, 0]
    d = [0.333, 0, 0.316, 0, 0.384, 0, 0, 0.107]
    alpha = [0, -right, right, right, -right, right, right, 0]
    for i, placed in enumerate(read_urdf(PANDA).joints):
        R = elementary(0, alpha[i])
        np.testing.assert_allclose(placed.rotation, R, atol=1e-15)
        np.testing.assert_allclose(placed.position, [a[i], 0, 0] + R @ [0, 0, d[i]], atol=1e-15)


def test_inertias_of_links_that_do_not_move_are_reported():
    def reported(mech):
        return [entry.element for entry in mech.unused if "<inertial>" in entry.element]

    assert reported(ts.load(PANDA)) == ["link 'link0' <inertial>"]
    assert reported(ts.load(PANDA, floating_base=True)) == []


def test_limits_that_no_equation_of_motion_holds_are_reported():
    told = {entry.element: entry.reason for entry in ts.load(PANDA).unused}
    others = "joint 'joint1' and 6 more"
    assert "rollout(limits=" in told[f"limits of position of {others}"]
    assert 'rollout(effort="clamp")' in told[f"limits of effort of {others}"]
    assert f"limits of velocity of {others}" in told
    builder = ts.MechanismBuilder().link("rod", mass=1.0, com=(0, 0, -1))
    builder.joint("pin", "revolute", child="rod", axis=(0, 1, 0), upper=1.0)
    assert [x.element for x in builder.build().unused] == ["limits of position of joint 'pin'"]


def test_limits_that_allow_nothing_are_reported_with_what_to_type():
    builder = ts.MechanismBuilder().link("rod", mass=1.0, com=(0, 0, -1))
    builder.joint(
        "pin", "revolute", child="rod", axis=(0, 1, 0), lower=0, upper=0, velocity=0, effort=0
    )
    mech = builder.build()
    told = {entry.element: entry.reason for entry in mech.unused}
    assert "mech.replace(lower=" in told["limits of position (equal) of joint 'pin'"]
    assert "mech.replace(velocity_limit=" in told["limit of velocity 0 of joint 'pin'"]
    assert "mech.replace(effort_limit=" in told["limit of effort 0 of joint 'pin'"]
    q, qd = mech.random_state(5)
    assert not q.any() and not qd.any()
