"""Joints of a URDF file."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from torchsko.errors import RobotFileError
from torchsko.io._numbers import unit, vector
from torchsko.io._urdf_fields import (
    attribute,
    leftovers,
    not_negative,
    numeric,
    only_child,
    origin,
    place,
    required_child,
)
from torchsko.io._xml import Element
from torchsko.mechanism.description import (
    FIXED,
    CouplingDescription,
    JointDescription,
    Unused,
    Vector,
)
from torchsko.mechanism.joints.registry import joint_type, urdf_types

UNBOUNDED = "continuous"
"""The type of URDF whose limits of position are not read."""


def read_joint(element: Element, mimic: str, unused: list[Unused]) -> JointDescription:
    """One joint; appends to `unused` what it holds besides.

    Args:
        element: a <joint>.
        mimic: ``"couple"`` or ``"independent"``, as in `read_urdf`.
        unused: the report so far.

    Raises:
        RobotFileError: something required is missing, not a number, or not possible.
    """
    name = attribute(element, "name", "<joint>")
    where = f"joint {name!r}"
    kind_name = attribute(element, "type", where)
    kinds = urdf_types()
    if kind_name not in kinds:
        raise RobotFileError(
            f"{where} (line {element.line}): a joint of type {kind_name!r} cannot be read.\n"
            f"The types known are {', '.join(kinds)}.\n"
            "Write it as one of these, or as several of them with massless links between."
        )
    kind = kinds[kind_name]
    parent, child = (required_child(element, tag, where) for tag in ("parent", "child"))
    rotation, position = origin(element, where, unused)
    joint = JointDescription(
        name=name,
        kind=kind,
        parent=attribute(parent, "link", where),
        child=attribute(child, "link", where),
        rotation=rotation,
        position=position,
    )
    for end in (parent, child):
        unused += leftovers(end, f"{where} <{end.tag}>", ("link",))
    read = {"parent", "child", "origin"}
    if kind == FIXED:
        unused += leftovers(element, where, ("name", "type"), read)
        return joint
    has_axis = joint_type(kind).has_axis
    read |= {"mimic"} if mimic == "couple" else set()
    read |= {"limit", "dynamics"} | ({"axis"} if has_axis else set())
    unused += leftovers(element, where, ("name", "type"), read)
    bounded = has_axis and joint_type(kind).num_q == 1 and kind_name != UNBOUNDED
    lower, upper, velocity, effort = _read_limit(element, bounded, where, unused)
    damping, friction = _read_dynamics(element, where, unused)
    return replace(
        joint,
        axis=_read_axis(element, where, unused) if has_axis else joint.axis,
        damping=damping,
        friction=friction,
        lower=lower,
        upper=upper,
        velocity=velocity,
        effort=effort,
    )


def read_mimic(joint: Element, unused: list[Unused]) -> CouplingDescription | None:
    """What a joint that moves mimics, if anything; appends to `unused` what the tag holds besides.

    Raises:
        RobotFileError: no joint is named, or a number is none.
    """
    name = attribute(joint, "name", "<joint>")
    where = f"joint {name!r}"
    element = only_child(joint, "mimic", where)
    if element is None or joint.attributes.get("type") == FIXED:
        return None
    where = f"{where} <mimic>"
    unused += leftovers(element, where, ("joint", "multiplier", "offset"))
    multiplier, offset = (
        numeric(element, key, where, default)
        for key, default in (("multiplier", 1.0), ("offset", 0.0))
    )
    return CouplingDescription(name, {attribute(element, "joint", where): multiplier}, offset)


def _read_axis(joint: Element, where: str, unused: list[Unused]) -> Vector:
    axis = only_child(joint, "axis", where)
    if axis is None:
        return (1.0, 0.0, 0.0)
    unused += leftovers(axis, f"{where} <axis>", ("xyz",))
    here = place(axis, "xyz", where)
    return unit(vector(attribute(axis, "xyz", where), here), here)


def _read_dynamics(joint: Element, where: str, unused: list[Unused]) -> tuple[float, float]:
    dynamics = only_child(joint, "dynamics", where)
    if dynamics is None:
        return 0.0, 0.0
    unused += leftovers(dynamics, f"{where} <dynamics>", ("damping", "friction"))
    damping = not_negative(dynamics, "damping", where, 0.0)
    return damping, not_negative(dynamics, "friction", where, 0.0)


def _read_limit(
    joint: Element, bounded: bool, where: str, unused: list[Unused]
) -> tuple[float, float, float, float]:
    """Lower, upper, velocity and effort limit; `bounded` joints have the first two."""
    limit = only_child(joint, "limit", where)
    if limit is None:
        return -math.inf, math.inf, math.inf, math.inf
    read: Collection[str] = ("velocity", "effort") + (("lower", "upper") if bounded else ())
    unused += leftovers(limit, f"{where} <limit>", read)
    lower, upper = -math.inf, math.inf
    if bounded:
        # The format says: absent is 0.
        lower, upper = (numeric(limit, key, where, 0.0) for key in ("lower", "upper"))
    if lower > upper:
        raise RobotFileError(
            f"{where} (line {limit.line}): the lower limit {lower} is above the upper {upper}.\n"
            "No position satisfies both.\n"
            "Exchange or correct them; an absent one counts as 0."
        )
    velocity, effort = (not_negative(limit, key, where, math.inf) for key in ("velocity", "effort"))
    return lower, upper, velocity, effort
