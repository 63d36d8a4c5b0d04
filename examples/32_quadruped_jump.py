"""A quadruped jumps half a meter ahead: stance in friction cones, flight, impact and landing, then in MuJoCo.

MuJoCo runs the torques with the feedback of the plan, on soft contacts. Needs pip install ".[mjcf]".
"""

import mujoco
import torch
from mujoco_plan import run_in_mujoco

import torchsko as ts
from torchsko.mechanism.geometry import Geometry, Shape
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere

RADIUS, DT, MU = 0.02, 0.01, 0.6
FEET = [f"{end}_{side}_foot" for end in ("front", "hind") for side in ("right", "left")]
dog = ts.load(ts.robots.quadruped, floating_base=True)
dog = dog.replace(friction=0 * dog.friction)
held = ts.constrain(dog, [ts.HeldFrame(foot) for foot in FEET])
stand = torch.cat([dog.neutral()[:7], torch.tensor([0.0, -0.8, 1.6] * 4).double()])
stand[2] = RADIUS - ts.frame_pose(dog, stand, FEET).position[:, 2].min()
goal, still = stand + 0.5 * torch.eye(19).double()[0], torch.zeros(18).double()
places, limit = ts.frame_pose(dog, goal, FEET).position, dog.effort_limit[6:]


def running(mech, q, qd, u, *forces):
    return torch.cat([0.01 * u, 0.3 * (q - stand)[..., 7:], 0.03 * qd], -1)


def touchdown(mech, q, qd):
    return 100 * (ts.frame_pose(mech, q, FEET).position - places).flatten(-2)


def landed(mech, q, qd):
    return torch.cat([30 * ts.difference(mech, goal, q), 3 * qd], -1)


def friction(mech, q, qd, u, forces):
    x, y, z = forces.unflatten(-1, (4, 3)).unbind(-1)
    return torch.stack([MU * z, x, y], -1)


phases = [
    ts.control.Phase(held, 25, DT, running, cones=friction),
    ts.control.Phase(dog, 20, DT, running, touchdown),
    ts.control.Phase(held, 25, DT, running, landed, impact=True, cones=friction),
]
inputs = {"actuated": dog.joint_names[1:], "bounds": (-limit, limit), "fuse": ts.fuse}
problem = ts.control.optimal_control(phases, **inputs)
guess, states = torch.zeros(70, 12).double(), (stand.expand(71, -1), still.expand(71, -1))
plan = ts.control.ilqr(problem, stand, still, guess, states=states, tolerance=1e-4)
print(f"converged {bool(plan.converged)} after {plan.iterations} iterations, gap {plan.gap:.0e}")
shapes = [Shape(Sphere(RADIUS), foot, collision=True) for foot in FEET]
shapes.append(Shape(Plane(), collision=True))
ts.save(dog.replace(geometry=Geometry(tuple(shapes))), "quadruped_jump.xml", overwrite=True)
model = mujoco.MjModel.from_xml_path("quadruped_jump.xml")
moved = run_in_mujoco(dog, dog, model, plan, list(dog.dof_names[6:]), DT, limit)
tilt = 2 * moved[-1, 4:7].norm()  # rad, of small angles
print(f"in MuJoCo: {moved[-1, 0]:.2f} m ahead, up to {moved[:, 2].max():.2f} m, then", end=" ")
print(f"at {moved[-1, 2]:.2f} m, tilted by {tilt:.2f} rad")
