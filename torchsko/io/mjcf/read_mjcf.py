"""The MJCF reader: a file, made safe to hand to MuJoCo's parser, to a compiled model.

A robot file is untrusted, so it is looked through first, and so is what it includes and attaches
(`torchsko.io.mjcf.sanitize`); nothing may be declared that expands.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchsko.errors import RobotFileError
from torchsko.io.common.source import check_model, naming
from torchsko.io.mjcf.sanitize import look_through
from torchsko.io.xml.reader import is_xml_text
from torchsko.utils.optional_dependencies import require


def model_of(source: Any) -> Any:
    """The compiled model in a file or text, or one that is given.

    Args:
        source: path, XML text, or ``mujoco.MjModel``.

    Raises:
        RobotFileError: when it is none of these, or cannot be read (`read_mjcf`).
    """
    if isinstance(source, str | os.PathLike):
        return read_mjcf(source)
    check_model(source)
    return source


def read_mjcf(
    source: str | os.PathLike[str], *, mesh_path: Sequence[str | os.PathLike[str]] = ()
) -> Any:
    """Compile a file in MJCF, or text, or read a compiled model (``.mjb``).

    Args:
        source: path, or XML text.
        mesh_path: folders that the file may reach besides its own: its meshes, textures and included files.

    Returns:
        ``mujoco.MjModel``.

    Raises:
        RobotFileError: the file is not readable, reaches out of its folder, copies itself or asks for room
            without bound, or MuJoCo refuses it; says which.
        MissingExtraError: MuJoCo is not installed.
    """
    text = is_xml_text(source)
    binary = not text and Path(source).suffix.lower() == ".mjb"
    if not binary:
        with naming(source):
            look_through(source, mesh_path)
    mujoco = require("mujoco", "mjcf")
    try:
        if text:
            return mujoco.MjModel.from_xml_string(str(source).lstrip("\ufeff \t\r\n"))
        if binary:
            return mujoco.MjModel.from_binary_path(os.fspath(source))
        return mujoco.MjModel.from_xml_path(os.fspath(source))
    except (ValueError, OSError, RuntimeError, mujoco.FatalError) as error:
        where = "the text" if text else os.fspath(source)
        raise RobotFileError(
            f"{where}: MuJoCo does not compile it: {error}.",
            "MJCF is read by MuJoCo's own parser.",
            "Correct the file until mujoco.MjModel.from_xml_path takes it.",
        ) from error
