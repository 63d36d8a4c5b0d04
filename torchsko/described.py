"""A robot in words: the page that ``python -m torchsko info`` prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchsko.mechanism.description import Unused
from torchsko.mechanism.mechanism import Mechanism

UNITS = "Units: kg, rad or m, rad/s or m/s, N m or N."

LISTED = 12
"""Frames of one body, or joints alike, that are named; of more their number is told."""

OWN = ("damping", "friction", "armature", "stiffness")
"""What a joint has of its own in its equation of motion."""


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
    parts += _section("Joints' own damping, dry friction, armature and springs", _own(mech))
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


def _own(mech: Mechanism) -> list[str]:
    """A line for all joints of the same numbers, those of several dofs side by side; none without any."""
    groups: dict[str, list[str]] = {}
    for name in mech.tree_joint_names:
        place = mech.tree_dof_slice(name)
        held = {field: getattr(mech, field)[place] for field in OWN}
        told = [
            f"{field} {' '.join(map(_number, x.tolist()))}" for field, x in held.items() if x.any()
        ]
        groups.setdefault(", ".join(told), []).append(name)
    return [f"{_few(names)}: {told}" for told, names in groups.items() if told]


def _few(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _frames(mech: Mechanism) -> list[str]:
    """The frames that each body carries besides its own."""
    carried: dict[str, list[str]] = {}
    for name, body in zip(mech.frame_names, mech.frame_body, strict=True):
        carrier = "the inertial frame" if body < 0 else mech.body_names[body]
        if name != carrier:
            carried.setdefault(carrier, []).append(name)
    return [f"{carrier}: {_few(names)}" for carrier, names in carried.items()]


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
