"""Files that an MJCF file refers to: meshes, textures, included files. They go where it goes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from torchsko.errors import RobotFileError
from torchsko.io.mjcf.sanitize import FOLDERS, PATHS
from torchsko.io.xml.reader import Element, read_document

FILES = tuple(x for x in PATHS if x not in FOLDERS)
"""Attributes that name a file; of a box of textures each side is one."""


def parts_of(file: Path) -> set[Path]:
    """Paths of the files that an MJCF file and those that it includes or attaches refer to.

    They are relative to its folder. Files that are not there, or lie outside of the folder, are left out.
    """
    folders, names, todo, seen = {Path()}, set[str](), [file], set[Path]()
    while todo:
        seen.add(now := todo.pop())
        beside = now.parent.relative_to(file.parent)
        folders.add(beside)
        for element in read_document(now).root.walk():
            named = [element.attributes[x] for x in FOLDERS if x in element.attributes]
            folders |= {folder / x for folder in (Path(), beside) for x in named}
            here = [element.attributes[x] for x in FILES if x in element.attributes]
            names |= {*here, *(Path(x).name for x in here)}
            if element.tag in ("include", "model"):
                inner = [
                    folder / x for folder in (file.parent, now.parent) for x in here if _inside(x)
                ]
                todo += [x for x in inner if x.is_file() and x not in seen]
    paths = {folder / name for folder in folders for name in names}
    return {x for x in paths if _inside(x) and (file.parent / x).is_file()}


def elsewhere(root: Element, old: Path, new: Path) -> Iterator[tuple[Element, dict[str, str]]]:
    """Elements of an MJCF file that name what is not found from another folder, and these paths in full.

    Only paths that leave its folder: what lies in it goes with the file.

    Args:
        root: of the file.
        old: folder of the file.
        new: the other folder.
    """
    every = list(root.walk())
    named = [e.attributes[x] for e in every for x in FOLDERS if x in e.attributes]
    for element in every:
        full = {}
        for name in PATHS:
            path = element.attributes.get(name)
            if path is None or Path(path).is_absolute() or _inside(path):
                continue
            # Meshes are looked for in the folder that the compiler names.
            ways = [Path(x) / path for x in ("", *(() if name in FOLDERS else named))]
            there, here = (
                {(folder / way).resolve() for way in ways if (folder / way).exists()}
                for folder in (old, new)
            )
            if len(there) == 1 and there != here:
                full[name] = escape(there.pop().as_posix(), {'"': "&quot;"})
        if full:
            yield element, full


def _inside(path: str | Path) -> bool:
    """Whether a path stays in its folder, as written."""
    path = Path(path)
    return not path.is_absolute() and ".." not in path.parts


def bring_parts(file: Path, folder: Path) -> None:
    """Copy what an MJCF file refers to into another folder, where it is not there yet.

    Raises:
        RobotFileError: when it cannot be copied.
    """
    try:
        for part in sorted(parts_of(file)):
            if not (folder / part).exists():
                (folder / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.parent / part, folder / part)
    except OSError as error:
        raise RobotFileError(
            f"{folder}: {file.name} refers to files that cannot be copied there: "
            f"{error.strerror or error}.",
            "A robot is read with its meshes and included files beside it.",
            "Make room, or save into the folder of the old file.",
        ) from error
