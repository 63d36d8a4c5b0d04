"""A body's numbers among the links that fixed joints weld together.

What changed of a body goes to the heaviest of its links, so that all of them together are the body. Where
nothing would be left of its mass, all links first take part in the change of mass, each by the same factor.
Where no body could have what is left for the heaviest, all links change: their points of mass move by one
affine map, as all of the body's do, so that links of a physical body stay physical.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchsko.io.common.numbers import as_matrix, as_vector
from torchsko.mechanism.description import IDENTITY, LinkDescription
from torchsko.mechanism.welded import Frame, lump

INERTIAL = ("mass", "com", "inertia")

REFINEMENTS = 5
"""Rounds in which the rounding of a difference of bodies is put right; the best of them counts."""

Links = dict[str, LinkDescription]
Wanted = Sequence[np.ndarray]


def fitted_body(
    links: Mapping[str, LinkDescription], frames: dict[str, Frame], wanted: Wanted, which: list[str]
) -> Links:
    """The links of one body that change.

    Args:
        links: of the robot, by name.
        frames: of those of the body, in its frame.
        wanted: mass, centre of mass, and inertia about it, of the body.
        which: of `INERTIAL` change.
    """
    names = list(frames)
    mass, com, inertia = wanted
    if len(names) == 1:
        link = links[names[0]]
        new = {"mass": float(mass), "com": as_vector(com), "inertia": as_matrix(inertia)}
        kept = {field: new[field] for field in which}
        turn = {"inertia_rotation": IDENTITY} if "inertia" in which else {}
        return {link.name: replace(link, **kept, **turn)}
    own = max(names, key=lambda name: links[name].mass)  # the first of equals
    members = {name: links[name] for name in names}
    found = _with_rest(_sharing(members, own, float(mass)), frames, own, wanted)
    whole = all(
        np.linalg.eigvalsh(_spread(x))[0] > 0 for x in (inertia, lump(names, frames, members)[2])
    )
    if whole and float(mass) > 0 and _is_physical(links[own]) and not _is_physical(found[own]):
        # What is left of the map is rounding.
        found = _with_rest(_moved(members, frames, wanted), frames, own, wanted)
    return found


def _sharing(members: Links, own: str, mass: float) -> Links:
    """The links, of less mass where the heaviest alone would lose most of its own."""
    total = sum(link.mass for link in members.values())
    # A link that alone lost most of its mass would have to be far off, with an inertia that no body has.
    if not total or mass > total - members[own].mass / 2:
        return members
    share = mass / total
    return {
        name: replace(
            link, mass=share * link.mass, inertia=as_matrix(share * np.array(link.inertia))
        )
        for name, link in members.items()
    }


def _with_rest(members: Links, frames: dict[str, Frame], own: str, wanted: Wanted) -> Links:
    """The links, of which one is so that all are the body."""
    names, members = list(frames), dict(members)
    mass, com, inertia = wanted
    turn = frames[own].rotation
    members[own] = _in_link_axes(members[own])
    best, least = members[own], np.inf
    for _ in range(REFINEMENTS):
        link = members[own]
        m = link.mass + (mass - lump(names, frames, members)[0])
        link = members[own] = replace(link, mass=float(m))
        arm = com - lump(names, frames, members)[1]
        lever = mass / m if m else 1.0
        link = members[own] = replace(
            link, com=as_vector(np.array(link.com) + lever * (turn.T @ arm))
        )
        rest = inertia - lump(names, frames, members)[2]
        members[own] = replace(
            link, inertia=as_matrix(np.array(link.inertia) + turn.T @ rest @ turn)
        )
        apart = _apart(lump(names, frames, members), wanted)
        if apart < least:
            best, least = members[own], apart
    return members | {own: best}


def _in_link_axes(link: LinkDescription) -> LinkDescription:
    axes = np.array(link.inertia_rotation)
    I = axes @ np.array(link.inertia) @ axes.T
    return replace(link, inertia=as_matrix(I), inertia_rotation=IDENTITY)


def _moved(members: Links, frames: dict[str, Frame], wanted: Wanted) -> Links:
    """The links whose points of mass move as those of the body: stretched, without a turn, and shifted.

    The map is the one that moves a normal distribution to another at the least mean square distance.

    Reference: C. Givens, R. Shortt, *A class of Wasserstein metrics for probability distributions*, Michigan
    Math. J. 31(2), 1984, Prop. 7.
    """
    mass, com, inertia = wanted
    old_mass, old_com, old_inertia = lump(list(frames), frames, members)
    share = float(mass) / old_mass
    before, after = _spread(old_inertia) / old_mass, _spread(inertia) / mass
    root, back = _power(before, 0.5), _power(before, -0.5)
    F = back @ _power(root @ after @ root, 0.5) @ back
    out: Links = {}
    for name, link in members.items():
        link, frame = _in_link_axes(link), frames[name]
        R = frame.rotation
        place = F @ (frame.position + R @ np.array(link.com) - old_com) + com
        G = R.T @ F @ R
        S = share * (G @ _spread(np.array(link.inertia)) @ G.T)
        out[name] = replace(
            link,
            mass=share * link.mass,
            com=as_vector(R.T @ (place - frame.position)),
            inertia=as_matrix(np.trace(S) * np.eye(3) - S),
        )
    return out


def _spread(inertia: np.ndarray) -> np.ndarray:
    """The second moment of mass about the centre, of the inertia about it."""
    return np.trace(inertia) / 2 * np.eye(3) - inertia


def _power(S: np.ndarray, exponent: float) -> np.ndarray:
    value, vector = np.linalg.eigh(S)
    return (vector * value**exponent) @ vector.T


def _is_physical(link: LinkDescription) -> bool:
    """Whether a body may have its mass and inertia, to rounding."""
    least, _, most = np.linalg.eigvalsh(_spread(np.array(link.inertia)))
    return link.mass >= 0 and bool(least >= -1e-12 * abs(most))


def _apart(found: Iterable[Any], wanted: Iterable[Any]) -> float:
    """Largest difference of mass, centre or inertia of a body, each relative to the largest of it."""
    return max(
        float(np.abs(x - y).max()) / (float(np.abs(y).max()) or 1.0)
        for x, y in zip(found, wanted, strict=True)
    )
