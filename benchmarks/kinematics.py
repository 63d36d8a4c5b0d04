"""Matrices that control and optimization ask for, beside Pinocchio's C++ templates on the same cores.

Usage: python benchmarks/kinematics.py [panda] [talos] [--batch 4096] [--threads 1] [--passes 9] [--only NAME]
Derivatives of forward and inverse dynamics, Jacobians of four frames, the centroidal map, the torque
regressor, A and B of a step: one kernel each by `ts.fuse`, float64, on the same states, after a check that
both agree (the largest difference relative to the largest entry). Contestants run interleaved; a ratio is
the median over passes of the ratio within a pass, with its extremes. Beside them: how large a result is, and
how long `zero_` takes for as much memory, which computes nothing. Inverse kinematics:
benchmarks/inverse_kinematics.py.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from cases import Case, floating_humanoid, panda
from peers.pinocchio_cpp import MATRICES, matrices
from report import origin
from timing import interleaved, ratio
from torch import Tensor

import torchsko as ts

ROBOTS = {"panda": panda, "talos": floating_humanoid}
FRAMES = 4


def kernels(case: Case, frames: list[str]) -> dict[str, Callable[[], Tensor | tuple[Tensor, ...]]]:
    """Torchsko's call for each of `MATRICES`."""
    fast, (q, qd, qdd, tau) = ts.fuse(case.robot.mech), (case.q, case.qd, case.qdd, case.tau)
    return {
        "forward_derivatives": lambda: fast.forward_dynamics_derivatives(q, qd, tau),
        "inverse_derivatives": lambda: fast.inverse_dynamics_derivatives(q, qd, qdd),
        "jacobians": lambda: fast.frame_jacobian(q, frames),
        "centroidal": lambda: fast.centroidal_momentum_matrix(q),
        "regressor": lambda: fast.torque_regressor(q, qd, qdd),
        "step": lambda: fast.linearize(ts.State(q, qd), tau, dt=1e-3),
    }


def compared(name: str, mine: Tensor | tuple[Tensor, ...], case: Case) -> Tensor:
    """Torchsko's result in the layout of Pinocchio's, to be permuted in its dofs."""
    if name in ("forward_derivatives", "inverse_derivatives"):
        return torch.stack(tuple(mine), 1)
    if name == "step":
        return torch.cat(tuple(mine), -1)
    return mine.flatten(-2) if name == "regressor" else mine  # type: ignore[union-attr]


def difference(name: str, mine: Tensor, theirs: Tensor, case: Case) -> float:
    """The largest, relative to the largest entry, over the dofs in Pinocchio's order.

    Not a number for a step of a robot that floats: its rates are along axes that are not turned in a step,
    Pinocchio's turn.
    """
    if name == "step":
        floats = case.robot.floating_base
        return math.nan if floats else float((mine - theirs).abs().max() / theirs.abs().max())
    dofs = torch.arange(case.robot.mech.num_dof)
    if case.robot.floating_base:  # theirs is linear first
        dofs = torch.cat([dofs[3:6], dofs[:3], dofs[6:]])
    rows = torch.tensor([3, 4, 5, 0, 1, 2])
    if name in ("forward_derivatives", "inverse_derivatives"):
        mine = mine[..., dofs, :][..., dofs]
    elif name == "regressor":
        mine = mine[..., dofs, :]
    else:
        mine = mine[..., dofs].index_select(-2, rows)
    return float((mine - theirs).abs().max() / theirs.abs().max())


def measure(robot: str, batch: int, args: argparse.Namespace) -> None:
    case = Case.random(ROBOTS[robot](), torch.float64, batch, args.threads)
    mech = case.robot.mech
    joints = [round((k + 1) * (mech.num_bodies - 1) / FRAMES) for k in range(FRAMES)]
    ours = kernels(case, [mech.body_names[k] for k in joints])
    theirs = matrices(case, joints)
    print(f"\n{robot}, {mech.num_dof} dofs, batch {batch}, {args.threads} thread(s), float64")
    print(
        "| | build s | difference | result kB | zero_ us | Pinocchio C++ us | torchsko us | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in args.only or MATRICES:
        start = time.perf_counter()
        ours[name]()
        built = time.perf_counter() - start
        run, result = theirs[name]
        run()
        mine = ours[name]()
        off = difference(name, compared(name, mine, case), result(), case)
        memory = torch.cat([x.flatten() for x in (mine if isinstance(mine, tuple) else (mine,))])
        of = {"cleared": memory.zero_, "theirs": run, "ours": ours[name]}
        seconds = interleaved(of, args.passes, args.slot)
        cleared, theirs_us, ours_us = (1e6 * statistics.median(seconds[who]) / batch for who in of)
        print(f"| {name} | {built:.0f} | {off:.0e} | {memory.nbytes / batch / 1e3:.3g} | {cleared:.3g} "
              f"| {theirs_us:.3g} | {ours_us:.3g} | {ratio(seconds['theirs'], seconds['ours'])} |",
              flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    # argparse checks a default against the choices, too: one of them it has to be.
    parser.add_argument("robots", nargs="*", choices=[*ROBOTS, "all"], default="all")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1, help="of both")
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--slot", type=float, default=0.3, help="seconds of a contestant in a pass")
    parser.add_argument("--only", nargs="*", choices=MATRICES)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(origin(args.threads))
    for robot in ROBOTS if "all" in args.robots else args.robots:
        measure(robot, args.batch, args)


if __name__ == "__main__":
    main()
