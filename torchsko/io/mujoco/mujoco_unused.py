"""What a compiled MuJoCo model holds and the dynamics does not use, each with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchsko.io.mujoco.mujoco_flags import HONOURED, PASSIVE, switched_off
from torchsko.io.mujoco.mujoco_numbers import BALL, FREE, HINGE, SLIDE
from torchsko.mechanism.description import UnsupportedElement

JOINT_IN_PARENT = 1
"""MuJoCo's last type of transmissions that are joints (mjtTrn)."""

Row = tuple[int, str, str]
"""How many of something there are, what it is, and why it is not used."""


def unused(model: Any) -> list[UnsupportedElement]:
    """What the model holds and the dynamics does not use."""
    off = switched_off(model)
    elastic = any(
        _many(model, f"tendon_{field}") and flag not in off
        for field, flag in (("stiffness", "spring"), ("damping", "damper"))
    )
    pull = (
        model.ntendon,
        "tendons",
        "their springs and dampers act through torchsko.tendons_of only",
    )
    felt = (*_felt(model, off), *_of_free_joints(model, off))
    every = (
        *((row, False) for row in _parts(model)),
        (pull, elastic),
        *((row, False) for row in _forces(model, off)),
        *((row, True) for row in felt),
    )
    return [
        UnsupportedElement(f"{row[0]} {row[1]}", row[2], affects_forces=is_felt)
        for row, is_felt in every
        if row[0]
    ]


def _parts(model: Any) -> tuple[Row, ...]:
    return (
        (
            model.ngeom,
            "geoms",
            "shapes act by contact only, which is not there yet; kept in mech.geometry",
        ),
        (
            len(model.actuator_trntype),
            "actuators",
            "they act through torchsko.actuate only, see actuators_of",
        ),
        (model.nsensor, "sensors", "they do not act"),
        (
            sum(1 for k in range(model.nkey) if not finite_state(model, k)),
            "keyframes",
            "they hold numbers that are not finite",
        ),
        (
            model.npair + model.nexclude,
            "contact pairs and excludes",
            "kept in mech.geometry; contact is not there yet",
        ),
        (getattr(model, "nflex", 0), "flexible bodies", "they are not rigid"),
        (
            sum(1 for x in model.body_mocapid if x >= 0),
            "mocap bodies",
            "held where the file puts them",
        ),
    )


def _forces(model: Any, off: set[str]) -> tuple[Row, ...]:
    """Of joints and actuators, what MuJoCo knows and we do not, besides forces."""
    low, high = np.reshape(model.jnt_actfrcrange, (-1, 2)).T
    skew = np.array(model.jnt_actfrclimited, dtype=bool) & (low != -high)
    others = sorted(off.difference(HONOURED, ("passive",)))
    return (
        (
            sum(1 for x, limited in zip(model.jnt_type, model.jnt_limited, strict=True)
                if int(x) == BALL and limited and "limit" not in off),
            "limits of ball joints",
            "not read: nothing keeps them, inverse_kinematics(limits=True) neither",
        ),
        (
            int(skew.sum()),
            "ranges of actuators' force that are not symmetric",
            "mech.effort_limit is the larger bound, both ways; actuators_of keeps both",
        ),
        (
            _many(model, "jnt_actgravcomp") if _many(model, "body_gravcomp") else 0,
            "joints with actuatorgravcomp",
            "their weights are compensated passively, outside of the range of actuators' force",
        ),
        (
            _ranged(model),
            "joints whose actuators have ranges of control or force",
            "mech.effort_limit has only the joints' own (actuatorfrcrange); actuators_of keeps them, "
            "mech.replace(effort_limit=...) sets what is known",
        ),
        (
            len(others),
            f"flags that disable {', '.join(others)}",
            "they say how MuJoCo solves, integrates or finds contacts",
        ),
    )  # fmt: skip


def _felt(model: Any, off: set[str]) -> tuple[Row, ...]:
    """Of joints, tendons, actuators and fluids, forces that a log has and the dynamics has not."""
    wet = _some(model.opt.density) or _some(model.opt.viscosity)
    return (
        (
            _many(model, "tendon_frictionloss") if "frictionloss" not in off else 0,
            "tendons with dry friction",
            "not honoured",
        ),
        (_many(model, "tendon_armature"), "tendons with armature", "it is not in the mass matrix"),
        (_many(model, "actuator_armature"), "actuators with armature", "it is not in the mass matrix"),
        (
            _many(model, "actuator_damping") if "damper" not in off else 0,
            "actuators with damping",
            "not honoured",
        ),
        (int(wet and not off.issuperset(PASSIVE)), "fluid", "its forces are not there"),
        (
            int(_higher(model, "jnt_stiffness") and "spring" not in off),
            "stiffness of higher order",
            "the linear part acts",
        ),
        (
            _many(model, "jnt_springyield") if "spring" not in off else 0,
            "joints whose springs yield",
            "they do not yield here",
        ),
    )  # fmt: skip


def _ranged(model: Any) -> int:
    """How many hinges and slides have no range of force but by a force, or a scaled control, of actuators."""
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
        if int(kind) > JOINT_IN_PARENT or int(model.jnt_type[j]) not in (SLIDE, HINGE):
            continue
        first = int(model.actuator_ctrladr[i]) if hasattr(model, "actuator_ctrladr") else i
        scaled = int(bias) == 0 and bool(model.actuator_ctrllimited[first : first + 1].any())
        if (force or scaled) and not model.jnt_actfrclimited[j]:
            found.add(j)
    return len(found)


def _of_free_joints(model: Any, off: set[str]) -> tuple[Row, ...]:
    """What joints that float have, in axes of theirs that are not ours."""
    floating = [j for j in range(model.njnt) if int(model.jnt_type[j]) == FREE]
    dofs = [int(model.jnt_dofadr[j]) for j in floating]
    springs = sum(1 for j in floating if _some(model.jnt_stiffness[j]))
    dampers = sum(1 for at in dofs if _higher(model, "dof_damping", at))
    rubbing = sum(1 for at in dofs if _some(model.dof_frictionloss[at : at + 3]))
    return (
        (springs if "spring" not in off else 0, "springs of free joints", "not honoured"),
        (
            sum(1 for at in dofs if _some(model.dof_armature[at])),
            "free joints with armature",
            "it resists rates in the axes of the body, MuJoCo's in those of the world",
        ),
        (
            rubbing if "frictionloss" not in off else 0,
            "free joints with dry friction",
            "it resists rates in the axes of the body, MuJoCo's in those of the world",
        ),
        (
            dampers if "damper" not in off else 0,
            "free joints with damping of higher order",
            "the linear part acts",
        ),
    )


def finite_state(model: Any, k: int) -> bool:
    """Whether all numbers of a keyframe are finite."""
    fields = (model.key_qpos, model.key_qvel, model.key_act, model.key_ctrl)
    return all(bool(np.isfinite(x[k]).all()) for x in fields)


def _higher(model: Any, field: str, at: Any = slice(None)) -> bool:
    return hasattr(model, f"{field}poly") and _some(getattr(model, f"{field}poly")[at])


def _some(x: Any) -> bool:
    return bool(np.any(np.asarray(x)))


def _many(model: Any, field: str) -> int:
    """How many numbers of a field are not zero; none where a version of MuJoCo has no such field."""
    return int(np.count_nonzero(getattr(model, field, ())))
