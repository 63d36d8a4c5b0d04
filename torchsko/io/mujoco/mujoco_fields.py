"""Names, disabled effects, and values of dofs and coordinates of a compiled MuJoCo model, in MuJoCo's order.

Reference: MuJoCo documentation, "XML reference" (option/flag).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torchsko.mechanism.limit_notes import Limits
from torchsko.mechanism.welded import WORLD
from torchsko.utils.optional_dependencies import require

FREE, BALL, SLIDE, HINGE = 0, 1, 2, 3
"""MuJoCo's types of joints (mjtJoint)."""

MAX_POSITION = 1e10
"""Positions that MuJoCo treats as errors (mjMAXVAL); a limit of at least this size is none."""

HIGHER = ("squared", "cubed")
"""Powers of the nonlinear coefficients of damping and stiffness: ``squared_damping``, and so on."""

TO_JOINT, TO_JOINT_IN_PARENT, TO_TENDON = 0, 1, 3
"""MuJoCo's types of transmissions to joints and tendons (mjtTrn)."""

CONSTRAINT_FLAGS = ("equality", "frictionloss", "limit")
"""Flags that the flag ``constraint`` includes, besides ``contact``."""

PASSIVE_FLAGS = ("spring", "damper")
"""Flags of passive forces; if both are disabled, MuJoCo also omits gravity compensation and fluid forces."""

SUPPORTED_FLAGS = (
    "constraint", "contact", "filterparent", "refsafe", "eulerdamp", "gravity", "clampctrl", "actuation",
    *CONSTRAINT_FLAGS, *PASSIVE_FLAGS,
)  # fmt: skip
"""Flags of forces and of contact; other flags select solvers, integrators and collision methods."""


def body_name(model: Any, b: int) -> str:
    """Name of a body, generated if the file has none."""
    return WORLD if b == 0 else model.body(b).name or f"body{b}"


def joint_names(model: Any, b: int) -> list[str]:
    """Names of the joints of a body, generated if the file has none."""
    first, count = int(model.body_jntadr[b]), int(model.body_jntnum[b])
    body = body_name(model, b)
    return [
        model.joint(j).name or f"{body}_joint" + (f"{j - first}" if count > 1 else "")
        for j in range(first, first + count)
    ]


def all_joint_names(model: Any) -> list[str]:
    """Names of all joints."""
    return [name for b in range(1, model.nbody) for name in joint_names(model, b)]


def disabled_flags(model: Any) -> set[str]:
    """Flags that the model disables, with those that they include."""
    bits = require("mujoco", "mjcf").mjtDisableBit
    flags = _flags_of(bits, "mjDSBL_", int(model.opt.disableflags))
    if "constraint" in flags:
        flags |= {*CONSTRAINT_FLAGS, "contact"}
    return flags | set(PASSIVE_FLAGS) if "passive" in flags else flags  # MuJoCo before 3.3.6


def enabled_flags(model: Any) -> set[str]:
    """Flags that the model enables."""
    bits = require("mujoco", "mjcf").mjtEnableBit
    return _flags_of(bits, "mjENBL_", int(model.opt.enableflags))


def _flags_of(bits: Any, prefix: str, value: int) -> set[str]:
    """Names in lower case of the bits that a value contains."""
    return {
        name.removeprefix(prefix).lower()
        for name, bit in bits.__members__.items()
        if name.startswith(prefix) and value & int(bit)
    }


def without_passive_forces(model: Any) -> bool:
    """True if the model disables all passive forces."""
    return disabled_flags(model) >= set(PASSIVE_FLAGS)


def dof_numbers(model: Any) -> dict[str, list[float]]:
    """Losses, armature, stiffness and effort limits of each dof; zero for disabled forces."""
    disabled = disabled_flags(model)
    joint = np.array(model.dof_jntid, dtype=int)
    drives = actuator_losses(model)
    effort = np.full(model.nv, math.inf)
    limited = np.array(model.jnt_actfrclimited, dtype=bool)
    if limited.any():
        largest = np.abs(model.jnt_actfrcrange).max(axis=1)
        effort = np.where(limited[joint], largest[joint], math.inf)
    springs = (linear(model.jnt_stiffness)[joint], *_higher(model, "jnt_stiffness")[joint].T)
    dampers = (linear(model.dof_damping), *_higher(model, "dof_damping").T)
    floating = np.array(model.jnt_type)[joint] == FREE
    order = _angular_first(model)

    def unless_disabled(x: Any, flag: str) -> list[float]:
        return _list(np.zeros_like(x) if flag in disabled else np.asarray(x)[order])

    values = {
        "damping": unless_disabled(dampers[0] + drives["damping"][0], "damper"),
        "friction": unless_disabled(model.dof_frictionloss, "frictionloss"),
        "armature": _list((model.dof_armature + drives["armature"][0])[order]),
        "stiffness": unless_disabled(springs[0], "spring"),
        "effort_limit": _list(effort[order]),
    }
    for i, power in enumerate(HIGHER, 1):
        # Powers of the velocities of free joints have other axes in MuJoCo.
        damping = np.where(floating, 0.0, dampers[i] + drives["damping"][i])
        values[f"{power}_damping"] = unless_disabled(damping, "damper")
        values[f"{power}_stiffness"] = unless_disabled(springs[i], "spring")
    return values


def actuator_losses(model: Any, *, of_tendons: bool = False) -> dict[str, np.ndarray]:
    """Damping and armature of actuators at the dofs of their joints, in MuJoCo's order, or at tendons.

    Returns:
        "damping" with its linear, quadratic and cubic coefficients, `[3, n]`, and "armature", `[1, n]`. n is
        the number of dofs, or that of tendons.
    """
    places = np.arange(model.ntendon) if of_tendons else np.array(model.dof_jntid, dtype=int)
    kinds, found = (TO_TENDON,) if of_tendons else (TO_JOINT, TO_JOINT_IN_PARENT), {}
    for field in ("damping", "armature"):
        own = getattr(model, f"actuator_{field}", None)
        rows = [np.zeros(0) if own is None else linear(own)]
        rows += list(_higher(model, f"actuator_{field}").T) if field == "damping" else []
        total = np.zeros((len(rows), len(places)))
        for i in range(0 if own is None else len(own)):
            if int(model.actuator_trntype[i]) in kinds:
                gear = float(model.actuator_gear[first_index(model, "outadr", i)][0])
                here = places == int(model.actuator_trnid[i][0])
                total += np.outer([gear**2 * row[i] for row in rows], here)
        found[field] = total
    return found


def tendon_numbers(model: Any) -> dict[str, np.ndarray]:
    """Coefficients of damping `[ntendon, 3]`, stiffness `[ntendon, 3]` and armature `[ntendon]` of tendons.

    Those of actuators are included; disabled forces are zero.
    """
    drives, disabled = actuator_losses(model, of_tendons=True), disabled_flags(model)
    damping, stiffness = (
        np.column_stack([linear(getattr(model, field)), _higher(model, field)])
        for field in ("tendon_damping", "tendon_stiffness")
    )
    armature = getattr(model, "tendon_armature", np.zeros(model.ntendon))
    return {
        "damping": (damping + drives["damping"].T) * ("damper" not in disabled),
        "stiffness": stiffness * ("spring" not in disabled),
        "armature": armature + drives["armature"][0],
    }


def first_index(model: Any, field: str, i: int) -> int:
    """Index of an actuator's first control or output, for versions of MuJoCo with several."""
    return int(getattr(model, f"actuator_{field}")[i]) if hasattr(model, f"actuator_{field}") else i


def _angular_first(model: Any) -> np.ndarray:
    """Indices of MuJoCo's dofs with the angular ones of free joints first."""
    order = np.arange(model.nv)
    for j in range(model.njnt):
        if int(model.jnt_type[j]) == FREE:
            at = int(model.jnt_dofadr[j])
            order[at : at + 6] = [at + i for i in (3, 4, 5, 0, 1, 2)]
    return order


def joint_limits(model: Any) -> list[Limits]:
    """Limits of each slide and hinge."""
    q, effort, found = q_numbers(model), dof_numbers(model)["effort_limit"], []
    for j, name in enumerate(all_joint_names(model)):
        if int(model.jnt_type[j]) in (SLIDE, HINGE):
            at, dof = int(model.jnt_qposadr[j]), int(model.jnt_dofadr[j])
            found.append(Limits(name, q["lower"][at], q["upper"][at], effort=effort[dof]))
    return found


def q_numbers(model: Any) -> dict[str, list[float]]:
    """Limits and spring references of each coordinate."""
    lower, upper = np.full(model.nq, -math.inf), np.full(model.nq, math.inf)
    for j in range(0 if "limit" in disabled_flags(model) else model.njnt):
        if model.jnt_limited[j] and int(model.jnt_type[j]) in (SLIDE, HINGE):
            low, high = map(float, model.jnt_range[j])
            lower[model.jnt_qposadr[j]] = low if low > -MAX_POSITION else -math.inf
            upper[model.jnt_qposadr[j]] = high if high < MAX_POSITION else math.inf
    return {
        "lower": _list(lower),
        "upper": _list(upper),
        "spring_reference": _list(model.qpos_spring),
    }


def _higher(model: Any, field: str) -> np.ndarray:
    """Quadratic and cubic coefficients, `[n, 2]`; zero in versions of MuJoCo without them."""
    if not hasattr(model, f"{field}poly"):
        return np.zeros((len(getattr(model, field, ())), 2))
    return np.asarray(getattr(model, f"{field}poly"), dtype=np.float64).reshape(-1, 2)


def linear(x: Any) -> np.ndarray:
    """Linear coefficients; some versions of MuJoCo store higher ones in further columns."""
    x = np.asarray(x, dtype=np.float64)
    return x if x.ndim == 1 else x[:, 0]


def _list(x: Any) -> list[float]:
    return np.asarray(x, dtype=np.float64).tolist()
