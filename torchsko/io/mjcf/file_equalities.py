"""Equalities in new MJCF files: coupled joints, loops, and polynomials of joints and tendons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from torchsko.constraints.constraint_kinds import soft_kind
from torchsko.constraints.row_kinds import FrameRows, JointRows
from torchsko.io.common.losses import Losses
from torchsko.io.common.numbers import as_vector
from torchsko.io.mjcf.elements import element
from torchsko.io.mjcf.file_bodies import FileBodies
from torchsko.io.mjcf.file_sensors import Sites
from torchsko.io.xml.edits import unique_name, words
from torchsko.mechanism.description import IDENTITY
from torchsko.mechanism.edits.lock import followed_by
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.mechanism import Mechanism

ROUNDING = 100.0
"""Largest residual of an equality that holds for couplings, in units of rounding of its terms."""

HINGE_OFFSET = 0.1
"""Distance of the two points that a revolute loop connects in MJCF [m]."""


@dataclass(frozen=True)
class EqualityLines:
    """Lines of equalities.

    Attributes:
        tendons: tendons that couple more than two joints.
        equalities: in the order of couplings, then of closures.
    """

    tendons: list[str]
    equalities: list[str]


def equality_lines(bodies: FileBodies, sites: Sites, losses: Losses) -> EqualityLines:
    """Couplings and closures of a mechanism; a revolute loop is two points on its axis."""
    mech, starts = bodies.mech, bodies.starts()
    lengths = {
        tendon.name: sum(c * starts[j] for j, c in tendon.joints.items())
        for tendon in mech.file_metadata.tendons
        if starts.keys() >= tendon.joints.keys()
    }
    tendons, lines = _couplings(mech, starts, lengths)
    taken = {c.name for c in mech.closures}
    lost = []
    for c in mech.closures:
        kind = soft_kind(c.kind)
        known = lengths if c.kind == "tendon" else starts
        if isinstance(kind, JointRows) and kind.mjcf and known.keys() >= set(c.joints):
            lines.append(_of_lengths(c, c.kind, known))
            continue
        if isinstance(kind, FrameRows) and kind.mjcf:
            lines += _of_frames(c, kind, sites, taken)
            continue
        lost.append(f"{c.name} ({c.kind})")
    losses.add_if(lost, "loops")
    return EqualityLines(tendons, lines)


def _couplings(
    mech: Mechanism, starts: Mapping[str, float], lengths: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Equalities of dependent joints, as in the robot's own file while they hold for the couplings.

    Another coupling that follows several joints becomes an equality of a tendon.
    """
    tendons, lines, names, term = [], [], mech.tree_joint_names, 0
    coupled = {x.joint: x.equality for x in mech.file_metadata.coupled}
    taken, rows = {*lengths}, coupling_rows(mech)
    ratios, offsets = mech.coupling_ratio.tolist(), mech.coupling_offset.tolist()
    for offset, (k, row) in zip(offsets, followed_by(mech).items(), strict=True):
        factors = ratios[term : term + len(row)]
        term += len(row)
        equality = coupled.get(names[k])
        common = {} if equality is None else _common(equality, equality.name)
        if equality is not None and _holds(equality, mech, rows):
            known = lengths if equality.kind == "tendon" else starts
            lines.append(_of_lengths(equality, equality.kind, known))
            continue
        if len(row) == 1:
            one, two = names[k], names[row[0]]
            start = offset + factors[0] * starts[two] - starts[one]
            ends = {"joint1": one, "joint2": two, "polycoef": words([start, *factors, 0, 0, 0])}
            lines.append(element("joint", common | ends))
            continue
        name = unique_name(f"{names[k]}_coupling", taken)
        taken.add(name)
        parts = {names[k]: 1.0} | {names[j]: -c for j, c in zip(row, factors, strict=True)}
        joints = [element("joint", {"joint": j, "coef": words([c])}) for j, c in parts.items()]
        tendons.append(element("fixed", {"name": name}, joints))
        start = offset - sum(c * starts[j] for j, c in parts.items())
        polynomial = words([start, 0, 0, 0, 0])
        lines.append(element("tendon", common | {"tendon1": name, "polycoef": polynomial}))
    return tendons, lines


def coupling_rows(mech: Mechanism) -> dict[str, dict[str, float]]:
    """Coefficients of each dependent joint by independent joint; "" is the constant."""
    names, rows, term = mech.tree_joint_names, {}, 0
    ratios, offsets = mech.coupling_ratio.tolist(), mech.coupling_offset.tolist()
    for offset, (k, row) in zip(offsets, followed_by(mech).items(), strict=True):
        factors = ratios[term : term + len(row)]
        rows[names[k]] = {"": offset} | dict(zip((names[j] for j in row), factors, strict=True))
        term += len(row)
    return rows


def _holds(c: Closure, mech: Mechanism, rows: Mapping[str, Mapping[str, float]]) -> bool:
    """True if an equality of two lengths is satisfied by the couplings at every configuration."""
    tendons = {t.name: t.joints for t in mech.file_metadata.tendons}
    c0, c1 = c.parameters[:2]
    left: dict[str, float] = {"": -c0}
    scale = abs(c0)
    for name, factor in zip(c.joints, (1.0, -c1), strict=True):
        for joint, x in (tendons[name] if c.kind == "tendon" else {name: 1.0}).items():
            for independent, y in rows.get(joint, {joint: 1.0}).items():
                left[independent] = left.get(independent, 0.0) + factor * x * y
                scale = max(scale, abs(factor * x * y))
    tolerance = ROUNDING * torch.finfo(mech.dtype).eps * scale
    return all(abs(x) <= tolerance for x in left.values())


def _of_lengths(c: Closure, kind: str, starts: Mapping[str, float]) -> str:
    """An equality of joints or tendons, whose polynomial counts from their initial lengths."""
    values = c.parameters if kind != "gear" else (*c.parameters[::-1], 0.0, 0.0, 0.0)
    one, two = c.joints
    polynomial = shifted(values, -starts[two])
    polynomial[0] -= starts[one]
    tag = "tendon" if kind == "tendon" else "joint"
    ends = {f"{tag}1": one} | ({f"{tag}2": two} if two != one else {})
    return element(tag, _common(c, c.name) | ends | {"polycoef": words(polynomial)})


def shifted(coefficients: Sequence[float], start: float) -> list[float]:
    """Coefficients in x of a polynomial in x - start."""
    return [
        sum(c * math.comb(n, k) * (-start) ** (n - k) for n, c in enumerate(coefficients) if n >= k)
        for k in range(len(coefficients))
    ]


def _of_frames(c: Closure, kind: FrameRows, sites: Sites, taken: set[str]) -> list[str]:
    """An equality between two sites, or two of them for a revolute loop."""
    tag, lines = kind.mjcf, []
    axis2 = np.array(c.rotation)[2]  # the z axis of the first frame in the second
    for k in range(2 if kind.name == "revolute" else 1):
        name = unique_name(f"{c.name}_axis", taken) if k else c.name
        taken.add(name)
        first = np.array(c.position1) + k * HINGE_OFFSET * np.array((0.0, 0.0, 1.0))
        second = np.array(c.position2) + k * HINGE_OFFSET * axis2
        turn = np.array(c.rotation if tag == "weld" else IDENTITY)
        ends = {
            "site1": sites.add(f"{name}_1", c.frame1, (turn, np.array(as_vector(first)))),
            "site2": sites.add(f"{name}_2", c.frame2, (np.eye(3), np.array(as_vector(second)))),
        }
        lines.append(element(tag, _common(c, name) | ends))
    return lines


def _common(c: Closure, name: str) -> dict[str, str]:
    """Name, activity and parameters of the soft constraint."""
    values = {"name": name}
    values |= {} if c.active else {"active": "false"}
    values |= {"solref": words(c.solref)} if c.solref else {}
    values |= {"solimp": words(c.solimp)} if c.solimp else {}
    return values | ({} if c.torque_scale == 1 else {"torquescale": words([c.torque_scale])})
