"""Files that pictures and pages are written to."""

from __future__ import annotations

import os
from pathlib import Path

from torchsko.errors import RobotFileError


def check_folder(path: str | os.PathLike[str]) -> None:
    """Refuse a file whose folder is not there, before anything is drawn for it.

    Raises:
        RobotFileError: names the folder.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise RobotFileError(
            f"{os.fspath(path)} cannot be written: there is no folder {str(folder)!r}.",
            "Folders are not made unasked.",
            f"Make it, mkdir -p {folder}, or name another file.",
        )
