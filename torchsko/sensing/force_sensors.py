"""Readings of contact forces and of forces between bodies.

Reference: MuJoCo documentation, "XML reference" (sensor/touch, sensor/force, sensor/torque).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.contact.contact_dynamics import contact_forces
from torchsko.contact.points import Contacts, contacts
from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.sensing.ray import ray_hits
from torchsko.sensing.sensor_inputs import SensorInputs
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec
from torchsko.verbs.kinematics import forward_kinematics
from torchsko.verbs.momenta import joint_wrenches


def touch_readings(inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
    """Sums of the normal forces of contacts in the regions of touch sensors, `[*batch, 1]` [N] each.

    A contact is in a region if the ray from it along the normal, into the other body, meets the region.
    """
    mech, contact, points, forces = _contacts(inputs)
    shape_body = {
        shape.name or f"shape{k}": shape.frame for k, shape in enumerate(mech.geometry.shapes)
    }
    bodies = [shape_body[name] for name in contact.shape_names]
    readings = []
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
        hit = ray_hits(sensor.region, start, matvec(R.mT[..., None, :, :], ray)) & (sign != 0)
        readings.append(torch.where(hit, forces[..., 0], 0.0).sum(-1, keepdim=True))
    return readings


def wrench_readings(inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
    """Forces and torques on bodies by their parents, in the axes of the frames, `[*batch, 3]` each."""
    mech, (q, qd, *_) = inputs.mech, inputs.state
    external = contact_wrenches(inputs)
    if inputs.drive.f_ext is not None:
        external = external + inputs.drive.f_ext
    wrenches = joint_wrenches(mech, q, qd, inputs.qdd, external)
    bodies = forward_kinematics(mech, q)
    readings = []
    poses = inputs.poses([x.frame for x in sensors])
    for sensor, (R, p) in zip(sensors, poses, strict=True):
        k = mech.frame_body[mech.frame_index(sensor.target or "")]
        moment, force = (
            matvec(bodies.rotation[..., k, :, :], x) for x in wrenches[..., k, :].split(3, -1)
        )
        if sensor.kind == "torque":
            force = moment + cross(bodies.position[..., k, :] - p, force)
        readings.append(matvec(R.mT, force))
    return readings


def contact_wrenches(inputs: SensorInputs) -> Tensor:
    """Wrenches of all contacts on each body, `[*batch, num_bodies, 6]`, in its frame at its origin."""
    mech, contact, points, forces = _contacts(inputs)
    bodies = forward_kinematics(mech, inputs.state.q)
    force, moment = (matvec(points.axes.mT, x) for x in forces.split(3, -1))
    # Wrenches at the inertial origin on the second shape of each pair, and opposite ones on the first.
    moment = moment + cross(points.position, force)
    rows = [[0.0] * len(points.pair) for _ in range(mech.num_bodies + 1)]
    for c, pair in enumerate(points.pair):
        for shape, sign in zip(contact.pair_shapes[pair], (-1.0, 1.0), strict=True):
            rows[contact.shape_bodies[shape]][c] += sign
    sums = force.new_tensor(rows[: mech.num_bodies]).reshape(mech.num_bodies, len(points.pair))
    force, moment = sums @ force, sums @ moment
    moment = moment - cross(bodies.position, force)
    return torch.cat([matvec(bodies.rotation.mT, x) for x in (moment, force)], -1)


def _contacts(inputs: SensorInputs) -> tuple:
    mech, contact, q = inputs.mech, inputs.drive.contact, inputs.state.q
    points: Contacts = contacts(mech, q, contact)
    return (
        mech,
        contact,
        points,
        contact_forces(mech, q, inputs.state.qd, inputs.qdd, contact=contact),
    )
