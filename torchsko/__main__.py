"""The command line: ``info robot.urdf`` says what a robot file holds, ``view robot.urdf`` shows it.

``identify robot.urdf log.csv --out DIR`` makes a robot of a log.
Errors come as the library words them, with exit code 2.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torchsko.cli.robot_options import add_robot_options, load_robot
from torchsko.cli.robot_summary import described
from torchsko.errors import TorchskoError
from torchsko.utils.interrupts import INTERRUPTED, raise_again
from torchsko.version import version

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says of a place where nothing more can be written."""

CLOSED = 141
"""Exit code when nobody reads what is printed any more, as shells have it of a pipe."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code.

    Args:
        arguments: the command's words; those of the process when left out.
    """
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else list(arguments))
        finally:
            if sys.stdout is not None:  # of a process whose output was closed there is none
                sys.stdout.flush()  # at exit nobody could catch that its reader is gone
    except BrokenPipeError:
        _drop_output()
        return CLOSED
    except OSError as error:
        if error.errno not in FULL:
            raise
        _drop_output()
        print(
            f"what this command writes cannot be written: {error.strerror}.\n"
            "What it prints and what it saves need room.\n"
            "Make some, or write it elsewhere.",
            file=sys.stderr,
        )
        return 2


def _drop_output() -> None:
    """Let what is left in the buffer of the output go nowhere: the interpreter flushes it at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torchsko",
        description="Robots from URDF, MJCF and SDF files: what they hold, how they look, and what a log of "
        "their motion says of them. Each command has a --help of its own.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", required=True)
    # A command that is named opens its own room alone.
    asked = [word for word in words[:1] if word in COMMANDS] or [*COMMANDS]
    run = {name: COMMANDS[name](commands) for name in asked}
    if words == ["--version"]:
        print(version())
        return 0
    given = parser.parse_args(words)
    try:
        run[given.command](given)
    except TorchskoError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


Run = Callable[[argparse.Namespace], None]


def _info(commands: Any) -> Run:
    info = commands.add_parser("info", help="bodies, joints, limits and masses of a robot file")
    info.add_argument("file", help="URDF, MJCF or SDF; or a model that MuJoCo compiled (.mjb)")
    add_robot_options(info)
    info.add_argument("--strict", action="store_true", help="refuse faults of the file")
    return _print_info


def _print_info(given: argparse.Namespace) -> None:
    # The faults are in what is printed. What other programs read has its lines whole.
    screen = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if screen else None
    print(described(load_robot(given.file, given, strict=given.strict), width))


def _view(commands: Any) -> Run:
    from torchsko.cli.view import add_view, run_view

    add_view(commands)
    return run_view


def _identify(commands: Any) -> Run:
    from torchsko.cli.identify import add_identify, run_identify

    add_identify(commands)
    return run_identify


COMMANDS: dict[str, Callable[[Any], Run]] = {"info": _info, "view": _view, "identify": _identify}
"""By name what adds a command's parser to the others, and gives what runs it."""


if __name__ == "__main__":
    raise_again()
    sys.exit(main())
