"""Identify a robot arm: inertial parameters and joint friction from noisy torques, by gradient descent.

MuJoCo moves a Panda arm whose parameters differ from those of the robot file. The fit starts from the file
and uses only measured motion and motor torque. Half a minute; needs pip install ".[identify]".
"""

import numpy as np
import torch
from command_line import parse_options
from identify_report import figure, print_tables
from mujoco_arm import measure, mujoco_model, secret_parameters

import torchsko as ts

NOISE = (1e-4, 1e-3, 2e-2, 0.15)  # standard deviation of q, qd, qdd [rad, s], tau [N m]


def moving(qd):
    """Mask of moving joints: at rest, dry friction can have any value up to its Coulomb value."""
    return qd.abs() > 0.05


def torque_errors(mech, q, qd, qdd, tau):
    """Root mean square torque error of each joint while it moves [N m]."""
    weight, error = moving(qd).to(tau), ts.inverse_dynamics(mech, q, qd, qdd) - tau
    return ((weight * error.square()).sum(0) / weight.sum(0)).sqrt()


def identify(nominal, q, qd, qdd, tau, steps, generator):
    """The nominal robot with parameters fitted to measurements."""
    learn = {body: ts.learn.InertiaLogCholesky() for body in nominal.body_names}
    for joint in nominal.joint_names:
        learn[f"{joint}.damping"] = ts.learn.Positive(init=0.2)
        learn[f"{joint}.friction"] = ts.learn.Positive()
    layer = ts.Dynamics(nominal, learn)
    weight = moving(qd).to(tau) / NOISE[-1] ** 2
    ts.learn.train(
        layer, q, qd, qdd, tau, weight=weight, steps=steps, prior=0.1, generator=generator
    )
    with torch.no_grad():
        return layer.mechanism()


def base_parameters(mech, q, qd, qdd):
    """The identifiable combinations of inertial parameters, as orthonormal rows."""
    Y = ts.torque_regressor(mech, q, qd, qdd).flatten(-2).flatten(0, 1)
    _, size, rows = torch.linalg.svd(Y, full_matrices=False)
    return rows[size > 1e-9 * size[0]]


def main():
    args = parse_options(__doc__, steps=(600, "steps of gradient descent"))
    torch.set_num_threads(1)  # batches this small are slower on two
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)

    nominal = ts.load(ts.robots.panda)
    truth = secret_parameters(nominal, generator)
    arm = mujoco_model(ts.robots.panda, truth)
    motions = [
        ts.identification.exciting_trajectory(nominal, generator=generator) for _ in range(3)
    ]
    *training, held_out = [measure(arm, motion, NOISE, rng) for motion in motions]
    samples = [torch.cat(parts) for parts in zip(*training, strict=True)]
    print(f"{len(samples[0])} samples of {nominal.name!r}, torque noise {NOISE[-1]} N m")

    fitted = identify(nominal, *samples, args.steps, generator)
    robots = {"true": truth, "start": nominal, "identified": fitted}
    base = base_parameters(nominal, *(x[::50] for x in samples[:3]))
    errors = {name: torque_errors(mech, *held_out) for name, mech in robots.items()}
    print_tables(robots, errors, base)
    path = args.out / "identify.png"
    print("\nfigure:", figure(path, robots, errors, held_out, moving(held_out[1])))


if __name__ == "__main__":
    main()
