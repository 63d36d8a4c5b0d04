"""Elements of a compiled MuJoCo model that the dynamics does not use, with reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from torchsko.errors import name_list
from torchsko.io.mujoco.mujoco_couplings import tendon_joints
from torchsko.io.mujoco.mujoco_fields import (
    BALL,
    FREE,
    HINGE,
    SLIDE,
    SUPPORTED_FLAGS,
    TO_JOINT_IN_PARENT,
    all_joint_names,
    disabled_flags,
    enabled_flags,
    tendon_numbers,
)
from torchsko.mechanism.description import IN_STEP, UnsupportedElement
from torchsko.mechanism.file_data.touching_pairs import TouchingPairs
from torchsko.mechanism.geometry import NO_SHAPES, Geometry

Row = tuple[int | list[str], str, str]
"""Number or names of elements, their kind, and the reason why they are not used."""

IN_CONTACT = f"contact acts {IN_STEP}"
"""Reason for elements that exert forces while bodies touch."""

WITHOUT_COLLISION = "these kinds of shapes do not collide, in ts.step neither"
"""Reason for pairs of shapes without a collision function."""

WITHOUT_OPTION = "not modeled; ts.step solves the constraints without it"
"""Reason for options and flags that change the forces of constraints."""

ONLY_COLORS = "shapes have their colors, without textures, reflection and emission"
"""Reason for materials that are more than a color."""

PLAIN_MATERIAL = {"emission": 0.0, "specular": 0.5, "shininess": 0.5, "reflectance": 0.0}
"""How MuJoCo draws a geom without material."""

FLAGS_OF_CONTACT = ("override", "sleep", "diagexact", "ipc", "speculative")
"""Flags that change the forces of constraints, or the motion with them, when they are enabled."""


def unused(model: Any, geometry: Geometry) -> list[UnsupportedElement]:
    """Elements of a model that the dynamics does not use.

    Args:
        model: ``mujoco.MjModel``.
        geometry: its shapes.
    """
    disabled = disabled_flags(model)
    of_tendons = tendon_numbers(model)
    elastic = any(of_tendons[field].any() for field in ("stiffness", "damping"))
    tendons = (
        model.ntendon,
        "tendons",
        "their springs and dampers are those of torchsko.actuators.tendons_of, and act in ts.step only",
    )
    forces = (*_missing_forces(model, disabled), *_of_free_joints(model, disabled))
    rows = (
        *((row, False) for row in _parts(model)),
        (tendons, elastic),
        *((row, False) for row in _limits_and_flags(model, disabled)),
        *((row, True) for row in forces),
        *((row, False) for row in _options_of_contact(model)),
        ((_drawn_materials(model), "materials", ONLY_COLORS), False),
    )
    pairs = _touching_pairs(model, geometry, disabled)
    geoms = [model.geom(g).name or f"geom{g}" for g in pairs.shapes()]
    touching = (
        (geoms, "geoms that can touch others", IN_CONTACT),
        (list(pairs.unsupported()), "pairs of geoms", WITHOUT_COLLISION),
    )
    return [
        UnsupportedElement(
            _element(row[0], row[1]),
            row[2],
            affects_forces=affects_forces,
            in_contact=row[2] in (IN_CONTACT, WITHOUT_COLLISION, WITHOUT_OPTION),
            in_step=row[2].endswith((IN_STEP, "in ts.step only")),
            absent=row[2] == ONLY_COLORS,
        )
        for row, affects_forces in (*rows, *((row, False) for row in touching))
        if row[0]
    ]


def _element(found: int | list[str], kind: str) -> str:
    """Number and kind of elements, with their names if known."""
    if isinstance(found, int):
        return f"{found} {kind}"
    return f"{len(found)} {kind} ({name_list(found)})"


def _touching_pairs(model: Any, geometry: Geometry, disabled: set[str]) -> TouchingPairs:
    """The pairs of geoms that may touch; geoms of welded bodies belong to one rigid body."""
    if "contact" in disabled:
        geometry = NO_SHAPES
    weld = np.array(model.body_weldid, dtype=int)
    parents = weld[np.array(model.body_parentid, dtype=int)[weld]] - 1
    bodies = weld[np.array(model.geom_bodyid, dtype=int)] - 1
    bodies, filtered = bodies[: len(geometry.shapes)], "filterparent" not in disabled
    return TouchingPairs(geometry, bodies.tolist(), parents[1:].tolist(), filtered)


def _parts(model: Any) -> tuple[Row, ...]:
    return (
        (
            model.ngeom,
            "geoms",
            "shapes have no effect on the dynamics without contact; they are in mech.geometry",
        ),
        (
            len(model.actuator_trntype),
            "actuators",
            "not in the dynamics; see torchsko.actuators.actuators_of and torchsko.actuators.actuate",
        ),
        (
            sum(1 for k in range(model.nkey) if not finite_state(model, k)),
            "keyframes",
            "they have values that are not finite",
        ),
        (
            model.npair + model.nexclude,
            "contact pairs and excludes",
            "they select contacts; they are in mech.geometry",
        ),
        (
            sum(1 for x in model.body_mocapid if x >= 0),
            "mocap bodies",
            "fixed at their pose in the file",
        ),
    )


def _limits_and_flags(model: Any, disabled: set[str]) -> tuple[Row, ...]:
    """Limits and flags that are not read."""
    low, high = np.reshape(model.jnt_actfrcrange, (-1, 2)).T
    asymmetric = np.array(model.jnt_actfrclimited, dtype=bool) & (low != -high)
    flags = sorted(disabled.difference(SUPPORTED_FLAGS, ("passive",)))
    return (
        (
            sum(1 for x, limited in zip(model.jnt_type, model.jnt_limited, strict=True)
                if int(x) == BALL and limited and "limit" not in disabled),
            "limits of ball joints",
            "soft constraints of ts.step; inverse_kinematics(limits=True) does not use them",
        ),
        (
            int(asymmetric.sum()),
            "asymmetric ranges of actuator forces",
            "mech.effort_limit has the larger bound; actuators_of reads both",
        ),
        (
            _count(model, "jnt_actgravcomp") if _count(model, "body_gravcomp") and not model.nu else 0,
            "joints with actuatorgravcomp in a model without actuators",
            "gravity is compensated here, and not in MuJoCo",
        ),
        (
            _num_actuator_ranges(model),
            "joints whose actuators have ranges of control or force",
            "mech.effort_limit has only the joints' actuatorfrcrange; actuators_of reads those of actuators; "
            "set mech.replace(effort_limit=...) if known",
        ),
        (
            len(flags),
            f"flags that disable {', '.join(flags)}",
            "settings of MuJoCo's solver, integrator or collision detection",
        ),
    )  # fmt: skip


def _options_of_contact(model: Any) -> tuple[Row, ...]:
    """Options that change the forces of constraints."""
    flags = sorted(enabled_flags(model).intersection(FLAGS_OF_CONTACT))
    options = ["noslip_iterations"] if model.opt.noslip_iterations > 0 else []
    return ((flags, "enabled flags", WITHOUT_OPTION), (options, "options", WITHOUT_OPTION))


def _missing_forces(model: Any, disabled: set[str]) -> tuple[Row, ...]:
    """Forces of joints, tendons and actuators that affect measured joint forces."""
    of_tendons = tendon_numbers(model)
    fixed = [t for t in range(model.ntendon) if tendon_joints(model, t) is not None]
    return (
        (
            _flexes(model),
            "flexible bodies",
            "their nodes are loaded without elastic forces; build a torchsko.FlexibleBody",
        ),
        (
            _count(model, "tendon_frictionloss") if "frictionloss" not in disabled else 0,
            "tendons with dry friction",
            f"dry friction of tendons acts {IN_STEP}",
        ),
        (
            _spatial_tendons(model, disabled),
            "spatial tendons with limits or forces",
            "only tendons on joints are modeled",
        ),
        (
            int(np.count_nonzero(of_tendons["armature"][fixed])),
            "tendons with armature",
            f"armature of tendons acts {IN_STEP}",
        ),
        (
            _count(model, "jnt_springyield") if "spring" not in disabled else 0,
            "joints with springyield",
            "yielding of springs is not modeled",
        ),
    )  # fmt: skip


def _flexes(model: Any) -> list[str]:
    """Names of flexible bodies."""
    starts = getattr(model, "name_flexadr", ())
    names = [bytes(model.names[start:]).partition(b"\0")[0].decode() for start in starts]
    return [name or f"flex{i}" for i, name in enumerate(names)]


def _spatial_tendons(model: Any, disabled: set[str]) -> list[str]:
    """Names of spatial tendons that exert forces."""
    forces = [tendon_numbers(model)[field] for field in ("stiffness", "damping", "armature")]
    flags = {"frictionloss": "frictionloss", "limited": "limit"}
    forces += [getattr(model, f"tendon_{x}") for x, flag in flags.items() if flag not in disabled]
    return [
        model.tendon(t).name or f"tendon{t}"
        for t in range(model.ntendon)
        if tendon_joints(model, t) is None and any(_any(x[t]) for x in forces)
    ]


def _num_actuator_ranges(model: Any) -> int:
    """Number of hinges and slides whose forces are limited by ranges of actuators only."""
    found = set()
    for i, (kind, bias, force) in enumerate(
        zip(
            model.actuator_trntype,
            model.actuator_biastype,
            model.actuator_forcelimited,
            strict=True,
        )
    ):
        j = int(model.actuator_trnid[i][0])
        if int(kind) > TO_JOINT_IN_PARENT or int(model.jnt_type[j]) not in (SLIDE, HINGE):
            continue
        first = int(model.actuator_ctrladr[i]) if hasattr(model, "actuator_ctrladr") else i
        scaled = int(bias) == 0 and bool(model.actuator_ctrllimited[first : first + 1].any())
        if (force or scaled) and not model.jnt_actfrclimited[j]:
            found.add(j)
    return len(found)


def _of_free_joints(model: Any, disabled: set[str]) -> tuple[Row, ...]:
    """Forces of free joints, whose velocity has other axes in MuJoCo."""
    floating = [j for j in range(model.njnt) if int(model.jnt_type[j]) == FREE]
    dofs = [int(model.jnt_dofadr[j]) for j in floating]
    names = all_joint_names(model)

    def named(present: Iterable[bool]) -> list[str]:
        return [names[j] for j, found in zip(floating, present, strict=True) if found]

    dampers = named(_has_higher(model, "dof_damping", at) for at in dofs)
    dry_friction = named(_any(model.dof_frictionloss[at : at + 3]) for at in dofs)
    other_axes = "it acts along the axes of the body; in MuJoCo along those of the world"
    return (
        (
            named(len(set(model.dof_armature[at : at + 3].tolist())) > 1 for at in dofs),
            "free joints with different armature along the axes",
            other_axes,
        ),
        (
            dry_friction if "frictionloss" not in disabled else 0,
            "free joints with dry friction",
            other_axes,
        ),
        (
            dampers if "damper" not in disabled else 0,
            "free joints with nonlinear damping",
            "only the linear part is modeled",
        ),
    )


def _drawn_materials(model: Any) -> list[str]:
    """Names of the materials of geoms that are more than a color."""
    used = sorted(set(model.geom_matid.tolist()) - {-1})
    return [
        model.mat(m).name or f"material{m}"
        for m in used
        if (model.mat_texid[m] >= 0).any()
        or any(getattr(model, f"mat_{x}")[m] != usual for x, usual in PLAIN_MATERIAL.items())
    ]


def finite_state(model: Any, k: int) -> bool:
    """True if all values of a keyframe are finite."""
    fields = (model.key_qpos, model.key_qvel, model.key_act, model.key_ctrl)
    return all(bool(np.isfinite(x[k]).all()) for x in fields)


def _has_higher(model: Any, field: str, at: Any = slice(None)) -> bool:
    return hasattr(model, f"{field}poly") and _any(getattr(model, f"{field}poly")[at])


def _any(x: Any) -> bool:
    return bool(np.any(np.asarray(x)))


def _count(model: Any, field: str) -> int:
    """Number of nonzero values of a field; zero in versions of MuJoCo without the field."""
    return int(np.count_nonzero(getattr(model, field, ())))
