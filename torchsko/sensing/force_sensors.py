"""Readings of contact forces and of forces between bodies.

Reference: MuJoCo documentation, "XML reference" (sensor/touch, sensor/force, sensor/torque).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.sensing.sensor_inputs import SensorInputs
from torchsko.sensing.sensor_kind import SensorKind
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec
from torchsko.verbs.momenta import joint_wrenches


class TouchSensors(SensorKind):
    """Sensors of contacts in a region."""

    names: ClassVar[tuple[str, ...]] = ("touch",)
    needs_acceleration: ClassVar[bool] = True
    needs_forces: ClassVar[bool] = True

    def read(self, inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
        """Sums of the normal forces of contacts in the regions of touch sensors, `[*batch, 1]` [N] each.

        A contact is in a region if the ray from it along the normal, into the other body, meets the region.
        """
        mech, contact, forces = inputs.mech, inputs.drive.contact, inputs.forces
        if forces.points is None:
            raise MechanismError(
                f"sensor {sensors[0].name!r} measures contacts, and the mechanism is held.",
                "A mechanism of ts.constrain has no contacts.",
                "Leave this sensor out of sensors=, or pass the mechanism without ts.constrain.",
            )
        shape_body = {
            shape.name or f"shape{k}": shape.frame for k, shape in enumerate(mech.geometry.shapes)
        }
        bodies = [shape_body[name] for name in contact.shape_names]
        points, readings = forces.points, []
        poses = inputs.poses([x.frame for x in sensors])
        for sensor, (R, p) in zip(sensors, poses, strict=True):
            signs = []
            for pair in points.pair:
                first, second = (bodies[k] == sensor.body for k in contact.pair_shapes[pair])
                signs.append(-1.0 if second else 1.0 if first else 0.0)
            sign = p.new_tensor(signs)
            ray = sign[:, None] * points.axes[..., 0, :]
            start = matvec(R.mT[..., None, :, :], points.position - p[..., None, :])
            assert sensor.region is not None
            hit = sensor.region.ray_hits(start, matvec(R.mT[..., None, :, :], ray)) & (sign != 0)
            of_contacts = torch.where(hit, forces.contact[..., 0], 0.0)
            readings.append(of_contacts.sum(-1, keepdim=True))
        return readings


class WrenchSensors(SensorKind):
    """Sensors of forces and torques between bodies."""

    names: ClassVar[tuple[str, ...]] = ("force", "torque")
    needs_acceleration: ClassVar[bool] = True
    needs_forces: ClassVar[bool] = True

    def read(self, inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
        """Forces and torques on bodies by their parents, in the axes of the frames, `[*batch, 3]` each."""
        mech, (q, qd, *_) = inputs.mech, inputs.state
        external = inputs.forces.on_bodies()
        if inputs.drive.f_ext is not None:
            external = external + inputs.drive.f_ext
        wrenches = joint_wrenches(mech, q, qd, inputs.qdd, external)
        pose = inputs.forces.pose
        readings = []
        poses = inputs.poses([x.frame for x in sensors])
        for sensor, (R, p) in zip(sensors, poses, strict=True):
            if sensor.body is not None and sensor.body not in mech.body_names:
                raise MechanismError(
                    f"sensor {sensor.name!r} measures the force between {sensor.body!r} and its parent.",
                    f"They are one body, since {sensor.body!r} has no joint or lock removed it.",
                    "Lock another joint, or leave this sensor out of sensors=.",
                )
            k = mech.frame_body[mech.frame_index(sensor.target or "")]
            moment, force = (
                matvec(pose.rotation[..., k, :, :], x) for x in wrenches[..., k, :].split(3, -1)
            )
            if sensor.kind == "torque":
                force = moment + cross(pose.position[..., k, :] - p, force)
            readings.append(matvec(R.mT, force))
        return readings
