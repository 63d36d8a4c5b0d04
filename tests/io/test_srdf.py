"""SRDF files and a ground beside a URDF file: named states, pairs without contact, a plane."""

from pathlib import Path

import pinocchio as pin
import pytest
import torch

import torchsko as ts
from torchsko.errors import MechanismError, RobotFileError

ROBOTS = Path(pin.__file__).parents[4] / "share" / "example-robot-data" / "robots"
TALOS = ROBOTS / "talos_data" / "robots" / "talos_reduced.urdf"
BODY = """<link name="{0}"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1"
 ixy="0" ixz="0" iyz="0"/></inertial><collision><geometry><sphere radius="0.2"/></geometry>
</collision></link>"""
SLIDE = """<joint name="{0}" type="prismatic"><parent link="{1}"/><child link="{2}"/><axis xyz="1 0 0"/>
<limit effort="1" velocity="1" lower="-9" upper="9"/></joint>"""
CART = (
    '<robot name="carts"><link name="rail"/>'
    + "".join(map(BODY.format, "ab"))
    + SLIDE.format("slide_a", "rail", "a")
    + SLIDE.format("slide_b", "rail", "b")
    + "</robot>"
)


def srdf(body: str) -> str:
    return f'<robot name="carts">{body}</robot>'


def test_named_configurations_of_a_humanoid_are_pinocchios():
    path = ROBOTS / "talos_data" / "srdf" / "talos.srdf"
    mech = ts.load(TALOS, floating_base=True, srdf=path)
    model = pin.buildModelFromUrdf(str(TALOS), pin.JointModelFreeFlyer())
    pin.loadReferenceConfigurations(model, str(path), False)
    there = ts.conventions("pinocchio", mech, list(model.names)[1:])
    assert {*mech.keyframes} == {entry.key() for entry in model.referenceConfigurations}
    for name, key in mech.keyframes.items():
        expected = there.q_from(torch.tensor(model.referenceConfigurations[name]))
        torch.testing.assert_close(key.q, expected)
    fixed = ts.load(TALOS, srdf=srdf('<group_state name="home"/>'))
    torch.testing.assert_close(fixed.keyframes["home"].q, fixed.neutral())


def test_disabled_pairs_have_no_contact():
    pair = '<disable_collisions link1="a" link2="b" reason="Never"/>'
    push = []
    for options in ({}, {"srdf": srdf(pair)}):
        mech = ts.load(CART, gravity=(0, 0, 0), **options)
        q = torch.tensor([0.0, 0.3], dtype=mech.dtype)  # the spheres overlap by 0.1
        state = ts.step(mech, ts.State(q, torch.zeros_like(q)), dt=1e-3)
        push.append(state.qd.abs().max())
    assert push[0] > 1e-3
    assert push[1] == 0.0


def test_joints_that_the_robot_lacks_are_left_out_and_reported():
    state = '<joint name="slide_a" value="1"/><joint name="arm" value="2"/>'
    with pytest.warns(ts.RobotFileWarning, match="SRDF joint 'arm': the robot has no such joint"):
        mech = ts.load(CART, srdf=srdf(f'<group_state name="x">{state}</group_state>'))
    assert mech.keyframes["x"].q.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<sdf/>", "the root element is <sdf>"),
        (srdf("<group_state/>"), "<group_state> has no 'name'"),
        (
            srdf('<group_state name="x"><joint name="slide_a" value="1 2"/></group_state>'),
            "<joint name='slide_a'> of the state 'x' has 2 values",
        ),
        (srdf('<disable_collisions link1="a" link2="c"/>'), "the robot has no link 'c'"),
        (
            srdf('<group_state name="x"><joint name="arm" value="1"/></group_state>'),
            "the robot has no joint 'arm'",
        ),
    ],
)
def test_invalid_files_are_refused_by_name(text, said):
    with pytest.raises(RobotFileError, match=said):
        ts.load(CART, srdf=text, strict=True)


@pytest.mark.nightly
def test_a_body_comes_to_rest_on_a_ground_of_a_given_height():
    drop = CART.replace('<axis xyz="1 0 0"/>', '<axis xyz="0 0 1"/>', 1)
    mech = ts.load(drop, ground=-0.5)
    state = ts.State(mech.neutral(), torch.zeros(2, dtype=mech.dtype))
    for _ in range(1500):
        state = ts.step(mech, state, dt=2e-3)
    assert abs(float(state.q[0]) + 0.3) < 2e-3  # the sphere's radius above the plane
    assert abs(float(state.qd[0])) < 1e-3


@pytest.mark.parametrize("option", [{"srdf": srdf("")}, {"ground": 0.0}])
def test_an_mjcf_file_has_its_own_states_and_planes(option):
    with pytest.raises(MechanismError, match="was given with an MJCF file"):
        ts.load("<mujoco><worldbody/></mujoco>", **option)
