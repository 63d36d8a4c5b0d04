"""A planar biped makes 32 steps of different lengths, planned at once; MuJoCo runs one of them.

Phases on both feet, one, and both after an impact, within cones and limits. Needs pip install ".[mjcf]".
"""

import mujoco
import torch
from mujoco_plan import run_in_mujoco

import torchsko as ts

DT, MU, FEET = 0.02, 0.6, ("left", "right")
LEG = """<body><joint name="{0} hip" axis="0 1 0"/><inertial pos="0 0 -.2" mass="3" diaginertia=".1 .1 .1"/>
    <body pos="0 0 -.4"><joint name="{0} knee" axis="0 1 0"/><site name="{0}" pos="0 0 -.4"/>
    <inertial pos="0 0 -.2" mass="3" diaginertia=".1 .1 .1"/><geom pos="0 0 -.4" size=".01"/></body></body>"""
BIPED = f"""<mujoco><worldbody><geom type="plane" pos="0 0 -.01" size="5 5 1"/><body>
    <inertial pos="0 0 .2" mass="20" diaginertia="1 1 1"/><joint name="x" type="slide" axis="1 0 0"/>
    <joint name="z" type="slide" axis="0 0 1"/><joint name="pitch" axis="0 1 0"/>
    {LEG.format("left")}{LEG.format("right")}</body></worldbody></mujoco>"""
robot = ts.load(BIPED.replace("<geom", '<geom contype="0" conaffinity="0"'))
alone, both = (ts.constrain(robot, [ts.HeldFrame(x) for x in FEET[:k]]) for k in (1, 2))
lengths, limit = torch.linspace(0.1, 0.3, 32).double(), torch.full((4,), 120.0).double()  # m, N m
places = torch.stack([0 * lengths - 0.3, lengths])[..., None] * torch.eye(3).double()[0]
stands = [ts.HeldFrame("left", "point", 0 * places), ts.HeldFrame("right", "point", places)]
crouch = torch.tensor([0.0, 0.74, 0.0, -0.3, 0.6, -0.3, 0.6]).double()
start, end = ts.constrain(robot, stands).project(crouch + places @ torch.eye(3, 7).double() / 2)


def swing(mech, q, *rest):
    return ts.frame_pose(mech, q, "right").position


def running(mech, q, qd, u, forces, *rest):
    return torch.cat([0.01 * u, 0.1 * qd, 0.001 * forces], -1)


def friction(mech, q, qd, u, forces, *rest):
    return torch.stack([MU * forces[..., 2::3], forces[..., ::3]], -1)


above = {"inequalities": lambda *x: (swing(*x)[..., 2] - x[-1])[..., None], "cones": friction}
touchdown = {"final": lambda mech, q, qd, place, *rest: 300 * (swing(mech, q) - place)[..., ::2]}
landed = {"final": lambda mech, q, qd, place, end, _: torch.cat([30 * (q - end), 10 * qd], -1)}
phases = [
    ts.control.Phase(both, 15, DT, running, cones=friction),
    ts.control.Phase(alone, 20, DT, running, **touchdown, **above),
    ts.control.Phase(both, 15, DT, running, **landed, impact=True, cones=friction),
]
inputs = {"actuated": robot.joint_names[1:], "bounds": (-limit, limit), "fuse": ts.fuse}
inputs |= {"goals": {"place": (3,), "end": (7,)}, "series": {"clearance": ()}}
problem = ts.control.optimal_control(phases, **inputs)
states = [x[:, None].expand(-1, 51, -1) for x in (start, 0 * start)]
clearance = 0.05 * torch.sin(torch.pi * torch.arange(-15, 36).clamp(0, 20).double() / 20)
given = start, 0 * start, torch.zeros(32, 50, 4).double(), places[1], end, clearance
plan = ts.control.ilqr(problem, *given, states=states, tolerance=1e-4, max_iterations=300)
print(f"{int(plan.converged.sum())} of 32 converged, iterations {plan.iterations.tolist()}")
middle, model = type(plan)(*(x[15] for x in plan)), mujoco.MjModel.from_xml_string(BIPED)
moved = run_in_mujoco(robot, robot, model, middle, robot.dof_names[3:], DT, limit)
foot = swing(robot, moved)[-1, 0]
print(f"MuJoCo: a step of {foot:.2f} m for {lengths[15]:.2f} m, the hip at {moved[-1, 1]:.2f} m")
