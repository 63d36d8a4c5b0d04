"""What inverse kinematics is asked for: where frames shall be, and their errors with the Jacobian of these.

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
    """Which frames shall be somewhere, and what of them counts; targets are tensors besides.

    Attributes:
        frames: of the targets.
        parts: for each frame whether its rotation and its position count.
        weights: of every component of the error, m numbers.
    """

    frames: tuple[str, ...]
    parts: tuple[tuple[bool, bool], ...]
    weights: tuple[float, ...]

    @property
    def rows(self) -> list[int]:
        """Components of [rotation; position] of all frames, one after the other, that count."""
        return [
            6 * k + 3 * half + i
            for k, part in enumerate(self.parts)
            for half in (0, 1)
            if part[half]
            for i in range(3)
        ]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the targets for one sample."""
        both = ((3, 3), (3,))
        return [both[half] for part in self.parts for half in (0, 1) if part[half]]


def parse_targets(
    mech: Mechanism, targets: Mapping[Any, Any], weights: Mapping[Any, tuple[float, float]] | None
) -> tuple[Mechanism, TargetSpec, list[Tensor], Batches]:
    """Targets as users write them, taken apart.

    Returns:
        The mechanism with frames on the go among its own, what counts, the targets as tensors, and the batch
        dimensions of these by what errors call them.

    Raises:
        MechanismError: on an unknown frame, no targets, or weights of a frame without a target.
        ShapeError: when a target does not fit.
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
                told = f"{what} of the target of {called}"
                batches[f"the {told}"] = check_placement(mech, told, x, shape)
                check_rotation(told, x) if what == "rotation" else check_position(told, x)
                tensors.append(x)
                factors += [float(weight)] * 3
    if not any(factors):
        raise MechanismError(
            f"the weights are {dict(weights)!r}.",
            "No error of any frame counts: everything would fit.",
            "Give one rotation or position a factor above 0.",
        )
    names = tuple(mech.frame_names[k] for k in numbers)
    return mech, TargetSpec(names, tuple(parts), tuple(factors)), tensors, batches


def _check_mappings(targets: Any, weights: Any) -> None:
    """Refuse what does not say by frame where it shall be, or how much that counts."""
    if not isinstance(targets, Mapping):
        raise MechanismError(
            f"targets was given as {type(targets).__name__}.",
            "It says by frame where that shall be.",
            "Pass {frame: pose}, with pose = (rotation, position), or a position.",
        )
    if not targets:
        raise MechanismError(
            "targets={} names no frames.",
            "Nothing says what shall be where.",
            "Pass {frame: pose}, with pose = (rotation, position), or a position.",
        )
    if weights is not None and not isinstance(weights, Mapping):
        raise MechanismError(
            f"weights was given as {type(weights).__name__}.",
            "It says by frame how much errors count.",
            "Pass {frame: (of rotation, of position)}.",
        )
    for name, pair in (weights or {}).items():
        numbers = isinstance(pair, Sequence) and len(pair) == 2
        if not numbers or not all(isinstance(x, (int, float)) and is_nonnegative(x) for x in pair):
            raise MechanismError(
                f"the weights of {name!r} are {pair!r}.",
                "Errors in rotation and in position have a factor each, finite and not negative.",
                f"Pass {{{name!r}: (1.0, 1.0)}}, say.",
            )


def target_pair(frame: Any, target: Any) -> tuple[Any, Any]:
    """Rotation and position of a frame's target; None for what does not count.

    Raises:
        ShapeError: when it is neither a pair nor a tensor.
    """
    pair = (None, target) if isinstance(target, Tensor) else target
    if not isinstance(pair, Sequence) or len(pair) != 2 or all(x is None for x in pair):
        raise ShapeError(
            f"the target of frame {frame!r} is {target!r}.",
            "It is a pose: a rotation and a position, or one of them and None.",
            "Pass (rotation, position), (None, position), or a position, as tensors.",
        )
    return pair[0], pair[1]


def error_at(
    mech: MechanismLike, goals: TargetSpec, targets: Sequence[Tensor], q: Tensor
) -> Tensor:
    """The weighted errors of all frames in their own axes, `[*batch, m]`."""
    pose = frame_pose(mech, q, goals.frames)
    left, found = iter(targets), []
    for k, (turned, placed) in enumerate(goals.parts):
        R, r = pose.rotation[..., k, :, :], pose.position[..., k, :]
        if turned:
            found.append(matrix_log(R.mT @ next(left)))
        if placed:
            found.append(matvec(R.mT, next(left) - r))
    e = concatenate(found)
    return e * e.new_tensor(goals.weights)


def jacobian_at(mech: MechanismLike, goals: TargetSpec, q: Tensor) -> Tensor:
    """What takes a small step to the change of minus the errors where they vanish, `[*batch, m, n]`."""
    J = frame_jacobian(mech, q, goals.frames).flatten(-3, -2)
    if len(goals.rows) < J.shape[-2]:
        J = J.index_select(-2, torch.tensor(goals.rows, device=q.device))
    return J * J.new_tensor(goals.weights)[:, None]
