"""The actuators of a robot file: of a compiled MuJoCo model, mostly.

Read are those whose transmission is a joint of one dof or a tendon of such joints, with gains and biases that
are constant or affine, and activations that integrate or filter. All others are left out, by name. PID loops
and DC motors are among the first where they have one control and no state (`torchsko.actuation.mjcf_laws`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torchsko.actuation.actuator import ANY, Actuator, Range, as_range
from torchsko.actuation.actuators import Actuators
from torchsko.actuation.mjcf_laws import Law, law_of
from torchsko.actuation.urdf_transmissions import read_transmissions
from torchsko.io.common.source import format_of
from torchsko.io.mjcf.read_mjcf import model_of
from torchsko.io.mujoco.mujoco_couplings import tendon_joints
from torchsko.io.mujoco.mujoco_flags import switched_off
from torchsko.io.mujoco.mujoco_names import all_joint_names
from torchsko.io.mujoco.mujoco_numbers import HINGE, SLIDE
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism

JOINT, JOINT_IN_PARENT, TENDON = 0, 1, 3
"""MuJoCo's types of transmissions (mjtTrn)."""

TRANSMISSIONS = ("joint", "joint in parent", "slider-crank", "tendon", "site", "body", "ball joint")

SMALLEST = 1e-15
"""MuJoCo's least time constant [s] (mjMINVAL)."""


def actuators_of(source: Any, mech: MechanismLike) -> Actuators:
    """The actuators of an MJCF file, or of a compiled model.

    Args:
        source: path of a file, its text, or ``mujoco.MjModel``. Of a URDF file the transmissions are motors
            (`torchsko.transmissions_of`), whose control is the torque before the gear.
        mech: the mechanism loaded from the same.

    Returns:
        The actuators, in the order of the file; its ``unused`` names those that are left out, and why:
        muscles, spatial tendons, sites, slider-cranks, bodies, delays; PID loops and DC motors with states
        (integral, inductance, heat, bristles), cogging, a limit of their voltage, or not one control each;
        transmissions of several joints.

    Raises:
        RobotFileError: when the file is not readable; see `torchsko.load`.
        MechanismError: when the mechanism has not the joints of the file.

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
    read, unused = [], []
    for i in range(len(model.actuator_trntype)):
        name = model.actuator(i).name or f"actuator{i}"
        law = _unfit(model, i, names) or law_of(model, i)
        if isinstance(law, str):
            unused.append(UnsupportedElement(f"actuator {name!r}", law))
        else:
            read.append(_actuator(model, i, name, names, law))
    unused += _besides(model, names)
    return Actuators.of(mech, read, joint_range=_joint_ranges(model, names), unused=unused)


def _of_urdf(source: str | os.PathLike[str], mech: MechanismLike) -> Actuators:
    """The transmissions of a URDF file as motors."""
    found, unused = read_transmissions(source)
    moving = set(as_mechanism(mech).tree_joint_names)
    unused += [
        UnsupportedElement(f"transmission {t.name!r}", f"no moving joint is named {t.joint!r}")
        for t in found
        if t.joint not in moving
    ]
    motors = [
        Actuator.motor(t.actuator, t.joint, gear=t.reduction) for t in found if t.joint in moving
    ]
    return Actuators.of(mech, motors, unused=unused)


def _unfit(model: Any, i: int, names: Mapping[int, str]) -> str:
    """Why an actuator is not read, whatever its law; empty where it is."""
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
    """Gear ratios by joint; None for what is no sum of coordinates."""
    gear = float(model.actuator_gear[_first(model, "outadr", i)][0])
    at = int(model.actuator_trnid[i][0])
    if int(model.actuator_trntype[i]) != TENDON:
        return {names[at]: gear} if int(model.jnt_type[at]) in (SLIDE, HINGE) else None
    joints = tendon_joints(model, at)
    return None if joints is None else {names[j]: gear * c for j, c in joints.items()}


def _first(model: Any, field: str, i: int) -> int:
    """Where an actuator's first control or output is, in versions where there may be several."""
    return int(getattr(model, f"actuator_{field}")[i]) if hasattr(model, f"actuator_{field}") else i


def _actuator(model: Any, i: int, name: str, names: Mapping[int, str], law: Law) -> Actuator:
    ctrl = _first(model, "ctrladr", i)
    off = switched_off(model)
    clamped = model.actuator_ctrllimited[ctrl] and "clampctrl" not in off
    idle = "actuation" in off or model.opt.disableactuator >> int(model.actuator_group[i]) & 1
    return Actuator(
        name=name,
        transmission=_transmission(model, i, names) or {},
        gain=(0.0, 0.0, 0.0) if idle else law.gain,
        bias=(0.0, 0.0, 0.0) if idle else law.bias,
        activation=law.activation,
        time_constant=max(SMALLEST, float(model.actuator_dynprm[i][0])),
        activation_range=_range(model, "act", i),
        early=bool(model.actuator_actearly[i]),
        control_range=as_range(model.actuator_ctrlrange[ctrl]) if clamped else ANY,
        force_range=_range(model, "force", i),
    )


def _range(model: Any, what: str, i: int) -> Range:
    limited = getattr(model, f"actuator_{what}limited")[i]
    return as_range(getattr(model, f"actuator_{what}range")[i]) if limited else ANY


def _joint_ranges(model: Any, names: Mapping[int, str]) -> dict[str, Range]:
    return {
        name: as_range(model.jnt_actfrcrange[j])
        for j, name in names.items()
        if model.jnt_actfrclimited[j] and int(model.jnt_type[j]) in (SLIDE, HINGE)
    }


def _besides(model: Any, names: Mapping[int, str]) -> list[UnsupportedElement]:
    """What else of a model has to do with actuators and is not honoured."""
    found = [
        UnsupportedElement(
            f"actuatorgravcomp of joint {name!r}",
            "weights are compensated passively, outside of the range of actuators' force",
        )
        for j, name in names.items()
        if model.jnt_actgravcomp[j]
    ]
    for field in ("damping", "armature"):
        values = getattr(model, f"actuator_{field}", ())
        found += [
            UnsupportedElement(
                f"{field} of actuator {model.actuator(i).name or i!r}", "not honoured"
            )
            for i, x in enumerate(values)
            if x
        ]
    if hasattr(model, "tendon_actfrclimited") and any(model.tendon_actfrclimited):
        found.append(UnsupportedElement("ranges of actuators' force on tendons", "not honoured"))
    return found
