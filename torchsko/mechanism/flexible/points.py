"""Links and joints of a flexible body: its frame, mass points and markers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from torchsko.mechanism.description import JointDescription, LinkDescription
from torchsko.mechanism.flexible.flexible_body import FlexibleBody

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


def _core(name: str, body: FlexibleBody) -> LinkDescription:
    """The rigid part, on the body frame."""
    M = body.core_inertia
    mass = float(M[3, 3])
    if mass == 0:
        return LinkDescription(name, inertia=_numbers(M[:3, :3]))
    first = M[:3, 3:] / mass  # the cross product with the center of mass
    com = np.array([first[2, 1], first[0, 2], first[1, 0]])
    central = M[:3, :3] - mass * (com @ com * np.eye(3) - np.outer(com, com))
    return LinkDescription(name, mass, _numbers(com), _numbers(central))


def _numbers(x: np.ndarray) -> Any:
    """A vector or matrix as tuples of floats."""
    return tuple(x.tolist()) if x.ndim == 1 else tuple(map(tuple, x.tolist()))
