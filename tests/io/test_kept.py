"""What a model says besides its dynamics, against MuJoCo: keyframes, closures and contact lists."""

import mujoco
import numpy as np
import pytest
import torch

import torchsko as ts
from tests.oracles.test_mjcf import names_of_joints
from tests.strategies import agree

BODY = '<inertial pos="0.1 0 -0.2" mass="1" diaginertia="0.05 0.06 0.04"/>'
LOOPS = f"""<mujoco model="loops"><compiler angle="radian"/><worldbody>
  <site name="hook" pos="0.3 0.2 1" euler="0.1 0.2 0.3"/>
  <body name="box" pos="1 0 1"><freejoint name="loose"/>{BODY}<geom name="skin" size="0.1"/>
    <body name="lid"><joint name="x" type="slide" axis="1 0 0" ref="0.1"/><joint name="turn" axis="0 1 0"/>
      {BODY}<site name="grip" pos="0 0.1 0.2"/><geom size="0.1"/></body></body>
  <body name="a" pos="0 0 1"><joint name="one" axis="0 1 0" ref="0.3"/>{BODY}
    <body name="b" pos="0.2 0 0"><joint name="two" axis="0 1 1"/>{BODY}
      <body name="c" pos="0.1 0 0.4"><joint name="three" type="slide" axis="1 0 1"/>{BODY}</body>
    </body></body>
</worldbody>
<contact><exclude body1="c" body2="a"/><exclude body1="box" body2="world"/>
  <pair geom1="skin" geom2="geom_b" condim="4" friction="0.5 0.6 0.007 0.01 0.02" margin="0.1" gap="0.05"/>
</contact>
<equality>
  <connect name="pin" body1="c" body2="lid" anchor="0.1 0.2 0.3"/>
  <weld name="glue" body1="b" body2="box" anchor="0.3 0 0.1" solref="0.05 0.7"/>
  <weld body1="lid"/>
  <connect name="rope" site1="grip" site2="hook" active="false"/>
  <joint joint1="three" joint2="two" polycoef="0.1 0.5 0 0 0"/>
</equality>
<actuator><general name="slow" joint="one" dyntype="filter"/><motor name="fast" joint="x"/>
  <general name="slower" joint="two" dyntype="integrator"/></actuator>
<keyframe><key name="home" time="1.5"
    qpos="1 2 3 1 2 3 4  0.2 0.3  0.4 0.6 0.4" qvel="1 2 3 4 5 6  7 8  9 10 5" act="0.6 0.8" ctrl="1 2 3"/>
  <key qpos="0 0 0 1 0 0 0  0 0  0 0 0.1"/></keyframe></mujoco>""".replace(
    '<joint name="two"', '<geom name="geom_b" size="0.1"/><joint name="two"'
)


@pytest.fixture(scope="module")
def model():
    return mujoco.MjModel.from_xml_string(LOOPS)


@pytest.fixture(scope="module")
def mech(model):
    return ts.from_mujoco(model)


def test_keyframes_are_the_states_that_mujoco_resets_to(model, mech):
    there, data = ts.conventions("mujoco", mech, names_of_joints(model)), mujoco.MjData(model)
    assert list(mech.keyframes) == ["home", "keyframe1"]
    for k, key in enumerate(mech.keyframes.values()):
        mujoco.mj_resetDataKeyframe(model, data, k)
        assert key.time == data.time and key.q.shape == (mech.num_q,)
        agree(there.q_to(key.q)[None], torch.tensor(data.qpos)[None], 1e-12)
        agree(there.qd_to(key.q, key.qd)[None], torch.tensor(data.qvel)[None], 1e-12)
    assert mech.float().keyframes["home"].q.dtype == torch.float32
    assert not [line for line in mech.unused if "keyframe" in str(line)]


def test_the_start_is_where_mujoco_resets_to(model, mech):
    """A raised free body stood in the ground: its pose was in MuJoCo's qpos0 alone."""
    there, data = ts.conventions("mujoco", mech, names_of_joints(model)), mujoco.MjData(model)
    start, raised = mech.initial(), torch.tensor([1.0, 0, 1, 1, 0, 0, 0], dtype=torch.float64)
    assert torch.equal(start[mech.q_slice("loose")], raised)
    assert start[mech.q_slice("one")].item() == 0.3 and start[mech.q_slice("x")].item() == 0.1
    agree(there.q_to(start)[None, :10], torch.tensor(data.qpos)[None, :10], 1e-15)
    mech.initial().zero_()
    assert torch.equal(mech.initial(), start) and mech.float().initial().dtype == torch.float32
    assert torch.equal(mech.lock({"loose": raised}).initial(), start[7:])
    assert torch.equal(mech.tree.initial(), ts.expand(mech, start))
    arm = ts.load(ts.robots.panda)
    assert torch.equal(arm.initial(), arm.neutral())
    both = arm.append(mech, "flange", weld=False, prefix="loops_")
    assert torch.equal(both.initial(), torch.cat([arm.neutral(), start]))


def test_limits_of_mujoco_models_are_reported_as_those_of_files():
    """Nothing said that a joint of MJCF goes through its range."""
    joint = '<joint name="hinge" axis="0 1 0" range="-1 1" limited="true" actuatorfrcrange="-3 3"/>'
    world = f"<worldbody><body>{joint}{BODY}</body></worldbody>"
    held, loose = (
        "\n".join(map(str, ts.load(f"<mujoco>{flag}{world}</mujoco>").unused))
        for flag in ("", '<option><flag limit="disable"/></option>')
    )
    assert "limits of position of joint 'hinge': not in the dynamics; rollout(limits=" in held
    assert "limits of effort of joint 'hinge'" in held and "limits of position" not in loose


def test_actuators_find_their_own_numbers_in_a_keyframe(model, mech):
    drive = ts.actuators.actuators_of(mech)
    act, ctrl = drive.at_keyframe(mech.keyframes["home"])
    assert dict(zip(drive.activation_names, act.tolist(), strict=True)) == {
        "slow": 0.6,
        "slower": 0.8,
    }
    assert dict(zip(drive.names, ctrl.tolist(), strict=True)) == {"slow": 1, "fast": 2, "slower": 3}
    other = ts.actuators.Actuators.of(mech, [ts.actuators.Actuator.motor("no", "one")])
    with pytest.raises(ts.MechanismError, match="0 numbers for actuator 'no'"):
        other.at_keyframe(mech.keyframes["home"])


def test_keyframes_keep_their_coordinates_when_joints_are_locked_or_set_free(mech):
    key = mech.keyframes["home"]
    locked = mech.lock({"loose": key.q[:7]}).keyframes["home"]
    assert torch.equal(locked.q, key.q[7:]) and torch.equal(locked.qd, key.qd[6:])
    whole = mech.tree.keyframes["home"]
    assert torch.equal(whole.q, ts.expand(mech, key.q))
    assert torch.equal(whole.qd, ts.expand_velocity(mech, key.q, key.qd))


def world_point(mech, q, frame, position, rotation):
    """Position, and rotation of a frame there."""
    R, p = (torch.tensor(x, dtype=torch.float64) for x in (rotation, position))
    if frame is None:
        return p, R
    pose = ts.frame_pose(mech, q, [frame])
    return pose.position[0] + pose.rotation[0] @ p, pose.rotation[0] @ R


def test_closures_are_where_mujoco_has_them(model, mech):
    """At any pose, points and frames differ by what MuJoCo wants to correct."""
    eye = np.eye(3).tolist()
    data = mujoco.MjData(model)
    there = ts.conventions("mujoco", mech, names_of_joints(model))
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(1))
    data.qpos[:] = there.q_to(q).numpy()
    data.eq_active[:] = 1
    mujoco.mj_forward(model, data)
    closures = mech.file_metadata.closures
    assert [c.name for c in closures] == ["pin", "glue", "equality2", "rope"]
    assert [c.active for c in closures] == [True, True, True, False]
    assert closures[1].solref == (0.05, 0.7) and closures[3].frame2 == "hook"
    for e, closure in enumerate(closures):
        rows = data.efc_pos[(data.efc_type == 0) & (data.efc_id == e)]
        p1, R1 = world_point(mech, q, closure.frame1, closure.position1, closure.rotation)
        p2, R2 = world_point(mech, q, closure.frame2, closure.position2, eye)
        agree((p1 - p2)[None], torch.tensor(rows[:3])[None], 1e-9)
        if closure.kind == "weld":
            angle = torch.acos(((R1 @ R2.mT).trace() - 1) / 2)  # |imaginary part| is sin(angle / 2)
            assert float((angle / 2).sin()) == pytest.approx(
                float(np.linalg.norm(rows[3:])), abs=1e-9
            )


def test_contact_pairs_and_loops_are_reported(mech):
    told = " ".join(map(str, mech.unused))
    assert (
        "3 contact pairs and excludes" in told and "loop 'pin' (connect of 'c' and 'lid')" in told
    )


def test_appended_robots_keep_both_loops_where_they_were_and_all_keyframes(mech):
    """The second robot's loops to its inertial frame are loops to the frame that it stands on."""
    turn = [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    both = mech.append(mech, "c", turn, [0.1, 0.2, 0.3], prefix="second_", weld=False)
    names = list(mech.keyframes)
    assert list(both.keyframes) == [*names, *(f"second_{name}" for name in names)]
    assert len(both.file_metadata.closures) == 8
    q, _ = both.random_state(generator=torch.Generator().manual_seed(3))
    for old, new in zip(mech.file_metadata.closures, both.file_metadata.closures[4:], strict=True):
        assert new.name == f"second_{old.name}" and new.kind == old.kind
        ends = ((old.frame1, new.frame1, old.position1, new.position1),
                (old.frame2, new.frame2, old.position2, new.position2))  # fmt: skip
        turns = []
        for before, after, point, placed in ends:
            assert after == ("c" if before is None else f"second_{before}")
            at, R = world_point(both, q, after, placed, np.eye(3).tolist())
            if before is None:
                p, place = world_point(both, q, "c", [0.1, 0.2, 0.3], turn)
                expected, R = p + place @ torch.tensor(point, dtype=q.dtype), place
                agree(at[None], expected[None], 1e-12)
            turns.append(R)
        if new.kind == "weld":
            # What a weld says of the inertial frame's axes it says of them where they now are.
            R1, R2 = (
                world_point(both, q, f, [0.0] * 3, np.eye(3).tolist())[1]
                for f in (new.frame1, new.frame2)
            )
            mine = R1 @ torch.tensor(new.rotation, dtype=q.dtype) @ R2.mT
            theirs = turns[0] @ torch.tensor(old.rotation, dtype=q.dtype) @ turns[1].mT
            agree(mine, theirs, 1e-12)


def test_equalities_of_tendons_of_joints_are_couplings():
    text = f"""<mujoco><worldbody><body><joint name="a" axis="0 1 0" ref="0.2"/>{BODY}
      <body><joint name="b" axis="0 1 0"/>{BODY}<body><joint name="c" axis="0 1 0" ref="-0.1"/>{BODY}
      <body><joint name="d" type="slide" axis="0 0 1"/>{BODY}</body></body></body></body></worldbody>
      <tendon><fixed name="t"><joint joint="a" coef="1.5"/><joint joint="b" coef="-2"/></fixed>
        <fixed name="u"><joint joint="c" coef="0.7"/><joint joint="b" coef="0.4"/></fixed></tendon>
      <equality><tendon tendon1="t" tendon2="u" polycoef="0.1 0.6 0 0 0"/>
        <joint joint1="a" joint2="d" polycoef="0 2 0 0 0"/>
        <tendon tendon1="u" polycoef="0.3 0 0 0 0"/>
        <tendon tendon1="u" tendon2="t" polycoef="0 1 0 0 0"/>
        <joint joint1="b" joint2="c" polycoef="0 0 1 0 0"/></equality></mujoco>"""
    model = mujoco.MjModel.from_xml_string(text)
    mech = ts.from_mujoco(model)
    assert mech.num_dof == 1 and len(mech.dependent_joint_names) == 3
    told = " ".join(map(str, mech.unused))
    assert "'equality3': redundant" in told and "loop 'equality4' (joint of 'b' and 'c')" in told
    q, data = torch.tensor([0.37]).double(), mujoco.MjData(model)
    data.qpos[:] = ts.expand(mech, q).numpy()
    mujoco.mj_forward(model, data)
    rows = data.efc_pos[(data.efc_type == 0) & (data.efc_id < 3)]
    assert len(rows) == 3 and abs(rows).max() < 1e-12  # MuJoCo finds nothing to correct
