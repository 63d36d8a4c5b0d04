"""A file in MJCF, looked through before MuJoCo's parser reads what it names.

MuJoCo reads files that a model names: other parts of it, models that it attaches, meshes, textures. A robot
file is untrusted, so every XML file that it leads to is looked through: no path may be absolute or leave the
folder of the file, by dots or by a symbolic link, but for folders that the user trusts, and no element may be
copied without bound.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from torchsko.errors import RobotFileError
from torchsko.io.mjcf.size_limits import refuse_large
from torchsko.io.xml.reader import Element, is_xml_text, read_xml

MOST_COPIES = 10_000
"""Of one element, by all that replicates it."""

MOST_ELEMENTS = 200_000
"""Of a file, what it includes and what it attaches."""

MOST_NESTED = 20
"""Models that are attached inside one another."""

MOST_FOLDERS = 16
"""That a model names for its meshes and textures."""

PATHS = ("file", "filename", "meshdir", "texturedir", "assetdir", "fileright", "fileleft", "fileup",
         "filedown", "filefront", "fileback")  # fmt: skip
"""Attributes that name files or folders."""

FOLDERS = ("meshdir", "texturedir", "assetdir")
"""Those of them that other paths are looked for in."""

COPYING = ("replicate", "composite", "flexcomp")
"""Elements whose count says how often something stands in the model."""


def look_through(
    source: str | os.PathLike[str], trusted: Sequence[str | os.PathLike[str]] = ()
) -> None:
    """Refuse a file, or text, that reaches out of its folder, or copies itself without bound.

    Args:
        source: path, or XML text; files that a text names are looked for in the working directory.
        trusted: folders that it may reach besides its own.

    Raises:
        RobotFileError: names the element, and the file where that is another.
    """
    others = tuple(os.path.realpath(folder) for folder in trusted)
    if is_xml_text(source):
        homes = (os.path.realpath("."), *others)
        _Model("", homes, {}, (), bool(others)).size(read_xml(source), "")
        return
    path = os.fspath(source)
    folder = os.path.dirname(path)
    # A file that is a link itself has two folders, both chosen by who loads it.
    homes = (os.path.realpath(folder), os.path.dirname(os.path.realpath(path)))
    _Model(folder, (*homes, *others), {}, (), bool(others)).size(read_xml(source), "")


@dataclass(frozen=True)
class _Size:
    """How many elements stand in a model, how often the most frequent does, and the model's name."""

    elements: int
    copies: int
    name: str


@dataclass(frozen=True)
class _Spot:
    """An element that may stand in a model often, and where it is written.

    Attributes:
        element: the element.
        copies: how often it stands in the model.
        folder: of its file.
        said: that file, in words; empty for the first.
    """

    element: Element
    copies: int
    folder: str
    said: str

    def __str__(self) -> str:
        return f"line {self.element.line}{self.said}"


@dataclass
class _Model:
    """One model: a file and what it includes.

    Attributes:
        folder: of the file.
        homes: folders that nothing may leave, without links.
        known: sizes of the models read so far, by path without links.
        above: paths of the models that this one is attached in, its own last.
        trusting: whether some of the homes were named by the user; paths that lead there are allowed then.
    """

    folder: str
    homes: tuple[str, ...]
    known: dict[str, _Size]
    above: tuple[str, ...]
    trusting: bool = False
    elements: int = 0
    copies: int = 0
    included: set[str] = field(default_factory=set)
    models: dict[str, list[_Size]] = field(default_factory=dict)
    attached: list[_Spot] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    files: list[tuple[_Spot, str]] = field(default_factory=list)

    def size(self, root: Element, said: str) -> _Size:
        """Look through the model whose outermost element this is."""
        pending = [_Spot(root, 1, self.folder, said)]
        while pending:
            spot = pending.pop()
            element, copies = spot.element, spot.copies
            if element.tag in COPYING:
                copies *= _count(element)
            self.add(spot, copies, 1)
            refuse_large(element, str(spot))
            self.note_paths(spot)
            if element.tag == "include":
                pending += self.include(spot)
            elif element.tag == "model":
                self.read_model(spot)
            elif element.tag == "attach":
                self.attached.append(spot)
            pending += [_Spot(c, copies, spot.folder, spot.said) for c in element.children]
        every = [size for sizes in self.models.values() for size in sizes]
        for spot in self.attached:  # of a name that is not there, the largest
            for size in self.models.get(spot.element.attributes.get("model", ""), every):
                self.add(spot, spot.copies * size.copies, spot.copies * size.elements)
        self.check_links()
        return _Size(self.elements, self.copies, root.attributes.get("model", ""))

    def add(self, spot: _Spot, copies: int, elements: int) -> None:
        """Count elements that stand at a spot, the most frequent of them so often."""
        elements = max(elements, copies)
        self.elements, self.copies = self.elements + elements, max(self.copies, copies)
        if copies > MOST_COPIES or self.elements > MOST_ELEMENTS:
            raise RobotFileError(
                f"{spot}: <{spot.element.tag}> would stand in the model more than "
                f"{MOST_COPIES if copies > MOST_COPIES else MOST_ELEMENTS} times, or what it copies would.",
                "A robot has thousands of parts at most.",
                "Check the counts of <replicate> and <attach>, and the size of the file.",
            )

    def note_paths(self, spot: _Spot) -> None:
        """Refuse paths that are not within the folder as written, and keep the others."""
        for name in PATHS:
            if path := spot.element.attributes.get(name):
                if _leaves(path) and not self.trusting:
                    raise _outside(spot, name, path, "", self.around(path))
                self.files.append((spot, name))
                if name in FOLDERS:
                    self.folders.add(path)

    def include(self, spot: _Spot) -> list[_Spot]:
        """The outermost elements of what is included."""
        name = spot.element.attributes.get("file", "")
        found = self.candidates(spot, name)
        fresh = [path for path in found if os.path.realpath(path) not in self.included]
        if found and not fresh:
            raise RobotFileError(
                f"{spot}: {os.path.basename(name)!r} is included twice.",
                "MuJoCo takes every file once.",
                "Leave one of them out.",
            )
        self.included |= {os.path.realpath(path) for path in fresh}
        return [
            _Spot(self.read(spot, path), spot.copies, os.path.dirname(path), _of(name))
            for path in fresh or [os.path.join(self.folder, name)]
        ]

    def read_model(self, spot: _Spot) -> None:
        """Look through a model that may be attached."""
        name = spot.element.attributes.get("file", "")
        if not name:  # MuJoCo fails on it, and the next file that it reads waits for ever
            raise RobotFileError(
                f"{spot}: <model> names no file.",
                "A model that is attached is another file.",
                'Write <model name="..." file="..."/>.',
            )
        for path in self.candidates(spot, name) or [os.path.join(self.folder, name)]:
            real = os.path.realpath(path)
            if real in self.above or len(self.above) >= MOST_NESTED:
                raise RobotFileError(
                    f"{spot}: the model {name!r} holds itself, or is one of more than {MOST_NESTED} inside "
                    "one another.",
                    "No robot needs that.",
                    "Attach fewer models inside of others.",
                )
            if real not in self.known:
                above = (*self.above, real)
                folder = os.path.dirname(path)
                inner = _Model(folder, self.homes, self.known, above, self.trusting)
                self.known[real] = inner.size(self.read(spot, path), _of(name))
            size = self.known[real]
            self.models.setdefault(spot.element.attributes.get("name") or size.name, []).append(
                size
            )

    def read(self, spot: _Spot, path: str) -> Element:
        """The outermost element of another file, which is named in what is wrong with it."""
        self.check_link(spot, "file", path)
        try:
            return read_xml(path)
        except RobotFileError as error:
            name = spot.element.attributes.get("file", "")
            raise RobotFileError(f"{spot}: <{spot.element.tag}> of {name!r}: {error}") from error

    def ways(self, spot: _Spot, name: str, folder: str = "") -> list[str]:
        """The paths that MuJoCo may take a name for."""
        join = os.path.join
        found = (
            join(self.folder, folder, name),
            join(spot.folder, folder, name),
            join(self.folder, folder, spot.folder, name),
        )
        # MuJoCo takes "a/.." for nothing, whether or not there is an "a".
        return list(dict.fromkeys(x for way in found for x in (way, os.path.normpath(way))))

    def candidates(self, spot: _Spot, name: str, folder: str = "") -> list[str]:
        """What there is of these."""
        return [way for way in self.ways(spot, name, folder) if os.path.lexists(way)]

    def check_links(self) -> None:
        """Refuse meshes, textures and folders that lie elsewhere by a symbolic link."""
        if len(self.folders) > MOST_FOLDERS:
            raise RobotFileError(
                f"a model names {len(self.folders)} folders of meshes and textures.",
                f"One of each kind is enough, and {MOST_FOLDERS} are the most that are read.",
                "Name one for all of them.",
            )
        for spot, name in self.files:
            path = spot.element.attributes[name]
            ways: list[str] = []
            for folder in ("", *self.folders):
                ways += self.ways(spot, path, folder)
                for part in {path, os.path.basename(path)}:  # as <compiler strippath> takes it
                    for found in self.candidates(spot, part, folder):
                        self.check_link(spot, name, found)
            if _leaves(path) and not any(self.within(way) for way in ways):
                raise _outside(spot, name, path, "", self.around(path))

    def check_link(self, spot: _Spot, name: str, path: str) -> None:
        """Refuse what is not within the folder once links are followed."""
        if not self.within(path):
            really = os.path.realpath(path)
            written = spot.element.attributes[name]
            raise _outside(spot, name, written, f": it is {really!r}", self.around(really))

    def within(self, path: str) -> bool:
        """Whether a path is in one of the homes once links are followed."""
        real = os.path.realpath(path)
        return any(real == home or real.startswith(os.path.join(home, "")) for home in self.homes)

    def around(self, path: str) -> str:
        """The folder to trust for a path: the nearest that holds it and the file, if that is not all."""
        real = os.path.realpath(os.path.join(self.folder, path.replace("\\", "/")))
        shared = os.path.commonpath([self.homes[0], real])
        return os.path.dirname(real) if shared == os.path.dirname(shared) else shared


def _of(file: str) -> str:
    return f" of {file!r}"


def _count(element: Element) -> int:
    """The product of all counts."""
    product = 1
    for word in element.attributes.get("count", "1").split():
        try:
            product *= max(1, int(float(word)))
        except (ValueError, OverflowError):
            return MOST_COPIES + 1
    return product


def _leaves(path: str) -> bool:
    parts = PurePosixPath(path.replace("\\", "/"))
    drive = ":" in path.split("/")[0].split("\\")[0]
    return parts.is_absolute() or ".." in parts.parts or drive


def _outside(spot: _Spot, name: str, path: str, really: str, folder: str) -> RobotFileError:
    return RobotFileError(
        f"{spot}: {name} {path!r} of <{spot.element.tag}> leaves the folder of the file{really}.",
        "A robot file is not trusted with other folders.",
        "Put what it needs beside it, or, where you trust it, load it with "
        f"mesh_path=[{folder!r}] (--mesh-path).",
    )
