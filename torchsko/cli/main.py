"""The command ``python -m torchsko`` with its subcommands info, view, identify, train and play.

Errors print the text of the library's exception and end with exit code 2.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from torchsko.errors import TorchskoError
from torchsko.utils.interrupts import EXIT_INTERRUPTED
from torchsko.version import version

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers of the system for a full or failed disk."""

EXIT_BROKEN_PIPE = 141
"""Exit code after the reader of the output has closed it, by the convention of shells."""

Run = Callable[[argparse.Namespace], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: words of the command line; those of the process when left out.

    Returns:
        The exit code.
    """
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else list(arguments))
        finally:
            if sys.stdout is not None:  # None if the process has no standard output
                sys.stdout.flush()  # the interpreter's own flush at exit could not be caught
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in WRITE_ERRORS:
            raise
        _discard_output()
        print(
            f"the output cannot be written: {error.strerror}.\n"
            "The disk may be full.\n"
            "Free space on it, or write to another place.",
            file=sys.stderr,
        )
        return 2


def _discard_output() -> None:
    """Redirect the rest of the output to nothing, since the interpreter flushes it at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torchsko",
        description="Tools for robots in URDF, MJCF and SDF files: print the model, view it, identify its "
        "parameters from a motion log, or train a policy. Type COMMAND --help for the options of a command.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", required=True)
    # Only the modules of the requested command are imported.
    names = [word for word in words[:1] if word in COMMANDS] or [*COMMANDS]
    runners = {name: COMMANDS[name](commands) for name in names}
    if words == ["--version"]:
        print(version())
        return 0
    options = parser.parse_args(words)
    format_warning = warnings.formatwarning
    warnings.formatwarning = _format_warning
    try:
        runners[options.command](options)
    except TorchskoError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        warnings.formatwarning = format_warning
    return 0


def _format_warning(message: Warning | str, *_: Any, **__: Any) -> str:
    """Text of a warning without a line of source code, which is of no use to the user of a command."""
    return f"Warning: {message}\n"


def _add(name: str, commands: Any) -> Run:
    """Add the parser of a command, whose module in this package has its name, and return what runs it."""
    module = import_module(f"torchsko.cli.{name}")
    getattr(module, f"add_{name}")(commands)
    return getattr(module, f"run_{name}")


COMMANDS: dict[str, Callable[[Any], Run]] = {
    name: partial(_add, name) for name in ("info", "view", "identify", "train", "play")
}
"""Function that adds a command's parser and returns the function that runs it, by the command's name."""
