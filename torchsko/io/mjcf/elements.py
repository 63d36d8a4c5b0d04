"""Text of XML elements of new MJCF files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import quoteattr


def element(tag: str, attributes: Mapping[str, str], content: Sequence[str] = ()) -> str:
    """An element with its attributes, and other elements inside of it."""
    text = "".join(f" {key}={quoteattr(value)}" for key, value in attributes.items())
    return f"<{tag}{text}>{''.join(content)}</{tag}>" if content else f"<{tag}{text}/>"


def section(tag: str, lines: Sequence[str]) -> list[str]:
    """Indented lines of an element of the root; none without lines."""
    return [f"  <{tag}>", *(f"    {line}" for line in lines), f"  </{tag}>"] if lines else []
