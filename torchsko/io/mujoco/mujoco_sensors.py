"""Sensors of a compiled MuJoCo model, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchsko.errors import name_list
from torchsko.io.common.numbers import as_vector
from torchsko.io.mujoco.mujoco_actuators import read_actuators
from torchsko.io.mujoco.mujoco_fields import BALL, HINGE, SLIDE, all_joint_names, body_name
from torchsko.io.mujoco.mujoco_geometry import primitive
from torchsko.io.mujoco.mujoco_model import matrix_of
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.file_data.sensor import (
    TARGETS,
    Sensor,
    SensorFrame,
)
from torchsko.utils.optional_dependencies import require

BODY, XBODY, GEOM, SITE, CAMERA = 1, 2, 5, 6, 7
"""MuJoCo's types of objects (mjtObj): the inertial frame of a body, its frame, and others on bodies."""

BOUNDED = (0, 1)
"""MuJoCo's types of data that a cutoff bounds (mjtDataType): real and positive numbers."""

ABBREVIATIONS = {"jointactfrc": "jointactuatorfrc", "tendonactfrc": "tendonactuatorfrc"}
"""Kinds whose names in mjtSensor are shorter than those of the elements."""


def read_sensors(
    model: Any, frames: Mapping[int, str]
) -> tuple[tuple[Sensor, ...], tuple[UnsupportedElement, ...]]:
    """The sensors of a model that are modeled, and notes on all others.

    Args:
        model: ``mujoco.MjModel``.
        frames: names of the frames of sites, by site index.
    """
    names = {int(x): name for name, x in require("mujoco", "mjcf").mjtSensor.__members__.items()}
    actuators = {x.name for x in read_actuators(model).actuators}
    found, reasons = [], {}
    for i in range(model.nsensor):
        name = sensor_name(model, i)
        short = names[int(model.sensor_type[i])].removeprefix("mjSENS_").lower()
        kind = ABBREVIATIONS[short] if short in ABBREVIATIONS else short
        made = _sensor(model, i, name, kind, frames)
        if (
            isinstance(made, Sensor)
            and TARGETS[kind] == "actuator"
            and made.target not in actuators
        ):
            made = "their actuators are not modeled"
        if isinstance(made, Sensor):
            is_bounded = model.sensor_cutoff[i] > 0 and model.sensor_datatype[i] in BOUNDED
            found.append(
                replace(made, cutoff=float(model.sensor_cutoff[i])) if is_bounded else made
            )
        else:
            reasons.setdefault(made, []).append(name)
    reasons |= _ignored_settings(model, found)
    return tuple(found), tuple(
        UnsupportedElement(f"{len(which)} sensors ({name_list(which)})", why, absent=True)
        for why, which in reasons.items()
    )


def _ignored_settings(model: Any, found: Sequence[Sensor]) -> dict[str, list[str]]:
    """Settings that readings do not include, each with the names of the modeled sensors that have it."""
    is_sampled = np.asarray(model.sensor_history)[:, 0] > 0
    settings = {
        "their readings have no noise": np.asarray(model.sensor_noise) > 0,
        "their readings are those of the present state, without delay and interval": is_sampled
        & ((np.asarray(model.sensor_delay) > 0) | (np.asarray(model.sensor_interval)[:, 0] > 0)),
    }
    names = {sensor.name for sensor in found}
    every = [sensor_name(model, i) for i in range(model.nsensor)]
    chosen = {
        why: [name for name, has in zip(every, mask, strict=True) if has and name in names]
        for why, mask in settings.items()
    }
    return {why: which for why, which in chosen.items() if which}


def sensor_name(model: Any, i: int) -> str:
    """Name of a sensor, generated if the file has none."""
    return model.sensor(i).name or f"sensor{i}"


def _sensor(model: Any, i: int, name: str, kind: str, frames: Mapping[int, str]) -> Sensor | str:
    """A sensor, or the reason why it is not modeled."""
    target = int(model.sensor_objid[i])
    if kind not in TARGETS:
        return f"sensors of kind {kind!r} are not modeled"
    place = TARGETS[kind]
    if place == "joint":
        if int(model.jnt_type[target]) not in (BALL, HINGE, SLIDE):
            return "they measure a free joint: not modeled"
        return Sensor(name, kind, all_joint_names(model)[target])
    if place == "actuator":
        return Sensor(name, kind, model.actuator(target).name or f"actuator{target}")
    if place == "subtree":
        if target and not model.body_jntnum[target]:
            return "they measure the subtree of a body without joints: not modeled"
        if not target and np.any(model.body_mass[np.asarray(model.body_weldid) == 0]):
            return "they measure bodies that are fixed to the world: not modeled"
        return Sensor(name, kind, body_name(model, target) if target else None)
    frame, body = _frame(model, int(model.sensor_objtype[i]), target, frames)
    if kind in ("force", "torque") and not model.body_jntnum[body]:
        return "they measure the force on a body without joints: not modeled"
    reference = None
    if int(model.sensor_refid[i]) >= 0:
        kind_of, index = int(model.sensor_reftype[i]), int(model.sensor_refid[i])
        reference, _ = _frame(model, kind_of, index, frames)
    region = None
    if kind == "touch":
        region = primitive(int(model.site_type[target]), model.site_size[target].tolist())
    return Sensor(
        name, kind, frame.frame, frame.rotation, frame.position, reference, region,
        body_name(model, body) if body else None,
    )  # fmt: skip


def _frame(model: Any, kind: int, index: int, frames: Mapping[int, str]) -> tuple[SensorFrame, int]:
    """The frame of an object, and its body."""
    if kind == SITE and index in frames:
        return SensorFrame(frames[index]), int(model.site_bodyid[index])
    if kind in (BODY, XBODY):
        body = index
        at = (model.body_ipos[body], model.body_iquat[body]) if kind == BODY else None
    else:
        field = {GEOM: "geom", SITE: "site", CAMERA: "cam"}[kind]
        body = int(getattr(model, f"{field}_bodyid")[index])
        at = tuple(getattr(model, f"{field}_{x}")[index] for x in ("pos", "quat"))
    name = body_name(model, body) if body else None
    if at is None:
        return SensorFrame(name), body
    return SensorFrame(name, matrix_of(at[1]), as_vector(at[0])), body
