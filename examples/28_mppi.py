"""Model predictive path integral control (Williams et al. 2017): a pole swings up without training.

At each step random inputs about the plan are rolled out from the present state; their mean, weighted by the
exponential of the cost, is the new plan. Needs pip install ".[mjcf]".
"""

import torch
from command_line import parse_options

import torchsko as ts

TEXT = """<mujoco><worldbody>
  <body><joint name="x" type="slide" axis="1 0 0" damping=".1"/><geom size=".1" mass="1"/><body>
    <joint name="hinge" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 .6" size=".02" mass=".2"/>
  </body></body></worldbody></mujoco>"""
DT, LIMIT = 0.02, 15.0  # s, N


def running(mech, q, qd, u):
    """Height of the pole, distance of the cart from the middle, and rate of the pole."""
    return 0.2 * q[..., 0].square() + 0.01 * qd[..., 1].square() - q[..., 1].cos()


def main():
    args = parse_options(__doc__, samples=256, horizon=40, steps=200)
    mech = ts.load(TEXT)
    problem = ts.control.optimal_control(
        [ts.control.Phase(mech, args.horizon, DT, running, method="rk4")],
        actuated=["x"],
        bounds=(torch.tensor([-LIMIT]).double(), torch.tensor([LIMIT]).double()),
        fuse=ts.fuse,
    )
    options = {"deviation": torch.tensor([9.0]).double(), "temperature": 1.0}
    q, qd = torch.tensor([0.0, torch.pi]).double(), torch.zeros(2).double()  # hangs
    u = torch.zeros(args.horizon, 1).double()
    for k in range(args.steps):
        u = ts.control.mppi(problem, q, qd, u, samples=args.samples, seed=k, **options).u
        force = torch.nn.functional.pad(u[0], (0, 1))
        path = ts.rollout(mech, ts.State(q, qd), force, steps=1, dt=DT, method="rk4")
        q, qd, u = path.q[-1], path.qd[-1], torch.cat([u[1:], u[-1:]])
    error = (q[1] + torch.pi).remainder(2 * torch.pi) - torch.pi
    print(f"angle from upright: {torch.pi:.2f} rad at first, {error.abs():.2f} rad at the end")


if __name__ == "__main__":
    main()
