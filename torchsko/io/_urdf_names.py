"""How the links and joints of a URDF file find each other: by names, into one tree."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from torchsko.errors import RobotFileError
from torchsko.io._report import Report
from torchsko.mechanism.description import JointDescription, LinkDescription

WORLD = "world"
"""A link that joints may hang on without its being declared (Drake's name of the inertial frame)."""


def with_world(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription], report: Report
) -> list[LinkDescription]:
    """The links, with one named "world" put first where joints hang on it and nobody declares it.

    Raises:
        RobotFileError: when the reading is strict.
    """
    known = [link.name for link in links]
    hung = [joint for joint in joints if joint.parent == WORLD]
    if WORLD in known or not hung:
        return list(links)
    report.fault(
        f"link {WORLD!r}",
        f"not declared, though joint {hung[0].name!r} hangs on it: read as a link without mass, "
        "which is the inertial frame unless the base floats",
        _unknown_link(hung[0], "parent", WORLD, known),
    )
    return [LinkDescription(WORLD), *links]


def check_names(links: Sequence[LinkDescription], joints: Sequence[JointDescription]) -> None:
    """Refuse names that are given twice, and joints that name links which do not exist.

    Raises:
        RobotFileError: names the joint and the link.
    """
    if not links:
        raise RobotFileError(
            "the <robot> has no <link>.\n"
            "A robot is at least one link.\n"
            'Write <link name="base"/> inside it.'
        )
    known = [link.name for link in links]
    _refuse_duplicates("links", known)
    _refuse_duplicates("joints", [joint.name for joint in joints])
    known_names = set(known)
    for joint in joints:
        for role, name in (("parent", joint.parent), ("child", joint.child)):
            if name not in known_names:
                raise RobotFileError(_unknown_link(joint, role, name, known))


def _unknown_link(joint: JointDescription, role: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known) or known[:3]
    return (
        f"joint {joint.name!r}: its {role} link {name!r} does not exist.\n"
        f"The file has {len(known)} links, such as {', '.join(map(repr, near))}.\n"
        f'Correct the name, or add <link name="{name}"/>.'
    )


def _refuse_duplicates(kind: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise RobotFileError(
                f"{count} {kind} are named {name!r}.\n"
                "Names are how joints find links, and how users find both.\n"
                "Give each a name of its own."
            )


def check_roots(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription], report: Report
) -> None:
    """Refuse two trees in one robot; note links that no joint names. Cycles are found later.

    Raises:
        RobotFileError: names the roots; when the reading is strict, a link that no joint names.
    """
    moved, carrying = {joint.child for joint in joints}, {joint.parent for joint in joints}
    roots = [link.name for link in links if link.name not in moved]
    trees = [name for name in roots if name in carrying]
    if len(trees) > 1:
        raise RobotFileError(
            f"the <robot> is {len(trees)} trees: no joint moves link {trees[0]!r}, nor {trees[1]!r}.\n"
            "Where one is seen from the other, nothing in the file says.\n"
            "Join their roots by a joint, or write each to a file of its own."
        )
    alone = [name for name in roots if name not in carrying]
    for name in alone if trees else alone[1:]:
        report.fault(
            f"link {name!r}",
            "no joint names it: it stays apart from the robot (see mech.unused)",
            f"link {name!r} belongs to nothing: no joint names it.\n"
            "The links of a robot are one tree.\n"
            "Write a joint that holds it, or delete it.",
        )
