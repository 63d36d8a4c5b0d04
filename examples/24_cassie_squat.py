"""Cassie squats: two phases on held feet with four closed loops, planned, then run in MuJoCo.

Loops are embedded in 22 independent coordinates, and two points hold each sole. MuJoCo runs the torques with
the feedback of the plan; its loops and feet are soft. Needs pip install ".[mjcf,bench]".
"""

import warnings
from pathlib import Path

import mujoco
import pinocchio
import torch
from mujoco_plan import run_in_mujoco

import torchsko as ts

FILE = "share/example-robot-data/robots/cassie_description/robots/cassie_v2.sdf"
FEET, SOLE = ("left-foot", "right-foot"), ((-0.059, 0.1026, 0.0), (0.079, -0.0126, 0.0))
DT, STEPS, DEPTH, ROD = 0.02, 20, 0.1, 'achilles-spring-joint" type='


def load(closures):
    text = (Path(pinocchio.__file__).parents[4] / FILE).read_text()
    text = text.replace(f'{ROD}"revolute"', f'{ROD}"ball"')  # hinges would lock the knees
    robot = ts.load(text, floating_base=True, closures=closures)
    return robot.replace(armature=0.1 * (torch.arange(robot.num_tree_dof) > 5).double())  # rotors


warnings.simplefilter("ignore", ts.RobotFileWarning)
cassie, pins = load("embed"), []
bend = {"pitch-op": 0.25, "knee-op": -0.6, "shin-tarsus-joint": 0.6, "foot-op": -1.4}
bend |= {"tarsus-crank-joint": -1.4, "crank-rod-joint": 1.4}
bend |= {"achilles-spring-joint": torch.tensor([0.955, 0, 0, -0.296]).double()}
high, still = cassie.initial().clone(), torch.zeros(cassie.num_dof).double()
for name in (x for x in cassie.joint_names if x.split("-", 1)[-1] in bend):
    high[cassie.q_slice(name)] = bend[name.split("-", 1)[1]]
high = ts.close_loops(cassie, high).q
for foot, p in ((foot, p) for foot in FEET for p in SOLE):
    at = ts.frame_pose(cassie, high, ts.Frame(foot, position=torch.tensor(p).double())).position
    pins.append(ts.constraints.Closure(f"pin{len(pins)}", "ball", foot, None, p, (*at.tolist(),)))
held = ts.constrain(cassie, pins, stabilize=20.0)
motors = [x for x in cassie.dof_names if x.endswith(("-op", "-tarsus-crank-joint"))]
effort = {"running": lambda mech, q, qd, u, forces: torch.cat([0.01 * u, 0.1 * qd], -1)}
low = {"final": lambda mech, q, qd: torch.cat([100 * (q[..., 2:3] - high[2] + DEPTH), qd], -1)}
up = {"final": lambda mech, q, qd: torch.cat([30 * ts.difference(mech, high, q), 3 * qd], -1)}
phases = [ts.control.Phase(held, STEPS, DT, **effort, **final) for final in (low, up)]
problem = ts.control.optimal_control(phases, actuated=motors)
guess, rows = torch.zeros(2 * STEPS, len(motors)).double(), 2 * STEPS + 1
states = high.expand(rows, -1), still.expand(rows, -1)
plan = ts.control.ilqr(problem, high, still, guess, states=states, tolerance=1e-3)
print(f"converged {bool(plan.converged)} after {plan.iterations} iterations, gap {plan.gap:.0e}")
tree = load(pins)
ts.save(tree, "cassie_squat.xml", overwrite=True)
model = mujoco.MjModel.from_xml_path("cassie_squat.xml")
model.opt.disableflags = mujoco.mjtDisableBit.mjDSBL_LIMIT
model.eq_solref[:], model.eq_solimp[:, :2] = (0.2 * DT, 1.0), 0.9999  # the stiffest stable values
moved = run_in_mujoco(cassie, tree, model, plan, motors, DT)
depths = [100 * (high[2] - q[:, 2].min()) for q in (plan.q, moved)]
away = 1e3 * (moved - plan.q)[:, :3].abs().max()
print(f"depth {depths[0]:.1f} cm, in MuJoCo {depths[1]:.1f} cm, pelvis within {away:.1f} mm")
