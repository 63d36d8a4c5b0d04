"""Targets of inverse kinematics: parsing, pose errors and their Jacobian.

See `torchsko.control.ik.inverse_kinematics` for the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchsko.control.joint_space.gains import Batches, is_nonnegative
from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.mechanism.validation import check_placement
from torchsko.spatial.rotation import matrix_log
from torchsko.utils.shapes import concatenate, matvec
from torchsko.verbs.frame import Frame, with_frames
from torchsko.verbs.frames import frame_jacobian, frame_pose


@dataclass(frozen=True)
class TargetSpec:
    """Frames of the targets, and the components of their errors that count. The poses are separate tensors.

    Attributes:
        frames: names of the frames.
        parts: for each frame, whether its rotation and its position count.
        weights: factors of all components of the error, m numbers.
    """

    frames: tuple[str, ...]
    parts: tuple[tuple[bool, bool], ...]
    weights: tuple[float, ...]

    @property
    def rows(self) -> list[int]:
        """Indices of the components of [rotation; position] of all frames that count."""
        return [
            6 * k + 3 * half + i
            for k, part in enumerate(self.parts)
            for half in (0, 1)
            if part[half]
            for i in range(3)
        ]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the target tensors of one sample."""
        pose = ((3, 3), (3,))
        return [pose[half] for part in self.parts for half in (0, 1) if part[half]]


def parse_targets(
    mech: Mechanism, targets: Mapping[Any, Any], weights: Mapping[Any, tuple[float, float]] | None
) -> tuple[Mechanism, TargetSpec, list[Tensor], Batches]:
    """Check targets and weights, and convert them to a specification and tensors.

    Returns:
        The mechanism with all frames of the targets, the specification, the target tensors, and their batch
        dimensions by the names that errors use.

    Returns:
        The mechanism with all frames of the targets, the specification, the target tensors, and their batch
        dimensions by the names that errors use.
    """
    _check_mappings(targets, weights)
    frames, weights = tuple(targets), weights or {}
    mech, numbers = with_frames(mech, frames)
    for name in weights:
        if name not in targets:
            raise MechanismError(*unknown_name("target", name, tuple(map(str, frames))))
    parts, tensors, factors = [], [], []
    batches: Batches = {}
    for k, frame in enumerate(frames):
        pair = target_pair(frame, targets[frame])
        called = f"Frame {k} on {frame.body!r}" if isinstance(frame, Frame) else repr(frame)
        parts.append((pair[0] is not None, pair[1] is not None))
        for x, shape, what, weight in zip(
            pair,
            ((3, 3), (3,)),
            ("rotation", "position"),
            weights.get(frame, (1.0, 1.0)),
            strict=True,
        ):
            if x is not None:
                label = f"{what} of the target of {called}"
                batches[f"the {label}"] = check_placement(mech, label, x, shape)
                check_rotation(label, x) if what == "rotation" else check_position(label, x)
                tensors.append(x)
                factors += [float(weight)] * 3
    if not any(factors):
        raise MechanismError(
            f"the weights are {dict(weights)!r}.",
            "The error would be zero everywhere.",
            "Give at least one rotation or position a weight above 0.",
        )
    names = tuple(mech.frame_names[k] for k in numbers)
    return mech, TargetSpec(names, tuple(parts), tuple(factors)), tensors, batches


def _check_mappings(targets: Any, weights: Any) -> None:
    """Check that targets and weights are mappings by frame."""
    if not isinstance(targets, Mapping):
        raise MechanismError(
            f"targets was given as {type(targets).__name__}.",
            "It maps frames to poses.",
            "Pass {frame: pose}, with pose = (rotation, position), or a position.",
        )
    if not targets:
        raise MechanismError(
            "targets is empty.",
            "Inverse kinematics needs at least one target.",
            "Pass {frame: pose}, with pose = (rotation, position), or a position.",
        )
    if weights is not None and not isinstance(weights, Mapping):
        raise MechanismError(
            f"weights was given as {type(weights).__name__}.",
            "It maps frames to pairs of weights.",
            "Pass {frame: (rotation_weight, position_weight)}.",
        )
    for name, pair in (weights or {}).items():
        numbers = isinstance(pair, Sequence) and len(pair) == 2
        if not numbers or not all(isinstance(x, (int, float)) and is_nonnegative(x) for x in pair):
            raise MechanismError(
                f"the weights of {name!r} are {pair!r}.",
                "Rotation and position errors each have a finite weight of 0 or more.",
                f"Pass {{{name!r}: (1.0, 1.0)}}, say.",
            )


def target_pair(frame: Any, target: Any) -> tuple[Any, Any]:
    """Rotation and position of a frame's target; None for a part that does not count."""
    pair = (None, target) if isinstance(target, Tensor) else target
    if not isinstance(pair, Sequence) or len(pair) != 2 or all(x is None for x in pair):
        raise ShapeError(
            f"the target of frame {frame!r} is {target!r}.",
            "A target is a pair of rotation and position, one of which may be None.",
            "Pass (rotation, position), (None, position), or a position, as tensors.",
        )
    return pair[0], pair[1]


def error_at(
    mech: MechanismLike, goals: TargetSpec, targets: Sequence[Tensor], q: Tensor
) -> Tensor:
    """Weighted errors of all frames in their own axes, `[*batch, m]`."""
    pose = frame_pose(mech, q, goals.frames)
    remaining, errors = iter(targets), []
    for k, (has_rotation, has_position) in enumerate(goals.parts):
        R, r = pose.rotation[..., k, :, :], pose.position[..., k, :]
        if has_rotation:
            errors.append(matrix_log(R.mT @ next(remaining)))
        if has_position:
            errors.append(matvec(R.mT, next(remaining) - r))
    e = concatenate(errors)
    return e * e.new_tensor(goals.weights)


def jacobian_at(mech: MechanismLike, goals: TargetSpec, q: Tensor) -> Tensor:
    """Minus the Jacobian of the errors where they vanish, with weights, `[*batch, m, num_dof]`."""
    J = frame_jacobian(mech, q, goals.frames).flatten(-3, -2)
    if len(goals.rows) < J.shape[-2]:
        J = J.index_select(-2, torch.tensor(goals.rows, device=q.device))
    return J * J.new_tensor(goals.weights)[:, None]
