"""Single bodies whose motion textbooks solve: pendulum, incline, spinning body, hanging chain."""

import math

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts

EYE = [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]
MASS, LENGTH, INERTIA, G = 2.0, 0.7, 0.05, 9.81


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rod(kind: str, **joint) -> ts.Mechanism:
    """One rod, its center of mass below its joint."""
    inertia = [[INERTIA, 0, 0], [0, INERTIA, 0], [0, 0, 0.01]]
    builder = ts.MechanismBuilder("rod")
    builder.link("rod", mass=MASS, com=(0.0, 0.0, -LENGTH), inertia=inertia)
    return builder.joint("joint", kind, child="rod", **joint).build()


@pytest.mark.parametrize("angle", [0.0, 0.3, 2.0, math.pi])
def test_a_pendulum_falls_by_its_moment_of_inertia(angle):
    mech = rod("revolute", axis=(0.0, 1.0, 0.0), damping=0.3, armature=0.02)
    qdd = ts.forward_dynamics(mech, tensor(angle), tensor(1.5), tensor(0.8))
    moment = 0.8 - 0.3 * 1.5 - MASS * G * LENGTH * math.sin(angle)
    assert_close(qdd, tensor(moment / (INERTIA + MASS * LENGTH**2 + 0.02)))


@pytest.mark.parametrize("axis", [(0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (3.0, -2.0, 6.0)])
def test_a_slider_falls_along_any_axis(axis):
    mech = rod("prismatic", axis=axis)
    along = axis[2] / math.hypot(*axis)
    qdd = ts.forward_dynamics(mech, tensor(0.4), tensor(-1.0), tensor(5.0))
    assert_close(qdd, tensor(5.0 / MASS - G * along))
    start, end = (ts.forward_kinematics(mech, tensor(x)).position[0] for x in (0.0, 0.5))
    assert_close(end - start, 0.5 * tensor(*axis) / math.hypot(*axis))


def test_a_free_body_obeys_newton_and_euler():
    builder = ts.MechanismBuilder()
    moments = tensor(0.1, 0.2, 0.25)
    builder.link("body", mass=MASS, inertia=torch.diag(moments).tolist())
    mech = builder.joint("free", "free", child="body").build(gravity=(0.0, 0.0, 0.0))
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))
    w, v = qd[:3], qd[3:]
    tau = torch.arange(6, dtype=torch.float64)
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    assert_close(qdd[:3], (tau[:3] - torch.linalg.cross(w, moments * w)) / moments)
    # v is the velocity in body axes: its rate lacks what the turning axes take away.
    assert_close(qdd[3:], tau[3:] / MASS - torch.linalg.cross(w, v))


def test_a_free_body_falls_with_g_in_any_orientation():
    mech = rod("free")
    q, _ = mech.random_state(5, generator=torch.Generator().manual_seed(1))
    still = torch.zeros(5, 6, dtype=torch.float64)
    R = ts.forward_kinematics(mech, q).rotation[:, 0]
    qdd = ts.forward_dynamics(mech, q, still, still)
    assert_close(qdd[:, :3], torch.zeros_like(qdd[:, :3]))
    assert_close((R @ qdd[:, 3:, None])[..., 0], mech.gravity.expand(5, 3))


def test_a_top_on_a_ball_joint_obeys_euler():
    mech = rod("spherical")
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(2))
    about_pivot = tensor(*[INERTIA + MASS * LENGTH**2] * 2, 0.01)
    R = ts.forward_kinematics(mech, q).rotation[0]
    weight = torch.linalg.cross(tensor(0, 0, -LENGTH), MASS * R.mT @ mech.gravity)
    expected = (weight - torch.linalg.cross(qd, about_pivot * qd)) / about_pivot
    assert_close(ts.forward_dynamics(mech, q, qd, torch.zeros_like(qd)), expected)


@pytest.mark.parametrize("speed", [-2.0, 0.0, 2.0])
def test_dry_friction_opposes_motion_and_vanishes_at_rest(speed):
    mech = rod("prismatic", axis=(1.0, 0.0, 0.0), friction=3.0)
    qdd = ts.forward_dynamics(mech, tensor(0.0), tensor(speed), tensor(0.0))
    assert_close(qdd, tensor(-math.copysign(3.0, speed) / MASS if speed else 0.0))


def test_springs_pull_towards_their_reference():
    mech = rod("prismatic", axis=(1.0, 0.0, 0.0), stiffness=4.0, spring_reference=0.25)
    qdd = ts.forward_dynamics(mech, tensor(0.75), tensor(0.0), tensor(0.0))
    assert_close(qdd, tensor(-4.0 * 0.5 / MASS))


def test_an_inertia_in_a_rotated_frame_is_the_rotated_inertia():
    c, s = math.cos(0.4), math.sin(0.4)
    turn = tensor(c, -s, 0, s, c, 0, 0, 0, 1).reshape(3, 3)
    own = torch.diag(tensor(0.1, 0.2, 0.25))
    by_frame, by_matrix = ts.MechanismBuilder(), ts.MechanismBuilder()
    by_frame.link("l", mass=1.0, inertia=own.tolist(), inertia_rotation=turn.tolist())
    by_matrix.link("l", mass=1.0, inertia=(turn @ own @ turn.mT).tolist())
    built = [b.joint("j", "free", child="l").build() for b in (by_frame, by_matrix)]
    assert_close(built[0].inertia, built[1].inertia)


def test_tension_in_a_hanging_chain_is_the_weight_below():
    builder = ts.MechanismBuilder("chain")
    for k in range(4):
        builder.link(f"l{k}", mass=MASS, com=(0.0, 0.0, -0.5), inertia=EYE)
        place = (0.0, 0.0, -1.0 if k else 0.0)
        builder.joint(f"j{k}", "prismatic", child=f"l{k}", parent=f"l{k - 1}" if k else None,
                      position=place)  # fmt: skip
    mech = builder.build()
    still = torch.zeros(4, dtype=torch.float64)
    assert_close(ts.bias_force(mech, still, still), MASS * G * tensor(4, 3, 2, 1))
