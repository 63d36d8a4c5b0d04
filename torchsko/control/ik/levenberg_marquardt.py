r"""Levenberg-Marquardt iterations of inverse kinematics, independent for every sample.

.. math::
    (J^* W^2 J + \mu |We|^2)\, \delta = J^* W^2 e .

A damping proportional to the squared error keeps quadratic convergence where solutions are not unique.

Reference: N. Yamashita, M. Fukushima, *On the rate of convergence of the Levenberg-Marquardt method*,
Computing Supplement 15, 2001 (the damping).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.control.ik.pose_targets import TargetSpec, error_at, jacobian_at
from torchsko.control.ik.residual_equation import blocked_dofs
from torchsko.implicit.loop import iterate
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.linalg.symmetric import spd_solve
from torchsko.mechanism.configuration import within_limits
from torchsko.mechanism.dispatch import MechanismLike, MechanismSource
from torchsko.mechanism.manifold import integrate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import matvec

START, LOWER, HIGHER = 0.1, 0.3, 4.0
"""Initial damping, in units of the squared error; its factors after a successful and an unsuccessful step."""

MAX_KERNEL_EQUATIONS = 24
"""Largest number of equations of a step for which all iterations are one kernel. The code of an unrolled
factorization grows with the cube of this number."""


class IKResult(NamedTuple):
    """Result of `inverse_kinematics`.

    Attributes:
        q: configurations, `[*batch, num_q]`; differentiable.
        residual: weighted errors of the targets in their order, rotation [rad] before position [m], in the
            axes of each frame, `[*batch, m]`; differentiable.
        converged: whether the norm of the residual is below the tolerance, `[*batch]`.
        iterations: number of iterations until convergence, int64 `[*batch]`; a real number in a function of
            `torchsko.fuse`.
    """

    q: Tensor
    residual: Tensor
    converged: Tensor
    iterations: Tensor


State = tuple[Tensor, ...]
"""Configuration, errors, their Jacobian, squared error and damping; and as numbers the iterations taken,
whether the tolerance is met, and whether the sample is finished."""


@dataclass(frozen=True)
class LevenbergMarquardt:
    """The Levenberg-Marquardt method for the targets of inverse kinematics.

    Attributes:
        goals: frames and weights of the targets.
        limits: whether joint limits are enforced.
        steps: number of iterations.
        tolerance: norm of the errors at which a sample has converged.
        stop_early: stop as soon as all samples are finished.
    """

    goals: TargetSpec
    limits: bool
    steps: int
    tolerance: float
    stop_early: bool

    def solve(self, mech: Mechanism, fast: Any, q: Tensor, *targets: Tensor) -> IKResult:
        """Minimize the errors from initial guesses `[*batch, num_q]`."""
        if is_scalar_form():  # in a traced function, which computes real numbers only
            q, e, iterations, converged = self.iterate(mech, q, *targets)
            return IKResult(q, e, converged != 0, iterations)
        run = self._kernel(fast, mech) or self._eager(mech, mech if fast is None else fast)
        q, e, iterations, converged = run(q, *targets)
        return IKResult(q, e, converged != 0, iterations.to(torch.int64))

    def _kernel(self, fast: Any, mech: Mechanism) -> Callable[..., State] | None:
        """All iterations as one kernel; None without kernels, or where it would be too long."""
        if not isinstance(fast, MechanismSource):
            return None
        size = min(len(self.goals.rows), mech.num_dof)
        key = ("inverse_kinematics", self.goals, self.limits, self.steps, self.tolerance)
        of_targets = {f"target {k}": shape for k, shape in enumerate(self.goals.shapes)}
        shapes = {"q": (mech.num_q,)} | of_targets
        return (
            fast.fuse_function(key, self.iterate, shapes, 4)
            if size <= MAX_KERNEL_EQUATIONS
            else None
        )

    def iterate(self, mech: Mechanism, q: Tensor, *targets: Tensor) -> State:
        """All iterations: q, the errors there, the iterations taken, and whether the tolerance is met."""

        def body(*tensors: Tensor) -> State:
            return self._iteration(mech, mech, tensors[:8], tensors[8:])

        start = self._start(mech, mech, q, targets)
        state = iterate(body, start, self.steps, targets, until=lambda *state: state[7])
        return state[0], state[1], state[5], state[6]

    def _eager(self, mech: Mechanism, fast: MechanismLike) -> Callable[..., State]:
        """All iterations in eager mode, with kernels of the kinematics where there are any."""

        def run(q: Tensor, *targets: Tensor) -> State:
            state = self._start(mech, fast, q, targets)
            for _ in range(self.steps):
                state = self._iteration(mech, fast, state, targets)
                if self.stop_early and bool((state[7] != 0).all()):
                    break
            return state[0], state[1], state[5], state[6]

        return run

    def _start(
        self, mech: Mechanism, fast: MechanismLike, q: Tensor, targets: Sequence[Tensor]
    ) -> State:
        # A zero step normalizes the quaternions of the initial guess.
        zero_step = torch.zeros_like(q[..., :1]).expand(*q.shape[:-1], mech.num_dof)
        q = self._clamp(mech, integrate(mech, q, zero_step))
        e, J = error_at(fast, self.goals, targets, q), jacobian_at(fast, self.goals, q)
        cost = (e * e).sum(-1)
        zero = torch.zeros_like(cost)
        return q, e, J, cost, zero + START, zero, zero, zero

    def _iteration(
        self, mech: Mechanism, fast: MechanismLike, state: State, targets: Sequence[Tensor]
    ) -> State:
        """One iteration: a step, accepted where it lowers the error."""
        q, e, J, cost, damping, iterations, converged, finished = state
        step = self._step(mech, q, e, J, damping * cost)
        q_new = self._clamp(mech, integrate(mech, q, step))
        e_new = error_at(fast, self.goals, targets, q_new)
        J_new = jacobian_at(fast, self.goals, q_new)
        cost_new = (e_new * e_new).sum(-1)
        better = (cost_new < cost) & (finished == 0)
        q = torch.where(better[..., None], q_new, q)
        e = torch.where(better[..., None], e_new, e)
        J = torch.where(better[..., None, None], J_new, J)
        cost = torch.where(better, cost_new, cost)
        damping = torch.where(better, LOWER * damping, HIGHER * damping)
        # Iterations continue below the tolerance until a step fails: derivatives need errors near rounding.
        finished = torch.where((converged != 0) & ~better, 1.0, finished)
        reached = (cost <= self.tolerance**2).to(q.dtype)
        return q, e, J, cost, damping, iterations + (1 - converged), reached, finished

    def _step(self, mech: Mechanism, q: Tensor, e: Tensor, J: Tensor, damping: Tensor) -> Tensor:
        """The step `[*batch, num_dof]`, from the smaller of the two equivalent linear systems."""
        if self.limits:
            blocked = blocked_dofs(mech, q, matvec(J.mT, e))
            J = torch.where(blocked[..., None, :], 0.0, J)
        wide = J.shape[-2] <= J.shape[-1]
        A = J @ J.mT if wide else J.mT @ J
        trace = A.diagonal(dim1=-2, dim2=-1).sum(-1)
        rounding = torch.finfo(compute_dtype(q))
        damping = damping + 8 * rounding.eps * trace + rounding.tiny
        A = A + torch.diag_embed(damping[..., None].expand(A.shape[:-1]))
        if wide:
            return (J.mT @ spd_solve(A, e[..., None]))[..., 0]
        return spd_solve(A, J.mT @ e[..., None])[..., 0]

    def _clamp(self, mech: Mechanism, q: Tensor) -> Tensor:
        return within_limits(mech, q) if self.limits else q


def best_of(attempts: IKResult) -> IKResult:
    """For each sample the first converged attempt, or else the nearest one."""
    count = attempts.converged.shape[0]
    rank = torch.arange(count, device=attempts.q.device, dtype=attempts.q.dtype)
    rank = rank.reshape(-1, *(1 for _ in attempts.converged.shape[1:]))
    distance = (attempts.residual * attempts.residual).sum(-1)
    chosen = torch.where(attempts.converged, rank - count, distance).argmin(0, keepdim=True)

    def select(x: Tensor) -> Tensor:
        index = chosen.reshape(*chosen.shape, *(1 for _ in x.shape[chosen.ndim :]))
        return torch.take_along_dim(x, index, 0)[0]

    return IKResult(*map(select, attempts))
