"""Reaching with the Panda by iterative LQR: many problems at once, beside Crocoddyl one after the other.

Usage: python benchmarks/ilqr.py [--problems 1024] [--threads 2] [--beside 32] [--first 40] [--iterations 10]
Random starts and random points to reach within limits, horizon 50 of 20 ms, from the torques that hold the
start, float64; the same costs (Gauss and Newton), the same semi-implicit Euler step. Each problem counts as
solved where the norm of the gradient of its cost by all torques is below 1e-6; of Crocoddyl's solution, too,
the gradient is asked of the same function. Crocoddyl solves the first `--beside` problems; its final cost is
printed beside ours, since both may end in different valleys. Its 3.2.1 crashes on the newest Pinocchio: give
it an environment of its own, `pip install crocoddyl pin==4.0.0 libpinocchio==4.0.0`.

With --iterations instead the processor time of an iteration: of calls with 1 and with that many iterations
from the start, in batches of 1 and 256, with a horizon of 40 steps and one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from report import origin
from torch import Tensor

import torchsko as ts

STEPS, DT, TOLERANCE = 50, 0.02, 1e-6
FRAME = "flange"
ARMATURE = 0.1
"""Inertia of the motors at the joints [kg m^2]."""

EFFORT, SPEED, GOAL, REST = 0.1, 0.5, 30.0, 3.0
"""Weights of residuals: torques beyond those that hold the start, speeds, and at the end miss and speeds."""


def running(
    mech: ts.Mechanism, q: Tensor, qd: Tensor, u: Tensor, hold: Tensor, _: Tensor
) -> Tensor:
    """Residuals of a step."""
    return DT**0.5 * torch.cat([EFFORT * (u - hold), SPEED * qd], -1)


def final(mech: ts.Mechanism, q: Tensor, qd: Tensor, _: Tensor, target: Tensor) -> Tensor:
    """Residuals at the end."""
    return torch.cat([GOAL * (ts.frame_pose(mech, q, FRAME).position - target), REST * qd], -1)


def with_motors(arm: ts.Mechanism) -> ts.Mechanism:
    """Without losses, too: Crocoddyl's forward dynamics know neither damping nor dry friction."""
    none = torch.zeros_like(arm.damping)
    return arm.replace(damping=none, friction=none, armature=none + ARMATURE, has_losses=False)


def tasks(arm: ts.Mechanism, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Starts, the torques that hold them, and points to reach."""
    g = torch.Generator().manual_seed(0)
    (start, _), (end, _) = (arm.random_state(count, generator=g) for _ in range(2))
    hold = ts.gravity_force(arm, start)
    return start, hold, ts.frame_pose(arm, end, FRAME).position


def ours(
    problem: ts.control.OptimalControl, start: Tensor, hold: Tensor, target: Tensor, first: int
) -> tuple[ts.control.ILQRResult, Tensor]:
    """All problems solved, and the steps that each took: some iterations of LQR, then Newton's."""
    u = hold[:, None].expand(-1, STEPS, -1)
    still = torch.zeros_like(start)
    found = ts.control.ilqr(
        problem, start, still, u, hold, target, tolerance=TOLERANCE, max_iterations=first
    )
    steps = found.iterations
    found = ts.control.ilqr(
        problem, start, still, found.u, hold, target, exact=True, tolerance=TOLERANCE,
        max_iterations=300,
    )  # fmt: skip
    return found, steps + found.iterations


def gradient(
    arm: ts.Mechanism,
    fast: ts.fused.FusedMechanism,
    start: Tensor,
    u: Tensor,
    hold: Tensor,
    target: Tensor,
) -> tuple[Tensor, Tensor]:
    """The cost of torques `[*batch, steps, 7]`, and the norm of its gradient, by the rollout's kernel."""
    u = u.detach().requires_grad_()
    q, qd, *_ = ts.rollout(fast, ts.State(start, torch.zeros_like(start)), u, steps=STEPS, dt=DT)
    steps = running(arm, q[..., :-1, :], qd[..., :-1, :], u, hold[..., None, :], target)
    end = final(arm, q[..., -1, :], qd[..., -1, :], hold, target)
    cost = steps.square().sum((-1, -2)) / 2 + end.square().sum(-1) / 2
    (found,) = torch.autograd.grad(cost.sum(), u)
    return cost.detach(), found.square().sum((-1, -2)).sqrt()


def crocoddyl_problem(threads: int, steps: int) -> Callable[[Tensor, Tensor, Tensor], Any]:
    """Makes the solver of one problem, its states and its inputs at the start."""
    import crocoddyl
    import pinocchio as pin

    kept: list[object] = []  # crocoddyl's objects do not keep one another alive

    def made(kind: str, *args: object) -> Any:
        kept.append(getattr(crocoddyl, kind)(*args))
        return kept[-1]

    model = pin.buildModelFromUrdf(str(ts.robots.panda))
    kept.append(model)
    state = made("StateMultibody", model)
    actuation = made("ActuationModelFull", state)
    frame, n = model.getFrameId(FRAME, pin.FrameType.BODY), model.nv

    def cost(weights: list[float], residual: object) -> object:
        activation = made("ActivationModelWeightedQuad", np.square(weights))
        return made("CostModelResidual", state, activation, residual)

    def action(hold: np.ndarray, target: np.ndarray, last: bool) -> object:
        costs = made("CostModelSum", state)
        still = made("ResidualModelState", state, np.zeros(2 * n))
        costs.addCost("speed", cost([0.0] * n + [REST if last else SPEED] * n, still), 1.0)
        if last:
            miss = made("ResidualModelFrameTranslation", state, frame, target)
            costs.addCost("miss", cost([GOAL] * 3, miss), 1.0)
        else:
            effort = made("ResidualModelControl", state, hold)
            costs.addCost("effort", cost([EFFORT] * n, effort), 1.0)
        differential = made("DifferentialActionModelFreeFwdDynamics", state, actuation, costs)
        differential.armature = np.full(n, ARMATURE)
        return made("IntegratedActionModelEuler", differential, 0.0 if last else DT)

    def make(start: Tensor, hold: Tensor, target: Tensor) -> Any:
        x0 = np.concatenate([start.numpy(), np.zeros(n)])
        along, end = (action(hold.numpy(), target.numpy(), last) for last in (False, True))
        problem = made("ShootingProblem", x0, [along] * steps, end)
        problem.nthreads = threads
        solver = made("SolverDDP", problem)
        solver.th_stop = TOLERANCE**2  # it compares the sum of |Q_u|^2
        guess = [hold.numpy()] * steps
        return solver, problem.rollout(guess), guess

    return make


def print_iterations(arm: ts.Mechanism, count: int) -> None:
    """Print the time of an iteration in calls of 1 and of `count` iterations, beside Crocoddyl."""
    steps, batch = 40, 256
    start, hold, target = tasks(arm, batch)
    problem = reaching(arm, steps, partial(ts.fuse, verify=False))
    u = hold[:, None].expand(-1, steps, -1)

    def ours(rows: int, most: int) -> ts.control.ILQRResult:
        given = (x[:rows] for x in (start, 0 * start, u, hold, target))
        return ts.control.ilqr(problem, *given, max_iterations=most, tolerance=TOLERANCE)

    for rows in (1, batch):
        for most in (1, count):
            spent, found = least(partial(ours, rows, most))
            mean = 1e3 * spent / float(found.iterations.sum())
            cost = "" if rows > 1 else f", cost {float(found.cost):.5g}"
            print(f"torchsko, batch {rows}, calls of {most}: {mean:.3g} ms an iteration{cost}")
    try:
        make = crocoddyl_problem(1, steps)
    except ImportError:
        return print("Crocoddyl is not installed")
    for rows in (1, 16):
        given = [make(*task) for task in zip(start[:rows], hold, target, strict=False)]
        for most in (1, count):

            def solve(most: int = most, given: Any = given) -> list[Any]:
                return [solver.solve(xs, us, most, True) for solver, xs, us in given]

            spent, _ = least(solve)
            mean = 1e3 * spent / sum(solver.iter for solver, *_ in given)
            cost = "" if rows > 1 else f", cost {given[0][0].cost:.5g}"
            print(
                f"Crocoddyl, {rows} one by one, calls of {most}: {mean:.3g} ms an iteration{cost}"
            )


def least(call: Callable[[], Any], runs: int = 30) -> tuple[float, Any]:
    """Least seconds of the processor of several calls, and the result."""
    best, found = float("inf"), call()
    for _ in range(runs):
        began = time.process_time()
        found = call()
        best = min(best, time.process_time() - began)
    return best, found


def reaching(arm: ts.Mechanism, steps: int, fuse: Callable[..., Any]) -> ts.control.OptimalControl:
    """The problem of a number of steps."""
    reach = ts.control.Phase(arm, steps, DT, running, final)
    goals = {"hold": (arm.num_dof,), "target": (3,)}
    return ts.control.optimal_control([reach], goals=goals, fuse=fuse)


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """A result, the seconds on the clock, and those of the processor."""
    began, worked = time.perf_counter(), time.process_time()
    found = call()
    return found, time.perf_counter() - began, time.process_time() - worked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=1024)
    parser.add_argument("--beside", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--first", type=int, default=40, help="iterations before Newton's")
    parser.add_argument("--iterations", type=int, help="time an iteration alone")
    args = parser.parse_args()
    threads = 1 if args.iterations else args.threads
    torch.set_num_threads(threads)
    print(origin(threads))
    arm = with_motors(ts.load(ts.robots.panda))
    if args.iterations:
        return print_iterations(arm, args.iterations)
    start, hold, target = tasks(arm, args.problems)
    problem = reaching(arm, STEPS, ts.fuse)
    began = time.perf_counter()
    ours(problem, start[:2], hold[:2], target[:2], 1)
    print(f"kernels ready in {time.perf_counter() - began:.1f} s", flush=True)
    (found, steps), spent, cpu = timed(lambda: ours(problem, start, hold, target, args.first))
    fast = ts.fuse(arm)
    cost, norm = gradient(arm, fast, start, found.u, hold, target)
    count, steps = int((norm <= 2 * TOLERANCE).sum()), steps.double()
    print(
        f"torchsko: {args.problems} problems, {STEPS} steps of {DT} s, {args.threads} threads: "
        f"{spent:.3g} s, {1e3 * spent / args.problems:.3g} ms a problem, "
        f"of the processor {1e3 * cpu / args.problems:.3g} ms"
    )
    print(
        f"  converged {int(found.converged.sum())}, by the gradient of the rollout {count}; iterations "
        f"median {steps.median():.0f}, mean {steps.mean():.1f}, most {steps.max():.0f}; "
        f"{1e6 * cpu / steps.sum():.3g} us of the processor an iteration; largest gradient {norm.max():.2g}",
        flush=True,
    )
    try:
        make = crocoddyl_problem(args.threads, STEPS)
    except ImportError:
        raise SystemExit(
            "not installed: pip install crocoddyl pin==4.0.0 libpinocchio==4.0.0"
        ) from None

    def theirs(*task: Tensor) -> tuple[Tensor, int]:
        solver, xs, us = make(*task)
        solver.solve(xs, us, 300, True)
        return torch.tensor(np.array(solver.us)), solver.iter

    some = slice(min(args.beside, args.problems))
    rows, spent_there, cpu_there = timed(
        lambda: [theirs(*task) for task in zip(start[some], hold[some], target[some], strict=True)]
    )
    u, numbers = zip(*rows, strict=True)
    cost_there, norm_there = gradient(
        arm, fast, start[some], torch.stack(u), hold[some], target[some]
    )
    each, each_cpu = (1e3 * x / len(rows) for x in (spent_there, cpu_there))
    print(
        f"Crocoddyl: {len(rows)} of them, one by one, {args.threads} threads: {each:.3g} ms a problem, "
        f"of the processor {each_cpu:.3g} ms; ratio {each / (1e3 * spent / args.problems):.3g}x, "
        f"of the processor {each_cpu / (1e3 * cpu / args.problems):.3g}x"
    )
    print(
        f"  gradient below {TOLERANCE}: {int((norm_there <= TOLERANCE).sum())} (largest "
        f"{norm_there.max():.2g}); iterations mean {sum(numbers) / len(rows):.1f}, "
        f"{1e6 * cpu_there / sum(numbers):.3g} us of the processor each"
    )
    same = (cost[some] - cost_there).abs() <= 1e-6 * cost_there
    lower = int((cost[some] < cost_there)[~same].sum())
    print(f"  same final cost to 1e-6: {int(same.sum())}; of the others ours is lower in {lower}")


if __name__ == "__main__":
    main()
