"""Links of a URDF file: their inertial parameters, and whether a rigid body can have them."""

from __future__ import annotations

from collections.abc import Sequence

from torchsko.errors import RobotFileError
from torchsko.io.common.report import Report
from torchsko.io.urdf.urdf_fields import (
    attribute,
    childless,
    leftovers,
    not_negative,
    numeric_or_zero,
    only_child,
    origin,
)
from torchsko.io.xml.reader import Element
from torchsko.mechanism.description import (
    JointDescription,
    LinkDescription,
    Matrix,
    UnsupportedElement,
)
from torchsko.mechanism.inertia_checks import UnphysicalLink, unphysical_links

ENTRIES = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
NO_INERTIA: Matrix = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def read_link(element: Element, report: Report) -> LinkDescription:
    """One link; notes what it holds besides.

    Raises:
        RobotFileError: a name is missing, a mass is negative, or a number is none.
    """
    name = attribute(element, "name", "<link>")
    where = f"link {name!r}"
    report.unused += leftovers(element, where, ("name",), ("inertial",))
    inertial = only_child(element, "inertial", where)
    if inertial is None:
        return LinkDescription(name)
    report.unused += leftovers(inertial, f"{where} <inertial>", (), ("origin", "mass", "inertia"))
    rotation, com = origin(inertial, f"{where} <inertial>", report)
    return LinkDescription(
        name=name,
        mass=_read_mass(inertial, where, report),
        com=com,
        inertia=_read_inertia(inertial, where, report),
        inertia_rotation=rotation,
    )


def _read_mass(inertial: Element, where: str, report: Report) -> float:
    mass = only_child(inertial, "mass", where)
    if mass is None:
        _note_missing(inertial, "mass", "the link has no mass", where, report)
        return 0.0
    report.unused += leftovers(mass, f"{where} <mass>", ("value",))
    return not_negative(mass, "value", where, numeric_or_zero(mass, "value", where, report))


def _read_inertia(inertial: Element, where: str, report: Report) -> Matrix:
    inertia = only_child(inertial, "inertia", where)
    if inertia is None:
        _note_missing(inertial, "inertia", "the mass is a point", where, report)
        return NO_INERTIA
    report.unused += leftovers(inertia, f"{where} <inertia>", ENTRIES)
    xx, xy, xz, yy, yz, zz = (numeric_or_zero(inertia, key, where, report) for key in ENTRIES)
    return ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))


def _note_missing(inertial: Element, tag: str, read: str, where: str, report: Report) -> None:
    report.fault(
        f"{where} <inertial> (line {inertial.line})",
        f"has no <{tag}>: {read}",
        childless(inertial, tag, where),
    )


def check_inertias(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription], report: Report
) -> None:
    """Note inertias that rigid bodies absorb; when strict, refuse those that no rigid body has.

    Otherwise the mechanism's own check notes these (`torchsko.mechanism.checks`).

    Raises:
        RobotFileError: names the link.
    """
    for bad in unphysical_links(links, joints):
        moments = ", ".join(f"{moment:.6g}" for moment in bad.moments)
        if bad.excused:
            report.unused.append(
                UnsupportedElement(
                    f"link {bad.name!r} <inertia>",
                    f"used as written, though no rigid body has it (principal moments {moments} kg "
                    f"m^2): the {len(bad.members)} links fixed together make a physical body",
                )
            )
        elif report.strict:
            raise RobotFileError(_unphysical(bad, moments))


def _unphysical(bad: UnphysicalLink, moments: str) -> str:
    return (
        f"link {bad.name!r}: no rigid body has this <inertia>"
        + (f", nor the {len(bad.members)} links fixed together" * (len(bad.members) > 1))
        + f"; its principal moments are {moments} kg m^2.\n"
        "None may be negative, nor the largest exceed the sum of the others (the triangle "
        "inequality): no distribution of mass has such moments.\n"
        "Correct ixx ... izz there: about the centre of mass, in the axes of <inertial>."
    )
