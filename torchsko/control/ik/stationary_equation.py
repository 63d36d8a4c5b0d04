r"""Optimality condition of inverse kinematics: the gradient of half the squared error vanishes.

With multipliers of the errors :math:`e_2` of higher priorities, see `torchsko.control.ik.goal_set`,

.. math::
    -J_1^* e_1 - J_2^* \lambda = 0, \qquad e_2 = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchsko.control.ik.goal_set import GoalSet
from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.implicit.pseudo_inverse import symmetric_pinv
from torchsko.mechanism.manifold import integrate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import gather_entries, matvec
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
    found = padded.index_select(-1, torch.tensor(index, device=x.device))
    return found if mech.closing is None else gather_entries(found, mech.closing.own)


@dataclass(frozen=True, eq=False)
class StationaryEquation:
    """The optimality condition: an `Equation` of (solution, *parameters, *tensors).

    Its unknowns are q and the multipliers, and its residual has num_dof components and the errors of higher
    priorities, so the linear map between them is the pseudo-inverse of the Hessian on tangent steps. The
    equation of a dof at an active limit is that it stays there.

    Attributes:
        fixed: fields of the mechanism that are not parameters.
        goals: rows of the goals.
        limits: whether joint limits are enforced.
    """

    fixed: dict[str, Any]
    goals: GoalSet
    limits: bool

    @staticmethod
    def of(mech: Mechanism, goals: GoalSet, limits: bool) -> StationaryEquation:
        """The equation of a mechanism."""
        return StationaryEquation(fixed_fields(mech), goals, limits)

    def split(self, inputs: tuple[Tensor, ...]) -> tuple[Mechanism, tuple[Tensor, ...]]:
        """The mechanism with these parameters, and the tensors of the goals."""
        return split_mechanism(self.fixed, inputs[1:])

    def solution(self, *inputs: Tensor) -> Tensor:
        """The solution that the iterations found."""
        return inputs[0].clone()

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The gradient with respect to a tangent step, for an active limit the distance to it; and errors."""
        mech, tensors = self.split(inputs)
        q, multipliers = x[..., : mech.num_q], x[..., mech.num_q :]
        gradient, errors = self._gradient(mech, tensors, q, multipliers)
        if self.limits:
            low, high, position = (
                values_per_dof(mech, y, 0.0) for y in (mech.lower, mech.upper, q)
            )
            blocked = self._blocked(mech, tensors, q, gradient)
            limit = torch.where(gradient > 0, low, high)
            gradient = torch.where(blocked, position - limit, gradient)
        return torch.cat([gradient, errors], -1)

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """The change of the unknowns by the pseudo-inverse of the Hessian, or its adjoint."""
        mech, tensors = self.split(inputs)
        n, num_q = mech.num_dof, mech.num_q
        q, multipliers = x[..., :num_q], x[..., num_q:]
        zero = x.new_zeros(*x.shape[:-1], n)

        def integrated(step: Tensor) -> tuple[Tensor]:
            return (integrate(mech, q, step),)

        def gradient_after(step: Tensor) -> tuple[Tensor]:
            return (self._gradient(mech, tensors, integrate(mech, q, step), multipliers)[0],)

        basis = torch.eye(n, dtype=x.dtype, device=x.device)
        basis = basis.reshape(n, *(1 for _ in x.shape[:-1]), n).expand(n, *zero.shape)
        (rows,) = jvp_by_double_vjp(gradient_after, (torch.zeros_like(basis),), (basis,))
        H = rows.movedim(0, -1)
        if (free := self.goals.num_free) < self.goals.num_rows:
            J = self.goals.linearized(mech, tensors, q)[1][..., free:, :]
            corner = J.new_zeros(*J.shape[:-1], J.shape[-2])
            H = torch.cat([torch.cat([H, -J.mT], -1), torch.cat([-J, corner], -1)], -2)
        if transposed:
            (step,) = torch.func.vjp(integrated, zero)[1]((rhs[..., :num_q],))
            rhs = torch.cat([step, rhs[..., num_q:]], -1)
            return self._inverse(mech, tensors, x, H, rhs, True)
        found = self._inverse(mech, tensors, x, H, rhs, False)
        (change,) = jvp_by_double_vjp(integrated, (zero,), (found[..., :n],))
        return torch.cat([change, found[..., n:]], -1)

    def _gradient(
        self, mech: Mechanism, tensors: Sequence[Tensor], q: Tensor, multipliers: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradient of the Lagrangian, and the errors of higher priorities."""
        e, J = self.goals.linearized(mech, tensors, q)
        k = self.goals.num_free
        force = torch.cat([e[..., :k], multipliers.expand(*e.shape[:-1], -1)], -1)
        return -matvec(J.mT, force), e[..., k:]

    def _blocked(
        self, mech: Mechanism, tensors: Sequence[Tensor], q: Tensor, gradient: Tensor
    ) -> Tensor:
        """Dofs at an active limit; none where the goals are reached and the force is rounding error."""
        e = self.goals.error(mech, tensors, q)
        unreached = (e * e).sum(-1, keepdim=True) > torch.finfo(q.dtype).eps
        return blocked_dofs(mech, q, -gradient) & unreached

    def _inverse(
        self,
        mech: Mechanism,
        tensors: Sequence[Tensor],
        x: Tensor,
        H: Tensor,
        rhs: Tensor,
        transposed: bool,
    ) -> Tensor:
        """The step of the unknowns, or its adjoint; dofs at active limits follow their limits."""
        if not self.limits:
            return matvec(_pseudo_inverse(H), rhs)
        q, multipliers = x[..., : mech.num_q], x[..., mech.num_q :]
        gradient, errors = self._gradient(mech, tensors, q, multipliers)
        blocked = self._blocked(mech, tensors, q, gradient)
        blocked = torch.cat([blocked, torch.zeros_like(errors, dtype=torch.bool)], -1)
        free = torch.where(blocked[..., None] | blocked[..., None, :], 0.0, H)
        inverse = _pseudo_inverse(free)
        fixed = torch.where(blocked, rhs, 0.0)
        if transposed:
            step = matvec(inverse, rhs - fixed)
            return step + torch.where(blocked, rhs - matvec(H.mT, step), 0.0)
        return fixed + matvec(inverse, rhs - fixed - torch.where(blocked, 0.0, matvec(H, fixed)))


def _pseudo_inverse(H: Tensor) -> Tensor:
    """Pseudo-inverse of symmetric matrices; nan for a matrix that is not finite."""
    finite = H.sum((-2, -1)).isfinite()[..., None, None]
    identity = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    rank = torch.finfo(compute_dtype(H)).eps ** 0.6
    safe = torch.where(finite, H, identity)
    inverse = symmetric_pinv(safe, rank_tolerance=rank)
    return torch.where(finite, inverse, torch.nan)
