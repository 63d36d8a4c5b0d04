"""Arrays of a log that are mapped from a file."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torchsko.identification.logs.log import Log


def forget(log: Log) -> None:
    """Give back the memory of a log's pages, of arrays that are mapped to be read: they stay on disk."""
    advice = getattr(mmap, "MADV_DONTNEED", None)
    for x in (log.t, log.q, log.tau, log.qd):
        root: Any = x
        while isinstance(root, np.ndarray):
            if root.flags.writeable:
                break
            root = root.base
        if advice is not None and isinstance(root, mmap.mmap):
            root.madvise(advice)
