"""What new files say to MuJoCo: masses, names of joints and limits."""

import warnings

import pytest
import torch

import torchsko as ts
from tests.io.test_kept import LOOPS, world_point
from tests.strategies import agree

mujoco = pytest.importorskip("mujoco")

# A hip whose foot is welded to it: shapes to touch and to see, and no mass said of their own.
WELDED = """<robot name="leg">
  <link name="hip"><inertial><origin xyz="0 0 -0.1"/><mass value="1.5"/>
    <inertia ixx="0.02" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.01"/></inertial></link>
  <link name="foot"><inertial><mass value="0.1"/>
    <inertia ixx="1e-4" ixy="0" ixz="0" iyy="1e-4" iyz="0" izz="1e-4"/></inertial>
    <collision><geometry><sphere radius="0.05"/></geometry></collision></link>
  <link name="base"><inertial><mass value="2"/>
    <inertia ixx="0.2" ixy="0" ixz="0" iyy="0.2" iyz="0" izz="0.3"/></inertial>
    <collision><geometry><box size="1 1 0.1"/></geometry></collision></link>
  <joint name="swing" type="continuous"><parent link="base"/><child link="hip"/><axis xyz="0 1 0"/></joint>
  <joint name="weld" type="fixed"><parent link="hip"/><child link="foot"/><origin xyz="0 0 -0.4"/></joint>
</robot>"""

STACK = """<mujoco model="stack"><compiler angle="radian"/><worldbody><body name="a">
  <joint name="heave" type="slide" axis="0 0 1"/><joint name="roll" axis="1 0 0" range="-1 1"/>
  <geom type="box" size=".1 .2 .3"/><body name="b" pos="0 0 1"><joint name="knee" axis="0 1 0"/>
  <geom type="box" size=".1 .1 .3"/></body></body></worldbody></mujoco>"""

BALL = """<mujoco><worldbody><body name="a"><joint name="ball" type="ball" stiffness="2"/>
  <geom type="box" size=".1 .2 .3" pos="0.1 0 0"/></body></worldbody></mujoco>"""


@pytest.mark.parametrize("floating", [False, True])
def test_mujocos_import_of_a_new_urdf_has_the_robots_mass_and_no_more(floating, tmp_path):
    """MuJoCo gives links that say no mass one of their shapes."""
    mech = ts.load(WELDED, floating_base=floating)
    ts.save(mech, tmp_path / "leg.urdf")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "leg.urdf"))
    assert model.body_mass[-1] == pytest.approx(float(mech.mass[-1]), rel=1e-14)
    q = mech.random_state()[0]
    there = ts.conventions("mujoco", mech)
    data = mujoco.MjData(model)
    data.qpos[:] = there.q_to(q).numpy()
    mujoco.mj_forward(model, data)
    M = torch.zeros(model.nv, model.nv, dtype=mech.dtype).numpy()
    mujoco.mj_fullM(model, data, M)
    want = there.mass_matrix_to(q, ts.mass_matrix(mech, q))
    assert torch.allclose(torch.from_numpy(M), want, rtol=0.0, atol=1e-12)


def test_joints_of_a_stack_keep_their_names_in_a_new_mjcf_file(tmp_path):
    mech = ts.load(STACK)
    ts.save(mech, tmp_path / "stack.xml")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "stack.xml"))
    names = [model.joint(i).name for i in range(model.njnt)]
    assert names == ["heave", "roll", "knee"]
    assert ts.load(tmp_path / "stack.xml").joint_names == mech.joint_names
    q = mech.random_state()[0]
    assert torch.equal(ts.conventions("mujoco", mech, names).q_to(q), q)


@pytest.mark.parametrize("side", ["lower", "upper"])
@pytest.mark.parametrize("suffix", [".xml", ".urdf"])
def test_a_limit_on_one_side_stays_one(side, suffix, tmp_path):
    mech = ts.load(ts.robots.panda)
    open_ = getattr(mech, side).clone()
    open_[2] = torch.inf if side == "upper" else -torch.inf
    mech = mech.replace(**{side: open_})
    ts.save(mech, tmp_path / f"arm{suffix}")
    other = ts.load(tmp_path / f"arm{suffix}")
    assert torch.equal(other.lower, mech.lower) and torch.equal(other.upper, mech.upper)


def test_equal_limits_are_reported_where_mujoco_ignores_them(tmp_path):
    mech = ts.load(ts.robots.panda)
    still, weak = mech.lower.clone(), mech.effort_limit.clone()
    still[1], weak[4] = mech.upper[1], 0.0
    with pytest.warns(
        ts.RobotFileWarning, match="limits that permit one position or no effort(.*) joint2, joint5"
    ):
        ts.save(mech.replace(lower=still, effort_limit=weak), tmp_path / "arm.xml")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ts.RobotFileWarning)
        ts.save(mech.replace(lower=still, effort_limit=weak), tmp_path / "arm.urdf")


def test_a_ball_joints_spring_that_mjcf_does_not_have_is_named(tmp_path):
    mech = ts.load(BALL)
    turned = mech.replace(spring_reference=torch.tensor([0.6, 0.8, 0.0, 0.0], dtype=mech.dtype))
    with pytest.warns(ts.RobotFileWarning, match="springs of ball joints .* of ball"):
        ts.save(turned, tmp_path / "turned.xml")
    assert not ts.load(tmp_path / "turned.xml").stiffness.any()
    ts.save(mech.replace(spring_reference=-mech.spring_reference), tmp_path / "ball.xml")
    q, qd = mech.random_state()
    tau = ts.inverse_dynamics(ts.load(tmp_path / "ball.xml"), q, qd, qd)
    assert torch.allclose(tau, ts.inverse_dynamics(mech, q, qd, qd), rtol=0.0, atol=1e-14)


def test_a_moving_body_of_the_worlds_name_is_refused_in_mjcf_by_name(tmp_path):
    """Root links of ROS are called so; with a floating base they move."""
    mech = ts.load(WELDED.replace('"base"', '"world"'), floating_base=True)
    with pytest.raises(ts.MechanismError, match=r"a moving body is named 'world'(.|\n)*urdf"):
        ts.save(mech, tmp_path / "leg.xml")
    ts.save(mech, tmp_path / "leg.urdf")


SCENE = """<mujoco><worldbody>
  <body name="cup" pos="0.5 0 0.8" euler="0 0 90"><freejoint name="cup_free"/>
  <geom type="sphere" size=".05"/></body>
  <body name="kite" pos="1 0 2"><freejoint name="line"/><geom type="box" size=".1 .2 .01"/></body>
</worldbody></mujoco>"""


def test_what_floats_begins_in_a_new_mjcf_file_where_it_did(tmp_path):
    mech = ts.load(SCENE)
    ts.save(mech, tmp_path / "scene.xml")
    start = torch.from_numpy(mujoco.MjModel.from_xml_path(str(tmp_path / "scene.xml")).qpos0)
    assert float(start[2]) == 0.8 and torch.equal(start, mech.initial())
    assert torch.equal(ts.load(tmp_path / "scene.xml").initial(), mech.initial())


def test_keyframes_and_loops_are_in_a_new_mjcf_file(tmp_path):
    """Both went without a word; loops then stood open in MuJoCo."""
    mech = ts.load(LOOPS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.save(mech, tmp_path / "loops.xml")
    again = ts.load(tmp_path / "loops.xml")
    assert again.joint_names == mech.joint_names
    assert list(again.keyframes) == list(mech.keyframes) == ["home", "keyframe1"]
    for old, new in zip(mech.keyframes.values(), again.keyframes.values(), strict=True):
        assert new.time == old.time
        agree(new.q[None], old.q[None], 1e-15)
        agree(new.qd[None], old.qd[None], 1e-12)
        assert torch.equal(new.ctrl, old.ctrl) and torch.equal(new.activation, old.activation)
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(1))
    for old, new in zip(mech.file_metadata.closures, again.file_metadata.closures, strict=True):
        kept = ("name", "kind", "active", "solref", "solimp")
        assert [getattr(old, x) for x in kept] == [getattr(new, x) for x in kept]
        (p1, R1), (p2, R2), (p3, R3), (p4, R4) = (
            world_point(robot, q, getattr(c, f"frame{end}"), getattr(c, f"position{end}"), turn)
            for robot, c in ((mech, old), (again, new))
            for end, turn in ((1, c.rotation), (2, torch.eye(3).tolist()))
        )
        agree(torch.stack([p3, p4]), torch.stack([p1, p2]), 1e-14)
        agree(R3 @ R4.mT, R1 @ R2.mT, 1e-14)
    ts.save(again, tmp_path / "twice.xml")
    assert ts.load(tmp_path / "twice.xml").frame_names == again.frame_names  # no site twice


def test_keyframes_and_loops_that_a_new_file_has_not_are_told(tmp_path):
    two = """<mujoco><worldbody><body name="a"><joint name="j"/><geom size="0.1"/>
      <body name="b"><joint name="k"/><geom size="0.1"/></body></body></worldbody>
      <equality><connect name="pin" body1="b" anchor="0.1 0 0"/></equality>
      <keyframe><key name="up" qpos="1 2"/></keyframe></mujoco>"""
    mech = ts.load(two)
    with pytest.warns(ts.RobotFileWarning, match="keyframes up"):
        ts.save(mech, tmp_path / "two.urdf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.save(mech, tmp_path / "two.xml")
    assert ts.load(tmp_path / "two.xml").keyframes["up"].q.tolist() == [1.0, 2.0]


def test_the_root_of_a_new_urdf_is_the_inertial_frame_whatever_else_stands_there(tmp_path):
    """Robots beside a camera, or that their file raises, were refused as read otherwise."""
    text = """<mujoco model="arm"><worldbody><camera name="eye" pos="0 -2 1" euler="80 0 0"/>
      <site name="mark" pos="1 0 0"/><geom type="box" size=".1 .2 .3" pos="3 0 0"/>
      <body name="a" pos="0 0 0.5" euler="10 20 30"><joint name="j"/><geom size="0.1" pos="0.1 0 0"/></body>
      </worldbody></mujoco>"""
    mech = ts.load(text)
    ts.save(mech, tmp_path / "arm.urdf")
    again = ts.load(tmp_path / "arm.urdf")
    assert again.joint_names == ("j",) and again.frame_names[0] == "world"
    q, qd = mech.random_state(5, generator=torch.Generator().manual_seed(0))
    for robot_frames in (mech.frame_names, ["eye", "mark"]):
        poses = [ts.frame_pose(m, q, list(robot_frames)) for m in (mech, again)]
        agree(poses[1].position, poses[0].position, 1e-14)
        agree(poses[1].rotation.flatten(-2), poses[0].rotation.flatten(-2), 1e-14)
    agree(ts.inverse_dynamics(again, q, qd, qd), ts.inverse_dynamics(mech, q, qd, qd), 1e-14)
    boxes = [s.position for s in again.geometry.shapes if s.frame == "world"]
    assert boxes and set(boxes) == {(3.0, 0.0, 0.0)}


def test_an_initial_state_that_a_new_file_lacks_is_reported(tmp_path):
    with pytest.warns(
        ts.RobotFileWarning,
        match=r"initial positions \(mech.initial\(\)\) of joints cup_free, line",
    ):
        ts.save(ts.load(SCENE), tmp_path / "scene.urdf")
    bent = STACK.replace('name="knee"', 'name="knee" ref="0.3"')
    ts.save(ts.load(bent), tmp_path / "bent.xml")
    assert ts.load(tmp_path / "bent.xml").initial().tolist() == [0.0, 0.0, 0.3]


def test_limits_of_joints_with_several_dofs_are_written_or_told(tmp_path):
    """They were gone without a word."""
    mech = ts.load(BALL.replace(' stiffness="2"', ""))
    strong = mech.replace(effort_limit=torch.full_like(mech.effort_limit, 7.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.save(strong, tmp_path / "ball.urdf")
    assert torch.equal(ts.load(tmp_path / "ball.urdf").effort_limit, strong.effort_limit)
    with pytest.warns(ts.RobotFileWarning, match="effort limits of ball and free joints ball"):
        ts.save(strong, tmp_path / "ball.xml")
    uneven = mech.replace(effort_limit=strong.effort_limit * torch.arange(1, 4))
    with pytest.warns(ts.RobotFileWarning, match="limits of joints of several dofs: ball"):
        ts.save(uneven, tmp_path / "uneven.urdf")


def test_a_thin_rod_gets_a_moment_of_inertia_that_mujoco_accepts(tmp_path):
    """Its inertia is of a rigid body, and MuJoCo refuses a zero moment of a moving body."""
    builder = ts.MechanismBuilder("rod")
    builder.link("rod", mass=1.0, inertia=[[0.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    mech = builder.joint("j", "revolute", child="rod").build()
    with pytest.warns(ts.RobotFileWarning, match="which get 2e-15 kg and kg m.2: rod"):
        ts.save(mech, tmp_path / "rod.xml")
    moved = ts.load(tmp_path / "rod.xml").inertia - mech.inertia
    assert 0 < float(moved.abs().max()) < 3e-15
