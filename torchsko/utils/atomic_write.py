"""Files that are being written stand under hidden names beside the old ones; those of killed processes go."""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path

_HOST = re.sub("[^A-Za-z0-9]", "_", platform.node())


def prefix() -> str:
    """With which names of this process's unfinished files begin: the machine's and the process's."""
    return f".torchsko-{_HOST}-{os.getpid()}-"


def unfinished(path: Path) -> Path:
    """Where a file is written before it takes its name; its ending is the file's."""
    return path.with_name(prefix() + path.name)


def clear_unfinished(folder: Path) -> None:
    """Remove what processes of this machine that are no more were writing into a folder.

    Of another machine's nobody knows here whether they live: theirs stay.
    """
    for path in folder.glob(f".torchsko-{_HOST}-*"):
        found = re.fullmatch(rf"\.torchsko-{_HOST}-(\d+)-.*", path.name)
        if found is None or _lives(int(found[1])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    """Whether there is such a process; where none can be asked without harm, it is said to live."""
    if os.name != "posix":
        return True  # there, the signal 0 would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or no process's number
        return True
    return True
