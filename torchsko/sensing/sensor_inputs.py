"""Inputs of sensors: a mechanism, its state, its acceleration, and what acts on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.bridge.body_poses import Pose
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.drive import Drive
from torchsko.contact.soft_dynamics import check_fits, solve_dynamics
from torchsko.contact.step_integrators import end_of_step_dynamics
from torchsko.errors import MechanismError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.file_data.sensor import SensorFrame
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.mechanism.state import check_state
from torchsko.sensing.constraint_forces import ConstraintForces, Held
from torchsko.verbs.frame import Frame
from torchsko.verbs.frames import frame_acceleration, frame_pose, frame_velocity
from torchsko.verbs.held.held_mechanism import HeldMechanism


def inputs_at(
    mech: MechanismLike | HeldMechanism,
    state: State,
    ctrl: Tensor | None,
    actuators: Actuators | None,
    contact: ContactModel | None,
    f_ext: Tensor | None,
    active: Tensor | None,
) -> tuple[Drive, State, Held | None]:
    """The mechanism with its inputs, the state with activations, and held constraints.

    Raises:
        MechanismError: when a mask has no held mechanism.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    held = Held(mech, active) if isinstance(mech, HeldMechanism) else None
    if held is None and active is not None:
        raise MechanismError(
            "active was passed with a mechanism without held constraints.",
            "It selects the constraints of ts.constrain.",
            "Pass the result of ts.constrain, or leave active out.",
        )
    robot = mech.mech() if isinstance(mech, HeldMechanism) else as_mechanism(mech)
    check_state(robot, q=state.q, qd=state.qd, f_ext=f_ext)
    contact = ContactModel.of(robot) if contact is None else contact
    if held is None and contact.options.integrator == "discrete":
        contact = replace(contact, options=replace(contact.options, end_of_step=True))
    drive, state = Drive.of(robot, state, ctrl, actuators, contact, f_ext, contact.options.timestep)
    return drive, state, held


def accelerations(drive: Drive, state: State, held: Held | None) -> Tensor:
    """Accelerations under the constraints, `[*batch, num_dof]`."""
    if held is not None:
        return held.accelerate(drive, state)
    if drive.contact.options.end_of_step:
        return end_of_step_dynamics(drive, state).qdd
    check_fits(drive.mech, drive.contact, state.q, state.qd)
    start = drive.constrained(drive.at(state.q, state.qd))
    tau, *_ = drive.forces(start.kinematics, state.act)
    return solve_dynamics(start, tau, state.warmstart)[0]


class SensorInputs(NamedTuple):
    """A mechanism at a state.

    Attributes:
        drive: the mechanism, its contact model, actuators and controls.
        state: its state.
        qdd: its acceleration, `[*batch, num_dof]`; zero if no sensor requires it.
        constraints: forces of contacts and constraints; None if no sensor requires them.
    """

    drive: Drive
    state: State
    qdd: Tensor
    constraints: ConstraintForces | None

    @property
    def mech(self) -> Mechanism:
        """The mechanism."""
        return self.drive.mech

    @property
    def forces(self) -> ConstraintForces:
        """Forces of contacts and constraints."""
        assert self.constraints is not None
        return self.constraints

    def poses(self, frames: Sequence[SensorFrame]) -> list[Pose]:
        """Poses of frames in the inertial frame, `[*batch, 3, 3]` and `[*batch, 3]` each."""
        mech, q = self.mech, self.state.q
        on_bodies = [frame for frame in frames if frame.frame is not None]
        found = []
        if on_bodies:
            R, r = frame_pose(mech, q, [_placed(mech, frame) for frame in on_bodies])
            found = [Pose(*pose) for pose in zip(R.unbind(-3), r.unbind(-2), strict=True)]
        poses = iter(found)
        return [
            Pose(
                q.new_tensor(frame.rotation).expand(*q.shape[:-1], 3, 3),
                q.new_tensor(frame.position).expand(*q.shape[:-1], 3),
            )
            if frame.frame is None
            else next(poses)
            for frame in frames
        ]

    def velocities(self, frames: Sequence[SensorFrame]) -> list[Tensor]:
        """Velocities [omega; v] of frames in inertial axes, `[*batch, 6]` each."""
        return self._motions(frames, partial(frame_velocity, reference="mixed"), self.state.qd)

    def accelerations(self, frames: Sequence[SensorFrame]) -> list[Tensor]:
        """Classical accelerations of frames in inertial axes, without gravity, `[*batch, 6]` each."""
        classical = partial(frame_acceleration, reference="mixed", classical=True)
        return self._motions(frames, classical, self.state.qd, self.qdd)

    def _motions(self, frames, of, *rates: Tensor) -> list[Tensor]:
        mech, q = self.mech, self.state.q
        on_bodies = [_placed(mech, frame) for frame in frames if frame.frame is not None]
        found = iter(of(mech, q, *rates, on_bodies).unbind(-2) if on_bodies else ())
        still = q.new_zeros(*q.shape[:-1], 6)
        return [still if frame.frame is None else next(found) for frame in frames]


def _placed(mech: Mechanism, frame: SensorFrame) -> str | Frame:
    """A frame as argument of `torchsko.frame_pose`."""
    assert frame.frame is not None
    if frame == SensorFrame(frame.frame):
        return frame.frame
    kind = {"dtype": mech.dtype, "device": mech.device}
    return Frame(
        frame.frame,
        torch.tensor(frame.rotation, **kind),  # type: ignore[arg-type]
        torch.tensor(frame.position, **kind),  # type: ignore[arg-type]
    )
