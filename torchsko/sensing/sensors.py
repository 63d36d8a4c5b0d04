"""Readings of sensors at a state: `torchsko.sensors`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchsko.actuation.actuators import Actuators
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.drive import Drive
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.file_data import sensor as kinds
from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.mechanism.state import check_state
from torchsko.sensing.force_sensors import touch_readings, wrench_readings
from torchsko.sensing.frame_sensors import (
    acceleration_readings,
    position_readings,
    velocity_readings,
)
from torchsko.sensing.joint_sensors import actuator_sensor_readings, joint_readings
from torchsko.sensing.sensor_inputs import SensorInputs
from torchsko.sensing.subtree_sensors import subtree_readings

Reader = Callable[[SensorInputs, Sequence[Sensor]], list[Tensor]]

READERS: dict[tuple[str, ...], Reader] = {
    ("jointpos", "jointvel", "ballquat", "ballangvel"): joint_readings,
    (*kinds.ACTUATOR_KINDS, "jointactuatorfrc"): actuator_sensor_readings,
    kinds.POSITION_KINDS: position_readings,
    kinds.VELOCITY_KINDS: velocity_readings,
    kinds.ACCELERATION_KINDS: acceleration_readings,
    ("touch",): touch_readings,
    ("force", "torque"): wrench_readings,
    kinds.SUBTREE_KINDS: subtree_readings,
}
"""Functions that read all sensors of some kinds at once."""


def sensors(
    mech: MechanismLike,
    state: State,
    ctrl: Tensor | None = None,
    *,
    sensors: Sequence[str | Sensor] | None = None,
    qdd: Tensor | None = None,
    actuators: Actuators | None = None,
    contact: ContactModel | None = None,
    f_ext: Tensor | None = None,
) -> dict[str, Tensor]:
    """Readings of sensors by name, as MuJoCo's ``sensordata`` after ``mj_forward``.

    Accelerometers, touch, force and torque sensors depend on the acceleration, and therefore on controls and
    contact. Quaternions have the sign of a floating base's quaternion; relative to the base w is not
    negative. Cutoff and noise of a file are not applied (``mech.unused``).

    Args:
        mech: the mechanism.
        state: its state.
        ctrl: controls, as in `step`.
        sensors: names of sensors of the robot file, or `Sensor` of your own; by default all of the file.
        qdd: acceleration, `[*batch, num_dof]`, if known; by default that of `constrained_dynamics`.
        actuators: by default those of the robot file.
        contact: shapes and parameters of contact; by default `ContactModel.of` of the mechanism.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body frame at its origin.

    Returns:
        Readings `[*batch, size]` in SI units in the order of the sensors, with gradients to all inputs.

    Raises:
        MechanismError: on an unknown sensor, joint, actuator, frame or body.
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
    mech = as_mechanism(mech)
    check_state(mech, q=state.q, qd=state.qd, f_ext=f_ext, **({} if qdd is None else {"qdd": qdd}))
    chosen = _chosen(mech, sensors)
    contact = ContactModel.of(mech) if contact is None else contact
    drive, state = Drive.at(mech, state, ctrl, actuators, contact, f_ext, contact.options.timestep)
    dynamic = (*kinds.ACCELERATION_KINDS, *kinds.FORCE_KINDS)
    if qdd is None and any(sensor.kind in dynamic for sensor in chosen):
        tau, *_ = drive.forces(state.q, state.qd, state.act)
        qdd = drive.accelerate(state.q, state.qd, tau, state.warmstart).qdd
    inputs = SensorInputs(drive, state, torch.zeros_like(state.qd) if qdd is None else qdd)
    readings: dict[str, Tensor] = {}
    for group, read in READERS.items():
        of_group = [sensor for sensor in chosen if sensor.kind in group]
        if of_group:
            values = read(inputs, of_group)
            readings |= {x.name: value for x, value in zip(of_group, values, strict=True)}
    return {sensor.name: readings[sensor.name] for sensor in chosen}


def _chosen(mech: Mechanism, sensors: Sequence[str | Sensor] | None) -> list[Sensor]:
    """The sensors of a file with the given names, and others as given."""
    of_file = {sensor.name: sensor for sensor in mech.file_metadata.sensors}
    chosen = []
    for sensor in of_file if sensors is None else sensors:
        if isinstance(sensor, str) and sensor not in of_file:
            raise MechanismError(*unknown_name("sensor", sensor, tuple(of_file)))
        chosen.append(of_file[sensor] if isinstance(sensor, str) else sensor)
    return chosen
