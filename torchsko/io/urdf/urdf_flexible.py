"""Flexible links of URDF files, an extension of torchsko: <flexible> inside <link>.

It has a <beam> with the arguments of `torchsko.FlexibleBody.beam`, or the stiffness and <point> elements with
the arrays of `torchsko.FlexibleBody`, row by row. Its <marker> elements are frames "LINK/NAME", to which
joints attach. The <inertial> of the link is a rigid part on its frame. Other readers see a rigid link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchsko.errors import MechanismError, RobotFileError
from torchsko.io.common.numbers import number, vector
from torchsko.io.urdf.urdf_fields import (
    attribute,
    missing_child,
    only_child,
    place,
    report_leftovers,
    required_child,
)
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import LinkDescription
from torchsko.mechanism.flexible.flexible_body import FlexibleBody
from torchsko.mechanism.flexible.marker import Marker
from torchsko.mechanism.flexible.points import Parts, flexible_parts

BEAM_NUMBERS = ("length", "density", "EI_y", "EI_z", "GJ", "polar_inertia")
"""Numbers of a <beam>."""

MAX_MODES = 64
"""Largest number of modes of a flexible link."""

MAX_ENTRIES = 3_000_000
"""Largest number of second-order shapes of all points of a file, which bounds memory."""

POINT = {"shape": (3, -1), "slope": (3, -1), "second_order": (3, -1, -1), "inertia": (3, 3)}
MARKER = {"shape": (3, -1), "slope": (3, -1), "second_order": (3, -1, -1), "rotation": (3, 3)}
"""Arrays of a point and of a marker; -1 is the number of modes."""


def with_flexible_parts(
    links: Sequence[LinkDescription], elements: Sequence[Element], report: Report
) -> Parts:
    """The links of a file with the mass points and markers of flexible ones, and their joints.

    Raises:
        RobotFileError: if an attribute is missing or invalid, the arrays are no flexible body, or they are
            too large.
    """
    every: Parts = ([], [])
    entries = 0
    for link, element in zip(links, elements, strict=True):
        every[0].append(link)
        flexible = only_child(element, "flexible", f"link {link.name!r}")
        if flexible is None:
            continue
        where = f"link {link.name!r} <flexible>"
        modes, points = _size(flexible, where)
        entries += 3 * points * modes**2
        if not 0 < modes <= MAX_MODES or entries > MAX_ENTRIES:
            raise RobotFileError(
                f"{where} (line {flexible.line}) has {modes} modes and {points} points.",
                f"A link has 1 to {MAX_MODES} modes, and a file {MAX_ENTRIES} second-order shapes.",
                "Write fewer modes.",
            )
        try:
            body = _body(flexible, where, report)
        except MechanismError as error:
            what = f"{where} (line {flexible.line}): {error.what}"
            raise RobotFileError(what, error.why, error.advice) from error
        (_, *parts), joints = flexible_parts(link.name, body)
        every[0].extend(parts)
        every[1].extend(joints)
    return every


def _size(element: Element, where: str) -> tuple[int, int]:
    """Numbers of modes and of points."""
    beam = only_child(element, "beam", where)
    if beam is not None:
        counts = _counts(beam, where)
        return sum(counts), 2 * max(counts, default=0) + 5
    modes = attribute(element, "modes", where).split()
    return len(modes), sum(child.tag in ("point", "marker") for child in element.children)


def _body(element: Element, where: str, report: Report) -> FlexibleBody:
    if any(child.tag == "beam" for child in element.children):
        return _beam(element, where, report)
    known = ("modes", "stiffness", "damping")
    report_leftovers(report, element, where, known, ("point", "marker"))
    modes = attribute(element, "modes", where).split()
    n = len(modes)
    points, markers = ([x for x in element.children if x.tag == tag] for tag in ("point", "marker"))
    if not points:
        raise missing_child(element, "point", where)
    fields = [_arrays(point, POINT, n, where, report, "mass") for point in points]
    for required in ("modes", "stiffness"):
        attribute(element, required, where)
    return FlexibleBody(
        points=[_position(point, where) for point in points],
        masses=[_number(point, "mass", where) for point in points],
        shapes=[x["shape"] for x in fields],
        slopes=[x["slope"] for x in fields],
        second_order=[x["second_order"] for x in fields],
        inertias=[x["inertia"] for x in fields],
        stiffness=_array(element, "stiffness", (n, n), where),
        damping=_array(element, "damping", (n, n), where),
        modes=modes,
        markers={
            attribute(x, "name", where): Marker(
                _position(x, where), **_arrays(x, MARKER, n, where, report, "name")
            )
            for x in _unique(markers, where)
        },
    )


def _beam(element: Element, where: str, report: Report) -> FlexibleBody:
    beam = required_child(element, "beam", where)
    report_leftovers(report, element, where, (), ("beam", "marker"))
    here = f"{where} <beam>"
    known = (*BEAM_NUMBERS, "shapes", "basis", "damping_ratio")
    report_leftovers(report, beam, here, known)
    basis: Any = beam.attributes.get("basis", "static")
    numbers = {x: _number(beam, x, here) for x in BEAM_NUMBERS if x in beam.attributes}
    for required in ("length", "density"):
        attribute(beam, required, here)
    markers = {
        attribute(x, "name", where): _number(x, "position", where)
        for x in _unique([x for x in element.children if x.tag == "marker"], where)
    }
    for marker in (x for x in element.children if x.tag == "marker"):
        report_leftovers(report, marker, f"{where} <marker>", ("name", "position"))
    body = FlexibleBody.beam(
        **numbers, shapes=_counts(beam, here), basis=basis, markers=markers or None
    )
    ratio = _number(beam, "damping_ratio", here) if "damping_ratio" in beam.attributes else 0.0
    return body.damped(ratio) if ratio else body


def _unique(markers: Sequence[Element], where: str) -> Sequence[Element]:
    names = [attribute(marker, "name", where) for marker in markers]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise RobotFileError(
                f"{where} has two markers {name!r} (the second in line {markers[i].line}).",
                "Markers are frames with names.",
                "Give them different names.",
            )
    return markers


def _arrays(
    element: Element,
    shapes: dict[str, tuple[int, ...]],
    modes: int,
    where: str,
    report: Report,
    *others: str,
) -> dict[str, np.ndarray]:
    """Arrays of a point or marker; those left out are zero, or the identity of a rotation."""
    here = f"{where} <{element.tag}>"
    report_leftovers(report, element, here, ("xyz", *shapes, *others))
    attribute(element, "shape", here)
    found = {}
    for name, sizes in shapes.items():
        shape = tuple(modes if k < 0 else k for k in sizes)
        array = _array(element, name, shape, here)
        default = np.eye(3) if name == "rotation" else np.zeros(shape)
        found[name] = default if array is None else array
    return found


def _array(element: Element, key: str, shape: tuple[int, ...], where: str) -> np.ndarray | None:
    text = element.attributes.get(key)
    if text is None:
        return None
    words, here = text.split(), place(element, key, where)
    if len(words) != np.prod(shape):
        raise RobotFileError(
            f"{here} has {len(words)} numbers instead of {np.prod(shape)}.",
            f"It is an array {list(shape)}, row by row.",
            "Write all numbers, separated by spaces.",
        )
    return np.array([number(word, here) for word in words]).reshape(shape)


def _position(element: Element, where: str) -> tuple[float, float, float]:
    return vector(attribute(element, "xyz", where), place(element, "xyz", where))


def _number(element: Element, key: str, where: str) -> float:
    return number(attribute(element, key, where), place(element, key, where))


def _counts(beam: Element, where: str) -> tuple[int, ...]:
    """Numbers of shapes of a beam."""
    words = attribute(beam, "shapes", where).split()
    if len(words) not in (2, 3) or not all(
        x.isascii() and x.isdigit() and len(x) < 4 for x in words
    ):
        raise RobotFileError(
            f"{place(beam, 'shapes', where)} is {' '.join(words)!r}.",
            "It has the numbers of shapes of bending about y, about z, and of torsion.",
            'Write, for example, shapes="2 2 0".',
        )
    return tuple(map(int, words))
