r"""Whether the inertias of a file can belong to rigid bodies.

A mass distribution has second moments :math:`\Sigma = \int r r^T dm` about its centre of mass, and
inertia :math:`I = \mathrm{tr}(\Sigma) 1 - \Sigma`. So I is physical exactly when
:math:`\Sigma = \mathrm{tr}(I)/2 - I` is positive semidefinite: the eigenvalues of Sigma are half of
``b + c - a``, over the principal moments a, b, c, so this one test is the triangle inequality, and
implies that I is positive semidefinite (Wensing, Kim and Slotine 2018, *Linear matrix inequalities
for physically consistent inertial parameter identification*, IEEE RA-L 3(1)).

Links joined by fixed joints are one rigid body, and the law holds for that body. Real files hang
dummy inertias (all nine entries alike, say) on the frames of heavy links: such a link is reported,
and refused only where the rigid body it belongs to is unphysical too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import RobotFileError
from torchsko.mechanism.description import JointDescription, LinkDescription, Unused

Array = NDArray[np.float64]

# Six printed digits of a flat body may miss equality by this much of the largest second moment.
RELATIVE_TOLERANCE = 1e-6
# Second moments of a body smaller than a micrometre are round-off of "zero" (iCub's files: 1e-20).
SMALLEST_RADIUS = 1e-6


def check_inertias(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription]
) -> list[Unused]:
    """Refuse inertias that no rigid body has.

    Args:
        links: as read; masses are not negative.
        joints: as read, between known links.

    Returns:
        One entry for each link that is unphysical by itself, but rigidly joined to others with
        which it makes a physical body.

    Raises:
        RobotFileError: an inertia that is not positive semidefinite, or breaks the triangle
            inequality; names the link and the principal moments.
    """
    notes: list[Unused] = []
    for link in links:
        if _is_physical(link.mass, _second_moments(link)):
            continue
        members, mass, second = _rigid_body(link, links, joints)
        if len(members) == 1 or not _is_physical(mass, second):
            raise RobotFileError(_message(link, members))
        notes.append(
            Unused(
                f"link {link.name!r} <inertia>",
                "used as written, though no rigid body has it (principal moments "
                f"{_moments(link)}): with the links fixed to it, {len(members)} in all, it makes "
                "a physical body",
            )
        )
    return notes


def _second_moments(link: LinkDescription) -> Array:
    """About the centre of mass, along the axes of the inertial frame [kg m^2]."""
    inertia = np.array(link.inertia)
    return 0.5 * np.trace(inertia) * np.eye(3) - inertia


def _is_physical(mass: float, second: Array) -> bool:
    # Numbers of 1e200 are legal in a file; squared inside an eigenvalue routine they are not.
    scale = float(np.abs(second).max())
    if scale == 0.0:
        return True
    if not math.isfinite(scale):
        return False
    moments = np.linalg.eigvalsh(second / scale)
    slack = RELATIVE_TOLERANCE * np.abs(moments).max() + mass / scale * SMALLEST_RADIUS**2
    return bool(moments.min() >= -slack)


def _rigid_body(
    link: LinkDescription, links: Sequence[LinkDescription], joints: Sequence[JointDescription]
) -> tuple[list[str], float, Array]:
    """Names, mass and second moments of the links rigidly joined to this one, itself included."""
    pose = _fixed_poses(link.name, links, joints)
    members = [other for other in links if other.name in pose]
    mass = np.array([member.mass for member in members])
    com, second = np.zeros((len(members), 3)), np.zeros((len(members), 3, 3))
    for i, member in enumerate(members):
        R, p = pose[member.name]
        axes = R @ np.array(member.inertia_rotation)
        com[i] = R @ np.array(member.com) + p
        second[i] = axes @ _second_moments(member) @ axes.T
    total = float(mass.sum())
    arm = com - (mass @ com / total if total > 0 else 0.0)
    return (
        [member.name for member in members],
        total,
        second.sum(0) + np.einsum("i,ij,ik->jk", mass, arm, arm),
    )


def _fixed_poses(
    root: str, links: Sequence[LinkDescription], joints: Sequence[JointDescription]
) -> dict[str, tuple[Array, Array]]:
    """Rotation and position, in the frame of `root`, of the links that fixed joints tie to it."""
    steps: dict[str, list[tuple[str, Array, Array]]] = {link.name: [] for link in links}
    for joint in joints:
        if joint.kind == "fixed":
            R, p = np.array(joint.rotation), np.array(joint.position)
            steps[joint.parent].append((joint.child, R, p))
            steps[joint.child].append((joint.parent, R.T, -R.T @ p))
    pose = {root: (np.eye(3), np.zeros(3))}
    queue = deque(pose)
    while queue:
        here = queue.popleft()
        R_here, p_here = pose[here]
        for other, R, p in steps[here]:
            if other not in pose:
                pose[other] = (R_here @ R, R_here @ p + p_here)
                queue.append(other)
    return pose


def _moments(link: LinkDescription) -> str:
    inertia = np.array(link.inertia)
    scale = np.abs(inertia).max()
    a, b, c = np.linalg.eigvalsh(inertia / scale) * scale
    return f"{c:.6g}, {b:.6g}, {a:.6g} kg m^2"


def _message(link: LinkDescription, members: list[str]) -> str:
    joined = f", nor do the {len(members)} links fixed together with it" if len(members) > 1 else ""
    return (
        f"link {link.name!r}: no rigid body has this <inertia>{joined}; "
        f"its principal moments are {_moments(link)}.\n"
        "Each must be positive, and the largest at most the sum of the other two (triangle "
        "inequality); otherwise some motion has negative energy or no mass distribution fits.\n"
        "Correct ixx ... izz of that link: about its centre of mass, along the axes of <inertial>."
    )
