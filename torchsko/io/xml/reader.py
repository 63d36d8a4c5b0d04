"""A hardened XML reader: elements with line numbers; declarations are refused.

The standard library's `xml.etree` drops line numbers and expands entities. This reader uses expat directly
and stops at the first declaration of an entity or document type.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from torchsko.errors import RobotFileError
from torchsko.io.common.report import Report

MAX_BYTES = 8 * 2**20
"""Largest size of a file, which bounds memory."""

MAX_DEPTH = 200
"""Largest nesting of elements, which bounds recursion."""

MAX_TAGS = 400_000
"""Largest number of tags, enough for a robot of tens of thousands of links."""

MAX_TAG_BYTES = 4096
"""Length of the part of a start tag that is searched for line breaks in numbers."""

CHUNK_BYTES = 4096
"""Size of the chunks that `root_tag` parses."""

EXCERPT_LENGTH = 24
"""Characters that a message shows of a file that is not XML."""

_BLANK = "\ufeff \t\r\n"
_BEFORE_DECLARATION = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]+(?:\xef\xbb\xbf)?(?=<\?xml\s)")
_BROKEN = re.compile(rb"[.\deE][ \t]*[\r\n]\s*[-+.\deE]")
_NUMBERS = re.compile(r"[-+.\deE\s]*")
_VALUE = re.compile(rb"""(?<=\s)([^\s=<>"']+)\s*=\s*("[^"]*"|'[^']*')""")


_JUNK_AFTER_ROOT = expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]


@dataclass
class Element:
    """An XML element.

    Attributes:
        tag: its name, with the namespace prefix as written.
        attributes: in file order; line breaks inside numbers are preserved.
        line: line of the start tag, from 1.
        children: in file order.
        start: byte of the document at which the start tag begins.
        stop: byte at which the end tag begins; for ``<a/>`` the byte after it.
        text: text between the tags without that of its children; empty unless requested.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list, repr=False)
    start: int = 0
    stop: int = 0
    text: str = ""

    def walk(self) -> Iterator[Element]:
        """This element and everything below it, in file order."""
        stack: list[Element] = [self]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(reversed(element.children))


def is_xml_text(source: str | os.PathLike[str]) -> bool:
    """True if a source is XML text, not a path."""
    return isinstance(source, str) and source.lstrip(_BLANK).startswith("<")


@dataclass
class Document:
    """A parsed file.

    Attributes:
        data: all bytes of the file.
        before: number of bytes before the document; positions of elements count from there.
        root: the root element.
    """

    data: bytes
    before: int
    root: Element


def read_xml(
    source: str | os.PathLike[str], report: Report | None = None, *, text: bool = False
) -> Element:
    """The root element of a file, or of XML text; see `read_document`."""
    return read_document(source, report, text=text).root


def read_document(
    source: str | os.PathLike[str], report: Report | None = None, *, text: bool = False
) -> Document:
    """Parse a file, or XML text.

    Args:
        source: a path, or text whose first character after white space is ``<``.
        report: records white space before the XML declaration of a file as a fault.
        text: store the text between tags.

    Returns:
        The bytes and the root element.

    Raises:
        RobotFileError: if the file cannot be read, is not XML, is too large or too deeply nested, is
            malformed, or declares a document type or an entity.
    """
    reader = _reader_of(source, Report() if report is None else report)
    _check_is_xml(reader.data)
    if text:
        reader.parser.CharacterDataHandler = reader.characters
    with _convert_parser_errors():
        reader.parser.Parse(reader.data, True)
    before = reader.before
    return Document(before + reader.data, len(before), reader.document.children[0])


def root_tag(source: str | os.PathLike[str]) -> str:
    """Name of the root element, without parsing the rest; empty for a file that `read_xml` refuses."""
    document = Element("", {}, 0)
    try:
        reader = _reader_of(source, Report())
        document = reader.document
        for at in range(0, len(reader.data), CHUNK_BYTES):
            reader.parser.Parse(reader.data[at : at + CHUNK_BYTES])
            if document.children:
                break
    except (expat.ExpatError, LookupError, ValueError):
        pass  # `read_document` raises the error
    return document.children[0].tag if document.children else ""


def _reader_of(source: str | os.PathLike[str], report: Report) -> _Reader:
    """A reader at the start of a source."""
    if is_xml_text(source):
        text = str(source)
        start = len(text) - len(text.lstrip(_BLANK))
        # A lone surrogate passes here, so that expat's error names its line.
        data = text[start:].encode("utf-8", "surrogatepass")
        return _Reader(data, "utf-8", text[:start].encode("utf-8", "surrogatepass"))
    data = _read_bytes(source)
    early = _BEFORE_DECLARATION.match(data)
    if early is None or report.strict:  # expat raises the error of a strict report
        return _Reader(data)
    reason = "white space before the XML declaration: skipped"
    report.fault("<?xml ...?>", reason, RobotFileError(reason, advice="Delete the white space."))
    return _Reader(data[early.end() :], before=early[0])


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RobotFileError(
            f"the file cannot be read: {getattr(error, 'strerror', None) or error}.",
            "A source is a path, or XML text that starts with '<'.",
            _path_advice(os.fspath(path)),
        ) from error


def _path_advice(path: str) -> str:
    """Advice for a path that cannot be read."""
    if path.startswith("~"):
        return f"Only a shell expands '~': pass pathlib.Path({path!r}).expanduser()."
    if "://" in path:
        return "URLs and package names are not resolved: pass the path of the file on this machine."
    if 0 < len(path) < 80 and not any(x in path for x in "./\\"):
        return f"Check the path; for an installed robot pass torchsko.robots.find({path!r})."
    return "Check the path, or pass the text itself."


def _check_is_xml(data: bytes) -> None:
    """Refuse a file that does not begin as XML, such as a log, a mesh or a picture.

    Raises:
        RobotFileError: shows how it begins.
    """
    start = data.removeprefix(codecs.BOM_UTF8).lstrip()
    if b"<" in start[:4]:  # UTF-16 has up to three bytes before it
        return
    line = start[: 4 * EXCERPT_LENGTH].split(b"\n")[0].decode(errors="replace")
    excerpt = line.strip()[:EXCERPT_LENGTH]
    is_text = excerpt.isprintable() and "\ufffd" not in excerpt
    what = f"begins with {excerpt!r}" if is_text else "is binary"
    raise RobotFileError(
        f"the file is not XML: it {what if start else 'is empty'}.",
        "Robot files are URDF, MJCF or SDF, which begin with '<'.",
        "Pass the robot file, not a log or mesh.",
    )


@contextmanager
def _convert_parser_errors() -> Iterator[None]:
    """Convert errors of expat to `RobotFileError`."""
    try:
        yield
    # An unknown encoding is a LookupError or a ValueError.
    except (expat.ExpatError, LookupError, ValueError) as error:
        if isinstance(error, RobotFileError):
            raise
        if getattr(error, "code", None) == _JUNK_AFTER_ROOT:
            raise RobotFileError(
                f"malformed XML: {error}: there is text after the end of the root element.",
                "A file contains one robot, in one root element.",
                "Delete that text, or write each <robot> to a separate file.",
            ) from error
        raise RobotFileError(
            f"malformed XML: {error}.",
            "The rest of the file cannot be parsed.",
            "Correct the file there; a command to check it is "
            'python -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" FILE',
        ) from error


class _Reader:
    """Expat callbacks that build elements and refuse declarations."""

    # `document` is an artificial parent of the root element.

    def __init__(self, data: bytes, encoding: str | None = None, before: bytes = b""):
        if len(data) > MAX_BYTES:
            raise RobotFileError(
                f"the robot file is larger than {MAX_BYTES // 2**20} MiB.",
                "Robot files have at most a few MiB.",
                "Check that this is the right file.",
            )
        if data.count(b"<") > MAX_TAGS:
            raise RobotFileError(
                f"the robot file has more than {MAX_TAGS} tags.",
                "Robots have at most thousands of parts.",
                "Check that this is the right file.",
            )
        self.data = data
        self.before = before
        self.lines_before = before.count(b"\n")
        self.may_break = bool(_BROKEN.search(data))  # few files have line breaks inside numbers
        self.document = Element("", {}, 0)
        self.open = [self.document]
        self.parser = parser = expat.ParserCreate(encoding)
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.EntityDeclHandler = self.refuse_entity
        parser.EndDoctypeDeclHandler = self.refuse_doctype

    @property
    def line(self) -> int:
        """Current line, from 1."""
        return self.parser.CurrentLineNumber + self.lines_before

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.line
        if len(self.open) > MAX_DEPTH:
            raise RobotFileError(
                f"line {line}: elements are nested more than {MAX_DEPTH} deep.",
                "Robot files have far fewer levels.",
                "Check that this is the right file.",
            )
        if self.may_break:
            attributes = attributes | self.broken_numbers(attributes)
        element = Element(tag, attributes, line, start=self.parser.CurrentByteIndex)
        self.open[-1].children.append(element)
        self.open.append(element)

    def broken_numbers(self, attributes: dict[str, str]) -> dict[str, str]:
        """Values of numbers with a line break, which expat replaces by a space."""
        suspects = [k for k, v in attributes.items() if " " in v and _NUMBERS.fullmatch(v)]
        if not suspects:
            return {}
        at = self.parser.CurrentByteIndex
        end = self.data.find(b">", at, at + MAX_TAG_BYTES)
        raw = self.data[at : max(at, end)]
        if b"\n" not in raw:
            return {}
        written = {m[1].decode(errors="replace"): m[2][1:-1] for m in _VALUE.finditer(raw)}
        return {
            key: written[key].decode("ascii")
            for key in suspects
            if b"\n" in written.get(key, b"") and written[key].isascii()
        }

    def characters(self, text: str) -> None:
        self.open[-1].text += text

    def end(self, tag: str) -> None:
        self.open.pop().stop = self.parser.CurrentByteIndex

    def refuse_entity(self, name: str, *_: object) -> None:
        raise RobotFileError(
            f"line {self.line}: the file declares the XML entity {name!r}.",
            "Entities can expand without bound or read other files, so they are not supported.",
            "Replace the entity by its text, and delete the declaration.",
        )

    def refuse_doctype(self) -> None:
        raise RobotFileError(
            f"line {self.line}: the file has a <!DOCTYPE> declaration.",
            "Document types can read other files, so they are not supported.",
            "Delete the <!DOCTYPE ...> declaration.",
        )
