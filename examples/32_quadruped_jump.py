"""A quadruped jumps half a meter ahead: stance in friction cones, flight, impact and landing, then in MuJoCo.

MuJoCo runs the torques with the feedback of the plan, on soft contacts. Needs pip install ".[mjcf]".
"""

import mujoco
import torch

import torchsko as ts
from torchsko.mechanism.geometry import Geometry, Shape
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere

RADIUS, DT, MU, AHEAD = 0.02, 0.01, 0.6, 0.5
FEET = [f"{end}_{side}_foot" for end in ("front", "hind") for side in ("right", "left")]

dog = ts.load(ts.robots.quadruped, floating_base=True)
dog = dog.replace(friction=0 * dog.friction)
held = ts.constrain(dog, [ts.HeldFrame(foot) for foot in FEET])
stand = torch.cat([dog.neutral()[:7], torch.tensor([0.0, -0.8, 1.6] * 4).double()])
stand[2] = RADIUS - ts.frame_pose(dog, stand, FEET).position[:, 2].min()
goal, still = stand + AHEAD * torch.eye(19).double()[0], torch.zeros(18).double()
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
inputs = {"actuated": dog.joint_names[1:], "bounds": (-limit, limit)}
problem = ts.control.optimal_control(phases, **inputs, fuse=ts.fuse)
guess, states = torch.zeros(70, 12).double(), (stand.expand(71, -1), still.expand(71, -1))
print("Building the kernels ...", flush=True)
plan = ts.control.ilqr(problem, stand, still, guess, states=states, tolerance=1e-4)
rise = (ts.frame_pose(dog, plan.q, FEET).position[..., 2] - RADIUS).amin(-1).max()
print(
    f"converged {bool(plan.converged)} after {plan.iterations} iterations, gap {plan.gap:.0e},",
    end=" ",
)
print(f"violation {plan.violation:.0e} N; all feet rise {100 * rise:.1f} cm")

shapes = [Shape(Sphere(RADIUS), foot, collision=True) for foot in FEET]
floor = Shape(Plane(), collision=True)
ts.save(dog.replace(geometry=Geometry((*shapes, floor))), "quadruped_jump.xml")
model = mujoco.MjModel.from_xml_path("quadruped_jump.xml")
model.opt.timestep, data = DT / 10, mujoco.MjData(model)
order = ts.conventions("mujoco", dog, [model.joint(k).name for k in range(model.njnt)])
data.qpos[:], heights = order.q_to(stand), []
for t in range(70):
    q, qd = torch.tensor(data.qpos), torch.tensor(data.qvel)
    q, qd = order.q_from(q), order.qd_from(q, qd)
    x = torch.cat([ts.difference(dog, plan.q[t], q), qd - plan.qd[t]])
    u = torch.clamp(plan.u[t] + plan.gains[t] @ x, -limit, limit)
    data.qfrc_applied[:] = order.tau_to(q, torch.nn.functional.pad(u, (6, 0)))
    mujoco.mj_step(model, data, 10)
    heights.append(data.qpos[2])
print(f"in MuJoCo it moves {data.qpos[0]:.2f} m, rises to {max(heights):.2f} m and ends", end=" ")
print(f"at {data.qpos[2]:.2f} m, tilted by {2 * (data.qpos[4:7] ** 2).sum() ** 0.5:.2f} rad")
