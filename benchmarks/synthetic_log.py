"""Logs made by MuJoCo with the noise of real sensors: is the robot found, and as surely as is said?

Usage: python benchmarks/synthetic_log.py [--repetitions 50] [--seconds 20]
A Panda with secret inertias, friction and offsets follows random exciting trajectories. Encoders are
quantised, torque sensors have white noise, a ripple with the position and a delay of one sample. Printed
are the torque error on a motion that no fit has seen, over the noise there, and how many base parameters
lie within three reported standard deviations of the truth, over repetitions with other noise and motion.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mujoco
import numpy as np
import torch

import torchsko as ts
from torchsko.learn.friction import Coulomb, Delay, Offset, Viscous
from torchsko.learn.mending import Faults
from torchsko.learn.motion import motions
from torchsko.learn.settings import Settings

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from mujoco_arm import mujoco_model, secret_parameters

RATE = 1000.0
ENCODER = 2 * np.pi / 2**17
NOISE, RIPPLE, TEETH = 0.1, 0.03, 32
TERMS = [Viscous(), Coulomb(), Offset(), Delay()]


def log_of(model, truth, motion, rng, seconds):
    """A log of a motion, and its torques without noise."""
    t = torch.arange(int(seconds * RATE), dtype=torch.float64) / RATE
    q, qd, qdd = (x.numpy() for x in motion(t))
    data, tau = mujoco.MjData(model), np.zeros_like(q)
    for k in range(len(q)):
        data.qpos, data.qvel, data.qacc = q[k], qd[k], qdd[k]
        mujoco.mj_inverse(model, data)
        tau[k] = data.qfrc_inverse
    tau += truth.damping.numpy() * qd + truth.friction.numpy() * np.sign(qd) + 0.3
    shown = np.roll(tau, 1, 0) + RIPPLE * np.sin(TEETH * q) + NOISE * rng.normal(size=tau.shape)
    return ts.learn.Log(t.numpy(), np.round(q / ENCODER) * ENCODER, shown), tau


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    nominal = ts.load(ts.robots.panda)
    g, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    truth = secret_parameters(nominal, g)
    bare = truth.replace(damping=0 * truth.damping, friction=0 * truth.friction)
    model = mujoco_model(ts.robots.panda, bare)
    unseen, clean = log_of(
        model, truth, ts.learn.exciting_trajectory(nominal, generator=g), rng, 10.0
    )
    z, worst = [], 0.0
    for repetition in range(args.repetitions):
        motion = ts.learn.exciting_trajectory(nominal, generator=g)
        log, _ = log_of(model, truth, motion, rng, args.seconds)
        fit = ts.learn.fit(nominal, log, learn=TERMS)
        true = fit.base.of(ts.inertial_parameters(truth).flatten())
        z.append((fit.value - true) / fit.deviation)
        settings = Settings.of(RATE, fit.found.cutoff)
        (seen,) = motions(nominal, unseen, settings, Faults())
        rows = np.searchsorted(unseen.t, seen.t.numpy() - 0.5 / RATE)
        error = (
            fit.inverse_dynamics(seen.q, seen.qd, seen.qdd, series=True).numpy() - unseen.tau[rows]
        )
        floor = clean[rows] - unseen.tau[rows]
        over = np.sqrt((error**2).mean(0) / (floor**2).mean(0))
        worst = max(worst, over.max())
        inside = (torch.stack(z).abs() < 3).double().mean()
        print(
            f"{repetition + 1}: cut-off {fit.found.cutoff:.2g} Hz, prior {fit.found.prior_weight:.1g}; "
            f"torque error over noise {over.mean():.3f} (joint by joint at most {over.max():.3f}); "
            f"base parameters within 3 deviations so far {100 * inside:.2f} %",
            flush=True,
        )
    z = torch.stack(z)
    print(
        f"\n{len(z)} repetitions of {z.shape[1]} base parameters: {100 * (z.abs() < 3).double().mean():.2f} "
        f"% within three reported deviations (root mean square {z.square().mean().sqrt():.2f});\n"
        f"largest torque error over noise {worst:.3f}"
    )


if __name__ == "__main__":
    main()
