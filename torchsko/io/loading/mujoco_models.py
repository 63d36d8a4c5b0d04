"""Loading of compiled MuJoCo models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from torchsko.bridge.singular_hinges import mark_singular_joints
from torchsko.errors import MechanismError
from torchsko.io.common.source import check_model
from torchsko.io.loading.build import unchecked
from torchsko.io.loading.file_check import check_file
from torchsko.io.mujoco.mujoco_fields import HIGHER
from torchsko.io.mujoco.mujoco_fluid import fluid_fields
from torchsko.io.mujoco.mujoco_metadata import read_metadata
from torchsko.io.mujoco.mujoco_model import ModelDescription, describe
from torchsko.io.mujoco.mujoco_sensors import read_sensors
from torchsko.mechanism.closed_chains.embedded_nodes import close_loops
from torchsko.mechanism.couplings import followers, limits
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.magnitudes import LARGEST, refuse_too_large
from torchsko.mechanism.mechanism import Mechanism

DOF_PARAMETERS = ("damping", "friction", "armature", "stiffness")
"""Parameters of each dof."""


def from_mujoco(
    model: Any,
    *,
    gravity: Sequence[float] | None = None,
    mimic: Literal["couple", "independent"] = "couple",
    strict: bool = False,
    closures: Literal["cut", "embed"] | Sequence[Closure] = "cut",
    independent: Sequence[str] = (),
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Mechanism:
    """Convert a compiled MuJoCo model to a mechanism.

    Configurations are MuJoCo's qpos if no joint follows another. Velocities are its qvel, except for free
    joints, whose velocity is [angular; linear] in the body frame. Bodies, named sites and cameras are frames;
    linear equalities of joints are exact couplings; all trees are in one mechanism. `forward_dynamics` does
    not include contacts, other equalities, tendons, actuators and fluids, which ``unused`` lists; `step`
    includes most of them. One `RobotFileWarning` names those that change the dynamics. ``mech.keyframes`` are
    the model's named states; ``mech.closures`` are its loops and soft equalities.

    Args:
        model: ``mujoco.MjModel``.
        gravity: in the inertial frame [m/s^2]; that of the model when left out.
        mimic: "couple" makes linear equalities of joints exact couplings. With "independent" they are soft
            constraints of `torchsko.step`, as in MuJoCo.
        strict: raise an error for the first element that changes the dynamics and does not act in
            `torchsko.step`.
        closures: "embed" makes the loops of the model part of the dynamics, "cut" leaves them open; or loops
            to add, as in `torchsko.load`.
        independent: joints of embedded loops that are independent, such as ("crank",).
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Returns:
        The mechanism, without batch dimensions.

    Raises:
        MechanismError: if the model has no moving joint, a parameter is unphysical, or embedded loops do not
            close.
        RobotFileError: if the object is not a compiled model, or of an element if `strict`.

    Example:
        >>> import torchsko as ts, mujoco
        >>> text = '''<mujoco><worldbody><body name="rod"><joint name="a" axis="0 1 0"/><geom size=".1"/>
        ...   <body><joint name="b" axis="0 1 0"/><geom size=".1" pos=".3 0 0"/></body></body></worldbody>
        ...   <equality><joint joint1="b" joint2="a" polycoef="0 -1 0 0 0"/></equality></mujoco>'''
        >>> ts.from_mujoco(mujoco.MjModel.from_xml_string(text)).dof_names
        ('a',)
    """
    mech = convert(model, gravity=gravity, mimic=mimic, dtype=dtype, device=device)
    mech = close_loops(mech, closures, independent)
    check_file(mech, strict=strict)
    return mech


def convert(
    model: Any,
    *,
    gravity: Sequence[float] | None = None,
    mimic: Literal["couple", "independent"] = "couple",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Mechanism:
    """`from_mujoco` without a warning."""
    check_model(model)
    with torch.device("cpu"):  # overrides torch.set_default_device
        return _convert(model, gravity, mimic, dtype, device)


def _convert(
    model: Any,
    gravity: Sequence[float] | None,
    mimic: str,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Mechanism:
    """The mechanism of a model's links and joints, with MuJoCo's values for each dof and coordinate."""
    read = describe(model, mimic)
    if not model.nv:
        raise MechanismError(
            f"{read.robot.name!r} has no moving joint.",
            "A mechanism needs at least one degree of freedom.",
            "Write a <joint> into a body, or <freejoint/> for a floating body.",
        )
    gravity = read.gravity if gravity is None else gravity
    _check_numbers(read, dtype)
    mech = unchecked(read.robot, False, gravity, True, dtype, device)
    coupling = mech.coupling
    dof = {name: torch.tensor(x, dtype=torch.float64) for name, x in read.dof_numbers.items()}
    numbers = {name: dof[name] for name in DOF_PARAMETERS}
    for what in ("damping", "stiffness"):
        numbers[f"higher_{what}"] = torch.stack([dof[f"{power}_{what}"] for power in HIGHER], -1)
    ranges, notes = _ranges(read, mech)
    ranges["spring_reference"] = read.q_numbers["spring_reference"]
    numbers |= {name: torch.tensor(x, dtype=torch.float64) for name, x in ranges.items()}
    effort = dof["effort_limit"]
    numbers["effort_limit"] = effort if coupling is None else effort[coupling.independent_dof_index]
    losses = (numbers[x] for x in ("damping", "friction", "higher_damping"))
    flags = {
        "has_armature": bool(numbers["armature"].any()),
        "has_losses": any(bool(x.any()) for x in losses),
        "has_higher_damping": bool(numbers["higher_damping"].any()),
        "has_higher_stiffness": bool(numbers["higher_stiffness"].any()),
    }
    sensors, not_read = read_sensors(model, read.site_frames)
    unused = (*mech.unused, *notes, *not_read)
    mech = mech.replace(**numbers, **flags, replaced=(), unused=unused)
    mech = replace(mech, **fluid_fields(model, mech))
    metadata = read_metadata(model, read, mech, sensors)
    if coupling is not None:
        limit_range = tuple(zip(read.q_numbers["lower"], read.q_numbers["upper"], strict=True))
        metadata = replace(metadata, solver=replace(metadata.solver, limit_range=limit_range))
    loops = tuple(closure.note for closure in metadata.closures)
    mech = mech.replace(file_metadata=metadata, unused=(*unused, *loops))
    return mark_singular_joints(mech).to(dtype).to(device)


def _ranges(
    read: ModelDescription, mech: Mechanism
) -> tuple[dict[str, list[float]], tuple[UnsupportedElement, ...]]:
    """Position limits of the independent joints, by coordinate, and limits that are not used."""
    joints, kinds = {joint.name: joint for joint in read.robot.joints}, mech.joints.kinds
    starts, hinges = [0], []
    for name, kind in zip(mech.tree_joint_names, kinds, strict=True):
        ends = {x: read.q_numbers[x][starts[-1]] for x in ("lower", "upper")}
        # Only joints with one coordinate can be coupled.
        hinges.append(replace(joints[name], **ends) if kind.num_q == 1 else joints[name])
        starts.append(starts[-1] + kind.num_q)
    combined = limits(hinges, followers(read.robot, hinges, kinds))
    ranges: dict[str, list[float]] = {}
    for name, of_joints in (("lower", combined.lower), ("upper", combined.upper)):
        values = read.q_numbers[name]
        rows = [
            [of_joints[k]] if kinds[k].num_q == 1 else values[starts[k] : starts[k + 1]]
            for k in mech.independent_joints
        ]
        ranges[name] = [x for row in rows for x in row]
    ignored = (UnsupportedElement(fault.element, fault.reason) for fault in combined.faults)
    return ranges, (*combined.unused, *ignored)


def _check_numbers(read: ModelDescription, dtype: torch.dtype) -> None:
    """Refuse values of joints that are not finite, or overflow."""
    limits = ("lower", "upper", "effort_limit")
    for name, values in (read.dof_numbers | read.q_numbers).items():
        what = f"{name} of a joint of {read.robot.name!r}"
        invalid = [x for x in values if math.isnan(x) or (math.isinf(x) and name not in limits)]
        if invalid:
            raise MechanismError(
                f"{what} is {invalid[0]}, which is not finite.",
                advice="Correct the number in the model.",
            )
        if name not in limits:
            refuse_too_large(f"{what}: it", values, LARGEST[dtype], dtype)
