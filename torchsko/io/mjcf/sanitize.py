"""Security checks of an MJCF file before MuJoCo parses it.

MuJoCo opens all files to which a model refers: included and attached models, meshes and textures. A robot
file is untrusted, so all its XML files are checked. With symbolic links resolved, paths must stay in the
folder of the file or in folders that the user trusts, or lead to a permitted file at most three folders above
(`torchsko.io.common.file_access`). Sizes and numbers of copies are bounded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from torchsko.errors import RobotFileError
from torchsko.io.common.file_access import is_near
from torchsko.io.xml.reader import Element, is_xml_text, read_document

MAX_COPIES = 10_000
"""Largest number of copies of an element."""

MAX_ELEMENTS = 200_000
"""Largest number of elements of a model with its copies, included and attached files."""

MAX_NESTING = 20
"""Largest nesting of attached models."""

MAX_FOLDERS = 16
"""Largest number of folders for meshes and textures in a model, which bounds the search."""

MAX_PIXELS = 2**26
"""Largest size of an image or height field."""

MAX_ENTRIES = 100_000
"""Largest number of keyframes, and of user data in all."""

MAX_USER_NUMBERS = 1_000
"""Largest number of user data of each body, joint, geom and so on."""

_SIZE_LIMITS = (
    ("hfield", ("nrow", "ncol"), MAX_PIXELS),
    ("texture", ("width", "height"), MAX_PIXELS),
    ("user", ("dim",), MAX_ENTRIES),
    ("size", ("nkey",), MAX_ENTRIES),
    ("size", ("nuserdata",), MAX_ENTRIES),
    *(
        ("size", (f"nuser_{kind}",), MAX_USER_NUMBERS)
        for kind in ("body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor")
    ),
)
"""Largest product of attributes, by tag."""

PATH_ATTRIBUTES = (
    "file", "filename", "meshdir", "texturedir", "assetdir", "fileright", "fileleft", "fileup",
    "filedown", "filefront", "fileback",
)  # fmt: skip
"""Attributes with paths of files or folders."""

FOLDER_ATTRIBUTES = ("meshdir", "texturedir", "assetdir")
"""Attributes with folders in which other paths are searched."""

COPYING_TAGS = ("replicate", "composite", "flexcomp")
"""Elements with a count of copies."""


def check_mjcf(
    source: str | os.PathLike[str], trusted: Sequence[str | os.PathLike[str]] = ()
) -> None:
    """Refuse a file or text that refers to files outside its folder, or needs unbounded memory.

    Args:
        source: path, or XML text, whose relative paths refer to the working directory.
        trusted: further folders that it can use.

    Raises:
        RobotFileError: names the element and its file.
    """
    others = tuple(os.path.realpath(folder) for folder in trusted)
    if is_xml_text(source):
        homes = (os.path.realpath("."), *others)
        _Model("", ".", homes, {}, (), bool(others)).size(
            read_document(source, mujoco=True).root, ""
        )
        return
    path = os.fspath(source)
    folder = os.path.dirname(path)
    # If the file is a symbolic link, its folder and that of its target are both allowed.
    homes = (os.path.realpath(folder), os.path.dirname(os.path.realpath(path)))
    _Model(folder, folder or ".", (*homes, *others), {}, (), bool(others)).size(
        read_document(source, mujoco=True).root, ""
    )


@dataclass(frozen=True)
class _Size:
    """Number of elements of a model, largest number of copies of one of them, and name of the model."""

    elements: int
    copies: int
    name: str


@dataclass(frozen=True)
class _Spot:
    """An element and its number of copies in a model.

    Attributes:
        element: the element.
        copies: number of its copies.
        folder: folder of its file.
        file: name of its file for messages; empty for the main file.
    """

    element: Element
    copies: int
    folder: str
    file: str

    def __str__(self) -> str:
        return f"line {self.element.line}" + (f" of {self.file!r}" if self.file else "")


@dataclass
class _Model:
    """A model: a file with its included files.

    Attributes:
        folder: folder of the file.
        base: folder of the main file.
        homes: allowed folders, with links resolved.
        known: sizes of the models read so far, by resolved path.
        above: resolved paths of the models in which this one is nested, its own last.
        trusting: True if the user named allowed folders, so that paths may leave the file's folder.
    """

    folder: str
    base: str
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

    def size(self, root: Element, file: str) -> _Size:
        """Check all elements of the model, and count them.

        Args:
            root: root element of the model.
            file: name of its file for messages; empty for the main file.
        """
        pending = [_Spot(root, 1, self.folder, file)]
        while pending:
            spot = pending.pop()
            element, copies = spot.element, spot.copies
            if element.tag in COPYING_TAGS:
                for count in element.attributes.get("count", "1").split():
                    copies *= max(1, _integer(count, MAX_COPIES))
            self.add(spot, copies, 1)
            _check_sizes(spot)
            self.check_paths(spot)
            if element.tag == "include":
                pending += self.include(spot)
            elif element.tag == "model":
                self.read_model(spot)
            elif element.tag == "attach":
                self.attached.append(spot)
            pending += [_Spot(c, copies, spot.folder, spot.file) for c in element.children]
        all_sizes = [size for sizes in self.models.values() for size in sizes]
        for spot in self.attached:  # an unknown name counts as the largest model
            for size in self.models.get(spot.element.attributes.get("model", ""), all_sizes):
                self.add(spot, spot.copies * size.copies, spot.copies * size.elements)
        self.check_links()
        return _Size(self.elements, self.copies, root.attributes.get("model", ""))

    def add(self, spot: _Spot, copies: int, elements: int) -> None:
        """Add to the number of elements, and check the limits."""
        elements = max(elements, copies)
        self.elements, self.copies = self.elements + elements, max(self.copies, copies)
        if copies > MAX_COPIES or self.elements > MAX_ELEMENTS:
            limit = MAX_COPIES if copies > MAX_COPIES else MAX_ELEMENTS
            raise RobotFileError(
                f"{spot}: <{spot.element.tag}> or its content would be copied more than {limit} times.",
                "Robots have at most thousands of parts.",
                "Check the counts of <replicate> and <attach>, and the size of the file.",
            )

    def check_paths(self, spot: _Spot) -> None:
        """Refuse paths that leave the folder as written, and collect the others for `check_links`."""
        for name in PATH_ATTRIBUTES:
            if path := spot.element.attributes.get(name):
                if _is_absolute(path) and not self.trusting:
                    raise _outside(spot, name, path, "", self.folder_to_trust(path))
                self.files.append((spot, name))
                if name in FOLDER_ATTRIBUTES:
                    self.folders.add(path)

    def include(self, spot: _Spot) -> list[_Spot]:
        """Root elements of included files."""
        name = spot.element.attributes.get("file", "")
        found = self.existing(spot, name)
        new = [path for path in found if os.path.realpath(path) not in self.included]
        if found and not new:
            raise RobotFileError(
                f"{spot}: {os.path.basename(name)!r} is included twice.",
                "MuJoCo includes a file at most once.",
                "Delete one of the <include> elements.",
            )
        self.included |= {os.path.realpath(path) for path in new}
        return [
            _Spot(self.read(spot, path), spot.copies, os.path.dirname(path), name)
            for path in new or [os.path.join(self.folder, name)]
        ]

    def read_model(self, spot: _Spot) -> None:
        """Check a model that may be attached."""
        name = spot.element.attributes.get("file", "")
        if not name:  # MuJoCo fails, and then hangs on the next file
            raise RobotFileError(
                f"{spot}: <model> has no file.", advice='Write <model name="..." file="..."/>.'
            )
        for path in self.existing(spot, name) or [os.path.join(self.folder, name)]:
            real = os.path.realpath(path)
            if real in self.above or len(self.above) >= MAX_NESTING:
                raise RobotFileError(
                    f"{spot}: the model {name!r} contains itself, or is nested more than {MAX_NESTING} deep.",
                    "Robot files have far fewer levels.",
                    "Reduce the nesting of attached models.",
                )
            if real not in self.known:
                above = (*self.above, real)
                folder = os.path.dirname(path)
                nested = _Model(folder, self.base, self.homes, self.known, above, self.trusting)
                self.known[real] = nested.size(self.read(spot, path), name)
            size = self.known[real]
            model_name = spot.element.attributes.get("name") or size.name
            self.models.setdefault(model_name, []).append(size)

    def read(self, spot: _Spot, path: str) -> Element:
        """Root element of another file, whose name is added to errors."""
        self.check_link(spot, "file", path)
        try:
            return read_document(path, mujoco=True).root
        except RobotFileError as error:
            name = spot.element.attributes.get("file", "")
            raise error.located(f"{spot}: <{spot.element.tag}> of {name!r}") from error

    def candidates(self, spot: _Spot, name: str, folder: str = "") -> list[str]:
        """Paths at which MuJoCo may look for a file."""
        join = os.path.join
        paths = (
            join(self.folder, folder, name),
            join(spot.folder, folder, name),
            join(self.folder, folder, spot.folder, name),
        )
        # MuJoCo removes "a/.." even if "a" does not exist.
        return list(dict.fromkeys(x for path in paths for x in (path, os.path.normpath(path))))

    def existing(self, spot: _Spot, name: str, folder: str = "") -> list[str]:
        """Candidates that exist."""
        return [path for path in self.candidates(spot, name, folder) if os.path.lexists(path)]

    def check_links(self) -> None:
        """Refuse meshes, textures and folders outside the allowed folders, with links resolved."""
        if len(self.folders) > MAX_FOLDERS:
            raise RobotFileError(
                f"a model has {len(self.folders)} folders of meshes and textures.",
                f"At most {MAX_FOLDERS} are supported.",
                "Use one folder for all of them.",
            )
        for spot, name in self.files:
            path = spot.element.attributes[name]
            candidates: list[str] = []
            for folder in ("", *self.folders):
                candidates += self.candidates(spot, path, folder)
                for part in {path, os.path.basename(path)}:  # the latter for <compiler strippath>
                    for found in self.existing(spot, part, folder):
                        self.check_link(spot, name, found)
            if _leaves(path) and not any(self.is_allowed(spot, name, x) for x in candidates):
                raise _outside(spot, name, path, "", self.folder_to_trust(path))

    def check_link(self, spot: _Spot, name: str, path: str) -> None:
        """Refuse a path outside the allowed folders, with links resolved."""
        if not self.is_allowed(spot, name, path):
            real = os.path.realpath(path)
            written = spot.element.attributes[name]
            raise _outside(spot, name, written, f": it is {real!r}", self.folder_to_trust(real))

    def is_allowed(self, spot: _Spot, name: str, path: str) -> bool:
        """True if a path lies in an allowed folder, with links resolved, or is relative and near the file."""
        real = os.path.realpath(path)
        inside = any(real == home or real.startswith(os.path.join(home, "")) for home in self.homes)
        if inside or _is_absolute(spot.element.attributes[name]):
            return inside
        return is_near(path, self.base, is_folder=name in FOLDER_ATTRIBUTES)

    def folder_to_trust(self, path: str) -> str:
        """The nearest folder with the path and the file; that of the path if this is the root folder."""
        real = os.path.realpath(os.path.join(self.folder, path.replace("\\", "/")))
        shared = os.path.commonpath([self.homes[0], real])
        return os.path.dirname(real) if shared == os.path.dirname(shared) else shared


def _check_sizes(spot: _Spot) -> None:
    """Refuse an element with a size for which MuJoCo would allocate too much memory."""
    attributes = spot.element.attributes
    for tag, names, limit in _SIZE_LIMITS:
        if spot.element.tag != tag:
            continue
        values = [attributes[name] for name in names if name in attributes]
        product = 1
        for value in values:
            product *= max(1, _integer(value, limit))
        if product > limit:
            raise RobotFileError(
                f"{spot}: <{tag}> has {' and '.join(names)} {' and '.join(values)}.",
                f"The largest supported size is {limit}, to bound the memory that MuJoCo allocates.",
                f"Set {' and '.join(names)} to the size of the data.",
            )


def _integer(text: str, limit: int) -> int:
    """An integer; more than the limit if the text is invalid."""
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return limit + 1


def _leaves(path: str) -> bool:
    """True for a path that is absolute or contains ``..``."""
    return _is_absolute(path) or ".." in PurePosixPath(path).parts


def _is_absolute(path: str) -> bool:
    """True for a path that is absolute, has a drive, or leads up by backslashes."""
    parts = PurePosixPath(path.replace("\\", "/"))
    drive = ":" in path.split("/")[0].split("\\")[0]
    return parts.is_absolute() or drive or ("\\" in path and ".." in parts.parts)


def _outside(spot: _Spot, name: str, path: str, target: str, folder: str) -> RobotFileError:
    return RobotFileError(
        f"{spot}: {name} {path!r} of <{spot.element.tag}> lies outside the folder of the file{target}.",
        "For security, a robot file can use its own folder, and up to three folders above it regular files "
        "of known formats by relative paths.",
        f"Move the file there, or, if you trust it, pass mesh_path=[{folder!r}] (--mesh-path).",
    )
