"""MJCF reader: checks a file and compiles it with MuJoCo.

A robot file is untrusted: it and all files that it includes or attaches are checked first
(`torchsko.io.mjcf.sanitize`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchsko.errors import RobotFileError
from torchsko.io.common.source import naming
from torchsko.io.mjcf.sanitize import check_mjcf
from torchsko.io.xml.reader import is_xml_text
from torchsko.utils.optional_dependencies import require


def read_mjcf(
    source: str | os.PathLike[str], *, mesh_path: Sequence[str | os.PathLike[str]] = ()
) -> Any:
    """Compile an MJCF file or text, or read a compiled model (``.mjb``).

    Args:
        source: path, or XML text.
        mesh_path: trusted folders for meshes, textures and included files, besides that of the file.

    Returns:
        ``mujoco.MjModel``.

    Raises:
        RobotFileError: if the file cannot be read, refers to files outside its folder, needs unbounded
            memory, or does not compile.
        MissingExtraError: if MuJoCo is not installed.
    """
    text = is_xml_text(source)
    binary = not text and Path(source).suffix.lower() == ".mjb"
    if not binary:
        with naming(source):
            check_mjcf(source, mesh_path)
    mujoco = require("mujoco", "mjcf")
    try:
        if text:
            return mujoco.MjModel.from_xml_string(str(source).lstrip("\ufeff \t\r\n"))
        if binary:
            return mujoco.MjModel.from_binary_path(os.fspath(source))
        return mujoco.MjModel.from_xml_path(os.fspath(source))
    except (ValueError, OSError, RuntimeError, mujoco.FatalError) as error:
        where = "the given text" if text else os.fspath(source)
        raise RobotFileError(
            f"{where}: MuJoCo's compiler reports: {error}.",
            "MJCF is read by MuJoCo's own parser.",
            "Correct the file until mujoco.MjModel.from_xml_path loads it.",
        ) from error
