"""A jump of the A1 by optimal control with phases, beside Crocoddyl with the same dynamics and costs.

Usage: python benchmarks/phases.py [--batch 64] [--iterations 100] [--eager]
Stance 20 steps, flight 15, an impact and landing 10, of 10 ms, from standing; the guess is standing in all
states, with the torques that hold it. Crocoddyl 3.2.1 needs pin==4.0.0: `pip install crocoddyl pin==4.0.0
libpinocchio==4.0.0` in an environment of its own. Times are of the processor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import origin
from torch import Tensor

import torchsko as ts

STANCE, FLIGHT, LANDING, DT = 20, 15, 10, 0.01
EFFORT, POSTURE, SPEED, FOOT, END, STOP = 0.05, 1.0, 0.3, 100.0, 30.0, 3.0
"""Weights of residuals: torques, posture and velocities of a step, touchdown, state at the end."""

AHEAD = (0.3, 0.0, 0.0)
"""Displacement of the feet and of the body by the jump [m]."""


def lie_euler(
    mech: ts.Mechanism, accelerate: Any, t: float, q: Tensor, qd: Tensor, dt: float
) -> tuple[Tensor, Tensor]:
    """Semi-implicit Euler with the exponential of SE(3), as in Crocoddyl."""
    qd = qd + dt * accelerate(mech, t, q, qd)
    return ts.integrate(mech, q, dt * qd), qd


def robot_file() -> str:
    """The A1 of example-robot-data."""
    import pinocchio

    data = Path(pinocchio.__file__).parents[4] / "share/example-robot-data/robots"
    return str(data / "a1_description/urdf/a1.urdf")


def quadruped() -> tuple[ts.Mechanism, list[str], Tensor]:
    """The robot, its feet, and the standing configuration."""
    dog = ts.load(robot_file(), floating_base=True)
    feet = [name for name in dog.frame_names if name.endswith("foot")]
    q = torch.cat([dog.neutral()[:7], torch.tensor([0.0, -0.8, 1.6] * 4).double()])
    height = ts.frame_pose(dog, q, feet).position[:, 2].min()
    return dog, feet, q - height * torch.eye(len(q)).double()[2]


def jump(dog: ts.Mechanism, feet: list[str], stand: Tensor, fuse: Any) -> Any:
    """The problem; its goal is the displacement."""
    held = ts.constrain(dog, [ts.HeldFrame(foot) for foot in feet])
    still, base = torch.zeros(18).double(), torch.eye(3, 19).double()
    places = ts.frame_pose(dog, stand, feet).position

    def moved(ahead: Tensor) -> Tensor:
        return stand + ahead @ base

    def running(mech: ts.Mechanism, q: Tensor, qd: Tensor, u: Tensor, *_: Tensor) -> Tensor:
        return DT**0.5 * torch.cat([EFFORT * u, POSTURE * (q - stand)[..., 7:], SPEED * qd], -1)

    def touchdown(mech: ts.Mechanism, q: Tensor, qd: Tensor, ahead: Tensor) -> Tensor:
        position = ts.frame_pose(mech, q, feet).position
        return FOOT * (position - places - ahead[..., None, :]).flatten(-2)

    def end(mech: ts.Mechanism, q: Tensor, qd: Tensor, ahead: Tensor) -> Tensor:
        return torch.cat([END * ts.difference(mech, moved(ahead), q), STOP * (qd - still)], -1)

    phases = [
        ts.control.Phase(held, STANCE, DT, running, method=lie_euler),
        ts.control.Phase(dog, FLIGHT, DT, running, touchdown, method=lie_euler),
        ts.control.Phase(held, LANDING, DT, running, end, impact=True, method=lie_euler),
    ]
    goals, motors = {"ahead": (3,)}, dog.joint_names[1:]
    return ts.control.optimal_control(phases, goals=goals, actuated=motors, fuse=fuse)


def standing_torques(dog: ts.Mechanism, feet: list[str], q: Tensor) -> Tensor:
    """Torques of the motors under a quarter of the weight on each foot."""
    gravity = ts.gravity_force(dog, q)
    weight = gravity.new_tensor([0.0, 0.0, 9.81 * float(dog.mass.sum()) / len(feet)])
    J = ts.frame_jacobian(dog, q, feet, reference="mixed")[..., 3:, :]
    return (gravity - (J.mT @ weight).sum(0))[6:]


def crocoddyl_solver(
    dog: ts.Mechanism, feet: list[str], stand: Tensor, guess: Tensor
) -> tuple[Any, ...]:
    """The problem of Crocoddyl with its initial guess, and the order of our coordinates in it."""
    import crocoddyl
    import pinocchio as pin

    model = pin.buildModelFromUrdf(robot_file(), pin.JointModelFreeFlyer())
    convention = ts.conventions("pinocchio", dog, list(model.names)[1:])
    state = crocoddyl.StateMultibody(model)
    actuation = crocoddyl.ActuationModelFloatingBase(state)
    ids, n = [model.getFrameId(foot) for foot in feet], model.nv
    reference = convention.q_to(stand).numpy()
    goal = reference.copy()
    goal[:3] += AHEAD
    places = ts.frame_pose(dog, stand, feet).position.numpy() + np.array(AHEAD)

    def costs(kind: str, nu: int) -> Any:
        sums = crocoddyl.CostModelSum(state, nu)

        def add(name: str, weights: Any, residual: Any) -> None:
            square = crocoddyl.ActivationModelWeightedQuad(np.square(weights))
            sums.addCost(name, crocoddyl.CostModelResidual(state, square, residual), 1.0)

        if kind == "running":
            x = np.concatenate([reference, np.zeros(n)])
            add("effort", np.full(nu, EFFORT), crocoddyl.ResidualModelControl(state, nu))
            weights = [0.0] * 6 + [POSTURE] * 12 + [SPEED] * n
            add("state", weights, crocoddyl.ResidualModelState(state, x, nu))
        elif kind == "touchdown":
            for k, place in zip(ids, places, strict=True):
                residual = crocoddyl.ResidualModelFrameTranslation(state, k, place, nu)
                add(f"foot {k}", np.full(3, FOOT), residual)
        else:
            x = np.concatenate([goal, np.zeros(n)])
            weights = [END] * n + [STOP] * n
            add("end", weights, crocoddyl.ResidualModelState(state, x, nu))
        return sums

    def contact(kind: str, dt: float) -> Any:
        contacts = crocoddyl.ContactModelMultiple(state, actuation.nu)
        for k in ids:
            world = pin.ReferenceFrame.LOCAL_WORLD_ALIGNED
            one = crocoddyl.ContactModel3D(state, k, np.zeros(3), world, actuation.nu, np.zeros(2))
            contacts.addContact(f"contact {k}", one)
        differential = crocoddyl.DifferentialActionModelContactFwdDynamics(
            state, actuation, contacts, costs(kind, actuation.nu), 0.0, True
        )
        return crocoddyl.IntegratedActionModelEuler(differential, dt)

    free = crocoddyl.IntegratedActionModelEuler(
        crocoddyl.DifferentialActionModelFreeFwdDynamics(
            state, actuation, costs("running", actuation.nu)
        ),
        DT,
    )
    impulses = crocoddyl.ImpulseModelMultiple(state)
    for k in ids:
        world = pin.ReferenceFrame.LOCAL_WORLD_ALIGNED
        impulses.addImpulse(f"impulse {k}", crocoddyl.ImpulseModel3D(state, k, world))
    impact = crocoddyl.ActionModelImpulseFwdDynamics(
        state, impulses, costs("touchdown", 0), 0.0, 0.0, True
    )
    stance = contact("running", DT)
    models = [stance] * STANCE + [free] * FLIGHT + [impact] + [stance] * LANDING
    x0 = np.concatenate([reference, np.zeros(n)])
    problem = crocoddyl.ShootingProblem(x0, models, contact("end", 0.0))
    joints = [model.names[k] for k in range(2, model.njoints)]
    order = [list(dog.joint_names[1:]).index(name) for name in joints]
    us = [np.zeros(0) if m is impact else guess.numpy()[order] for m in models]
    return crocoddyl.SolverFDDP(problem), [x0] * (len(models) + 1), us, order


def least(call: Callable[[], Any]) -> float:
    """Seconds of the processor, the least of three calls."""
    times = []
    for _ in range(3):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(origin(1))
    dog, feet, stand = quadruped()
    hold = standing_torques(dog, feet, stand)
    steps = STANCE + FLIGHT + LANDING
    fuse = None if args.eager else partial(ts.fuse, verify=False)
    problem = jump(dog, feet, stand, fuse)
    q, qd = stand, torch.zeros(18).double()
    u, ahead = hold.expand(steps, -1), torch.tensor(AHEAD, dtype=torch.float64)
    states = q.expand(steps + 1, -1), qd.expand(steps + 1, -1)

    def ours(count: int, *batch: int) -> Any:
        return ts.control.ilqr(
            problem, q, qd, u, ahead.expand(*batch, 3), states=states, tolerance=1e-6,
            max_iterations=count,
        )  # fmt: skip

    began = time.process_time()
    ours(1)
    print(f"kernels ready after {time.process_time() - began:.1f} s")
    ours(1, args.batch)  # larger batches have kernels with wider vectors
    found = ours(args.iterations)
    count = int(found.iterations)
    spent = [least(lambda b=b: ours(args.iterations, *b)) / count for b in ((), (args.batch,))]
    print(
        f"torchsko: cost {found.cost:.10g} after {count} iterations, converged {bool(found.converged)}, "
        f"gradient {found.gradient:.2g}, gap {found.gap:.2g}; {1e3 * spent[0]:.3g} ms an iteration, in a "
        f"batch of {args.batch} {1e3 * spent[1] / args.batch:.3g} ms"
    )
    try:
        solver, xs, us, order = crocoddyl_solver(dog, feet, stand, hold)
    except ImportError:
        raise SystemExit("Crocoddyl is not installed; see the head of this file") from None
    solver.th_stop = 1e-12
    done = solver.solve(xs, us, args.iterations, False)
    spent = least(lambda: solver.solve(xs, us, args.iterations, False)) / solver.iter
    print(
        f"Crocoddyl: cost {solver.cost:.10g} after {solver.iter} iterations, converged {done}; "
        f"{1e3 * spent:.3g} ms an iteration"
    )
    theirs = torch.tensor(np.array([x for x in solver.us if len(x)]))[:, np.argsort(order)]
    replayed = ts.control.ilqr(problem, q, qd, theirs, ahead, max_iterations=0)
    replay, ratio = (float(x.cost) / solver.cost - 1 for x in (replayed, found))
    print(
        f"relative difference: of their controls replayed here {replay:.2g}, of our cost {ratio:.2g}"
    )


if __name__ == "__main__":
    main()
