"""Initial configuration, keyframes and closures of a compiled MuJoCo model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.bridge.conventions.conversion import Conventions, conventions
from torchsko.io.common.numbers import as_vector
from torchsko.io.mujoco.mujoco_actuators import read_actuators
from torchsko.io.mujoco.mujoco_equalities import read_equalities
from torchsko.io.mujoco.mujoco_fields import (
    BALL,
    FREE,
    SUPPORTED_FLAGS,
    all_joint_names,
    body_name,
    disabled_flags,
    enabled_flags,
)
from torchsko.io.mujoco.mujoco_model import ModelDescription, matrix_of
from torchsko.io.mujoco.mujoco_tendons import read_tendons
from torchsko.io.mujoco.mujoco_unused import finite_state
from torchsko.mechanism.coordinates import tree_q
from torchsko.mechanism.description import Vector
from torchsko.mechanism.file_data.file_metadata import Coupled, FileMetadata, Keyframe
from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.mechanism.file_data.solver_options import SolverOptions
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.optional_dependencies import require

INTEGRATORS = ("Euler", "RK4", "implicit", "implicitfast", "discrete")
"""Names of MuJoCo's integrators (mjtIntegrator)."""

NUM_COORDINATES = (7, 4, 1, 1)
"""Coordinates of free joints, ball joints, slides and hinges."""


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
    bodies = [body_name(model, b) for b in range(1, model.nbody)]
    tendons, unused_tendons = read_tendons(model)
    initial = mujoco.q_from(torch.tensor(np.array(model.qpos0, dtype=np.float64)))
    mocap = [int(x) >= 0 for x in model.body_mocapid[1:]]
    return FileMetadata(
        keyframes=tuple(_keyframes(model, mujoco)),
        closures=tuple(read_equalities(model, read.site_frames, read.closures)),
        coupled=_coupled(model, read, mech, initial),
        initial=initial,
        solver=read_solver_options(model),
        actuators=read_actuators(model),
        sensors=sensors,
        tendons=tendons,
        unused_tendons=unused_tendons,
        centers=_link_centers(model, read.site_frames),
        links=tuple(link for link in read.robot.links if link.name in set(bodies)),
        mocap_bodies=tuple(itertools.compress(bodies, mocap)),
    )


def _coupled(
    model: Any, read: ModelDescription, mech: Mechanism, initial: Tensor
) -> tuple[Coupled, ...]:
    """The equalities that are couplings, with the error of each in the initial configuration."""
    found, closed = [], tree_q(mech, initial).tolist()
    names = all_joint_names(model)
    equalities = read_equalities(model, read.site_frames, read.coupled)
    for coupling, equality in zip(read.robot.couplings, equalities, strict=True):
        start = float(model.qpos0[model.jnt_qposadr[names.index(coupling.joint)]])
        at = mech.tree_q_slice(coupling.joint).start
        found.append(Coupled(coupling.joint, equality, start - closed[at]))
    return tuple(found)


def _link_centers(model: Any, site_frames: Mapping[int, str]) -> dict[str, Vector]:
    """Centers of mass of moving bodies that are welded to others, in the frames of bodies and sites."""
    weld = model.body_weldid.tolist()
    welded = [b for b in range(1, model.nbody) if weld[b] and weld.count(weld[b]) > 1]
    found = {body_name(model, b): as_vector(model.body_ipos[b]) for b in welded}
    for i, name in site_frames.items():
        if (b := int(model.site_bodyid[i])) in welded:
            R = np.array(matrix_of(model.site_quat[i]))
            found[name] = as_vector(R.T @ (model.body_ipos[b] - model.site_pos[i]))
    return found


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
        limit_angle=tuple(_largest_angle(model, j) for j in joints),
        friction_solref=tuple(map(_numbers, model.dof_solref)),
        friction_solimp=tuple(map(_numbers, model.dof_solimp)),
        dof_invweight=_dof_weights(model),
        other_options=tuple(_other_options(model)),
        other_flags=(
            *((name, "disable") for name in sorted(disabled.difference(SUPPORTED_FLAGS))),
            *((name, "enable") for name in sorted(enabled_flags(model))),
        ),
    )


def _dof_weights(model: Any) -> tuple[float, ...]:
    """Inverse inertias of the dofs; those of free joints begin with the angular ones, unlike MuJoCo's."""
    weights = np.array(model.dof_invweight0, dtype=np.float64)
    for j, first in enumerate(model.jnt_dofadr.tolist()):
        if int(model.jnt_type[j]) == FREE:
            weights[first : first + 6] = np.roll(weights[first : first + 6], 3)
    return _numbers(weights)


OPTIONS = (
    "iterations", "tolerance", "ls_iterations", "ls_tolerance", "noslip_iterations", "noslip_tolerance",
    "ccd_iterations", "ccd_tolerance", "sdf_iterations", "sdf_initpoints", "sleep_tolerance", "magnetic",
    "o_margin", "o_solref", "o_solimp", "o_friction",
)  # fmt: skip
"""Options of MuJoCo without effect here."""

CHOICES = {"solver": ("PGS", "CG", "Newton"), "jacobian": ("dense", "sparse", "auto")}
"""Options of MuJoCo without effect here that are one of several words."""


def _other_options(model: Any) -> Iterator[tuple[str, str]]:
    """Options without effect here that differ from MuJoCo's defaults."""
    default = require("mujoco", "mjcf").MjOption()
    for name in (*OPTIONS, *CHOICES):
        value, usual = (np.ravel(getattr(x, name, ())) for x in (model.opt, default))
        if not np.array_equal(value, usual):
            chosen = name in CHOICES
            yield (
                name,
                CHOICES[name][int(value[0])] if chosen else " ".join(map(repr, value.tolist())),
            )


def _largest_angle(model: Any, j: int) -> float:
    """Largest rotation of a ball joint [rad]; infinite for joints of other types, and without limits."""
    limited = model.jnt_limited[j] and int(model.jnt_type[j]) == BALL
    return float(max(model.jnt_range[j])) if limited else math.inf
