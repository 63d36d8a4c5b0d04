"""Identify mass, friction and initial spin of a ball from its path on the floor, beside MuJoCo.

MuJoCo simulates a ball that is thrown on a floor, slides, rolls, and is pushed by a known force. Gradients
through the steps of torchsko find its parameters from positions with noise. The force is needed: without it
the path does not depend on the mass. Needs pip install ".[mjcf,plot]".
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import mujoco
import numpy as np
import torch

import torchsko as ts

TEXT = """<mujoco><option cone="elliptic" timestep="0.005"/><worldbody>
  <geom type="plane" size="5 5 1" friction="{friction}"/><body name="ball" pos="0 0 0.0995"><freejoint/>
  <geom size="0.1" mass="{mass}" friction="{friction}"/></body></worldbody></mujoco>"""
TRUE = {"mass": 0.5, "friction": 0.23, "spin": -6.0}  # kg, 1, rad/s
SPEED, PUSH, NOISE = 1.5, 0.4, 2e-4  # m/s, N, m
LIMIT = torch.tensor([0.2, 0.1, 2.0])  # largest change of each parameter in an iteration


def measure(steps):
    """Positions x of the ball in MuJoCo, `[steps]`; it is pushed in the second half."""
    model = mujoco.MjModel.from_xml_string(TEXT.format(**TRUE))
    data, path = mujoco.MjData(model), []
    data.qvel[0], data.qvel[4] = SPEED, TRUE["spin"]
    for k in range(steps):
        data.qfrc_applied[0] = PUSH if k > steps // 2 else 0.0
        mujoco.mj_step(model, data)
        path.append(data.qpos[0])
    return torch.tensor(np.array(path) + NOISE * np.random.default_rng(0).normal(size=steps))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    ball = ts.load(TEXT.format(mass=1.0, friction=1.0))  # of 1 kg, so that inertia scales with mass
    contact, start, measured = ts.ContactModel.of(ball), ball.initial(), measure(args.steps)

    def one_step(mech, q, qd, force, mass, friction):
        surfaces = contact.replace(
            friction=friction[..., None, :] * torch.ones_like(contact.friction),
            shape_invweight=contact.shape_invweight / mass[..., None, :],
        )
        mech = mech.replace(mass=mass, inertia=mass[..., None, None] * ball.inertia)
        turned = ts.frame_pose(mech, q, "ball").rotation.mT @ force[..., None]
        tau = torch.cat([0 * force, turned[..., 0]], -1)
        state = ts.step(mech, ts.State(q, qd), tau, contact=surfaces)
        return state.q, state.qd

    print("Building the kernel of a step with contact ...", flush=True)
    sizes = {"q": 7, "qd": 6, "force": 3, "mass": 1, "friction": 1}
    fast = ts.fuse(one_step, ball, shapes={name: (size,) for name, size in sizes.items()})

    def path(parameters):
        spin = parameters[2]
        q, qd = start, torch.stack([0 * spin, spin, 0 * spin, 0 * spin + SPEED, 0 * spin, 0 * spin])
        found = []
        for k in range(args.steps):
            push = start.new_tensor([PUSH if k > args.steps // 2 else 0.0, 0.0, 0.0])
            q, qd = fast(q, qd, push, parameters[:1], parameters[1:2])
            found.append(q[0])
        return torch.stack(found)

    parameters = torch.tensor([1.0, 0.1, 0.0], dtype=torch.float64)
    guess = path(parameters)
    for k in range(args.iterations):  # Levenberg-Marquardt steps
        J = torch.autograd.functional.jacobian(lambda x: path(x)[::4], parameters)
        error = (measured - path(parameters))[::4]
        H = J.T @ J + 1e-6 * torch.eye(3, dtype=torch.float64)
        parameters = parameters + torch.linalg.solve(H, J.T @ error).clamp(-LIMIT, LIMIT)
        rms = float(error.square().mean().sqrt())
        print(f"iteration {k}: rms error {1e3 * rms:.3f} mm", flush=True)
    for (name, true), value in zip(TRUE.items(), parameters.tolist(), strict=True):
        print(f"{name} {value:.4f} (true {true})")
    t = ball.file_metadata.solver.timestep * torch.arange(1, args.steps + 1)
    plt.plot(t, measured, ".", label="MuJoCo with noise")
    plt.plot(t, guess, "--", label="first guess")
    plt.plot(t, path(parameters), label="identified")
    plt.gca().set(xlabel="time [s]", ylabel="position [m]")
    plt.legend()
    plt.savefig(args.out / "friction_from_sliding.png", dpi=120)
    print(f"Figure: {args.out / 'friction_from_sliding.png'}")


if __name__ == "__main__":
    main()
