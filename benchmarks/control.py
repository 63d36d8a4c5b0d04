"""Control: latency of a law, MPPI, whole-body control, and the scripts of optimal control and kinematics.

    python benchmarks/control.py [torque] [mppi] [talos] [quadruped] [programs] [scripts]

`torque` is the computed torque of a Panda at batch 1, from tensors and from NumPy and back. `mppi` updates a
plan of 30 steps from 1024 samples with two threads. TALOS stands on two soles, the quadruped on four feet,
both at random velocities; the law has an objective of the center of mass and one of the posture, and at most
15 iterations. `programs` compares solutions of its programs with quadprog, and gradients with differences.
`scripts` runs `ilqr.py`, `phases.py`, `inverse_kinematics_goals.py` and `builds.py`, in this order. Processor
time of one thread: the least of several runs, since other processes disturb them; of `mppi` also time by the
clock. Peers are optional: `pip install crocoddyl pin==4.0.0 libpinocchio==4.0.0 example-robot-data quadprog`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from builds import print_build
from cases import floating_humanoid
from ilqr import with_motors
from quadratic import ON_FEET, law, programs, robot, soles, standing_humanoid, states
from report import origin
from torch import Tensor

import torchsko as ts
from torchsko.control import Contact
from torchsko.control.qp import solve_qp

SCRIPTS = (
    ("ilqr.py", "--iterations", "10"),
    ("phases.py",),
    ("inverse_kinematics_goals.py",),
    ("builds.py", "delta", "stewart"),
)
"""Scripts of the other lines, with their arguments."""

BATCHES = (1, 256)
CALLS = 1000


class Case(NamedTuple):
    """A robot on contacts, and the figures asked for."""

    mech: Callable[[], ts.Mechanism]
    states: Callable[[int], tuple[Tensor, Tensor]]
    contacts: Callable[[], Sequence[Contact]]
    build: float  # seconds
    scratch: float  # kB a sample
    call: float  # ms at batch 1


CASES = {
    "talos": Case(
        lambda: floating_humanoid().mech, standing_humanoid, soles, build=15, scratch=40, call=1.5
    ),
    "quadruped": Case(robot, states, lambda: ON_FEET, build=8, scratch=40, call=0.15),
}


def least_time(
    call: Callable[[], object],
    runs: int,
    count: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Least seconds of a call; runs that are shorter than a time slice are undisturbed by other processes."""
    call()
    times = []
    for _ in range(runs):
        start = clock()
        for _ in range(count):
            call()
        times.append((clock() - start) / count)
    return min(times)


def microseconds(call: Callable[[], object]) -> float:
    """Time of a short call by the clock."""
    return 1e6 * least_time(call, 1000, 50, time.perf_counter)


def computed_torque(
    mech: ts.Mechanism, q: Tensor, qd: Tensor, aim: Tensor, rate: Tensor, accel: Tensor
) -> Tensor:
    """Torques that make the error of the motion decay."""
    return ts.inverse_dynamics(mech, q, qd, accel + 100 * (aim - q) + 20 * (rate - qd))


def print_torque() -> None:
    """Latency of computed torque as a kernel."""
    arm, g = ts.load(ts.robots.panda), torch.Generator().manual_seed(0)
    shapes = {name: (arm.num_dof,) for name in ("aim", "rate", "accel")}
    fast = ts.fuse(computed_torque, arm, shapes=shapes)
    tensors = (*arm.random_state(generator=g), *arm.random_state(generator=g))
    tensors = (*tensors, tensors[1])
    arrays = [x.numpy() for x in tensors]
    same = np.array_equal(fast.numpy(*arrays), fast(*tensors).numpy())
    direct, back = microseconds(partial(fast, *tensors)), microseconds(partial(fast.numpy, *arrays))
    print(
        f"computed torque, batch 1: {direct:.1f} us (asked 6), from NumPy and back {back:.1f} us "
        f"(asked 12), equal results {same}"
    )
    try:
        import pinocchio as pin
    except ImportError:
        return
    model = pin.buildModelFromUrdf(str(ts.robots.panda))
    data = model.createData()

    def theirs(
        q: np.ndarray, qd: np.ndarray, aim: np.ndarray, rate: np.ndarray, accel: np.ndarray
    ) -> np.ndarray:
        return pin.rnea(model, data, q, qd, accel + 100 * (aim - q) + 20 * (rate - qd))

    print(f"the same by Pinocchio in Python: {microseconds(partial(theirs, *arrays)):.1f} us")


def print_mppi() -> None:
    """Updates of a plan by MPPI in a second: a Panda in float32 reaches for a point."""
    arm = with_motors(ts.load(ts.robots.panda)).to(torch.float32)

    def running(mech: ts.Mechanism, q: Tensor, qd: Tensor, u: Tensor, target: Tensor) -> Tensor:
        miss = ts.frame_pose(mech, q, "flange").position - target
        return torch.cat([0.03 * u, 0.2 * qd, 10 * miss], -1)

    reach = ts.control.Phase(arm, 30, 0.02, running)
    bounds = (-arm.effort_limit, arm.effort_limit)
    problem = ts.control.optimal_control(
        [reach], goals={"target": (3,)}, bounds=bounds, fuse=ts.fuse
    )
    q, target = torch.tensor([0.0, 0.3, 0.0, -1.8, 0.0, 2.1, 0.0]), torch.tensor([0.5, 0.2, 0.5])
    u = ts.gravity_force(arm, q).expand(30, -1)
    deviation = torch.full((arm.num_dof,), 5.0)

    def update() -> ts.control.MPPIResult:
        given = problem, q, 0 * q, u, target
        return ts.control.mppi(*given, deviation=deviation, temperature=1.0, samples=1024, seed=0)

    for threads in (1, 2):
        torch.set_num_threads(threads)
        clock, processor = (
            least_time(update, 300, clock=clock) for clock in (time.perf_counter, time.process_time)
        )
        asked = " (asked 200)" if threads == 2 else ""
        print(
            f"MPPI, 1024 samples of 30 steps, {threads} threads: {1 / clock:.0f} Hz by the clock{asked}, "
            f"{1e3 * processor:.2f} ms of the processor"
        )
    torch.set_num_threads(1)


def print_programs() -> None:
    """Solutions of the programs of whole-body control beside quadprog, and gradients of the law."""
    program = programs(16)
    found = solve_qp(program)
    try:
        import quadprog
    except ImportError:
        print("quadprog is not installed: left out")
    else:
        worst = 0.0
        for P, p, A, b, G, h, x in zip(*program[:6], found.x, strict=True):
            G, h = G[h.isfinite()], h[h.isfinite()]
            C, d = torch.cat([A, -G]).mT.numpy(), torch.cat([b, -h]).numpy()
            theirs = quadprog.solve_qp(P.numpy(), -p.numpy(), C, d, len(b))[0]
            worst = max(worst, float(np.abs(theirs - x.numpy()).max() / np.abs(theirs).max()))
        print(f"programs of the quadruped: {worst:.0e} from quadprog (asked 1e-8)")
    mech, (q, qd) = robot(), states(1)
    fast = ts.fuse(lambda mech, q, qd: law(mech, q, qd, ON_FEET)[0], mech)
    g = torch.Generator().manual_seed(1)
    qd, along = qd[0].clone().requires_grad_(), torch.randn(mech.num_dof, generator=g).double()
    weight = torch.randn(fast(q[0], qd).shape, generator=g).double()
    (gradient,) = torch.autograd.grad((weight * fast(q[0], qd)).sum(), qd)
    ends = [float((weight * fast(q[0], qd.detach() + s * 1e-5 * along)).sum()) for s in (1, -1)]
    slope, expected = float(gradient @ along), (ends[0] - ends[1]) / 2e-5
    error = abs(slope - expected) / abs(expected)
    print(
        f"gradient of the law's torques by the velocity: {error:.0e} from differences (asked 1e-6)"
    )


def print_law(name: str) -> None:
    """Build, scratch memory and time of a call of whole-body control."""
    case, mech = CASES[name], CASES[name].mech()
    contacts = case.contacts()
    fast = ts.fuse(lambda mech, q, qd, contacts=contacts: law(mech, q, qd, contacts), mech)
    print_build(name, partial(fast, *case.states(1)))
    print(f"{name}: asked {case.build} s, {case.scratch} kB")
    for batch in BATCHES:
        at = case.states(batch)
        seconds = least_time(partial(fast, *at), max(9, CALLS // batch))
        found, expected = fast(*at), law(mech, *at, contacts)
        error = float((found[0] - expected[0]).abs().max())
        asked = f" (asked {1e3 * case.call:.0f})" if batch == 1 else ""
        print(
            f"{name}, batch {batch}: {1e6 * seconds / batch:.0f} us a sample{asked}, "
            f"torques {error:.0e} from eager mode, residual {float(found[1].max()):.0e}"
        )


def run_scripts() -> None:
    """Run the scripts of the other lines."""
    for script, *arguments in SCRIPTS:
        print(flush=True)
        file = Path(__file__).with_name(script)
        subprocess.run([sys.executable, str(file), *arguments], check=False)


def main() -> None:
    """Print the chosen lines."""
    parts: dict[str, Callable[[], None]] = {"torque": print_torque, "mppi": print_mppi}
    parts |= {name: partial(print_law, name) for name in CASES}
    parts |= {"programs": print_programs, "scripts": run_scripts}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*parts, []])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ts.RobotFileWarning)
    print(origin(1))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHSKO_CACHE"] = folder
        for name in options.names or parts:
            parts[name]()


if __name__ == "__main__":
    main()
