"""Actuators of a compiled MuJoCo model, as plain data.

Supported are transmissions to a joint of one dof or to a tendon of such joints, constant or affine gains and
biases, and activations that integrate or filter. PID loops and DC motors are supported with one control and
without a state (`torchsko.io.mujoco.actuator_laws`). All other actuators are listed as unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchsko.io.mujoco.actuator_laws import Law, law_of
from torchsko.io.mujoco.mujoco_couplings import tendon_joints
from torchsko.io.mujoco.mujoco_fields import (
    HINGE,
    SLIDE,
    all_joint_names,
    disabled_flags,
    first_index,
)
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.file_data.actuator import (
    UNLIMITED,
    Actuator,
    FileActuators,
    Range,
    as_range,
)

JOINT, JOINT_IN_PARENT, TENDON = 0, 1, 3
"""MuJoCo's types of transmissions (mjtTrn)."""

TRANSMISSIONS = ("joint", "joint in parent", "slider-crank", "tendon", "site", "body", "ball joint")

MIN_TIME_CONSTANT = 1e-15
"""MuJoCo's smallest time constant [s] (mjMINVAL)."""


def read_actuators(model: Any) -> FileActuators:
    """The actuators of a model that are modeled, and notes on all others.

    Args:
        model: ``mujoco.MjModel``.
    """
    names = dict(enumerate(all_joint_names(model)))
    supported, unused = [], []
    for i in range(len(model.actuator_trntype)):
        name = model.actuator(i).name or f"actuator{i}"
        law = _unsupported(model, i, names) or law_of(model, i)
        if isinstance(law, str):
            unused.append(UnsupportedElement(f"actuator {name!r}", law))
        else:
            supported.append(_actuator(model, i, name, names, law))
    if hasattr(model, "tendon_actfrclimited") and any(model.tendon_actfrclimited):
        unused.append(UnsupportedElement("actuator force ranges of tendons", "not modeled"))
    lifting = tuple(
        name
        for j, name in names.items()
        if model.jnt_actgravcomp[j] and int(model.jnt_type[j]) in (SLIDE, HINGE)
    )
    return FileActuators(tuple(supported), _joint_ranges(model, names), lifting, tuple(unused))


def _unsupported(model: Any, i: int, names: Mapping[int, str]) -> str:
    """Reason why an actuator is not modeled regardless of its law; empty if it is."""
    kind, group = int(model.actuator_trntype[i]), int(model.actuator_group[i])
    if group >= 0 and int(getattr(model.opt, "disableactuator", 0)) >> group & 1:
        return f"actuatorgroupdisable contains its group {group}"
    if kind not in (JOINT, JOINT_IN_PARENT, TENDON):
        known = kind < len(TRANSMISSIONS)
        return f"its transmission is a {TRANSMISSIONS[kind] if known else kind}: not modeled"
    joints = _transmission(model, i, names)
    if joints is None:
        return "its transmission is a spatial tendon, a ball joint or a free joint: not modeled"
    if int(model.actuator_plugin[i]) >= 0:
        return "it is a plugin"
    if hasattr(model, "actuator_delay") and model.actuator_delay[i]:
        return "its control is delayed: not modeled"
    return ""


def _transmission(model: Any, i: int, names: Mapping[int, str]) -> dict[str, float] | None:
    """Gear ratios by joint; None if the length is not a sum of coordinates."""
    gear = float(model.actuator_gear[first_index(model, "outadr", i)][0])
    at = int(model.actuator_trnid[i][0])
    if int(model.actuator_trntype[i]) != TENDON:
        return {names[at]: gear} if int(model.jnt_type[at]) in (SLIDE, HINGE) else None
    joints = tendon_joints(model, at)
    return None if joints is None else {names[j]: gear * c for j, c in joints.items()}


def _actuator(model: Any, i: int, name: str, names: Mapping[int, str], law: Law) -> Actuator:
    ctrl = first_index(model, "ctrladr", i)
    off = disabled_flags(model)
    clamped = model.actuator_ctrllimited[ctrl] and "clampctrl" not in off
    idle = "actuation" in off or model.opt.disableactuator >> int(model.actuator_group[i]) & 1
    return Actuator(
        name=name,
        transmission=_transmission(model, i, names) or {},
        gain=(0.0, 0.0, 0.0) if idle else law.gain,
        bias=(0.0, 0.0, 0.0) if idle else law.bias,
        activation=law.activation,
        time_constant=max(MIN_TIME_CONSTANT, float(model.actuator_dynprm[i][0])),
        activation_range=_range(model, "act", i),
        early=bool(model.actuator_actearly[i]),
        control_range=as_range(model.actuator_ctrlrange[ctrl]) if clamped else UNLIMITED,
        force_range=_range(model, "force", i),
    )


def _range(model: Any, what: str, i: int) -> Range:
    limited = getattr(model, f"actuator_{what}limited")[i]
    return as_range(getattr(model, f"actuator_{what}range")[i]) if limited else UNLIMITED


def _joint_ranges(model: Any, names: Mapping[int, str]) -> dict[str, Range]:
    return {
        name: as_range(model.jnt_actfrcrange[j])
        for j, name in names.items()
        if model.jnt_actfrclimited[j] and int(model.jnt_type[j]) in (SLIDE, HINGE)
    }
