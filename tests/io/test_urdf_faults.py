"""Faults of a URDF file that leave its dynamics defined: read, named in one warning, or refused."""

import math
import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchsko as ts
from tests.io.urdf_texts import INERTIA, LINK, inertia, joint, robot

JOINT = joint('<axis xyz="0 0 1"/>')
STRAY = '<link name="stray"/>'
LEAF = '<link name="leaf"/>' + JOINT.replace('"b"', '"leaf"').replace('"j"', '"k"')
FOLLOWER = '<joint name="k" type="revolute"><parent link="b"/><child link="c"/>{}</joint>'
WORLD = '<joint name="w" type="fixed"><parent link="world"/><child link="a"/></joint>'

DECLARED = '<link name="world"/><link'

# A file; what `strict=True` says of it; the element that the report names, and how it was read.
FAULTS = {
    "triangle inequality": (
        robot(JOINT, inertia(izz="3.1")),
        "link 'b': the <inertia> is unphysical",
        "link 'b' <inertia>: unphysical principal moments 3.1, 2, 1 kg m^2",
    ),
    "negative inertia": (
        robot(JOINT, inertia(ixx="-1")),
        "link 'b': the <inertia> is unphysical",
        "link 'b' <inertia>: unphysical principal moments 2.5, 2, -1 kg m^2",
    ),
    "no inertia": (
        robot(JOINT, LINK.replace("<mass", '<origin xyz="1 0 0"/><mass').replace(INERTIA, "")),
        "link 'b': <inertial> (line 1) has no <inertia>",
        "link 'b' <inertial> (line 1): has no <inertia>",
    ),
    "no mass": (
        robot(JOINT, LINK.replace('<mass value="2"/>', "")),
        "link 'b': <inertial> (line 1) has no <mass>",
        "link 'b' <inertial> (line 1): has no <mass>",
    ),
    "no value of mass": (
        robot(JOINT, LINK.replace('value="2"', "")),
        "link 'b': attribute 'value' of <mass> (line 1) is missing",
        "link 'b': attribute 'value' of <mass> (line 1): missing",
    ),
    **{
        f"no {key}": (
            robot(JOINT, inertia(**{key: None})),
            f"link 'b': attribute {key!r} of <inertia> (line 1) is missing",
            f"link 'b': attribute {key!r} of <inertia> (line 1): missing",
        )
        for key in ("ixy", "ixz", "iyz")
    },
    "massless leaf": (
        robot(JOINT, more=LEAF),
        "forward dynamics of 'r' is undefined: no inertia resists joint 'k'",
        "joint 'k': no inertia resists it",
    ),
    "lower above upper": (
        robot(joint('<limit lower="2" upper="1"/>')),
        "joint 'j' (line 1): the lower limit 2.0 is above the upper limit 1.0",
        "joint 'j' <limit> (line 1): the lower limit 2.0 is above",
    ),
    **{
        f"{key} limit": (
            robot(joint(f'<limit lower="-1" upper="1" {key}="-1"/>')),
            f"joint 'j': attribute {key!r} of <limit> (line 1) is -1.0, which is negative",
            f"joint 'j': attribute {key!r} of <limit> (line 1): -1.0, which is negative",
        )
        for key in ("velocity", "effort")
    },
    "limits of a follower": (
        robot(
            joint('<limit lower="0" upper="2"/>'),
            more=LINK.replace('"b"', '"c"')
            + FOLLOWER.format('<limit lower="0" upper="1"/><mimic joint="j" offset="-3"/>'),
        ),
        "limits of position of joint 'k': they allow [3, 4] for joint 'j', which it follows",
        "limits of position of joint 'k': they allow [3, 4] for joint 'j', which it follows",
    ),
    "no direction of an axis": (
        robot(joint("<axis/>")),
        "joint 'j': attribute 'xyz' of <axis> (line 1) is missing",
        "joint 'j': attribute 'xyz' of <axis> (line 1): missing",
    ),
    "stray link": (
        robot(JOINT, more=STRAY),
        "link 'stray' is not connected",
        "link 'stray': no joint refers to it",
    ),
    "undeclared world": (
        robot(JOINT, more=WORLD),
        "joint 'w': its parent link 'world' does not exist",
        "link 'world': not declared",
    ),
    "nameless": (
        robot(JOINT).replace('name="r"', 'name=""'),
        "<robot>: attribute 'name' of <robot> (line 1) is empty",
        "<robot> (line 1): has no name",
    ),
    "broken number": (
        robot(JOINT, LINK.replace('value="2"', 'value="20.0\n 25"')),
        "link 'b': attribute 'value' of <mass> (line 1) is '20.0\\n 25', which is not a number",
        "link 'b': attribute 'value' of <mass> (line 1): has a line break in a number: "
        "read as 20.025",
    ),
    "macro in what is not read": (
        robot(JOINT, more='<gazebo><file name="$(find x)/y"/></gazebo><xacro:arg name="l"/>'),
        "line 1: <file> has the xacro macro '$(find x)/y'",
        "<file> (line 1): has the xacro macro '$(find x)/y', and 1 more",
    ),
}
each_fault = pytest.mark.parametrize(("text", "error", "entry"), FAULTS.values(), ids=FAULTS)


@each_fault
def test_a_fault_loads_with_one_warning_at_the_callers_line_and_stays_in_the_report(
    text, error, entry
):
    with pytest.warns(ts.RobotFileWarning) as told:
        mech = ts.load(text)
    (warning,) = told
    assert warning.filename == __file__ and f"\n  {entry}" in str(warning.message)
    (fault,) = mech.report
    assert str(fault).startswith(entry) and fault.reason
    q, qd = mech.random_state(4, generator=torch.Generator().manual_seed(0))
    assert ts.inverse_dynamics(mech, q, qd, qd).isfinite().all()


@each_fault
def test_a_fault_is_refused_by_name_when_strict(text, error, entry):
    with pytest.raises(ts.TorchskoError) as caught:
        ts.load(text, strict=True)
    what, why, remedy = str(caught.value).split("\n")
    assert error in what and why and remedy


def test_a_file_without_faults_loads_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for strict in (False, True):
            assert ts.load(ts.robots.panda, strict=strict).report == ()


def test_the_warning_lists_a_dozen_faults_and_the_report_all():
    strays = "".join(f'<link name="stray{k}"/>' for k in range(15))
    with pytest.warns(ts.RobotFileWarning, match="15 faults") as told:
        mech = ts.load(robot(JOINT, more=strays))
    (warning,) = told
    assert [f"'stray{k}'" in str(warning.message) for k in range(15)] == [True] * 12 + [False] * 3
    assert "and 3 more" in str(warning.message) and len(mech.report) == 15


# What is read instead.

quietly = pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")


def twin(faulty: str, sound: str, **options) -> None:
    """Both files are one robot."""
    a, b = ts.load(faulty, **options), ts.load(sound, **options)
    assert a.report and not b.report
    for name in ("mass", "com", "inertia", "axis", "lower", "upper", "joint_position"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=0)
    assert a.velocity_limit.equal(b.velocity_limit) and a.effort_limit.equal(b.effort_limit)
    assert (a.name, a.joint_names, a.frame_names) == (b.name, b.joint_names, b.frame_names)


@quietly
@pytest.mark.parametrize(
    ("faulty", "sound"),
    [
        (robot(JOINT, inertia(ixy=None)), robot(JOINT)),
        (robot(joint("<axis/>")), robot(joint())),
        (robot(joint('<limit lower="2" upper="1"/>')), robot(joint())),
        (robot(joint('<limit velocity="-1" effort="-1"/>', "continuous")), robot(joint())),
        (
            FAULTS["limits of a follower"][0],
            FAULTS["limits of a follower"][0].replace('<limit lower="0" upper="1"/>', ""),
        ),
        (
            FAULTS["undeclared world"][0],
            FAULTS["undeclared world"][0].replace("<link", DECLARED, 1),
        ),
        (FAULTS["macro in what is not read"][0], robot(JOINT)),
        (FAULTS["broken number"][0], robot(JOINT, LINK.replace('value="2"', 'value="20.025"'))),
    ],
    ids=["entry", "axis", "range", "bounds", "follower", "world", "macro", "broken number"],
)
def test_a_fault_is_read_as_a_sound_file_would_say_it(faulty, sound):
    twin(faulty, sound)


@quietly
def test_a_robot_without_a_name_is_named_robot():
    assert ts.load(robot(JOINT).replace(' name="r"', "", 1)).name == "robot"


@quietly
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_white_space_before_the_declaration_of_a_file_is_skipped_and_lines_keep_their_number(
    tmp_path, mark
):
    file = tmp_path / "r.urdf"
    blank = mark + b'\n \n<?xml version="1.0"?>\n'
    file.write_bytes(blank + robot(JOINT).encode())
    mech = ts.load(file)
    assert [fault.element for fault in mech.report] == ["<?xml ...?>"]
    assert mech.mass.equal(ts.load(robot(JOINT)).mass)
    with pytest.raises(ts.RobotFileError, match="malformed"):
        ts.load(file, strict=True)
    file.write_bytes(blank + robot(joint('<axis xyz="0 0 0"/>')).encode())
    with pytest.raises(ts.RobotFileError, match="line 4"):
        ts.load(file)


@quietly
@pytest.mark.parametrize("value", ["2 5", "2\n5 1", "0.2\n x", "1e\n", "\n"])
def test_what_a_line_break_leaves_of_no_number_is_refused_still(value):
    text = robot(JOINT, LINK.replace('value="2"', f'value="{value}"'))
    if value.strip():
        with pytest.raises(ts.RobotFileError, match="not a number"):
            ts.load(text)
    else:
        assert "'value' of <mass>" in ts.load(text).report[0].element


@quietly
def test_a_stray_frame_does_not_take_forward_dynamics_from_a_floating_robot():
    text = robot(JOINT, more=STRAY).replace('<link name="a"/>', LINK.replace('"b"', '"a"'))
    mech = ts.load(text, floating_base=True)
    assert mech.joint_names == ("root_joint_a", "j") and mech.singular_joints == ()


@quietly
@given(
    st.floats(0.01, 1), st.floats(0.01, 1), st.floats(1e-4, 5), st.tuples(*[st.floats(-1, 1)] * 3)
)
def test_dynamics_of_an_inertia_that_breaks_the_triangle_inequality_are_newtons(a, b, c, axis):
    """About an axis n through the center of mass: tau = (n* I n) qdd, whatever I."""
    n = np.array(axis) + (2.0, 0.0, 0.0)
    entries = {"ixx": str(a), "iyy": str(b), "izz": str(a + b + c)}
    text = robot(joint(f'<axis xyz="{n[0]} {n[1]} {n[2]}"/>'), inertia(**entries))
    mech = ts.load(text)
    assert [fault.element for fault in mech.report] == ["link 'b' <inertia>"]
    n /= np.linalg.norm(n)
    resisted = float(n @ np.diag([a, b, a + b + c]) @ n)
    q = torch.zeros(1, dtype=torch.float64)
    qdd = ts.forward_dynamics(mech, q, q, torch.ones_like(q)).item()
    assert math.isclose(qdd, 1 / resisted, rel_tol=1e-12)


def test_a_robot_that_floats_in_its_file_says_so_where_it_is_floated_again(tmp_path):
    """As `save` writes one that was loaded with `floating_base=True`."""
    text = robot(JOINT).replace('<link name="a"/>', LINK.replace('"b"', '"a"'))
    ts.save(ts.load(text, floating_base=True), tmp_path / "afloat.urdf")
    assert ts.load(tmp_path / "afloat.urdf").joint_kinds[0] == "free"
    with pytest.warns(ts.RobotFileWarning, match="leave floating_base out"):
        mech = ts.load(tmp_path / "afloat.urdf", floating_base=True)
    assert mech.report[0].reason.endswith("floats by root_joint already: leave floating_base out")
    with pytest.raises(ts.TorchskoError, match="floats by root_joint already: leave") as told:
        ts.load(tmp_path / "afloat.urdf", floating_base=True, strict=True)
    assert len(str(told.value).splitlines()) == 3 and "Give the link mass" not in str(told.value)


# What stays an error.


@pytest.mark.parametrize("strict", [False, True])
def test_a_joint_that_mimics_nothing_may_be_loaded_as_independent(strict):
    for tag in ("<mimic/>", '<mimic joint="nobody"/>'):
        text = robot(joint(tag))
        if strict or tag == "<mimic/>":
            with pytest.raises(ts.TorchskoError, match="mimic='independent'"):
                ts.load(text, strict=strict)
        assert ts.load(text, mimic="independent", strict=strict).joint_names == ("j",)


def test_a_mimic_tag_that_names_no_joint_is_no_tag():
    text = robot(joint('<mimic joint="nobody" multiplier="2"/>'))
    with pytest.warns(ts.RobotFileWarning, match="refers to the unknown joint 'nobody'"):
        mech = ts.load(text)
    assert [fault.element for fault in mech.report] == ["joint 'j' <mimic>"]
    assert mech.num_dof == 1 and mech.num_dependent == 0


@pytest.mark.parametrize("strict", [False, True])
def test_a_single_body_says_what_to_type_and_loads_with_it(strict):
    text = f'<robot name="box">{LINK}</robot>'
    with pytest.raises(ts.MechanismError, match="floating_base=True"):
        ts.load(text, strict=strict)
    box = ts.load(text, floating_base=True, strict=strict)
    M = ts.mass_matrix(box, box.neutral())
    expected = torch.diag(torch.tensor([1, 2, 2.5, 2, 2, 2], dtype=M.dtype))
    torch.testing.assert_close(M, expected, rtol=0, atol=0)


# Other joint types, code, learning.


@pytest.mark.parametrize("kind", ["planar", "floating", "spherical"])
def test_joints_of_several_dofs_obey_forward_and_inverse_dynamics_alike(kind):
    text = robot(joint('<origin xyz="1 2 3" rpy="1 2 3"/><axis xyz="1 2 2"/>', kind))
    mech = ts.load(text)
    q, qd = mech.random_state(4, generator=torch.Generator().manual_seed(0))
    tau = ts.inverse_dynamics(mech, q, qd, -qd)
    torch.testing.assert_close(ts.forward_dynamics(mech, q, qd, tau), -qd, rtol=1e-11, atol=1e-11)


def test_the_axis_of_a_planar_joint_is_the_normal_of_its_plane():
    mech = ts.load(robot(joint('<axis xyz="1 2 2"/>', "planar")))
    q, _ = mech.random_state(8, generator=torch.Generator().manual_seed(0))
    pose, normal = ts.frame_pose(mech, q, ["b"]), torch.tensor([1.0, 2.0, 2.0]).double() / 3
    height = (pose.position @ normal).abs().max()
    assert height < 1e-15 and pose.position.norm(dim=-1).min() > 1e-3
    torch.testing.assert_close(pose.rotation @ normal, normal.expand(8, 1, 3))


def test_code_is_held_to_physical_inertias_unless_it_says_otherwise():
    builder = ts.MechanismBuilder().link("b", mass=1.0, inertia=np.diag([1.0, 1.0, 3.0]).tolist())
    builder.joint("j", "revolute", child="b")
    with pytest.raises(ts.MechanismError, match="triangle inequality"):
        builder.build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech = builder.build(strict=False)
    assert [fault.element for fault in mech.report] == ["link 'b' <inertia>"]
    assert mech.to(torch.float32).report == mech.replace(mass=mech.mass).report == mech.report


@quietly
def test_a_body_that_is_not_physical_is_named_when_it_is_to_be_learned_and_cured_as_said():
    mech = ts.load(robot(JOINT, inertia(izz="3.5")))
    with pytest.raises(ts.MechanismError, match=r"'b' cannot be learned.*unphysical") as told:
        ts.Dynamics(mech, {"b": ts.learn.InertiaLogCholesky()})
    spread = float(str(told.value).rpartition("spread=")[2].split(")")[0])
    ts.Dynamics(mech, {"b": ts.learn.InertiaLogCholesky(spread=spread)})


# Any text at all.

WHOLE = robot(
    joint('<origin xyz="1 2 3" rpy="1 2 3"/><axis xyz="0 0 2"/><limit lower="-1" upper="2"/>')
)


@quietly
def test_a_number_of_a_robot_is_refused_or_its_dynamics_are_finite():
    digits, g, loaded = [k for k, c in enumerate(WHOLE) if c.isdigit()], random.Random(0), 0
    for at in g.choices(digits, k=100):
        new = g.choice([*"0123456789", "e30", "e-300", "-", ".", "\n"])
        try:
            mech = ts.load(WHOLE[:at] + new + WHOLE[at + 1 :])
        except ts.TorchskoError as error:
            assert error.what and error.advice
            continue
        check_finite(mech)
        loaded += 1
    assert 30 < loaded < 100


def check_finite(mech: ts.Mechanism) -> None:
    """Inverse dynamics are numbers; forward dynamics are, where no joint is named as singular."""
    q, qd = mech.random_state(2, generator=torch.Generator().manual_seed(0))
    tau = ts.inverse_dynamics(mech, q, qd, qd)
    assert tau.isfinite().all()
    if mech.singular_joints:
        assert {f"joint {n!r}" for n in mech.singular_joints} <= {x.element for x in mech.report}
    else:
        assert ts.forward_dynamics(mech, q, qd, tau).isfinite().all()
