"""Actuators of a mechanism as tensors; `torchsko.actuators.actuator_forces` evaluates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError, ShapeError, name_list
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.file_data.actuator import UNLIMITED, Actuator, FileActuators, Range
from torchsko.mechanism.file_data.file_metadata import Keyframe
from torchsko.mechanism.mechanism import Mechanism


@dataclass(frozen=True, eq=False)
class Actuators:
    """The actuators of a mechanism: immutable tensors and names, as in `Mechanism`.

    Every tensor may carry leading batch dimensions, which broadcast with those of the state. n is the number
    of actuators, m that of activations.

    Attributes:
        names: of the actuators, in the order of controls.
        activation_names: of those with an activation, in the order of activations.
        transmission: rates of lengths over rates of all joints, `[n, num_tree_dof]`.
        gain: `[n, 3]`: constant, per length, per rate of length.
        bias: `[n, 3]` in the same order [N or N m].
        time_constant: of activations that are filters, `[m]` [s].
        activation_range: `[m, 2]`, infinite without limits.
        control_range: `[n, 2]`.
        force_range: `[n, 2]` [N or N m].
        joint_range: limits of the total actuator force on each dof of the tree, `[num_tree_dof, 2]` [N m or
            N].
        lifting: whether the gravity compensation of each dof of the tree counts as actuator force, within
            its range, bool `[num_tree_dof]`.
        stall: largest force at rest, `[n]` [N or N m].
        droop: decrease of the largest force with speed: stall / no_load_speed, `[n]` [N s/m or N m s/rad].
        efficiency: of the gear, `[n]`.
        q_of_dof: index of the coordinate of each dof of the tree, int64.
        states: indices of the actuators with an activation, int64 `[m]`.
        inputs: index of each actuator's input among controls, then activations, int64 `[n]`.
        filtered: whether an activation is a filter instead of an integrator, bool `[m]`.
        exact: whether the time step of a filter is exact, bool `[m]`.
        early: whether the force is computed from the activation after the step, bool `[m]`.
        single_joint: indices of actuators of one joint, int64.
        multi_joint: indices of actuators of several joints, int64.
        any_lifting: whether any dof is lifting.
        any_early: whether any is computed from its activation after the step.
        has_curves: whether any has a torque-speed curve.
        has_gears: whether any gear loses power.
        unused: elements of a file that are not modeled.
    """

    names: tuple[str, ...]
    activation_names: tuple[str, ...]
    transmission: Tensor
    gain: Tensor
    bias: Tensor
    time_constant: Tensor
    activation_range: Tensor
    control_range: Tensor
    force_range: Tensor
    joint_range: Tensor
    lifting: Tensor
    stall: Tensor
    droop: Tensor
    efficiency: Tensor
    q_of_dof: Tensor
    states: Tensor
    inputs: Tensor
    filtered: Tensor
    exact: Tensor
    early: Tensor
    single_joint: Tensor
    multi_joint: Tensor
    any_lifting: bool
    any_early: bool
    has_curves: bool
    has_gears: bool
    unused: tuple[UnsupportedElement, ...] = ()

    def __repr__(self) -> str:
        return f"Actuators({len(self.names)}: {name_list(self.names)})"

    @staticmethod
    def of(
        mech: MechanismLike,
        actuators: Sequence[Actuator],
        *,
        joint_range: Mapping[str, Range] | None = None,
        lifting_joints: Sequence[str] = (),
        unused: Sequence[UnsupportedElement] = (),
    ) -> Actuators:
        """The actuators of a mechanism.

        Args:
            mech: the mechanism.
            actuators: in the order of controls.
            joint_range: limits of the total actuator force on a joint, by its name [N m or N].
            lifting_joints: joints whose gravity compensation (``mech.gravcomp``) counts as actuator force.
            unused: see the class.

        Raises:
            MechanismError: on an unknown joint, a joint whose coordinate is not a number, or a duplicate
                name.

        Example:
            >>> import torchsko as ts, torch
            >>> arm = ts.load(ts.robots.panda)
            >>> servo = ts.actuators.Actuator.position
            >>> servos = [servo(f"servo_{j}", j, kp=100.0, kv=10.0) for j in arm.joint_names]
            >>> drive = ts.actuators.Actuators.of(arm, servos)
            >>> q = arm.middle()
            >>> tau, _ = ts.actuators.actuate(arm, drive, q, 0 * q, ctrl=q + 0.1)
            >>> [round(x, 6) for x in tau[:2].tolist()]
            [10.0, 10.0]
        """
        mech = as_mechanism(mech)
        names = tuple(actuator.name for actuator in actuators)
        _check_unique(names)
        rows = _transmissions(mech, actuators)
        ranges = _joint_ranges(mech, joint_range or {})
        lifting = {scalar_dof(mech, joint, "lifting_joints") for joint in lifting_joints}
        joints_each = [sum(map(bool, row)) for row in rows]
        return Actuators(
            names=names,
            transmission=as_tensor(mech, rows, mech.num_tree_dof),
            joint_range=as_tensor(mech, ranges, 2),
            lifting=torch.tensor(
                [k in lifting for k in range(mech.num_tree_dof)], device=mech.device
            ),
            any_lifting=mech.has_gravcomp and bool(lifting),
            q_of_dof=_indices(mech, q_of_dof(mech)),
            single_joint=_indices(mech, [i for i, count in enumerate(joints_each) if count < 2]),
            multi_joint=_indices(mech, [i for i, count in enumerate(joints_each) if count > 1]),
            **_force_fields(mech, actuators),
            **_activation_fields(mech, actuators),
            unused=tuple(unused),
        )

    @staticmethod
    def of_file(mech: MechanismLike, data: FileActuators) -> Actuators:
        """The actuators of a robot file, such as ``mech.file_metadata.actuators``.

        Raises:
            MechanismError: when the mechanism lacks one of their joints.
        """
        return Actuators.of(
            mech, data.actuators, joint_range=data.joint_range,
            lifting_joints=data.lifting_joints, unused=data.unused,
        )  # fmt: skip

    def replace(self, **changes: Tensor) -> Actuators:
        """A copy with some tensors changed, with any leading batch dimensions.

        Actuators with a changed transmission count as having several joints.

        Raises:
            ShapeError: when the last dimensions of a tensor change.
        """
        check_changes(self, changes, "actuators", PARAMETERS)
        flags: dict[str, Any] = {
            "has_curves": self.has_curves or "stall" in changes or "droop" in changes,
            "has_gears": self.has_gears or "efficiency" in changes,
        }
        if "transmission" in changes:
            indices = torch.arange(len(self.names), device=self.single_joint.device)
            flags |= {"single_joint": indices[:0], "multi_joint": indices}
        return replace(self, **changes, **flags)

    def at_keyframe(self, key: Keyframe) -> tuple[Tensor, Tensor]:
        """Activations `[m]` and controls `[n]` of a keyframe, by the names of actuators.

        Raises:
            MechanismError: when the keyframe has none or several values for an actuator.
        """
        found = []
        for names, key_names, values in (
            (self.activation_names, key.activation_names, key.activation),
            (self.names, key.control_names, key.ctrl),
        ):
            wrong = [name for name in names if key_names.count(name) != 1]
            if wrong:
                raise MechanismError(
                    f"the keyframe {key.name!r} has {key_names.count(wrong[0])} numbers for actuator "
                    f"{wrong[0]!r}.",
                    "An actuator has one control, and at most one activation.",
                    "Use a keyframe and actuators of the same file.",
                )
            indices = torch.tensor([key_names.index(name) for name in names], dtype=torch.int64)
            found.append(values.index_select(-1, indices.to(values.device)))
        return found[0], found[1]

    def spread_activation(self, activation: Tensor) -> Tensor:
        """Activations `[*batch, m]` from those of a new `torchsko.State`: one number stands for all."""
        count = len(self.activation_names)
        if activation.shape[-1:] != (1,) or count == 1:
            return activation
        return activation.expand(*activation.shape[:-1], count) if count else activation[..., :0]

    def next_activation(
        self, activation: Tensor, activation_rate: Tensor, dt: float | Tensor
    ) -> Tensor:
        """Activations after a time step, `[*batch, m]`: exact for exact filters, otherwise by Euler's method.

        Args:
            activation: `[*batch, m]`.
            activation_rate: from `actuate`, `[*batch, m]`.
            dt: time step [s].
        """
        T = self.time_constant
        span = torch.where(self.exact, -T * torch.expm1(-dt / T), dt)
        return saturate(activation + span * activation_rate, self.activation_range)


PARAMETERS = ("transmission", "gain", "bias", "time_constant", "activation_range", "control_range",
              "force_range", "joint_range", "stall", "droop", "efficiency")  # fmt: skip
"""Tensor fields that are parameters."""


def _check_unique(names: Sequence[str]) -> None:
    if repeated := [name for name in names if names.count(name) > 1]:
        raise MechanismError(
            f"two actuators are named {repeated[0]!r}.",
            "Controls are found by names.",
            "Give each actuator a unique name.",
        )


def _transmissions(mech: Mechanism, actuators: Sequence[Actuator]) -> list[list[float]]:
    """Rates of each actuator's length over the rates of all dofs of the tree."""
    rows = [[0.0] * mech.num_tree_dof for _ in actuators]
    for row, actuator in zip(rows, actuators, strict=True):
        for joint, gear in actuator.transmission.items():
            row[scalar_dof(mech, joint, actuator.name)] += gear
    return rows


def _joint_ranges(mech: Mechanism, joint_range: Mapping[str, Range]) -> list[Range]:
    """Limits of the total actuator force on each dof of the tree."""
    ranges: list[Range] = [UNLIMITED] * mech.num_tree_dof
    for joint, limits in joint_range.items():
        ranges[scalar_dof(mech, joint, "joint_range")] = limits
    return ranges


def _force_fields(mech: Mechanism, actuators: Sequence[Actuator]) -> dict[str, Any]:
    """Fields that determine the force of each actuator from its input."""
    droop = [a.stall / a.no_load_speed if a.has_curve else 0.0 for a in actuators]
    return {
        "gain": as_tensor(mech, [a.gain for a in actuators], 3),
        "bias": as_tensor(mech, [a.bias for a in actuators], 3),
        "control_range": as_tensor(mech, [a.control_range for a in actuators], 2),
        "force_range": as_tensor(mech, [a.force_range for a in actuators], 2),
        "stall": as_tensor(mech, [a.stall for a in actuators]),
        "droop": as_tensor(mech, droop),
        "efficiency": as_tensor(mech, [a.efficiency for a in actuators]),
        "has_curves": any(a.has_curve for a in actuators),
        "has_gears": any(a.efficiency < 1 for a in actuators),
    }


def _activation_fields(mech: Mechanism, actuators: Sequence[Actuator]) -> dict[str, Any]:
    """Fields of the activations."""
    states = [i for i, actuator in enumerate(actuators) if actuator.activation != "none"]
    activated = [actuators[i] for i in states]
    # The input of an actuator is its activation, or its control without one.
    inputs = list(range(len(actuators)))
    for index, i in enumerate(states):
        inputs[i] = len(actuators) + index
    return {
        "activation_names": tuple(a.name for a in activated),
        "time_constant": as_tensor(mech, [a.time_constant for a in activated]),
        "activation_range": as_tensor(mech, [a.activation_range for a in activated], 2),
        "states": _indices(mech, states),
        "inputs": _indices(mech, inputs),
        "filtered": _flags(mech, [a.activation != "integrator" for a in activated]),
        "exact": _flags(mech, [a.activation == "filterexact" for a in activated]),
        "early": _flags(mech, [a.early for a in activated]),
        "any_early": any(a.early for a in activated),
    }


def _flags(mech: Mechanism, values: Sequence[bool]) -> Tensor:
    return torch.tensor(values, dtype=torch.bool, device=mech.device)


def _indices(mech: Mechanism, values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=mech.device)


def check_changes(
    owner: Any, changes: Mapping[str, Tensor], what: str, parameters: Sequence[str]
) -> None:
    """Check that changed tensors are parameters and keep their last dimensions."""
    for name, value in changes.items():
        old = getattr(owner, name) if name in parameters else None
        if not isinstance(old, Tensor) or value.shape[value.ndim - old.ndim :] != old.shape:
            raise ShapeError(
                f"{name} of the {what} cannot be of shape {list(value.shape)}.",
                "A parameter keeps its last dimensions; batch dimensions precede them.",
                f"Change one of the parameters {', '.join(parameters)}, with its last dimensions.",
            )


def as_tensor(mech: Mechanism, values: Sequence[Any], *shape: int) -> Tensor:
    """Numbers of all actuators or tendons as a tensor `[n, *shape]` of the mechanism's dtype."""
    x = torch.tensor(values, dtype=mech.dtype, device=mech.device)
    return x.reshape(len(values), *shape)


def saturate(x: Tensor, limits: Tensor) -> Tensor:
    """Clamp numbers `[*, n]` to limits `[*, n, 2]`."""
    return torch.clamp(x, limits[..., 0], limits[..., 1])


def scalar_dof(mech: Mechanism, joint: str, of: str) -> int:
    """The dof of a joint, or of one motion of a compound joint, whose coordinate is a number."""
    k, part = mech.joint_place(joint)
    kind, dofs = mech.joints.kinds[k], mech.tree_dof_slice(mech.tree_joint_names[k])
    if not kind.vector or (part is None and kind.num_dof > 1):
        raise MechanismError(
            f"{of!r} acts on joint {joint!r}, which is {kind.name}.",
            "A transmission needs a joint with one coordinate, or one motion of a compound joint.",
            "Name such a joint, or apply the force as tau.",
        )
    return dofs.start + (part or 0)


def q_of_dof(mech: Mechanism) -> list[int]:
    """For each dof of the tree the index of its coordinate, or of its joint's first coordinate."""
    found = []
    for name, kind in zip(mech.tree_joint_names, mech.joints.kinds, strict=True):
        start = mech.tree_q_slice(name).start
        found += [start + (i if kind.vector else 0) for i in range(kind.num_dof)]
    return found
