"""Joints of a URDF file."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import unit, vector
from torchsko.io.common.report import Report
from torchsko.io.urdf.urdf_fields import (
    attribute,
    leftovers,
    missing,
    negative,
    not_negative,
    numeric,
    only_child,
    origin,
    place,
    required_child,
)
from torchsko.io.xml.reader import Element
from torchsko.mechanism.description import (
    FIXED,
    CouplingDescription,
    JointDescription,
    Vector,
)
from torchsko.mechanism.joints.registry import joint_type, urdf_types

UNBOUNDED = "continuous"
"""The type of URDF whose limits of position are not read."""

UNLIMITED = (-math.inf, math.inf)
X_AXIS: Vector = (1.0, 0.0, 0.0)
"""Of a joint whose axis is not given: the default of the format."""


def read_joint(element: Element, mimic: str, report: Report) -> JointDescription:
    """One joint; notes what it holds besides.

    Args:
        element: a <joint>.
        mimic: ``"couple"`` or ``"independent"``, as in `read_urdf`.
        report: the notes so far.

    Raises:
        RobotFileError: something required is missing, not a number, or not possible.
    """
    name = attribute(element, "name", "<joint>")
    where = f"joint {name!r}"
    kind_name = attribute(element, "type", where)
    kinds = urdf_types()
    if kind_name not in kinds:
        raise RobotFileError(
            f"{where} (line {element.line}): a joint of type {kind_name!r} cannot be read.",
            f"The types known are {', '.join(kinds)}.",
            "Write it as one of these, or as several of them with massless links between.",
        )
    kind = kinds[kind_name]
    parent, child = (required_child(element, tag, where) for tag in ("parent", "child"))
    rotation, position = origin(element, where, report)
    joint = JointDescription(
        name=name,
        kind=kind,
        parent=attribute(parent, "link", where),
        child=attribute(child, "link", where),
        rotation=rotation,
        position=position,
    )
    for end in (parent, child):
        report.unused += leftovers(end, f"{where} <{end.tag}>", ("link",))
    read = {"parent", "child", "origin"}
    if kind == FIXED:
        report.unused += leftovers(element, where, ("name", "type"), read)
        return joint
    has_axis = joint_type(kind).has_axis
    read |= {"mimic"} if mimic == "couple" else set()
    read |= {"limit", "dynamics"} | ({"axis"} if has_axis else set())
    report.unused += leftovers(element, where, ("name", "type"), read)
    bounded = has_axis and joint_type(kind).num_q == 1 and kind_name != UNBOUNDED
    lower, upper, velocity, effort = _read_limit(element, bounded, where, report)
    damping, friction = _read_dynamics(element, where, report)
    return replace(
        joint,
        axis=_read_axis(element, where, report) if has_axis else joint.axis,
        damping=damping,
        friction=friction,
        lower=lower,
        upper=upper,
        velocity=velocity,
        effort=effort,
    )


def read_mimic(joint: Element, report: Report) -> CouplingDescription | None:
    """What a joint that moves mimics, if anything; notes what the tag holds besides.

    Raises:
        RobotFileError: no joint is named, or a number is none.
    """
    name = attribute(joint, "name", "<joint>")
    where = f"joint {name!r}"
    element = only_child(joint, "mimic", where)
    if element is None or joint.attributes.get("type") == FIXED:
        return None
    where = f"{where} <mimic>"
    report.unused += leftovers(element, where, ("joint", "multiplier", "offset"))
    multiplier, offset = (
        numeric(element, key, where, report, default)
        for key, default in (("multiplier", 1.0), ("offset", 0.0))
    )
    if not element.attributes.get("joint", "").strip():
        what, why, _ = missing(element, "joint", where).split("\n")
        raise RobotFileError(
            f"{what}",
            f"{why}",
            "Name the joint that it follows, or load the file with mimic='independent'.",
        )
    return CouplingDescription(name, {attribute(element, "joint", where): multiplier}, offset)


def couplings_to(
    mimics: Sequence[CouplingDescription | None],
    joints: Sequence[JointDescription],
    report: Report,
) -> tuple[CouplingDescription, ...]:
    """What follows a joint that is there; the others are joints of their own."""
    known, found = {joint.name for joint in joints}, []
    for coupling in mimics:
        if coupling is None:
            continue
        (leader,) = coupling.coefficients
        if leader in known:
            found.append(coupling)
            continue
        where, said = (
            f"joint {coupling.joint!r} <mimic>",
            f"the joint {leader!r}, which is not there",
        )
        report.fault(
            where,
            f"names {said}: read as a joint of its own",
            f"{where} names {said}.\nA joint follows one of the same file.\n"
            "Name that one, or load the file with mimic='independent'.",
        )
    return tuple(found)


def _read_axis(joint: Element, where: str, report: Report) -> Vector:
    axis = only_child(joint, "axis", where)
    if axis is None:
        return X_AXIS
    report.unused += leftovers(axis, f"{where} <axis>", ("xyz",))
    here = place(axis, "xyz", where)
    if "xyz" not in axis.attributes:
        report.fault(here, "missing: read as 1 0 0", missing(axis, "xyz", where))
        return X_AXIS
    return unit(vector(attribute(axis, "xyz", where), here), here)


def _read_dynamics(joint: Element, where: str, report: Report) -> tuple[float, float]:
    dynamics = only_child(joint, "dynamics", where)
    if dynamics is None:
        return 0.0, 0.0
    keys = ("damping", "friction")
    report.unused += leftovers(dynamics, f"{where} <dynamics>", keys)
    damping, friction = (
        not_negative(dynamics, key, where, numeric(dynamics, key, where, report, 0.0))
        for key in keys
    )
    return damping, friction


def _read_limit(
    joint: Element, bounded: bool, where: str, report: Report
) -> tuple[float, float, float, float]:
    """Lower, upper, velocity and effort limit; `bounded` joints have the first two."""
    limit = only_child(joint, "limit", where)
    if limit is None:
        return *UNLIMITED, math.inf, math.inf
    read: Collection[str] = ("velocity", "effort") + (("lower", "upper") if bounded else ())
    report.unused += leftovers(limit, f"{where} <limit>", read)
    lower, upper = _read_range(limit, where, report) if bounded else UNLIMITED
    velocity, effort = (_read_bound(limit, key, where, report) for key in ("velocity", "effort"))
    return lower, upper, velocity, effort


def _read_range(limit: Element, where: str, report: Report) -> tuple[float, float]:
    """Limits of position; none where no position satisfies both."""
    # The format says: absent is 0.
    lower, upper = (numeric(limit, key, where, report, 0.0) for key in ("lower", "upper"))
    if lower <= upper:
        return lower, upper
    report.fault(
        f"{where} <limit> (line {limit.line})",
        f"the lower limit {lower} is above the upper {upper}: read as no limit of position",
        f"{where} (line {limit.line}): the lower limit {lower} is above the upper {upper}.\n"
        "No position satisfies both.\n"
        "Exchange or correct them; an absent one counts as 0.",
    )
    return UNLIMITED


def _read_bound(limit: Element, key: str, where: str, report: Report) -> float:
    """Limit of a magnitude; none where it is negative."""
    value = numeric(limit, key, where, report, math.inf)
    if value >= 0:
        return value
    report.fault(
        place(limit, key, where),
        f"{value}, which is negative: read as no limit",
        negative(limit, key, where, value),
    )
    return math.inf
