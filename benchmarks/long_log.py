"""A long log, memory-mapped, to the full report: time and memory, beside a loop over Pinocchio's regressor.

Usage: python benchmarks/long_log.py [--samples 10000000]
The log is a Panda's on a periodic exciting trajectory at 1 kHz, with friction and noise. The loop computes
the regressor and adds up normal equations for a hundredth of the samples; its time is scaled.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pinocchio as pin
import torch
from report import origin

import torchsko as ts
from torchsko.identification.results.html_report import write_report

RATE, PIECE = 1000.0, 100_000


SHAPES = {"t": (), "q": (7,), "qd": (7,), "tau": (7,)}


def write_log(folder: Path, samples: int) -> None:
    """Arrays of a log on disk, made piece by piece."""
    mech = ts.load(ts.robots.panda)
    g, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    arrays = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float64, (samples, *shape))
        for name, shape in SHAPES.items()
    }
    fast = ts.fuse(ts.inverse_dynamics, mech)
    motion = ts.identification.exciting_trajectory(mech, period=40.0, harmonics=12, generator=g)
    for at in range(0, samples, PIECE):
        rows = slice(at, min(at + PIECE, samples))
        t = torch.arange(rows.start, rows.stop, dtype=mech.dtype) / RATE
        q, qd, qdd = motion(t)
        tau = fast(q, qd, qdd) + 0.3 * qd + 0.4 * (qd / 0.05).tanh()
        noise = 0.1 * rng.standard_normal(tau.shape)
        for name, x in (("t", t), ("q", q), ("qd", qd), ("tau", tau.numpy() + noise)):
            arrays[name][rows] = x


def loop_seconds(log: ts.identification.Log, samples: int) -> tuple[float, float]:
    """Pinocchio's regressor of each sample, added to normal equations: wall and processor time."""
    model = pin.buildModelFromUrdf(str(ts.robots.panda))
    data = model.createData()
    q, qd, tau = (np.array(x[:samples]) for x in (log.q, log.qd, log.tau))
    qdd = np.gradient(qd, 1 / RATE, axis=0)
    A, b = np.zeros((70, 70)), np.zeros(70)
    start, used = time.perf_counter(), time.process_time()
    for k in range(samples):
        Y = pin.computeJointTorqueRegressor(model, data, q[k], qd[k], qdd[k])
        A += Y.T @ Y
        b += Y.T @ tau[k]
    return time.perf_counter() - start, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--write", type=Path, help="only write the log, into this folder")
    args = parser.parse_args()
    if args.write is not None:
        write_log(args.write, args.samples)
        return
    print(origin(torch.get_num_threads()))
    mech = ts.load(ts.robots.panda)
    with tempfile.TemporaryDirectory() as folder:
        # By another process: this one's memory is the fit's.
        size = ["--samples", str(args.samples)]
        subprocess.run([sys.executable, __file__, "--write", folder, *size], check=True)
        log = ts.identification.Log(
            **{n: np.load(f"{folder}/{n}.npy", mmap_mode="r") for n in SHAPES}
        )
        few = args.samples // 100
        loop = [100 * x for x in loop_seconds(log, few)]
        start, used = time.perf_counter(), time.process_time()
        fit = ts.identification.identify(mech, log, progress=lambda text, part: print(
            f"{time.perf_counter() - start:6.1f} s  {100 * part:3.0f} %  {text}", flush=True))  # fmt: skip
        write_report(fit, Path(folder) / "report.html")
        wall, used = time.perf_counter() - start, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\n{str(fit).splitlines()[0]}")
    print(
        f"{args.samples} samples to the full report: {wall:.1f} s, of which its processor time {used:.1f} s, "
        f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}"
    )
    print(f"most memory {peak:.2f} GB, memory-mapped pages included")
    print(
        f"Pinocchio's loop on {few} samples, scaled: {loop[0]:.1f} s, {loop[0] / wall:.1f} times as long; "
        f"in processor time {loop[1]:.1f} s, {loop[1] / used:.1f} times"
    )


if __name__ == "__main__":
    main()
