"""Checks of a robot's source: the path of a file, or the file's text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torchsko.errors import MechanismError, RobotFileError, TreeError
from torchsko.io.xml.reader import is_xml_text, root_tag

ARCHIVE_SIGNATURES = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""Formats of compressed files by their first bytes."""

FORMATS = {"mujoco": "mjcf", "sdf": "sdf"}
"""Formats by the name of the root element; the URDF reader handles all other names."""

MAX_PATH_LENGTH = 300
"""Characters of a path that a message shows."""

MUJOCO_OBJECTS = {"MjModel": "model", "MjSpec": "spec.compile()"}
"""Types of MuJoCo, with the expression to pass to `torchsko.from_mujoco`."""

MEANING = "A robot is loaded from the path of a file, or from its text, which begins with '<'."


def format_of(source: str | os.PathLike[str]) -> str:
    """The format of a source: "mjcf", "sdf" or "urdf".

    It follows from the root element; only compiled MuJoCo models are known by their ending, ``.mjb``.

    Raises:
        RobotFileError: if it is neither a path nor text, or the file is compressed.
    """
    check_source(source)
    if not is_xml_text(source) and os.fspath(source).lower().endswith(".mjb"):
        return "mjcf"
    return FORMATS.get(root_tag(source), "urdf")


def check_source(source: object) -> None:
    """Refuse a source that is neither a path nor text, and compressed files.

    Raises:
        RobotFileError: names the type of the source, and a valid one.
    """
    path = source if isinstance(source, str) else _path(source)
    if path is None:
        raise RobotFileError(
            f"the robot was given as {type(source).__name__}.", MEANING, _advice(source)
        )
    if is_xml_text(path):
        return
    if not path.strip():
        raise RobotFileError(
            "the robot was given as an empty string.",
            MEANING,
            "Pass the path, such as torchsko.robots.panda.",
        )
    kind = _compression(path)
    if kind is not None:
        raise RobotFileError(
            f"{path} is compressed ({kind}).",
            "Compressed files are not read.",
            "Decompress it, and pass the path of the robot file.",
        )


@contextmanager
def naming(source: str | os.PathLike[str]) -> Iterator[None]:
    """Prefix errors with the name of a file; text has none."""
    try:
        yield
    except (RobotFileError, MechanismError, TreeError) as error:
        if is_xml_text(source):
            raise
        path = os.fspath(source)
        short = path if len(path) <= MAX_PATH_LENGTH else path[:MAX_PATH_LENGTH] + "..."
        raise error.located(short if short.isprintable() else repr(short)) from error


def check_model(model: object) -> None:
    """Refuse an object that is not a compiled MuJoCo model.

    Raises:
        RobotFileError: names the type of the object, and a valid one.
    """
    if hasattr(model, "nbody"):
        return
    kind = type(model).__name__
    advice = "Pass the result of mujoco.MjModel.from_xml_path."
    if isinstance(model, str | os.PathLike):
        advice = "Pass it to torchsko.load, which compiles it."
    elif kind in MUJOCO_OBJECTS:
        advice = f"Pass {MUJOCO_OBJECTS[kind]}."
    raise RobotFileError(
        f"the model was given as {kind}.", "It has to be a compiled mujoco.MjModel.", advice
    )


def check_folders(mesh_path: object) -> None:
    """Refuse a mesh path that is not a list of paths.

    Raises:
        RobotFileError: gives a valid argument.
    """
    if isinstance(mesh_path, str | bytes | os.PathLike):
        path = os.fspath(mesh_path)
        raise RobotFileError(
            f"mesh_path is one path, {path!r}.",
            "It has to be a list of trusted folders.",
            f"Pass mesh_path=[{path!r}].",
        )
    folders = list(mesh_path) if isinstance(mesh_path, Iterable) else [mesh_path]
    invalid = [x for x in folders if not isinstance(x, str) and _path(x) is None]
    if invalid:
        raise RobotFileError(
            f"mesh_path has the entry {invalid[0]!r}, which is not a path.",
            "It has to be a list of trusted folders.",
            'Pass mesh_path=["folder", ...].',
        )


def _path(source: object) -> str | None:
    """The path of a path-like object; None for other objects and for paths in bytes."""
    path = os.fspath(source) if isinstance(source, os.PathLike) else None
    return path if isinstance(path, str) else None


def _compression(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            head = file.read(max(map(len, ARCHIVE_SIGNATURES)))
    except (OSError, ValueError):
        return None  # the reader raises the error
    return next(
        (kind for start, kind in ARCHIVE_SIGNATURES.items() if head.startswith(start)), None
    )


def _advice(source: object) -> str:
    """Advice for a source of another type."""
    kind = type(source).__name__
    if isinstance(source, bytes | bytearray):
        return "Pass its text, source.decode(), or the path as a str."
    if hasattr(source, "read"):
        return "Pass the path, or its text, file.read() (decoded if the file is opened in binary mode)."
    if kind in MUJOCO_OBJECTS:
        return f"Pass it to torchsko.from_mujoco({MUJOCO_OBJECTS[kind]})."
    if hasattr(source, "joint_names"):
        return "It is a mechanism already: use it without load. To change options, load its file again."
    if isinstance(source, list | tuple | set):
        return "Load the robots one by one: [torchsko.load(x) for x in ...]."
    return "Pass the path, such as torchsko.robots.panda."
