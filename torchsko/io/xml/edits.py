"""Edits of an XML file that leave all other bytes unchanged."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from torchsko.errors import RobotFileError
from torchsko.io.xml.reader import ATTRIBUTE, START_TAG, Document, Element


@dataclass
class Edits:
    """Pending edits of a document; `result` applies them.

    Attributes:
        document: the parsed document.
        cuts: replacements: start and end byte, and the new bytes.
        inside: new elements, by the start byte of their parent, grouped by the new elements around them.
    """

    document: Document
    cuts: list[tuple[int, int, bytes]] = field(default_factory=list)
    inside: dict[int, tuple[Element, dict[tuple[str, ...], list[str]]]] = field(
        default_factory=dict
    )

    def set(self, element: Element, values: dict[str, str]) -> None:
        """Set or add attributes.

        Raises:
            RobotFileError: if the start tag is not found in the bytes, as in UTF-16.
        """
        tag = self._start_tag(element)
        spans = self._attributes(tag)
        for name, value in values.items():
            if name in spans:
                start, end = spans[name][1]
                self.cuts.append((start, end, value.encode()))
        new = "".join(f' {name}="{value}"' for name, value in values.items() if name not in spans)
        if new:
            at = tag.end(3)
            self.cuts.append((at, at, new.encode()))

    def drop(self, element: Element, names: Iterable[str]) -> None:
        """Remove attributes, with the white space before them."""
        spans = self._attributes(self._start_tag(element))
        self.cuts += [(*spans[name][0], b"") for name in names if name in spans]

    def insert(self, element: Element, text: str, within: tuple[str, ...] = ()) -> None:
        """Insert a new element at the end of an element.

        Args:
            element: the parent.
            text: the new element.
            within: tags of new elements to put around it, from the outside. Insertions with the same parent
                and tags share them.
        """
        _, groups = self.inside.setdefault(element.start, (element, {}))
        groups.setdefault(within, []).append(text)

    def result(self) -> bytes:
        """The bytes of the edited document."""
        data = self.document.data
        for start, end, new in sorted([*self.cuts, *self._insertions()], reverse=True):
            data = data[:start] + new + data[end:]
        return data

    def _insertions(self) -> list[tuple[int, int, bytes]]:
        cuts = []
        for element, groups in self.inside.values():
            indent = self._indent(element)
            texts = [_nested(within, texts) for within, texts in groups.items()]
            lines = "".join(f"  {text}\n{indent}" for text in texts)
            tag = self._start_tag(element)
            if tag[6]:  # <a/> becomes <a>...</a>
                text = f">\n{indent}{lines}</{element.tag}>"
                cuts.append((tag.start(6), tag.end(), text.encode()))
            else:
                at = element.stop
                cuts.append((at, at, lines.encode()))
        return cuts

    def _start_tag(self, element: Element) -> re.Match[bytes]:
        tag = START_TAG.match(self.document.data, element.start)
        if tag is None:
            raise RobotFileError(
                f"line {element.line}: <{element.tag}> was not found in the bytes of the file.",
                "Only files in ASCII or UTF-8 can be edited.",
                "Convert the file to UTF-8.",
            )
        return tag

    def _attributes(
        self, tag: re.Match[bytes]
    ) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
        """For each attribute, the span of the attribute with the white space before it, and of its value."""
        return {
            m[1].decode(): (m.span(), (m.start(2) + 1, m.end(2) - 1))
            for m in ATTRIBUTE.finditer(self.document.data, tag.start(3), tag.end(3))
        }

    def _indent(self, element: Element) -> str:
        """Indentation of an element."""
        at = element.start
        line = self.document.data[self.document.data.rfind(b"\n", 0, at) + 1 : at]
        return line.decode() if not line.strip() else ""


def _nested(tags: tuple[str, ...], texts: list[str]) -> str:
    opened, closed = (
        "".join(form.format(tag) for tag in order)
        for form, order in (("<{}>", tags), ("</{}>", tags[::-1]))
    )
    return opened + "".join(texts) + closed


def words(values: Iterable[float]) -> str:
    """Numbers as the text of an attribute, with all digits."""
    return " ".join(repr(float(x)) for x in values)


def unique_name(name: str, taken: Collection[str]) -> str:
    """The name, with underscores appended until it is not taken."""
    while name in taken:
        name += "_"
    return name
