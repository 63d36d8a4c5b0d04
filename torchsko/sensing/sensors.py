"""Readings of sensors at a state: `torchsko.sensors`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.contact.contact_model import ContactModel
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.mechanism.state import check_state
from torchsko.sensing.constraint_forces import constraint_forces
from torchsko.sensing.force_sensors import TouchSensors, WrenchSensors
from torchsko.sensing.frame_sensors import AccelerationSensors, PoseSensors, VelocitySensors
from torchsko.sensing.joint_sensors import ActuatorSensors, JointSensors
from torchsko.sensing.sensor_inputs import SensorInputs, accelerations, inputs_at
from torchsko.sensing.sensor_kind import SensorKind
from torchsko.sensing.subtree_sensors import SubtreeSensors
from torchsko.verbs.held.held_mechanism import HeldMechanism

KINDS: tuple[SensorKind, ...] = (
    JointSensors(),
    ActuatorSensors(),
    PoseSensors(),
    VelocitySensors(),
    AccelerationSensors(),
    TouchSensors(),
    WrenchSensors(),
    SubtreeSensors(),
)
"""All kinds of sensors; those of one entry are read at once."""


def sensors(
    mech: MechanismLike | HeldMechanism,
    state: State,
    ctrl: Tensor | None = None,
    *,
    sensors: Sequence[str | Sensor] | None = None,
    qdd: Tensor | None = None,
    actuators: Actuators | None = None,
    contact: ContactModel | None = None,
    f_ext: Tensor | None = None,
    active: Tensor | None = None,
) -> dict[str, Tensor]:
    """Readings of sensors by name, as MuJoCo's ``sensordata`` after ``mj_forward``.

    Accelerometers, touch, force and torque sensors depend on the acceleration, and therefore on controls,
    external forces and contact. A state includes none of them: pass the ``ctrl`` and ``f_ext`` that act at
    the state. Force and torque sensors measure contacts, equalities, loops and frames that are held. On a
    mechanism of `torchsko.constrain` contact and other soft constraints do not act. Quaternions have the
    sign of a floating base's quaternion; relative to the base w is not negative. Readings stay within the
    cutoff of a sensor. Noise, delay and interval of a file are not applied (``mech.unused``).

    Args:
        mech: the mechanism, or one with held constraints.
        state: its state.
        ctrl: controls, as in `step`; zero by default.
        sensors: names of sensors of the robot file, or `Sensor` of your own; by default all of the file.
        qdd: acceleration, `[*batch, num_dof]`, if known; by default that of `contact_dynamics`, or of
            `torchsko.constrain`.
        actuators: by default those of the robot file.
        contact: shapes and parameters of contact; by default `ContactModel.of` of the mechanism.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body frame at its origin;
            zero by default.
        active: mask of held constraints, `[*batch, constraints]`; by default all are active.

    Returns:
        Readings `[*batch, size]` in SI units in the order of the sensors, with gradients to all inputs.

    Raises:
        MechanismError: on an unknown sensor, joint, actuator, frame or body, and on a touch sensor of a
            mechanism with held constraints.
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: MuJoCo documentation, "XML reference" (sensor).

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 .09"><freejoint/>
        ...   <geom size=".1"/><site name="imu"/></body></worldbody>
        ...   <sensor><accelerometer name="acc" site="imu"/><gyro name="w" site="imu"/></sensor></mujoco>'''
        >>> ball = ts.load(text)
        >>> state = ts.State(ball.file_metadata.initial, ball.gravity.new_zeros(6))
        >>> readings = ts.sensors(ball, state)
        >>> list(readings), bool(readings["acc"][2] > 9.81)
        (['acc', 'w'], True)
    """
    drive, state, held = inputs_at(mech, state, ctrl, actuators, contact, f_ext, active)
    chosen = _chosen(drive.mech, sensors)
    of_kinds = [(kind, [x for x in chosen if x.kind in kind.names]) for kind in KINDS]
    measured = [(kind, found) for kind, found in of_kinds if found]
    if qdd is not None:
        check_state(drive.mech, qdd=qdd)
    elif any(kind.needs_acceleration for kind, _ in measured):
        qdd = accelerations(drive, state, held)
    else:
        qdd = torch.zeros_like(state.qd)
    needs_forces = any(kind.needs_forces for kind, _ in measured)
    constraints = constraint_forces(drive, state, qdd, held) if needs_forces else None
    inputs = SensorInputs(drive, state, qdd, constraints)
    readings: dict[str, Tensor] = {}
    for kind, found in measured:
        values = kind.read(inputs, found)
        readings |= {x.name: _bounded(x, y) for x, y in zip(found, values, strict=True)}
    return {sensor.name: readings[sensor.name] for sensor in chosen}


def _bounded(sensor: Sensor, reading: Tensor) -> Tensor:
    """A reading within the cutoff of its sensor."""
    if math.isinf(sensor.cutoff):
        return reading
    return reading.clamp(-sensor.cutoff, sensor.cutoff)


def _chosen(mech: Mechanism, sensors: Sequence[str | Sensor] | None) -> list[Sensor]:
    """The sensors of a file with the given names, and others as given."""
    of_file = {sensor.name: sensor for sensor in mech.file_metadata.sensors}
    chosen = []
    for sensor in of_file if sensors is None else sensors:
        if isinstance(sensor, str) and sensor not in of_file:
            raise MechanismError(*unknown_name("sensor", sensor, tuple(of_file)))
        chosen.append(of_file[sensor] if isinstance(sensor, str) else sensor)
    return chosen
