"""Sensors in new MJCF files, with the sites at which they measure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchsko.io.common.losses import Losses
from torchsko.io.common.numbers import quaternion_from_matrix
from torchsko.io.mjcf.elements import element
from torchsko.io.mjcf.file_bodies import WORLD, FileBodies
from torchsko.io.mjcf.poses import Pose, compose, inverse
from torchsko.io.xml.edits import unique_name, words
from torchsko.mechanism.file_data.sensor import (
    TARGETS,
    Sensor,
    SensorFrame,
)
from torchsko.shapes.form import Form

AT_SITES = ("velocimeter", "gyro", "accelerometer", "force", "torque", "touch")
"""Kinds of sensors that MuJoCo has at sites only."""

OF_BODIES = ("force", "torque", "touch")
"""Kinds of sensors that measure a body, whose site lies on it."""


class Sites:
    """The sites of a file; those for loops and sensors are added to the frames of the mechanism."""

    def __init__(self, bodies: FileBodies) -> None:
        mech = bodies.mech
        self.bodies = bodies
        self.taken = set(mech.frame_names)
        self.frames = [
            name
            for name in mech.frame_names
            if name not in bodies.bodies and name not in mech.body_names and name in bodies.homes
        ]
        if "world" in mech.frame_names:
            self.frames.append("world")
        for name in self.frames:
            body, pose = bodies.homes[name]
            self._write(name, body, pose, None)

    def add(self, name: str, frame: str | None, place: Pose, form: Form | None = None) -> str:
        """Name of a site at a place on a frame; a new one unless the frame is a site there."""
        identity = not place[1].any() and bool((place[0] == np.eye(3)).all())
        if frame in self.frames and identity and form is None:
            return str(frame)
        body, pose = self.bodies.place(frame, *place)
        return self.add_on(name, body, pose, form)

    def add_on(self, name: str, body: str, pose: Pose, form: Form | None = None) -> str:
        """Name of a new site on a body of the file."""
        name = unique_name(name, self.taken)
        self.taken.add(name)
        self._write(name, body, pose, form)
        return name

    def _write(self, name: str, body: str, pose: Pose, form: Form | None) -> None:
        R, p = pose
        values = {"name": name, "pos": words(p), "quat": words(quaternion_from_matrix(R))}
        if form is not None:
            size = form.half_sizes[: form.num_sizes]
            values |= {"type": form.kind, "size": words(size)}
        self.bodies.bodies[body].lines.append(element("site", values))


def sensor_lines(
    bodies: FileBodies, sites: Sites, actuators: Sequence[str], losses: Losses
) -> list[str]:
    """Sensors of a file, and their sites.

    Args:
        bodies: bodies of the file.
        sites: sites of the file.
        actuators: names of the actuators of the file.
        losses: parts of the robot that the file lacks.
    """
    lines, lost = [], []
    joints = {joint.name for joint in bodies.joints()}
    for sensor in bodies.mech.file_metadata.sensors:
        known = {"joint": joints, "actuator": {*actuators}}.get(TARGETS[sensor.kind])
        if known is not None and sensor.target not in known:
            lost.append(sensor.name)
            continue
        target = _target(bodies, sites, sensor)
        bound = {"cutoff": words([sensor.cutoff])} if math.isfinite(sensor.cutoff) else {}
        lines.append(element(sensor.kind, {"name": sensor.name} | target | bound))
    losses.add_if(lost, "sensors of joints and actuators that the file lacks:")
    return lines


def _target(bodies: FileBodies, sites: Sites, sensor: Sensor) -> dict[str, str]:
    """Attributes of the object that a sensor measures."""
    kind = TARGETS[sensor.kind]
    if kind in ("joint", "actuator"):
        return {kind: str(sensor.target)}
    if kind == "subtree":
        return {"body": bodies.home(sensor.target)[0]}
    if sensor.kind in AT_SITES:
        return {"site": _site(bodies, sites, sensor)}
    values = _object("obj", sites, f"{sensor.name}_site", sensor.frame)
    if sensor.reference is not None:
        values |= _object("ref", sites, f"{sensor.name}_reference", sensor.reference)
    return values


def _site(bodies: FileBodies, sites: Sites, sensor: Sensor) -> str:
    """The site of a sensor, on the body that it measures."""
    name, place = f"{sensor.name}_site", (np.array(sensor.rotation), np.array(sensor.position))
    carrier, pose = bodies.place(sensor.target, *place)
    if sensor.kind in OF_BODIES:
        body, _ = bodies.home(sensor.body)
        if body != carrier:  # welded to it
            return sites.add_on(name, body, compose(inverse(_welded(bodies, body, carrier)), pose))
    return sites.add(name, sensor.target, place, sensor.region)


def _welded(bodies: FileBodies, body: str, carrier: str) -> Pose:
    """Pose of a body in another one; both are welded."""
    chains = []
    for name in (carrier, body):
        pose = (np.eye(3), np.zeros(3))
        while name != WORLD and not bodies.bodies[name].joints:
            pose = compose(bodies.bodies[name].pose, pose)
            name = bodies.bodies[name].parent
        chains.append(pose)
    return compose(inverse(chains[0]), chains[1])


def _object(what: str, sites: Sites, name: str, frame: SensorFrame) -> dict[str, str]:
    """Type and name of a frame: a body, or a site."""
    place = np.array(frame.rotation), np.array(frame.position)
    identity = not place[1].any() and bool((place[0] == np.eye(3)).all())
    if identity and (frame.frame is None or frame.frame in sites.bodies.bodies):
        return {f"{what}type": "xbody", f"{what}name": frame.frame or WORLD}
    return {f"{what}type": "site", f"{what}name": sites.add(name, frame.frame, place)}
