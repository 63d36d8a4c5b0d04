"""Flexible links in URDF files: nothing is lost on the way, and malformed elements are refused by line."""

import warnings

import pytest
import torch

import torchsko as ts
from tests.flexible.finite_elements import cantilever
from tests.flexible.test_flexible_loops import four_bar
from tests.flexible.test_frame_change import body
from tests.refusals import assert_refused

I = (0.01 * torch.eye(3)).tolist()


def arm(link: ts.FlexibleBody, welded: bool = False) -> ts.Mechanism:
    """Two flexible links with a tool welded to the last marker; the first on a hinge or a turned weld."""
    builder = ts.MechanismBuilder("arm").link("base", mass=2.0, com=(0.1, 0, 0), inertia=I)
    builder.flexible_link("upper", link).flexible_link("lower", link)
    builder.link("tool", mass=0.3, com=(0, 0, 0.1), inertia=I)
    turn = torch.linalg.qr(torch.arange(9.0).reshape(3, 3).double().sin())[0]
    turn = (turn * torch.linalg.det(turn)).tolist()
    place = {"parent": "base", "rotation": turn, "position": (0.1, 0.2, 0.3), "child": "upper"}
    builder.joint("turn", "revolute", child="base", axis=(0, 0, 1), damping=0.2)
    builder.joint("root", "fixed" if welded else "revolute", **place)
    builder.joint("elbow", "revolute", child="lower", parent="upper/tip", axis=(0, 1, 0))
    builder.joint("mount", "fixed", child="tool", parent="lower/tip", position=(0, 0.1, 0))
    return builder.build()


def elements() -> ts.FlexibleBody:
    M, K, x = cantilever(3)
    return ts.FlexibleBody.from_finite_elements(M, K, x, markers={"tip": 3}, root=0, modes=0)


def same(one: ts.Mechanism, two: ts.Mechanism) -> None:
    """Equal names, and equal dynamics up to rounding."""
    for names in ("joint_names", "coordinate_names", "body_names"):
        assert getattr(one, names) == getattr(two, names)
    q, qd = one.random_state(3, generator=torch.Generator().manual_seed(0))
    for verb in (lambda m: ts.mass_matrix(m, q), lambda m: ts.bias_force(m, q, qd)):
        expected, found = verb(one), verb(two)
        assert (found - expected).abs().max() < 1e-11 * expected.abs().max()
    for frame in one.frame_names:
        expected, found = (ts.frame_pose(m, q, frame).position for m in (one, two))
        assert (found - expected).abs().max() < 1e-12


def saved(mech: ts.Mechanism, folder, name="robot.urdf") -> ts.Mechanism:
    ts.save(mech, folder / name, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ts.load(folder / name)


@pytest.mark.parametrize("link", [body, elements], ids=["beam", "elements"])
@pytest.mark.parametrize("welded", [False, True])
def test_a_new_urdf_file_keeps_flexible_links(link, welded, tmp_path):
    mech = arm(link(), welded)
    again = saved(mech, tmp_path)
    same(mech, again)
    same(mech, saved(again, tmp_path, "twice.urdf"))
    if not welded:
        shapes = mech.joint_parameters
        assert (again.joint_parameters - shapes).abs().max() < 1e-15 * shapes.abs().max()
        assert torch.equal(again.modal_damping, mech.modal_damping)


def test_changed_robots_keep_their_numbers(tmp_path):
    """Appended robots, a locked link, changed stiffness and shapes, a floating base."""
    other = (
        ts.MechanismBuilder("tail").flexible_link("rod", body()).joint("b", "revolute", child="rod")
    )
    mech = (
        arm(body())
        .append(other.build(), "tool", prefix="x_")
        .lock({"lower_modes": torch.full((6,), 0.01).double()})
    )
    scale = 1 + 0.1 * torch.arange(mech.joint_parameters.shape[-1]).double().sin()
    mech = mech.replace(
        modal_stiffness=2 * mech.modal_stiffness, joint_parameters=scale * mech.joint_parameters
    )
    same(mech, saved(mech, tmp_path))


def test_a_loop_through_a_flexible_link_is_kept(tmp_path):
    cut = four_bar("cut")
    with pytest.warns(ts.RobotFileWarning):
        ts.save(cut, tmp_path / "four_bar.urdf")
        again = ts.load(tmp_path / "four_bar.urdf")
    assert [x.name for x in again.closures] == ["loop"]
    q, qd = cut.random_state(generator=torch.Generator().manual_seed(0))
    expected, found = (
        ts.constrain(m, m.closures).forward_dynamics(q, qd, qd)[0] for m in (cut, again)
    )
    assert (found - expected).abs().max() < 1e-9 * expected.abs().max()


BEAM = """<robot name="arm"><link name="base"/><link name="arm">
<flexible><beam length="1" density="1.3" EI_y="3" EI_z="2" GJ="2.5" polar_inertia="0.02"
 shapes="2 3 1" basis="static" damping_ratio="0.01"/>
<marker name="middle" position="0.4"/><marker name="tip" position="1"/>
</flexible></link>
<joint name="hinge" type="continuous"><parent link="base"/><child link="arm"/></joint></robot>"""


def test_a_beam_of_a_file_is_that_of_the_builder():
    made = ts.FlexibleBody.beam(
        1.0, 1.3, EI_y=3.0, EI_z=2.0, GJ=2.5, shapes=(2, 3, 1), polar_inertia=0.02,
        markers={"middle": 0.4, "tip": 1.0},
    ).damped(0.01)  # fmt: skip
    builder = ts.MechanismBuilder("arm").link("base").flexible_link("arm", made)
    builder.joint("hinge", "revolute", parent="base", child="arm", axis=(1, 0, 0))
    same(builder.build(), ts.load(BEAM, strict=True))


POINTS = """<robot name="arm"><link name="base"/><link name="arm"><flexible modes="a b" stiffness="4 6 6 12">
<point xyz="0.5 0 0" mass="0.2" shape="0 0 .25 .125 0 0"/><point xyz="1 0 0" mass="0.1" shape="0 0 1 1 0 0"/>
<marker name="tip" xyz="1 0 0" shape="0 0 1 1 0 0" slope="0 0 0 0 2 3"/></flexible></link>
<joint name="hinge" type="continuous"><parent link="base"/><child link="arm"/></joint></robot>"""


def test_points_of_a_file_are_those_of_the_body():
    mech = ts.load(POINTS, strict=True)
    assert mech.coordinate_names == ("hinge", "arm_modes.a", "arm_modes.b")
    assert mech.modal_stiffness.tolist() == [[4, 6], [6, 12]]
    assert mech.body_names == ("arm", "arm/0", "arm/1", "arm/tip")


BAD = {
    r"'length' of <beam> \(line 2\) is missing": (BEAM, 'length="1"', ""),
    "EI_y.* is 'x', which is not a number": (BEAM, 'EI_y="3"', 'EI_y="x"'),
    "beam has EI_y = -3": (BEAM, 'EI_y="3"', 'EI_y="-3"'),
    "shapes.*is '-2 3 1'": (BEAM, "2 3 1", "-2 3 1"),
    "shapes.*is '2'": (BEAM, "2 3 1", "2"),
    "0 modes": (BEAM, "2 3 1", "0 0 0"),
    "99 modes": (BEAM, "2 3 1", "99 0"),
    "basis 'free'": (BEAM, "static", "free"),
    "marker 'middle' stands at 4": (BEAM, '"0.4"', '"4"'),
    "two markers 'tip'": (BEAM, '"middle"', '"tip"'),
    "attribute 'stiffness' of <flexible> .line 1. is missing": (POINTS, 'stiffness="4 6 6 12"', ""),
    "stiffness.*eigenvalue -": (POINTS, "4 6 6 12", "4 9 9 12"),
    "stiffness.*not symmetric": (POINTS, "4 6 6 12", "4 6 5 12"),
    "3 numbers instead of 4": (POINTS, "4 6 6 12", "4 6 6"),
    "shape.*5 numbers instead of 6": (POINTS, "0 0 .25 .125 0 0", "0 0 .25 .125 0"),
    "rank 1 of 2.*'b' depend": (POINTS.replace(".125", ".25"), "3", "2"),
    "mass.*is missing": (POINTS, 'mass="0.2"', ""),
    "has no <point>": (POINTS.replace("<point", "<node"), "", ""),

}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_malformed_flexible_link_is_refused(what):
    text, old, new = BAD[what]
    assert_refused(lambda: ts.load(text.replace(old, new, 1)), what)


def test_unknown_attributes_of_a_flexible_link_are_named():
    mech = ts.load(BEAM.replace('length="1"', 'length="1" width="2"'))
    assert "link 'arm' <flexible> <beam> attribute 'width'" in str(mech.unused[0])


def test_files_with_large_flexible_links_are_refused():
    beam = '<flexible><beam length="1" density="1" EI_y="1" shapes="64 0"/></flexible>'
    text = "".join(f'<link name="{k}">{beam}</link>' for k in range(20))
    assert_refused(lambda: ts.load(f'<robot name="r">{text}</robot>'), "64 modes and 133 points")


def test_what_files_cannot_express_is_refused_by_name(tmp_path):
    mech = arm(body())
    assert_refused(lambda: ts.save(mech, tmp_path / "arm.xml"), "'upper_modes' is elastic")
    bounded = mech.replace(upper=torch.where(mech.upper.isinf(), 1.0, mech.upper))
    with pytest.raises(ts.MechanismError, match=r"limits of joints.*upper_modes"):
        ts.save(bounded, tmp_path / "arm.urdf", strict=True)
    sprung = ts.load(BEAM)
    damped = sprung.replace(damping=sprung.damping + 0.1)
    assert_refused(lambda: ts.save(damped, tmp_path / "arm.urdf"), "damping of 'arm'")


def test_changes_of_a_flexible_link_are_not_written_into_its_file(tmp_path):
    mech = ts.load(POINTS)
    stiffer = mech.replace(modal_stiffness=2 * mech.modal_stiffness)
    assert_refused(lambda: ts.save(stiffer, tmp_path / "a.urdf", like=POINTS), "modal_stiffness")
    heavier = mech.replace(mass=2 * mech.mass)
    assert_refused(
        lambda: ts.save(heavier, tmp_path / "a.urdf", like=POINTS), "'arm/0' changed.*Leave like"
    )
    placed = mech.replace(damping=mech.damping + torch.tensor([0.3, 0, 0]).double())
    ts.save(placed, tmp_path / "a.urdf", like=POINTS)
    same(placed, ts.load(tmp_path / "a.urdf"))
