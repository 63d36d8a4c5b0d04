r"""Inverse kinematics: configurations that reach goals, with derivatives.

Goals have weighted errors e, see `torchsko.control.ik.goal`, with

.. math::
    \nabla \tfrac12 |e|^2 = -J^* e .

Levenberg-Marquardt steps (`torchsko.control.ik.levenberg_marquardt`) move q along the manifold.
`torchsko.control.ik.goal_set` explains priorities.

The solution is a root of the gradient. Its derivatives follow from the implicit function theorem with the
pseudo-inverse of the Hessian. Where solutions are not unique, this is the smallest change of q that follows
the targets.

Reference: D. Bertsekas, *Projected Newton methods for optimization problems with simple constraints*, SIAM
Journal on Control and Optimization 20(2), 1982 (limits).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchsko.control.ik.goal import Goal
from torchsko.control.ik.goal_set import parse_goals
from torchsko.control.ik.levenberg_marquardt import IKResult, LevenbergMarquardt
from torchsko.control.ik.stationary_equation import StationaryEquation
from torchsko.errors import MechanismError
from torchsko.implicit.equation import implicit
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, fused_methods_of
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.utils.dtype import without_autocast
from torchsko.utils.numbers import as_integer, as_number
from torchsko.verbs.held.held_mechanism import HeldMechanism
from torchsko.verbs.mechanism_inputs import without_gradients


@without_autocast
def inverse_kinematics(
    mech: MechanismLike | HeldMechanism,
    q0: Tensor,
    goals: Sequence[Goal],
    *,
    limits: bool = False,
    restarts: int = 0,
    generator: torch.Generator | None = None,
    max_iterations: int = 50,
    tolerance: float | None = None,
    stop_early: bool = False,
) -> IKResult:
    """Find configurations that reach goals: poses of frames, the center of mass, directions, a posture.

    Goals of priority 0 are reached first. The result minimizes the squared weighted errors of the goals of
    the largest priority number, subject to all others, or comes near a local minimum where goals are out of
    reach. All samples run `max_iterations` iterations without host-device synchronization; iterations after
    convergence change nothing. With a fused mechanism, all iterations of all samples are one kernel, which
    skips converged samples. In a function of `torchsko.fuse` they are a loop of its kernel.

    The derivatives of q with respect to targets, weights and parameters are those of the solution, of any
    order and in both modes. Where solutions are not unique, they have minimal norm. The derivative with
    respect to q0 is zero. They are valid where the gradient vanishes: at reached goals, and at the nearest
    point to an unreachable goal of the last priority after convergence. Unreachable targets take more
    iterations: half a meter beyond an arm's reach takes about 300, and after 50 the result may be a
    centimeter off. With `limits`, a joint that its limit keeps from a target moves with that limit. At
    reached targets no limit is active.

    Args:
        mech: the mechanism. A fused mechanism runs its kernels. The constraints of a held mechanism
            (`torchsko.constrain`) come before all goals; frames without a placement stay where they are in
            q0.
        q0: initial guess, `[*batch, num_q]`; quaternions are normalized.
        goals: `FrameGoal`, `AxisGoal`, `LookAtGoal`, `CenterOfMassGoal` and `PostureGoal` objects of
            `torchsko.control`.
        limits: keep joints between ``mech.lower`` and ``mech.upper``. Spherical and free joints, and
            dependent joints of loops, are not limited; limits of ball joints in a file are listed in
            ``mech.unused``.
        restarts: number of further initial guesses, random within limits. The result is the first one that
            reaches the goals, or else the nearest. All run in parallel.
        generator: random generator of these guesses, on the mechanism's device.
        max_iterations: number of iterations.
        tolerance: norm of the weighted errors below which the goals count as reached. Default: square root
            of the machine epsilon.
        stop_early: stop when all samples have converged. The host then waits for the device after each
            iteration. Random `restarts` are not available under `torch.vmap`: batch q0 there.

    Returns:
        q, residual, converged, iterations; see `IKResult`.

    Raises:
        MechanismError: on an unknown frame, no goals, or an invalid target or weight. On an option of the
            wrong type. On a call inside torch.compile.
        FusedError: on `restarts` in a function of `torchsko.fuse`, which draws no random numbers.
        ShapeError: when q0 or a target does not fit.

    Reference: Yamashita, Fukushima 2001, On the rate of convergence of the Levenberg-Marquardt method (the
    damping); Bertsekas 1982, Projected Newton methods (limits); Escande, Mansard, Wieber 2014, Hierarchical
    quadratic programming (priorities).

    Example:
        >>> import torchsko as ts, torch
        >>> from torchsko.control import FrameGoal
        >>> arm = ts.load(ts.robots.panda)
        >>> g = torch.Generator().manual_seed(0)
        >>> q, _ = arm.random_state(generator=g)
        >>> goal = FrameGoal("flange", ts.frame_pose(arm, q, "flange"))
        >>> found = ts.inverse_kinematics(arm, arm.middle(), [goal], restarts=8, generator=g)
        >>> found.converged
        tensor(True)
    """
    if torch.compiler.is_compiling():
        raise MechanismError(
            "inverse_kinematics was called inside torch.compile.",
            "The compiler would unroll its iterations.",
            "Call it outside the compiled function, or mark that part with torch.compiler.disable.",
        )
    held = mech.constraints.rows if isinstance(mech, HeldMechanism) else None
    source = mech.source if isinstance(mech, HeldMechanism) else mech
    original = as_mechanism(source)
    check_state(original, q0=q0)
    robot, rows, tensors, batches = parse_goals(original, goals, held, q0)
    restarts, max_iterations, tolerance = _check_options(
        restarts, max_iterations, tolerance, limits, stop_early, generator
    )
    tolerance = float(torch.finfo(robot.dtype).eps ** 0.5 if tolerance is None else tolerance)
    batch = shared_batch({"the mechanism": robot.batch_shape, "q0": q0.shape[:-1]} | batches)
    start = q0.expand(*batch, robot.num_q)[None]
    if restarts:
        guesses = robot.random_state(restarts, *batch, generator=generator)[0]
        start = torch.cat([start, guesses])
    constant = without_gradients(robot)
    # Kernels do not support frames added at call time.
    fast = source if fused_methods_of(source) and robot is original else None
    method = LevenbergMarquardt(rows, limits, max_iterations, tolerance, stop_early)
    with torch.no_grad():
        detached = (x.detach() for x in tensors)
        best = method.solve(constant, fast, start.detach(), *detached).best()
    equation = StationaryEquation.of(robot, rows, limits)
    parameters = (getattr(robot, name) for name in PARAMETERS)
    x = implicit(equation, torch.cat([best.q, best.multipliers], -1), *parameters, *tensors)
    q = x[..., : robot.num_q]
    residual = rows.error(robot if fast is None else fast, tensors, q)
    converged, iterations = best.converged != 0, best.iterations
    if not is_scalar_form():  # a traced function computes real numbers only
        iterations = iterations.to(torch.int64)
    return IKResult(q, rows.in_given_order(residual), converged, iterations)


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
