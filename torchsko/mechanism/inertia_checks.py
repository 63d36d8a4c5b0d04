r"""Physical consistency of the inertias of links.

A mass distribution has second moments :math:`\Sigma = \int r r^T dm` about its center of mass, and
inertia :math:`I = \mathrm{tr}(\Sigma) 1 - \Sigma`. So I is physical exactly when
:math:`\Sigma = \mathrm{tr}(I)/2 - I` is positive semidefinite: the eigenvalues of Sigma are half of
``b + c - a``, over the principal moments a, b, c, so this one test is the triangle inequality, and
implies that I is positive semidefinite (Wensing, Kim and Slotine 2018, *Linear matrix inequalities
for physically consistent inertial parameter identification*, IEEE RA-L 3(1)).

Links joined by fixed joints are one rigid body, whose total inertia has to be physical. Robot files often
contain placeholder inertias (such as nine equal entries) for links fixed to heavy ones; such a link is
excused if the whole rigid body is physical.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsko.mechanism.description import FIXED, JointDescription, LinkDescription

Array = NDArray[np.float64]
Pose = tuple[Array, Array]

RELATIVE_TOLERANCE = 1e-6
"""Tolerance relative to the largest second moment: files print about six digits."""

SMALLEST_RADIUS = 1e-6
"""Radius of gyration [m] below which second moments are rounding errors of zero (iCub's files: 1e-20)."""


@dataclass(frozen=True)
class UnphysicalLink:
    """A link with an unphysical inertia.

    Attributes:
        name: name of the link.
        moments: principal moments of inertia, largest first [kg m^2].
        members: names of all links of its rigid body.
        excused: whether the rigid body as a whole is physical.
    """

    name: str
    moments: tuple[float, float, float]
    members: tuple[str, ...]
    excused: bool


def unphysical_links(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription]
) -> list[UnphysicalLink]:
    """The links whose inertias are not positive semidefinite or break the triangle inequality.

    Args:
        links: links with finite, symmetric inertias and nonnegative masses.
        joints: joints, of which fixed ones connect links rigidly; unknown link names are ignored.

    Returns:
        One entry for each unphysical link, in order.
    """
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # `magnitudes` refuses numbers that are too large
        fits = _are_physical(
            np.array([link.mass for link in links]),
            _second_moments(np.array([link.inertia for link in links]).reshape(-1, 3, 3)),
        )
        bad = [link for link, physical in zip(links, fits, strict=True) if not physical]
        bodies = _rigid_bodies(bad, links, joints) if bad else {}
        together = {name: _are_physical(*bodies[name][1:]) for name in bodies}
    return [
        UnphysicalLink(
            link.name,
            _moments(link),
            bodies[link.name][0],
            excused=len(bodies[link.name][0]) > 1 and bool(together[link.name]),
        )
        for link in bad
    ]


def _second_moments(inertia: Array) -> Array:
    """Second moments about the center of mass, `[*, 3, 3]` [kg m^2], from inertias `[*, 3, 3]`."""
    return 0.5 * np.trace(inertia, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) - inertia


def _are_physical(mass: Array, second: Array) -> NDArray[np.bool_]:
    """True if masses `[*]` with second moments `[*, 3, 3]` are physical, `[*]`."""
    scale = np.abs(second).max(axis=(-2, -1))
    # Scaled, since numbers such as 1e200 overflow inside the eigenvalue routine.
    usual = (scale > 0.0) & np.isfinite(scale)
    unit = np.where(usual, scale, 1.0)
    scaled = np.where(usual[..., None, None], second / unit[..., None, None], 0.0)
    moments = np.linalg.eigvalsh(scaled)
    slack = RELATIVE_TOLERANCE * np.abs(moments).max(-1) + mass / unit * SMALLEST_RADIUS**2
    return moments.min(-1) >= -slack


Body = tuple[tuple[str, ...], Array, Array]


def _rigid_bodies(
    wanted: Sequence[LinkDescription],
    links: Sequence[LinkDescription],
    joints: Sequence[JointDescription],
) -> dict[str, Body]:
    """For each wanted link its rigid body: names of all links, total mass and second moments."""
    by_name = {link.name: link for link in links}
    place = {name: at for at, name in enumerate(by_name)}
    steps = _fixed_steps(links, joints)
    found: dict[str, Body] = {}
    for link in wanted:
        if link.name not in found:
            pose = _fixed_poses(link.name, steps)
            members = sorted(pose, key=place.__getitem__)
            body = _rigid_body([by_name[name] for name in members], pose)
            found |= dict.fromkeys(members, body)
    return found


def _rigid_body(members: Sequence[LinkDescription], pose: dict[str, Pose]) -> Body:
    mass = np.array([member.mass for member in members])
    com, second = np.zeros((len(members), 3)), np.zeros((len(members), 3, 3))
    for i, member in enumerate(members):
        R, p = pose[member.name]
        axes = R @ np.array(member.inertia_rotation)
        com[i] = R @ np.array(member.com) + p
        second[i] = axes @ _second_moments(np.array(member.inertia)) @ axes.T
    total = mass.sum()
    arm = com - (mass @ com / total if total > 0 else 0.0)
    return (
        tuple(member.name for member in members),
        total,
        second.sum(0) + np.einsum("i,ij,ik->jk", mass, arm, arm),
    )


def _fixed_steps(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription]
) -> dict[str, list[tuple[str, Pose]]]:
    """For each link its neighbors by fixed joints, with their poses in its frame."""
    steps: dict[str, list[tuple[str, Pose]]] = {link.name: [] for link in links}
    for joint in joints:
        if joint.kind == FIXED and joint.parent in steps and joint.child in steps:
            R, p = np.array(joint.rotation), np.array(joint.position)
            steps[joint.parent].append((joint.child, (R, p)))
            steps[joint.child].append((joint.parent, (R.T, -R.T @ p)))
    return steps


def _fixed_poses(root: str, steps: dict[str, list[tuple[str, Pose]]]) -> dict[str, Pose]:
    """Pose in the frame of `root` of every link in its rigid body."""
    pose = {root: (np.eye(3), np.zeros(3))}
    queue = deque(pose)
    while queue:
        here = queue.popleft()
        R_here, p_here = pose[here]
        for other, (R, p) in steps[here]:
            if other not in pose:
                pose[other] = (R_here @ R, R_here @ p + p_here)
                queue.append(other)
    return pose


def _moments(link: LinkDescription) -> tuple[float, float, float]:
    inertia = np.array(link.inertia)
    scale = np.abs(inertia).max()
    a, b, c = (float(w) for w in np.linalg.eigvalsh(inertia / scale) * scale)
    return c, b, a
