"""The MJCF reader: a file, made safe to hand to MuJoCo's parser, to a compiled model.

MuJoCo reads files that a model names: other parts of it, meshes, textures. A robot file is untrusted, so it
is looked through first, and so is what it includes: no path may be absolute or leave the folder of the file,
no element may be copied without bound, and nothing may be declared that expands.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Any

from torchsko.errors import RobotFileError
from torchsko.extras import require
from torchsko.io._xml import Element, is_xml_text, read_xml, root_tag

MOST_COPIES = 10_000
"""Of one element, by all that replicates it."""

MOST_ELEMENTS = 200_000
"""Of a file and what it includes."""

PATHS = ("file", "meshdir", "texturedir", "assetdir", "fileright", "fileleft", "fileup", "filedown",
         "filefront", "fileback")  # fmt: skip
"""Attributes that name files or folders."""


def is_mjcf(source: str | os.PathLike[str]) -> bool:
    """Whether a source is for MuJoCo's parser: a compiled model, or XML whose root says so."""
    if not is_xml_text(source) and Path(source).suffix == ".mjb":
        return True
    if not is_xml_text(source) and Path(source).suffix not in (".xml", ".mjcf"):
        return False
    return root_tag(source) == "mujoco"


def read_mjcf(source: str | os.PathLike[str]) -> Any:
    """Compile a file in MJCF, or text, or read a compiled model (``.mjb``).

    Args:
        source: path, or XML text.

    Returns:
        ``mujoco.MjModel``.

    Raises:
        RobotFileError: the file is not readable, reaches out of its folder, copies itself without bound, or
            MuJoCo refuses it; says which.
        MissingExtraError: MuJoCo is not installed.
    """
    text = is_xml_text(source)
    if text:
        _look_through(read_xml(source), None, set(), [0])
    elif Path(source).suffix != ".mjb":
        _look_through(read_xml(source), Path(source).resolve().parent, set(), [0])
    mujoco = require("mujoco", "mjcf")
    try:
        if text:
            return mujoco.MjModel.from_xml_string(str(source).lstrip("\ufeff \t\r\n"))
        if Path(source).suffix == ".mjb":
            return mujoco.MjModel.from_binary_path(os.fspath(source))
        return mujoco.MjModel.from_xml_path(os.fspath(source))
    except (ValueError, OSError, mujoco.FatalError) as error:
        where = "the text" if text else os.fspath(source)
        raise RobotFileError(
            f"{where}: MuJoCo does not compile it: {error}.\n"
            "MJCF is read by MuJoCo's own parser.\n"
            "Correct the file until mujoco.MjModel.from_xml_path takes it."
        ) from error


def _look_through(root: Element, folder: Path | None, seen: set[Path], count: list[int]) -> None:
    """Refuse what reaches out of the folder, or has no bound; follow what is included."""
    pending = [(root, 1)]
    while pending:
        element, copies = pending.pop()
        if element.tag == "replicate":
            copies *= _whole(element)
        count[0] += copies
        if copies > MOST_COPIES or count[0] > MOST_ELEMENTS:
            raise RobotFileError(
                f"line {element.line}: <{element.tag}> would stand in the model more than "
                f"{MOST_COPIES if copies > MOST_COPIES else MOST_ELEMENTS} times.\n"
                "A robot has thousands of parts at most.\n"
                "Check the counts of <replicate> and the size of the file."
            )
        for name in PATHS:
            if path := element.attributes.get(name):
                _refuse_outside(element, name, path)
        if element.tag == "include" and folder is not None:
            _include(element, folder, seen, count)
        pending += [(child, copies) for child in element.children]


def _whole(element: Element) -> int:
    try:
        return max(1, int(float(element.attributes.get("count", "1"))))
    except (ValueError, OverflowError):
        return MOST_COPIES + 1


def _refuse_outside(element: Element, name: str, path: str) -> None:
    parts = PurePosixPath(path.replace("\\", "/"))
    drive = ":" in path.split("/")[0].split("\\")[0]
    if parts.is_absolute() or ".." in parts.parts or drive:
        raise RobotFileError(
            f"line {element.line}: {name} {path!r} of <{element.tag}> leaves the folder of the file.\n"
            "A robot file is not trusted with other folders.\n"
            "Put what it needs beside it, or, where you trust it: "
            "torchsko.from_mujoco(mujoco.MjModel.from_xml_path(...))."
        )


def _include(element: Element, folder: Path, seen: set[Path], count: list[int]) -> None:
    path = folder / element.attributes.get("file", "")
    if path in seen:
        raise RobotFileError(
            f"line {element.line}: {path.name!r} is included twice.\n"
            "MuJoCo takes every file once.\nLeave one of them out."
        )
    seen.add(path)
    _look_through(read_xml(path), folder, seen, count)
