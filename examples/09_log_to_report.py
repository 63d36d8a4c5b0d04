"""Make a robot with error bars, and a report, from a log of times, positions and torques.

MuJoCo moves a Panda whose parameters differ from those of the robot file and a CSV file is written, as a
robot's logger would. For your own log: `09_log_to_report.py --robot arm.urdf --log log.csv`, or in one line
`python -m torchsko identify arm.urdf log.csv --out DIR`. Needs pip install ".[identify]".
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from mujoco_arm import measure, mujoco_model, secret_parameters

import torchsko as ts
from torchsko.identification.results.html_report import write_report

NOISE = (1e-4, 1e-3, 0.0, 0.15)  # standard deviation of q, qd, (qdd,) tau


def write_log(path, nominal, period):
    """Write the log of a controller that follows a trajectory; return the true robot."""
    g, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    truth = secret_parameters(nominal, g)
    motion = ts.identification.exciting_trajectory(nominal, period=period, generator=g)
    q, qd, _, tau = measure(mujoco_model(ts.robots.panda, truth), motion, NOISE, rng, every=4)
    t = 4e-3 * torch.arange(len(q), dtype=q.dtype)
    names = ["t", *(f"{x}_{joint}" for x in ("q", "qd", "tau") for joint in nominal.joint_names)]
    table = torch.cat([t[:, None], q, qd, tau], 1).numpy()
    np.savetxt(path, table, delimiter=",", header=",".join(names), comments="")
    return truth


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robot", default=ts.robots.panda, help="URDF or MJCF")
    parser.add_argument("--log", type=Path, help="CSV or NPZ; simulated by MuJoCo by default")
    parser.add_argument("--period", type=float, default=20.0, help="of the motion by MuJoCo [s]")
    parser.add_argument("--out", type=Path, default=Path("identified"), help="folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    nominal, truth = ts.load(args.robot), None
    if args.log is None:
        args.log = args.out / "log.csv"
        truth = write_log(args.log, nominal, args.period)

    log = ts.identification.Log.load(args.log, nominal.joint_names)
    fit = ts.identification.identify(nominal, log)
    print(fit)
    fit.save(args.out, like=args.robot)
    write_report(fit, args.out / "report.html")

    if truth is not None:
        true = fit.base.of(ts.inertial_parameters(truth).flatten())
        off = ((fit.value - true) / fit.deviation).abs()
        start = (fit.base.of(fit.nominal_numbers) - true).norm() / true.norm()
        now = (fit.value - true).norm() / true.norm()
        print(
            f"\nerror of the base parameters: {100 * start:.1f} % before, {100 * now:.1f} % after"
        )
        print(f"within three standard errors: {int((off < 3).sum())} of {len(off)}")
    print(f"\nreport: {args.out / 'report.html'}, robot: {args.out / 'robot.urdf'}")


if __name__ == "__main__":
    main()
