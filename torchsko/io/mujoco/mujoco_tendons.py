"""Fixed tendons of a compiled MuJoCo model: lengths that are sums over joint coordinates."""

from __future__ import annotations

from typing import Any

from torchsko.io.mujoco.mujoco_couplings import tendon_joints
from torchsko.io.mujoco.mujoco_fields import all_joint_names, disabled_flags, tendon_numbers
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.file_data.actuator import UNLIMITED, as_range
from torchsko.mechanism.file_data.tendon import Tendon

UNUSED_FIELDS = (
    ("actfrclimited", "actuator force range", "not modeled"),
    ("springyield", "yielding spring", "modeled without yielding"),
)
"""Fields of a tendon that are not modeled: MuJoCo's name, its meaning, and the consequence."""


def tendon_name(model: Any, t: int) -> str:
    """Name of a tendon, generated if the file has none."""
    return model.tendon(t).name or f"tendon{t}"


def read_tendons(model: Any) -> tuple[tuple[Tendon, ...], tuple[UnsupportedElement, ...]]:
    """The fixed tendons of a model, and spatial tendons and other fields as unsupported elements.

    Args:
        model: ``mujoco.MjModel``.
    """
    joint_names, tendons, unused = all_joint_names(model), [], []
    off = disabled_flags(model)
    numbers = tendon_numbers(model)
    stiffness, damping = ([*map(tuple, numbers[x].tolist())] for x in ("stiffness", "damping"))
    for t in range(model.ntendon):
        name, joints = tendon_name(model, t), tendon_joints(model, t)
        if joints is None:
            unused.append(
                UnsupportedElement(f"tendon {name!r}", "it is a spatial tendon: not modeled")
            )
            continue
        for field, what, why in UNUSED_FIELDS:
            values = getattr(model, f"tendon_{field}", None)
            if values is not None and values[t].any():
                unused.append(UnsupportedElement(f"{what} of tendon {name!r}", why))
        limited = model.tendon_limited[t] and "limit" not in off
        tendons.append(
            Tendon(
                name,
                {joint_names[j]: c for j, c in joints.items()},
                stiffness[t][0],
                damping[t][0],
                as_range(model.tendon_lengthspring[t]),
                as_range(model.tendon_range[t]) if limited else UNLIMITED,
                float(model.tendon_frictionloss[t]) * ("frictionloss" not in off),
                float(model.tendon_margin[t]),
                _numbers(model.tendon_solref_lim[t]),
                _numbers(model.tendon_solimp_lim[t]),
                _numbers(model.tendon_solref_fri[t]),
                _numbers(model.tendon_solimp_fri[t]),
                float(model.tendon_invweight0[t]),
                float(numbers["armature"][t]),
                stiffness[t][1:],
                damping[t][1:],
            )
        )
    return tuple(tendons), tuple(unused)


def _numbers(x: Any) -> tuple[float, ...]:
    return tuple(map(float, x))
