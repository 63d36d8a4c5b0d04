"""Bodies and joints of a new MJCF file, and the body on which a frame lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from torchsko.io.mjcf.poses import HERE, Pose, compose, inverse
from torchsko.mechanism.description import LinkDescription
from torchsko.mechanism.mechanism import Mechanism


@dataclass(frozen=True)
class FileJoint:
    """A joint of a new file.

    Attributes:
        name: its name.
        body: index of the mechanism's joint of which it is a motion.
        motion: index of the motion; 0 for ball and free joints.
        type: "hinge", "slide", "ball" or "free".
        axis: in the MJCF body.
        anchor: in the MJCF body [m].
        start: initial coordinate of a hinge or slide [rad or m].
    """

    name: str
    body: int
    motion: int
    type: str
    axis: np.ndarray
    anchor: np.ndarray
    start: float


@dataclass
class FileBody:
    """A body of a new file.

    Attributes:
        name: its name.
        parent: name of the parent; "world" is the inertial frame.
        pose: initial pose in the parent.
        link: inertial parameters; None for a body that does not need them.
        joints: its joints.
        lines: lines of its sites and geoms.
        quaternion: initial orientation of a floating body, as in q; None for others.
    """

    name: str
    parent: str
    pose: Pose
    link: LinkDescription | None
    joints: tuple[FileJoint, ...] = ()
    lines: list[str] = field(default_factory=list)
    quaternion: np.ndarray | None = None


def owner(
    mech: Mechanism, frame: int, place: tuple[str, Pose], bodies: Mapping[str, FileBody]
) -> tuple[str, Pose]:
    """The link of a frame, and the frame's pose there.

    MuJoCo scales the softness of an equality by the inverse mass at the center of mass of the link that has
    the site. Of the links that are welded together, that with the nearest center of mass is the frame's.

    Args:
        mech: a mechanism.
        frame: index of the frame.
        place: body of the frame, and the frame's pose there.
        bodies: bodies of the file.
    """
    main, pose = place
    center = mech.file_metadata.centers.get(mech.frame_names[frame])
    if center is None:
        return place
    found, at = [], pose[1] + pose[0] @ np.array(center)
    for name, body in bodies.items():
        if body.link is not None and (name == main or (body.parent == main and not body.joints)):
            R, p = link = HERE if name == main else body.pose
            distance = float(np.linalg.norm(p + R @ np.array(body.link.com) - at))
            found.append((distance, name, link))
    if not found:
        return place
    _, name, link = min(found, key=lambda x: x[0])
    return name, compose(inverse(link), pose)
