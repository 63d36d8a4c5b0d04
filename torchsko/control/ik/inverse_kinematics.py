r"""Inverse kinematics: configurations that bring frames to their targets, with derivatives.

The error of a frame with pose (R, r) and target (R*, r*), in the frame's own axes, is

.. math::
    e = \begin{bmatrix} \log(R^* R^*_{target}) \\ R^* (r_{target} - r) \end{bmatrix}, \qquad
    \nabla \tfrac12 |W e|^2 = -J^* W^2 e,

with the Jacobian J of the frame in body reference. The derivative of the logarithm cancels exactly in the
gradient where W weighs the three components of a rotation equally. Levenberg-Marquardt steps
(`torchsko.control.ik.levenberg_marquardt`) move q along the manifold.

The solution is a root of the gradient. Its derivatives follow from the implicit function theorem with the
pseudo-inverse of the Hessian. Where solutions are not unique, this is the smallest change of q that follows
the targets.

Reference: D. Bertsekas, *Projected Newton methods for optimization problems with simple constraints*, SIAM
Journal on Control and Optimization 20(2), 1982 (limits).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchsko.control.ik.levenberg_marquardt import IKResult, LevenbergMarquardt, best_of
from torchsko.control.ik.pose_targets import error_at, parse_targets
from torchsko.control.ik.residual_equation import StationaryEquation
from torchsko.errors import MechanismError
from torchsko.implicit.equation import implicit
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, fused_methods_of
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.utils.dtype import without_autocast
from torchsko.utils.numbers import as_integer, as_number


@without_autocast
def inverse_kinematics(
    mech: MechanismLike,
    q0: Tensor,
    targets: Mapping[Any, Any],
    *,
    weights: Mapping[Any, tuple[float, float]] | None = None,
    limits: bool = False,
    restarts: int = 0,
    generator: torch.Generator | None = None,
    max_iterations: int = 50,
    tolerance: float | None = None,
    stop_early: bool = False,
) -> IKResult:
    """Find configurations that bring frames to their targets.

    Where targets are out of reach, the result is a local minimum of the weighted squared error. All samples
    run `max_iterations` iterations without host-device synchronization; iterations after convergence change
    nothing. With a fused mechanism, all iterations of all samples are one kernel, which skips converged
    samples. In a function of `torchsko.fuse` they are a loop of its kernel.

    The derivatives of q with respect to targets and parameters are those of the solution, of any order and in
    both modes. Where solutions are not unique, they have minimal norm. The derivative with respect to q0 is
    zero. They are valid where the gradient vanishes: at reached targets, and at the nearest point to an
    unreachable target after convergence. Unreachable targets take more iterations: half a meter beyond an
    arm's reach takes about 300, and after 50 the result may be a centimeter off. With `limits`, a joint that
    its limit keeps from a target moves with that limit. At reached targets no limit is active.

    Args:
        mech: the mechanism. A fused mechanism runs its kernels.
        q0: initial guess, `[*batch, num_q]`; quaternions are normalized.
        targets: by frame (a name of ``mech.frame_names``, or a `Frame`) a `Pose`, a pair of rotation
            `[*batch, 3, 3]` and position `[*batch, 3]` [m] in the inertial frame, either of which may be
            None, or a position alone.
        weights: by frame, the factors of its errors in rotation [1/rad] and position [1/m]. Frames without an
            entry have 1 and 1.
        limits: keep joints between ``mech.lower`` and ``mech.upper``. Spherical and free joints are not
            limited; limits of ball joints in a file are listed in ``mech.unused``.
        restarts: number of further initial guesses, random within limits. The result is the first one that
            reaches the targets, or else the nearest. All run in parallel.
        generator: random generator of these guesses, on the mechanism's device.
        max_iterations: number of iterations.
        tolerance: norm of the weighted errors below which the targets count as reached. Default: square root
            of the machine epsilon.
        stop_early: stop when all samples have converged. The host then waits for the device after each
            iteration. It is not available under `torch.vmap`, and neither are random `restarts`: batch q0
            there.

    Returns:
        q, residual, converged, iterations; see `IKResult`.

    Raises:
        MechanismError: on an unknown frame, no targets, or an invalid rotation. On weights of a frame without
            a target, or that are all 0. On an option of the wrong type. On a call inside torch.compile.
        FusedError: on `restarts` in a function of `torchsko.fuse`, which draws no random numbers.
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
        >>> found = ts.inverse_kinematics(arm, arm.middle(), {hand: goal}, restarts=8, generator=g)
        >>> found.converged
        tensor(True)
    """
    if torch.compiler.is_compiling():
        raise MechanismError(
            "inverse_kinematics was called inside torch.compile.",
            "The compiler would unroll its iterations.",
            "Call it outside the compiled function, or mark that part with torch.compiler.disable.",
        )
    robot = as_mechanism(mech)
    check_state(robot, q0=q0)
    original, (robot, goals, tensors, batches) = robot, parse_targets(robot, targets, weights)
    restarts, max_iterations, tolerance = _check_options(
        restarts, max_iterations, tolerance, limits, stop_early, generator
    )
    tolerance = float(torch.finfo(robot.dtype).eps ** 0.5 if tolerance is None else tolerance)
    batch = shared_batch({"the mechanism": robot.batch_shape, "q0": q0.shape[:-1]} | batches)
    start = q0.expand(*batch, robot.num_q)[None]
    if restarts:
        guesses = robot.random_state(restarts, *batch, generator=generator)[0]
        start = torch.cat([start, guesses])
    constant = robot.replace(**{name: getattr(robot, name).detach() for name in PARAMETERS})
    # Kernels do not support frames added at call time.
    fast = mech if fused_methods_of(mech) and robot is original else None
    method = LevenbergMarquardt(goals, limits, max_iterations, tolerance, stop_early)
    with torch.no_grad():
        solution = best_of(
            method.solve(constant, fast, start.detach(), *(x.detach() for x in tensors))
        )
    equation = StationaryEquation.of(robot, goals, limits)
    q = implicit(equation, solution.q, *(getattr(robot, name) for name in PARAMETERS), *tensors)
    residual = error_at(robot if fast is None else fast, goals, tensors, q)
    return IKResult(q, residual, solution.converged, solution.iterations)


def _check_options(
    restarts: Any,
    max_iterations: Any,
    tolerance: Any,
    limits: Any,
    stop_early: Any,
    generator: Any,
) -> tuple[int, int, float | None]:
    """Check the types and ranges of the options; return the numbers."""
    for name, x, kind, why, advice in (
        ("limits", limits, bool, "It is True or False", "True"),
        ("stop_early", stop_early, bool, "It is True or False", "True"),
        (
            "generator",
            generator,
            torch.Generator | None,
            "It is a torch.Generator or None",
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
            "Targets count as reached where the norm of the errors is below a positive number.",
            "Leave it out, or pass the norm of an error in rad and m, say 1e-6.",
        )
    tries, steps = as_integer(restarts), as_integer(max_iterations)
    if tries is None or steps is None or tries < 0 or steps < 1:
        raise MechanismError(
            f"inverse_kinematics was given restarts={restarts!r}, max_iterations={max_iterations!r}.",
            "It needs at least one iteration, and a number of restarts of 0 or more.",
            "Pass restarts=0 and max_iterations=50, say.",
        )
    return tries, steps, norm
