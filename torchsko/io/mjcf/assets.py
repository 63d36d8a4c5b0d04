"""Files to which an MJCF file refers: meshes, textures and included files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from torchsko.errors import RobotFileError
from torchsko.io.common.file_access import is_near
from torchsko.io.mjcf.sanitize import FOLDER_ATTRIBUTES, PATH_ATTRIBUTES
from torchsko.io.xml.reader import Element, read_document

FILE_ATTRIBUTES = tuple(x for x in PATH_ATTRIBUTES if x not in FOLDER_ATTRIBUTES)
"""Attributes with the path of a file."""


def asset_paths(file: Path) -> set[Path]:
    """Paths, relative to the file's folder, of existing files in that folder to which an MJCF file refers.

    References in included and attached files count too.
    """
    folders, names, pending, visited = {Path()}, set[str](), [file], set[Path]()
    while pending:
        visited.add(current := pending.pop())
        folder_of_current = current.parent.relative_to(file.parent)
        folders.add(folder_of_current)
        for element in read_document(current, mujoco=True).root.walk():
            attributes = element.attributes
            subfolders = [attributes[x] for x in FOLDER_ATTRIBUTES if x in attributes]
            folders |= {folder / x for folder in (Path(), folder_of_current) for x in subfolders}
            paths = [attributes[x] for x in FILE_ATTRIBUTES if x in attributes]
            names |= {*paths, *(Path(x).name for x in paths)}
            if element.tag in ("include", "model"):
                parts = [
                    folder / x
                    for folder in (file.parent, current.parent)
                    for x in paths
                    if _inside(x)
                ]
                pending += [x for x in parts if x.is_file() and x not in visited]
    candidates = {folder / name for folder in folders for name in names}
    return {x for x in candidates if _inside(x) and (file.parent / x).is_file()}


def unreachable_paths(
    root: Element, old: Path, new: Path
) -> Iterator[tuple[Element, dict[str, str]]]:
    """Elements with relative paths that leave the file's folder and are invalid in another one.

    Args:
        root: root element of the file.
        old: folder of the file.
        new: the other folder.

    Yields:
        The element, and paths by attribute: relative if the new file may use them, else absolute.
    """
    elements = list(root.walk())
    subfolders = [e.attributes[x] for e in elements for x in FOLDER_ATTRIBUTES if x in e.attributes]
    for element in elements:
        changed = {}
        for name in PATH_ATTRIBUTES:
            path = element.attributes.get(name)
            if path is None or Path(path).is_absolute() or _inside(path):
                continue
            # Meshes are searched in the folder given in <compiler>.
            searched = ("", *(() if name in FOLDER_ATTRIBUTES else subfolders))
            from_old, from_new = (
                {(folder / x / path).resolve() for x in searched if (folder / x / path).exists()}
                for folder in (old, new)
            )
            if len(from_old) == 1 and from_old != from_new:
                target = from_old.pop()
                relative = os.path.relpath(target, new.resolve())
                near = is_near(str(new / relative), str(new), is_folder=name in FOLDER_ATTRIBUTES)
                if (
                    near and len(searched) == 1
                ):  # a relative path counts from the folder in <compiler>
                    target = Path(relative)
                changed[name] = escape(target.as_posix(), {'"': "&quot;"})
        if changed:
            yield element, changed


def _inside(path: str | Path) -> bool:
    """True for a relative path without ``..``."""
    path = Path(path)
    return not path.is_absolute() and ".." not in path.parts


def copy_assets(file: Path, folder: Path) -> None:
    """Copy the files to which an MJCF file refers into another folder; existing files are not replaced.

    Raises:
        RobotFileError: if a file cannot be copied.
    """
    try:
        for part in sorted(asset_paths(file)):
            if not (folder / part).exists():
                (folder / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.parent / part, folder / part)
    except OSError as error:
        raise RobotFileError(
            f"files of {file.name} cannot be copied to {folder}: {error.strerror or error}.",
            "The robot needs its meshes and included files beside it.",
            "Free space on the disk, or save into the folder of the old file.",
        ) from error
