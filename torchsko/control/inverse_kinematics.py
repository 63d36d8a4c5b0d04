r"""Inverse kinematics: configurations in which frames are where they shall be, and their derivatives.

The error of a frame with pose (R, r) and target (R*, r*), in the frame's own axes, is

.. math::
    e = \begin{bmatrix} \log(R^* R^*_{target}) \\ R^* (r_{target} - r) \end{bmatrix}, \qquad
    \nabla \tfrac12 |W e|^2 = -J^* W^2 e,

with its Jacobian J in body reference: the logarithm's own derivative drops out of the gradient, exactly,
where W weighs the three components of a rotation alike. A step of Levenberg and Marquardt,
:math:`(J^* W^2 J + \mu |We|^2)\, \delta = J^* W^2 e`, moves q along the manifold; damping that vanishes
with the square of the error keeps convergence quadratic where solutions are many.

What is found is a root of the gradient. It has derivatives by the implicit function theorem, through the
pseudo-inverse of the Hessian: where solutions are many, the smallest change of q that follows the targets.

Reference: N. Yamashita, M. Fukushima, *On the rate of convergence of the Levenberg-Marquardt method*,
Computing Supplement 15, 2001 (the damping). D. Bertsekas, *Projected Newton methods for optimization problems
with simple constraints*, SIAM Journal on Control and Optimization 20(2), 1982 (limits).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.control.reaching import (
    Goals,
    Reaching,
    error_at,
    goals_of,
    jacobian_at,
    stopped_dofs,
)
from torchsko.errors import MechanismError, ShapeError
from torchsko.implicit.equation import implicit
from torchsko.implicit.loop import loop
from torchsko.mechanism.joints.configuration import integrate
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.mechanism.state import check_state
from torchsko.mechanism.verb import MechanismLike, as_mechanism, kernels_of
from torchsko.precision import in_own_type
from torchsko.rollout.options import as_number, as_whole
from torchsko.symmetric import spd_solve

START, LOWER, HIGHER = 0.1, 0.3, 4.0
"""Damping at the start, in units of the squared error; its change by a step that helps, and by one not."""

LONGEST = 24
"""Equations of a step up to which all steps are one kernel: a factorisation written out grows by the cube."""


class Reached(NamedTuple):
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


@in_own_type
def inverse_kinematics(
    mech: MechanismLike,
    targets: Mapping[Any, Any],
    q0: Tensor,
    *,
    weights: Mapping[Any, tuple[float, float]] | None = None,
    limits: bool = False,
    restarts: int = 0,
    generator: torch.Generator | None = None,
    max_iterations: int = 50,
    tolerance: float | None = None,
    stop_early: bool = False,
) -> Reached:
    """Configurations in which frames are at their targets, or as near as there is a way down from q0.

    Every sample takes `max_iterations` steps, of which those after convergence change nothing; nothing
    waits for the device. Of a fused mechanism all steps of all samples are one kernel, which leaves samples
    that have converged.

    The derivatives of q to targets and parameters are those of the solution, not of the way there, of any
    order and in both modes; where more than one configuration fits, those of least norm. None reach q0.
    They hold where the gradient vanishes: at targets that are reached, and at the nearest point to one that
    is out of reach once the steps have come there. With `limits`, joints that one stops move with it.

    Args:
        mech: the mechanism. A fused mechanism runs its kernels.
        targets: by frame (a name of ``mech.frame_names``, or a `Frame`) a `Pose`, a pair of rotation
            `[*batch, 3, 3]` and position `[*batch, 3]` [m] in the inertial frame, either of which may be
            None, or a position alone.
        q0: where to start, `[*batch, num_q]`.
        weights: by frame factors of its errors in rotation [1/rad] and position [1/m]; 1 and 1 for those left
            out.
        limits: keep joints between ``mech.lower`` and ``mech.upper``.
        restarts: how often to try again from random configurations within limits. The first try that
            reaches the targets counts, else the one that comes nearest. All run side by side.
        generator: source of these configurations, on the mechanism's device.
        max_iterations: number of steps.
        tolerance: norm of the weighted errors below which the targets are reached; the root of the
            rounding unit when left out.
        stop_early: end when all samples have converged. After every step the host then waits for the device;
            not under `torch.vmap`, and no more are `restarts`, whose starts are random: batch q0 there.

    Returns:
        q, residual, converged, iterations; see `Reached`.

    Raises:
        MechanismError: on an unknown frame, no targets, weights of a frame without a target or that are all
            0, a rotation that is none, an option of another kind, or inside of torch.compile.
        ShapeError: when q0 or a target does not fit.

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> g = torch.Generator().manual_seed(0)
        >>> q, _ = arm.random_state(generator=g)
        >>> hand = arm.frame_names[-1]
        >>> goal = ts.frame_pose(arm, q, hand)
        >>> found = ts.inverse_kinematics(arm, {hand: goal}, arm.middle(), restarts=8, generator=g)
        >>> found.converged
        tensor(True)
    """
    if torch.compiler.is_compiling():
        raise MechanismError(
            "inverse_kinematics was met by torch.compile.\n"
            "Its derivatives are those of the solution; what a compiler traces would have none.\n"
            "Call it outside of the compiled function, or mark that part torch.compiler.disable."
        )
    robot = as_mechanism(mech)
    check_state(robot, q0=q0)
    given, (robot, goals, tensors) = robot, goals_of(robot, targets, weights)
    restarts, max_iterations, tolerance = _check_options(
        restarts, max_iterations, tolerance, limits, generator
    )
    batch = _batch(robot, q0, goals, tensors)
    start = q0.expand(*batch, robot.num_q)[None]
    if restarts:
        others = robot.random_state(restarts, *batch, generator=generator)[0]
        start = torch.cat([start, others])
    still = robot.replace(**{name: getattr(robot, name).detach() for name in PARAMETERS})
    # Kernels know no frames on the go.
    fast = mech if kernels_of(mech) and robot is given else None
    way = Way(goals, limits, max_iterations, _tolerance(robot, tolerance), stop_early)
    with torch.no_grad():
        found = _best(way.down(still, fast, start.detach(), *(x.detach() for x in tensors)))
    equation = Reaching.of(robot, goals, limits)
    q = implicit(equation, found.q, *(getattr(robot, name) for name in PARAMETERS), *tensors)
    residual = error_at(robot if fast is None else fast, goals, tensors, q)
    return Reached(q, residual, found.converged, found.iterations)


State = tuple[Tensor, ...]
"""q, the errors there, their Jacobian, their square, the damping; and as numbers the steps taken, whether the
tolerance is met, and whether a step no longer helps."""


@dataclass(frozen=True)
class Way:
    """Steps of Levenberg and Marquardt, every sample for itself.

    Attributes:
        goals: which frames, and what of them counts.
        limits: whether limits of joints hold.
        steps: number of steps.
        tolerance: norm of the error at which a sample has arrived.
        stop_early: look after each step whether all have.
    """

    goals: Goals
    limits: bool
    steps: int
    tolerance: float
    stop_early: bool

    def down(self, mech: Mechanism, fast: Any, q: Tensor, *targets: Tensor) -> Reached:
        """From configurations `[*batch, num_q]` to where the error is least.

        Args:
            mech: the mechanism.
            fast: its kernels, if there are; all steps are one where that has a kernel for them.
            q: where to start.
            *targets: of `goals`.
        """
        run = self._kernel(fast, mech) or self._steps(mech, mech if fast is None else fast)
        q, e, taken, arrived = run(q, *targets)
        return Reached(q, e, arrived != 0, taken.to(torch.int64))

    def _kernel(self, fast: Any, mech: Mechanism) -> Callable[..., State] | None:
        """All steps as one function of a fused mechanism, unless it would be too long."""
        if not hasattr(fast, "whole"):
            return None
        size = min(len(self.goals.rows), mech.num_dof)
        key = ("inverse_kinematics", self.goals, self.limits, self.steps, self.tolerance)
        of_targets = {f"target {k}": shape for k, shape in enumerate(self.goals.shapes)}
        shapes = {"q": (mech.num_q,)} | of_targets
        return fast.whole(key, self.rounds, shapes, 4) if size <= LONGEST else None

    def rounds(self, mech: Mechanism, q: Tensor, *targets: Tensor) -> State:
        """What a kernel does: q, the errors there, the steps taken, and whether the tolerance is met."""

        def body(*tensors: Tensor) -> State:
            return self._round(mech, mech, tensors[:8], tensors[8:])

        start = self._start(mech, mech, q, targets)
        found = loop(body, start, self.steps, targets, until=lambda *state: state[7])
        return found[0], found[1], found[5], found[6]

    def _steps(self, mech: Mechanism, fast: MechanismLike) -> Callable[..., State]:
        """The same written out, with kernels of the kinematics alone if there are."""

        def run(q: Tensor, *targets: Tensor) -> State:
            state = self._start(mech, fast, q, targets)
            for _ in range(self.steps):
                state = self._round(mech, fast, state, targets)
                if self.stop_early and bool((state[7] != 0).all()):
                    break
            return state[0], state[1], state[5], state[6]

        return run

    def _start(
        self, mech: Mechanism, fast: MechanismLike, q: Tensor, targets: Sequence[Tensor]
    ) -> State:
        q = self._inside(mech, q)
        e, J = error_at(fast, self.goals, targets, q), jacobian_at(fast, self.goals, q)
        cost = (e * e).sum(-1)
        none = torch.zeros_like(cost)
        return q, e, J, cost, none + START, none, none, none

    def _round(
        self, mech: Mechanism, fast: MechanismLike, state: State, targets: Sequence[Tensor]
    ) -> State:
        """One step, kept where it helps."""
        q, e, J, cost, damping, taken, arrived, done = state
        step = self._step(mech, q, e, J, damping * cost)
        there = self._inside(mech, integrate(mech, q, step))
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
            stopped = stopped_dofs(mech, q, (J.mT @ e[..., None])[..., 0])
            J = torch.where(stopped[..., None, :], 0.0, J)
        wide = J.shape[-2] <= J.shape[-1]
        A = J @ J.mT if wide else J.mT @ J
        size = A.diagonal(dim1=-2, dim2=-1).sum(-1)
        damping = damping + 8 * torch.finfo(q.dtype).eps * size + torch.finfo(q.dtype).tiny
        A = A + torch.diag_embed(damping[..., None].expand(A.shape[:-1]))
        if wide:
            return (J.mT @ spd_solve(A, e[..., None], scalar=mech.scalar))[..., 0]
        return spd_solve(A, J.mT @ e[..., None], scalar=mech.scalar)[..., 0]

    def _inside(self, mech: Mechanism, q: Tensor) -> Tensor:
        if not self.limits:
            return q
        return torch.minimum(torch.maximum(q, mech.lower), mech.upper)


def _best(tries: Reached) -> Reached:
    """Of each sample the first try that arrived, else the nearest one; tries along the first dimension."""
    count = tries.converged.shape[0]
    place = torch.arange(count, device=tries.q.device, dtype=tries.q.dtype)
    place = place.reshape(-1, *(1 for _ in tries.converged.shape[1:]))
    distance = (tries.residual * tries.residual).sum(-1)
    chosen = torch.where(tries.converged, place - count, distance).argmin(0, keepdim=True)

    def of(x: Tensor) -> Tensor:
        index = chosen.reshape(*chosen.shape, *(1 for _ in x.shape[chosen.ndim :]))
        return torch.take_along_dim(x, index, 0)[0]

    return Reached(*map(of, tries))


def _tolerance(mech: Mechanism, given: float | None) -> float:
    return torch.finfo(mech.dtype).eps ** 0.5 if given is None else given


def _batch(mech: Mechanism, q0: Tensor, goals: Goals, targets: Sequence[Tensor]) -> torch.Size:
    """Batch dimensions of a problem.

    Raises:
        ShapeError: where those of q0 and the targets do not broadcast.
    """
    of_targets = goals.batches(targets)
    try:
        return torch.broadcast_shapes(q0.shape[:-1], mech.batch_shape, *of_targets)
    except RuntimeError:
        told = ", ".join(str(list(batch)) for batch in dict.fromkeys(of_targets))
        raise ShapeError(
            f"q0 has the batch dimensions {list(q0.shape[:-1])}, the targets {told}.\n"
            "Counted from the last, they are equal or one of them is 1.\n"
            "Give all the same, or put in a dimension of 1: q0[..., None, :]."
        ) from None


def _check_options(
    restarts: Any, max_iterations: Any, tolerance: Any, limits: Any, generator: Any
) -> tuple[int, int, float | None]:
    """The numbers among the options; each option that is none of its kind is refused by name."""
    for name, x, kind, advice in (
        ("limits", limits, bool, "True"),
        ("generator", generator, torch.Generator | None, "torch.Generator().manual_seed(0)"),
    ):
        if not isinstance(x, kind):
            raise MechanismError(
                f"inverse_kinematics was given {name}={x!r}.\n"
                "Limits are kept or not, and what is random has a source of its own, or torch's.\n"
                f"Pass {name}={advice}, or leave it out."
            )
    norm = None if tolerance is None else as_number(tolerance)
    if tolerance is not None and (norm is None or not norm > 0):
        raise MechanismError(
            f"inverse_kinematics was given tolerance={tolerance!r}.\n"
            "Errors vanish where their norm is below a number above 0.\n"
            "Leave it out, or pass the norm of an error in rad and m, say 1e-6."
        )
    tries, steps = as_whole(restarts), as_whole(max_iterations)
    if tries is None or steps is None or tries < 0 or steps < 1:
        raise MechanismError(
            f"inverse_kinematics was given restarts={restarts!r}, max_iterations={max_iterations!r}.\n"
            "It goes at least one step, and tries again no less than zero times.\n"
            "Pass restarts=0 and max_iterations=50, say."
        )
    return tries, steps, norm
