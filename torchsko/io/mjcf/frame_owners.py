"""The link of a welded body on which a frame lies, from the link's centre of mass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from torchsko.io.mjcf.poses import HERE, Pose, compose, inverse
from torchsko.mechanism.mechanism import Mechanism

if TYPE_CHECKING:
    from torchsko.io.mjcf.file_bodies import FileBody


def owner(
    mech: Mechanism, frame: int, place: tuple[str, Pose], bodies: Mapping[str, FileBody]
) -> tuple[str, Pose]:
    """The link of a frame, and the frame's pose there.

    MuJoCo scales the softness of an equality by the inverse mass at the centre of mass of the link that has
    the site. Of the links that are welded together, that with the nearest centre of mass is the frame's.

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
