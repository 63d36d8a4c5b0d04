"""Xacro macros: detection in a URDF file, and expansion by the package xacro."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain

from torchsko.errors import RobotFileError
from torchsko.io.xml.reader import Element, is_xml_text
from torchsko.io.xml.report import Report
from torchsko.utils.optional_dependencies import require

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
"""Attributes that the URDF reader uses, by the tag of their element."""

READ_CHILDREN = {
    "robot": ("link", "joint"),
    "link": ("inertial",),
    "inertial": ("origin", "mass", "inertia"),
    "joint": ("origin", "parent", "child", "axis", "limit", "dynamics", "mimic"),
}
"""Children that the URDF reader uses, by the tag of their parent."""

DEFINITIONS = ("xacro:property", "xacro:arg")
"""Macros without effect unless an attribute refers to them."""


def check_macros(root: Element, report: Report) -> None:
    """Refuse macros in the parts of a file that the reader uses; record macros elsewhere as one fault.

    Raises:
        RobotFileError: names the line and the macro.
    """
    for element, text in _macros_in_use(root):
        raise _unexpanded(element, text)
    unused = list(_all_macros(root))
    if unused:
        element, text = unused[0]
        more = f", and {len(unused) - 1} more" if len(unused) > 1 else ""
        report.fault(
            f"<{element.tag}> (line {element.line})",
            f"has the xacro macro {text!r}{more}: ignored, as it is in an unused part of the file",
            _unexpanded(element, text),
        )


def expand_macros(path: str | os.PathLike[str], arguments: Mapping[str, str]) -> str:
    """Expand the macros of a file to URDF text with the package xacro.

    Macros can read any file and run expressions, so they are expanded on request only.

    Args:
        path: the file.
        arguments: values of its <xacro:arg>, by name.

    Raises:
        RobotFileError: if the source is text, xacro fails, or the file does not use one of the arguments.
        MissingExtraError: if xacro is not installed.
    """
    if is_xml_text(path):
        raise RobotFileError(
            "xacro= was given with text.",
            "Macros include files relative to the folder of their own file.",
            "Write the text to a file, and pass its path.",
        )
    xacro = require("xacro", "xacro")
    mappings = _RecordedArguments({name: str(value) for name, value in arguments.items()})
    try:
        text = xacro.process_file(os.fspath(path), mappings=mappings).toxml()
    except Exception as error:  # xacro raises exceptions of any type
        raise RobotFileError(
            f"{os.fspath(path)}: xacro failed: {type(error).__name__}: {error}.",
            "Packages in $(find ...) must be installed, and all arguments given.",
            "Check it with python -m xacro FILE name:=value.",
        ) from error
    for name in arguments:
        if name not in mappings.used:
            known = ", ".join(map(repr, sorted(mappings.used))) or "none"
            raise RobotFileError(
                f"{os.fspath(path)} has no xacro argument {name!r}.",
                f"Its arguments: {known}.",
                "Use one of these names exactly, or leave it out.",
            )
    return text


class _RecordedArguments(dict[str, str]):
    """Arguments that record which names <xacro:arg> and $(arg) use."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        super().__init__(arguments)
        self.used: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.used.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self.used.add(name)
        return super().__getitem__(name)


def _unexpanded(element: Element, text: str) -> RobotFileError:
    return RobotFileError(
        f"line {element.line}: <{element.tag}> has the xacro macro {text!r}.",
        "The file is a template for a URDF file.",
        "Expand it first: xacro robot.urdf.xacro > robot.urdf. Or install the package xacro and pass "
        "xacro={...} with its arguments to load (info, view, identify: --xacro, --xacro-arg NAME:=VALUE).",
    )


def _is_macro(text: str) -> bool:
    return text.startswith("xacro:") or "${" in text or "$(" in text


def _all_macros(root: Element) -> Iterator[tuple[Element, str]]:
    """Tags and attributes with macros, with their elements."""
    for element in root.walk():
        for text in chain((element.tag,), element.attributes.values()):
            if _is_macro(text):
                yield element, text


def _macros_in_use(root: Element) -> Iterator[tuple[Element, str]]:
    """Macros whose expansion would change the parts of a file that the reader uses."""
    pending = [root]
    while pending:
        element = pending.pop()
        for key in READ_ATTRIBUTES.get(element.tag, ()):
            if _is_macro(text := element.attributes.get(key, "")):
                yield element, text
        for child in element.children:
            if child.tag.startswith("xacro:") and child.tag not in DEFINITIONS:
                yield child, child.tag
            if child.tag in READ_CHILDREN.get(element.tag, ()):
                pending.append(child)
