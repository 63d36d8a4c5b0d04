"""Mechanisms for the table of embedded, held, soft and open constraints."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

import torchsko as ts

Constraint = ts.HeldFrame | ts.constraints.Closure
Point = tuple[float, ...]


class Loop(NamedTuple):
    """Constraints in all their forms.

    Attributes:
        exact: the constraints as `torchsko.constrain` and `closures=` take them.
        soft: equalities of an MJCF file; None if there are none.
        modes: ways in which they can act.
    """

    exact: tuple[Constraint, ...]
    soft: str | None
    modes: tuple[str, ...]


class Model(NamedTuple):
    """Bodies of an MJCF file, and the constraints between them.

    Attributes:
        bodies: elements of the world body.
        loops: constraints by name.
        coupling: a linear equality that `torchsko.load` takes as an exact coupling.
    """

    bodies: str
    loops: dict[str, Loop]
    coupling: ts.constraints.Closure | None = None

    def text(self, *soft: str, coupled: bool = False) -> str:
        """MJCF text with these constraints as soft equalities, and with the coupling."""
        rows = "".join(self.loops[name].soft or "" for name in soft)
        if coupled and self.coupling is not None:
            one, two = self.coupling.joints
            offset, ratio = self.coupling.parameters
            rows += f'<joint joint1="{one}" joint2="{two}" polycoef="{offset} {ratio} 0 0 0"/>'
        return (
            f'<mujoco><compiler angle="radian"/><option gravity="1 -2 -9"/><worldbody>{self.bodies}'
            f"</worldbody><equality>{rows}</equality></mujoco>"
        )


ALL = ("embedded", "held", "soft", "open")


def inertia(x: float, mass: float) -> str:
    return f'<inertial pos="{x} .02 .01" mass="{mass}" diaginertia=".02 .03 .04"/>'


def ball(
    name: str, one: str | None, x1: Point, two: str | None, x2: Point
) -> ts.constraints.Closure:
    return ts.constraints.Closure(name, "ball", one, two, x1, x2)


def connect(*closures: ts.constraints.Closure) -> str:
    """The `connect` equalities of ball closures; sites are named after them."""
    return "".join(f'<connect site1="{c.name}_1" site2="{c.name}_2"/>' for c in closures)


def slide_bar() -> Model:
    """A four-bar on a slide; a rod holds its rocker, and a cam relates a lever to the slide."""
    loop = ball("loop", "coupler", (0.5, 0, 0), "rocker", (0.4, 0, 0))
    rod = ts.constraints.Closure(
        "rod", "distance", "rocker", None, (0.3, 0.1, 0.1), (0.9, 0.4, 0.9), parameters=(0.6,)
    )
    cam = ts.constraints.Closure(
        "cam", "joint", None, None, joints=("lever", "slide"), parameters=(0.1, 1.5, 2.0, -1.0, 0.5)
    )
    bodies = f"""<body name="cart"><joint name="slide" type="slide" axis="1 0 .2" damping=".3"/>
     {inertia(0, 2)}
     <body name="crank" euler="0 -1.2 0"><joint name="crank" axis="0 1 0" damping=".2"/>{inertia(0.1, 1)}
      <body name="coupler" pos=".2 0 0" euler="0 1 0"><joint name="coupler" axis="0 1 0" armature=".1"/>
       {inertia(0.2, 1.5)}<site name="loop_1" pos=".5 0 0"/></body></body>
     <body name="rocker" pos=".5 0 0" euler="0 -1.7 0"><joint name="rocker" axis="0 1 0" stiffness="3"/>
      {inertia(0.2, 1.2)}<site name="loop_2" pos=".4 0 0"/></body>
     <body name="lever" pos="0 .3 0"><joint name="lever" axis="0 0 1"/>{inertia(0.3, 0.7)}</body></body>"""
    polynomial = '<joint joint1="lever" joint2="slide" polycoef=".1 1.5 2 -1 .5"/>'
    return Model(
        bodies,
        {
            "loop": Loop((loop,), connect(loop), ALL),
            "rod": Loop((rod,), None, ("embedded", "held", "open")),
            "cam": Loop((cam,), polynomial, ALL),
        },
    )


def mimics() -> Model:
    """A floating hand whose second finger follows the first; a third one does so by a polynomial."""
    cam = ts.constraints.Closure(
        "cam", "joint", None, None, joints=("third", "first"), parameters=(0.1, 0.4, -0.5, 0.2, 0.3)
    )
    rod = ts.constraints.Closure(
        "rod", "distance", "tip2", "tip3", (0.1, 0, 0.1), (0.1, 0.1, 0), parameters=(0.35,)
    )
    pin = ball("pin", "tip2", (0.2, 0, 0), None, (0.4, 0.1, 0.2))
    fingers = "".join(
        f"""<body name="finger{k}" pos="0 {0.2 * k} 0"><joint name="{name}" axis="0 1 .1" damping=".1"/>
        {inertia(0.1, 1)}<body name="tip{k}" pos=".3 0 0"><joint name="tip{k}" axis="0 1 0"/>
        {inertia(0.1, 0.5)}
        {'<site name="pin_1" pos=".2 0 0"/>' if k == 2 else ""}</body></body>"""
        for k, name in enumerate(("first", "second", "third"), 1)
    )
    bodies = f"""<site name="pin_2" pos=".4 .1 .2"/>
    <body name="palm"><freejoint name="base"/>{inertia(0, 3)}{fingers}</body>"""
    polynomial = '<joint joint1="third" joint2="first" polycoef=".1 .4 -.5 .2 .3"/>'
    return Model(
        bodies,
        {
            "cam": Loop((cam,), polynomial, ALL),
            "rod": Loop((rod,), None, ("embedded", "held", "open")),
            "pin": Loop((pin,), connect(pin), ("held", "soft")),
        },
        ts.constraints.Closure(
            "follow", "joint", None, None, joints=("second", "first"), parameters=(0.1, 0.6)
        ),
    )


def delta() -> Model:
    """A delta robot with two rods on each arm; a point of its platform is held in a plane."""
    R, r, L1, L2, w = 0.2, 0.05, 0.25, 0.5, 0.05
    x1, z1 = R + L1 * math.cos(0.3), L1 * math.sin(0.3)
    zp = z1 - math.sqrt(L2**2 - (x1 - r) ** 2)
    bodies, sites, arms = "", "", []
    for k in range(3):
        turn, drop, rods, loops = 2 * math.pi * k / 3, math.atan2(z1 - zp, x1 - r), "", []
        for side, y in (("a", -w), ("b", w)):
            end = (
                r * math.cos(turn) - y * math.sin(turn),
                r * math.sin(turn) + y * math.cos(turn),
                0.0,
            )
            rods += f"""<body name="x{k}{side}" pos="{L1} {y} 0" euler="0 {0.3 + math.pi - drop} 0">
            <joint name="u{k}{side}" axis="0 1 0" damping=".01"/>
            <inertial pos="0 0 0" mass=".01" diaginertia="1e-3 1e-3 1e-3"/>
            <body name="rod{k}{side}"><joint name="v{k}{side}" axis="0 0 1"/>{inertia(L2 / 2, 0.2)}
            <site name="c{k}{side}_1" pos="{L2} 0 0"/></body></body>"""
            sites += f'<site name="c{k}{side}_2" pos="{end[0]} {end[1]} {end[2]}"/>'
            loops.append(ball(f"c{k}{side}", f"rod{k}{side}", (L2, 0, 0), "platform", end))
        bodies += f"""<body name="base{k}" euler="0 0 {turn}">
        <body name="arm{k}" pos="{R} 0 0" euler="0 -.3 0">
        <joint name="m{k}" axis="0 1 0" armature=".01"/>{inertia(L1 / 2, 0.6)}{rods}</body></body>"""
        arms.append(tuple(loops))
    bodies += f"""<body name="platform" pos="0 0 {zp}"><freejoint name="platform"/>
    {inertia(0, 0.8)}{sites}</body>"""
    two = (*arms[0], *arms[1])
    hold = ts.HeldFrame(
        ts.Frame("platform", position=torch.tensor([0.1, 0.0, 0.05]).double()), "planar"
    )
    return Model(
        bodies,
        {
            "two arms": Loop(two, connect(*two), ALL),
            "third arm": Loop(arms[2], connect(*arms[2]), ALL),
            "hand": Loop((hold,), None, ("held", "open")),
        },
    )


def biped() -> Model:
    """A floating biped; each leg has a spatial loop of a rod at the hip and a four-bar at the knee."""
    out, hips, knees, feet = "", [], [], []
    for s, y in (("l", 0.1), ("r", -0.1)):
        rod = ts.constraints.Closure(
            f"hip{s}",
            "distance",
            f"arm{s}",
            f"thigh{s}",
            (0, 0.05, 0),
            (0.05, 0.05, -0.25),
            parameters=(0.3,),
        )
        knee = ball(f"knee{s}", f"krod{s}", (0, 0, -0.2), f"shin{s}", (-0.08, 0, -0.02))
        hips.append(rod)
        knees.append(knee)
        feet.append(ball(f"sole{s}", f"shin{s}", (0.02, 0, -0.4), None, (0.1, y, 0.1)))
        out += f"""<site name="sole{s}_2" pos=".1 {y} .1"/>"""
    legs = ""
    for s, y in (("l", 0.1), ("r", -0.1)):
        legs += f"""<body name="arm{s}" pos=".08 {y} .05"><joint name="arm{s}" axis="1 0 0"/>
        {inertia(0, 0.3)}</body>
        <body name="hip{s}" pos="0 {y} -.05"><joint name="roll{s}" axis="1 0 0"/>{inertia(0, 0.5)}
        <body name="thigh{s}"><joint name="pitch{s}" axis="0 1 0" damping=".1"/>{inertia(0, 1.5)}
         <body name="kcrank{s}" pos="-.03 0 -.1"><joint name="kcrank{s}" axis="0 1 0"/>{inertia(0, 0.2)}
          <body name="krod{s}" pos="-.06 0 -.02"><joint name="krod{s}" axis="0 1 0"/>{inertia(0, 0.2)}
          <site name="knee{s}_1" pos="0 0 -.2"/></body></body>
         <body name="shin{s}" pos="0 0 -.35"><joint name="shin{s}" axis="0 1 0"/>{inertia(0, 1)}
          <site name="knee{s}_2" pos="-.08 0 -.02"/>
          <site name="sole{s}_1" pos=".02 0 -.4"/></body></body></body>"""
    bodies = f"""{out}<body name="pelvis" pos="0 0 1"><freejoint name="root"/>{inertia(0, 6)}{legs}</body>"""
    return Model(
        bodies,
        {
            "hips": Loop(tuple(hips), None, ("embedded", "held")),
            "knees": Loop(tuple(knees), connect(*knees), ALL),
            "feet": Loop(tuple(feet), connect(*feet), ("held", "soft", "open")),
        },
    )


def stewart() -> Model:
    """A Stewart platform; a pair of its legs may be held or soft, and a point of the platform is held."""
    legs, sites, ends = "", "", []
    for k in range(6):
        a, b = math.pi / 3 * k + 0.3 * (-1) ** k, math.pi / 3 * k - 0.4 * (-1) ** k
        f, h = (math.cos(a), math.sin(a), -1.0), (0.5 * math.cos(b), 0.5 * math.sin(b), 0.0)
        z = [x - y for x, y in zip(h, f, strict=True)]
        length = math.sqrt(sum(x * x for x in z))
        legs += f"""<body name="leg{k}" pos="{f[0]} {f[1]} {f[2]}" zaxis="{z[0]} {z[1]} {z[2]}">
        <joint name="u{k}" axis="1 0 0"/>{inertia(0, 0.2)}<body name="tube{k}">
        <joint name="v{k}" axis="0 1 0"/>{inertia(0, 1)}<body name="rod{k}">
        <joint name="s{k}" type="slide" axis="0 0 1" damping="2"/>
        {inertia(0, 0.7)}<site name="c{k}_1" pos="0 0 {length}"/></body></body></body>"""
        sites += f'<site name="c{k}_2" pos="{h[0]} {h[1]} {h[2]}"/>'
        ends.append(ball(f"c{k}", f"rod{k}", (0, 0, length), "platform", h))
    bodies = f"""{legs}<body name="platform"><freejoint name="platform"/>{inertia(0.01, 5)}{sites}</body>"""
    hold = ts.HeldFrame(ts.Frame("platform", position=torch.tensor([0.1, 0.0, 0.2]).double()))
    return Model(
        bodies,
        {
            "four legs": Loop(tuple(ends[:4]), connect(*ends[:4]), ("embedded", "held")),
            "two legs": Loop(tuple(ends[4:]), connect(*ends[4:]), ALL),
            "point": Loop((hold,), None, ("held", "open")),
        },
    )


MODELS = {
    "four-bar on a slide": slide_bar(),
    "mimic fingers": mimics(),
    "delta robot": delta(),
    "biped": biped(),
    "Stewart platform": stewart(),
}
"""Models of the table by name."""
