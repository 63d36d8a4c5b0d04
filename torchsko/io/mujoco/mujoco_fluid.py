"""Fluid of a compiled MuJoCo model, and the shapes on which it exerts forces."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from torchsko.io.mujoco.mujoco_fields import body_name, without_passive_forces
from torchsko.io.mujoco.mujoco_model import rotation_of
from torchsko.mechanism.mechanism import Mechanism

MIN_MASS = 1e-15
"""Mass below which MuJoCo omits the fluid forces of a body [kg] (mjMINVAL)."""

SPHERE, CAPSULE, CYLINDER = 2, 3, 5
"""MuJoCo's types of shapes (mjtGeom) whose sizes are not semi-axes."""


class FluidShape(NamedTuple):
    """One shape with fluid forces.

    Attributes:
        body: name of its body.
        model: "box" or "ellipsoid".
        rotation: axes of the shape in the body.
        position: center of the shape in the body [m].
        size: see `torchsko.mechanism.mechanism.Mechanism`.
        coefficients: see `torchsko.bridge.fluid_forces`.
    """

    body: str
    model: str
    rotation: np.ndarray
    position: np.ndarray
    size: np.ndarray
    coefficients: np.ndarray


def fluid_fields(model: Any, mech: Mechanism) -> dict[str, Any]:
    """Fields of a mechanism for the fluid of a model; empty in a vacuum.

    Args:
        model: ``mujoco.MjModel``.
        mech: its mechanism, in float64 on the CPU.
    """
    medium = np.maximum([model.opt.density, model.opt.viscosity], 0.0)
    if not medium.any() or without_passive_forces(model):
        return {}
    shapes = [shape for b in range(1, model.nbody) for shape in _shapes(model, b)]
    bodies, turns, shifts = [], [], []
    for shape in shapes:
        k = mech.frame_index(shape.body)
        bodies.append(mech.frame_body[k])
        R, r = mech.frame_rotation[k].numpy(), mech.frame_position[k].numpy()
        turns.append(R @ shape.rotation)
        shifts.append(r + R @ shape.position)
    return {
        "medium": torch.tensor(medium),
        "wind": torch.tensor(np.array(model.opt.wind, dtype=np.float64)),
        "fluid_rotation": _tensor(turns, 3, 3),
        "fluid_position": _tensor(shifts, 3),
        "fluid_size": _tensor([shape.size for shape in shapes], 3),
        "fluid_coefficients": _tensor([shape.coefficients for shape in shapes], 12),
        "fluid_bodies": tuple(bodies),
        "fluid_models": tuple(shape.model for shape in shapes),
        "has_fluid": bool(shapes),
    }


def _tensor(values: list[np.ndarray], *shape: int) -> torch.Tensor:
    return torch.tensor(np.array(values, dtype=np.float64).reshape(len(values), *shape))


def _shapes(model: Any, b: int) -> list[FluidShape]:
    """Ellipsoids of the geoms of a body that have them, else the box with the inertia of the body."""
    if model.body_mass[b] < MIN_MASS:
        return []
    first, name = int(model.body_geomadr[b]), body_name(model, b)
    geoms = range(first, first + int(model.body_geomnum[b])) if first >= 0 else range(0)
    found = [
        FluidShape(
            name,
            "ellipsoid",
            rotation_of(model.geom_quat[g]),
            np.array(model.geom_pos[g]),
            _semi_axes(model, g),
            np.array(model.geom_fluid[g]).reshape(-1),
        )
        for g in geoms
        if np.reshape(model.geom_fluid[g], -1)[0] > 0
    ]
    if found:
        return found
    moments, mass = np.array(model.body_inertia[b]), float(model.body_mass[b])
    edges = np.sqrt(np.maximum(moments.sum() - 2 * moments, MIN_MASS) / mass * 6)
    R, r = rotation_of(model.body_iquat[b]), np.array(model.body_ipos[b])
    return [FluidShape(name, "box", R, r, edges, np.zeros(12))]


def _semi_axes(model: Any, g: int) -> np.ndarray:
    """Semi-axes of the ellipsoid of a geom [m]."""
    kind, size = int(model.geom_type[g]), np.array(model.geom_size[g], dtype=np.float64)
    if kind == SPHERE:
        return np.full(3, size[0])
    if kind == CAPSULE:
        return np.array([size[0], size[0], size[0] + size[1]])
    return np.array([size[0], size[0], size[1]]) if kind == CYLINDER else size
