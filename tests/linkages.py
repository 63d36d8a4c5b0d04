"""Closed mechanisms for tests: planar and spatial loops, nested loops, parallel robots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import torchsko as ts
from torchsko.bridge.kinematics import Kinematics

GRAVITY = (0.5, -9.0, -2.0)


class Linkage:
    """A builder of bodies with different inertias."""

    def __init__(self, method: str = "embed") -> None:
        self.builder, self.method, self.count = ts.MechanismBuilder("linkage"), method, 0

    def body(
        self,
        name: str,
        kind: str,
        parent: str | None = None,
        at: Sequence[float] = (0, 0, 0),
        **data: object,
    ) -> None:
        self.count += 1
        k = self.count
        moments = torch.diag(torch.tensor([0.05 + 0.01 / k, 0.05, 0.06]).double())
        com = (0.1, 0.02 * k, 0.01)
        self.builder.link(name, mass=1 + 0.3 * k, com=com, inertia=moments.tolist())
        self.builder.joint(f"{name}_j", kind, child=name, parent=parent, position=tuple(at), **data)

    def close(self, name: str, kind: str, *ends: object, **options: object) -> None:
        self.builder.close(name, kind, *ends, method=self.method, **options)

    def build(self, **options: object) -> ts.Mechanism:
        return self.builder.build(gravity=GRAVITY, **options)


def four_bar(
    method: str = "embed",
    kind: str = "ball",
    independent: Sequence[str] | None = None,
    base: bool = False,
) -> ts.Mechanism:
    """Crank, coupler and rocker; with a base, it floats and the coupler carries a subtree of two bodies."""
    made, root = Linkage(method), None
    if base:
        made.body("base", "free")
        root = "base"
    made.body("crank", "revolute", root, damping=0.2)
    made.body("coupler", "revolute", "crank", (0.2, 0, 0), armature=0.1)
    if base:
        made.body("arm", "revolute", "coupler", (0.1, 0.2, 0), axis=(1, 0, 0))
        made.body("hand", "spherical", "arm", (0.1, 0, 0))
    made.body("rocker", "revolute", root, (0.5, 0, 0), stiffness=3.0, spring_reference=0.3)
    made.close("loop", kind, "coupler", (0.5, 0, 0), "rocker", (0.4, 0, 0), independent=independent)
    return made.build()


def spatial_four_bar(method: str = "embed") -> ts.Mechanism:
    """RUSR: revolute crank, universal and spherical joints on the coupler, revolute rocker."""
    made = Linkage(method)
    made.body("crank", "revolute", None, axis=(0, 0, 1))
    made.body("coupler", "universal", "crank", (0.2, 0, 0), axis=(1, 0, 0), second_axis=(0, 1, 0))
    made.body("rocker", "revolute", None, (0.7, 0.1, 0.2), axis=(0.3, 1, 0.2))
    made.close("loop", "ball", "coupler", (0.6, 0.1, 0.2), "rocker", (0.1, 0.2, 0.4))
    return made.build()


def universal_loop(method: str = "embed") -> ts.Mechanism:
    """RSUR: the loop is cut at the universal joint."""
    made = Linkage(method)
    made.body("crank", "revolute", None, axis=(0, 0, 1))
    made.body("rocker", "revolute", None, (0.7, 0.1, 0.2), axis=(0.3, 1, 0.2))
    made.body("coupler", "spherical", "rocker", (0.1, 0.2, 0.4))
    made.close("loop", "universal", "crank", (0.2, 0, 0), "coupler", (-0.6, -0.2, -0.5))
    return made.build()


def six_bar(method: str = "embed") -> ts.Mechanism:
    """Stephenson: two loops that share bodies, which become one node."""
    made = Linkage(method)
    made.body("crank", "revolute")
    made.body("coupler", "revolute", "crank", (0.2, 0, 0))
    made.body("rocker", "revolute", None, (0.5, 0, 0))
    made.body("link", "revolute", "coupler", (0.3, 0.2, 0))
    made.body("follower", "revolute", None, (0.3, 0.7, 0))
    made.close("first", "planar", "coupler", (0.5, 0, 0), "rocker", (0.4, 0, 0))
    made.close("second", "ball", "link", (0.4, 0, 0), "follower", (0.35, 0, 0))
    return made.build()


def nested(method: str = "embed") -> ts.Mechanism:
    """A four-bar on the coupler of a four-bar: two nodes, one below a member of the other."""
    made = Linkage(method)
    for prefix, root in (("", None), ("upper_", "coupler")):
        made.body(f"{prefix}crank", "revolute", root, (0.1, 0.1, 0))
        made.body(f"{prefix}coupler", "revolute", f"{prefix}crank", (0.2, 0, 0))
        made.body(f"{prefix}rocker", "revolute", root, (0.6, 0.1, 0))
        ends = (f"{prefix}coupler", (0.5, 0, 0), f"{prefix}rocker", (0.4, 0, 0))
        made.close(f"{prefix}loop", "ball", *ends)
    return made.build()


def welded_arm(method: str = "embed") -> ts.Mechanism:
    """A 7R chain whose end is welded to the ground."""
    made, parent = Linkage(method), None
    axes = ((0, 0, 1), (0, 1, 0), (1, 0, 0))
    for k in range(7):
        made.body(
            f"link{k}", "revolute", parent, (0.3, 0.05 * (k % 2), 0.1 * (k % 3)), axis=axes[k % 3]
        )
        parent = f"link{k}"
    made.close(
        "weld", "weld", "world", (torch.eye(3).tolist(), (0.9, 0.6, 0.7)), parent, (0.2, 0, 0)
    )
    return made.build()


def stewart(method: str = "embed", independent: Sequence[str] | None = None) -> ts.Mechanism:
    """6-UPS: the platform floats, six legs of universal and prismatic joints end on it."""
    made = Linkage(method)
    made.body("platform", "free")
    for k in range(6):
        a, b = math.pi / 3 * k + 0.3 * (-1) ** k, math.pi / 3 * k - 0.4 * (-1) ** k
        foot, head = (math.cos(a), math.sin(a), -1.0), (0.5 * math.cos(b), 0.5 * math.sin(b), 0)
        made.body(f"leg{k}", "universal", None, foot, axis=(1, 0, 0), second_axis=(0, 1, 0))
        made.body(f"rod{k}", "prismatic", f"leg{k}", (0, 0, 0.9), axis=(0, 0, 1))
        chosen = independent if k == 0 else None
        made.close(f"loop{k}", "ball", f"rod{k}", (0, 0, 0.1), "platform", head, independent=chosen)
    return made.build()


def geared(method: str = "embed") -> ts.Mechanism:
    """Joint rows: a rod between two arms, whose angles a gear and a polynomial relate."""
    made = Linkage(method)
    made.body("a", "revolute")
    made.body("b", "revolute", "a", (0.4, 0, 0))
    made.body("c", "revolute", None, (1.0, 0, 0))
    made.body("d", "prismatic", "c", (0.2, 0, 0), axis=(1, 0, 0))
    made.close("gear", "gear", "b_j", None, "a_j", None, parameters=(-2.0, 0.1))
    made.close("cam", "joint", "d_j", None, "c_j", None, parameters=(0.1, 0.2, -0.3, 0.05, 0.1))
    made.close("rod", "distance", "b", (0.3, 0.1, 0), "d", (0.1, 0, 0.2), parameters=(0.7,))
    return made.build()


def differential(method: str = "embed") -> ts.Mechanism:
    """A carrier with a spider gear between two side gears, which turn oppositely relative to it."""
    made = Linkage(method)
    made.body("carrier", "revolute", None, axis=(0, 1, 0))
    made.body("spider", "revolute", "carrier", (0, 0.1, 0.2), axis=(1, 0, 0))
    for side, sign in (("left", 1.0), ("right", -1.0)):
        made.body(side, "revolute", "carrier", (0, 0.2 * sign, 0), axis=(0, 1, 0))
        made.close(side, "gear", f"{side}_j", None, "spider_j", None, parameters=(sign * 0.6, 0.0))
    return made.build()


def cassie_leg(method: str = "embed") -> ts.Mechanism:
    """A leg like that of Cassie: springs in shin and heel, an achilles rod and a plantar rod."""
    made = Linkage(method)
    made.body("pelvis", "free")
    made.body("hip", "universal", "pelvis", (0, 0.1, 0), axis=(1, 0, 0), second_axis=(0, 0, 1))
    made.body("thigh", "revolute", "hip", (0, 0, -0.1), axis=(0, 1, 0))
    made.body("knee", "revolute", "thigh", (0.12, 0, 0), axis=(0, 1, 0))
    made.body(
        "shin", "revolute", "knee", (0.06, 0, 0.05), axis=(0, 1, 0), stiffness=150.0, damping=1.0
    )
    made.body("tarsus", "revolute", "shin", (0.43, 0, 0.02), axis=(0, 1, 0))
    made.body("heel", "revolute", "tarsus", (-0.01, 0, -0.03), axis=(0, 1, 0), stiffness=120.0)
    made.body(
        "achilles", "universal", "thigh", (0, 0.01, 0.05), axis=(0, 1, 0), second_axis=(0, 0, 1)
    )
    made.body("crank", "revolute", "tarsus", (0.06, 0.02, -0.03), axis=(0, 1, 0))
    made.body("plantar", "revolute", "crank", (0, 0, -0.055), axis=(0, 1, 0))
    made.body("foot", "revolute", "tarsus", (0.4, 0.02, -0.04), axis=(0, 1, 0))
    made.close("heel_loop", "ball", "achilles", (0.35, 0, 0), "heel", (-0.11, 0.01, 0))
    made.close("toe_loop", "planar", "plantar", _turned(0.35, 0, 0), "foot", (0.01, 0, -0.05))
    return made.build()


def _turned(*position: float) -> tuple[list[list[float]], tuple[float, ...]]:
    """A marker whose z axis is the y axis of the body."""
    return [[0.0, 1, 0], [0, 0, 1], [1, 0, 0]], position


def biped(method: str = "embed") -> ts.Mechanism:
    """Six loops: each leg has a four-bar at the hip, one on its coupler and one on the coupler of that."""
    made = Linkage(method)
    made.body("torso", "free")
    for side, y in (("l_", 0.1), ("r_", -0.1)):
        root, at = "torso", (0.0, y, -0.1)
        for name in ("hip", "knee", "ankle"):
            crank, rod, rocker = (f"{side}{name}_{part}" for part in ("crank", "rod", "rocker"))
            sideways = name == "hip"
            axis = (1, 0, 0) if sideways else (0, 1, 0)
            beside = (0.0, 0.15, 0.0) if sideways else (0.15, 0.0, 0.0)
            made.body(crank, "revolute", root, at, axis=axis)
            made.body(rod, "revolute", crank, (0, 0, -0.2), axis=axis)
            made.body(
                rocker,
                "revolute",
                root,
                [a + b for a, b in zip(at, beside, strict=True)],
                axis=axis,
            )
            place = (0, 0.2, 0.02) if sideways else _turned(0.2, 0, 0.02)
            end = (0, 0.02, -0.22) if sideways else (0.02, 0, -0.22)
            made.close(f"{side}{name}", "ball" if sideways else "planar", rod, place, rocker, end)
            root, at = rod, (0.0, 0.0, -0.1)
    return made.build()


LINKAGES = {
    "four-bar, ball": four_bar,
    **{
        f"four-bar, {name} independent": lambda method="embed", name=name: four_bar(
            method, independent=[f"{name}_j"]
        )
        for name in ("crank", "coupler", "rocker")
    },
    "four-bar, planar": lambda method="embed": four_bar(method, "planar"),
    "four-bar, revolute": lambda method="embed": four_bar(method, "revolute"),
    "four-bar on a floating base": lambda method="embed": four_bar(method, base=True),
    "spatial four-bar": spatial_four_bar,
    "universal joint": universal_loop,
    "six-bar": six_bar,
    "nested four-bars": nested,
    "welded arm": welded_arm,
    "Stewart platform, leg lengths": lambda method="embed": stewart(
        method, [f"rod{k}_j" for k in range(6)]
    ),
    "Stewart platform, pose": lambda method="embed": stewart(method, ["platform_j"]),
    "differential": differential,
    "Cassie-like leg": cassie_leg,
    "biped of six loops": biped,
    "gear, cam and rod": geared,
}
"""Closed mechanisms by name; `method="cut"` leaves them open, with the closures for `ts.constrain`."""


def state(
    mech: ts.Mechanism, *batch: int, seed: int = 0, size: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """A closed configuration at a distance of about `0.15 * size`, a velocity and joint forces."""
    g = torch.Generator().manual_seed(seed)
    draw = torch.randn(3, *batch, mech.num_dof, generator=g, dtype=torch.float64)
    return ts.integrate(mech, mech.neutral(), 0.15 * size * draw[2]), draw[0], draw[1]


class Oracle(NamedTuple):
    """Dynamics in independent dofs from a dense basis of the nullspace of G.

    Attributes:
        X: rates of all dofs per independent rate.
        mass: mass matrix.
        bias: bias force.
        terms: sizes of the terms whose sum is the bias force.
        accel: accelerations of all dofs.
    """

    X: Tensor
    mass: Tensor
    bias: Tensor
    terms: Tensor
    accel: Tensor


def dense_motion(tree: ts.Mechanism, own: Tensor, q: Tensor, rates: Tensor, tau: Tensor) -> Oracle:
    """The dense oracle of a cut mechanism: KKT systems are solved in the nullspace of G, by singular values.

    Args:
        tree: the mechanism with loops that are cut.
        own: independent dofs.
        q: configuration of the tree.
        rates: its velocity.
        tau: forces on the independent dofs.
    """
    rows = ts.constrain(tree, tree.closures).constraints.rows
    at = rows.at(Kinematics.of(tree, q, rates), rows.numbers(tree))
    assert at.bias is not None
    G, gamma = at.jacobian, at.bias[..., None]
    sizes, V = torch.linalg.svd(G)[1:]
    rank = int((sizes > 1e-9 * sizes.max()).sum(-1).max())
    N = V[..., rank:, :].mT
    M, C = ts.mass_matrix(tree, q), ts.bias_force(tree, q, rates)[..., None]
    force = torch.zeros_like(C)
    force[..., own, :] = tau[..., None]
    part = -torch.linalg.pinv(G, rtol=1e-9) @ gamma
    accel = part + N @ torch.linalg.solve(N.mT @ M @ N, N.mT @ (force - C - M @ part))
    X = N @ torch.linalg.inv(N[..., own, :])
    xi = part - X @ part[..., own, :]
    terms = X.abs().mT @ (C.abs() + M.abs() @ xi.abs())
    columns = (X.mT @ (C + M @ xi), terms, accel)
    return Oracle(X, X.mT @ M @ X, *(x[..., 0] for x in columns))
