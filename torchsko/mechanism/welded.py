"""Links connected by fixed joints: their placement on a body, and their combined inertia."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchsko.mechanism.description import FIXED, JointDescription, LinkDescription

WORLD = "<inertial frame>"
"""Name of the inertial frame among links."""

SNAP = 1e-14
"""Largest rounding error of an entry 0 or +-1 of a rotation; such entries are made exact."""


@dataclass(frozen=True)
class Frame:
    """Placement of a link on a moving link (`carrier`, None for the inertial frame)."""

    carrier: str | None
    rotation: np.ndarray
    position: np.ndarray


def frames_of(order: Sequence[JointDescription]) -> dict[str, Frame]:
    """Placement of every link and of the inertial frame; parent joints come first in `order`."""
    frames = {WORLD: Frame(None, np.eye(3), np.zeros(3))}
    for joint in order:
        if joint.kind == FIXED:
            frames[joint.child] = compose(frames[joint.parent], joint)
        else:
            frames[joint.child] = Frame(joint.child, np.eye(3), np.zeros(3))
    return frames


def compose(parent: Frame, joint: JointDescription) -> Frame:
    """Placement of the child of a joint at zero displacement, from that of its parent."""
    rotation = snapped(parent.rotation @ _rotation(joint.rotation))
    position = parent.position + parent.rotation @ np.array(joint.position)
    return Frame(parent.carrier, rotation, position)


def _rotation(rows: Sequence[Sequence[float]]) -> np.ndarray:
    return snapped(np.array(rows, dtype=np.float64))


def snapped(matrix: np.ndarray) -> np.ndarray:
    """Round entries within SNAP of 0 and +-1, so that traced programs omit them."""
    near = np.round(matrix)
    return np.where(np.abs(matrix - near) <= SNAP, near + 0.0, matrix)


def welded_links(frames: Mapping[str, Frame]) -> dict[str | None, list[str]]:
    """Names of the links on each moving link, in order."""
    found: dict[str | None, list[str]] = {}
    for name, frame in frames.items():
        found.setdefault(frame.carrier, []).append(name)
    return found


def lump(
    welded: Sequence[str], frames: Mapping[str, Frame], links: Mapping[str, LinkDescription]
) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass, center of mass and inertia about it of the links welded to one body."""
    masses, coms, inertias = [], [], []
    for name in welded:
        link, frame = links[name], frames[name]
        turn = frame.rotation @ _rotation(link.inertia_rotation)
        masses.append(link.mass)
        coms.append(frame.position + frame.rotation @ np.array(link.com))
        inertias.append(turn @ np.array(link.inertia) @ turn.T)
    mass = sum(masses)
    if len(masses) == 1 or mass == 0:
        return mass, coms[0], np.sum(inertias, axis=0)
    com = np.average(coms, axis=0, weights=masses)
    arms = coms - com
    spread = [
        m * (arm @ arm * np.eye(3) - np.outer(arm, arm))
        for m, arm in zip(masses, arms, strict=True)
    ]
    return mass, com, np.sum(inertias, axis=0) + np.sum(spread, axis=0)


def compensated(
    welded: Sequence[str], frames: Mapping[str, Frame], links: Mapping[str, LinkDescription]
) -> np.ndarray:
    """`Mechanism.gravcomp` of the links welded to one body."""
    massive = [links[name] for name in welded if links[name].mass]
    if len({link.gravcomp for link in massive}) < 2:
        return np.array([massive[0].gravcomp if massive else 0.0, 0.0, 0.0, 0.0])
    masses = np.array([link.mass for link in massive])
    lifted = masses * [link.gravcomp for link in massive]
    coms = [frames[x.name].position + frames[x.name].rotation @ np.array(x.com) for x in massive]
    share = lifted.sum() / masses.sum()
    return np.array([share, *(lifted - share * masses) @ coms])
