"""What each dof and each coordinate of a compiled MuJoCo model has of its own, in MuJoCo's order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torchsko.io.mujoco.mujoco_flags import switched_off
from torchsko.io.mujoco.mujoco_names import all_joint_names
from torchsko.mechanism.limit_notes import Limits

FREE, BALL, SLIDE, HINGE = 0, 1, 2, 3
"""MuJoCo's types of joints (mjtJoint)."""

FARTHEST = 1e10
"""Positions that MuJoCo takes for a fault (mjMAXVAL): a limit there, or beyond, is none."""

HIGHER = ("squared_damping", "cubed_damping")
"""Coefficients of damping beyond the linear one."""


def dof_numbers(model: Any) -> dict[str, list[float]]:
    """Losses, armature, stiffness and limits of effort of each dof; zero where they are switched off."""
    off = switched_off(model)
    joint = np.array(model.dof_jntid, dtype=int)
    effort = np.full(model.nv, math.inf)
    limited = np.array(model.jnt_actfrclimited, dtype=bool)
    if limited.any():
        most = np.abs(model.jnt_actfrcrange).max(axis=1)
        effort = np.where(limited[joint], most[joint], math.inf)
    floating = np.array(model.jnt_type)[joint] == FREE
    stiffness = np.where(floating, 0.0, linear(model.jnt_stiffness)[joint])

    def acting(x: Any, flag: str) -> list[float]:
        return _list(np.zeros_like(x) if flag in off else x)

    higher = _higher_damping(model)
    return {
        "damping": acting(linear(model.dof_damping), "damper"),
        **{name: acting(x, "damper") for name, x in zip(HIGHER, higher.T, strict=True)},
        "friction": acting(model.dof_frictionloss, "frictionloss"),
        "armature": _list(model.dof_armature),
        "stiffness": acting(stiffness, "spring"),
        "effort_limit": _list(effort),
    }


def joint_limits(model: Any) -> list[Limits]:
    """The limits of each slide and hinge, by its name."""
    q, effort, found = q_numbers(model), dof_numbers(model)["effort_limit"], []
    for j, name in enumerate(all_joint_names(model)):
        if int(model.jnt_type[j]) in (SLIDE, HINGE):
            at, dof = int(model.jnt_qposadr[j]), int(model.jnt_dofadr[j])
            found.append(Limits(name, q["lower"][at], q["upper"][at], effort=effort[dof]))
    return found


def q_numbers(model: Any) -> dict[str, list[float]]:
    """Limits of each coordinate, and where springs are relaxed."""
    lower, upper = np.full(model.nq, -math.inf), np.full(model.nq, math.inf)
    for j in range(0 if "limit" in switched_off(model) else model.njnt):
        if model.jnt_limited[j] and int(model.jnt_type[j]) in (SLIDE, HINGE):
            low, high = map(float, model.jnt_range[j])
            lower[model.jnt_qposadr[j]] = low if low > -FARTHEST else -math.inf
            upper[model.jnt_qposadr[j]] = high if high < FARTHEST else math.inf
    return {
        "lower": _list(lower),
        "upper": _list(upper),
        "spring_reference": _list(model.qpos_spring),
    }


def _higher_damping(model: Any) -> np.ndarray:
    """Coefficients of |qd| qd and qd^3 of each dof; zero where a version of MuJoCo has none.

    Of free joints, too: in other axes of its velocity a power of each component is another force.
    """
    if not hasattr(model, "dof_dampingpoly"):
        return np.zeros((model.nv, 2))
    floating = np.array(model.jnt_type)[np.array(model.dof_jntid, dtype=int)] == FREE
    return np.where(floating[:, None], 0.0, np.asarray(model.dof_dampingpoly, dtype=np.float64))


def linear(x: Any) -> np.ndarray:
    """The linear coefficients, where a version of MuJoCo keeps higher ones beside them."""
    x = np.asarray(x, dtype=np.float64)
    return x if x.ndim == 1 else x[:, 0]


def _list(x: Any) -> list[float]:
    return np.asarray(x, dtype=np.float64).tolist()
