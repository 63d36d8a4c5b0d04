"""Actuators of a robot file: of a compiled MuJoCo model, or the transmissions of a URDF.

Supported are transmissions to a joint of one dof or to a tendon of such joints, constant or affine gains and
biases, and activations that integrate or filter. PID loops and DC motors are supported with one control and
without a state (`torchsko.actuation.mjcf_laws`). All other actuators are listed as unused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torchsko.actuation.actuator import UNLIMITED, Actuator, Range, as_range
from torchsko.actuation.actuators import Actuators
from torchsko.actuation.mjcf_laws import Law, law_of
from torchsko.io.common.source import format_of
from torchsko.io.mjcf.read_mjcf import model_of
from torchsko.io.mujoco.mujoco_couplings import tendon_joints
from torchsko.io.mujoco.mujoco_fields import HINGE, SLIDE, all_joint_names, disabled_flags
from torchsko.io.urdf.urdf_transmissions import read_transmissions
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism

JOINT, JOINT_IN_PARENT, TENDON = 0, 1, 3
"""MuJoCo's types of transmissions (mjtTrn)."""

TRANSMISSIONS = ("joint", "joint in parent", "slider-crank", "tendon", "site", "body", "ball joint")

MIN_TIME_CONSTANT = 1e-15
"""MuJoCo's smallest time constant [s] (mjMINVAL)."""


def actuators_of(source: Any, mech: MechanismLike) -> Actuators:
    """The actuators of an MJCF file, of a compiled model, or of a URDF file.

    Args:
        source: path of a file, its text, or ``mujoco.MjModel``. The transmissions of a URDF file
            (`torchsko.transmissions_of`) become motors, whose control is the torque before the gear.
        mech: the mechanism loaded from the same source.

    Returns:
        The actuators, in the order of the file. Its ``unused`` lists actuators that are not modelled, with
        the reason: muscles, spatial tendons, sites, slider-cranks, bodies, delays; PID loops and DC motors
        with states (integral, inductance, temperature, bristles), cogging, a voltage limit, or several
        controls; transmissions of several joints.

    Raises:
        RobotFileError: when the file is not readable; see `torchsko.load`.
        MechanismError: when the mechanism lacks joints of the file.

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><body><joint name="hinge"/><geom size="0.1"/></body></worldbody>
        ...   <actuator><position name="servo" joint="hinge" kp="20"/></actuator></mujoco>'''
        >>> ts.actuators_of(text, ts.load(text)).names
        ('servo',)
    """
    if isinstance(source, str | os.PathLike) and format_of(source) != "mjcf":
        return _of_urdf(source, mech)
    model = model_of(source)
    names = dict(enumerate(all_joint_names(model)))
    supported, unused = [], []
    for i in range(len(model.actuator_trntype)):
        name = model.actuator(i).name or f"actuator{i}"
        law = _unsupported(model, i, names) or law_of(model, i)
        if isinstance(law, str):
            unused.append(UnsupportedElement(f"actuator {name!r}", law))
        else:
            supported.append(_actuator(model, i, name, names, law))
    unused += _unused_fields(model, names)
    return Actuators.of(mech, supported, joint_range=_joint_ranges(model, names), unused=unused)


def _of_urdf(source: str | os.PathLike[str], mech: MechanismLike) -> Actuators:
    """The transmissions of a URDF file as motors."""
    transmissions, unused = read_transmissions(source)
    moving = set(as_mechanism(mech).tree_joint_names)
    unused += [
        UnsupportedElement(f"transmission {t.name!r}", f"no moving joint is named {t.joint!r}")
        for t in transmissions
        if t.joint not in moving
    ]
    motors = [
        Actuator.motor(t.actuator, t.joint, gear=t.reduction)
        for t in transmissions
        if t.joint in moving
    ]
    return Actuators.of(mech, motors, unused=unused)


def _unsupported(model: Any, i: int, names: Mapping[int, str]) -> str:
    """Reason why an actuator is not modelled regardless of its law; empty if it is."""
    kind = int(model.actuator_trntype[i])
    if kind not in (JOINT, JOINT_IN_PARENT, TENDON):
        known = kind < len(TRANSMISSIONS)
        return f"its transmission is a {TRANSMISSIONS[kind] if known else kind}: not modelled"
    joints = _transmission(model, i, names)
    if joints is None:
        return "its transmission is a spatial tendon, a ball joint or a free joint: not modelled"
    if int(model.actuator_plugin[i]) >= 0:
        return "it is a plugin"
    if hasattr(model, "actuator_delay") and model.actuator_delay[i]:
        return "its control is delayed: not modelled"
    return ""


def _transmission(model: Any, i: int, names: Mapping[int, str]) -> dict[str, float] | None:
    """Gear ratios by joint; None if the length is not a sum of coordinates."""
    gear = float(model.actuator_gear[_first_index(model, "outadr", i)][0])
    at = int(model.actuator_trnid[i][0])
    if int(model.actuator_trntype[i]) != TENDON:
        return {names[at]: gear} if int(model.jnt_type[at]) in (SLIDE, HINGE) else None
    joints = tendon_joints(model, at)
    return None if joints is None else {names[j]: gear * c for j, c in joints.items()}


def _first_index(model: Any, field: str, i: int) -> int:
    """Index of an actuator's first control or output, for versions of MuJoCo with several."""
    return int(getattr(model, f"actuator_{field}")[i]) if hasattr(model, f"actuator_{field}") else i


def _actuator(model: Any, i: int, name: str, names: Mapping[int, str], law: Law) -> Actuator:
    ctrl = _first_index(model, "ctrladr", i)
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


def _unused_fields(model: Any, names: Mapping[int, str]) -> list[UnsupportedElement]:
    """Other elements of a model that concern actuators and are not modelled."""
    found = [
        UnsupportedElement(
            f"actuatorgravcomp of joint {name!r}",
            "gravity is compensated passively, outside the force range of actuators",
        )
        for j, name in names.items()
        if model.jnt_actgravcomp[j]
    ]
    for field in ("damping", "armature"):
        values = getattr(model, f"actuator_{field}", ())
        found += [
            UnsupportedElement(
                f"{field} of actuator {model.actuator(i).name or i!r}", "not modelled"
            )
            for i, x in enumerate(values)
            if x
        ]
    if hasattr(model, "tendon_actfrclimited") and any(model.tendon_actfrclimited):
        found.append(UnsupportedElement("actuator force ranges of tendons", "not modelled"))
    return found
