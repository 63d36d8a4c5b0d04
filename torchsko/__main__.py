"""The command line: ``info robot.urdf`` says what a robot file holds, ``view robot.urdf`` shows it.

``identify robot.urdf log.csv --out DIR`` makes a robot of a log.
Errors come as the library words them, with exit code 2.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torchsko.errors import TorchskoError
from torchsko.mechanism.description import Unused
from torchsko.mechanism.mechanism import Mechanism
from torchsko.robot_options import add_robot_options, load_robot
from torchsko.version import version

UNITS = "Units: kg, rad or m, rad/s or m/s, N m or N."

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says of a place where nothing more can be written."""

CLOSED = 141
"""Exit code when nobody reads what is printed any more, as shells have it of a pipe."""

LISTED = 12
"""Frames of one body that are named; of more their number is told."""


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
    # The faults are in what is printed.
    print(described(load_robot(given.file, given, strict=given.strict)))


def _view(commands: Any) -> Run:
    from torchsko.view.command import add_view, run_view

    add_view(commands)
    return run_view


def _identify(commands: Any) -> Run:
    from torchsko.learn.command import add_identify, run_identify

    add_identify(commands)
    return run_identify


COMMANDS: dict[str, Callable[[Any], Run]] = {"info": _info, "view": _view, "identify": _identify}
"""By name what adds a command's parser to the others, and gives what runs it."""


def described(mech: Mechanism) -> str:
    """A mechanism as a page to read: joints and bodies, couplings, frames, faults, what is not used."""
    counts = [
        f"{mech.num_bodies} bodies",
        f"{mech.num_dof} dofs",
        f"{mech.num_q} coordinates",
        f"{_number(mech.mass.sum().item())} kg that move",
    ]
    parts = [f"{mech.name}: {', '.join(counts)}", UNITS, "", _table(_HEADER, _joints(mech))]
    parts += _section("Joints that follow others", _followers(mech))
    parts += _section("Frames", _frames(mech))
    parts += _section("Forward dynamics refuse", [f"joint {x!r}" for x in mech.singular_joints])
    parts += _section("Faults of the file", map(str, mech.report))
    parts += _section("Not used", _alike(mech.unused))
    return "\n".join(parts)


_HEADER = ("joint", "kind", "from", "to", "mass", "lower", "upper", "speed", "effort")


def _joints(mech: Mechanism) -> list[tuple[str, ...]]:
    """A row for each joint, with the body that it moves; limits of several coordinates side by side."""
    rows = []
    for k, name in enumerate(mech.tree_joint_names):
        parent = mech.parents[k]
        limits = [""] * 4
        if k in mech.independent_joints:
            q, dof = mech.q_slice(name), mech.dof_slice(name)
            numbers = (
                mech.lower[q],
                mech.upper[q],
                mech.velocity_limit[dof],
                mech.effort_limit[dof],
            )
            limits = [
                " ".join(map(_number, x.tolist())) if x.isfinite().any() else "" for x in numbers
            ]
        rows.append(
            (
                name,
                mech.joints.kinds[k].name,
                "-" if parent < 0 else mech.body_names[parent],
                mech.body_names[k],
                _number(mech.mass[k].item()),
                *limits,
            )
        )
    return rows


def _followers(mech: Mechanism) -> list[str]:
    if mech.coupling is None:
        return []
    ratios, offsets = iter(mech.coupling_ratio.tolist()), mech.coupling_offset.tolist()
    lines = []
    for k, row, offset in zip(
        mech.coupling.dependent, mech.coupling.followed, offsets, strict=True
    ):
        terms = [f"{_number(next(ratios))} {mech.tree_joint_names[j]}" for j in row]
        terms += [_number(offset)] if offset else []
        lines.append(f"{mech.tree_joint_names[k]} = {' + '.join(terms)}")
    return lines


def _frames(mech: Mechanism) -> list[str]:
    """The frames that each body carries besides its own."""
    carried: dict[str, list[str]] = {}
    for name, body in zip(mech.frame_names, mech.frame_body, strict=True):
        carrier = "the inertial frame" if body < 0 else mech.body_names[body]
        if name != carrier:
            carried.setdefault(carrier, []).append(name)
    return [
        f"{carrier}: {', '.join(names[:LISTED])}"
        + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
        for carrier, names in carried.items()
    ]


def _alike(notes: Iterable[Unused]) -> list[str]:
    """A line for all notes that differ in one name only: the first of them, and how many more."""
    groups: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        kind = re.sub("'[^']*'", "'...'", note.element, count=1)
        groups.setdefault((kind, note.reason), []).append(note.element)
    lines = []
    for (_, reason), (first, *more) in groups.items():
        told = re.sub("'[^']*'", rf"\g<0> and {len(more)} more", first, count=1) if more else first
        lines.append(f"{told}: {reason}")
    return lines


def _section(title: str, lines: Iterable[str]) -> list[str]:
    found = [f"  {line}" for line in lines]
    return ["", f"{title}:", *found] if found else []


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their entries; those of numbers to the right; empty ones left out."""
    columns = [c for c in zip(header, *rows, strict=True) if any(c[1:])]
    lines = []
    for line in zip(*(_aligned(column) for column in columns), strict=True):
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)


def _aligned(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    text = column[0] in ("joint", "kind", "from", "to")
    return [x.ljust(width) if text else x.rjust(width) for x in column]


def _number(x: float) -> str:
    return f"{x:.4g}"


if __name__ == "__main__":
    sys.exit(main())
