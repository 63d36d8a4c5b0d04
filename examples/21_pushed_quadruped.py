"""A quadruped stands on four feet, is pushed sideways, and stays up or falls, for 16 pushes at once.

Feet are spheres on a plane, position servos hold the joints, and one kernel advances all robots. The figure
shows heights and forces at the feet. Needs pip install ".[plot]".
"""

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts
from torchsko.mechanism.geometry import Geometry, Shape, Surface
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere

STAND, RADIUS, DT = [0.0, -0.8, 1.6] * 4, 0.02, 0.004
STEPS, PUSHED = 400, range(100, 125)  # the push lasts 0.1 s


def standing_quadruped():
    """The quadruped of the package with feet and a floor, and its initial configuration."""
    dog = ts.load(ts.robots.quadruped, floating_base=True)
    feet = [name for name in dog.frame_names if name.endswith("foot")]
    foot, floor = Surface(contype=1, conaffinity=0), Surface(contype=0, conaffinity=1)
    shapes = [Shape(Sphere(RADIUS), x, collision=True, surface=foot) for x in feet]
    shapes.append(Shape(Plane(), collision=True, surface=floor))
    dog = dog.replace(geometry=Geometry(tuple(shapes)))
    q = torch.cat([dog.neutral()[:7], torch.tensor(STAND, dtype=dog.dtype)])
    height = ts.frame_pose(dog, q, feet).position[:, 2].min() - RADIUS
    return dog, q - height * torch.eye(len(q), dtype=dog.dtype)[2]


def main():
    args = parse_options(__doc__)
    dog, start = standing_quadruped()
    contact = ts.ContactModel.of(dog)
    servos = [
        ts.actuators.Actuator.position(name, name, kp=60.0, kv=2.0) for name in dog.joint_names[1:]
    ]
    actuators = ts.actuators.Actuators.of(dog, servos)

    def one_step(mech, q, qd, push):
        rotation = ts.frame_pose(mech, q, "body").rotation
        force = (rotation.mT @ push[..., None])[..., 0]
        wrench = torch.cat([0 * force, force], -1)[..., None, :]  # on the first body, in its axes
        f_ext = torch.nn.functional.pad(wrench, (0, 0, 0, mech.num_bodies - 1))
        state = ts.step(
            mech, ts.State(q, qd), start[7:].expand_as(q[..., 7:]), actuators=actuators,
            contact=contact, f_ext=f_ext, dt=DT, integrator="implicitfast",
        )  # fmt: skip
        normal = ts.contact_forces(mech, q, qd, state.warmstart, contact=contact)[..., 0]
        return state.q, state.qd, normal

    print("Building the kernel of a step with four feet ...", flush=True)
    fast = ts.fuse(one_step, dog, shapes={"q": (19,), "qd": (18,), "push": (3,)})
    q, qd = start.repeat(16, 1), torch.zeros(16, 18, dtype=dog.dtype)
    pushes = torch.linspace(0, 150, 16)[:, None] * torch.tensor([0, 1, 0], dtype=dog.dtype)  # N
    heights, forces = [], []
    for k in range(STEPS):
        q, qd, normal = fast(q, qd, pushes if k in PUSHED else 0 * pushes)
        heights.append(q[:, 2])
        forces.append(normal)
    heights, forces, t = torch.stack(heights), torch.stack(forces), DT * torch.arange(STEPS)
    at_rest, weight = forces[PUSHED.start - 1, 0].sum(), 9.81 * dog.mass.sum()
    print(f"normal forces of the standing robot: {at_rest:.2f} N, weight {weight:.2f} N")
    up = heights[-1] > 0.7 * heights[0]
    print(f"robots that stand at the end: {int(up.sum())} of 16")
    figure, axes = plt.subplots(2, 1, figsize=(7, 6), sharex=True, layout="constrained")
    axes[0].plot(t, heights)
    axes[0].set(ylabel="height of the body [m]")
    axes[1].plot(t, forces[:, 5])
    axes[1].set(xlabel="time [s]", ylabel="normal forces of one robot [N]")
    save_figure(figure, args.out / "pushed_quadruped.png", dpi=120)


if __name__ == "__main__":
    main()
