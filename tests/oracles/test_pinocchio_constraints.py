"""Held frames against Pinocchio's `constraintDynamics`."""

from __future__ import annotations

import numpy as np
import pinocchio as pin
import pytest
import torch

import torchsko as ts
from tests.oracles.pinocchio_bridge import Robot


def pinocchio_models(robot: Robot, frames: list[str], rows: str) -> list:
    kind = pin.ContactType.CONTACT_6D if rows == "weld" else pin.ContactType.CONTACT_3D
    found = []
    for name in frames:
        frame = robot.model.frames[robot.model.getFrameId(name)]
        made = pin.RigidConstraintModel(
            kind,
            robot.model,
            frame.parentJoint,
            frame.placement,
            pin.ReferenceFrame.LOCAL_WORLD_ALIGNED,
        )
        found.append(made)
    return found


@pytest.mark.parametrize(
    ("path", "rows"), [(ts.robots.quadruped, "point"), (ts.robots.humanoid, "weld")]
)
def test_constrained_accelerations_and_impacts_agree(path, rows: str) -> None:
    robot = Robot.load(path, floating_base=True)
    mech = robot.mech
    # Pinocchio reads neither springs nor rotors of a file.
    mech = mech.replace(stiffness=0 * mech.stiffness, armature=0 * mech.armature)
    frames = [name for name in mech.frame_names if name.endswith("foot")]
    q, qd, tau, _ = robot.states(5)
    held = ts.constrain(mech, [ts.HeldFrame(f, rows) for f in frames])
    moving, qd = qd, (held.nullspace(q) @ qd[..., None])[..., 0]
    qdd, forces = held.forward_dynamics(q, qd, tau)
    models = pinocchio_models(robot, frames, rows)
    settings = pin.ProximalSettings(1e-14, 1e-12, 10)

    def accelerate(model, data, q, qd, tau):
        datas = [made.createData() for made in models]
        pin.initConstraintDynamics(model, data, models, datas)
        return pin.constraintDynamics(model, data, q, qd, tau, models, datas, settings)

    expected = robot.map(accelerate, q, qd, tau)
    assert (qdd - expected).abs().max() < 1e-11 * expected.abs().max()
    after, impulses = held.impulse(q, moving)

    def impact(model, data, q, qd):
        datas = [made.createData() for made in models]
        pin.initConstraintDynamics(model, data, models, datas)
        exact = pin.ProximalSettings(0.0, 0.0, 1)  # a single, unregularized solve
        return pin.impulseDynamics(model, data, q, qd, models, datas, 0.0, exact)

    expected = robot.map(impact, q, moving)
    assert (after - expected).abs().max() < 1e-11 * expected.abs().max()
    assert np.isfinite(forces.numpy()).all() and torch.isfinite(impulses).all()
