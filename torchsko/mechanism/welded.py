"""Links welded to what moves them: where each of them is, and what they weigh together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchsko.mechanism.description import FIXED, JointDescription, LinkDescription

WORLD = "<inertial frame>"
"""Stands for the inertial frame among link names."""

SNAP = 1e-14
"""Entries of a rotation this close to 0 or +-1 are meant to be exactly that."""


@dataclass(frozen=True)
class Frame:
    """Where a link is: on which moving link (None: the inertial frame), and how."""

    carrier: str | None
    rotation: np.ndarray
    position: np.ndarray


def frames_of(order: Sequence[JointDescription]) -> dict[str, Frame]:
    """Where each link is, and the inertial frame, of joints of which parents come first."""
    frames = {WORLD: Frame(None, np.eye(3), np.zeros(3))}
    for joint in order:
        if joint.kind == FIXED:
            frames[joint.child] = compose(frames[joint.parent], joint)
        else:
            frames[joint.child] = Frame(joint.child, np.eye(3), np.zeros(3))
    return frames


def compose(parent: Frame, joint: JointDescription) -> Frame:
    """Where a joint puts its child while it does not move, from where its parent is."""
    rotation = snapped(parent.rotation @ _rotation(joint.rotation))
    position = parent.position + parent.rotation @ np.array(joint.position)
    return Frame(parent.carrier, rotation, position)


def _rotation(rows: Sequence[Sequence[float]]) -> np.ndarray:
    return snapped(np.array(rows, dtype=np.float64))


def snapped(matrix: np.ndarray) -> np.ndarray:
    """Entries within SNAP of 0 and +-1 made exactly so: they then vanish from traced programs."""
    near = np.round(matrix)
    return np.where(np.abs(matrix - near) <= SNAP, near + 0.0, matrix)


def welded_links(frames: Mapping[str, Frame]) -> dict[str | None, list[str]]:
    """Names of the links on each carrier, in order."""
    found: dict[str | None, list[str]] = {}
    for name, frame in frames.items():
        found.setdefault(frame.carrier, []).append(name)
    return found


def lump(
    welded: Sequence[str], frames: Mapping[str, Frame], links: Mapping[str, LinkDescription]
) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass, centre of mass and inertia about it, of a body: of all links welded to its carrier."""
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
    """The share of weight that is compensated, of all links welded to a carrier, and the moment besides."""
    own = [links[name] for name in welded if links[name].mass]
    if len({link.gravcomp for link in own}) < 2:
        return np.array([own[0].gravcomp if own else 0.0, 0.0, 0.0, 0.0])
    masses = np.array([link.mass for link in own])
    lifted = masses * [link.gravcomp for link in own]
    coms = [frames[x.name].position + frames[x.name].rotation @ np.array(x.com) for x in own]
    share = lifted.sum() / masses.sum()
    return np.array([share, *(lifted - share * masses) @ coms])
