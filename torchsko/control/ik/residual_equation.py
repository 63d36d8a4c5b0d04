"""The equation that inverse kinematics solves: the gradient of half the squared error vanishes.

See `torchsko.control.ik.inverse_kinematics` for the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from torchsko.control.ik.targets import TargetSpec, error_at, jacobian_at
from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.mechanism.joints.configuration import integrate
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.utils.shapes import matvec

_FIXED = tuple(field.name for field in fields(Mechanism) if field.name not in PARAMETERS)


def blocked_dofs(mech: Mechanism, q: Tensor, pull: Tensor) -> Tensor:
    """Which dofs a limit stops that are pulled along `pull` `[*batch, num_dof]`.

    Only those of joints whose coordinates are a vector: others have no limits.
    """
    low, high = (
        values_per_dof(mech, x, torch.inf * sign) for x, sign in ((mech.lower, -1), (mech.upper, 1))
    )
    at = values_per_dof(mech, q, 0.0)
    return ((at <= low) & (pull < 0)) | ((at >= high) & (pull > 0))


def values_per_dof(mech: Mechanism, x: Tensor, other: float) -> Tensor:
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
class StationaryEquation:
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
    goals: TargetSpec
    limits: bool

    @staticmethod
    def of(mech: Mechanism, goals: TargetSpec, limits: bool) -> StationaryEquation:
        """The equation of a mechanism."""
        return StationaryEquation({name: getattr(mech, name) for name in _FIXED}, goals, limits)

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
        low, high, at = (values_per_dof(mech, y, 0.0) for y in (mech.lower, mech.upper, x))
        stopped = self._stopped(mech, targets, x, gradient)
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
        (rows,) = jvp_by_double_vjp(turned, (torch.zeros_like(units),), (units,))
        H = rows.movedim(0, -1)
        if transposed:
            (step,) = torch.func.vjp(moved, zero)[1]((rhs,))
            return self._inverse(mech, targets, x, H, step, True)
        (change,) = jvp_by_double_vjp(
            moved, (zero,), (self._inverse(mech, targets, x, H, rhs, False),)
        )
        return change

    def _gradient(self, mech: Mechanism, targets: Sequence[Tensor], q: Tensor) -> Tensor:
        e, J = error_at(mech, self.goals, targets, q), jacobian_at(mech, self.goals, q)
        return -matvec(J.mT, e)

    def _stopped(
        self, mech: Mechanism, targets: Sequence[Tensor], q: Tensor, gradient: Tensor
    ) -> Tensor:
        """Dofs that a limit stops; none where the targets are reached, and the pull is but rounding."""
        e = error_at(mech, self.goals, targets, q)
        pulled = (e * e).sum(-1, keepdim=True) > torch.finfo(q.dtype).eps
        return blocked_dofs(mech, q, -gradient) & pulled

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
        if not self.limits:
            return matvec(_pseudo_inverse(H), rhs)
        stopped = self._stopped(mech, targets, x, self._gradient(mech, targets, x))
        free = torch.where(stopped[..., None] | stopped[..., None, :], 0.0, H)
        inverse = _pseudo_inverse(free)
        held = torch.where(stopped, rhs, 0.0)
        if transposed:
            step = matvec(inverse, rhs - held)
            return step + torch.where(stopped, rhs - matvec(H.mT, step), 0.0)
        return held + matvec(inverse, rhs - held - torch.where(stopped, 0.0, matvec(H, held)))


def _pseudo_inverse(H: Tensor) -> Tensor:
    """Of symmetric matrices; nan for one that is not finite, which would end the whole batch."""
    usable = H.sum((-2, -1)).isfinite()[..., None, None]
    identity = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    rank = torch.finfo(H.dtype).eps ** 0.6
    found = torch.linalg.pinv(torch.where(usable, H, identity), rtol=rank, hermitian=True)
    return torch.where(usable, found, torch.nan)
