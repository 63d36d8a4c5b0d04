"""Memory of logs whose arrays are memory-mapped files."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torchsko.identification.logs.log import Log


def release_pages(log: Log) -> None:
    """Release the resident pages of read-only memory-mapped arrays; later accesses read them from disk."""
    advice = getattr(mmap, "MADV_DONTNEED", None)
    for x in (log.t, log.q, log.tau, log.qd):
        root: Any = x
        while isinstance(root, np.ndarray):
            if root.flags.writeable:
                break
            root = root.base
        if advice is not None and isinstance(root, mmap.mmap):
            root.madvise(advice)
