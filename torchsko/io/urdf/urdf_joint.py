"""Joints of a URDF file."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from torchsko.errors import RobotFileError, unknown_name
from torchsko.io.common.numbers import unit, vector
from torchsko.io.urdf.urdf_fields import (
    attribute,
    missing,
    negative,
    numeric,
    only_child,
    origin,
    place,
    report_leftovers,
    required_child,
)
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import (
    FIXED,
    CouplingDescription,
    JointDescription,
    Vector,
)
from torchsko.mechanism.joints.registry import joint_type, urdf_types

CONTINUOUS = "continuous"
"""URDF's type of revolute joints without position limits."""

UNLIMITED = (-math.inf, math.inf)

DEFAULT_AXIS: Vector = (1.0, 0.0, 0.0)
"""The format's default axis."""


def read_joint(element: Element, mimic: str, report: Report) -> JointDescription:
    """Read a joint, and report its unsupported elements and faults.

    Args:
        element: a <joint>.
        mimic: ``"couple"`` or ``"independent"``, as in `read_urdf`.
        report: receives unsupported elements and faults.

    Raises:
        RobotFileError: if a required element is missing, or a value is invalid.
    """
    name = attribute(element, "name", "<joint>")
    where = f"joint {name!r}"
    kind_name = attribute(element, "type", where)
    kinds = urdf_types()
    if kind_name not in kinds:
        raise RobotFileError(
            f"{where} (line {element.line}): the joint type {kind_name!r} is unknown.",
            f"Known types are {', '.join(kinds)}.",
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
        report_leftovers(report, end, f"{where} <{end.tag}>", ("link",))
    read = {"parent", "child", "origin"}
    if kind == FIXED:
        report_leftovers(report, element, where, ("name", "type", "independent"), read)
        return joint
    has_axis = joint_type(kind).has_axis
    read |= {"mimic"} if mimic == "couple" else set()
    read |= {"limit", "dynamics"} | ({"axis"} if has_axis else set())
    report_leftovers(report, element, where, ("name", "type", "independent"), read)
    bounded = has_axis and joint_type(kind).num_q == 1 and kind_name != CONTINUOUS
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
    """The coupling of a moving joint with <mimic>; None without.

    Raises:
        RobotFileError: if the leader is missing, or a number is invalid.
    """
    name = attribute(joint, "name", "<joint>")
    where = f"joint {name!r}"
    element = only_child(joint, "mimic", where)
    if element is None or joint.attributes.get("type") == FIXED:
        return None
    where = f"{where} <mimic>"
    report_leftovers(report, element, where, ("joint", "multiplier", "offset"))
    multiplier, offset = (
        numeric(element, key, where, report, default)
        for key, default in (("multiplier", 1.0), ("offset", 0.0))
    )
    if not element.attributes.get("joint", "").strip():
        error = missing(element, "joint", where)
        raise RobotFileError(
            error.what,
            error.why,
            "Name the joint that it follows, or load the file with mimic='independent'.",
        )
    return CouplingDescription(name, {attribute(element, "joint", where): multiplier}, offset)


def couplings_to(
    mimics: Sequence[CouplingDescription | None],
    joints: Sequence[JointDescription],
    report: Report,
) -> tuple[CouplingDescription, ...]:
    """Couplings to known joints; others are reported as faults, and their joints are independent.

    A joint that follows a fixed joint, whose position is 0, has a constant position.
    """
    kinds, found = {joint.name: joint.kind for joint in joints}, []
    for coupling in mimics:
        if coupling is None:
            continue
        (leader,) = coupling.coefficients
        if leader in kinds:
            fixed = kinds[leader] == FIXED
            found.append(replace(coupling, coefficients={}) if fixed else coupling)
            continue
        where = f"joint {coupling.joint!r} <mimic>"
        report.fault(
            where,
            f"refers to the unknown joint {leader!r}: read as an independent joint",
            RobotFileError(
                *unknown_name(
                    f"joint that {where} follows",
                    leader,
                    tuple(kinds),
                    "Correct the name, or load the file with mimic='independent'.",
                )
            ),
        )
    return tuple(found)


def _read_axis(joint: Element, where: str, report: Report) -> Vector:
    axis = only_child(joint, "axis", where)
    if axis is None:
        return DEFAULT_AXIS
    report_leftovers(report, axis, f"{where} <axis>", ("xyz",))
    here = place(axis, "xyz", where)
    if "xyz" not in axis.attributes:
        report.fault(here, "missing: read as 1 0 0", missing(axis, "xyz", where))
        return DEFAULT_AXIS
    return unit(vector(attribute(axis, "xyz", where), here), here)


def _read_dynamics(joint: Element, where: str, report: Report) -> tuple[float, float]:
    dynamics = only_child(joint, "dynamics", where)
    if dynamics is None:
        return 0.0, 0.0
    keys = ("damping", "friction")
    report_leftovers(report, dynamics, f"{where} <dynamics>", keys)
    damping, friction = (numeric(dynamics, key, where, report, 0.0) for key in keys)
    return damping, friction


def _read_limit(
    joint: Element, bounded: bool, where: str, report: Report
) -> tuple[float, float, float, float]:
    """Lower, upper, velocity and effort limit; the first two for `bounded` joints only."""
    limit = only_child(joint, "limit", where)
    if limit is None:
        return *UNLIMITED, math.inf, math.inf
    read: Collection[str] = ("velocity", "effort") + (("lower", "upper") if bounded else ())
    report_leftovers(report, limit, f"{where} <limit>", read)
    lower, upper = _read_range(limit, where, report) if bounded else UNLIMITED
    velocity, effort = (_read_bound(limit, key, where, report) for key in ("velocity", "effort"))
    return lower, upper, velocity, effort


def _read_range(limit: Element, where: str, report: Report) -> tuple[float, float]:
    """Position limits; none if the lower is above the upper limit. The format's default is 0."""
    lower, upper = (numeric(limit, key, where, report, 0.0) for key in ("lower", "upper"))
    if lower <= upper:
        return lower, upper
    what = f"the lower limit {lower} is above the upper limit {upper}"
    report.fault(
        f"{where} <limit> (line {limit.line})",
        f"{what}: read as no position limit",
        RobotFileError(
            f"{where} (line {limit.line}): {what}.",
            "No position satisfies both.",
            "Exchange or correct them; a missing one counts as 0.",
        ),
    )
    return UNLIMITED


def _read_bound(limit: Element, key: str, where: str, report: Report) -> float:
    """A velocity or effort limit; none if it is negative."""
    value = numeric(limit, key, where, report, math.inf)
    if value >= 0:
        return value
    report.fault(
        place(limit, key, where),
        f"{value}, which is negative: read as no limit",
        negative(limit, key, where, value),
    )
    return math.inf
