"""A planar biped makes a step: stance on both feet, on one, and on both after the impact of the other.

The swinging foot stays above the ground, forces in their friction cones, and torques within limits.
32 steps of different lengths are planned at once.
"""

import torch

import torchsko as ts

DT, STEPS, MU = 0.02, (15, 20, 15), 0.6
LIMIT = torch.full((4,), 120.0).double()  # N m


def biped():
    """A torso that moves in a plane, with two legs of thigh and shank."""
    builder, rod = ts.MechanismBuilder("biped"), torch.eye(3).mul(0.1).tolist()
    for name, parent, axis in (("x", None, (1, 0, 0)), ("z", "x", (0, 0, 1))):
        builder.link(name).joint(name, "prismatic", parent=parent, child=name, axis=axis)
    builder.link("torso", mass=20.0, com=(0, 0, 0.2), inertia=torch.eye(3).tolist())
    builder.joint("pitch", "revolute", parent="z", child="torso", axis=(0, 1, 0))
    for side in ("left", "right"):
        for name, parent, height in (("thigh", "torso", 0.0), ("shank", f"{side} thigh", -0.4)):
            builder.link(f"{side} {name}", mass=3.0, com=(0, 0, -0.2), inertia=rod)
            joint = {"child": f"{side} {name}", "position": (0, 0, height), "axis": (0, 1, 0)}
            builder.joint(f"{side} {name}", "revolute", parent=parent, **joint)
    return builder.build()


robot = biped()
feet = [
    ts.Frame(f"{x} shank", position=torch.tensor([0, 0, -0.4]).double()) for x in ("left", "right")
]
left = ts.constrain(robot, [ts.HeldFrame(feet[0])])
both = ts.constrain(robot, [ts.HeldFrame(foot) for foot in feet])


def standing(left_x, right_x):
    """The crouched configuration with the feet at these places [m] and the hip between them."""
    hip = (left_x + right_x) / 2
    guess = torch.tensor([0.0, 0.74, 0.0, -0.3, 0.6, -0.3, 0.6]).double()
    places = [torch.stack([x, 0 * x, 0 * x], -1) for x in (left_x, right_x)]
    holds = [ts.HeldFrame(foot, "point", x) for foot, x in zip(feet, places, strict=True)]
    shift = hip[..., None] * torch.eye(7).double()[0]
    return ts.constrain(robot, holds).project(guess + shift)


def running(mech, q, qd, u, forces, length, end):
    return torch.cat([0.01 * u, 0.1 * qd, 0.001 * forces], -1)


def touchdown(mech, q, qd, length, end):
    position = ts.frame_pose(mech, q, feet[1]).position
    return 300 * torch.stack([position[..., 0] - length, position[..., 2]], -1)


def landed(mech, q, qd, length, end):
    return torch.cat([30 * (q - end), 10 * qd], -1)


def friction(mech, q, qd, u, forces, length, end):
    f = forces.unflatten(-1, (-1, 3))
    return torch.stack([MU * f[..., 2], f[..., 0]], -1)


def above(mech, q, *rest):
    return ts.frame_pose(mech, q, feet[1]).position[..., 2:]


phases = [
    ts.control.Phase(both, STEPS[0], DT, running, cones=friction),
    ts.control.Phase(left, STEPS[1], DT, running, touchdown, inequalities=above, cones=friction),
    ts.control.Phase(both, STEPS[2], DT, running, landed, impact=True, cones=friction),
]
problem = ts.control.optimal_control(
    phases,
    goals={"length": (), "end": (7,)},
    actuated=robot.joint_names[3:],
    bounds=(-LIMIT, LIMIT),
    fuse=ts.fuse,
)
lengths, zero = torch.linspace(0.2, 0.5, 32).double(), torch.zeros(32).double()
start, end = standing(zero, zero - 0.3), standing(zero, lengths)
still, u = 0 * start, torch.zeros(32, sum(STEPS), 4).double()
states = [x[:, None].expand(-1, sum(STEPS) + 1, -1) for x in (start, still)]
print("Building the kernels ...", flush=True)
plan = ts.control.ilqr(
    problem, start, still, u, lengths, end, states=states, tolerance=1e-4, max_iterations=300
)
swing = ts.frame_pose(robot, plan.q, feet[1]).position
reached = (swing[:, sum(STEPS[:2]), 0] - lengths).abs().max()
print(
    f"{int(plan.converged.sum())} of 32 converged, iterations median {plan.iterations.median()}, "
    f"most {plan.iterations.max()}; largest violation {plan.violation.max():.0e}, gap {plan.gap.max():.0e}"
)
height = swing[:, STEPS[0] : sum(STEPS[:2]), 2]
print(
    f"the foot rises by {100 * height.amax(1).min():.1f} cm or more and lands within "
    f"{1e3 * reached:.2f} mm; largest torque {plan.u.abs().max():.0f} N m"
)
