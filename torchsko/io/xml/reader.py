"""A small, hardened XML reader: elements with line numbers, and no declarations at all.

The standard library's `xml.etree` forgets line numbers and expands entities before anyone may
refuse them; this reader drives expat itself, and stops at the first declaration.
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
MAX_DEPTH = 200
MAX_TAGS = 400_000
"""Start and end tags, of a robot with tens of thousands of links."""

MAX_TAG = 4096
"""Bytes of a start tag that is searched for line breaks."""

PEEKED = 4096
"""Bytes that are parsed at a time by who wants the root's name alone."""

SHOWN = 24
"""Characters that are shown of a file that is none of a robot."""

_BLANK = "\ufeff \t\r\n"
_BEFORE_DECLARATION = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]+(?:\xef\xbb\xbf)?(?=<\?xml\s)")
_BROKEN = re.compile(rb"[.\deE][ \t]*[\r\n]\s*[-+.\deE]")
_NUMBERS = re.compile(r"[-+.\deE\s]*")
_VALUE = re.compile(rb"""(?<=\s)([^\s=<>"']+)\s*=\s*("[^"]*"|'[^']*')""")


_SEVERAL = expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]


@dataclass
class Element:
    """One XML element.

    Attributes:
        tag: its name, with the namespace prefix as written.
        attributes: in file order; line breaks among digits are kept.
        line: line of the start tag, from 1.
        children: in file order.
        start: byte where its start tag begins, counted from the beginning of the document.
        stop: byte where its end tag begins, or where it ends, where it is one tag, ``<a/>``.
        text: between its tags, that of its children left out; kept where it was asked for.
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
    """Whether `source` is XML itself rather than the path of a file."""
    return isinstance(source, str) and source.lstrip(_BLANK).startswith("<")


@dataclass
class Document:
    """What was read: the bytes, and the elements that stand in them.

    Attributes:
        data: all bytes.
        before: how many of them stand before the document; places of elements count from there.
        root: the outermost element.
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
    """A file, or XML text, with its elements.

    Args:
        source: a path, or text whose first character after white space is ``<``.
        report: takes note of white space before the XML declaration of a file, or refuses it.
        text: keep what stands between tags.

    Returns:
        The bytes and the root element.

    Raises:
        RobotFileError: the file cannot be read, is no XML, is too large or too deep, is malformed, or
            declares a document type or an entity.
    """
    reader = _reader_of(source, Report() if report is None else report)
    _refuse_other_files(reader.data)
    if text:
        reader.parser.CharacterDataHandler = reader.characters
    with _saying_where():
        reader.parser.Parse(reader.data, True)
    before = reader.before
    return Document(before + reader.data, len(before), reader.document.children[0])


def root_tag(source: str | os.PathLike[str]) -> str:
    """Name of the root element, what follows it unread; empty where `read_xml` refuses what precedes it."""
    document = Element("", {}, 0)
    try:
        reader = _reader_of(source, Report())
        document = reader.document
        for at in range(0, len(reader.data), PEEKED):
            reader.parser.Parse(reader.data[at : at + PEEKED])
            if document.children:
                break
    except (expat.ExpatError, LookupError, ValueError):
        pass  # behind the root's name, or said by who reads it all
    return document.children[0].tag if document.children else ""


def _reader_of(source: str | os.PathLike[str], report: Report) -> _Reader:
    """What reads a source, from its first line on."""
    if is_xml_text(source):
        text = str(source)
        start = len(text) - len(text.lstrip(_BLANK))
        # Surrogates cannot be encoded; expat names the line where they stand.
        data = text[start:].encode("utf-8", "surrogatepass")
        return _Reader(data, "utf-8", text[:start].encode("utf-8", "surrogatepass"))
    data = _read_bytes(source)
    early = _BEFORE_DECLARATION.match(data)
    if early is None or report.strict:  # then expat refuses it
        return _Reader(data)
    report.fault("<?xml ...?>", "white space stands before it: skipped", "")
    return _Reader(data[early.end() :], before=early[0])


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RobotFileError(
            f"the file cannot be read: {getattr(error, 'strerror', None) or error}.",
            "A source is a path, or XML text that starts with '<'.",
            f"{_typed(os.fspath(path))}",
        ) from error


def _typed(path: str) -> str:
    """What to type instead of a path that leads nowhere."""
    if path.startswith("~"):
        return f"'~' is a word of shells: pass pathlib.Path({path!r}).expanduser()."
    if "://" in path:
        return "Nothing is fetched, no package looked up: pass where the file is on this machine."
    if 0 < len(path) < 80 and not any(x in path for x in "./\\"):
        return f"Check the path; a robot of that name that is installed is torchsko.robots.find({path!r})."
    return "Check the path, or pass the text itself."


def _refuse_other_files(data: bytes) -> None:
    """Refuse what is no XML from its first character on, such as a log, a mesh or a picture.

    Raises:
        RobotFileError: says how it begins.
    """
    start = data.removeprefix(codecs.BOM_UTF8).lstrip()
    if b"<" in start[:4]:  # in UTF-16 behind up to three other bytes
        return
    first = start[: 4 * SHOWN].split(b"\n")[0].decode(errors="replace").strip()[:SHOWN]
    text = first.isprintable() and "\ufffd" not in first
    what = f"begins with {first!r}" if text else "is binary"
    raise RobotFileError(
        f"the file is no XML: it {what if start else 'is empty'}.",
        "Robots are URDF, MJCF or SDF, which begin with '<'.",
        "Pass the file of the robot; its logs and meshes are files of their own.",
    )


@contextmanager
def _saying_where() -> Iterator[None]:
    """Errors of expat in our words."""
    try:
        yield
    # An encoding that expat and Python do not know is a LookupError, or a ValueError.
    except (expat.ExpatError, LookupError, ValueError) as error:
        if isinstance(error, RobotFileError):
            raise
        if getattr(error, "code", None) == _SEVERAL:
            raise RobotFileError(
                f"malformed XML: {error}: something follows the end of the outermost element.",
                "A file is one robot, in one <robot> element.",
                "Delete what follows, or write each <robot> to a file of its own.",
            ) from error
        raise RobotFileError(
            f"malformed XML: {error}.",
            "Nothing after that place can be trusted.",
            "Correct the file there; another reader to ask is "
            'python -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" FILE',
        ) from error


class _Reader:
    """Expat callbacks that build elements and refuse declarations."""

    def __init__(self, data: bytes, encoding: str | None = None, before: bytes = b""):
        if len(data) > MAX_BYTES:
            raise RobotFileError(
                f"the robot file is larger than {MAX_BYTES // 2**20} MiB.",
                "It is text of at most a few MiB; meshes live in files of their own.",
                "Check that this is the right file.",
            )
        if data.count(b"<") > MAX_TAGS:
            raise RobotFileError(
                f"the robot file has more than {MAX_TAGS} tags.",
                "A robot has thousands of parts at most.",
                "Check that this is the right file.",
            )
        self.data = data
        self.before = before
        self.lines_before = before.count(b"\n")
        self.may_break = bool(_BROKEN.search(data))  # as in few files
        self.document = Element("", {}, 0)
        self.open = [self.document]
        self.parser = parser = expat.ParserCreate(encoding)
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.EntityDeclHandler = self.refuse_entity
        parser.EndDoctypeDeclHandler = self.refuse_doctype

    @property
    def line(self) -> int:
        """Where the parser is, from 1."""
        return self.parser.CurrentLineNumber + self.lines_before

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.line
        if len(self.open) > MAX_DEPTH:
            raise RobotFileError(
                f"line {line}: elements are nested more than {MAX_DEPTH} deep.",
                "No robot file needs that.",
                "Check that this is the right file.",
            )
        if self.may_break:
            attributes = attributes | self.broken_numbers(attributes)
        element = Element(tag, attributes, line, start=self.parser.CurrentByteIndex)
        self.open[-1].children.append(element)
        self.open.append(element)

    def broken_numbers(self, attributes: dict[str, str]) -> dict[str, str]:
        """Values of numbers that hold a line break, with it; XML has a space in its place."""
        doubtful = [k for k, v in attributes.items() if " " in v and _NUMBERS.fullmatch(v)]
        if not doubtful:
            return {}
        at = self.parser.CurrentByteIndex
        end = self.data.find(b">", at, at + MAX_TAG)
        raw = self.data[at : max(at, end)]
        if b"\n" not in raw:
            return {}
        written = {m[1].decode(errors="replace"): m[2][1:-1] for m in _VALUE.finditer(raw)}
        return {
            key: written[key].decode("ascii")
            for key in doubtful
            if b"\n" in written.get(key, b"") and written[key].isascii()
        }

    def characters(self, text: str) -> None:
        self.open[-1].text += text

    def end(self, tag: str) -> None:
        self.open.pop().stop = self.parser.CurrentByteIndex

    def refuse_entity(self, name: str, *_: object) -> None:
        raise RobotFileError(
            f"line {self.line}: the file declares the XML entity {name!r}.",
            "Entities can expand without bound or reach other files, so none is expanded.",
            "Write the text out where the entity is used, and delete the declaration.",
        )

    def refuse_doctype(self) -> None:
        raise RobotFileError(
            f"line {self.line}: the file has a <!DOCTYPE> declaration.",
            "Document types can pull in other files; robot files have no use for them.",
            "Delete the <!DOCTYPE ...> declaration.",
        )
