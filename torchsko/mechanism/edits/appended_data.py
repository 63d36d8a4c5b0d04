"""File data of two mechanisms, of which the second is attached to a frame of the first.

Options, gravity and medium are those of the first mechanism. A keyframe of one mechanism has the initial
configuration of the other, at rest, with zero activations and controls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from torchsko.errors import MechanismError
from torchsko.mechanism.closed_chains.open_chains import cut_loops
from torchsko.mechanism.configuration import initial_configuration
from torchsko.mechanism.coordinates import open_tree
from torchsko.mechanism.data import MechanismData
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.fields import FIELDS
from torchsko.mechanism.file_data.actuator import FileActuators
from torchsko.mechanism.file_data.file_metadata import Closure, FileMetadata, Keyframe
from torchsko.mechanism.file_data.sensor import TARGETS, Sensor, SensorFrame
from torchsko.mechanism.file_data.solver_options import SolverOptions
from torchsko.utils.concrete_values import concrete_values

Place = Sequence[Sequence[Any]]
"""Rotation and position [m], as nested sequences."""

BATCHED = "fixed to its inertial frame, whose placement differs between samples"
"""Reason for elements that have one placement."""


@dataclass(frozen=True)
class Attachment:
    """Names and placement of the second of two mechanisms.

    Attributes:
        prefix: added to its names.
        frame: frame of the first mechanism that replaces its inertial frame.
        place: rotation and position of its inertial frame in `frame`; None if the placement is batched.
    """

    prefix: str
    frame: str
    place: Place | None

    def named(self, frame: str | None) -> str:
        """Name of a frame of the second mechanism, None for its inertial frame."""
        return self.frame if frame is None else self.prefix + frame

    def placed(self, rotation: Any, position: Any) -> dict[str, Any]:
        """A placement in the inertial frame of the second mechanism, moved to `frame`."""
        assert self.place is not None
        R, r = map(np.array, self.place)
        turned = (R @ np.array(rotation)).tolist()
        return {
            "rotation": tuple(map(tuple, turned)),
            "position": tuple((R @ np.array(position) + r).tolist()),
        }


def merge_file_data(
    mech: MechanismData, other: MechanismData, at: Attachment
) -> tuple[FileMetadata, tuple[UnsupportedElement, ...]]:
    """The file data of both mechanisms, and notes on what differs or is left out.

    Raises:
        MechanismError: on equal names, or if an embedded loop has a batched placement.
    """
    _check_names(mech, other, at.prefix)
    one, two = mech.file_metadata, other.file_metadata
    notes = list(_different_options(mech, other))
    closures = list(one.closures)
    for closure in two.closures:
        if at.place is None and not closure.joints and None in (closure.frame1, closure.frame2):
            notes.append(_without_loop(closure, at))
        else:
            closures.append(_closure(closure, at))
    sensors = list(one.sensors)
    for sensor in two.sensors:
        moved = _sensor(sensor, at)
        if isinstance(moved, str):
            notes.append(UnsupportedElement(f"sensor {at.prefix + sensor.name!r}", moved))
        else:
            sensors.append(moved)
    notes += [
        UnsupportedElement(
            f"mocap body {at.prefix + name!r}",
            "a mocap body is a child of the world; it is fixed now",
        )
        for name in two.mocap_bodies
    ]
    tendons = [
        replace(t, name=at.prefix + t.name, joints={at.prefix + j: c for j, c in t.joints.items()})
        for t in two.tendons
    ]
    known = one.initial is not None or two.initial is not None
    merged = FileMetadata(
        keyframes=_keyframes(mech, other, at.prefix),
        closures=tuple(closures),
        initial=torch.cat([initial_configuration(x) for x in (mech, other)]) if known else None,
        solver=_solver(mech, other),
        actuators=_actuators(one.actuators, two.actuators, at.prefix),
        sensors=tuple(sensors),
        tendons=(*one.tendons, *tendons),
        unused_tendons=one.unused_tendons + two.unused_tendons,
        coupled=(
            *one.coupled,
            *(
                replace(x, joint=at.prefix + x.joint, equality=_closure(x.equality, at))
                for x in two.coupled
            ),
        ),
        links=(*one.links, *(replace(link, name=at.prefix + link.name) for link in two.links)),
        mocap_bodies=one.mocap_bodies,
        centers={**one.centers, **{at.prefix + f: c for f, c in two.centers.items()}},
    )
    return merged.without_weights(), tuple(notes)


def _check_names(mech: MechanismData, other: MechanismData, prefix: str) -> None:
    names, theirs = _names(mech), _names(other)
    for what, known in names.items():
        if shared := sorted(known & {prefix + name for name in theirs[what]}):
            raise MechanismError(
                f"{mech.name!r} and {other.name!r} both have {what} named {shared[0]!r}.",
                f"Names of {what} are unique.",
                f'Pass prefix="{other.name}_", which is added to all names of the appended mechanism.',
            )


def _names(mech: MechanismData) -> dict[str, set[str]]:
    data = mech.file_metadata
    parts: dict[str, Sequence[Any]] = {
        "actuators": data.actuators.actuators,
        "sensors": data.sensors,
        "tendons": data.tendons,
        "closures": data.closures,
        "keyframes": data.keyframes,
        "shapes": [shape for shape in mech.geometry.shapes if shape.name],
    }
    return {what: {x.name for x in found} for what, found in parts.items()}


def _different_options(mech: MechanismData, other: MechanismData) -> Iterator[UnsupportedElement]:
    """Notes on options, gravity and medium of the second mechanism that differ from those of the first."""
    reason = f"those of {mech.name!r} apply to the whole"
    one, two = mech.file_metadata.solver, other.file_metadata.solver
    own = [f.name for f in fields(SolverOptions) if f.name not in SolverOptions.PER_JOINT]
    changed = [
        f"{name} {getattr(two, name)} instead of {getattr(one, name)}"
        for name in own
        if getattr(one, name) != getattr(two, name)
    ]
    if changed and two.of_file:
        yield UnsupportedElement(f"options of {other.name!r} ({', '.join(changed)})", reason)
    for name, field in FIELDS.items():
        if field.owner == "mechanism":
            x, y = (concrete_values(getattr(m, name)) for m in (mech, other))
            if x is not None and y is not None and not np.array_equal(x, y):
                yield UnsupportedElement(f"{name} of {other.name!r}", reason)
    medium = concrete_values(mech.medium)
    if medium is not None and medium.any() and not other.fluid_bodies:
        element = f"fluid forces on {other.name!r}"
        yield UnsupportedElement(element, "it was loaded without a medium", affects_forces=True)


def _without_loop(closure: Closure, at: Attachment) -> UnsupportedElement:
    if closure.method == "embed":
        raise MechanismError(
            f"loop {closure.name!r} ends on the inertial frame, whose placement differs between samples.",
            "An embedded loop has one placement.",
            "Pass one rotation and one position.",
        )
    element = f"loop {at.prefix + closure.name!r} ({closure.kind})"
    return UnsupportedElement(element, BATCHED, affects_forces=True)


def _closure(c: Closure, at: Attachment) -> Closure:
    changes: dict[str, Any] = {
        "name": at.prefix + c.name,
        "joints": tuple(at.prefix + x for x in c.joints),
        "independent": tuple(at.prefix + x for x in c.independent),
    }
    if c.joints:
        return replace(c, **changes)
    turn = np.array(c.rotation)
    for end in ("1", "2"):
        frame = getattr(c, f"frame{end}")
        changes[f"frame{end}"] = at.named(frame)
        if frame is None:
            placed = at.placed(np.eye(3), getattr(c, f"position{end}"))
            changes[f"position{end}"] = placed["position"]
            R = np.array(placed["rotation"])
            turn = R @ turn if end == "1" else turn @ R.T
    return replace(c, **changes, rotation=tuple(map(tuple, turn.tolist())))


def _sensor(sensor: Sensor, at: Attachment) -> Sensor | str:
    """A sensor of the second mechanism, or the reason why it is left out.

    Poses and velocities without a reference frame remain those in the inertial frame of the whole.
    """
    changes: dict[str, Any] = {"name": at.prefix + sensor.name, "body": at.named(sensor.body)}
    if sensor.reference is not None:
        reference = _frame(sensor.reference, at)
        if reference is None:
            return BATCHED
        changes["reference"] = reference
    if sensor.target is not None:
        return replace(sensor, **changes, target=at.prefix + sensor.target)
    if TARGETS[sensor.kind] == "subtree":
        return "it measures a whole mechanism, which is now a part"
    frame = _frame(sensor.frame, at)
    if frame is None:
        return BATCHED
    placed = {"target": frame.frame, "rotation": frame.rotation, "position": frame.position}
    return replace(sensor, **changes, **placed)


def _frame(frame: SensorFrame, at: Attachment) -> SensorFrame | None:
    """A frame of the second mechanism; None if its placement is batched."""
    if frame.frame is not None:
        return replace(frame, frame=at.prefix + frame.frame)
    if at.place is None:
        return None
    return SensorFrame(at.frame, **at.placed(frame.rotation, frame.position))


def _actuators(one: FileActuators, two: FileActuators, prefix: str) -> FileActuators:
    renamed = tuple(
        replace(
            actuator,
            name=prefix + actuator.name,
            transmission={prefix + joint: g for joint, g in actuator.transmission.items()},
        )
        for actuator in two.actuators
    )
    return FileActuators(
        one.actuators + renamed,
        {**one.joint_range, **{prefix + joint: x for joint, x in two.joint_range.items()}},
        one.lifting_joints + tuple(prefix + joint for joint in two.lifting_joints),
        one.unused + two.unused,
    )


def _solver(mech: MechanismData, other: MechanismData) -> SolverOptions:
    """Options of the first mechanism, with the parameters of the joints of both."""
    if not (mech.file_metadata.solver.of_file or other.file_metadata.solver.of_file):
        return mech.file_metadata.solver
    one, two = (
        m.file_metadata.solver.with_all_joints(m.num_tree_q, m.num_tree_dof) for m in (mech, other)
    )
    if one.limit_range or two.limit_range:
        one, two = (
            replace(x, limit_range=x.limit_range or _ranges(m))
            for x, m in zip((one, two), (mech, other), strict=True)
        )
    names = (*SolverOptions.PER_COORDINATE, *SolverOptions.PER_DOF)
    return replace(one, **{name: getattr(one, name) + getattr(two, name) for name in names})


def _ranges(mech: MechanismData) -> tuple[tuple[float, float], ...]:
    """Limits of all joints of the tree of a mechanism in its first sample, by coordinate."""
    tree = open_tree(cut_loops(mech))
    lower, upper = (x.reshape(-1, x.shape[-1])[0].tolist() for x in (tree.lower, tree.upper))
    return tuple(zip(lower, upper, strict=True))


def _keyframes(mech: MechanismData, other: MechanismData, prefix: str) -> tuple[Keyframe, ...]:
    """Keyframes of both mechanisms, with the other one in its initial configuration."""
    one, two = _at_rest(mech), _at_rest(other)
    return (
        *(_joined(key, two, prefix) for key in mech.file_metadata.keyframes),
        *(
            replace(_joined(one, key, prefix), name=prefix + key.name, time=key.time)
            for key in other.file_metadata.keyframes
        ),
    )


def _at_rest(mech: MechanismData) -> Keyframe:
    """The initial configuration as a keyframe, with zero activations and controls."""
    actuators, zeros = mech.file_metadata.actuators.actuators, mech.mass.new_zeros
    stateful = tuple(x.name for x in actuators if x.activation != "none")
    return Keyframe(
        name="",
        time=0.0,
        q=initial_configuration(mech),
        qd=zeros(mech.num_dof),
        activation=zeros(len(stateful)),
        ctrl=zeros(len(actuators)),
        activation_names=stateful,
        control_names=tuple(x.name for x in actuators),
    )


def _joined(first: Keyframe, second: Keyframe, prefix: str) -> Keyframe:
    """The states of two mechanisms one after the other, with name and time of the first."""
    tensors = ("q", "qd", "activation", "ctrl")
    names = ("activation_names", "control_names")
    return replace(
        first,
        **{x: torch.cat([getattr(first, x), getattr(second, x)]) for x in tensors},
        **{x: getattr(first, x) + tuple(prefix + n for n in getattr(second, x)) for x in names},
    )
