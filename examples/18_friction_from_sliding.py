"""Identify the friction and the initial spin of a ball from its path on the floor, beside MuJoCo.

MuJoCo simulates a ball that is thrown on a floor, slides and begins to roll. Gradients through the steps of
torchsko find the friction coefficient and the initial spin from positions with noise. The figure shows both
paths. Needs pip install ".[mjcf,plot]".
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import mujoco
import numpy as np
import torch

import torchsko as ts

TEXT = """<mujoco><option cone="elliptic" timestep="0.005"/><default><geom friction="{friction}"/></default>
  <worldbody><geom type="plane" size="5 5 1"/>
  <body pos="0 0 0.0995"><freejoint/><geom size="0.1" mass="0.5"/></body></worldbody></mujoco>"""
FRICTION, SPIN, SPEED = 0.23, -6.0, 1.5  # 1, rad/s, m/s
NOISE = 2e-4  # m


def measure(steps):
    """Positions of the ball in MuJoCo, `[steps, 3]`."""
    model = mujoco.MjModel.from_xml_string(TEXT.format(friction=FRICTION))
    data, path = mujoco.MjData(model), []
    data.qvel[0], data.qvel[4] = SPEED, SPIN
    for _ in range(steps):
        mujoco.mj_step(model, data)
        path.append(data.qpos[:3].copy())
    path = np.array(path)
    return torch.tensor(path + NOISE * np.random.default_rng(0).normal(size=path.shape))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    ball = ts.load(TEXT.format(friction=1.0))
    contact, start = ts.ContactModel.of(ball), ball.file_metadata.initial
    measured = measure(args.steps)

    def one_step(mech, q, qd, friction):
        surfaces = contact.replace(friction=friction * torch.ones_like(contact.friction))
        state = ts.step(mech, ts.State(q, qd), contact=surfaces)
        return state.q, state.qd

    print("Building the kernel of a step with contact ...", flush=True)
    fast = ts.fuse(one_step, ball, shapes={"q": (7,), "qd": (6,), "friction": (1,)})

    def path(parameters):
        friction, spin = parameters[:1], parameters[1]
        q = start
        qd = torch.stack([0 * spin, spin, 0 * spin, 0 * spin + SPEED, 0 * spin, 0 * spin])
        found = []
        for _ in range(args.steps):
            q, qd = fast(q, qd, friction)
            found.append(q[:3])
        return torch.stack(found)

    parameters = torch.tensor([0.1, 0.0], dtype=torch.float64)
    guess = path(parameters)
    for k in range(args.iterations):  # Levenberg-Marquardt steps
        J = torch.autograd.functional.jacobian(lambda x: path(x)[:, 0], parameters)
        error = measured[:, 0] - path(parameters)[:, 0]
        H = J.T @ J + 1e-6 * torch.eye(2, dtype=torch.float64)
        parameters = parameters + torch.linalg.solve(H, J.T @ error).clamp(-2.0, 2.0)
        print(
            f"iteration {k}: rms error {1e3 * float(error.square().mean().sqrt()):.3f} mm",
            flush=True,
        )
    print(f"friction {float(parameters[0]):.4f} (true {FRICTION})")
    print(f"spin {float(parameters[1]):.3f} rad/s (true {SPIN})")
    t = ball.file_metadata.solver.timestep * torch.arange(1, args.steps + 1)
    plt.plot(t, measured[:, 0], ".", label="MuJoCo with noise")
    plt.plot(t, guess[:, 0], "--", label="first guess")
    plt.plot(t, path(parameters)[:, 0], label="identified")
    plt.xlabel("time [s]")
    plt.ylabel("position [m]")
    plt.legend()
    plt.savefig(args.out / "friction_from_sliding.png", dpi=120)
    print(f"Figure: {args.out / 'friction_from_sliding.png'}")


if __name__ == "__main__":
    main()
