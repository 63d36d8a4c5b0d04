"""Cassie squats on its held feet, with four closed loops, beside MuJoCo under the same feedback law.

The loops are embedded in 22 independent coordinates, and two points hold each sole. Loops and feet are rigid
in torchsko and soft in MuJoCo, which is the difference. Needs pip install ".[mjcf,plot,bench]".
"""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import mujoco
import pinocchio
import torch

import torchsko as ts

FILE = "share/example-robot-data/robots/cassie_description/robots/cassie_v2.sdf"
FEET, SOLE = ("left-foot", "right-foot"), ((-0.059, 0.1026, 0.0), (0.079, -0.0126, 0.0))
DT, STIFFNESS, DAMPING, ROD = 1e-3, 3000.0, 100.0, 'achilles-spring-joint" type='


def load(closures):
    text = (Path(pinocchio.__file__).parents[4] / FILE).read_text()
    text = text.replace(f'{ROD}"revolute"', f'{ROD}"ball"')  # hinges would lock the knees
    robot = ts.load(text, floating_base=True, closures=closures)
    return robot.replace(armature=0.1 * (torch.arange(robot.num_tree_dof) > 5).double())  # rotors


def posture(cassie, knee):
    q, foot, half = cassie.initial().clone(), -1.2 - knee / 3, torch.tensor(knee / 2)
    bend = {"pitch-op": 0.05 + knee / 3, "knee-op": -knee, "shin-tarsus-joint": knee}
    bend |= {"foot-op": foot, "tarsus-crank-joint": foot, "crank-rod-joint": -foot}
    bend["achilles-spring-joint"] = torch.stack([half.cos(), 0 * half, 0 * half, -half.sin()])
    for name in (x for x in cassie.joint_names if x.split("-", 1)[-1] in bend):
        q[cassie.q_slice(name)] = bend[name.split("-", 1)[1]]
    return ts.close_loops(cassie, q).q


def law(t, q, qd, *, goal):
    return (STIFFNESS * (goal - q[..., places]) - DAMPING * qd[..., dofs]) @ unit[dofs]


warnings.simplefilter("ignore", ts.RobotFileWarning)
cassie, pins = load("embed"), []
motors = [name for name in cassie.dof_names if name.endswith(("-op", "-tarsus-crank-joint"))]
dofs, places = ([f(name).start for name in motors] for f in (cassie.dof_slice, cassie.q_slice))
unit, high, low = torch.eye(cassie.num_dof).double(), posture(cassie, 0.6), posture(cassie, 0.74)
for foot, p in ((foot, p) for foot in FEET for p in SOLE):
    point = ts.frame_pose(cassie, high, ts.Frame(foot, position=torch.tensor(p).double())).position
    pins.append(
        ts.constraints.Closure(f"pin{len(pins)}", "ball", foot, None, p, tuple(point.tolist()))
    )
time = DT * torch.arange(1, 1501).double()  # half a second at rest, then the squat
phase = 0.5 - 0.5 * torch.cos(2 * torch.pi * (time - 0.5).clamp(min=0))
goals = torch.lerp(high[places], low[places], phase[:, None])
print("Building the kernel of a step ...", flush=True)
held = ts.fuse(ts.constrain(cassie, pins, stabilize=20.0))
qs = ts.rollout(
    held, ts.State(high, 0 * unit[0]), law, steps=len(time), dt=DT, series={"goal": goals}
).q
tree, theirs = load(pins), []
with TemporaryDirectory() as folder:
    ts.save(tree, f"{folder}/cassie.xml")
    model = mujoco.MjModel.from_xml_path(f"{folder}/cassie.xml")
model.opt.timestep, model.opt.disableflags = DT, mujoco.mjtDisableBit.mjDSBL_LIMIT
model.eq_solref[:], model.eq_solimp[:, :2] = (2 * DT, 1.0), 0.9999  # the stiffest stable values
data, order = mujoco.MjData(model), [model.joint(k).name for k in range(model.njnt)]
convention = ts.conventions("mujoco", tree, order)
data.qpos[:] = convention.q_to(high)
q, v = ([getattr(model.joint(x), adr)[0] for x in motors] for adr in ("qposadr", "dofadr"))
for goal in goals.numpy():
    data.qfrc_applied[v] = STIFFNESS * (goal - data.qpos[q]) - DAMPING * data.qvel[v]
    mujoco.mj_step(model, data)
    theirs.append(torch.tensor(data.qpos))
qs, theirs = qs[1:], convention.q_from(torch.stack(theirs))
print(f"depth of the squat {100 * float(qs[499, 2] - qs[:, 2].min()):.1f} cm")
print(
    f"largest closure error after a step {float(ts.close_loops(cassie, qs).distance.max()):.1e} m"
)
print(f"largest difference from MuJoCo {1e3 * float((theirs - qs).abs().max()):.3f} mm or mrad")
plt.plot(time, qs[:, 2], "-", time, theirs[:, 2], "--")
plt.gca().set(xlabel="time [s]", ylabel="pelvis height [m]", title="torchsko, MuJoCo (dashed)")
plt.savefig("cassie_squat.png", dpi=120)
print("Figure: cassie_squat.png")
