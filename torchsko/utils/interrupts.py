"""Ctrl-C during the start of the command line.

``python -m torchsko`` imports the package, and torch with it, before it runs a line of the command.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, by the convention of shells."""


def is_command() -> bool:
    """True while ``python -m torchsko`` still imports the package."""
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return sys.argv[:1] == ["-m"] and bool(words) and words[-1] in ("torchsko", "-mtorchsko")


def exit_on_interrupt() -> None:
    """Make Ctrl-C end the process silently until `restore_interrupt`; a process that ignores it stays so."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def restore_interrupt() -> None:
    """Make Ctrl-C raise `KeyboardInterrupt` again after `exit_on_interrupt`."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: FrameType | None) -> None:
    # The code being imported could catch an exception. No file is open yet.
    os._exit(EXIT_INTERRUPTED)
