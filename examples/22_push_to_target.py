"""Trajectory optimization through contact: a finger pushes a puck to a target and stops.

Forces of the finger are optimized by gradients through every step, contact included, for eight targets at
once. The figure shows the paths before and after. Needs pip install ".[mjcf,plot]".
"""

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

TEXT = """<mujoco><option cone="elliptic" timestep="0.02" gravity="0 0 0"/>
  <default><geom solref="0.05 1"/></default><worldbody>
  <body name="finger" pos="-0.15 0 0"><joint name="fx" type="slide" axis="1 0 0" damping="1"/>
    <joint name="fy" type="slide" axis="0 1 0" damping="1"/><geom size="0.04" mass="0.5"/></body>
  <body name="puck"><joint name="px" type="slide" axis="1 0 0" damping="1.5"/>
    <joint name="py" type="slide" axis="0 1 0" damping="1.5"/><geom size="0.06" mass="0.4"/></body>
  </worldbody></mujoco>"""


def main():
    args = parse_options(__doc__)
    scene = ts.load(TEXT)
    contact = ts.ContactModel.of(scene)
    angles = torch.linspace(-0.5, 0.5, 8, dtype=torch.float64)
    targets = 0.5 * torch.stack([angles.cos(), angles.sin()], -1)

    def one_step(mech, q, qd, force):
        tau = torch.cat([force, 0 * force], -1)
        state = ts.step(mech, ts.State(q, qd), tau, contact=contact)
        return state.q, state.qd

    print("Building the kernel of a step and its gradient ...", flush=True)
    fast = ts.fuse(one_step, scene, shapes={"q": (4,), "qd": (4,), "force": (2,)})
    start = scene.file_metadata.initial.repeat(8, 1)

    def roll(forces):
        q, qd, path = start, 0 * start, [start]
        for k in range(60):
            q, qd = fast(q, qd, forces[:, k // 5])
            path.append(q)
        return torch.stack(path, 1), qd

    forces = torch.zeros(8, 12, 2, dtype=torch.float64)  # N, each for 5 steps
    forces[:, :, 0] = 0.8  # towards the puck
    first, _ = roll(forces)
    forces.requires_grad_()
    optimizer = torch.optim.Adam([forces], lr=0.1)
    for iteration in range(81):
        path, qd = roll(forces)
        error = (path[:, -1, 2:] - targets).norm(dim=-1)
        loss = (error.square() + 0.02 * qd[:, 2:].square().sum(-1)).sum()
        loss = loss + 1e-3 * forces.square().mean((1, 2)).sum()
        if iteration % 10 == 0:
            print(f"iteration {iteration}: largest error {1e3 * error.max():.1f} mm", flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    path = path.detach()
    plt.figure(figsize=(6, 5), layout="constrained")
    plt.plot(*path[..., 2:].permute(2, 1, 0), "C0", label=["pucks"] + 7 * [None])
    plt.plot(*path[..., :2].permute(2, 1, 0), "C1:", label=["fingers"] + 7 * [None])
    plt.plot(*targets.T, "kx", label="targets")
    plt.plot(*first[0, :, 2:].T, "--", color="0.5", label="puck before")
    plt.gca().set(xlabel="x [m]", ylabel="y [m]", aspect="equal")
    plt.legend()
    save_figure(plt.gcf(), args.out / "push_to_target.png", dpi=120)


if __name__ == "__main__":
    main()
