"""Model predictive path integral control (Williams et al. 2017): a pole swings up without training.

Samples of controls run as rows of one batch from the present state; their mean, weighted by the exponential
of the return, is the plan. Needs pip install ".[mjcf]".
"""

from dataclasses import dataclass

import torch
from command_line import parse_options
from torch.utils import _pytree as pytree

import torchsko as ts

TEXT = """<mujoco><option timestep="0.01" integrator="RK4"/><worldbody>
  <body><joint name="x" type="slide" axis="1 0 0" damping=".1"/><geom size=".1" mass="1"/><body>
    <joint name="hinge" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 .6" size=".02" mass=".2"/>
  </body></body></worldbody><actuator><motor joint="x" gear="15" ctrlrange="-1 1"/></actuator></mujoco>"""


@dataclass(frozen=True)
class SwingUp(ts.envs.Task):
    """The pole hangs at first."""

    model: str = TEXT
    frame_skip: int = 2

    def initial(self, world, draw):
        q = torch.tensor([0.0, torch.pi], dtype=world.mech.dtype)
        return world.state_at(q, 0 * q)

    def observe(self, world, state, memory):
        return torch.cat([state.q, state.qd])

    def reward(self, world, step):
        q, qd = step.after.q, step.after.qd
        return q[1].cos() - 0.2 * q[0].square() - 0.01 * qd[1].square()


def main():
    args = parse_options(__doc__, samples=256, horizon=40, steps=200)
    env, _ = ts.envs.make(SwingUp(), autoreset="off"), torch.manual_seed(0)
    state, plan = env.reset(), torch.zeros(args.horizon, 1, 1, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(args.steps):
            noise = torch.randn(args.horizon, args.samples, 1, dtype=plan.dtype)
            controls = (plan + 0.6 * noise).clamp(-1, 1)
            rows, total = pytree.tree_map(lambda x: x.repeat_interleave(args.samples, 0), state), 0
            for control in controls:
                rows, transition = env.step(rows, control)
                total = total + transition.reward
            plan = (total.softmax(0)[:, None] * controls).sum(1, keepdim=True)
            state, _ = env.step(state, plan[0])
            plan = torch.cat([plan[1:], plan[-1:]])
    error = (state.physics.q[0, 1] + torch.pi).remainder(2 * torch.pi) - torch.pi
    print(f"angle from upright: {torch.pi:.2f} rad at first, {error.abs():.2f} rad at the end")


if __name__ == "__main__":
    main()
