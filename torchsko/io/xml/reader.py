"""A hardened XML reader: elements with line numbers; declarations of types and entities are refused.

Robot files are read by tinyxml2 in MuJoCo, ROS and Gazebo, which accepts more than the XML standard: comments
that contain ``--``, ``<! text >``, and attribute values that contain ``<`` or a lone ``&``. This reader
accepts it as well, so the security checks of MJCF files apply to all elements that MuJoCo reads.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchsko.errors import RobotFileError
from torchsko.io.xml.report import Report

MAX_BYTES = 8 * 2**20
"""Largest size of a file, which bounds memory."""

MAX_DEPTH = 200
"""Largest nesting of elements, which bounds recursion."""

MAX_TAGS = 400_000
"""Largest number of tags, enough for a robot of tens of thousands of links."""

EXCERPT_LENGTH = 24
"""Characters that a message shows of a file that is not XML."""

_BLANK = "\ufeff \t\r\n"
_START = re.compile(rb"(?:\xef\xbb\xbf|[ \t\r\n])*+")
_BEFORE_DECLARATION = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]++(?:\xef\xbb\xbf)?<\?xml\s")
_ENCODING = re.compile(rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([\w.:-]+)""")
_UTF16 = (
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF16_BE,
    "<?".encode("utf-16-le"),
    "<?".encode("utf-16-be"),
)

_NAME = rb"[A-Za-z_:\x80-\xff][\w.:\x80-\xff-]*+"
_ATTRIBUTE = rb"\s*+(" + _NAME + rb")\s*+=\s*+(\"[^\"]*+\"|'[^']*+')"
ATTRIBUTE = re.compile(_ATTRIBUTE)
"""Groups: name and quoted value."""

START_TAG = re.compile(rb"<\s*+(/?)(" + _NAME + rb")((?:" + _ATTRIBUTE + rb")*+)\s*+(/?)>")
"""Groups: ``/`` of an end tag, name, attributes, name and value of the last of them, ``/`` of ``<a/>``."""

_SKIPPED = ((b"<!--", b"-->"), (b"<![CDATA[", b"]]>"), (b"<?", b"?>"), (b"<!", b">"))
"""Starts and ends of markup that is no element, in the order in which they are recognized."""

_DECLARATION = re.compile(rb"<!(DOCTYPE|ENTITY)\b")
_ENTITY = re.compile(rb"<!ENTITY\s+(?:%\s+)?([^\s>]+)")
_REFERENCE = re.compile(r"&(?:#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6})|(lt|gt|amp|quot|apos));")
_CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_NUMBERS = re.compile(r"[-+.\deE\s]*")


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


@dataclass(frozen=True)
class Document:
    """A parsed file.

    Attributes:
        data: its bytes.
        root: its root element.
    """

    data: bytes
    root: Element


def read_document(
    source: str | os.PathLike[str],
    report: Report | None = None,
    *,
    text: bool = False,
    mujoco: bool = False,
) -> Document:
    """Parse a file, or XML text.

    Args:
        source: a path, or text whose first character after white space is ``<``.
        report: records white space before the XML declaration of a file as a fault.
        text: store the text between tags.
        mujoco: read as MuJoCo does: always UTF-8, without elements after the root, and with all white space.

    Returns:
        The bytes and the root element.

    Raises:
        RobotFileError: if the file cannot be read, is not XML, is too large or too deeply nested, is
            malformed, or declares a document type or an entity.
    """
    reader = _Reader(source, mujoco)
    _check_is_xml(reader.data)
    report = Report() if report is None else report
    if not is_xml_text(source) and _BEFORE_DECLARATION.match(reader.data):
        reason = "white space before the XML declaration: skipped"
        error = RobotFileError(f"malformed XML: {reason}.", advice="Delete the white space.")
        report.fault("<?xml ...?>", reason, error)
    for _ in reader.elements(text):
        pass
    roots = reader.document.children
    if len(roots) > 1 and not mujoco:
        raise RobotFileError(
            f"malformed XML: line {roots[1].line}: there is text after the end of the root element.",
            "A file contains one robot, in one root element.",
            "Delete that text, or write each <robot> to a separate file.",
        )
    return Document(reader.data, roots[0])


def root_tag(source: str | os.PathLike[str]) -> str:
    """Name of the root element, without parsing the rest; empty for a file that `read_document` refuses."""
    try:
        return next(_Reader(source, mujoco=True).elements(text=False)).tag
    except (RobotFileError, StopIteration):
        return ""  # `read_document` raises the error


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


class _Reader:
    """A tokenizer that builds elements; `document` is an artificial parent of the root element."""

    def __init__(self, source: str | os.PathLike[str], mujoco: bool) -> None:
        given = is_xml_text(source)
        self.line, self.counted = 1, 0
        try:
            data = str(source).encode() if given else _read_bytes(source)
        except UnicodeEncodeError as error:  # a lone surrogate
            self.line += str(source).count("\n", 0, error.start)
            raise self.malformed("there is a character that UTF-8 does not have") from error
        if len(data) > MAX_BYTES:
            raise RobotFileError(
                f"the robot file is larger than {MAX_BYTES // 2**20} MiB.",
                "Robot files have at most a few MiB.",
                "Check that this is the right file.",
            )
        self.data = self.bytes = data
        self.mujoco = mujoco
        self.document = Element("", {}, 0)
        self.encoding = "utf-8"
        if data.startswith(_UTF16) and not given:
            self.bytes = data.decode("utf-16", "replace").encode()
        elif not given and not mujoco and (found := _ENCODING.match(data, self.start())):
            self.encoding = found[1].decode()
        if self.bytes.count(b"<") > MAX_TAGS:
            raise RobotFileError(
                f"the robot file has more than {MAX_TAGS} tags.",
                "Robots have at most thousands of parts.",
                "Check that this is the right file.",
            )

    def start(self) -> int:
        """Byte after the byte order mark and white space."""
        found = _START.match(self.bytes)
        return found.end() if found else 0

    def elements(self, text: bool) -> Iterator[Element]:
        """Elements at their start tags, in file order.

        Args:
            text: store the text between tags.
        """
        data, at, opened = self.bytes, self.start(), [self.document]
        while (start := data.find(b"<", at)) >= 0:
            if self.mujoco and len(opened) == 1 and self.document.children:
                return
            if start > at and (text or len(opened) == 1):
                self.add_text(opened, at, start)
            self.line += data.count(b"\n", self.counted, start)
            self.counted = start
            if data.startswith((b"<!", b"<?"), start):
                at = self.skip(opened, start, text)
                continue
            tag = START_TAG.match(data, start)
            if tag is None or (tag[1] and tag[6] and not self.mujoco):
                raise self.malformed(f"{self.excerpt(start)} is not a tag")
            at, name = tag.end(), self.decode(tag[2])
            if tag[1] and not tag[6]:  # MuJoCo reads </a/> as <a/>
                if opened[-1].tag != name or len(opened) == 1:
                    raise self.malformed(f"</{name}> does not end <{opened[-1].tag}>")
                opened.pop().stop = start
                continue
            element = Element(name, self.attributes(tag), self.line, start=start, stop=at)
            opened[-1].children.append(element)
            yield element
            if not tag[6]:
                opened.append(element)
            if len(opened) > MAX_DEPTH:
                raise RobotFileError(
                    f"line {self.line}: elements are nested more than {MAX_DEPTH} deep.",
                    "Robot files have far fewer levels.",
                    "Check that this is the right file.",
                )
        self.add_text(opened[:1], at, len(data))
        if len(opened) > 1 or not self.document.children:
            raise self.malformed(f"<{opened[-1].tag}> (line {opened[-1].line}) is not closed")

    def skip(self, opened: list[Element], start: int, text: bool) -> int:
        """End of a comment, a declaration or character data."""
        self.refuse_declarations(start)
        first, last = next(x for x in _SKIPPED if self.bytes.startswith(x[0], start))
        end = self.bytes.find(last, start + len(first))
        if end < 0:
            raise self.malformed(f"{self.excerpt(start)} is not closed")
        if text and first == b"<![CDATA[":
            opened[-1].text += self.decode(self.bytes[start + len(first) : end])
        return end + len(last)

    def refuse_declarations(self, start: int) -> None:
        """Refuse a document type, and entities."""
        if not _DECLARATION.match(self.bytes, start):
            return
        if entity := _ENTITY.search(self.bytes, start):
            raise RobotFileError(
                f"line {self.line}: the file declares the XML entity {entity[1].decode(errors='replace')!r}.",
                "Entities can expand without bound or read other files, so they are not supported.",
                "Replace the entity by its text, and delete the declaration.",
            )
        raise RobotFileError(
            f"line {self.line}: the file has a <!DOCTYPE> declaration.",
            "Document types can read other files, so they are not supported.",
            "Delete the <!DOCTYPE ...> declaration.",
        )

    def attributes(self, tag: re.Match[bytes]) -> dict[str, str]:
        """Attributes of a start tag."""
        found: dict[str, str] = {}
        for each in ATTRIBUTE.finditer(self.bytes, tag.start(3), tag.end(3)) if tag[3] else ():
            name, value = self.decode(each[1]), self.value(each[2][1:-1])
            if name in found:
                raise self.malformed(f"<{self.decode(tag[2])}> has two attributes {name!r}")
            found[name] = value
        return found

    def value(self, raw: bytes) -> str:
        """Value of an attribute; white space is a space, but for line breaks inside numbers."""
        text = self.decode(raw)
        if "\n" in text or "\t" in text or "\r" in text:
            text = text.replace("\r\n", "\n")
            if not self.mujoco and not _NUMBERS.fullmatch(text):
                text = re.sub(r"[\t\n\r]", " ", text)
        return _REFERENCE.sub(_character, text) if "&" in text else text

    def add_text(self, opened: list[Element], start: int, stop: int) -> None:
        """Add text to an element; outside the root there is none."""
        raw = self.bytes[start:stop]
        if opened[-1] is not self.document:
            text = self.decode(raw)
            opened[-1].text += _REFERENCE.sub(_character, text) if "&" in text else text
        elif raw.strip() and not self.mujoco:
            self.line += self.bytes.count(b"\n", self.counted, stop - len(raw.lstrip()))
            raise self.malformed("there is text outside the root element")

    def decode(self, raw: bytes) -> str:
        try:
            text = raw.decode(self.encoding)
        except (LookupError, ValueError) as error:
            raise self.malformed(f"the text is not in the encoding {self.encoding!r}") from error
        if "\0" in text:
            raise self.malformed("there is a character of number zero")
        return text

    def excerpt(self, start: int) -> str:
        """The first characters of a token, for messages."""
        line = self.bytes[start : start + EXCERPT_LENGTH].split(b"\n")[0]
        return repr(line.decode(errors="replace").replace("\0", ""))

    def malformed(self, what: str) -> RobotFileError:
        """The error for text that is not XML, at the current line."""
        return RobotFileError(
            f"malformed XML: {what} (line {self.line}).",
            "The rest of the file cannot be parsed.",
            "Correct the file there; a command to check it is "
            'python -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" FILE',
        )


def _character(reference: re.Match[str]) -> str:
    """The character of a reference; an invalid one is left as it is."""
    decimal, hexadecimal, name = reference.groups()
    if name:
        return _CHARACTERS[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else reference[0]
