"""Links and joints of a flexible body: its frame, mass points and markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchsko.errors import MechanismError
from torchsko.mechanism.description import JointDescription, LinkDescription
from torchsko.mechanism.flexible.flexible_body import FlexibleBody
from torchsko.mechanism.flexible.frame_change import core_inertial

Parts = tuple[list[LinkDescription], list[JointDescription]]


def flexible_parts(name: str, body: FlexibleBody) -> Parts:
    """Links and elastic joints of a flexible body whose frame is the link `name`; the first joint leads."""
    links, joints = [_core(name, body)], []
    shared = {"modes": body.modes, "reach": body.reach()}
    leader = f"{name}_modes"
    for i, point in enumerate(body.points):
        child, inertia = f"{name}/{i}", body.inertias[i]
        data = {"shape": body.shapes[i], "second_order": body.second_order[i], **shared}
        if inertia.any():
            data["slope"] = body.slopes[i]
        links.append(LinkDescription(child, float(body.masses[i]), inertia=_numbers(inertia)))
        place = {"position": _numbers(point), "data": data, "leader": leader}
        joints.append(JointDescription(child, "elastic", name, child, **place))
    for marker_name, marker in body.markers.items():
        child, turn = f"{name}/{marker_name}", marker.rotation
        data = {
            "shape": turn.T @ marker.shape,
            "second_order": np.einsum("ji,jnm->inm", turn, marker.second_order),
            "slope": turn.T @ marker.slope,
            **shared,
        }
        links.append(LinkDescription(child))
        place = {"rotation": _numbers(turn), "position": _numbers(marker.point)}
        joints.append(
            JointDescription(child, "elastic", name, child, **place, data=data, leader=leader)
        )
    joints[0] = replace(
        joints[0],
        name=leader,
        leader="",
        modal_stiffness=_numbers(body.stiffness),
        modal_damping=_numbers(body.damping),
    )
    return links, joints


def refuse_joints_above_markers(joints: Sequence[JointDescription]) -> None:
    """Refuse a joint whose child is a marker or mass point of a flexible body.

    Raises:
        MechanismError: names the joint.
    """
    bodies = {joint.child: joint.parent for joint in joints if joint.kind == "elastic"}
    for joint in joints:
        if joint.kind != "elastic" and joint.child in bodies:
            body = bodies[joint.child]
            raise MechanismError(
                f"joint {joint.name!r} has the child {joint.child!r}, a marker of the link {body!r}.",
                "A joint moves the frame of a flexible body, which moves its markers.",
                f"Pass child={body!r} and flexible_link({body!r}, body.framed_at(MARKER)).",
            )


def _core(name: str, body: FlexibleBody) -> LinkDescription:
    """The rigid part, on the body frame."""
    mass, com, central = core_inertial(body.core_inertia)
    return LinkDescription(name, mass, _numbers(com), _numbers(central))


def _numbers(x: np.ndarray) -> Any:
    """A vector or matrix as tuples of floats."""
    return tuple(x.tolist()) if x.ndim == 1 else tuple(map(tuple, x.tolist()))
