r"""Readings of frames: pose, velocity and acceleration, in inertial axes, relative, or of inertial sensors.

With the rotation R, position p, velocity [omega; v] and acceleration a of the frame, and those of a
reference frame with index r,

.. math::
    R_r^T (p - p_r), \qquad R_r^T (v - v_r - \omega_r \times (p - p_r)), \qquad R_r^T (\omega - \omega_r).

An accelerometer measures :math:`R^T (a - g)`.

Reference: MuJoCo documentation, "XML reference" (sensor).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.file_data.sensor import Sensor, SensorFrame
from torchsko.sensing.sensor_inputs import SensorInputs
from torchsko.sensing.sensor_kind import SensorKind
from torchsko.spatial.rotation import (
    cross,
    quaternion_conjugate,
    quaternion_multiply,
    unit_quaternion,
)
from torchsko.utils.shapes import matvec
from torchsko.verbs.analytic import ROTATIONS

AXES = {"framexaxis": 0, "frameyaxis": 1, "framezaxis": 2}
"""Columns of the rotation by kind."""

INERTIAL = SensorFrame(None)
"""The inertial frame."""

FIRST_QUATERNION = {"free": 3, "spherical": 0}
"""First coordinate of the quaternion of a joint, by its kind."""


class PoseSensors(SensorKind):
    """Sensors of poses of frames."""

    names: ClassVar[tuple[str, ...]] = (
        "framepos",
        "framequat",
        "framexaxis",
        "frameyaxis",
        "framezaxis",
    )

    def read(self, inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
        """Positions, quaternions and axes of frames, `[*batch, 3]` or `[*batch, 4]` each."""
        frames, references = _frames(sensors)
        readings = []
        poses = inputs.poses([*frames, *references])
        for k, sensor in enumerate(sensors):
            (R, p), (R_r, p_r) = poses[k], poses[len(sensors) + k]
            if sensor.kind == "framepos":
                reading = matvec(R_r.mT, p - p_r)
            elif sensor.kind == "framequat":
                quaternions = [
                    _quaternion(inputs, frame, rotation)
                    for frame, rotation in ((frames[k], R), (references[k], R_r))
                ]
                reading = quaternions[0]
                if sensor.reference is not None:
                    reading = quaternion_multiply(quaternion_conjugate(quaternions[1]), reading)
            else:
                reading = matvec(R_r.mT, R[..., AXES[sensor.kind]])
            readings.append(reading)
        return readings


class VelocitySensors(SensorKind):
    """Sensors of velocities of frames."""

    names: ClassVar[tuple[str, ...]] = ("framelinvel", "frameangvel", "velocimeter", "gyro")

    def read(self, inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
        """Angular or linear velocities of frames, `[*batch, 3]` each."""
        frames, references = _frames(sensors)
        poses = inputs.poses([*frames, *references])
        velocities = inputs.velocities([*frames, *references])
        readings = []
        for k, sensor in enumerate(sensors):
            (R, p), (R_r, p_r) = poses[k], poses[len(sensors) + k]
            w, v = velocities[k].split(3, -1)
            w_r, v_r = velocities[len(sensors) + k].split(3, -1)
            if sensor.kind in ("gyro", "velocimeter"):
                readings.append(matvec(R.mT, w if sensor.kind == "gyro" else v))
            elif sensor.kind == "frameangvel":
                readings.append(matvec(R_r.mT, w - w_r))
            else:
                readings.append(matvec(R_r.mT, v - v_r - cross(w_r, p - p_r)))
        return readings


class AccelerationSensors(SensorKind):
    """Sensors of accelerations of frames."""

    names: ClassVar[tuple[str, ...]] = ("framelinacc", "frameangacc", "accelerometer")
    needs_acceleration: ClassVar[bool] = True

    def read(self, inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
        """Angular or linear accelerations of frames, linear ones less gravity, `[*batch, 3]` each."""
        frames, _ = _frames(sensors)
        poses, readings = inputs.poses(frames), []
        for sensor, pose, acceleration in zip(
            sensors, poses, inputs.accelerations(frames), strict=True
        ):
            angular, linear = acceleration.split(3, -1)
            proper = linear - inputs.mech.gravity
            if sensor.kind == "accelerometer":
                proper = matvec(pose.rotation.mT, proper)
            readings.append(angular if sensor.kind == "frameangacc" else proper)
        return readings


def _frames(sensors: Sequence[Sensor]) -> tuple[list[SensorFrame], list[SensorFrame]]:
    """Frames and reference frames of sensors."""
    return [x.frame for x in sensors], [x.reference or INERTIAL for x in sensors]


def _quaternion(inputs: SensorInputs, frame: SensorFrame, R: Tensor) -> Tensor:
    """Unit quaternion of a rotation, continuous in the quaternion of a floating base.

    The quaternion relative to the base has w >= 0, so that the sign is that of the base's coordinates.
    """
    mech = inputs.mech
    body = -1 if frame.frame is None else mech.frame_body[mech.frame_index(frame.frame)]
    while body >= 0 and mech.parents[body] >= 0:
        body = mech.parents[body]
    kind = mech.joints.kinds[body].name if body >= 0 else ""
    if kind not in FIRST_QUATERNION:
        return ROTATIONS["quaternion"](R)
    first = mech.tree_q_slice(mech.tree_joint_names[body]).start + FIRST_QUATERNION[kind]
    turned = unit_quaternion(Kinematics.of(mech, inputs.state.q).tree_q[..., first : first + 4])
    placed = ROTATIONS["quaternion"](mech.joint_rotation[..., body, :, :])
    base = quaternion_multiply(placed, turned)
    (root,) = inputs.poses([SensorFrame(mech.body_names[body])])
    return quaternion_multiply(base, ROTATIONS["quaternion"](root.rotation.mT @ R))
