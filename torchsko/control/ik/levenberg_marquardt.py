r"""The way down of inverse kinematics: steps of Levenberg and Marquardt, every sample for itself.

.. math::
    (J^* W^2 J + \mu |We|^2)\, \delta = J^* W^2 e .

Damping that vanishes with the square of the error keeps convergence quadratic where solutions are many.

Reference: N. Yamashita, M. Fukushima, *On the rate of convergence of the Levenberg-Marquardt method*,
Computing Supplement 15, 2001 (the damping).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.control.ik.residual_equation import blocked_dofs
from torchsko.control.ik.targets import TargetSpec, error_at, jacobian_at
from torchsko.implicit.loop import loop
from torchsko.linalg.symmetric import spd_solve
from torchsko.mechanism.dispatch import MechanismLike, MechanismSource
from torchsko.mechanism.joints.configuration import integrate, within_limits
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import matvec

START, LOWER, HIGHER = 0.1, 0.3, 4.0
"""Damping at the start, in units of the squared error; its change by a step that helps, and by one not."""

LONGEST = 24
"""Equations of a step up to which all steps are one kernel: a factorisation written out grows by the cube."""


class IKResult(NamedTuple):
    """What inverse kinematics found.

    Attributes:
        q: configurations, `[*batch, num_q]`; differentiable.
        residual: weighted errors of the targets there, in their order, rotation [rad] before position
            [m], in the axes of each frame, `[*batch, m]`; differentiable.
        converged: whether all of them vanish, `[*batch]`.
        iterations: steps taken until then, int64 `[*batch]`.
    """

    q: Tensor
    residual: Tensor
    converged: Tensor
    iterations: Tensor


State = tuple[Tensor, ...]
"""q, the errors there, their Jacobian, their square, the damping; and as numbers the steps taken, whether the
tolerance is met, and whether a step no longer helps."""


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Steps of Levenberg and Marquardt, every sample for itself.

    Attributes:
        goals: which frames, and what of them counts.
        limits: whether limits of joints hold.
        steps: number of steps.
        tolerance: norm of the error at which a sample has arrived.
        stop_early: look after each step whether all have.
    """

    goals: TargetSpec
    limits: bool
    steps: int
    tolerance: float
    stop_early: bool

    def solve(self, mech: Mechanism, fast: Any, q: Tensor, *targets: Tensor) -> IKResult:
        """From configurations `[*batch, num_q]` to where the error is least.

        Args:
            mech: the mechanism.
            fast: its kernels, if there are; all steps are one where that has a kernel for them.
            q: where to start.
            *targets: of `goals`.
        """
        run = self._kernel(fast, mech) or self._eager(mech, mech if fast is None else fast)
        q, e, taken, arrived = run(q, *targets)
        return IKResult(q, e, arrived != 0, taken.to(torch.int64))

    def _kernel(self, fast: Any, mech: Mechanism) -> Callable[..., State] | None:
        """All steps as one function of a fused mechanism, unless it would be too long."""
        if not isinstance(fast, MechanismSource):
            return None
        size = min(len(self.goals.rows), mech.num_dof)
        key = ("inverse_kinematics", self.goals, self.limits, self.steps, self.tolerance)
        of_targets = {f"target {k}": shape for k, shape in enumerate(self.goals.shapes)}
        shapes = {"q": (mech.num_q,)} | of_targets
        return fast.fuse_function(key, self.iterate, shapes, 4) if size <= LONGEST else None

    def iterate(self, mech: Mechanism, q: Tensor, *targets: Tensor) -> State:
        """What a kernel does: q, the errors there, the steps taken, and whether the tolerance is met."""

        def body(*tensors: Tensor) -> State:
            return self._iteration(mech, mech, tensors[:8], tensors[8:])

        start = self._start(mech, mech, q, targets)
        found = loop(body, start, self.steps, targets, until=lambda *state: state[7])
        return found[0], found[1], found[5], found[6]

    def _eager(self, mech: Mechanism, fast: MechanismLike) -> Callable[..., State]:
        """The same written out, with kernels of the kinematics alone if there are."""

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
        # A start that no step leaves has quaternions of unit length, too.
        still = torch.zeros_like(q[..., :1]).expand(*q.shape[:-1], mech.num_dof)
        q = self._clamp(mech, integrate(mech, q, still))
        e, J = error_at(fast, self.goals, targets, q), jacobian_at(fast, self.goals, q)
        cost = (e * e).sum(-1)
        none = torch.zeros_like(cost)
        return q, e, J, cost, none + START, none, none, none

    def _iteration(
        self, mech: Mechanism, fast: MechanismLike, state: State, targets: Sequence[Tensor]
    ) -> State:
        """One step, kept where it helps."""
        q, e, J, cost, damping, taken, arrived, done = state
        step = self._step(mech, q, e, J, damping * cost)
        there = self._clamp(mech, integrate(mech, q, step))
        e_there = error_at(fast, self.goals, targets, there)
        J_there = jacobian_at(fast, self.goals, there)
        cost_there = (e_there * e_there).sum(-1)
        better = (cost_there < cost) & (done == 0)
        q = torch.where(better[..., None], there, q)
        e = torch.where(better[..., None], e_there, e)
        J = torch.where(better[..., None, None], J_there, J)
        cost = torch.where(better, cost_there, cost)
        damping = torch.where(better, LOWER * damping, HIGHER * damping)
        # Steps go on below the tolerance until one no longer helps: derivatives want errors of rounding.
        done = torch.where((arrived != 0) & ~better, 1.0, done)
        met = (cost <= self.tolerance**2).to(q.dtype)
        return q, e, J, cost, damping, taken + (1 - arrived), met, done

    def _step(self, mech: Mechanism, q: Tensor, e: Tensor, J: Tensor, damping: Tensor) -> Tensor:
        """The step `[*batch, num_dof]`; the smaller of the two systems that give it is solved."""
        if self.limits:
            stopped = blocked_dofs(mech, q, matvec(J.mT, e))
            J = torch.where(stopped[..., None, :], 0.0, J)
        wide = J.shape[-2] <= J.shape[-1]
        A = J @ J.mT if wide else J.mT @ J
        size = A.diagonal(dim1=-2, dim2=-1).sum(-1)
        rounding = torch.finfo(compute_dtype(q))
        damping = damping + 8 * rounding.eps * size + rounding.tiny
        A = A + torch.diag_embed(damping[..., None].expand(A.shape[:-1]))
        if wide:
            return (J.mT @ spd_solve(A, e[..., None], scalar=mech.scalar))[..., 0]
        return spd_solve(A, J.mT @ e[..., None], scalar=mech.scalar)[..., 0]

    def _clamp(self, mech: Mechanism, q: Tensor) -> Tensor:
        return within_limits(mech, q) if self.limits else q


def best_of(tries: IKResult) -> IKResult:
    """Of each sample the first try that arrived, else the nearest one; tries along the first dimension."""
    count = tries.converged.shape[0]
    place = torch.arange(count, device=tries.q.device, dtype=tries.q.dtype)
    place = place.reshape(-1, *(1 for _ in tries.converged.shape[1:]))
    distance = (tries.residual * tries.residual).sum(-1)
    chosen = torch.where(tries.converged, place - count, distance).argmin(0, keepdim=True)

    def of(x: Tensor) -> Tensor:
        index = chosen.reshape(*chosen.shape, *(1 for _ in x.shape[chosen.ndim :]))
        return torch.take_along_dim(x, index, 0)[0]

    return IKResult(*map(of, tries))
