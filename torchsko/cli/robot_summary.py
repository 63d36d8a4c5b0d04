"""A robot in words: the page that ``python -m torchsko info`` prints."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torchsko.mechanism.description import GRAVITY, UNRESISTED, UnsupportedElement
from torchsko.mechanism.mechanism import Mechanism

UNITS = "Units: kg, rad or m, rad/s or m/s, N m or N."

LISTED = 12
"""Frames of one body, or joints alike, that are named; of more their number is told."""

OWN = ("damping", "higher_damping", "friction", "armature", "stiffness")
"""What a joint has of its own in its equation of motion; where its spring is relaxed comes last."""


def described(mech: Mechanism, width: int | None = None) -> str:
    """A mechanism as a page to read: joints and bodies, couplings, frames, faults, what is not used.

    Args:
        mech: the mechanism.
        width: of the page, in characters: longer lines are folded, and a table that is wider has what joints
            connect below their numbers. None: each line is as long as it takes.
    """
    counts = [
        f"{mech.num_bodies} bodies",
        f"{mech.num_dof} dofs",
        f"{mech.num_q} coordinates",
        f"{_number(mech.mass.sum().item())} kg that move",
    ]
    sections = {
        "Joints that follow others": _followers(mech),
        "Joints' own damping, dry friction, armature and springs": _own(mech),
        "Gravity": _gravity(mech),
        "States of the file": _states(mech),
        "Frames": _frames(mech),
        "Forward dynamics refuse": _refused(mech),
        "Faults of the file": map(str, mech.report),
        "Not used": _alike(mech.unused),
    }
    head = [_folded(x, width, "", "    ") for x in (f"{mech.name}: {', '.join(counts)}", UNITS)]
    parts = [*head, "", *_table(_joints(mech), width)]
    for title, lines in sections.items():
        parts += _section(title, lines, width)
    return "\n".join(parts)


_HEADER = ("joint", "kind", "from", "to", "mass", "lower", "upper", "speed", "effort")
_WORDS = 4
"""Columns of these that hold words; the others hold numbers."""


def _joints(mech: Mechanism) -> list[tuple[str, ...]]:
    """A row for each joint, with the body that it moves; those of several dofs have more for their limits."""
    rows = []
    for k, name in enumerate(mech.tree_joint_names):
        parent, kind = mech.parents[k], mech.joints.kinds[k]
        limits = _limits(mech, name) if k in mech.independent_joints else []
        single = kind.num_dof == 1 and kind.num_q == 1
        told = [
            name,
            kind.name,
            "-" if parent < 0 else mech.body_names[parent],
            mech.body_names[k],
            _number(mech.mass[k].item()),
        ]
        rows.append((*told, *(limits[0][1:] if single and limits else [""] * 4)))
        if not single:
            rows += [(f"  {of}", *[""] * _WORDS, *x) for of, *x in limits if any(x)]
    return rows


def _limits(mech: Mechanism, name: str) -> list[tuple[str, ...]]:
    """For each motion of a joint its name, lower and upper limit, and those of speed and effort."""
    kind = mech.joints.kinds[mech.joint_index(name)]
    q, dofs, parts = mech.q_slice(name), mech.dof_slice(name), name.split("+")
    labels = parts if len(parts) == kind.num_dof else list(kind.rates)
    ends = [mech.lower[..., q], mech.upper[..., q]] if kind.vector else []
    caps = [mech.velocity_limit[..., dofs], mech.effort_limit[..., dofs]]
    columns = [_told(x) for x in (*ends, *caps)]
    columns = columns if ends else [[""] * kind.num_dof] * 2 + columns
    return list(zip(labels, *columns, strict=True))


def _told(limits: Tensor) -> list[str]:
    """Limits in words, none where they are none."""
    return [_number(x) if math.isfinite(x) else "" for x in limits.tolist()]


def _states(mech: Mechanism) -> list[str]:
    """Where the file starts joints that are not at zero there, and the states that it names."""
    lines = []
    start, neutral = mech.initial(), mech.neutral()
    for name in mech.joint_names:
        at = mech.q_slice(name)
        if not torch.equal(start[at], neutral[at]):
            lines.append(f"mech.initial() has {name} at {_numbers(start[at])}")
    return lines + ([f"mech.keyframes: {_few([*mech.keyframes])}"] if mech.keyframes else [])


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
        held = {field: getattr(mech, field)[place].flatten() for field in OWN}
        told = [f"{field} {_numbers(x)}" for field, x in held.items() if x.any()]
        rest = mech.spring_reference[mech.tree_q_slice(name)]
        zero = rest.new_tensor(mech.joints.kinds[mech.joint_index(name)].neutral())
        if held["stiffness"].any() and not torch.equal(rest, zero):
            told.append(f"spring_reference {_numbers(rest)}")
        groups.setdefault(", ".join(told), []).append(name)
    return [f"{_few(names)}: {told}" for told, names in groups.items() if told]


def _gravity(mech: Mechanism) -> list[str]:
    """Gravity where it is not the usual one, and the bodies of whose weight a share is compensated."""
    usual = mech.gravity.new_tensor(GRAVITY)
    lines = [] if torch.equal(mech.gravity, usual) else [f"{_numbers(mech.gravity)} m/s^2"]
    for name, held in zip(mech.body_names, mech.gravcomp, strict=True):
        if held.any():
            moment = f", and the first moment {_numbers(held[1:])} kg m" if held[1:].any() else ""
            lines.append(f"gravcomp of {name}: {_number(held[0].item())} of its weight{moment}")
    return lines


def _refused(mech: Mechanism) -> list[str]:
    """Joints that nothing resists, but for those that the file's faults say that of."""
    said = {fault.element for fault in mech.report if fault.reason.startswith(UNRESISTED)}
    joints = [f"joint {x!r}" for x in mech.singular_joints]
    return [joint for joint in joints if joint not in said]


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


def _alike(notes: Iterable[UnsupportedElement]) -> list[str]:
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


def _section(title: str, lines: Iterable[str], width: int | None) -> list[str]:
    found = [_folded(line, width, "  ", "      ") for line in lines]
    return ["", f"{title}:", *found] if found else []


def _folded(line: str, width: int | None, first: str, then: str) -> str:
    """A line, or several none of which is longer than the page, but for words that are."""
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
    """Columns as wide as their entries, empty ones left out; folded where the page is not so wide."""
    lines = _columns(_HEADER, rows, _WORDS)
    if width is None or max(map(len, lines)) <= width:
        return lines
    narrow = _columns((_HEADER[0], *_HEADER[_WORDS:]), [(row[0], *row[_WORDS:]) for row in rows], 1)
    found = narrow[:1]
    for row, line in zip(rows, narrow[1:], strict=True):
        found.append(line)
        if row[1]:
            ends = " -> ".join(x for x in row[2:_WORDS] if x != "-")
            found.append(_folded(f"{row[1]}: {ends}", width, "  ", "    "))
    return found


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> list[str]:
    """Lines of a table: words to the left, numbers to the right."""
    columns = [
        [x.ljust(wide) if k < words else x.rjust(wide) for x in column]
        for k, column in enumerate(zip(header, *rows, strict=True))
        if any(column[1:])
        for wide in [max(map(len, column))]
    ]
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def _numbers(x: Tensor) -> str:
    return " ".join(map(_number, x.tolist()))


def _number(x: float) -> str:
    return f"{x + 0.0:.4g}"
