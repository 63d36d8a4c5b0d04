"""A quadruped jumps half a meter ahead by optimal control with phases, checked in MuJoCo.

Stance on four held feet within friction cones, flight, an impact and the landing. MuJoCo then runs the torques
with the feedback of the plan, on soft contacts. Needs pip install ".[mjcf,plot]".
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import mujoco
import torch

import torchsko as ts
from torchsko.mechanism.geometry import Geometry, Shape, Surface
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere

RADIUS, DT, STEPS, MU = 0.02, 0.01, (25, 20, 25), 0.6

dog = ts.load(ts.robots.quadruped, floating_base=True)
dog = dog.replace(friction=0 * dog.friction)
feet = [name for name in dog.frame_names if name.endswith("foot")]
surface = Surface(friction=(1.0, 0.005, 0.0001))
shapes = [Shape(Sphere(RADIUS), x, collision=True, surface=surface) for x in feet]
floor = Shape(Plane(), collision=True, surface=surface)
held = ts.constrain(dog, [ts.HeldFrame(foot) for foot in feet])
stand = torch.cat([dog.neutral()[:7], torch.tensor([0.0, -0.8, 1.6] * 4).double()])
places = ts.frame_pose(dog, stand, feet).position
base = torch.eye(19).double()
stand = stand + (RADIUS - places[:, 2].min()) * base[2]
goal, places = stand + 0.5 * base[0], ts.frame_pose(dog, stand + 0.5 * base[0], feet).position


def running(mech, q, qd, u, *forces):
    return torch.cat([0.01 * u, 0.3 * (q - stand)[..., 7:], 0.03 * qd], -1)


def touchdown(mech, q, qd):
    return 100 * (ts.frame_pose(mech, q, feet).position - places).flatten(-2)


def landed(mech, q, qd):
    return torch.cat([30 * ts.difference(mech, goal, q), 3 * qd], -1)


def friction(mech, q, qd, u, forces):
    f = forces.unflatten(-1, (4, 3))
    return torch.stack([MU * f[..., 2], f[..., 0], f[..., 1]], -1)


phases = [
    ts.control.Phase(held, STEPS[0], DT, running, cones=friction),
    ts.control.Phase(dog, STEPS[1], DT, running, touchdown),
    ts.control.Phase(held, STEPS[2], DT, running, landed, impact=True, cones=friction),
]
limit = dog.effort_limit[6:]
problem = ts.control.optimal_control(
    phases, actuated=dog.joint_names[1:], bounds=(-limit, limit), fuse=ts.fuse
)
still, guess = torch.zeros(18).double(), torch.zeros(sum(STEPS), 12).double()
states = stand.expand(sum(STEPS) + 1, -1), still.expand(sum(STEPS) + 1, -1)
print("Building the kernels ...", flush=True)
plan = ts.control.ilqr(problem, stand, still, guess, states=states, tolerance=1e-4, max_iterations=200)
print(plan.converged, plan.iterations, plan.cost, plan.gradient, plan.violation, plan.gap, plan.u.abs().amax(0))
