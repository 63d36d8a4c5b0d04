"""Sizes that a file in MJCF asks for by a number, before MuJoCo makes room for them."""

from __future__ import annotations

from torchsko.errors import RobotFileError
from torchsko.io.xml.reader import Element

MOST_PIXELS = 2**26
"""Of an image, or of a field of heights."""

MOST_ENTRIES = 100_000
"""Numbers of a sensor, of user data, or keyframes."""

MOST_OF_EACH = 1_000
"""Numbers of the user's that each body, joint, geom and so on has."""

_SIZES = (
    ("hfield", ("nrow", "ncol"), MOST_PIXELS),
    ("texture", ("width", "height"), MOST_PIXELS),
    ("user", ("dim",), MOST_ENTRIES),
    ("size", ("nkey",), MOST_ENTRIES),
    ("size", ("nuserdata",), MOST_ENTRIES),
    *(
        ("size", (f"nuser_{kind}",), MOST_OF_EACH)
        for kind in ("body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor")
    ),
)


def refuse_large(element: Element, where: str) -> None:
    """Refuse an element that asks for more room than any robot needs.

    Args:
        element: the element.
        where: its line, for the message.

    Raises:
        RobotFileError: names the element and the attributes.
    """
    for tag, names, most in _SIZES:
        if element.tag != tag:
            continue
        words = [element.attributes[name] for name in names if name in element.attributes]
        product = 1
        for word in words:
            product *= max(1, _whole(word, most))
        if product > most:
            raise RobotFileError(
                f"{where}: <{tag}> asks for {' and '.join(names)} {' and '.join(words)}.",
                f"More than {most} are no robot's, and MuJoCo would make room for all of them.",
                f"Give {' and '.join(names)} as they are in the data.",
            )


def _whole(word: str, most: int) -> int:
    try:
        return int(float(word))
    except (ValueError, OverflowError):
        return most + 1
