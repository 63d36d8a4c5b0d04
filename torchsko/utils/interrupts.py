"""Ctrl-C while the command line still imports: quiet, as later.

``python -m torchsko`` imports the package, torch with it, before it runs a line of the command's own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def is_command() -> bool:
    """Whether this process is ``python -m torchsko``, and looks for it yet."""
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return sys.argv[:1] == ["-m"] and bool(words) and words[-1] in ("torchsko", "-mtorchsko")


def end_at_once() -> None:
    """Let Ctrl-C end the process without a word, until `raise_again`; not where it is ignored."""
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt`, where `end_at_once` took it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    # An exception might be swallowed, or made another, by what is being imported; nothing is open yet.
    os._exit(INTERRUPTED)
