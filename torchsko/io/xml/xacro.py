"""Macros of xacro that nobody expanded: refused in what is read, noted elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain

from torchsko.errors import RobotFileError
from torchsko.io.common.report import Report
from torchsko.io.xml.reader import Element, is_xml_text
from torchsko.utils.optional_dependencies import require

# What is read of a file, by the tag of an element; the attributes of all, and the tags of those inside.
READ_ATTRIBUTES = {
    "robot": ("name",),
    "link": ("name",),
    "joint": ("name", "type"),
    "parent": ("link",),
    "child": ("link",),
    "origin": ("xyz", "rpy"),
    "mass": ("value",),
    "inertia": ("ixx", "ixy", "ixz", "iyy", "iyz", "izz"),
    "axis": ("xyz",),
    "limit": ("lower", "upper", "velocity", "effort"),
    "dynamics": ("damping", "friction"),
    "mimic": ("joint", "multiplier", "offset"),
}
READ_CHILDREN = {
    "robot": ("link", "joint"),
    "link": ("inertial",),
    "inertial": ("origin", "mass", "inertia"),
    "joint": ("origin", "parent", "child", "axis", "limit", "dynamics", "mimic"),
}
HARMLESS = ("xacro:property", "xacro:arg")
"""Definitions: they stand for nothing where nothing that is read refers to them."""


def check_macros(root: Element, report: Report) -> None:
    """Refuse macros in what is read; note the others, all in one entry.

    Raises:
        RobotFileError: names the line, and says what to type.
    """
    for element, text in _in_what_is_read(root):
        raise RobotFileError(_unexpanded(element, text))
    left = list(_anywhere(root))
    if left:
        element, text = left[0]
        more = f", and {len(left) - 1} more" if len(left) > 1 else ""
        report.fault(
            f"<{element.tag}> (line {element.line})",
            f"holds the xacro macro {text!r}{more}: left alone, as nothing of it is read",
            _unexpanded(element, text),
        )


def expand_macros(path: str | os.PathLike[str], arguments: Mapping[str, str]) -> str:
    """The URDF that a file of macros stands for, by the package xacro.

    Macros are programs: they read other files, and compute. So none is expanded unless that is asked for.

    Args:
        path: of the file.
        arguments: of its <xacro:arg>, by name.

    Raises:
        RobotFileError: what was given is text, xacro refuses the file, or the file asks for no argument of a
            name given, which xacro by itself would pass over.
        MissingExtraError: xacro is not installed.
    """
    if is_xml_text(path):
        raise RobotFileError(
            "xacro= was given with text.",
            "Macros include files, which are looked for from where theirs is.",
            "Write the text to a file, and pass its path.",
        )
    xacro = require("xacro", "xacro")
    mappings = _Asked({name: str(value) for name, value in arguments.items()})
    try:
        text = xacro.process_file(os.fspath(path), mappings=mappings).toxml()
    except Exception as error:  # it has no error of its own for most of what can go wrong
        raise RobotFileError(
            f"{os.fspath(path)}: xacro does not expand it: {type(error).__name__}: {error}.",
            "Packages that $(find ...) names must be installed, arguments be given.",
            "Try it by itself: python -m xacro FILE name:=value",
        ) from error
    for name in arguments:
        if name not in mappings.asked:
            known = ", ".join(map(repr, sorted(mappings.asked))) or "none"
            raise RobotFileError(
                f"{os.fspath(path)} asks for no argument {name!r} of xacro.",
                f"It would change nothing. Arguments there: {known}.",
                "Use one of these names exactly, or leave it out.",
            )
    return text


class _Asked(dict[str, str]):
    """Arguments that keep which of them were asked for: declared by <xacro:arg>, or used by $(arg)."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        super().__init__(arguments)
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)


def _unexpanded(element: Element, text: str) -> str:
    return (
        f"line {element.line}: <{element.tag}> holds the xacro macro {text!r}.\n"
        "The file is the template of a URDF, not yet a URDF.\n"
        "Expand it first: xacro robot.urdf.xacro > robot.urdf; or, with the package xacro installed, pass "
        "xacro={}, and what its arguments are, to load (info, view, identify: --xacro, --xacro-arg "
        "NAME:=VALUE)."
    )


def _is_macro(text: str) -> bool:
    return text.startswith("xacro:") or "${" in text or "$(" in text


def _anywhere(root: Element) -> Iterator[tuple[Element, str]]:
    """Every tag and attribute that is a macro or holds one, with its element."""
    for element in root.walk():
        for text in chain((element.tag,), element.attributes.values()):
            if _is_macro(text):
                yield element, text


def _in_what_is_read(root: Element) -> Iterator[tuple[Element, str]]:
    """Those which would change what is read if they were expanded."""
    pending = [root]
    while pending:
        element = pending.pop()
        for key in READ_ATTRIBUTES.get(element.tag, ()):
            if _is_macro(text := element.attributes.get(key, "")):
                yield element, text
        for child in element.children:
            if child.tag.startswith("xacro:") and child.tag not in HARMLESS:
                yield child, child.tag
            if child.tag in READ_CHILDREN.get(element.tag, ()):
                pending.append(child)
