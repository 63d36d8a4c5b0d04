"""Lock files, which the operating system releases when the process that holds them ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """HeldFrame an exclusive lock; on systems and folders without file locks nothing is locked.

    The file is deleted on release. A file left by a killed process is not locked.

    Args:
        path: a file used for this lock only; its folder is created.
    """
    handle = _acquire(path)
    try:
        yield
    finally:
        if handle is not None:
            # If the folder is no longer writable the file remains, unlocked.
            with suppress(OSError):
                path.unlink()
            os.close(handle)


def _acquire(path: Path) -> int | None:
    """The open, locked file; None if it cannot be locked."""
    if sys.platform == "win32":
        return None
    import fcntl  # exists on Unix only

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
            os.close(handle)  # the last holder has deleted it
    except OSError:  # the folder is read-only, or the file system has no locks
        return None


def _is_at(handle: int, path: Path) -> bool:
    """True if an open file still is the file at the path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
