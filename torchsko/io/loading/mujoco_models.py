"""A robot comes in as a model that MuJoCo has compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchsko.bridge.singular_hinges import checked
from torchsko.errors import MechanismError
from torchsko.io.common.source import check_model
from torchsko.io.loading.build import unchecked
from torchsko.io.mujoco.mujoco_metadata import kept
from torchsko.io.mujoco.mujoco_model import ModelDescription, describe
from torchsko.io.mujoco.mujoco_numbers import HIGHER
from torchsko.mechanism.couplings import followers, limits
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.magnitudes import LARGEST, refuse_too_large
from torchsko.mechanism.mechanism import Mechanism

PASSIVE = ("damping", "friction", "armature", "stiffness")
"""What each dof of a model has of its own."""


def from_mujoco(
    model: Any,
    *,
    gravity: Sequence[float] | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Mechanism:
    """The mechanism of a compiled MuJoCo model.

    Configurations are MuJoCo's qpos (where no joint follows another), velocities its qvel, but for free
    joints: ours are [angular; linear] in the body frame. Bodies, named sites and cameras are frames; linear
    equalities of joints are exact couplings; several trees are one mechanism. Forces of contact, tendons,
    actuators and fluids are not there, and said in ``unused``. ``mech.keyframes`` are the states that the
    model names; ``mech.file_metadata.closures`` its closures, which nothing enforces yet.

    Args:
        model: ``mujoco.MjModel``.
        gravity: in the inertial frame [m/s^2]; the model's own when left out.
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Returns:
        The mechanism, without batch dimensions.

    Raises:
        MechanismError: when nothing moves, or a number belongs to no rigid body.
        RobotFileError: when it is no compiled model.
    """
    check_model(model)
    with torch.device("cpu"):  # whatever torch.set_default_device says
        return _of_model(model, gravity, dtype, device)


def _of_model(
    model: Any, gravity: Sequence[float] | None, dtype: torch.dtype, device: torch.device | str
) -> Mechanism:
    """The mechanism of a model: its links and joints, then what each dof and coordinate has of its own."""
    read = describe(model)
    if not model.nv:
        raise MechanismError(
            f"{read.robot.name!r} has no moving joint.",
            "A mechanism needs one degree of freedom at least.",
            "Write a <joint> into a body, or <freejoint/> where it floats.",
        )
    gravity = read.gravity if gravity is None else gravity
    _check_numbers(read, dtype)
    mech = unchecked(read.robot, False, gravity, True, dtype, device)
    coupling = mech.coupling
    own = {} if coupling is None else {"q": coupling.own_q, "dof": coupling.own_dofs}

    def tensor(values: Sequence[float], of: str | None) -> torch.Tensor:
        x = torch.tensor(values, dtype=torch.float64)
        return x if of is None or not own else x.index_select(-1, own[of])

    numbers = {name: tensor(x, None) for name, x in read.dof_numbers.items() if name in PASSIVE}
    higher = [tensor(read.dof_numbers[x], None) for x in HIGHER]
    numbers["higher_damping"] = torch.stack(higher, -1)
    numbers["spring_reference"] = tensor(read.q_numbers["spring_reference"], None)
    ranges, notes = _ranges(read, mech)
    numbers |= {name: tensor(x, None) for name, x in ranges.items()}
    numbers["effort_limit"] = tensor(read.dof_numbers["effort_limit"], "dof")
    losses = (numbers[x] for x in ("damping", "friction", "higher_damping"))
    flags = {
        "has_armature": bool(numbers["armature"].any()),
        "has_losses": any(bool(x.any()) for x in losses),
        "has_higher_damping": bool(numbers["higher_damping"].any()),
    }
    mech = mech.replace(**numbers, **flags, replaced=(), unused=(*mech.unused, *notes))
    mech = mech.replace(file_metadata=kept(model, read, mech))
    return checked(mech).to(dtype).to(device)


def _ranges(
    read: ModelDescription, mech: Mechanism
) -> tuple[dict[str, list[float]], tuple[UnsupportedElement, ...]]:
    """Limits of position of the joints that follow none, by coordinate, and what is to be said of them."""
    given, kinds = {joint.name: joint for joint in read.robot.joints}, mech.joints.kinds
    at, hinges = [0], []
    for name, kind in zip(mech.tree_joint_names, kinds, strict=True):
        ends = {x: read.q_numbers[x][at[-1]] for x in ("lower", "upper")}
        # Joints of several coordinates follow none, and none follows them.
        hinges.append(replace(given[name], **ends) if kind.num_q == 1 else given[name])
        at.append(at[-1] + kind.num_q)
    allowed = limits(hinges, followers(read.robot, hinges, kinds))
    found: dict[str, list[float]] = {}
    for name, handed in (("lower", allowed.lower), ("upper", allowed.upper)):
        own = read.q_numbers[name]
        rows = [
            [handed[k]] if kinds[k].num_q == 1 else own[at[k] : at[k + 1]]
            for k in mech.independent_joints
        ]
        found[name] = [x for row in rows for x in row]
    not_held = (UnsupportedElement(fault.element, fault.reason) for fault in allowed.faults)
    return found, (*allowed.unused, *not_held)


def _check_numbers(read: ModelDescription, dtype: torch.dtype) -> None:
    """Refuse what is not finite, or overflows, among the numbers that joints of a model have."""
    limits = ("lower", "upper", "effort_limit")
    for name, values in (read.dof_numbers | read.q_numbers).items():
        what = f"{name} of a joint of {read.robot.name!r}"
        unfit = [x for x in values if math.isnan(x) or (math.isinf(x) and name not in limits)]
        if unfit:
            raise MechanismError(
                f"{what} is {unfit[0]}.",
                "Every number of a robot is finite.",
                "Correct the number.",
            )
        if name not in limits:
            refuse_too_large(f"{what}: it", values, LARGEST[dtype], dtype)
