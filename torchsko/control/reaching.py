"""What inverse kinematics solves: errors of frames, their Jacobian, and the equation that defines q.

See `torchsko.control.inverse_kinematics` for the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.implicit.products import tangents_along
from torchsko.mechanism.given import check_placement
from torchsko.mechanism.joints.configuration import integrate
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.mechanism.verb import MechanismLike
from torchsko.spatial.rotation import matrix_log
from torchsko.verbs.frame import with_frames
from torchsko.verbs.frames import frame_jacobian, frame_pose

_FIXED = tuple(field.name for field in fields(Mechanism) if field.name not in PARAMETERS)


@dataclass(frozen=True)
class Goals:
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

    def batches(self, targets: Sequence[Tensor]) -> list[torch.Size]:
        """Batch dimensions of targets."""
        pairs = zip(targets, self.shapes, strict=True)
        return [x.shape[: x.ndim - len(shape)] for x, shape in pairs]


def goals_of(
    mech: Mechanism, targets: Mapping[Any, Any], weights: Mapping[Any, tuple[float, float]] | None
) -> tuple[Mechanism, Goals, list[Tensor]]:
    """Targets as users write them, taken apart; and the mechanism with frames on the go among its own.

    Raises:
        MechanismError: on an unknown frame, no targets, or weights of a frame without a target.
        ShapeError: when a target does not fit.
    """
    _check_mappings(targets, weights)
    frames, weights = tuple(targets), weights or {}
    mech, numbers = with_frames(mech, frames)
    for name in weights:
        if name not in targets:
            raise MechanismError(unknown_name("target", name, tuple(map(str, frames))))
    parts, tensors, factors = [], [], []
    for frame in frames:
        pair = pair_of(frame, targets[frame])
        parts.append((pair[0] is not None, pair[1] is not None))
        for x, shape, what, weight in zip(
            pair,
            ((3, 3), (3,)),
            ("rotation", "position"),
            weights.get(frame, (1.0, 1.0)),
            strict=True,
        ):
            if x is not None:
                told = f"{what} of the target of {frame!r}"
                check_placement(mech, told, x, shape)
                check_rotation(told, x) if what == "rotation" else check_position(told, x)
                tensors.append(x)
                factors += [float(weight)] * 3
    if not any(factors):
        raise MechanismError(
            f"the weights are {dict(weights)!r}.\nNo error of any frame counts: everything would fit.\n"
            "Give one rotation or position a factor above 0."
        )
    names = tuple(mech.frame_names[k] for k in numbers)
    return mech, Goals(names, tuple(parts), tuple(factors)), tensors


def _check_mappings(targets: Any, weights: Any) -> None:
    """Refuse what does not say by frame where it shall be, or how much that counts."""
    if not isinstance(targets, Mapping):
        raise MechanismError(
            f"targets was given as {type(targets).__name__}.\n"
            "It says by frame where that shall be.\n"
            "Pass {frame: pose}, with pose = (rotation, position), or a position."
        )
    if weights is not None and not isinstance(weights, Mapping):
        raise MechanismError(
            f"weights was given as {type(weights).__name__}.\n"
            "It says by frame how much errors count.\n"
            "Pass {frame: (of rotation, of position)}."
        )
    for name, pair in (weights or {}).items():
        numbers = isinstance(pair, Sequence) and len(pair) == 2
        if not numbers or not all(isinstance(x, (int, float)) and x >= 0 for x in pair):
            raise MechanismError(
                f"the weights of {name!r} are {pair!r}.\n"
                "Errors in rotation and in position have a factor each, not negative.\n"
                f"Pass {{{name!r}: (1.0, 1.0)}}, say."
            )


def pair_of(frame: Any, target: Any) -> tuple[Any, Any]:
    """Rotation and position of a frame's target; None for what does not count.

    Raises:
        ShapeError: when it is neither a pair nor a tensor.
    """
    pair = (None, target) if isinstance(target, Tensor) else target
    if not isinstance(pair, Sequence) or len(pair) != 2 or all(x is None for x in pair):
        raise ShapeError(
            f"the target of frame {frame!r} is {target!r}.\n"
            "It is a pose: a rotation and a position, or one of them and None.\n"
            "Pass (rotation, position), (None, position), or a position, as tensors."
        )
    return pair[0], pair[1]


def error_at(mech: MechanismLike, goals: Goals, targets: Sequence[Tensor], q: Tensor) -> Tensor:
    """The weighted errors of all frames in their own axes, `[*batch, m]`."""
    pose = frame_pose(mech, q, goals.frames)
    left, found = iter(targets), []
    for k, (turned, placed) in enumerate(goals.parts):
        R, r = pose.rotation[..., k, :, :], pose.position[..., k, :]
        if turned:
            found.append(matrix_log(R.mT @ next(left)))
        if placed:
            found.append((R.mT @ (next(left) - r)[..., None])[..., 0])
    batch = torch.broadcast_shapes(*(x.shape[:-1] for x in found))
    e = torch.cat([x.expand(*batch, 3) for x in found], -1)
    return e * e.new_tensor(goals.weights)


def jacobian_at(mech: MechanismLike, goals: Goals, q: Tensor) -> Tensor:
    """What takes a small step to the change of minus the errors where they vanish, `[*batch, m, n]`."""
    J = frame_jacobian(mech, q, goals.frames).flatten(-3, -2)
    if len(goals.rows) < J.shape[-2]:
        J = J.index_select(-2, torch.tensor(goals.rows, device=q.device))
    return J * J.new_tensor(goals.weights)[:, None]


def stopped_dofs(mech: Mechanism, q: Tensor, pull: Tensor) -> Tensor:
    """Which dofs a limit stops that are pulled along `pull` `[*batch, num_dof]`.

    Only those of joints whose coordinates are a vector: others have no limits.
    """
    low, high = (
        dofs_of(mech, x, torch.inf * sign) for x, sign in ((mech.lower, -1), (mech.upper, 1))
    )
    at = dofs_of(mech, q, 0.0)
    return ((at <= low) & (pull < 0)) | ((at >= high) & (pull > 0))


def dofs_of(mech: Mechanism, x: Tensor, other: float) -> Tensor:
    """Of numbers per coordinate those per dof, `[*batch, num_dof]`; `other` off vectors."""
    kinds = mech.joints.kinds
    places, start = [], 0
    for k in mech.independent_joints:
        size = kinds[k].num_q
        own = list(range(start, start + size)) if kinds[k].vector else [-1] * kinds[k].num_dof
        places, start = places + own, start + size
    padded = torch.nn.functional.pad(x, (0, 1), value=other)
    index = [mech.num_q if i < 0 else i for i in places]
    return padded.index_select(-1, torch.tensor(index, device=x.device))


@dataclass(frozen=True, eq=False)
class Reaching:
    """The gradient of half the squared error vanishes; an `Equation` of (found, *parameters, *targets).

    Its unknown is q, and its residual has num_dof components: what leads from one to the other is the
    pseudo-inverse of the Hessian, as a map of tangent steps. Where a limit stops a dof, its equation is that
    it is at the limit.

    Attributes:
        fixed: fields of the mechanism that are no parameters.
        goals: which frames, and what of them counts.
        limits: whether limits hold.
    """

    fixed: dict[str, Any]
    goals: Goals
    limits: bool

    @staticmethod
    def of(mech: Mechanism, goals: Goals, limits: bool) -> Reaching:
        """The equation of a mechanism."""
        return Reaching({name: getattr(mech, name) for name in _FIXED}, goals, limits)

    def split(self, inputs: tuple[Tensor, ...]) -> tuple[Mechanism, tuple[Tensor, ...]]:
        """The mechanism with these parameters, and the targets."""
        named: dict[str, Any] = dict(zip(PARAMETERS, inputs[1:], strict=False))
        return Mechanism(**self.fixed, **named), inputs[1 + len(named) :]

    def solution(self, *inputs: Tensor) -> Tensor:
        """What was found before."""
        return inputs[0].clone()

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The gradient to a tangent step; at a limit the way beyond it."""
        mech, targets = self.split(inputs)
        gradient = self._gradient(mech, targets, x)
        if not self.limits:
            return gradient
        low, high, at = (dofs_of(mech, y, 0.0) for y in (mech.lower, mech.upper, x))
        stopped = stopped_dofs(mech, x, -gradient)
        return torch.where(stopped, at - torch.where(gradient > 0, low, high), gradient)

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """The change of q by the pseudo-inverse of the Hessian, or the adjoint of that."""
        mech, targets = self.split(inputs)
        zero = x.new_zeros(*x.shape[:-1], mech.num_dof)

        def moved(step: Tensor) -> tuple[Tensor]:
            return (integrate(mech, x, step),)

        def turned(step: Tensor) -> tuple[Tensor]:
            return (self._gradient(mech, targets, integrate(mech, x, step)),)

        n = mech.num_dof
        units = torch.eye(n, dtype=x.dtype, device=x.device)
        units = units.reshape(n, *(1 for _ in x.shape[:-1]), n).expand(n, *zero.shape)
        (rows,) = tangents_along(turned, (torch.zeros_like(units),), (units,))
        H = rows.movedim(0, -1)
        if transposed:
            (step,) = torch.func.vjp(moved, zero)[1]((rhs,))
            return self._inverse(mech, targets, x, H, step, True)
        (change,) = tangents_along(
            moved, (zero,), (self._inverse(mech, targets, x, H, rhs, False),)
        )
        return change

    def _gradient(self, mech: Mechanism, targets: Sequence[Tensor], q: Tensor) -> Tensor:
        e, J = error_at(mech, self.goals, targets, q), jacobian_at(mech, self.goals, q)
        return -(J.mT @ e[..., None])[..., 0]

    def _inverse(
        self,
        mech: Mechanism,
        targets: Sequence[Tensor],
        x: Tensor,
        H: Tensor,
        rhs: Tensor,
        transposed: bool,
    ) -> Tensor:
        """The tangent step, or its adjoint, with stopped dofs where their limits are."""
        rank = torch.finfo(x.dtype).eps ** 0.6
        if not self.limits:
            return _times(torch.linalg.pinv(H, rtol=rank, hermitian=True), rhs)
        stopped = stopped_dofs(mech, x, -self._gradient(mech, targets, x))
        free = torch.where(stopped[..., None] | stopped[..., None, :], 0.0, H)
        inverse = torch.linalg.pinv(free, rtol=rank, hermitian=True)
        held = torch.where(stopped, rhs, 0.0)
        if transposed:
            step = _times(inverse, rhs - held)
            return step + torch.where(stopped, rhs - _times(H.mT, step), 0.0)
        return held + _times(inverse, rhs - held - torch.where(stopped, 0.0, _times(H, held)))


def _times(A: Tensor, x: Tensor) -> Tensor:
    return (A @ x[..., None])[..., 0]
