"""Checks that names of links and joints are unique and defined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from torchsko.errors import Fields, MechanismError, TorchskoError
from torchsko.mechanism.description import JointDescription


def refuse_duplicates(
    kind: str, names: Sequence[str], error: type[TorchskoError] = MechanismError
) -> None:
    """Refuse duplicate names.

    Raises:
        TorchskoError: of the type `error`; names the first duplicate.
    """
    for name, count in Counter(names).items():
        if count > 1:
            raise error(
                f"{count} {kind}s are named {name!r}.",
                "Joints refer to links by name, and users to both.",
                f"Give each {kind} a unique name.",
            )


def refuse_unknown_links(
    joints: Sequence[JointDescription],
    links: Collection[str],
    reserved: Collection[str] = (),
    error: type[TorchskoError] = MechanismError,
) -> None:
    """Refuse joints that name links which do not exist.

    Args:
        joints: joints of the robot.
        links: names of its links.
        reserved: further names of parents, such as the inertial frame.
        error: type of the error.

    Raises:
        TorchskoError: of the type `error`; names the joint and the link.
    """
    known = set(links)
    for joint in joints:
        for role, name in (("parent", joint.parent), ("child", joint.child)):
            if name not in known and (role == "child" or name not in reserved):
                raise error(*unknown_link(joint, role, name, links))


def unknown_link(joint: JointDescription, role: str, name: str, links: Collection[str]) -> Fields:
    """Fields of the error for a joint that names an unknown link."""
    import difflib  # imported here: only an error needs it

    known = list(links)
    near = difflib.get_close_matches(name, known) or known[:3]
    return (
        f"joint {joint.name!r}: its {role} link {name!r} does not exist.",
        f"There are {len(known)} links, such as {', '.join(map(repr, near))}.",
        "Correct the name, or add a link of that name.",
    )
