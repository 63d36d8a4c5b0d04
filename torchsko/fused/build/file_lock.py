"""One process or thread at a time, by a file that the system unlocks when its holder ends in any way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a path; nothing is locked where the system cannot.

    The file goes with the lock. One that a killed process has left is no lock.

    Args:
        path: a file of nothing else; its folder is made.
    """
    handle = _acquire(path)
    try:
        yield
    finally:
        if handle is not None:
            # A folder that can be written no longer keeps the file, which is no lock once it is closed.
            with suppress(OSError):
                path.unlink()
            os.close(handle)


def _acquire(path: Path) -> int | None:
    """The open file once it is ours, None where there can be none."""
    if sys.platform == "win32":
        return None
    import fcntl  # Unix alone has it

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if _is_at(handle, path):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # its last holder has deleted it: others lock the next one
    except OSError:  # a folder that cannot be written, a system of files without locks
        return None


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
