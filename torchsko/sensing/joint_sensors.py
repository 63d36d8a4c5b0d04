"""Readings of joints and actuators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from torchsko.actuators.actuator_forces import ActuatorState
from torchsko.actuators.actuators import scalar_dof
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.sensing.sensor_inputs import SensorInputs
from torchsko.sensing.sensor_kind import SensorKind
from torchsko.spatial.rotation import unit_quaternion


class JointSensors(SensorKind):
    """Sensors of positions and velocities of joints."""

    names: ClassVar[tuple[str, ...]] = ("jointpos", "jointvel", "ballquat", "ballangvel")

    def read(self, inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
        """Positions and velocities of joints, `[*batch, 1]`; of ball joints `[*batch, 4]`, `[*batch, 3]`."""
        mech, (q, qd, *_) = inputs.mech, inputs.state
        moving = Kinematics.of(mech, q, qd)
        q, qd = moving.tree_q, moving.tree_qd
        readings = []
        for sensor in sensors:
            joint = sensor.target or ""
            if sensor.kind == "ballquat":
                readings.append(unit_quaternion(q[..., mech.tree_q_slice(joint)]))
            elif sensor.kind == "ballangvel":
                readings.append(qd[..., mech.tree_dof_slice(joint)])
            else:
                dof = scalar_dof(mech, joint, sensor.name)
                k, part = mech.joint_place(joint)
                at = mech.tree_q_slice(mech.tree_joint_names[k]).start + (part or 0)
                readings.append(
                    q[..., at : at + 1] if sensor.kind == "jointpos" else qd[..., dof : dof + 1]
                )
        return readings


class ActuatorSensors(SensorKind):
    """Sensors of lengths, speeds and forces of actuators."""

    names: ClassVar[tuple[str, ...]] = (
        "actuatorpos",
        "actuatorvel",
        "actuatorfrc",
        "jointactuatorfrc",
    )

    def read(self, inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
        """Lengths, speeds and forces of actuators, and their force on joints, `[*batch, 1]` each."""
        mech, (q, qd, act, *_) = inputs.mech, inputs.state
        actuators, ctrl = inputs.drive.actuators, inputs.drive.ctrl
        if actuators is None or ctrl is None:
            raise MechanismError(
                f"sensor {sensors[0].name!r} measures an actuator force, and there are no actuators.",
                "The robot file has no actuators.",
                "Pass actuators=ts.actuators.Actuators.of(mech, [...]), or leave this sensor out of "
                "sensors=.",
            )
        values = ActuatorState.at(inputs.drive.at(q, qd), actuators, act, ctrl, inputs.drive.dt)
        columns = dict(
            actuatorpos=values.length, actuatorvel=values.speed, actuatorfrc=values.force
        )
        readings = []
        for sensor in sensors:
            target = sensor.target or ""
            if sensor.kind == "jointactuatorfrc":
                at, column = scalar_dof(mech, target, sensor.name), values.joint_force
            else:
                if target not in actuators.names:
                    raise MechanismError(*unknown_name("actuator", target, actuators.names))
                at, column = actuators.names.index(target), columns[sensor.kind]
            readings.append(column[..., at : at + 1])
        return readings
