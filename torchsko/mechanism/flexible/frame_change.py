r"""Motion of the points of a flexible body relative to one of its markers.

Relative to a marker with displacement u, rotation vector psi and rotation R_0, a point stands at

.. math::
    R_0^* \exp(-\tilde\psi) (x_0 - x_{m0} + (\Phi - \Phi_m) \eta
    + \tfrac12 \eta^* (\Gamma - \Gamma_m) \eta), \qquad \psi = \Psi_m \eta,

which is expanded to second order in the modal coordinates, the order of all displacements of a body.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.flexible.beam_shapes import Array
from torchsko.mechanism.flexible.marker import Marker, PointMotion


def fields_at(body: Any, marker: str, origin: str) -> dict[str, Any]:
    """Fields of a `FlexibleBody` whose frame is one of its markers; `origin` is a marker at the old one."""
    if marker not in body.markers:
        raise MechanismError(*unknown_name("marker", marker, tuple(body.markers)))
    frame, n = body.markers[marker], len(body.modes)
    others = {name: x for name, x in body.markers.items() if name != marker}
    if origin in others:
        raise MechanismError(
            f"a flexible body has another marker {origin!r}.",
            "The old frame becomes a marker of that name.",
            "Pass another name, origin=...",
        )
    others[origin] = Marker(
        np.zeros(3), np.zeros((3, n)), np.zeros((3, n)), np.eye(3), np.zeros((3, n, n))
    )
    base, R = frame.motion(), frame.rotation
    points = PointMotion(body.points, body.shapes, body.slopes, body.second_order)
    masses, inertias = body.masses, body.inertias
    if body.core_inertia.any():
        mass, com, central = core_inertial(body.core_inertia)
        points = points.joined(PointMotion.still(com, n))
        masses, inertias = np.append(masses, mass), np.concatenate([inertias, central[None]])
    moved = {name: x.motion().relative_to(base, R) for name, x in others.items()}
    return {
        **vars(points.relative_to(base, R)),
        "masses": masses,
        "inertias": R.T @ inertias @ R,
        "core_inertia": None,
        "markers": {
            name: Marker(
                x.points[0],
                x.shapes[0],
                x.slopes[0],
                R.T @ others[name].rotation,
                x.second_order[0],
            )
            for name, x in moved.items()
        },
    }


def core_inertial(inertia: Array) -> tuple[float, Array, Array]:
    """Mass, center of mass `[3]` and inertia about it `[3, 3]` of a spatial inertia, `[6, 6]`."""
    mass = float(inertia[3, 3])
    if mass == 0:
        return mass, np.zeros(3), inertia[:3, :3]
    first = inertia[:3, 3:] / mass  # the cross product with the center of mass
    com = np.array([first[2, 1], first[0, 2], first[1, 0]])
    return mass, com, inertia[:3, :3] - mass * (com @ com * np.eye(3) - np.outer(com, com))
