r"""Inverse kinematics: configurations in which frames are where they shall be, and their derivatives.

The error of a frame with pose (R, r) and target (R*, r*), in the frame's own axes, is

.. math::
    e = \begin{bmatrix} \log(R^* R^*_{target}) \\ R^* (r_{target} - r) \end{bmatrix}, \qquad
    \nabla \tfrac12 |W e|^2 = -J^* W^2 e,

with its Jacobian J in body reference: the logarithm's own derivative drops out of the gradient, exactly,
where W weighs the three components of a rotation alike. Steps of Levenberg and Marquardt
(`torchsko.control.ik.levenberg_marquardt`) move q along the manifold.

What is found is a root of the gradient. It has derivatives by the implicit function theorem, through the
pseudo-inverse of the Hessian: where solutions are many, the smallest change of q that follows the targets.

Reference: D. Bertsekas, *Projected Newton methods for optimization problems with simple constraints*, SIAM
Journal on Control and Optimization 20(2), 1982 (limits).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchsko.control.ik.levenberg_marquardt import IKResult, LevenbergMarquardt, best_of
from torchsko.control.ik.residual_equation import StationaryEquation
from torchsko.control.ik.targets import error_at, parse_targets
from torchsko.errors import MechanismError
from torchsko.implicit.equation import implicit
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, fused_methods_of
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.rollout.argument_checks import as_integer, as_number
from torchsko.utils.dtype import without_autocast


@without_autocast
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
) -> IKResult:
    """Configurations in which frames are at their targets, or as near as there is a way down from q0.

    Every sample takes `max_iterations` steps, of which those after convergence change nothing; nothing
    waits for the device. Of a fused mechanism all steps of all samples are one kernel, which leaves samples
    that have converged.

    The derivatives of q to targets and parameters are those of the solution, not of the way there, of any
    order and in both modes; where more than one configuration fits, those of least norm. None reach q0.
    They hold where the gradient vanishes: at targets that are reached, and at the nearest point to one that
    is out of reach once the steps have come there. That takes more of them the farther it is: half a metre
    out of an arm's reach some 300, where after 50 it may be a centimetre off. With `limits`, joints that one
    stops short of a target move with it; where targets are reached none is stopped, be it at its limit.

    Args:
        mech: the mechanism. A fused mechanism runs its kernels.
        targets: by frame (a name of ``mech.frame_names``, or a `Frame`) a `Pose`, a pair of rotation
            `[*batch, 3, 3]` and position `[*batch, 3]` [m] in the inertial frame, either of which may be
            None, or a position alone.
        q0: where to start, `[*batch, num_q]`; quaternions are normalised.
        weights: by frame factors of its errors in rotation [1/rad] and position [1/m]; 1 and 1 for those left
            out.
        limits: keep joints between ``mech.lower`` and ``mech.upper``. Spherical and free joints have none;
            those that a file gives its ball joints are not read (``mech.unused`` says so).
        restarts: how often to try again from random configurations within limits. The first try that
            reaches the targets counts, else the one that comes nearest. All run side by side.
        generator: source of these configurations, on the mechanism's device.
        max_iterations: number of steps.
        tolerance: norm of the weighted errors below which the targets are reached; the root of the
            rounding unit when left out.
        stop_early: end when all samples have converged. After every step the host then waits for the device;
            not under `torch.vmap`, and no more are `restarts`, whose starts are random: batch q0 there.

    Returns:
        q, residual, converged, iterations; see `IKResult`.

    Raises:
        MechanismError: on an unknown frame, no targets, weights of a frame without a target or that are all
            0, a rotation that is none, an option of another kind, or inside of torch.compile or of a function
            of `torchsko.fuse`.
        ShapeError: when q0 or a target does not fit.

    Reference: Yamashita, Fukushima 2001, On the rate of convergence of the Levenberg-Marquardt method (the
    damping); Bertsekas 1982, Projected Newton methods (limits).

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
            "inverse_kinematics was met by torch.compile.",
            "Its derivatives are those of the solution; what a compiler traces would have none.",
            "Call it outside of the compiled function, or mark that part torch.compiler.disable.",
        )
    robot = as_mechanism(mech)
    if robot.scalar:
        raise MechanismError(
            "inverse_kinematics was called within a function of torchsko.fuse.",
            "Its derivatives are those of the solution; a kernel of its steps would have theirs.",
            "Call it outside, where torchsko.inverse_kinematics(torchsko.fuse(mech), ...) is one kernel, and "
            "pass what it finds to the function.",
        )
    check_state(robot, q0=q0)
    given, (robot, goals, tensors, batches) = robot, parse_targets(robot, targets, weights)
    restarts, max_iterations, tolerance = _check_options(
        restarts, max_iterations, tolerance, limits, stop_early, generator
    )
    batch = shared_batch({"the mechanism": robot.batch_shape, "q0": q0.shape[:-1]} | batches)
    start = q0.expand(*batch, robot.num_q)[None]
    if restarts:
        others = robot.random_state(restarts, *batch, generator=generator)[0]
        start = torch.cat([start, others])
    still = robot.replace(**{name: getattr(robot, name).detach() for name in PARAMETERS})
    # Kernels know no frames on the go.
    fast = mech if fused_methods_of(mech) and robot is given else None
    way = LevenbergMarquardt(
        goals, limits, max_iterations, _tolerance(robot, tolerance), stop_early
    )
    with torch.no_grad():
        found = best_of(way.solve(still, fast, start.detach(), *(x.detach() for x in tensors)))
    equation = StationaryEquation.of(robot, goals, limits)
    q = implicit(equation, found.q, *(getattr(robot, name) for name in PARAMETERS), *tensors)
    residual = error_at(robot if fast is None else fast, goals, tensors, q)
    return IKResult(q, residual, found.converged, found.iterations)


def _tolerance(mech: Mechanism, given: float | None) -> float:
    return torch.finfo(mech.dtype).eps ** 0.5 if given is None else given


def _check_options(
    restarts: Any,
    max_iterations: Any,
    tolerance: Any,
    limits: Any,
    stop_early: Any,
    generator: Any,
) -> tuple[int, int, float | None]:
    """The numbers among the options; each option that is none of its kind is refused by name."""
    for name, x, kind, why, advice in (
        ("limits", limits, bool, "Limits are kept or not", "True"),
        ("stop_early", stop_early, bool, "Samples that have all converged end it or not", "True"),
        (
            "generator",
            generator,
            torch.Generator | None,
            "What is random has a source of its own, or torch's",
            "torch.Generator().manual_seed(0)",
        ),
    ):
        if not isinstance(x, kind):
            raise MechanismError(
                f"inverse_kinematics was given {name}={x!r}.",
                f"{why}.",
                f"Pass {name}={advice}, or leave it out.",
            )
    norm = None if tolerance is None else as_number(tolerance)
    if tolerance is not None and (norm is None or not norm > 0):
        raise MechanismError(
            f"inverse_kinematics was given tolerance={tolerance!r}.",
            "Errors vanish where their norm is below a number above 0.",
            "Leave it out, or pass the norm of an error in rad and m, say 1e-6.",
        )
    tries, steps = as_integer(restarts), as_integer(max_iterations)
    if tries is None or steps is None or tries < 0 or steps < 1:
        raise MechanismError(
            f"inverse_kinematics was given restarts={restarts!r}, max_iterations={max_iterations!r}.",
            "It goes at least one step, and tries again no less than zero times.",
            "Pass restarts=0 and max_iterations=50, say.",
        )
    return tries, steps, norm
