"""New MJCF files of mechanisms."""

from __future__ import annotations

import numpy as np
import torch

from torchsko.io.common.losses import Losses
from torchsko.io.common.numbers import quaternion_from_matrix
from torchsko.io.common.write_back import check_unbatched
from torchsko.io.mjcf.elements import element, section
from torchsko.io.mjcf.file_actuators import drive_lines
from torchsko.io.mjcf.file_bodies import WORLD, FileBodies, file_bodies
from torchsko.io.mjcf.file_body import FileBody
from torchsko.io.mjcf.file_equalities import equality_lines
from torchsko.io.mjcf.file_geoms import write_geoms
from torchsko.io.mjcf.file_joints import write_joints
from torchsko.io.mjcf.file_keyframes import keyframe_lines
from torchsko.io.mjcf.file_options import option_line
from torchsko.io.mjcf.file_sensors import Sites, sensor_lines
from torchsko.io.mjcf.principal_inertia import is_physical, principal_inertia
from torchsko.io.xml.edits import words
from torchsko.mechanism.description import LinkDescription
from torchsko.mechanism.mechanism import Mechanism

MIN_INERTIA = 1e-15
"""Mass and moment of inertia that MuJoCo takes for none in a moving body (mjMINVAL)."""

SMALL_INERTIA = 2e-15
"""Mass [kg] and moment of inertia [kg m^2] that a moving body without any gets."""

COMPILER = {"angle": "radian", "autolimits": "true", "inertiafromgeom": "false"}


def new_mjcf(mech: Mechanism, losses: Losses) -> str:
    """Text of an MJCF file of a mechanism.

    Links welded together are bodies without joints. Other frames are sites, coupled joints and loops are
    equalities. A joint of several dofs is a stack of hinges and slides. They have the names of the stack from
    which the joint was read, or the name of the joint with that of the rate.

    Args:
        mech: the mechanism.
        losses: gets the parts that MJCF cannot express.

    Raises:
        MechanismError: for a batch, or a structure that MJCF does not have: a free joint away from the
            world's frame, a helical joint, a moving body named "world", or an unphysical inertia.
    """
    check_unbatched(mech)
    bodies = file_bodies(mech)
    fixed = {n for n, k in zip(mech.frame_names, mech.frame_body, strict=True) if k < 0}
    links = [x for x in mech.file_metadata.links if x.name in fixed]
    unphysical = [x.name for x in links if not is_physical(x, mech.dtype)]
    losses.add_if(unphysical, "unphysical inertias of links fixed to the inertial frame:")
    option = option_line(mech, losses)
    shapes = write_geoms(bodies, losses)
    sites = Sites(bodies)
    drives = drive_lines(bodies, losses)
    equalities = equality_lines(bodies, sites, losses)
    actuators = drives.names
    sensors = sensor_lines(bodies, sites, actuators, losses)
    write_joints(bodies, losses)
    root = element("mujoco", {"model": mech.name}).removesuffix("/>")
    lines = [
        f"{root}>",
        f"  {element('compiler', COMPILER)}",
        f"  {option}",
        *section("asset", shapes.assets),
        *_world(bodies, losses),
        *section("contact", shapes.contact),
        *section("tendon", [*drives.tendons, *equalities.tendons]),
        *section("equality", equalities.equalities),
        *section("actuator", drives.actuators),
        *section("sensor", sensors),
        *section("keyframe", keyframe_lines(bodies, actuators)),
    ]
    return "\n".join([*lines, "</mujoco>", ""])


def _world(bodies: FileBodies, losses: Losses) -> list[str]:
    """The tree of bodies."""
    mech = bodies.mech
    children: dict[str, list[FileBody]] = {}
    for body in list(bodies.bodies.values())[1:]:
        children.setdefault(body.parent, []).append(body)
    light: list[str] = []
    lines = ["  <worldbody>", *(f"    {line}" for line in bodies.bodies[WORLD].lines)]
    pending = [(body, 2) for body in children.get(WORLD, [])[::-1]]
    depths: list[int] = []
    while pending:
        body, depth = pending.pop()
        while depths and depths[-1] >= depth:
            lines.append("  " * depths.pop() + "</body>")
        welded = [x for x in children.get(body.name, []) if not x.joints]
        lines += _opened(mech, body, welded, "  " * depth, light)
        depths.append(depth)
        pending += [(child, depth + 1) for child in children.get(body.name, [])[::-1]]
    lines += ["  " * depth + "</body>" for depth in depths[::-1]]
    losses.add_if(
        light,
        f"bodies without mass or with a zero moment of inertia, which get {SMALL_INERTIA} kg and kg m^2:",
        ("mass", "com", "inertia"),
    )
    return [*lines, "  </worldbody>"]


def _opened(
    mech: Mechanism, body: FileBody, welded: list[FileBody], indent: str, light: list[str]
) -> list[str]:
    """Lines of a body up to its children; adds it to `light` if MuJoCo needs more inertia."""
    R, p = body.pose
    turn = quaternion_from_matrix(R) if body.quaternion is None else body.quaternion
    place = {"name": body.name, "pos": words(p), "quat": words(turn)}
    link = body.link or LinkDescription(body.name)
    if link.gravcomp:
        place["gravcomp"] = words([link.gravcomp])
    if body.name in mech.file_metadata.mocap_bodies and body.parent == WORLD and not body.joints:
        place["mocap"] = "true"
    moving = bool(body.joints) and not any(_is_heavy(mech, x.link) for x in welded)
    opened = element("body", place).removesuffix("/>")
    return [
        f"{indent}{opened}>",
        f"{indent}  {_inertial(mech, link, moving, light)}",
        *(f"{indent}  {line}" for line in body.lines),
    ]


def _principal(mech: Mechanism, link: LinkDescription) -> tuple[np.ndarray, np.ndarray]:
    return principal_inertia(
        link.name, np.array(link.inertia), torch.finfo(mech.dtype).eps,
        np.array(link.inertia_rotation),
    )  # fmt: skip


def _is_heavy(mech: Mechanism, link: LinkDescription | None) -> bool:
    """True if MuJoCo accepts the inertia of a link as that of a moving body."""
    if link is None:
        return False
    return min(link.mass, *_principal(mech, link)[0]) > MIN_INERTIA


def _inertial(mech: Mechanism, link: LinkDescription, moving: bool, light: list[str]) -> str:
    """The <inertial> element of a link."""
    (moments, quaternion), mass = _principal(mech, link), link.mass
    if moving and not _is_heavy(mech, link):
        light.append(link.name)
        mass, moments = max(mass, SMALL_INERTIA), np.maximum(moments, SMALL_INERTIA)
    return element(
        "inertial",
        {
            "pos": words(link.com),
            "quat": words(quaternion),
            "mass": words([mass]),
            "diaginertia": words(moments),
        },
    )
