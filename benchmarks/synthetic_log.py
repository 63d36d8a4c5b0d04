"""Logs made by MuJoCo with the noise of real sensors: is the robot found, and as surely as is said?

Usage: python benchmarks/synthetic_log.py [--robot quadruped] [--repetitions 50] [--noise-q 1e-4] [--chosen]
A Panda (or a quadruped that hangs on a six-axis sensor, which swings it) with secret inertias, friction
and offsets follows random exciting trajectories. Encoders are quantized, torque sensors have white noise,
a ripple with the position and a delay of one sample. Terms of the fit are those of the truth but the ripple,
which is noise to it; with --chosen it finds them itself, and the ripple. Printed are the torque error on a
motion that no fit has seen, over the noise there (with the ripple), and how many base parameters lie within
three reported standard deviations of the truth, over repetitions with other noise and motion.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import mujoco
import numpy as np
import torch
from report import origin

import torchsko as ts
from torchsko.identification.friction import Coulomb, Delay, Offset, Viscous
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import filter_log
from torchsko.spatial.inertia import pseudo_inertia

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from mujoco_arm import mujoco_model, secret_parameters

RATE = 1000.0
ENCODER = 2 * np.pi / 2**17
NOISE, RIPPLE, TEETH = 0.1, 0.03, 32
TERMS = [Viscous(), Coulomb(), Offset(), Delay()]


def moved_base(t, rng):
    """A free joint's positions, velocities and accelerations: slow turns and swings about a point."""
    w = 2 * np.pi / 10 * np.arange(1, 6)
    size = rng.normal(size=(2, 5, 6)) * np.array([0.6] * 3 + [0.08] * 3) / np.sqrt(5)
    c, s = np.cos(t[:, None] * w), np.sin(t[:, None] * w)
    rates = (c * w) @ size[0] - (s * w) @ size[1]  # those of Fourier series: they come back
    accels = -(s * w**2) @ size[0] - (c * w**2) @ size[1]
    where = s @ size[0, :, 3:] + c @ size[1, :, 3:]
    # Orientation: body rates in steps so short that the middle's stands for each.
    half = t + 0.5 / RATE
    middle = (np.cos(half[:, None] * w) * w) @ size[0] - (np.sin(half[:, None] * w) * w) @ size[1]
    quat = np.tile([1.0, 0, 0, 0], (len(t), 1))
    for k in range(len(t) - 1):
        quat[k + 1] = quat[k]
        mujoco.mju_quatIntegrate(quat[k + 1], np.ascontiguousarray(middle[k, :3]), 1 / RATE)
    R = np.zeros((len(t), 9))
    for k in range(len(t)):
        mujoco.mju_quat2Mat(R[k], quat[k])
    R = R.reshape(-1, 3, 3)
    return np.concatenate([where, quat], 1), rates, accels, R


def hung_model(mech):
    """MuJoCo's model of a robot with a free base, by way of a file of ours."""
    with tempfile.TemporaryDirectory() as folder:
        ts.save(mech, f"{folder}/robot.xml")
        return mujoco.MjModel.from_xml_path(f"{folder}/robot.xml")


def states_of(path, floating, t, g, rng):
    """MuJoCo's positions, velocities and accelerations along a motion, and orientations of a free base."""
    arm = ts.load(path)
    q, qd, qdd = (x.numpy() for x in ts.identification.exciting_trajectory(arm, generator=g)(t))
    if not floating:
        return q, qd, qdd, None
    pose, rates, accels, R = moved_base(t.numpy(), rng)
    swap = [3, 4, 5, 0, 1, 2]  # MuJoCo: linear in the world, then angular in the body
    q, qd, qdd = (
        np.concatenate(x, 1) for x in ((pose, q), (rates[:, swap], qd), (accels[:, swap], qdd))
    )
    return q, qd, qdd, R


def log_of(model, truth, states, rng, noise_q):
    """A log of a motion, and its forces without noise; base forces are felt by a sensor that carries it."""
    q, qd, qdd, R = states
    data, tau = mujoco.MjData(model), np.zeros_like(qd)
    for k in range(len(q)):
        data.qpos, data.qvel, data.qacc = q[k], qd[k], qdd[k]
        mujoco.mj_inverse(model, data)
        tau[k] = data.qfrc_inverse
    rates, free = qd, 0 if R is None else 6
    if free:
        body = np.einsum("nji,nj->ni", R, qd[:, :3])  # the base's velocity in its own axes
        rates = np.concatenate([qd[:, 3:6], body, qd[:, 6:]], 1)
        force = np.einsum("nji,nj->ni", R, tau[:, :3])
        tau = np.concatenate([tau[:, 3:6], force, tau[:, 6:]], 1)
    own = slice(free, None)
    tau[:, own] += truth.damping.numpy()[own] * rates[:, own]
    tau[:, own] += truth.friction.numpy()[own] * np.sign(rates[:, own])
    tau += 0.3
    ripple = np.zeros_like(tau)
    ripple[:, own] = RIPPLE * np.sin(TEETH * q[:, -ripple[:, own].shape[1] :])
    shown = np.roll(tau, 1, 0) + ripple + NOISE * rng.normal(size=tau.shape)
    seen = q + noise_q * rng.normal(size=q.shape)
    quantized = slice(7 if free else 0, None)
    seen[:, quantized] = np.round(seen[:, quantized] / ENCODER) * ENCODER
    gyro = rates + noise_q * rng.normal(size=rates.shape) if free else None
    t = np.arange(len(q)) / RATE
    return ts.identification.Log(t, seen, shown, gyro), tau


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robot", choices=("panda", "quadruped"), default="panda")
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--noise-q", type=float, default=0.0, help="white, of positions [rad or m]")
    parser.add_argument("--method", default="physical", help="of torchsko.identification.identify")
    parser.add_argument("--chosen", action="store_true", help="terms are, by the fit")
    args = parser.parse_args()
    print(origin(torch.get_num_threads()))
    floating = args.robot == "quadruped"
    path = getattr(ts.robots, args.robot)
    nominal = ts.load(path, floating_base=floating)
    g, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    truth = secret_parameters(nominal, g)
    bare = truth.replace(damping=0 * truth.damping, friction=0 * truth.friction)
    model = hung_model(bare) if floating else mujoco_model(path, bare)
    times = torch.arange(int(args.seconds * RATE), dtype=torch.float64) / RATE
    unseen, clean = log_of(
        model, truth, states_of(path, floating, times[: int(10 * RATE)], g, rng), rng, 0.0
    )
    # A free joint has no terms unless it is named: this one hangs on a sensor.
    learn = {"root_joint": [Offset(), Delay()]} if floating else {}
    if not args.chosen:
        learn = {joint: TERMS for joint in nominal.joint_names} | learn
    z, worst = [], 0.0
    for repetition in range(args.repetitions):
        states = states_of(path, floating, times, g, rng)
        log, _ = log_of(model, truth, states, rng, args.noise_q)
        fit = ts.identification.identify(nominal, log, joint_terms=learn, method=args.method)
        J = pseudo_inertia(fit.mechanism.mass, fit.mechanism.com, fit.mechanism.inertia)
        assert bool((torch.linalg.eigvalsh(J) > 0).all())
        true = fit.base.of(ts.inertial_parameters(truth).flatten())
        z.append((fit.value - true) / fit.deviation)
        settings = FilterSettings.of(RATE, fit.info.cutoff)
        (seen,) = filter_log(nominal, unseen, settings, LogDefects())
        rows = np.searchsorted(unseen.t, seen.t.numpy() - 0.5 / RATE)
        error = (
            fit.inverse_dynamics(seen.q, seen.qd, seen.qdd, series=True).numpy() - unseen.tau[rows]
        )
        floor = clean[rows] - unseen.tau[rows]
        over = np.sqrt((error**2).mean(0) / (floor**2).mean(0))
        worst = max(worst, over.max())
        inside = (torch.stack(z).abs() < 3).double().mean()
        print(
            f"{repetition + 1}: cut-off {fit.info.cutoff:.2g} Hz, prior {fit.info.prior_weight:.1g}; "
            f"torque error over noise {over.mean():.3f} (joint by joint at most {over.max():.3f}); "
            f"base parameters within 3 deviations so far {100 * inside:.2f} %",
            flush=True,
        )
    z = torch.stack(z)
    print(
        f"\n{len(z)} repetitions of {z.shape[1]} base parameters: {100 * (z.abs() < 3).double().mean():.2f} "
        f"% within three reported deviations (root mean square {z.square().mean().sqrt():.2f});\n"
        f"largest torque error over noise {worst:.3f}; every robot physical"
    )


if __name__ == "__main__":
    main()
