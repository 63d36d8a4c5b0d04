r"""Levenberg-Marquardt iterations of inverse kinematics, independent for every sample.

With the Jacobian J of the errors r = P (e + s), see `torchsko.control.ik.goal_set`, a step is

.. math::
    (J^* J + \mu |e|^2)\, \delta = J^* r .

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

from torchsko.control.ik.goal_set import GoalSet
from torchsko.control.ik.stationary_equation import blocked_dofs, values_per_dof
from torchsko.implicit.loop import iterate
from torchsko.linalg.dense import MAX_ROWS
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

ROUNDING = 16.0
"""Relative increase of the squared error, in units of rounding, at which a step counts as successful."""

MINIMUM = 1e-3
"""Norm of the gradient, in tolerances, at which a sample is finished without reaching its goals."""


class IKResult(NamedTuple):
    """Result of `inverse_kinematics`.

    Attributes:
        q: configurations, `[*batch, num_q]`; differentiable.
        residual: weighted errors of the goals in their order, then of the constraints of a held mechanism,
            `[*batch, m]`; differentiable. A `FrameGoal` has its rotation [rad] before its position [m].
        converged: whether the norm of the residual is below the tolerance, `[*batch]`.
        iterations: number of iterations until convergence, or all, int64 `[*batch]`; a real number in a
            function of `torchsko.fuse`.
    """

    q: Tensor
    residual: Tensor
    converged: Tensor
    iterations: Tensor


class Attempts(NamedTuple):
    """Configurations that the iterations found, from one or several initial guesses.

    Attributes:
        q: configurations, `[*batch, num_q]`.
        multipliers: of the rows of higher priorities, `[*batch, r]`.
        distance: squared error, with the penalties of priorities, `[*batch]`.
        converged: whether the goals are reached, `[*batch]`.
        iterations: number of iterations, `[*batch]`.
    """

    q: Tensor
    multipliers: Tensor
    distance: Tensor
    converged: Tensor
    iterations: Tensor

    def best(self) -> Attempts:
        """For each sample the first converged attempt, or else the nearest one."""
        count = self.converged.shape[0]
        rank = torch.arange(count, device=self.q.device, dtype=self.q.dtype)
        rank = rank.reshape(-1, *(1 for _ in self.converged.shape[1:]))
        chosen = torch.where(self.converged != 0, rank - count, self.distance)
        chosen = chosen.argmin(0, keepdim=True)

        def select(x: Tensor) -> Tensor:
            index = chosen.reshape(*chosen.shape, *(1 for _ in x.shape[chosen.ndim :]))
            return torch.take_along_dim(x, index, 0)[0]

        return Attempts(*map(select, self))


State = tuple[Tensor, ...]
"""Configuration, errors, their Jacobian, scaled multipliers and damping; and as numbers the iterations taken,
whether the tolerance is met, and whether the sample is finished."""


@dataclass(frozen=True)
class LevenbergMarquardt:
    """The Levenberg-Marquardt method for the goals of inverse kinematics.

    Attributes:
        goals: rows of the goals.
        limits: whether joint limits are enforced.
        steps: number of iterations.
        tolerance: norm of the errors at which a sample has converged.
        stop_early: stop as soon as all samples are finished.
    """

    goals: GoalSet
    limits: bool
    steps: int
    tolerance: float
    stop_early: bool

    def solve(self, mech: Mechanism, fast: Any, q: Tensor, *tensors: Tensor) -> Attempts:
        """Minimize the errors from initial guesses `[*batch, num_q]`."""
        run = None if is_scalar_form() else self._kernel(fast, mech)
        if run is None:
            source = mech if fast is None or is_scalar_form() else fast
            return Attempts(*self.iterate(mech, q, *tensors, source=source))
        return Attempts(*run(q, *tensors))

    def _kernel(self, fast: Any, mech: Mechanism) -> Callable[..., State] | None:
        """All iterations as one kernel; None without kernels, or where its equations are too many."""
        if not isinstance(fast, MechanismSource):
            return None
        if min(self.goals.num_rows, mech.num_dof) > MAX_ROWS:
            return None
        key = ("inverse_kinematics", self.goals, self.limits, self.steps, self.tolerance)
        sizes = (shape for shapes in self.goals.shapes for shape in shapes)
        shapes = {"q": (mech.num_q,)} | {f"tensor {k}": shape for k, shape in enumerate(sizes)}
        return fast.fuse_function(key, self.iterate, shapes, 5)

    def iterate(
        self, mech: Mechanism, q: Tensor, *tensors: Tensor, source: MechanismLike | None = None
    ) -> State:
        """All iterations; the fields of `Attempts`. The kinematics is that of the source."""
        source = mech if source is None else source

        def body(*state: Tensor) -> State:
            return self._iteration(mech, source, state[:8], state[8:])

        start = self._start(mech, source, q, tensors)
        state = iterate(
            body,
            start,
            self.steps,
            tensors,
            until=lambda *state: state[7],
            stop_early=self.stop_early,
        )
        q, e, _, s, _, iterations, converged, _ = state
        P = self.goals.penalties(e)
        weighted = P * e
        multipliers = P[self.goals.num_free :] ** 2 * s
        iterations = torch.where(converged != 0, iterations, float(self.steps))
        return q, multipliers, (weighted * weighted).sum(-1), converged, iterations

    def _start(
        self, mech: Mechanism, source: MechanismLike, q: Tensor, tensors: Sequence[Tensor]
    ) -> State:
        # A zero step normalizes the quaternions of the initial guess.
        q = self._integrate_step(
            mech, q, torch.zeros_like(q[..., :1]).expand(*q.shape[:-1], mech.num_dof)
        )
        e, J = self.goals.linearized(source, tensors, q)
        zero = torch.zeros_like(e[..., 0])
        s = torch.zeros_like(e[..., self.goals.num_free :])
        return q, e, J, s, zero + START, zero, zero, zero

    def _iteration(
        self,
        mech: Mechanism,
        source: MechanismLike,
        state: State,
        tensors: Sequence[Tensor],
    ) -> State:
        """One iteration: a step, accepted where it lowers the error."""
        q, e, J, s, damping, iterations, converged, finished = state
        P, cost = self.goals.penalties(e), (e * e).sum(-1)
        r, rows = P * self._shifted(e, s), P[:, None] * J
        gradient = matvec(rows.mT, r)
        if self.limits:
            blocked = blocked_dofs(mech, q, gradient)
            rows = torch.where(blocked[..., None, :], 0.0, rows)
            gradient = torch.where(blocked, 0.0, gradient)
        step = self._step(r, rows, gradient, damping * cost)
        q_new = self._integrate_step(mech, q, step)
        e_new, J_new = self.goals.linearized(source, tensors, q_new)
        r_new = P * self._shifted(e_new, s)
        old, new = (r * r).sum(-1), (r_new * r_new).sum(-1)
        # Near a minimum that is not zero, rounding hides the decrease long before the gradient vanishes.
        better = (new < old * (1 + ROUNDING * torch.finfo(q.dtype).eps)) & (finished == 0)
        remaining = ((r - matvec(rows, step)) / P)[..., self.goals.num_free :]
        q = torch.where(better[..., None], q_new, q)
        e = torch.where(better[..., None], e_new, e)
        J = torch.where(better[..., None, None], J_new, J)
        s = torch.where(better[..., None], remaining, s)
        damping = torch.where(better, LOWER * damping, HIGHER * damping)
        # Iterations continue below the tolerance until a step fails: derivatives need errors near rounding.
        left = e[..., self.goals.num_free :]
        size = (gradient * gradient).sum(-1) + (left * left).sum(-1)
        is_minimum = size <= (MINIMUM * self.tolerance) ** 2
        finished = torch.where(((converged != 0) & (new >= old)) | is_minimum, 1.0, finished)
        reached = ((e * e).sum(-1) <= self.tolerance**2).to(q.dtype)
        return q, e, J, s, damping, iterations + (1 - converged), reached, finished

    def _shifted(self, e: Tensor, s: Tensor) -> Tensor:
        """The errors, with multipliers on those of higher priorities."""
        k = self.goals.num_free
        return torch.cat([e[..., :k], e[..., k:] + s], -1)

    def _step(self, r: Tensor, J: Tensor, gradient: Tensor, damping: Tensor) -> Tensor:
        """The step `[*batch, num_dof]`, from the smaller of the two equivalent linear systems."""
        wide = J.shape[-2] <= J.shape[-1]
        A = J @ J.mT if wide else J.mT @ J
        trace = A.diagonal(dim1=-2, dim2=-1).sum(-1)
        rounding = torch.finfo(compute_dtype(r))
        damping = damping + 8 * rounding.eps * trace + rounding.tiny
        A = A + torch.diag_embed(damping[..., None].expand(A.shape[:-1]))
        if wide:
            return (J.mT @ spd_solve(A, r[..., None]))[..., 0]
        return spd_solve(A, gradient[..., None])[..., 0]

    def _integrate_step(self, mech: Mechanism, q: Tensor, step: Tensor) -> Tensor:
        """The configuration after a step, within limits; limits of dependent joints of loops do not act."""
        if not self.limits:
            return integrate(mech, q, step)
        if mech.closing is None:
            return within_limits(mech, integrate(mech, q, step))
        at = values_per_dof(mech, q, 0.0)
        lower, upper = (
            values_per_dof(mech, x, fill) - at
            for x, fill in ((mech.lower, -torch.inf), (mech.upper, torch.inf))
        )
        return integrate(mech, q, torch.minimum(torch.maximum(step, lower), upper))
