"""A small, hardened XML reader: elements with line numbers, and no declarations at all.

The standard library's `xml.etree` forgets line numbers and expands entities before anyone may
refuse them; this reader drives expat itself, and stops at the first declaration.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from torchsko.errors import RobotFileError

MAX_BYTES = 8 * 2**20
MAX_DEPTH = 200


@dataclass
class Element:
    """One XML element.

    Attributes:
        tag: its name, with the namespace prefix as written.
        attributes: in file order.
        line: line of the start tag, from 1.
        children: in file order; text is not kept.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list, repr=False)

    def walk(self) -> Iterator[Element]:
        """This element and everything below it, in file order."""
        stack: list[Element] = [self]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(reversed(element.children))


def is_xml_text(source: str | os.PathLike[str]) -> bool:
    """Whether `source` is XML itself rather than the path of a file."""
    return isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<")


def read_xml(source: str | os.PathLike[str]) -> Element:
    """The root element of a file, or of XML text.

    Args:
        source: a path, or text whose first character after white space is ``<``.

    Returns:
        The root element.

    Raises:
        RobotFileError: the file cannot be read, is too large or too deep, is malformed, or
            declares a document type or an entity.
    """
    if is_xml_text(source):
        # Surrogates cannot be encoded; expat names the line where they stand.
        text = str(source).lstrip("\ufeff \t\r\n")
        return _parse(text.encode("utf-8", "surrogatepass"), encoding="utf-8")
    return _parse(_read_bytes(source), encoding=None)


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RobotFileError(
            f"the file cannot be read: {getattr(error, 'strerror', None) or error}.\n"
            "A source is a path, or XML text that starts with '<'.\n"
            "Check the path, or pass the text itself."
        ) from error


def _parse(data: bytes, encoding: str | None) -> Element:
    if len(data) > MAX_BYTES:
        raise RobotFileError(
            f"the robot file is larger than {MAX_BYTES // 2**20} MiB.\n"
            "It is text of at most a few MiB; meshes live in files of their own.\n"
            "Check that this is the right file."
        )
    reader = _Reader(encoding)
    try:
        reader.parser.Parse(data, True)
    # An encoding that expat and Python do not know is a LookupError, or a ValueError.
    except (expat.ExpatError, LookupError, ValueError) as error:
        if isinstance(error, RobotFileError):
            raise
        raise RobotFileError(
            f"malformed XML: {error}.\n"
            "Nothing after that place can be trusted.\n"
            "Correct the file there; another reader to ask is "
            'python -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" FILE'
        ) from error
    return reader.document.children[0]


class _Reader:
    """Expat callbacks that build elements and refuse declarations."""

    def __init__(self, encoding: str | None):
        self.document = Element("", {}, 0)
        self.open = [self.document]
        self.parser = parser = expat.ParserCreate(encoding)
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.EntityDeclHandler = self.refuse_entity
        parser.EndDoctypeDeclHandler = self.refuse_doctype

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        if len(self.open) > MAX_DEPTH:
            raise RobotFileError(
                f"line {line}: elements are nested more than {MAX_DEPTH} deep.\n"
                "No robot file needs that.\nCheck that this is the right file."
            )
        element = Element(tag, attributes, line)
        self.open[-1].children.append(element)
        self.open.append(element)

    def end(self, tag: str) -> None:
        self.open.pop()

    def refuse_entity(self, name: str, *_: object) -> None:
        raise RobotFileError(
            f"line {self.parser.CurrentLineNumber}: the file declares the XML entity {name!r}.\n"
            "Entities can expand without bound or reach other files, so none is expanded.\n"
            "Write the text out where the entity is used, and delete the declaration."
        )

    def refuse_doctype(self) -> None:
        raise RobotFileError(
            f"line {self.parser.CurrentLineNumber}: the file has a <!DOCTYPE> declaration.\n"
            "Document types can pull in other files; robot files have no use for them.\n"
            "Delete the <!DOCTYPE ...> declaration."
        )
