"""What a compiled MuJoCo model holds and the dynamics does not use, each with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchsko.io.mujoco_numbers import BALL, FREE
from torchsko.mechanism.description import Unused


def unused(model: Any) -> list[Unused]:
    """What the model holds and the dynamics does not use."""
    floating = [j for j in range(model.njnt) if int(model.jnt_type[j]) == FREE]
    balls = [j for j in range(model.njnt) if int(model.jnt_type[j]) == BALL]
    counted = (
        (
            model.ngeom,
            "geoms",
            "shapes act by contact only, which is not there yet; kept in mech.geometry",
        ),
        (model.nu, "actuators", "they act through torchsko.actuate only, see actuators_of"),
        (
            model.ntendon,
            "tendons",
            "their springs and dampers act through torchsko.tendons_of only",
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
        (
            sum(1 for j in floating if _some(model.jnt_stiffness[j])),
            "springs of free joints",
            "not honoured",
        ),
        (
            sum(1 for j in floating if _some(model.dof_armature[model.jnt_dofadr[j]])),
            "free joints with armature",
            "it resists rates in the axes of the body, MuJoCo's in those of the world",
        ),
        (
            sum(1 for j in floating if _higher(model, "dof_damping", model.jnt_dofadr[j])),
            "free joints with damping of higher order",
            "the linear part acts",
        ),
        (sum(1 for j in balls if model.jnt_limited[j]), "limits of ball joints", "not read"),
        (
            int(_some(model.opt.density) or _some(model.opt.viscosity)),
            "fluid",
            "its forces are not there",
        ),
        (int(_higher(model, "jnt_stiffness")), "stiffness of higher order", "the linear part acts"),
    )
    return [Unused(f"{count} {what}", why) for count, what, why in counted if count]


def finite_state(model: Any, k: int) -> bool:
    """Whether all numbers of a keyframe are finite."""
    fields = (model.key_qpos, model.key_qvel, model.key_act, model.key_ctrl)
    return all(bool(np.isfinite(x[k]).all()) for x in fields)


def _higher(model: Any, field: str, at: Any = slice(None)) -> bool:
    return hasattr(model, f"{field}poly") and _some(getattr(model, f"{field}poly")[at])


def _some(x: Any) -> bool:
    return bool(np.any(np.asarray(x)))
