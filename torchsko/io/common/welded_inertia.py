"""Distribution of a body's inertial parameters over its links, which fixed joints weld together.

If mass and inertia of the body change by one factor, those of all links do. Any other change of the body goes
to its heaviest link. If that link would lose most of its mass, the masses of all
links are first scaled by a common factor. If the heaviest link would become unphysical, all links change
instead: one affine map moves the mass distribution of the whole body, so the links of a physical body stay
physical.
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
"""Iterations that reduce the rounding error of a difference of bodies; the best result is used."""

SCALING_ROUNDING = 1e-13
"""Relative difference from a common factor that is rounding."""

Links = dict[str, LinkDescription]

BodyInertia = Sequence[np.ndarray]
"""Mass, center of mass, and inertia about it."""


def distribute_body(
    links: Mapping[str, LinkDescription],
    frames: dict[str, Frame],
    target: BodyInertia,
    changed: list[str],
) -> Links:
    """New inertial parameters of the links of a body.

    Args:
        links: all links of the robot, by name.
        frames: frames of the links of the body, in the body's frame.
        target: inertial parameters of the body.
        changed: fields of `INERTIAL` that changed.
    """
    names = list(frames)
    mass, com, inertia = target
    if (factor := _common_factor(links, frames, target)) is not None:
        scaled = {name: _scaled(links[name], factor) for name in names}
        if len(names) > 1:
            return scaled
        return {name: replace(link, mass=float(mass)) for name, link in scaled.items()}
    if len(names) == 1:
        link = links[names[0]]
        new = {"mass": float(mass), "com": as_vector(com), "inertia": as_matrix(inertia)}
        changes: dict[str, Any] = {field: new[field] for field in changed}
        if "inertia" in changed:
            changes["inertia_rotation"] = IDENTITY
        return {link.name: replace(link, **changes)}
    heaviest = max(names, key=lambda name: links[name].mass)  # the first one of equal mass
    members = {name: links[name] for name in names}
    result = _correct_link(_scale_masses(members, heaviest, float(mass)), frames, heaviest, target)
    invertible = all(
        np.linalg.eigvalsh(_second_moment(x))[0] > 0
        for x in (inertia, lump(names, frames, members)[2])
    )
    physical = _is_physical(links[heaviest])
    if invertible and float(mass) > 0 and physical and not _is_physical(result[heaviest]):
        mapped = _map_affinely(members, frames, target)
        result = _correct_link(mapped, frames, heaviest, target)  # corrects rounding only
    return result


def _common_factor(
    links: Mapping[str, LinkDescription], frames: Mapping[str, Frame], target: BodyInertia
) -> float | None:
    """The factor of mass and inertia of a body with unchanged center of mass; None for other changes."""
    mass, com, inertia = lump(list(frames), frames, links)
    factor = float(target[0]) / mass if mass else 0.0
    scaled = (com, factor * inertia)
    same = all(np.allclose(x, y, rtol=0, atol=SCALING_ROUNDING * np.abs(y).max())
               for x, y in zip(scaled, target[1:], strict=True))  # fmt: skip
    return factor if factor > 0 and same else None


def _scaled(link: LinkDescription, factor: float) -> LinkDescription:
    """The link with mass and inertia times a factor."""
    inertia = as_matrix(factor * np.array(link.inertia))
    return replace(link, mass=factor * link.mass, inertia=inertia)


def _scale_masses(members: Links, heaviest: str, mass: float) -> Links:
    """Scale the masses of all links to the body's mass if the heaviest would lose over half of its mass."""
    total = sum(link.mass for link in members.values())
    # Otherwise the heaviest link would need a distant center of mass and an unphysical inertia.
    if not total or mass > total - members[heaviest].mass / 2:
        return members
    return {name: _scaled(link, mass / total) for name, link in members.items()}


def _correct_link(
    members: Links, frames: dict[str, Frame], name: str, target: BodyInertia
) -> Links:
    """Change one link such that all links together have the target's inertial parameters."""
    names, members = list(frames), dict(members)
    mass, com, inertia = target
    R = frames[name].rotation
    members[name] = _in_link_axes(members[name])
    best, smallest = members[name], np.inf
    for _ in range(REFINEMENTS):
        link = members[name]
        m = link.mass + (mass - lump(names, frames, members)[0])
        link = members[name] = replace(link, mass=float(m))
        error = com - lump(names, frames, members)[1]
        ratio = mass / m if m else 1.0
        link = members[name] = replace(
            link, com=as_vector(np.array(link.com) + ratio * (R.T @ error))
        )
        difference = inertia - lump(names, frames, members)[2]
        members[name] = replace(
            link, inertia=as_matrix(np.array(link.inertia) + R.T @ difference @ R)
        )
        distance = _distance(lump(names, frames, members), target)
        if distance < smallest:
            best, smallest = members[name], distance
    return members | {name: best}


def _in_link_axes(link: LinkDescription) -> LinkDescription:
    axes = np.array(link.inertia_rotation)
    I = axes @ np.array(link.inertia) @ axes.T
    return replace(link, inertia=as_matrix(I), inertia_rotation=IDENTITY)


def _map_affinely(members: Links, frames: dict[str, Frame], target: BodyInertia) -> Links:
    """Map the mass distribution of all links by a symmetric stretch and a shift to the body's new one.

    The map is the optimal transport between two normal distributions (least mean square distance).

    Reference: C. Givens, R. Shortt, *A class of Wasserstein metrics for probability distributions*, Michigan
    Math. J. 31(2), 1984, Prop. 7.
    """
    mass, com, inertia = target
    old_mass, old_com, old_inertia = lump(list(frames), frames, members)
    ratio = float(mass) / old_mass
    before, after = _second_moment(old_inertia) / old_mass, _second_moment(inertia) / mass
    root, inverse_root = _power(before, 0.5), _power(before, -0.5)
    F = inverse_root @ _power(root @ after @ root, 0.5) @ inverse_root
    result: Links = {}
    for name, link in members.items():
        link, frame = _in_link_axes(link), frames[name]
        R = frame.rotation
        place = F @ (frame.position + R @ np.array(link.com) - old_com) + com
        G = R.T @ F @ R
        S = ratio * (G @ _second_moment(np.array(link.inertia)) @ G.T)
        result[name] = replace(
            link,
            mass=ratio * link.mass,
            com=as_vector(R.T @ (place - frame.position)),
            inertia=as_matrix(np.trace(S) * np.eye(3) - S),
        )
    return result


def _second_moment(inertia: np.ndarray) -> np.ndarray:
    """Second moment of mass about the center of mass, from the inertia about it."""
    return np.trace(inertia) / 2 * np.eye(3) - inertia


def _power(S: np.ndarray, exponent: float) -> np.ndarray:
    value, vector = np.linalg.eigh(S)
    return (vector * value**exponent) @ vector.T


def _is_physical(link: LinkDescription) -> bool:
    """True if a rigid body can have the link's mass and inertia, up to rounding."""
    smallest, _, largest = np.linalg.eigvalsh(_second_moment(np.array(link.inertia)))
    return link.mass >= 0 and bool(smallest >= -1e-12 * abs(largest))


def _distance(body: Iterable[Any], target: Iterable[Any]) -> float:
    """Largest relative difference of mass, center of mass and inertia."""
    return max(
        float(np.abs(x - y).max()) / (float(np.abs(y).max()) or 1.0)
        for x, y in zip(body, target, strict=True)
    )
