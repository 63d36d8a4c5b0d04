"""Locked joints and appended robots against Pinocchio's `buildReducedModel` and `appendModel`."""

from functools import cache

import numpy as np
import pinocchio as pin
import pytest
import torch

import torchsko as ts
from tests.oracles.pinocchio_bridge import (
    Robot,
    mass_matrix,
    robot_files,
    worst_error,
)

FILES = robot_files()
ROBOTS = (
    ("panda_description/urdf/panda.urdf", False),
    ("ur_description/urdf/ur5_robot.urdf", True),
    ("anymal_b_simple_description/robots/anymal.urdf", True),
    ("talos_data/robots/talos_reduced.urdf", True),
    ("kinova_description/robots/kinova.urdf", False),
)
each_robot = pytest.mark.parametrize(("name", "floating"), ROBOTS)


@cache
def robot(name: str, floating: bool) -> Robot:
    return Robot.load(FILES[name], floating)


def agree_on_dynamics(both: Robot) -> None:
    q, qd, qdd, _ = both.states(8)
    for ours, theirs in (
        (ts.inverse_dynamics(both.mech, q, qd, qdd), both.map(pin.rnea, q, qd, qdd)),
        (ts.mass_matrix(both.mech, q), both.map(mass_matrix, q, axes=2)),
    ):
        assert worst_error(ours, theirs) < 1e-11


@each_robot
def test_locked_joints_are_those_of_the_reduced_model(name, floating):
    whole = robot(name, floating)
    q, *_ = whole.states(1, seed=3)
    ids = [i for i in range(1, whole.model.njoints) if whole.model.joints[i].nv == 1][::2]
    model = pin.buildReducedModel(whole.model, ids, whole.q_to_pin(q)[0])
    names = [whole.model.names[i] for i in ids]
    mech = whole.mech.lock({name: q[0, whole.mech.q_slice(name)] for name in names})
    both = Robot.of(mech, model)
    agree_on_dynamics(both)
    data, x = model.createData(), both.states(1)[0]
    pin.framesForwardKinematics(model, data, both.q_to_pin(x)[0])
    pose = ts.frame_pose(mech, x[0], mech.frame_names)
    for k, frame in enumerate(mech.frame_names):
        placed = data.oMf[model.getFrameId(frame, pin.FrameType.BODY)]
        assert np.abs(placed.rotation - pose.rotation[k].numpy()).max() < 1e-12
        assert np.abs(placed.translation - pose.position[k].numpy()).max() < 1e-12


def renamed(model: pin.Model, prefix: str) -> pin.Model:
    for i in range(1, model.njoints):
        model.names[i] = prefix + model.names[i]
    for frame in model.frames:
        frame.name = prefix + frame.name
    return model


@each_robot
def test_an_appended_arm_is_that_of_pinocchio(name, floating):
    """The UR5 welded to the last link of each robot, a quarter turn away."""
    first = robot(name, floating)
    file = FILES["ur_description/urdf/ur5_robot.urdf"]
    arm = renamed(pin.buildModelFromUrdf(str(file)), "tool_")
    turn, shift = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), np.array([0.1, 0.2, 0.3])
    frame = first.mech.frame_names[-1]
    at = first.model.getFrameId(frame, pin.FrameType.BODY)
    model = pin.appendModel(first.model, arm, at, pin.SE3(turn, shift))
    other = ts.load(file, floating_base=True)
    none = torch.zeros_like(other.damping)
    other = other.replace(damping=none, friction=none)
    mech = first.mech.append(other, frame, turn.tolist(), shift.tolist(), prefix="tool_")
    agree_on_dynamics(Robot.of(mech, model))
