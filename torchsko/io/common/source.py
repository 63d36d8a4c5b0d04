"""What a robot is loaded from: the path of a file, or its text. All else is refused by its kind."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torchsko.errors import MechanismError, RobotFileError, TreeError
from torchsko.io.xml.reader import is_xml_text, root_tag

PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""First bytes of files that hold others."""

FORMATS = {"mujoco": "mjcf", "sdf": "sdf"}
"""Formats by the name of the outermost element; of all others the URDF reader says what is wrong."""

LONGEST = 300
"""Characters of a path that a message shows."""

OF_MUJOCO = {"MjModel": "model", "MjSpec": "spec.compile()"}
"""Objects of MuJoCo, and what of them `torchsko.from_mujoco` takes."""


def format_of(source: str | os.PathLike[str]) -> str:
    """Which reader a source is for: "mjcf", "sdf" or "urdf".

    The outermost element says it, whatever the name of the file; of a compiled model of MuJoCo its ending.

    Raises:
        RobotFileError: when it is neither path nor text, or a file that is packed.
    """
    check_source(source)
    if not is_xml_text(source) and os.fspath(source).lower().endswith(".mjb"):
        return "mjcf"
    return FORMATS.get(root_tag(source), "urdf")


def check_source(source: object) -> None:
    """Refuse what is neither a path nor text, and files that are packed.

    Raises:
        RobotFileError: says what was given, and what to type.
    """
    path = source if isinstance(source, str) else _path(source)
    if path is None:
        raise RobotFileError(
            f"the robot was given as {type(source).__name__}.",
            "A robot is loaded from the path of a file, or from its text, which begins with '<'.",
            f"{_typed(source)}",
        )
    if is_xml_text(path):
        return
    if not path.strip():
        raise RobotFileError(
            "the robot was given as an empty text.",
            "A robot is loaded from the path of a file, or from its text, which begins with '<'.",
            "Pass the path, such as torchsko.robots.panda.",
        )
    kind = _packed(path)
    if kind is not None:
        raise RobotFileError(
            f"{path}: the file is packed ({kind}).",
            "Robot files are read as they are, their size known before.",
            "Unpack it first, and pass the path of the robot file.",
        )


@contextmanager
def naming(source: str | os.PathLike[str]) -> Iterator[None]:
    """Put the name of a file before what is said of it; text has none."""
    try:
        yield
    except (RobotFileError, MechanismError, TreeError) as error:
        if is_xml_text(source):
            raise
        raise type(error)(f"{_shown(os.fspath(source))}: {error}") from error


def _shown(path: str) -> str:
    """A path on one line; what was meant as text, and begins with no ``<``, is cut short."""
    short = path if len(path) <= LONGEST else path[:LONGEST] + "..."
    return short if short.isprintable() else repr(short)


def check_model(model: object) -> None:
    """Refuse what is no compiled model of MuJoCo.

    Raises:
        RobotFileError: says what was given, and what to type.
    """
    if hasattr(model, "nbody"):
        return
    kind = type(model).__name__
    typed = "Pass what mujoco.MjModel.from_xml_path gives."
    if isinstance(model, str | os.PathLike):
        typed = "Pass it to torchsko.load, which compiles it."
    elif kind in OF_MUJOCO:
        typed = f"Pass {OF_MUJOCO[kind]}."
    raise RobotFileError(
        f"the model was given as {kind}.",
        "What is read here is a compiled model of MuJoCo, mujoco.MjModel.",
        f"{typed}",
    )


def check_folders(mesh_path: object) -> None:
    """Refuse folders that are given as one text, whose letters would be taken for folders.

    Raises:
        RobotFileError: says what to type.
    """
    if isinstance(mesh_path, str | bytes | os.PathLike):
        raise RobotFileError(
            f"mesh_path is one path, {os.fspath(mesh_path)!r}.",
            "It names several folders that are trusted: of one text, each letter would be one.",
            f"Pass mesh_path=[{os.fspath(mesh_path)!r}].",
        )
    unfit = [x for x in _listed(mesh_path) if not isinstance(x, str) and _path(x) is None]
    if unfit:
        raise RobotFileError(
            f"mesh_path holds {unfit[0]!r}, which is no path.",
            "It lists folders in which meshes may lie.",
            'Pass mesh_path=["folder", ...].',
        )


def _listed(mesh_path: object) -> list[object]:
    return list(mesh_path) if isinstance(mesh_path, Iterable) else [mesh_path]


def _path(source: object) -> str | None:
    """The path that an object stands for; None where it stands for none, or for one in bytes."""
    path = os.fspath(source) if isinstance(source, os.PathLike) else None
    return path if isinstance(path, str) else None


def _packed(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            head = file.read(max(map(len, PACKED)))
    except (OSError, ValueError):
        return None  # said by who reads it
    return next((kind for start, kind in PACKED.items() if head.startswith(start)), None)


def _typed(source: object) -> str:
    """What to type instead."""
    kind = type(source).__name__
    if isinstance(source, bytes | bytearray):
        return "Pass its text, source.decode(), or the path as a str."
    if hasattr(source, "read"):
        return "Pass its text, file.read(), decoded where the file is one of bytes; or the path."
    if kind in OF_MUJOCO:
        return f"Pass it to torchsko.from_mujoco({OF_MUJOCO[kind]})."
    if hasattr(source, "joint_names"):
        return (
            "It is a robot already: leave load out; floating_base and mimic are choices of a load."
        )
    if isinstance(source, list | tuple | set):
        return "Load them one by one: [torchsko.load(x) for x in ...]."
    return "Pass the path, such as torchsko.robots.panda."
