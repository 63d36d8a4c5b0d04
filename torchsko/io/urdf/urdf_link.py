"""Links of a URDF file, and checks of their inertias."""

from __future__ import annotations

from collections.abc import Sequence

from torchsko.errors import RobotFileError
from torchsko.io.urdf.urdf_fields import (
    attribute,
    missing_child,
    not_negative,
    numeric_or_zero,
    only_child,
    origin,
    report_leftovers,
)
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import (
    JointDescription,
    LinkDescription,
    Matrix,
    UnsupportedElement,
)
from torchsko.mechanism.inertia_checks import unphysical_links

ENTRIES = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
NO_INERTIA: Matrix = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def read_link(element: Element, report: Report) -> LinkDescription:
    """Read a link, and report its unsupported elements and faults.

    Raises:
        RobotFileError: if its name is missing, its mass is negative, or a number is invalid.
    """
    name = attribute(element, "name", "<link>")
    where = f"link {name!r}"
    report_leftovers(report, element, where, ("name",), ("inertial", "flexible"))
    inertial = only_child(element, "inertial", where)
    if inertial is None:
        return LinkDescription(name)
    report_leftovers(report, inertial, f"{where} <inertial>", (), ("origin", "mass", "inertia"))
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
        _report_missing(inertial, "mass", "read as no mass", where, report)
        return 0.0
    report_leftovers(report, mass, f"{where} <mass>", ("value",))
    return not_negative(mass, "value", where, numeric_or_zero(mass, "value", where, report))


def _read_inertia(inertial: Element, where: str, report: Report) -> Matrix:
    inertia = only_child(inertial, "inertia", where)
    if inertia is None:
        _report_missing(inertial, "inertia", "read as a point mass", where, report)
        return NO_INERTIA
    report_leftovers(report, inertia, f"{where} <inertia>", ENTRIES)
    xx, xy, xz, yy, yz, zz = (numeric_or_zero(inertia, key, where, report) for key in ENTRIES)
    return ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))


def _report_missing(inertial: Element, tag: str, how: str, where: str, report: Report) -> None:
    report.fault(
        f"{where} <inertial> (line {inertial.line})",
        f"has no <{tag}>: {how}",
        missing_child(inertial, tag, where),
    )


def check_inertias(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription], report: Report
) -> None:
    """Check that inertias are physical.

    An unphysical inertia is listed as unsupported if the links welded to it form a physical body. Other ones
    raise an error if the report is strict; otherwise `build_mechanism` reports them.

    Raises:
        RobotFileError: names the link.
    """
    for bad in unphysical_links(links, joints):
        moments = ", ".join(f"{moment:.6g}" for moment in bad.moments)
        if bad.excused:
            report.unused.append(
                UnsupportedElement(
                    f"link {bad.name!r} <inertia>",
                    f"unphysical, but used as written (principal moments {moments} kg m^2): the "
                    f"{len(bad.members)} links welded together are a physical body",
                )
            )
        elif report.strict:
            welded = f", also of the {len(bad.members)} links welded together"
            raise RobotFileError(
                f"link {bad.name!r}: the <inertia> is unphysical{welded * (len(bad.members) > 1)}; "
                f"its principal moments are {moments} kg m^2.",
                "Principal moments are not negative, and the largest is at most the sum of the others "
                "(the triangle inequality).",
                "Correct ixx ... izz: about the center of mass, in the axes of <inertial>.",
            )
