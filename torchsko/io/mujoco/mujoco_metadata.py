"""Initial configuration, keyframes and closures of a compiled MuJoCo model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Polynomial

from torchsko.io.common.numbers import as_vector
from torchsko.io.conventions.conversion import Conventions, conventions
from torchsko.io.mujoco.mujoco_actuators import read_actuators
from torchsko.io.mujoco.mujoco_couplings import JOINT, WELD, is_loop
from torchsko.io.mujoco.mujoco_fields import all_joint_names, body_name, disabled_flags
from torchsko.io.mujoco.mujoco_model import ModelDescription, matrix_of
from torchsko.io.mujoco.mujoco_unused import finite_state
from torchsko.mechanism.file_data.file_metadata import Closure, FileMetadata, FrameName, Keyframe
from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.mechanism.file_data.solver_options import SolverOptions
from torchsko.mechanism.mechanism import Mechanism

INTEGRATORS = ("Euler", "RK4", "implicit", "implicitfast", "discrete")
"""Names of MuJoCo's integrators (mjtIntegrator)."""

NUM_COORDINATES = (7, 4, 1, 1)
"""Coordinates of free joints, ball joints, slides and hinges."""

SITE = 6
"""MuJoCo's type of a site (mjtObj)."""


def read_metadata(
    model: Any, read: ModelDescription, mech: Mechanism, sensors: tuple[Sensor, ...]
) -> FileMetadata:
    """Initial configuration, keyframes and closures of a model.

    Args:
        model: ``mujoco.MjModel``.
        read: its description.
        mech: its mechanism, in float64 on the CPU.
        sensors: its sensors.
    """
    mujoco = conventions("mujoco", mech, all_joint_names(model))
    return FileMetadata(
        keyframes=tuple(_keyframes(model, mujoco)),
        closures=tuple(_closures(model, read)),
        initial=mujoco.q_from(torch.tensor(np.array(model.qpos0, dtype=np.float64))),
        solver=read_solver_options(model),
        actuators=read_actuators(model),
        sensors=sensors,
    )


def _keyframes(model: Any, mujoco: Conventions) -> list[Keyframe]:
    """Keyframes with finite numbers; generated names are unique."""
    found: list[Keyframe] = []
    activations, controls = actuator_states(model)
    taken = {model.key(k).name for k in range(model.nkey)}
    for k in filter(partial(finite_state, model), range(model.nkey)):
        fields = (model.key_qpos[k], model.key_qvel[k], model.key_act[k], model.key_ctrl[k])
        qpos, qvel, act, ctrl = (torch.tensor(np.array(x, dtype=np.float64)) for x in fields)
        q = mujoco.q_from(qpos)
        name = model.key(k).name or f"keyframe{k}"
        while not model.key(k).name and name in taken:
            name += "_"
        taken.add(name)
        found.append(
            Keyframe(
                name,
                float(model.key_time[k]),
                q,
                mujoco.qd_from(q, qvel),
                act,
                ctrl,
                activations,
                controls,
            )
        )
    return found


def actuator_states(model: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the actuators of each activation and of each control."""
    activations, controls = [""] * model.na, [""] * model.nu
    for i in range(len(model.actuator_trntype)):
        name = model.actuator(i).name or f"actuator{i}"
        start, count = int(model.actuator_actadr[i]), int(model.actuator_actnum[i])
        activations[max(0, start) : max(0, start) + count] = [name] * count
        first, num = (
            (int(model.actuator_ctrladr[i]), int(model.actuator_ctrlnum[i]))
            if hasattr(model, "actuator_ctrladr")
            else (i, 1)
        )
        controls[first : first + num] = [name] * num
    return tuple(activations), tuple(controls)


def _closures(model: Any, read: ModelDescription) -> list[Closure]:
    alone = {joint.name for joint in read.robot.joints}
    is_on = "equality" not in disabled_flags(model)
    found = []
    for e in (e for e in range(model.neq) if is_loop(model, e, alone)):
        kind = int(model.eq_type[e])
        make = _joint_closure if kind == JOINT else _frame_closure
        found.append(
            replace(
                make(model, e, read.site_frames),
                name=model.eq(e).name or f"equality{e}",
                active=bool(model.eq_active0[e]) and is_on,
                solref=_numbers(model.eq_solref[e]),
                solimp=_numbers(model.eq_solimp[e]),
            )
        )
    return found


def _frame_closure(model: Any, e: int, frames: Mapping[int, str]) -> Closure:
    """A connect or weld."""
    objects = (int(model.eq_obj1id[e]), int(model.eq_obj2id[e]))
    data = np.array(model.eq_data[e], dtype=np.float64)
    is_weld = int(model.eq_type[e]) == WELD
    kind = "weld" if is_weld else "connect"
    if int(model.eq_objtype[e]) == SITE:
        return Closure("", kind, frames[objects[0]], frames[objects[1]])
    one, two = (_frame(model, b) for b in objects)
    ends = as_vector(data[:3]), as_vector(data[3:6])
    if is_weld:
        return Closure("", kind, one, two, ends[1], ends[0], matrix_of(data[6:10]))
    return Closure("", kind, one, two, *ends)


def _joint_closure(model: Any, e: int, frames: Mapping[int, str]) -> Closure:
    """A polynomial between two joints, of their coordinates instead of their distances from qpos0."""
    names = all_joint_names(model)
    joints = [int(model.eq_obj1id[e]), int(model.eq_obj2id[e])]
    start = [float(model.qpos0[model.jnt_qposadr[j]]) for j in joints]
    shifted = Polynomial(np.array(model.eq_data[e][:5], dtype=np.float64))
    moved = (shifted(Polynomial([-start[1], 1.0])) + start[0]).coef
    numbers = tuple(map(float, [*moved, 0.0, 0.0, 0.0, 0.0][:5]))
    return Closure(
        "", "joint", None, None, parameters=numbers, joints=(names[joints[0]], names[joints[1]])
    )


def _frame(model: Any, b: int) -> FrameName:
    return body_name(model, b) if b else None


def _numbers(x: Any) -> tuple[float, ...]:
    return tuple(map(float, x))


CONSTRAINTS = ("contact", "limit", "frictionloss", "equality", "filterparent")
"""Constraints, and the filter of contacts, that a flag of MuJoCo disables."""


def read_solver_options(model: Any) -> SolverOptions:
    """Parameters of the constraint solver and the integrator, in the order of MuJoCo's coordinates."""
    disabled = disabled_flags(model)
    joints = [j for j in range(model.njnt) for _ in range(NUM_COORDINATES[int(model.jnt_type[j])])]
    cone = "elliptic" if int(model.opt.cone) else "pyramidal"
    return SolverOptions(
        timestep=float(model.opt.timestep),
        integrator=INTEGRATORS[int(model.opt.integrator)],
        cone=cone,
        impratio=float(model.opt.impratio),
        refsafe="refsafe" not in disabled,
        eulerdamp="eulerdamp" not in disabled,
        disabled=tuple(name for name in CONSTRAINTS if name in disabled),
        limit_solref=tuple(_numbers(model.jnt_solref[j]) for j in joints),
        limit_solimp=tuple(_numbers(model.jnt_solimp[j]) for j in joints),
        limit_margin=tuple(float(model.jnt_margin[j]) for j in joints),
        friction_solref=tuple(map(_numbers, model.dof_solref)),
        friction_solimp=tuple(map(_numbers, model.dof_solimp)),
        dof_invweight=_numbers(model.dof_invweight0),
    )
