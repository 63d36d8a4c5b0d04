"""SDF 1.4 to 1.12: each rule that concerns dynamics, against its closed form."""

import math

import pytest
import torch

import torchsko as ts
from tests.strategies import agree

VERSIONS = [f"1.{minor}" for minor in range(4, 13)]
INERTIA = "<inertia><ixx>.02</ixx><iyy>.02</iyy><izz>.03</izz></inertia>"
AXIS = "<axis><xyz{attribute}>{xyz}</xyz>{more}</axis>"


def sdf(version: str, inside: str, around: str = "{}") -> str:
    model = around.format(f"<model name='m'>{inside}</model>")
    return f'<sdf version="{version}">{model}</sdf>'


def link(name: str, pose: str = "0 0 0 0 0 0", more: str = "", attribute: str = "") -> str:
    return (
        f"<link name='{name}'><pose{attribute}>{pose}</pose><inertial><mass>2</mass>{INERTIA}"
        f"</inertial>{more}</link>"
    )


def joint(axis: str = "", kind: str = "revolute", more: str = "", name: str = "j") -> str:
    return (
        f"<joint name='{name}' type='{kind}'><parent>base</parent><child>wheel</child>{more}{axis}"
        "</joint>"
    )


ROLLED = link("base") + link("wheel", f"0 0 0 {-math.pi / 2!r} 0 0")
"""A wheel whose frame is rolled by -pi/2: its y axis is -z of the model, its z axis is y."""


def world_axis(mech: ts.Mechanism) -> torch.Tensor:
    """Axis of the only joint in the world."""
    return ts.frame_jacobian(mech, mech.neutral(), "wheel", reference="world")[:3, 0]


def flag(text: str) -> str:
    return f"<use_parent_model_frame>{text}</use_parent_model_frame>"


def reads_axis(version: str, more: str, attribute: str = "") -> list[float]:
    axis = AXIS.format(attribute=attribute, xyz="0 1 0", more=more)
    return world_axis(ts.load(sdf(version, ROLLED + joint(axis)))).round(decimals=15).tolist()


IN_MODEL, IN_JOINT = [0.0, 1.0, 0.0], [0.0, 0.0, -1.0]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_axis_is_in_the_model_until_1_4_and_in_the_joint_from_1_5(version):
    assert reads_axis(version, "") == (IN_MODEL if version == "1.4" else IN_JOINT)


@pytest.mark.parametrize("text", ["1", "true", "True", "TRUE", "0", "false"])
@pytest.mark.parametrize("version", ["1.5", "1.6"])
def test_use_parent_model_frame_selects_the_frame_of_an_axis(version, text):
    expected = IN_JOINT if text in ("0", "false") else IN_MODEL
    assert reads_axis(version, flag(text)) == expected


@pytest.mark.parametrize("version", ["1.7", "1.12"])
def test_use_parent_model_frame_is_reported_and_has_no_effect_from_1_7(version):
    with pytest.warns(ts.RobotFileWarning, match="<use_parent_model_frame> .line 1.: read until"):
        assert reads_axis(version, flag("1")) == IN_JOINT
    assert reads_axis(version, "", ' expressed_in="__model__"') == IN_MODEL


def test_the_second_axis_of_1_4_is_in_the_model():
    axes = AXIS.format(attribute="", xyz="1 0 0", more="")
    axes += axes.replace("axis>", "axis2>").replace("1 0 0", "0 1 0")
    mech = ts.load(sdf("1.4", ROLLED + joint(axes, "universal")))
    J = ts.frame_jacobian(mech, mech.neutral(), "wheel", reference="world")
    agree(J[:3].mT, torch.eye(3, dtype=J.dtype)[:2], 1e-15)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pose_has_the_reference_frame_that_its_version_names(version):
    """`frame` in 1.5 and 1.6, `relative_to` from 1.7; the default of a link is the model."""
    frame = "frame" if version in ("1.5", "1.6") else "relative_to"
    links = link("base", "1 0 0 0 0 0") + link("wheel", "0 2 0 0 0 0", attribute=f" {frame}='base'")
    mech = ts.load(sdf(version, links + joint(AXIS.format(attribute="", xyz="0 0 1", more=""))))
    assert ts.frame_pose(mech, mech.neutral(), "wheel").position.tolist() == [1.0, 2.0, 0.0]


@pytest.mark.parametrize("version", ["1.4", "1.7", "1.12"])
def test_the_attribute_frame_of_a_pose_is_reported_where_the_version_has_none(version):
    links = link("base", "1 0 0 0 0 0") + link("wheel", "0 2 0 0 0 0", attribute=" frame='base'")
    with pytest.warns(ts.RobotFileWarning, match="attribute 'frame' .line 1.: read in versions"):
        mech = ts.load(sdf(version, links + joint(AXIS.format(attribute="", xyz="0 0 1", more=""))))
    assert ts.frame_pose(mech, mech.neutral(), "wheel").position.tolist() == [0.0, 2.0, 0.0]


@pytest.mark.parametrize("version", VERSIONS)
def test_gravity_is_in_physics_until_1_5_and_in_the_world_from_1_6(version):
    inside = ROLLED + joint(AXIS.format(attribute="", xyz="0 0 1", more=""))
    moon = "<gravity>0 0 -1.62</gravity>"
    both = {
        "physics": f"<world name='w'><physics type='ode'>{moon}</physics>{{}}</world>",
        "world": f"<world name='w'>{moon}{{}}</world>",
    }
    place = "physics" if version in ("1.4", "1.5") else "world"
    assert ts.load(sdf(version, inside, both[place])).gravity.tolist() == [0.0, 0.0, -1.62]
    empty = ts.load(sdf(version, inside, "<world name='w'>{}</world>"))
    assert empty.gravity.tolist() == [0.0, 0.0, -9.8]  # the format's default
    assert ts.load(sdf(version, inside)).gravity.tolist() == [0.0, 0.0, -9.81]  # without a world


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_inertial_values_are_those_of_a_unit_body(version):
    """1 kg, and 1 kg m^2 for each missing moment."""
    wheel = "<link name='wheel'><inertial><inertia><izz>1.5</izz></inertia></inertial></link>"
    mech = ts.load(
        sdf(version, link("base") + wheel + joint(AXIS.format(attribute="", xyz="0 0 1", more="")))
    )
    assert mech.mass.tolist() == [1.0]
    assert torch.equal(
        mech.inertia[0], torch.diag(torch.tensor([1.0, 1.0, 1.5], dtype=torch.float64))
    )


@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
@pytest.mark.parametrize("version", VERSIONS)
def test_losses_and_springs_act_on_the_joint(version):
    """A pendulum of inertia I on axis z: tau = I qdd + d qd + k (q - q0), plus friction."""
    more = (
        "<dynamics><damping>0.5</damping><friction>0.25</friction>"
        "<spring_stiffness>4</spring_stiffness><spring_reference>0.1</spring_reference></dynamics>"
    )
    mech = ts.load(
        sdf(
            version,
            link("base") + link("wheel") + joint(AXIS.format(attribute="", xyz="0 0 1", more=more)),
        )
    )
    q, qd, qdd = (torch.tensor([x], dtype=torch.float64) for x in (0.3, 2.0, 5.0))
    agree(
        ts.inverse_dynamics(mech, q, qd, qdd), 0.03 * qdd + 0.5 * qd + 4.0 * (q - 0.1) + 0.25, 1e-14
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ends", [None, ("-1e16", "1e16", "-1"), ("-inf", "inf", "inf")])
def test_limits_of_old_and_new_defaults_are_none(version, ends):
    lower, upper, bound = ends or ("",) * 3
    text = f"<lower>{lower}</lower><upper>{upper}</upper><effort>{bound}</effort>" if ends else ""
    axis = AXIS.format(attribute="", xyz="0 0 1", more=f"<limit>{text}</limit>")
    mech = ts.load(sdf(version, link("base") + link("wheel") + joint(axis)))
    assert mech.lower.tolist() == [-math.inf] and mech.upper.tolist() == [math.inf]
    assert mech.effort_limit.tolist() == mech.velocity_limit.tolist() == [math.inf]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pose_of_a_joint_is_in_its_child(version):
    """A point mass 1 m from the joint's axis, on a child turned by pi/2: inertia about the joint."""
    links = link("base") + link("wheel", f"0 0 1 0 0 {math.pi / 2!r}")
    pose = "<pose>0 0 -1 0 0 0</pose>"
    axis = AXIS.format(attribute="", xyz="1 0 0", more="")
    mech = ts.load(sdf(version, links + joint(axis, more=pose)))
    M = ts.mass_matrix(mech, mech.neutral())
    agree(M, torch.tensor([[0.02 + 2.0]], dtype=torch.float64), 1e-14)
    expected = [1.0, 0.0, 0.0] if version == "1.4" else [0.0, 1.0, 0.0]
    agree(world_axis(mech), torch.tensor(expected, dtype=torch.float64), 1e-14)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tag", ["screw_thread_pitch", "thread_pitch"])
def test_a_right_handed_screw_advances_by_its_pitch_in_a_turn(version, tag):
    """Its inertia is I + m (pitch / 2 pi)^2, also about a point away from the child's origin."""
    axis = AXIS.format(attribute="", xyz="0 0 1", more="")
    pitch = 0.2 if tag == "screw_thread_pitch" else -2 * math.pi / 0.2
    more = f"<{tag}>{pitch!r}</{tag}><pose>0.5 0 0 0 0 0</pose>"
    mech = ts.load(sdf(version, link("base") + link("wheel") + joint(axis, "screw", more)))
    turn = torch.tensor([2 * math.pi], dtype=torch.float64)
    agree(
        ts.frame_pose(mech, turn, "wheel").position,
        torch.tensor([0.0, 0.0, 0.2], dtype=torch.float64),
        1e-14,
    )
    inertia = 0.03 + 2.0 * 0.5**2 + 2.0 * (0.2 / (2 * math.pi)) ** 2
    agree(ts.mass_matrix(mech, turn), torch.tensor([[inertia]], dtype=torch.float64), 1e-14)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_joint_may_have_the_name_of_a_link_until_1_6(version):
    axis = AXIS.format(attribute="", xyz="0 1 0", more="")
    text = sdf(version, ROLLED + joint(axis, name="wheel"))
    if version in ("1.4", "1.5", "1.6"):
        expected = IN_MODEL if version == "1.4" else IN_JOINT
        assert world_axis(ts.load(text)).round(decimals=15).tolist() == expected
    else:
        with pytest.raises(ts.RobotFileError, match="'wheel', which is empty or not unique"):
            ts.load(text)


@pytest.mark.parametrize("version", VERSIONS)
def test_angles_in_degrees_and_quaternions_are_read_in_every_version(version):
    axis = AXIS.format(attribute="", xyz="0 0 1", more="")
    poses = ("0 0 0 0 0 1.5707963267948966", ""), ("0 0 0 0 0 90", " degrees='true'"), (
        "0 0 0 0 0 0.7071067811865476 0.7071067811865476", " rotation_format='quat_xyzw'")  # fmt: skip
    for pose, attribute in poses:
        mech = ts.load(
            sdf(version, link("base") + link("wheel", pose, attribute=attribute) + joint(axis))
        )
        R = ts.frame_pose(mech, mech.neutral(), "wheel").rotation
        agree(R, torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float64), 1e-15)


NEAREST = {
    "": "1.12",
    "new": "1.12",
    "1.3": "1.4",
    "1.99": "1.12",
    "2.0": "1.12",
    "1.5.1": None,
}


@pytest.mark.parametrize(("version", "nearest"), NEAREST.items())
def test_an_unsupported_version_is_reported_and_read_as_the_nearest(version, nearest):
    text = sdf(version, ROLLED + joint(AXIS.format(attribute="", xyz="0 1 0", more="")))
    if nearest is None:
        ts.load(text, strict=True)
        return
    with pytest.warns(ts.RobotFileWarning, match=f"read as {nearest}"):
        mech = ts.load(text)
    assert world_axis(mech).round(decimals=15).tolist() == (
        IN_MODEL if nearest == "1.4" else IN_JOINT
    )
    with pytest.raises(ts.RobotFileError, match="version"):
        ts.load(text, strict=True)


def test_a_number_as_an_attribute_is_reported_with_its_line():
    """As URDF has it; SDF has numbers as text, so the mass is the default."""
    text = sdf(
        "1.9",
        link("base") + link("wheel").replace("<mass>2</mass>", "\n<mass value='2'/>") + joint(),
    )
    with pytest.warns(
        ts.RobotFileWarning, match=r"'value' \(line 2\): not read, since the value is the text"
    ):
        assert ts.load(text).mass.tolist() == [1.0]
    with pytest.raises(ts.RobotFileError, match="line 2"):
        ts.load(text, strict=True)


@pytest.mark.parametrize("attribute", ["axis='0 1 0'", "pose='0 0 1 0 0 0'"])
def test_an_attribute_that_the_format_has_as_an_element_is_reported_with_its_line(attribute):
    axis = AXIS.format(attribute="", xyz="0 0 1", more="")
    text = sdf(
        "1.9",
        link("base") + link("wheel") + "\n" + joint(axis).replace("<joint", f"<joint {attribute}"),
    )
    name = attribute.split("=")[0]
    with pytest.warns(
        ts.RobotFileWarning, match=f"joint 'j' attribute '{name}' .line 2.: not read"
    ):
        ts.load(text)
    with pytest.raises(ts.RobotFileError, match="line 2"):
        ts.load(text, strict=True)
