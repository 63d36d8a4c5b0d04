"""The command ``info``: prints joints, bodies, limits, couplings and faults of a robot file."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchsko.cli.robot_options import add_robot_options, load_robot
from torchsko.errors import name_list
from torchsko.mechanism.description import GRAVITY, UNRESISTED, UnsupportedElement
from torchsko.mechanism.mechanism import Mechanism

UNITS = "Units: kg, rad or m, rad/s or m/s, N m or N."

JOINT_FORCES = ("damping", "higher_damping", "friction", "friction_speed", "force_offset",
                "armature", "stiffness")  # fmt: skip
"""Parameters of joints that enter the equations of motion."""

HEADER = ("joint", "kind", "from", "to", "mass", "lower", "upper", "speed", "effort")

NUM_TEXT_COLUMNS = 4
"""Leading columns of the joint table that hold text; the others hold numbers."""


def add_info(commands: Any) -> None:
    """Add the command to the parsers of ``python -m torchsko``."""
    parser = commands.add_parser("info", help="print bodies, joints, limits and masses of a robot")
    parser.add_argument("file", help="URDF, MJCF or SDF file, or a compiled MuJoCo model (.mjb)")
    add_robot_options(parser)
    parser.add_argument("--strict", action="store_true", help="stop at the first fault in the file")


def run_info(options: argparse.Namespace) -> None:
    """Print the summary of a robot.

    Raises:
        TorchskoError: if the file cannot be read.
    """
    # Lines are folded on a terminal only: other programs read whole lines.
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    print(robot_summary(load_robot(options.file, options, strict=options.strict), width))


def robot_summary(mech: Mechanism, width: int | None = None) -> str:
    """Text about a mechanism: joints and bodies, couplings, frames, faults and unused elements.

    Args:
        mech: the mechanism.
        width: characters per line. Longer lines are folded; a wider table shows the bodies of a joint below
            its numbers. None: lines of any length.
    """
    counts = [
        f"{mech.num_bodies} bodies",
        f"{mech.num_dof} dofs",
        f"{mech.num_q} coordinates",
        f"moving mass {_number(mech.mass.sum().item())} kg",
    ]
    sections = {
        "Coupled joints": _couplings(mech),
        "Joint damping, dry friction, armature and springs": _joint_forces(mech),
        "Gravity": _gravity(mech),
        "Initial and named states": _states(mech),
        "Frames": _frames(mech),
        "Joints without inertia, for which forward dynamics raises an error": _singular(mech),
        "Faults in the file": map(str, mech.report),
        "Not used by the dynamics": _group_unused(mech.unused),
    }
    head = [_fold(x, width, "", "    ") for x in (f"{mech.name}: {', '.join(counts)}", UNITS)]
    parts = [*head, "", *_table(_joint_rows(mech), width)]
    for title, lines in sections.items():
        folded = [_fold(line, width, "  ", "      ") for line in lines]
        parts += ["", f"{title}:", *folded] if folded else []
    return "\n".join(parts)


def _joint_rows(mech: Mechanism) -> list[tuple[str, ...]]:
    """A row for each joint and its body; joints of several dofs have further rows with their limits."""
    rows = []
    for k, name in enumerate(mech.tree_joint_names):
        parent, kind = mech.parents[k], mech.joints.kinds[k]
        limits = _limits(mech, name) if k in mech.independent_joints else []
        single = kind.num_dof == 1 and kind.num_q == 1
        row = (
            name,
            kind.name,
            "-" if parent < 0 else mech.body_names[parent],
            mech.body_names[k],
            _number(mech.mass[k].item()),
        )
        rows.append((*row, *(limits[0][1:] if single and limits else [""] * 4)))
        if not single:
            rows += [(f"  {dof}", *[""] * NUM_TEXT_COLUMNS, *x) for dof, *x in limits if any(x)]
    return rows


def _limits(mech: Mechanism, name: str) -> list[tuple[str, ...]]:
    """For each dof of a joint: its name, lower and upper limit, and limits of speed and effort."""
    kind = mech.joints.kinds[mech.joint_index(name)]
    q, dofs, parts = mech.q_slice(name), mech.dof_slice(name), name.split("+")
    labels = parts if len(parts) == kind.num_dof else list(kind.rates)
    positions = [mech.lower[..., q], mech.upper[..., q]] if kind.vector else []
    rates = [mech.velocity_limit[..., dofs], mech.effort_limit[..., dofs]]
    columns = [
        [_number(x) if math.isfinite(x) else "" for x in limit.tolist()]
        for limit in (*positions, *rates)
    ]
    columns = columns if positions else [[""] * kind.num_dof] * 2 + columns
    return list(zip(labels, *columns, strict=True))


def _states(mech: Mechanism) -> list[str]:
    """Joints whose initial position is not the neutral one, and the keyframes."""
    lines = []
    start, neutral = mech.initial(), mech.neutral()
    for name in mech.joint_names:
        at = mech.q_slice(name)
        if not torch.equal(start[at], neutral[at]):
            lines.append(f"mech.initial() has {name} at {_numbers(start[at])}")
    return lines + ([f"mech.keyframes: {name_list([*mech.keyframes])}"] if mech.keyframes else [])


def _couplings(mech: Mechanism) -> list[str]:
    if mech.coupling is None:
        return []
    ratios, offsets = iter(mech.coupling_ratio.tolist()), mech.coupling_offset.tolist()
    rows = zip(mech.coupling.dependent, mech.coupling.followed, offsets, strict=True)
    lines = []
    for k, leaders, offset in rows:
        terms = [f"{_number(next(ratios))} {mech.tree_joint_names[j]}" for j in leaders]
        terms += [_number(offset)] if offset else []
        lines.append(f"{mech.tree_joint_names[k]} = {' + '.join(terms)}")
    return lines


def _joint_forces(mech: Mechanism) -> list[str]:
    """A line for each set of joints with equal parameters; values of several dofs stand side by side."""
    groups: dict[str, list[str]] = {}
    for name in mech.tree_joint_names:
        dofs = mech.tree_dof_slice(name)
        values = {field: getattr(mech, field)[dofs].flatten() for field in JOINT_FORCES}
        texts = [f"{field} {_numbers(x)}" for field, x in values.items() if x.any()]
        rest = mech.spring_reference[mech.tree_q_slice(name)]
        neutral = rest.new_tensor(mech.joints.kinds[mech.joint_index(name)].neutral())
        if values["stiffness"].any() and not torch.equal(rest, neutral):
            texts.append(f"spring_reference {_numbers(rest)}")
        groups.setdefault(", ".join(texts), []).append(name)
    return [f"{name_list(names)}: {text}" for text, names in groups.items() if text]


def _gravity(mech: Mechanism) -> list[str]:
    """Gravity if it is not the default, and bodies whose weight is compensated."""
    default = mech.gravity.new_tensor(GRAVITY)
    lines = [] if torch.equal(mech.gravity, default) else [f"{_numbers(mech.gravity)} m/s^2"]
    for name, share in zip(mech.body_names, mech.gravcomp, strict=True):
        if share.any():
            moment = f", and the first moment {_numbers(share[1:])} kg m" if share[1:].any() else ""
            lines.append(f"gravcomp of {name}: {_number(share[0].item())} of its weight{moment}")
    return lines


def _singular(mech: Mechanism) -> list[str]:
    """Joints without inertia that are not among the faults of the file."""
    reported = {fault.element for fault in mech.report if fault.reason.startswith(UNRESISTED)}
    joints = [f"joint {x!r}" for x in mech.singular_joints]
    return [joint for joint in joints if joint not in reported]


def _frames(mech: Mechanism) -> list[str]:
    """Further frames of each body."""
    frames: dict[str, list[str]] = {}
    for name, body in zip(mech.frame_names, mech.frame_body, strict=True):
        carrier = "the inertial frame" if body < 0 else mech.body_names[body]
        if name != carrier:
            frames.setdefault(carrier, []).append(name)
    return [f"{carrier}: {name_list(names)}" for carrier, names in frames.items()]


def _group_unused(elements: Iterable[UnsupportedElement]) -> list[str]:
    """A line for all elements that differ in one name only."""
    groups: dict[tuple[str, str], list[str]] = {}
    for unused in elements:
        kind = re.sub("'[^']*'", "'...'", unused.element, count=1)
        groups.setdefault((kind, unused.reason), []).append(unused.element)
    lines = []
    for (_, reason), (first, *more) in groups.items():
        named = re.sub("'[^']*'", rf"\g<0> and {len(more)} more", first, count=1) if more else first
        lines.append(f"{named}: {reason}")
    return lines


def _fold(line: str, width: int | None, first: str, then: str) -> str:
    """Fold a line at word boundaries; `first` and `then` are the indents."""
    if width is None:
        return first + line
    return textwrap.fill(
        line,
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Lines of the joint table; on a narrow page the kind and bodies of a joint stand below its numbers."""
    lines = _columns(HEADER, rows, NUM_TEXT_COLUMNS)
    if width is None or max(map(len, lines)) <= width:
        return lines
    n = NUM_TEXT_COLUMNS
    narrow = _columns((HEADER[0], *HEADER[n:]), [(row[0], *row[n:]) for row in rows], 1)
    found = narrow[:1]
    for row, line in zip(rows, narrow[1:], strict=True):
        found.append(line)
        if row[1]:
            bodies = " -> ".join(x for x in row[2:n] if x != "-")
            found.append(_fold(f"{row[1]}: {bodies}", width, "  ", "    "))
    return found


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]], num_text: int) -> list[str]:
    """Lines of a table without its empty columns: text aligned left, numbers right."""
    columns = [
        [x.ljust(wide) if k < num_text else x.rjust(wide) for x in column]
        for k, column in enumerate(zip(header, *rows, strict=True))
        if any(column[1:])
        for wide in [max(map(len, column))]
    ]
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def _numbers(x: Tensor) -> str:
    return " ".join(map(_number, x.tolist()))


def _number(x: float) -> str:
    return f"{x + 0.0:.4g}"
