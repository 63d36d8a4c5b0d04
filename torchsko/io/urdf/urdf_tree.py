"""How the links and joints of a URDF file find each other: by names, into one tree."""

from __future__ import annotations

from collections.abc import Sequence

from torchsko.errors import RobotFileError
from torchsko.io.common.report import Report
from torchsko.mechanism.description import JointDescription, LinkDescription
from torchsko.mechanism.name_resolution import refuse_duplicates, refuse_unknown_links, unknown_link

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
        "\n".join(unknown_link(hung[0], "parent", WORLD, known)),
    )
    return [LinkDescription(WORLD), *links]


def check_names(links: Sequence[LinkDescription], joints: Sequence[JointDescription]) -> None:
    """Refuse names that are given twice, and joints that name links which do not exist.

    Raises:
        RobotFileError: names the joint and the link.
    """
    if not links:
        raise RobotFileError(
            "the <robot> has no <link>.",
            "A robot is at least one link.",
            'Write <link name="base"/> inside it.',
        )
    known = [link.name for link in links]
    refuse_duplicates("link", known, RobotFileError)
    refuse_duplicates("joint", [joint.name for joint in joints], RobotFileError)
    refuse_unknown_links(joints, known, error=RobotFileError)


def check_roots(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription], report: Report
) -> None:
    """Refuse two trees in one robot; note links that no joint names.

    Cycles, and links that two joints move, are found later: trees that share a link are none.

    Raises:
        RobotFileError: names the roots; when the reading is strict, a link that no joint names.
    """
    moved, carrying = {joint.child for joint in joints}, {joint.parent for joint in joints}
    roots = [link.name for link in links if link.name not in moved]
    trees = [name for name in roots if name in carrying]
    if len(trees) > 1 and len(moved) == len(joints):
        raise RobotFileError(
            f"the <robot> is {len(trees)} trees: no joint moves link {trees[0]!r}, nor {trees[1]!r}.",
            "Where one is seen from the other, nothing in the file says.",
            "Join their roots by a joint, or write each to a file of its own.",
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
