"""Tendons of a compiled MuJoCo model whose lengths are sums over joint coordinates."""

from __future__ import annotations

from typing import Any

from torchsko.actuation.tendons import Tendon, Tendons
from torchsko.io.mjcf.read_mjcf import model_of
from torchsko.io.mujoco.mujoco_couplings import tendon_joints
from torchsko.io.mujoco.mujoco_fields import all_joint_names, disabled_flags, linear
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.file_data.actuator import UNLIMITED, as_range

UNUSED_FIELDS = (
    ("stiffnesspoly", "nonlinear stiffness", "only the linear part is modelled"),
    ("dampingpoly", "nonlinear damping", "only the linear part is modelled"),
    ("frictionloss", "dry friction", "not modelled"),
    ("armature", "armature", "not modelled"),
    ("limited", "limits", "loaded, but not enforced"),
    ("actfrclimited", "actuator force range", "not modelled"),
    ("springyield", "yielding spring", "modelled without yielding"),
)
"""Fields of a tendon that are not modelled: MuJoCo's name, its meaning, and the consequence."""


def tendons_of(source: Any, mech: MechanismLike) -> Tendons:
    """The tendons of an MJCF file, or of a compiled model, that act on joints.

    Args:
        source: path of a file, its text, or ``mujoco.MjModel``.
        mech: the mechanism loaded from the same source.

    Returns:
        The tendons, in the order of the file. Its ``unused`` lists spatial tendons and other fields than
        springs and dampers.

    Raises:
        RobotFileError: when the file is not readable; see `torchsko.load`.
        MechanismError: when the mechanism lacks joints of the file.
    """
    model = model_of(source)
    names, tendons, unused = all_joint_names(model), [], []
    off = disabled_flags(model)
    stiffness, damping = (
        linear(getattr(model, f"tendon_{field}")) * (flag not in off)
        for field, flag in (("stiffness", "spring"), ("damping", "damper"))
    )
    for t in range(model.ntendon):
        name, joints = model.tendon(t).name or f"tendon{t}", tendon_joints(model, t)
        if joints is None:
            unused.append(
                UnsupportedElement(f"tendon {name!r}", "it is a spatial tendon: not modelled")
            )
            continue
        for field, what, why in UNUSED_FIELDS:
            values = getattr(model, f"tendon_{field}", None)
            if values is not None and values[t].any():
                unused.append(UnsupportedElement(f"{what} of tendon {name!r}", why))
        tendons.append(
            Tendon(
                name,
                {names[j]: c for j, c in joints.items()},
                float(stiffness[t]),
                float(damping[t]),
                as_range(model.tendon_lengthspring[t]),
                as_range(model.tendon_range[t])
                if model.tendon_limited[t] and "limit" not in off
                else UNLIMITED,
            )
        )
    return Tendons.of(mech, tendons, unused=unused)
