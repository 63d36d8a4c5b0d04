"""Atomic writes: a file is written under a temporary hidden name and then renamed."""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path

_HOST = re.sub("[^A-Za-z0-9]", "_", platform.node())


def temporary_prefix() -> str:
    """Prefix of this process's temporary names; it holds the names of the host and of the process."""
    return f".torchsko-{_HOST}-{os.getpid()}-"


def temporary_path(path: Path) -> Path:
    """Temporary name in the same folder, with the same ending."""
    return path.with_name(temporary_prefix() + path.name)


def remove_stale_files(folder: Path) -> None:
    """Remove temporary files of processes on this host that no longer run; other hosts' files stay."""
    for path in folder.glob(f".torchsko-{_HOST}-*"):
        found = re.fullmatch(rf"\.torchsko-{_HOST}-(\d+)-.*", path.name)
        if found is None or _is_running(int(found[1])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """True if the process runs, or if that cannot be tested safely."""
    if os.name != "posix":
        return True  # signal 0 would end it there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's process, or not a process number
        return True
    return True
