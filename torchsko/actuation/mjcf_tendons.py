"""The tendons of a compiled MuJoCo model whose lengths are sums over joints."""

from __future__ import annotations

from typing import Any

from torchsko.actuation.actuator import ANY, as_range
from torchsko.actuation.tendons import Tendon, Tendons
from torchsko.io.mjcf.read_mjcf import model_of
from torchsko.io.mujoco.mujoco_couplings import tendon_joints
from torchsko.io.mujoco.mujoco_flags import switched_off
from torchsko.io.mujoco.mujoco_names import all_joint_names
from torchsko.io.mujoco.mujoco_numbers import linear
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.dispatch import MechanismLike

OTHERS = (
    ("stiffnesspoly", "stiffness of higher order", "the linear part acts"),
    ("dampingpoly", "damping of higher order", "the linear part acts"),
    ("frictionloss", "dry friction", "not honoured"),
    ("armature", "armature", "not honoured"),
    ("limited", "limits", "kept as numbers; nothing enforces them"),
    ("actfrclimited", "a range of actuators' force", "not honoured"),
    ("springyield", "a spring that yields", "it does not yield here"),
)
"""What a tendon may have besides, by MuJoCo's name; and what becomes of it."""


def tendons_of(source: Any, mech: MechanismLike) -> Tendons:
    """The tendons of an MJCF file, or of a compiled model, that run over joints.

    Args:
        source: path of a file, its text, or ``mujoco.MjModel``.
        mech: the mechanism loaded from the same.

    Returns:
        The tendons, in the order of the file; its ``unused`` names those through space, which are left out,
        and what others have besides springs and dampers.

    Raises:
        RobotFileError: when the file is not readable; see `torchsko.load`.
        MechanismError: when the mechanism has not the joints of the file.
    """
    model = model_of(source)
    names, found, unused = all_joint_names(model), [], []
    off = switched_off(model)
    stiffness, damping = (
        linear(getattr(model, f"tendon_{field}")) * (flag not in off)
        for field, flag in (("stiffness", "spring"), ("damping", "damper"))
    )
    for t in range(model.ntendon):
        name, joints = model.tendon(t).name or f"tendon{t}", tendon_joints(model, t)
        if joints is None:
            unused.append(
                UnsupportedElement(f"tendon {name!r}", "it runs through space: not modelled")
            )
            continue
        for field, what, why in OTHERS:
            values = getattr(model, f"tendon_{field}", None)
            if values is not None and values[t].any():
                unused.append(UnsupportedElement(f"{what} of tendon {name!r}", why))
        found.append(
            Tendon(
                name,
                {names[j]: c for j, c in joints.items()},
                float(stiffness[t]),
                float(damping[t]),
                as_range(model.tendon_lengthspring[t]),
                as_range(model.tendon_range[t])
                if model.tendon_limited[t] and "limit" not in off
                else ANY,
            )
        )
    return Tendons.of(mech, found, unused=unused)
