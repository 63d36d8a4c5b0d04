"""MJCF as MuJoCo compiles it: masses, forces and frames of the same model in both libraries."""

import functools
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import torchsko as ts
from torchsko.io.mujoco.mujoco_fields import all_joint_names as names_of_joints

mujoco = pytest.importorskip("mujoco")

WITHOUT = mujoco.mjtDisableBit.mjDSBL_CONSTRAINT | mujoco.mjtDisableBit.mjDSBL_ACTUATION

STACKED = """
<mujoco model="stacked"><compiler angle="radian"/><option gravity="0.3 -0.2 -9.7"/>
<worldbody>
  <body name="cart" pos="0.1 0.2 0.3" quat="0.9 0.1 -0.3 0.2">
    <joint name="x" type="slide" axis="1 0.2 0" damping="0.3" armature="0.1" ref="0.4"/>
    <joint name="swing" type="hinge" axis="0 1 1" pos="0.1 -0.2 0.3" ref="-0.7" stiffness="2"
           springref="0.2" frictionloss="0.1" range="-1 1" limited="true"/>
    <joint name="lift" type="slide" axis="0 0.3 1" ref="0.2" damping="0.5"/>
    <inertial pos="0.05 0.1 -0.1" quat="0.7 0.3 0.2 0.1" mass="2" diaginertia="0.3 0.2 0.25"/>
    <site name="grip" pos="0.1 0.2 0.3" quat="0.5 0.5 -0.5 0.5"/>
    <body name="mid" pos="0.3 0 0.2">
      <joint name="off" type="hinge" axis="0 0 1" pos="0.2 0.1 0" ref="0.5" armature="0.02"/>
      <inertial pos="0 0.1 0.2" mass="1" diaginertia="0.1 0.1 0.15"/>
      <body name="ball" pos="0.1 0 0.4" euler="0.3 0.2 0.1">
        <joint name="socket" type="ball" pos="0.05 -0.1 0.02" damping="0.2"/>
        <joint name="after" type="slide" axis="1 0 0" damping="0.1" armature="0.3"/>
        <inertial pos="0.2 0 0" mass="0.7" diaginertia="0.05 0.06 0.07"/>
      </body>
      <body name="plate" pos="-0.1 0 0"><inertial pos="0 0 0.1" mass="0.4" diaginertia="0.01 0.02 0.02"/>
        <camera name="eye" pos="0 0 0.2"/>
      </body>
    </body>
  </body>
  <body name="box" pos="1 0 1"><freejoint name="loose"/>
    <inertial pos="0.02 0 0.01" mass="3" diaginertia="0.1 0.2 0.25"/>
    <body><joint type="slide" axis="1 0 0" ref="0.1" stiffness="5" springref="0.3"/>
      <inertial pos="0 0 0" mass="0.5" diaginertia="0.01 0.01 0.01"/></body>
  </body>
</worldbody></mujoco>
"""


def frame_of_site(model, i: int) -> str:
    """Its name, and where a body has that name too, another."""
    bodies, name = {model.body(b).name for b in range(model.nbody)}, model.site(i).name
    return f"{name}_site" if name in bodies else name


def error(mine: Tensor, theirs: Tensor) -> float:
    return float((mine - theirs).abs().max() / max(1.0, float(theirs.abs().max())))


def against_mujoco(model, states: int = 3) -> ts.Mechanism:
    """Masses, inverse dynamics and poses of a model, constraints off; returns our mechanism's tree."""
    mech = ts.from_mujoco(model)
    tree, g = mech.tree, torch.Generator().manual_seed(0)
    there = ts.conventions("mujoco", tree, names_of_joints(model))
    model.opt.disableflags |= int(WITHOUT)
    data = mujoco.MjData(model)
    for _ in range(states):
        q, _ = tree.random_state(generator=g)
        qd, qdd = torch.randn(2, tree.num_dof, generator=g, dtype=q.dtype)
        v, a = there.qd_to(q, qd), there.qdd_to(q, qd, qdd)
        data.qpos[:], data.qvel[:] = there.q_to(q).numpy(), v.numpy()
        mujoco.mj_forward(model, data)
        M = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, M)
        assert error(ts.mass_matrix(tree, q), there.mass_matrix_from(q, torch.tensor(M))) < 1e-9
        data.qacc[:] = a.numpy()
        mujoco.mj_inverse(model, data)
        # Dry friction is a constraint of MuJoCo's, and off.
        tau = ts.inverse_dynamics(tree, q, qd, qdd) - tree.friction * torch.sign(qd)
        assert error(tau, there.tau_from(q, torch.tensor(data.qfrc_inverse))) < 1e-9
        names = [model.body(b).name or f"body{b}" for b in range(1, model.nbody)]
        assert error(ts.frame_pose(tree, q, names).position, torch.tensor(data.xpos[1:])) < 1e-9
        sites = [i for i in range(model.nsite) if model.site(i).name]
        if sites:
            poses = ts.frame_pose(tree, q, [frame_of_site(model, i) for i in sites])
            assert error(poses.position, torch.tensor(data.site_xpos[sites])) < 1e-9
            assert error(poses.rotation.flatten(-2), torch.tensor(data.site_xmat[sites])) < 1e-9
    return mech


def test_stacked_joints_with_anchors_references_and_springs():
    mech = against_mujoco(mujoco.MjModel.from_xml_string(STACKED), states=10)
    assert mech.joint_names == ("x+swing+lift", "off", "socket", "after", "loose", "body6_joint")
    assert mech.joint_kinds[:4] == ("compound", "compound", "spherical", "prismatic")
    at = mech.dof_slice("x+swing+lift")
    assert mech.damping[at].tolist() == [0.3, 0.0, 0.5] and mech.friction[at].tolist() == [
        0,
        0.1,
        0,
    ]
    assert (mech.lower[1], mech.upper[1]) == (-1.0, 1.0) and mech.lower[0] == -torch.inf
    assert {"grip", "eye", "ball", "plate"} <= set(mech.frame_names)
    assert mech.gravity.tolist() == [0.3, -0.2, -9.7]


def test_nonlinear_damping_of_free_joints_is_reported_and_left_out():
    """Its powers are those of velocities in inertial axes."""
    body = '<body><joint name="{0}" type="{0}" damping="0.4 0.3 0.2"/><geom size="0.1"/></body>'
    text = "".join(map(body.format, ("free", "ball")))
    mech = ts.load(f"<mujoco><worldbody>{text}</worldbody></mujoco>")
    assert mech.damping.tolist() == [0.4] * 9
    assert mech.higher_damping.tolist() == [[0.0, 0.0]] * 6 + [[0.3, 0.2]] * 3
    (noted,) = (str(x) for x in mech.unused if "nonlinear damping" in str(x))
    assert noted.startswith("1 free joints with nonlinear damping (free)")


def test_text_files_and_compiled_models_load_alike(tmp_path):
    (tmp_path / "robot.xml").write_text(STACKED)
    model = mujoco.MjModel.from_xml_string(STACKED)
    mujoco.mj_saveModel(model, str(tmp_path / "robot.mjb"))
    robots = [
        ts.load(STACKED),
        ts.load(tmp_path / "robot.xml"),
        ts.load(str(tmp_path / "robot.mjb")),
    ]
    q, qd = robots[0].random_state(3)
    results = [ts.bias_force(robot, q, qd) for robot in robots]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    assert ts.load(STACKED, gravity=(0, 0, 0), dtype=torch.float32).gravity.tolist() == [0, 0, 0]


def test_linear_equalities_of_joints_are_couplings():
    text = """<mujoco><worldbody><body name="hand"><joint name="wrist" axis="1 0 0"/>
      <inertial pos="0 0 0.1" mass="1" diaginertia="0.1 0.1 0.1"/>
      <body name="left"><joint name="l" type="slide" axis="0 1 0" ref="0.1"/>
        <inertial pos="0 0 0.2" mass="0.3" diaginertia="0.01 0.01 0.01"/></body>
      <body name="right"><joint name="r" type="slide" axis="0 -1 0"/>
        <inertial pos="0 0 0.2" mass="0.3" diaginertia="0.01 0.01 0.01"/></body>
      <body name="bent"><joint name="b" axis="0 1 0"/>
        <inertial pos="0 0 0.2" mass="0.3" diaginertia="0.01 0.01 0.01"/></body></body></worldbody>
      <equality><joint joint1="r" joint2="l" polycoef="0.02 0.5 0 0 0"/>
        <joint joint1="b" joint2="wrist" polycoef="0 1 0.3 0 0"/></equality></mujoco>"""
    model = mujoco.MjModel.from_xml_string(text)
    mech = against_mujoco(model)
    assert mech.joint_names == ("wrist", "l", "b") and mech.dependent_joint_names == ("r",)
    (bent,) = mech.closures  # the other equality, a polynomial
    assert bent.kind == "joint" and bent.method == "cut"
    q = torch.tensor([0.3, 0.4, 0.1], dtype=torch.float64)
    data = mujoco.MjData(model)
    data.qpos[:] = ts.expand(mech, q).numpy()
    model.opt.disableflags &= ~int(WITHOUT)
    mujoco.mj_forward(model, data)
    assert abs(float(data.efc_pos[0])) < 1e-12  # MuJoCo finds nothing to correct


def test_ranges_of_joints_that_follow_hold_as_in_a_urdf():
    """IK within limits, random states and springs at limits left the ranges of followers unheeded."""
    text = """<mujoco><compiler angle="radian"/><worldbody>
      <body name="base"><joint name="up" type="slide" axis="0 0 1" range="-2 3"/>
      <joint name="spin" axis="0 0 1"/><geom size="0.1" mass="1"/>
      <body name="one" pos="0.2 0 0"><joint name="j1" axis="0 1 0" range="-2 2"/>
      <geom size="0.1" pos="0.2 0 0" mass="1"/>
      <body name="two" pos="0.2 0 0"><joint name="j2" axis="0 1 0" range="-1 1"/>
      <geom size="0.1" pos="0.2 0 0" mass="1"/></body></body></body></worldbody>
      <equality><joint joint1="j2" joint2="j1" polycoef="0.3 -2 0 0 0"/></equality></mujoco>"""
    model = mujoco.MjModel.from_xml_string(text)
    mech = ts.from_mujoco(model)
    assert mech.joint_names == ("up+spin", "j1")
    torch.testing.assert_close(mech.lower.tolist(), [-2.0, -torch.inf, -0.35])
    torch.testing.assert_close(mech.upper.tolist(), [3.0, torch.inf, 0.65])
    q, _ = mech.random_state(64, generator=torch.Generator().manual_seed(0))
    low, high = torch.from_numpy(model.jnt_range)[2:].unbind(-1)
    followed = ts.expand(mech, q)[..., 2:]
    assert (low <= followed).all() and (followed <= high).all()
    assert any("joint 'j1' in the file, lower -2, upper 2" in str(line) for line in mech.unused)


def test_a_gripper_whose_ranges_contradict_its_coupling_loads_as_in_mujoco():
    """As a hand that people grasp with: MuJoCo's limits give way, and say nothing of the motion."""
    text = """<mujoco><worldbody>
      <body name="one" pos="0.2 0 0"><joint name="j1" axis="0 1 0" range="0 2"/>
      <geom size="0.1" pos="0.2 0 0" mass="1"/>
      <body name="two" pos="0.2 0 0"><joint name="j2" axis="0 1 0" range="0 1.5"/>
      <geom size="0.1" pos="0.2 0 0" mass="1"/></body></body></worldbody>
      <compiler angle="radian"/>
      <equality><joint joint1="j2" joint2="j1" polycoef="-2.5 1 0 0 0"/></equality></mujoco>"""
    mech = against_mujoco(mujoco.MjModel.from_xml_string(text))
    assert (mech.lower.tolist(), mech.upper.tolist()) == ([0.0], [2.0])
    (told,) = (str(line) for line in mech.unused if "of position of joint 'j2'" in str(line))
    assert "[2.5, 4]" in told and "ignored" in told


@functools.cache
def gymnasium_models() -> dict[str, Path]:
    found = importlib.util.find_spec("gymnasium")
    if found is None or found.origin is None:
        return {}
    folder = Path(found.origin).parent / "envs" / "mujoco" / "assets"
    return {path.name: path for path in sorted(folder.glob("*.xml"))}


def test_gymnasium_has_a_dozen_models():
    pytest.importorskip("gymnasium")
    assert len(gymnasium_models()) >= 12


@pytest.mark.parametrize("name", gymnasium_models())
def test_models_of_gymnasium_equal_mujoco(name):
    against_mujoco(mujoco.MjModel.from_xml_path(str(gymnasium_models()[name])))


HOSTILE = {
    "copied without bound": (
        '<mujoco><worldbody><replicate count="1000000000"><geom size="1"/></replicate></worldbody></mujoco>',
        "more than 10000 times",
    ),
    "copies of copies": (
        "<mujoco><worldbody>" + '<replicate count="500">' * 3 + '<geom size="1"/>'
        + "</replicate>" * 3 + "</worldbody></mujoco>",
        "more than 10000 times",
    ),
    "an entity": ('<!DOCTYPE a [<!ENTITY b "c">]><mujoco>&b;</mujoco>', "DOCTYPE|declar"),
    "an absolute include": ('<mujoco><include file="/etc/passwd"/></mujoco>', "lies outside the folder"),
    "a mesh elsewhere": (
        '<mujoco><asset><mesh file="../../secret.key"/></asset></mujoco>', "lies outside the folder"
    ),
    "a folder elsewhere": ('<mujoco><compiler meshdir="C:/x"/></mujoco>', "lies outside the folder"),
    "no model": ("<mujoco><worldbody><bodyy/></worldbody></mujoco>", "compiler reports"),
    "too deep": ("<mujoco>" + "<body>" * 1000 + "</body>" * 1000 + "</mujoco>", "deep"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_before_mujoco_sees_them(name, tmp_path):
    text, said = HOSTILE[name]
    (tmp_path / "robot.xml").write_text(text)
    for source in (text, tmp_path / "robot.xml"):
        with pytest.raises(ts.RobotFileError, match=said):
            ts.load(source)


def test_includes_are_looked_through_too(tmp_path):
    (tmp_path / "robot.xml").write_text('<mujoco><include file="part.xml"/></mujoco>')
    (tmp_path / "part.xml").write_text(HOSTILE["copied without bound"][0])
    with pytest.raises(ts.RobotFileError, match="more than 10000 times"):
        ts.load(tmp_path / "robot.xml")
    (tmp_path / "part.xml").write_text('<mujoco><include file="part.xml"/></mujoco>')
    with pytest.raises(ts.RobotFileError, match="included twice"):
        ts.load(tmp_path / "robot.xml")


def test_a_floating_base_and_a_model_that_stands_still_say_what_to_type():
    with pytest.raises(ts.MechanismError, match="<freejoint/>"):
        ts.load(STACKED, floating_base=True)
    with pytest.raises(ts.MechanismError, match=r"(?s)no moving joint.*<freejoint/>") as told:
        ts.load("<mujoco><worldbody><body><geom size='1'/></body></worldbody></mujoco>")
    assert "floating_base" not in str(told.value)  # which is refused of MJCF


def test_ranges_of_actuators_that_limit_no_joint_are_reported():
    """Limits of effort seemed to be none, although the file bounds what its motors give."""
    text = """<mujoco><worldbody><body><joint name="a" axis="0 1 0"/><geom size=".1" pos=".1 0 0"/>
      <body><joint name="b" axis="0 1 0"/><geom size=".1" pos=".2 0 0"/>
      <body><joint name="c" axis="0 1 0" actuatorfrcrange="-5 5"/><geom size=".1" pos=".3 0 0"/>
      <body><joint name="d" axis="0 1 0"/><geom size=".1" pos=".4 0 0"/></body></body></body></body>
      </worldbody><actuator><motor joint="a" gear="100" ctrlrange="-1 1"/><motor joint="a" gear="2"/>
      <position joint="b" kp="10" forcerange="-3 3"/><motor joint="c" ctrlrange="-1 1"/>
      <position joint="d" kp="10" ctrlrange="-1 1"/></actuator></mujoco>"""
    mech = ts.load(text)
    (told,) = (str(x) for x in mech.unused if "effort_limit has only" in str(x))
    assert told.startswith("2 joints whose actuators have ranges of control or force: ")
    assert mech.effort_limit.tolist() == [torch.inf, torch.inf, 5.0, torch.inf]
