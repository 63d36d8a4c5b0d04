"""Closed chains of files: URDF+ loops and couplings, polynomial equalities, SDF gearboxes, saving."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import mujoco
import pytest
import torch

import torchsko as ts
from tests.linkages import state
from torchsko.mechanism.data import uncoupled

pytestmark = pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")


def link(name: str, mass: float = 1.0) -> str:
    inertia = "ixx='.02' iyy='.03' izz='.04' ixy='0' ixz='0' iyz='0'"
    return (
        f"<link name='{name}'><inertial><origin xyz='.1 .02 0'/><mass value='{mass}'/>"
        f"<inertia {inertia}/></inertial></link>"
    )


def joint(name: str, parent: str, xyz: str, axis: str = "0 0 1", more: str = "") -> str:
    return (
        f"<joint name='{name}_j' type='continuous' {more}><parent link='{parent}'/>"
        f"<child link='{name}'/><origin xyz='{xyz}'/><axis xyz='{axis}'/></joint>"
    )


def four_bar_urdf(kind: str = "revolute", axis: str = "0 0 1") -> str:
    return f"""<robot name='bar'><link name='base'/>{link("crank")}{link("rod")}{link("rocker")}
      {joint("crank", "base", "0 0 0", axis, "independent='true'")}
      {joint("rod", "crank", ".2 0 0", axis, "independent='false'")}
      {joint("rocker", "base", ".5 0 0", axis, "independent='false'")}
      <loop name='pin' type='{kind}'><predecessor link='rod'><origin xyz='.5 0 0'/></predecessor>
        <successor link='rocker'><origin xyz='.4 0 0'/></successor><axis xyz='{axis}'/></loop></robot>"""


def closed_residual(mech: ts.Mechanism, q: torch.Tensor) -> float:
    assert mech.closing is not None
    return float(mech.closing.residual(mech, uncoupled(mech), ts.expand(mech, q)).abs().max())


@pytest.mark.parametrize("axis", ["0 0 1", "0 1 0"])
def test_a_loop_of_urdf_plus_is_that_of_the_builder(axis: str) -> None:
    text = four_bar_urdf(axis=axis)
    mech = ts.load(text, closures="embed")
    assert mech.dof_names == ("crank_j",) and closed_residual(mech, mech.initial()) < 1e-12
    points = ts.constraints.Closure("pin", "ball", "rod", "rocker", (0.5, 0, 0), (0.4, 0, 0), method="embed",
                        independent=("crank_j",))  # fmt: skip
    tree = text[: text.index("<loop")] + "</robot>"
    other = ts.load(tree, closures=[points])
    q, qd, tau = state(mech, 2)
    torch.testing.assert_close(
        ts.forward_dynamics(mech, q, qd, tau), ts.forward_dynamics(other, q, qd, tau)
    )


def test_loading_warns_once_and_names_the_loops() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mech = ts.load(four_bar_urdf())
    (text,) = [str(w.message) for w in caught]
    assert "loop 'pin' (revolute of 'rod' and 'rocker'): is cut" in text
    assert mech.num_dof == 3 and [c.name for c in mech.closures] == ["pin"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ts.load(four_bar_urdf(), strict=True)  # the loop acts in ts.step
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.load(four_bar_urdf(), closures="embed", strict=True)


def test_a_coupling_of_urdf_plus_relates_sums_of_angles_from_the_common_ancestor() -> None:
    text = f"""<robot name='leg'>{link("base")}{link("hip")}{link("knee")}{link("rotor", 0.1)}
      {joint("hip", "base", "0 0 0")}{joint("knee", "hip", ".3 0 0")}
      {joint("rotor", "base", "0 .1 0", "0 0 1", "independent='false'")}
      <coupling name='belt'><predecessor link='knee'/><successor link='rotor'/><ratio value='6'/></coupling>
      </robot>"""
    mech = ts.load(text)
    assert mech.joint_names == ("hip_j", "knee_j")
    q = torch.tensor([0.3, 0.2], dtype=torch.float64)
    assert math.isclose(float(ts.expand(mech, q)[2]), 6 * 0.5)
    assert ts.load(text, mimic="independent").num_dof == 3


def test_a_polynomial_equality_is_a_closure_of_mujocos_qpos() -> None:
    body = '<inertial pos="0.1 0 0" mass="1" diaginertia="0.05 0.06 0.04"/>'
    text = f"""<mujoco><compiler angle="radian"/><worldbody>
      <body><joint name="cam" axis="0 0 1" ref="0.2"/>{body}</body>
      <body pos="1 0 0"><joint name="rod" type="slide" axis="1 0 0" ref="-0.1"/>{body}</body></worldbody>
      <equality><joint joint1="rod" joint2="cam" polycoef="0.1 0.2 -0.3 0.05 0.1"/></equality></mujoco>"""
    mech = ts.load(text, closures="embed")
    assert mech.num_dof == 1
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    q = ts.integrate(mech, mech.initial(), torch.tensor([0.37], dtype=torch.float64))
    data.qpos[:] = q.numpy()
    mujoco.mj_forward(model, data)
    assert abs(data.efc_pos).max() < 1e-12


SDF = """<sdf version='1.9'><model name='gears'><pose>0 0 1 0 0 0</pose>{}
  <joint name='one' type='revolute'><parent>world</parent><child>a</child>
    <axis><xyz>0 0 1</xyz></axis></joint>
  <joint name='two' type='revolute'><parent>world</parent><child>b</child>
    <axis><xyz>0 0 -1</xyz></axis></joint>
  {}</model></sdf>"""
SDF_LINKS = "".join(
    f"<link name='{n}'><pose>{x} 0 0 0 0 0</pose><inertial><mass>1</mass></inertial></link>"
    for n, x in (("a", 0), ("b", 0.5))
)


def test_a_gearbox_of_sdf_turns_the_second_link_by_minus_the_ratio() -> None:
    gearbox = """<joint name='gears' type='gearbox'><parent>a</parent><child>b</child>
      <axis><xyz>0 0 1</xyz></axis><axis2><xyz>0 0 1</xyz></axis2><gearbox_ratio>3</gearbox_ratio>
      <gearbox_reference_body>world</gearbox_reference_body></joint>"""
    mech = ts.load(SDF.format(SDF_LINKS, gearbox))
    q = torch.tensor([0.2], dtype=torch.float64)
    a, b = ts.frame_pose(mech, q, ["a", "b"]).rotation
    angles = [math.atan2(float(R[1, 0]), float(R[0, 0])) for R in (a, b)]
    assert math.isclose(angles[1], -3 * angles[0], rel_tol=1e-12)


def test_a_revolute_loop_of_sdf_turns_about_its_axis() -> None:
    rod = """<link name='rod'><pose>0.1 0.3 0 0 0 0</pose><inertial><mass>1</mass></inertial></link>"""
    tilted = SDF.replace("0 0 1</xyz>", "1 0 0</xyz>").replace("0 0 -1</xyz>", "1 0 0</xyz>")
    links = SDF_LINKS.replace("0.5 0 0 0 0 0", "0 0.5 0 0 0 0") + rod
    joints = "".join(
        f"<joint name='{n}' type='revolute'><pose>0 {y} 0.2 0 0 0</pose><parent>{p}</parent>"
        f"<child>rod</child><axis><xyz>1 0 0</xyz></axis></joint>"
        for n, p, y in (("hinge", "a", -0.2), ("pin", "b", 0.3))
    )
    mech = ts.load(tilted.format(links, joints), closures="embed")
    assert mech.num_dof == 1  # about other axes the loop would be rigid
    q = ts.integrate(mech, mech.initial(), torch.tensor([0.2], dtype=torch.float64))
    assert closed_residual(mech, q) < 1e-12


def test_the_axes_of_a_universal_loop_of_sdf_stay_orthogonal() -> None:
    rod = """<link name='rod'><pose>0.3 0.2 0.4 0 0 0</pose><inertial><mass>1</mass></inertial></link>"""
    joints = """<joint name='ball' type='ball'><parent>b</parent><child>rod</child></joint>
      <joint name='cross' type='universal'><pose>-0.1 -0.2 0.1 0 0 0</pose><parent>a</parent>
      <child>rod</child><axis><xyz>0.6 0 0.8</xyz></axis><axis2><xyz>-0.8 0 0.6</xyz></axis2></joint>"""
    mech = ts.load(SDF.format(SDF_LINKS + rod, joints), closures="embed")
    assert mech.num_dof == 1
    axis, axis2 = torch.tensor([[0.6, 0, 0.8], [-0.8, 0, 0.6]], dtype=torch.float64)
    q = ts.integrate(mech, mech.initial(), torch.tensor([0.3], dtype=torch.float64))
    a, r = ts.frame_pose(mech, q, ["a", "rod"]).rotation
    assert not torch.allclose(r, torch.eye(3).double(), atol=0.05)
    assert abs(float((a @ axis) @ (r @ axis2))) < 1e-12


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["ball", "weld", "revolute"])
@pytest.mark.parametrize("ending", ["urdf", "xml"])
def test_saved_loops_are_those_of_the_robot(kind: str, ending: str, tmp_path: Path) -> None:
    made = ts.MechanismBuilder("arm")
    g = torch.Generator().manual_seed(2)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=g, dtype=torch.float64)).Q
    turn = (turn * turn.det()).tolist()
    parent = None
    for k in range(8):
        made.link(f"l{k}", mass=1.0, com=(0.1, 0, 0.05), inertia=(0.1 * torch.eye(3)).tolist())
        axis = ((0, 0, 1), (0, 1, 0), (1, 0, 0))[k % 3]
        made.joint(
            f"j{k}",
            "revolute",
            child=f"l{k}",
            parent=parent,
            axis=axis,
            position=(0.3, 0.1 * (k % 2), 0.05),
        )
        parent = f"l{k}"
    made.close("loop", kind, "world", (turn, (1.0, 0.4, 0.3)), "l7", (turn, (0.2, 0.1, 0)))
    mech = made.build()
    path = tmp_path / f"arm.{ending}"
    ts.save(mech, path)
    again = ts.load(path, closures="embed")
    assert again.num_dof == mech.num_dof
    q, qd, tau = state(mech, 2, size=0.2)
    assert again.joint_names == mech.joint_names and closed_residual(again, q) < 1e-12
    rates = ts.expand_velocity(mech, q, qd)
    assert again.closing is not None and mech.closing is not None
    force = torch.zeros_like(rates)
    force[..., mech.closing.own] = tau
    X = ts.expand_velocity(again, q, torch.eye(again.num_dof).double()[:, None]).movedim(0, -1)
    inputs = (rates[..., again.closing.own], (X.mT @ force[..., None])[..., 0])
    accel = ts.expand_acceleration(again, q, inputs[0], ts.forward_dynamics(again, q, *inputs))
    expected = ts.expand_acceleration(mech, q, qd, ts.forward_dynamics(mech, q, qd, tau))
    torch.testing.assert_close(accel, expected, rtol=1e-9, atol=1e-9)


def test_a_robot_with_embedded_loops_is_written_into_its_own_file(tmp_path: Path) -> None:
    mech = ts.load(four_bar_urdf(), closures="embed")
    path = tmp_path / "bar.urdf"
    ts.save(mech.replace(mass=2 * mech.mass), path, like=four_bar_urdf())
    again = ts.load(path, closures="embed")
    torch.testing.assert_close(again.mass, 2 * mech.mass)
    assert again.dof_names == mech.dof_names and again.closures == mech.closures


ROBOTIQ_SIDE = """<body name="{s}_driver" pos="0 {y} 0.05"><joint name="{s}_driver" axis="{a} 0 0"/>{i}
  <body name="{s}_coupler" pos="0 {c} 0"><joint name="{s}_coupler" axis="{a} 0 0"/>{i}</body></body>
  <body name="{s}_spring" pos="0 {p} 0.06"><joint name="{s}_spring" axis="{a} 0 0" stiffness="0.05"/>{i}
  <body name="{s}_follower" pos="0 {f} 0.04"><joint name="{s}_follower" axis="{a} 0 0"/>{i}</body></body>"""


def gripper() -> str:
    """A gripper like Robotiq's 2F-85: two five-bars with springs, whose drivers an equality couples."""
    i = '<inertial pos="0 0.01 0.01" mass="0.05" diaginertia="1e-4 1e-4 1e-4"/>'
    sides = [
        ROBOTIQ_SIDE.format(s=s, y=k * 0.03, a=k, i=i, c=k * 0.03, p=k * 0.013, f=k * 0.035)
        for s, k in (("left", 1), ("right", -1))
    ]
    loops = "".join(
        f'<connect name="{s}" body1="{s}_follower" body2="{s}_coupler" anchor="0 {k * 0.012} 0.005"/>'
        for s, k in (("left", 1), ("right", -1))
    )
    return f"""<mujoco model="gripper"><worldbody>{"".join(sides)}</worldbody><equality>{loops}
      <joint joint1="right_driver" joint2="left_driver" polycoef="0 1 0 0 0"/></equality></mujoco>"""


def delta_robot() -> str:
    """A delta robot: three arms with universal rods to a platform that slides along x, y and z."""
    i = '<inertial pos="0.1 0 0" mass="0.3" diaginertia="2e-3 2e-3 2e-3"/>'
    arms, loops = "", ""
    for k in range(3):
        angle = 120 * k
        arms += f"""<body name="arm{k}" euler="0 0 {angle}"><body name="upper{k}" pos="0.2 0 0">
          <joint name="motor{k}" axis="0 1 0"/>{i}
          <body name="rod{k}" pos="0.2 0 0"><joint name="a{k}" axis="0 1 0"/>
          <joint name="b{k}" axis="0 0 1"/>{i}</body></body></body>"""
        x, y = (0.05 * f(math.radians(angle)) for f in (math.cos, math.sin))
        loops += f'<connect body1="platform" body2="rod{k}" anchor="{x} {y} 0"/>'
    slides = "".join(
        f'<joint name="{n}" type="slide" axis="{a}"/>'
        for n, a in (("x", "1 0 0"), ("y", "0 1 0"), ("z", "0 0 1"))
    )
    return f"""<mujoco model="delta"><worldbody>{arms}<body name="platform" pos="0 0 -0.35">{slides}
      {i}</body></worldbody><equality>{loops}</equality></mujoco>"""


def digit_leg() -> str:
    """A leg like Digit's: springs, an achilles rod and two toe rods, as URDF+."""
    return f"""<robot name='leg'>{
        "".join(
            map(
                link,
                (
                    "pelvis",
                    "thigh",
                    "knee",
                    "shin",
                    "tarsus",
                    "heel",
                    "achilles_x",
                    "achilles",
                    "toe_a",
                    "toe_a_rod_x",
                    "toe_a_rod",
                    "foot_x",
                    "foot",
                ),
            )
        )
    }
      {joint("thigh", "pelvis", "0 0 0", "0 1 0")}{joint("knee", "thigh", ".1 0 -.1", "0 1 0")}
      {joint("shin", "knee", ".06 0 -.05", "0 1 0")}{joint("tarsus", "shin", ".1 0 -.4", "0 1 0")}
      {joint("heel", "tarsus", "-.05 0 .02", "0 1 0")}
      {joint("achilles_x", "thigh", "0 .01 .05", "1 0 0")}{
        joint("achilles", "achilles_x", "0 0 0", "0 1 0")
    }
      {joint("toe_a", "tarsus", ".1 .05 -.1", "0 1 0")}{
        joint("toe_a_rod_x", "toe_a", "-.05 0 0", "1 0 0")
    }
      {joint("toe_a_rod", "toe_a_rod_x", "0 0 0", "0 1 0")}
      {joint("foot_x", "tarsus", ".2 0 -.35", "1 0 0")}{joint("foot", "foot_x", "0 0 0", "0 1 0")}
      <loop name='heel_rod' type='spherical'>
        <predecessor link='achilles'><origin xyz='.2 0 -.4'/></predecessor>
        <successor link='heel'><origin xyz='-.05 .01 0'/></successor></loop>
      <loop name='toe_rod' type='spherical'>
        <predecessor link='toe_a_rod'><origin xyz='.1 0 -.26'/></predecessor>
        <successor link='foot'><origin xyz='-.06 .05 0'/></successor></loop></robot>"""


MJCF_BAR = """<mujoco model="bar"><worldbody><body name="crank"><joint name="crank" axis="0 1 0"/>
<geom type="capsule" size=".01" fromto="0 0 0 .2 0 0"/><body name="coupler" pos=".2 0 0">
<joint name="coupler" axis="0 1 0"/><geom type="capsule" size=".01" fromto="0 0 0 .5 0 0"/>
<site name="one" pos=".5 0 0"/></body></body><body name="rocker" pos=".5 0 0">
<joint name="rocker" axis="0 1 0"/><geom type="capsule" size=".01" fromto="0 0 0 .4 0 0"/>
<site name="two" pos=".4 0 0"/></body></worldbody>{}<equality>{}</equality></mujoco>"""

PIN = '<connect site1="one" site2="two"/>'

ROPE = '<tendon><spatial name="rope" stiffness="3"><site site="one"/><site site="two"/></spatial></tendon>'


def test_a_compiled_model_takes_the_loops_of_its_file() -> None:
    """As the file: embedded, with named independent joints, or as loops to add, and strict."""
    pin = ts.constraints.Closure("pin", "ball", "one", "two", method="embed")
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        (PIN, {"closures": "embed"}),
        (PIN, {"closures": "embed", "independent": ("rocker",)}),
        ("", {"closures": [pin], "independent": ("coupler",)}),
    )
    for loop, options in cases:
        text = MJCF_BAR.format("", loop)
        found = ts.from_mujoco(mujoco.MjModel.from_xml_string(text), **options)
        expected = ts.load(text, **options)
        assert found.dof_names == options.get("independent", found.dof_names)
        assert found.dof_names == expected.dof_names and found.closures == expected.closures
        q, qd, tau = state(expected, size=0.3)
        accelerations = [ts.forward_dynamics(mech, q, qd, tau) for mech in (found, expected)]
        assert torch.equal(*accelerations)
    with pytest.raises(ts.RobotFileError, match="rope"):
        ts.from_mujoco(mujoco.MjModel.from_xml_string(MJCF_BAR.format(ROPE, PIN)), strict=True)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("text", "num_dof", "loops"),
    [(gripper(), 3, 2), (delta_robot(), 3, 3), (digit_leg(), 6, 2)],
    ids=["gripper", "delta robot", "leg"],
)
def test_known_mechanisms_load_as_closed_chains(text: str, num_dof: int, loops: int) -> None:
    mech = ts.load(text, closures="embed")
    assert len(mech.closures) == loops and mech.num_dof == num_dof
    q, qd, tau = state(mech, size=0.3)
    assert closed_residual(mech, q) < 1e-12
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    torch.testing.assert_close(ts.inverse_dynamics(mech, q, qd, qdd), tau, rtol=1e-8, atol=1e-8)
