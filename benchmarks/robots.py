"""Robots for the benchmarks, as URDF text that every contestant can read."""

from __future__ import annotations

import math
from collections.abc import Iterable

HALF = math.pi / 2


def _link(name: str, mass: float, com: tuple[float, float, float], size: float) -> str:
    x, y, z = (mass * size**2 * factor for factor in (0.09, 0.1, 0.06))
    return (
        f'<link name="{name}"><inertial><origin xyz="{com[0]} {com[1]} {com[2]}" rpy="0 0 0"/>'
        f'<mass value="{mass}"/><inertia ixx="{x}" iyy="{y}" izz="{z}" ixy="{0.05 * x}" '
        f'ixz="{-0.03 * x}" iyz="{0.02 * x}"/></inertial></link>'
    )


def _joint(
    name: str, parent: str, child: str, xyz: Iterable[float], axis: str, rpy: str = "0 0 0"
) -> str:
    place = " ".join(map(str, xyz))
    return (
        f'<joint name="{name}" type="revolute"><origin xyz="{place}" rpy="{rpy}"/>'
        f'<parent link="{parent}"/><child link="{child}"/><axis xyz="{axis}"/>'
        '<limit lower="-2.8" upper="2.8" effort="100" velocity="3"/></joint>'
    )


def chain(links: int) -> str:
    """A serial chain of equal links, axes turning by a quarter from one to the next."""
    parts = [f'<robot name="chain{links}">', _link("base", 1.0, (0.0, 0.0, 0.0), 0.1)]
    for k in range(links):
        parent = f"link{k - 1}" if k else "base"
        rpy = f"{HALF if k % 2 else -HALF} 0 0"
        parts.append(_link(f"link{k}", 0.5, (0.01, -0.02, 0.05), 0.1))
        parts.append(_joint(f"joint{k}", parent, f"link{k}", (0.0, 0.0, 0.1), "0 0 1", rpy))
    return "".join([*parts, "</robot>"])


LIMBS: dict[str, tuple[str, tuple[float, float, float], str]] = {
    "waist": ("pelvis", (0.0, 0.0, 0.1), "zy"),
    "neck": ("waist1", (0.0, 0.0, 0.45), "zy"),
    "left_arm": ("waist1", (0.0, 0.18, 0.38), "yxzyzyx"),
    "right_arm": ("waist1", (0.0, -0.18, 0.38), "yxzyzyx"),
    "left_leg": ("pelvis", (0.0, 0.09, -0.05), "zxyyyx"),
    "right_leg": ("pelvis", (0.0, -0.09, -0.05), "zxyyyx"),
}
"""Limbs of the humanoid: parent link, where they start [m], axes of their joints in order."""


def humanoid() -> str:
    """A humanoid tree of 30 revolute joints: waist 2, neck 2, arms 7 each, legs 6 each."""
    parts = ['<robot name="humanoid30">', _link("pelvis", 8.0, (0.01, 0.0, -0.02), 0.25)]
    for limb, (parent, start, axes) in LIMBS.items():
        for k, letter in enumerate(axes):
            name, mass = f"{limb}{k}", (3.5 if "leg" in limb else 1.6) / (1 + 0.3 * k)
            place = (
                start
                if k == 0
                else (0.01 * (k % 2), 0.0, -0.12 if "arm" in limb or "leg" in limb else 0.1)
            )
            axis = " ".join("1" if letter == c else "0" for c in "xyz")
            parts.append(_link(name, mass, (0.01, 0.015, -0.05), 0.2))
            parts.append(_joint(f"{name}_joint", parent, name, place, axis))
            parent = name
    return "".join([*parts, "</robot>"])


LEG = """<body pos="{x} {y} 0"><joint name="hip{k}" axis="1 0 0" range="-40 40"/>
  <joint name="thigh{k}" axis="0 1 0" range="-60 60"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".03" contype="0"/>
  <body pos="0 0 -.2"><joint name="knee{k}" axis="0 1 0" range="-80 20"/>
    <geom type="capsule" fromto="0 0 0 .05 0 -.18" size=".025" contype="0"/>
    <geom size=".03" pos=".05 0 -.2" conaffinity="1"/>
  </body></body>"""

QUADRUPED = """<mujoco><compiler autolimits="true"/><option cone="elliptic"/>
<default><joint damping=".2" armature=".02"/><geom contype="0" conaffinity="0"/></default>
<worldbody><geom type="plane" size="9 9 1" contype="1"/>
<body pos="0 0 .41"><freejoint/><geom type="box" size=".2 .1 .05" mass="6"/>{legs}</body>
</worldbody><actuator>{motors}</actuator></mujoco>"""


def quadruped() -> str:
    """Text of a robot with twelve joints whose four feet touch the floor."""
    places = [(0.2, 0.1), (0.2, -0.1), (-0.2, 0.1), (-0.2, -0.1)]
    legs = "".join(LEG.format(k=k, x=x, y=y) for k, (x, y) in enumerate(places))
    motors = "".join(
        f'<position joint="{joint}{k}" kp="40" kv="1"/>'
        for k in range(4)
        for joint in ("hip", "thigh", "knee")
    )
    return QUADRUPED.format(legs=legs, motors=motors)
