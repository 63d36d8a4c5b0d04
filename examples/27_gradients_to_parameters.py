"""How the return of a policy depends on the robot: gradients to random parameters of environments.

Each environment has its own mass and friction, drawn at its reset. They are tensors of its state: one
backward pass through an episode gives the derivatives of all returns. Needs pip install ".[plot]".
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

TEXT = """<mujoco><option timestep="0.005"/><worldbody><geom name="floor" type="plane" size="9 9 1"/>
  <body name="sled" pos="0 0 .1"><joint name="x" type="slide" axis="1 0 0"/>
    <joint name="z" type="slide" axis="0 0 1"/><geom name="sled" size=".1" mass="2"/></body></worldbody>
  <actuator><motor joint="x" gear="20" ctrlrange="-1 1"/></actuator></mujoco>"""


@dataclass(frozen=True)
class Sled(ts.envs.Task):
    """A sled slides along a floor with friction to x = 1."""

    model: str = TEXT
    frame_skip: int = 4

    def initial(self, world, draw):
        return world.state_at(torch.zeros_like(world.mech.initial()), 0 * world.mech.initial())

    def observe(self, world, state, memory):
        return torch.cat([state.q, state.qd])

    def reward(self, world, step):
        return -(step.after.q[0] - 1).square()


def main():
    args = parse_options(__doc__, envs=64, steps=100)
    ranges = {"mass": (0.8, 1.2), "contact_friction": (0.5, 1.5)}
    env = ts.envs.make(Sled(), num_envs=args.envs, ranges=ranges)
    state, total = env.reset(), 0.0
    friction = state.params["contact.friction"].requires_grad_()
    for _ in range(args.steps):
        action = (2 * (1 - state.physics.q[:, :1]) - 0.5 * state.physics.qd[:, :1]).tanh()
        state, transition = env.step(state, action)
        total = total + transition.reward
    (slope,) = torch.autograd.grad(total.sum(), friction)
    slope, mu, total = slope.flatten(1).sum(1), friction.detach().flatten(1)[:, 0], total.detach()
    print(f"return {total.mean():.1f}, {slope.mean():.1f} per unit of friction")
    figure, axis = plt.subplots(figsize=(5, 3.4), layout="constrained")
    step = 0.03 * torch.tensor([-1.0, 1.0])
    axis.plot(mu[:, None].add(step).T, (total[:, None] + slope[:, None] * step).T, color="C1")
    axis.plot(mu, total, "o", ms=3)
    axis.set(xlabel="friction of the floor", ylabel="return, and its derivative")
    save_figure(figure, args.out / "gradients_to_parameters.png")


if __name__ == "__main__":
    main()
