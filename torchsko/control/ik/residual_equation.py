"""Optimality condition of inverse kinematics: the gradient of half the squared error vanishes.

See `torchsko.control.ik.inverse_kinematics` for the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchsko.control.ik.pose_targets import TargetSpec, error_at, jacobian_at
from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.implicit.pseudo_inverse import symmetric_pinv
from torchsko.mechanism.manifold import integrate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import matvec
from torchsko.verbs.mechanism_inputs import fixed_fields, split_mechanism


def blocked_dofs(mech: Mechanism, q: Tensor, pull: Tensor) -> Tensor:
    """Dofs at a limit that the force `pull` `[*batch, num_dof]` pushes against it.

    Only joints with vector coordinates have limits.
    """
    lower, upper = (
        values_per_dof(mech, x, torch.inf * sign) for x, sign in ((mech.lower, -1), (mech.upper, 1))
    )
    position = values_per_dof(mech, q, 0.0)
    return ((position <= lower) & (pull < 0)) | ((position >= upper) & (pull > 0))


def values_per_dof(mech: Mechanism, x: Tensor, fill: float) -> Tensor:
    """Values per dof, `[*batch, num_dof]`, from values per coordinate; `fill` at joints without a vector."""
    kinds = mech.joints.kinds
    places, start = [], 0
    for k in mech.independent_joints:
        size = kinds[k].num_q
        dofs = list(range(start, start + size)) if kinds[k].vector else [-1] * kinds[k].num_dof
        places, start = places + dofs, start + size
    padded = torch.nn.functional.pad(x, (0, 1), value=fill)
    index = [mech.num_q if i < 0 else i for i in places]
    return padded.index_select(-1, torch.tensor(index, device=x.device))


@dataclass(frozen=True, eq=False)
class StationaryEquation:
    """The gradient of half the squared error vanishes: an `Equation` of (solution, *parameters, *targets).

    Its unknown is q, and its residual has num_dof components, so the linear map between them is the
    pseudo-inverse of the Hessian on tangent steps. The equation of a dof at an active limit is that it stays
    there.

    Attributes:
        fixed: fields of the mechanism that are not parameters.
        goals: frames and weights of the targets.
        limits: whether joint limits are enforced.
    """

    fixed: dict[str, Any]
    goals: TargetSpec
    limits: bool

    @staticmethod
    def of(mech: Mechanism, goals: TargetSpec, limits: bool) -> StationaryEquation:
        """The equation of a mechanism."""
        return StationaryEquation(fixed_fields(mech), goals, limits)

    def split(self, inputs: tuple[Tensor, ...]) -> tuple[Mechanism, tuple[Tensor, ...]]:
        """The mechanism with these parameters, and the targets."""
        return split_mechanism(self.fixed, inputs[1:])

    def solution(self, *inputs: Tensor) -> Tensor:
        """The solution that the iterations found."""
        return inputs[0].clone()

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The gradient with respect to a tangent step; for an active limit, the distance to it."""
        mech, targets = self.split(inputs)
        gradient = self._gradient(mech, targets, x)
        if not self.limits:
            return gradient
        low, high, position = (values_per_dof(mech, y, 0.0) for y in (mech.lower, mech.upper, x))
        blocked = self._blocked(mech, targets, x, gradient)
        return torch.where(blocked, position - torch.where(gradient > 0, low, high), gradient)

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """The change of q by the pseudo-inverse of the Hessian, or its adjoint."""
        mech, targets = self.split(inputs)
        zero = x.new_zeros(*x.shape[:-1], mech.num_dof)

        def integrated(step: Tensor) -> tuple[Tensor]:
            return (integrate(mech, x, step),)

        def gradient_after(step: Tensor) -> tuple[Tensor]:
            return (self._gradient(mech, targets, integrate(mech, x, step)),)

        n = mech.num_dof
        basis = torch.eye(n, dtype=x.dtype, device=x.device)
        basis = basis.reshape(n, *(1 for _ in x.shape[:-1]), n).expand(n, *zero.shape)
        (rows,) = jvp_by_double_vjp(gradient_after, (torch.zeros_like(basis),), (basis,))
        H = rows.movedim(0, -1)
        if transposed:
            (step,) = torch.func.vjp(integrated, zero)[1]((rhs,))
            return self._inverse(mech, targets, x, H, step, True)
        (change,) = jvp_by_double_vjp(
            integrated, (zero,), (self._inverse(mech, targets, x, H, rhs, False),)
        )
        return change

    def _gradient(self, mech: Mechanism, targets: Sequence[Tensor], q: Tensor) -> Tensor:
        e, J = error_at(mech, self.goals, targets, q), jacobian_at(mech, self.goals, q)
        return -matvec(J.mT, e)

    def _blocked(
        self, mech: Mechanism, targets: Sequence[Tensor], q: Tensor, gradient: Tensor
    ) -> Tensor:
        """Dofs at an active limit; none where the targets are reached and the force is rounding error."""
        e = error_at(mech, self.goals, targets, q)
        unreached = (e * e).sum(-1, keepdim=True) > torch.finfo(q.dtype).eps
        return blocked_dofs(mech, q, -gradient) & unreached

    def _inverse(
        self,
        mech: Mechanism,
        targets: Sequence[Tensor],
        x: Tensor,
        H: Tensor,
        rhs: Tensor,
        transposed: bool,
    ) -> Tensor:
        """The tangent step, or its adjoint; dofs at active limits follow their limits."""
        if not self.limits:
            return matvec(_pseudo_inverse(mech, H), rhs)
        blocked = self._blocked(mech, targets, x, self._gradient(mech, targets, x))
        free = torch.where(blocked[..., None] | blocked[..., None, :], 0.0, H)
        inverse = _pseudo_inverse(mech, free)
        fixed = torch.where(blocked, rhs, 0.0)
        if transposed:
            step = matvec(inverse, rhs - fixed)
            return step + torch.where(blocked, rhs - matvec(H.mT, step), 0.0)
        return fixed + matvec(inverse, rhs - fixed - torch.where(blocked, 0.0, matvec(H, fixed)))


def _pseudo_inverse(mech: Mechanism, H: Tensor) -> Tensor:
    """Pseudo-inverse of symmetric matrices; nan for a matrix that is not finite."""
    finite = H.sum((-2, -1)).isfinite()[..., None, None]
    identity = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    rank = torch.finfo(compute_dtype(H)).eps ** 0.6
    safe = torch.where(finite, H, identity)
    inverse = symmetric_pinv(safe, rank_tolerance=rank)
    return torch.where(finite, inverse, torch.nan)
