"""Single precision forward dynamics follows double precision, on an arm, a humanoid and a long chain."""

import numpy as np
import pytest
import torch

import torchsko as ts

QUARTER_TURN = [[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]]
AXES = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}

# Segment by segment from the base: axes of its joints in order, parent segment, place of the first joint
# in it [m], mass [kg], length below the joint [m] (negative: above it), radius [m]. Masses and lengths
# are those of an adult of 70 kg and 1.75 m, rounded; all but the last joint of a segment move a motor.
SEGMENTS = {
    "torso": ("zy", "pelvis", (0.0, 0.0, 0.12), 22.0, -0.45, 0.13),
    "head": ("zy", "torso", (0.0, 0.0, 0.48), 4.9, -0.24, 0.09),
    "left_upper_arm": ("yxz", "torso", (0.0, 0.19, 0.42), 1.9, 0.29, 0.045),
    "left_forearm": ("yz", "left_upper_arm", (0.0, 0.0, -0.29), 1.1, 0.26, 0.035),
    "left_hand": ("yx", "left_forearm", (0.0, 0.0, -0.26), 0.45, 0.12, 0.03),
    "right_upper_arm": ("yxz", "torso", (0.0, -0.19, 0.42), 1.9, 0.29, 0.045),
    "right_forearm": ("yz", "right_upper_arm", (0.0, 0.0, -0.29), 1.1, 0.26, 0.035),
    "right_hand": ("yx", "right_forearm", (0.0, 0.0, -0.26), 0.45, 0.12, 0.03),
    "left_thigh": ("zxy", "pelvis", (0.0, 0.09, -0.06), 9.0, 0.42, 0.075),
    "left_shank": ("y", "left_thigh", (0.0, 0.0, -0.42), 3.1, 0.42, 0.05),
    "left_foot": ("yx", "left_shank", (0.0, 0.0, -0.42), 0.95, 0.08, 0.05),
    "right_thigh": ("zxy", "pelvis", (0.0, -0.09, -0.06), 9.0, 0.42, 0.075),
    "right_shank": ("y", "right_thigh", (0.0, 0.0, -0.42), 3.1, 0.42, 0.05),
    "right_foot": ("yx", "right_shank", (0.0, 0.0, -0.42), 0.95, 0.08, 0.05),
}
MOTOR = (0.5, 0.0, 0.04)
"""Mass [kg], length [m] and radius [m] of the part between two joints of one segment."""


def add_cylinder(
    builder: ts.MechanismBuilder, name: str, mass: float, length: float, radius: float
) -> None:
    """A cylinder along z that hangs from its frame's origin."""
    across = mass * (3 * radius**2 + length**2) / 12
    inertia = np.diag([across, across, mass * radius**2 / 2]).tolist()
    builder.link(name, mass=mass, com=(0.0, 0.0, -length / 2), inertia=inertia)


def humanoid(*, floating: bool) -> ts.Mechanism:
    """30 revolute joints: waist 2, neck 2, arms 7 each, legs 6 each; on a free base if asked."""
    builder = ts.MechanismBuilder("humanoid")
    add_cylinder(builder, "pelvis", 11.0, 0.1, 0.14)
    if floating:
        builder.joint("base", "free", child="pelvis")
    for segment, (axes, parent, place, *shape) in SEGMENTS.items():
        for k, letter in enumerate(axes):
            last = k == len(axes) - 1
            name = segment if last else f"{segment}_motor{k}"
            add_cylinder(builder, name, *(shape if last else MOTOR))
            builder.joint(
                f"{segment}_{k}", "revolute", child=name, parent=parent, position=place,
                axis=AXES[letter], lower=-2.0, upper=2.0, velocity=3.0,
            )  # fmt: skip
            parent, place = name, (0.0, 0.0, 0.0)
    return builder.build()


def chain(links: int) -> ts.Mechanism:
    """Equal links, each axis a quarter turn from the one before."""
    builder = ts.MechanismBuilder("chain")
    for k in range(links):
        add_cylinder(builder, f"link{k}", 0.5, 0.1, 0.03)
        builder.joint(
            f"joint{k}", "revolute", child=f"link{k}", parent=f"link{k - 1}" if k else None,
            position=(0.0, 0.0, -0.1 if k else 0.0), rotation=QUARTER_TURN, lower=-2.0, upper=2.0,
            velocity=3.0,
        )  # fmt: skip
    return builder.build()


def worst_error(mech: ts.Mechanism) -> float:
    """Worst of 256 states: error of float32 accelerations relative to the state's largest one."""
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(256, generator=g)
    tau = 10 * torch.randn(256, mech.num_dof, generator=g, dtype=torch.float64)
    state = [x.float() for x in (q, qd, tau)]
    # The same state for both: what is measured is the recursion, not the rounding of its input.
    exact = ts.forward_dynamics(mech, *(x.double() for x in state))
    single = ts.forward_dynamics(mech.to(torch.float32), *state).double()
    largest = exact.abs().amax(-1)
    return float(((single - exact).abs().amax(-1) / largest).max())


def armed(mech: ts.Mechanism, joints: slice, armature: float) -> ts.Mechanism:
    """The mechanism with this armature at some of its joints, none at the others."""
    S = torch.zeros(mech.num_dof, dtype=torch.float64)
    return mech.replace(armature=S.index_fill(0, torch.arange(mech.num_dof)[joints], armature))


def tilted(mech: ts.Mechanism) -> ts.Mechanism:
    """The mechanism with every axis in a direction of its own, no coordinate axis."""
    g = torch.Generator().manual_seed(0)
    axis = torch.randn(mech.num_bodies, 3, generator=g, dtype=torch.float64)
    return mech.replace(axis=torch.nn.functional.normalize(axis, dim=-1))


ROBOTS = {
    "arm": (lambda: ts.load(ts.robots.panda), 7, 1e-5),
    "humanoid": (lambda: humanoid(floating=False), 30, 1e-5),
    "floating humanoid": (lambda: humanoid(floating=True), 36, 1e-5),
    "chain": (lambda: chain(64), 64, 3e-6),
    "chain, armature on one joint": (lambda: armed(chain(64), slice(10, 11), 0.05), 64, 3e-6),
    "chain, small armature on one": (lambda: armed(chain(64), slice(10, 11), 1e-3), 64, 3e-6),
    "chain, armature on all": (lambda: armed(chain(64), slice(None), 0.05), 64, 3e-6),
    "chain, small armature on all": (lambda: armed(chain(64), slice(None), 1e-3), 64, 3e-6),
    "tilted chain": (lambda: tilted(chain(64)), 64, 5e-6),
    "tilted chain, armature on one": (
        lambda: armed(tilted(chain(64)), slice(10, 11), 0.05),
        64,
        5e-6,
    ),
    "tilted chain, armature on all": (
        lambda: armed(tilted(chain(64)), slice(None), 1e-3),
        64,
        5e-6,
    ),
}


@pytest.mark.parametrize("name", ROBOTS)
def test_float32_accelerations_are_those_of_float64(name, capsys):
    build, num_dof, bound = ROBOTS[name]
    mech = build()
    assert mech.num_dof == num_dof
    error = worst_error(mech)
    with capsys.disabled():
        print(f"\nfloat32 forward dynamics, {name} ({num_dof} dof): {error:.1e} (at most {bound})")
    assert error <= bound
