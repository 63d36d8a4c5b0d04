"""A real arm's log: `python -m torchsko identify` with its defaults beside ordinary least squares.

Usage: python benchmarks/real_log.py LOG [--robot robot.urdf] [--use 0.6] [--shooting] [--sysid 60]
LOG is an NPZ file with t, q, tau, and qd where measured. The first part of it is fitted, by the command
line in a process of its own and by least squares on Pinocchio's regressor with viscous and Coulomb
friction and an offset for each joint. Both see states and forces through the same filter, and are judged
on the rest of the log, filtered alike. An error is the root mean square over the spread of the measured
force. Then the same by speed: fitted to the slow samples, judged on the fast ones. --shooting has multiple
shooting beside it, with the log's velocities and without; --sysid MuJoCo's own identification, with so many
iterations, some minutes: benchmarks/peers/mujoco_sysid.py.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pinocchio as pin
import torch
from peers import mujoco_sysid
from report import origin
from torch import Tensor

import torchsko as ts
from torchsko.identification.friction import Offset, SmoothCoulomb, Viscous
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import FilteredMotion, filter_log
from torchsko.spatial.inertia import pseudo_inertia

PLAIN = [Viscous(), SmoothCoulomb(0.05), Offset()]


def filtered(
    mech: ts.Mechanism, log: ts.identification.Log, settings: FilterSettings
) -> FilteredMotion:
    """The longest stretch of a log without a gap."""
    return max(filter_log(mech, log, settings, LogDefects(), len(log)), key=len)


def design(robot: str, motion: FilteredMotion) -> np.ndarray:
    """Least squares' columns: Pinocchio's regressor, viscous and Coulomb friction, an offset."""
    model = pin.buildModelFromUrdf(robot)
    data = model.createData()
    n, dofs = len(motion), model.nv
    inertial = 10 * (model.njoints - 1)
    X = np.zeros((n, dofs, inertial + 3 * dofs))
    for k, state in enumerate(
        zip(*(x.numpy() for x in (motion.q, motion.qd, motion.qdd)), strict=True)
    ):
        X[k, :, :inertial] = pin.computeJointTorqueRegressor(model, data, *state)
    v = motion.qd.numpy()
    for j in range(dofs):
        own = inertial + 3 * j
        X[:, j, own : own + 3] = np.stack([v[:, j], np.sign(v[:, j]), np.ones(n)], -1)
    return X


def least_squares(X: np.ndarray, tau: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Ordinary least squares, of least norm."""
    return np.linalg.lstsq(X[rows].reshape(-1, X.shape[-1]), tau[rows].reshape(-1), rcond=1e-9)[0]


def nrmse(predicted: Tensor, motion: FilteredMotion, rows: Tensor) -> Tensor:
    """Root mean square error of each joint over its force's spread, on some samples."""
    error = (predicted - motion.tau)[rows]
    return error.square().mean(0).sqrt() / motion.tau[rows].std(0)


def row(name: str, errors: Tensor, against: Tensor) -> None:
    told = " ".join(f"{x:.3f}" for x in errors.tolist())
    mean = errors.mean()
    print(f"| {name} | {told} | {mean:.4f} | {mean / against.mean():.3f} |")


HEAD = "| | each joint | mean | of least squares' |\n|---|---|---|---|"


def by_command(robot: str, path: str, use: float, out: Path) -> ts.identification.Fit:
    """The fit of the command line with its defaults, timed."""
    command = [sys.executable, "-m", "torchsko", "identify", robot, path]
    command += ["--out", str(out), "--use", f"0:{use}"]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    load = os.getloadavg()[0]
    print(f"python -m torchsko identify: {wall:.1f} s, of which its processor time {cpu:.1f} s")
    print(
        f"({os.cpu_count()} cores, load {load:.1f}; interpreter, imports, report and figures included)\n"
    )
    return ts.identification.Fit.load(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log")
    parser.add_argument("--robot", default=str(ts.robots.panda))
    parser.add_argument("--use", type=float, default=0.6, help="part of the time that is fitted")
    parser.add_argument("--seen", type=float, default=0.6, help="part of the samples, slow ones")
    parser.add_argument("--shooting", action="store_true", help="a minute or two each")
    parser.add_argument("--sysid", type=int, default=0, help="iterations of MuJoCo's sysid")
    args = parser.parse_args()
    if args.sysid and (reason := mujoco_sysid.missing()):
        parser.error(f"no mujoco.sysid here: {reason}")
    print(origin(torch.get_num_threads()))
    mech = ts.load(args.robot)
    log = ts.identification.Log.load(args.log)
    with tempfile.TemporaryDirectory() as folder:
        fit = by_command(args.robot, args.log, args.use, Path(folder) / "fit")
    J = pseudo_inertia(fit.mechanism.mass, fit.mechanism.com, fit.mechanism.inertia)
    print(f"smallest eigenvalue of a pseudo-inertia: {torch.linalg.eigvalsh(J).min():.2g}")
    settings = FilterSettings.of(fit.info.rate, fit.info.cutoff)
    train, test = (filtered(mech, log.part(*x), settings) for x in ((0, args.use), (args.use, 1)))
    print(f"cut-off {settings.cutoff:.3g} Hz, {len(train)} states fitted, {len(test)} judged\n")

    every = torch.ones(len(test), dtype=torch.bool)
    numbers = least_squares(design(args.robot, train), train.tau.numpy(), slice(None))
    theirs = nrmse(torch.from_numpy(design(args.robot, test) @ numbers), test, every)

    def judged(found: ts.identification.Fit) -> Tensor:
        force = found.inverse_dynamics(test.q, test.qd, test.qdd, series=True)
        return nrmse(force, test, every)

    part = log.part(0, args.use)
    plain = ts.identification.identify(mech, part, joint_terms=PLAIN, cutoff=settings.cutoff)
    print(f"The last {100 * (1 - args.use):.0f}% of the time\n\n{HEAD}")
    row("least squares", theirs, theirs)
    row("physical, viscous and smooth Coulomb", judged(plain), theirs)
    row("physical, defaults", judged(fit), theirs)
    tried = {"shooting": part, "shooting, positions alone": replace(part, qd=None)}
    for name, some in tried.items() if args.shooting else ():
        row(name, judged(ts.identification.identify(mech, some, method="shooting")), theirs)
    if args.sysid:
        start = time.process_time()
        ended = mujoco_sysid.fitted(mech, train, args.sysid)
        errors = nrmse(torch.from_numpy(mujoco_sysid.forces(ended.model, test)), test, every)
        row("mujoco.sysid", errors, theirs)
        print(f"\nmujoco.sysid, {time.process_time() - start:.0f} s of a processor: {ended.told}")

    whole = filtered(mech, log, settings)
    at = np.searchsorted(log.t, whole.t.numpy()).clip(0, len(log) - 1)
    rates = log.qd if log.qd is not None else np.gradient(log.q, axis=0)
    speed = (np.abs(rates) / np.abs(rates).max(0)).max(-1)
    slow = speed <= np.quantile(speed, args.seen)
    tau = np.where(slow[:, None], log.tau, np.nan)  # no measurement: of no weight
    fast = torch.from_numpy(~slow[at])
    hidden = ts.identification.Log(log.t, log.q, tau, log.qd, name="slow samples")
    numbers = least_squares(design(args.robot, whole), whole.tau.numpy(), ~fast.numpy())
    theirs = nrmse(torch.from_numpy(design(args.robot, whole) @ numbers), whole, fast)
    print(f"\nThe fastest {100 * (1 - args.seen):.0f}% of the samples, never fitted\n\n{HEAD}")
    row("least squares", theirs, theirs)
    for name, learn in (
        ("physical, viscous and smooth Coulomb", PLAIN),
        ("physical, defaults", None),
    ):
        found = ts.identification.identify(mech, hidden, joint_terms=learn, cutoff=settings.cutoff)
        force = found.inverse_dynamics(whole.q, whole.qd, whole.qdd, series=True)
        row(name, nrmse(force, whole, fast), theirs)


if __name__ == "__main__":
    main()
