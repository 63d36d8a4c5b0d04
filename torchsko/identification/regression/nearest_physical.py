"""Projection of unphysical nominal inertias onto the nearest physical ones."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import from_pseudo_inertia, pseudo_inertia

LENGTH_SCALE = 0.1
"""Length unit that makes masses and moments comparable [m]."""

MIN_THICKNESS_SHARE = 1e-4
"""Smallest second moment over the mass, in units of `LENGTH_SCALE` squared: a thickness of one millimeter."""


MIN_MASS_SHARE = 1e-3
"""Mass of a body that has none, against the mean of all."""


def nearest_physical(mech: Mechanism) -> tuple[Mechanism, tuple[str, ...]]:
    """Make every pseudo-inertia positive definite; also returns the names of changed bodies.

    An unphysical pseudo-inertia is replaced by the nearest one in the Frobenius norm, with lengths in tenths
    of a meter and eigenvalues bounded below by a small share of the mass. Physical bodies are unchanged to
    the bit.

    Reference: N. Higham, *Computing a nearest symmetric positive semidefinite matrix*, Linear Algebra and
    its Applications 103, 1988.
    """
    unit = torch.tensor([1 / LENGTH_SCALE] * 3 + [1.0]).to(mech.mass)
    J = unit[:, None] * pseudo_inertia(mech.mass, mech.com, mech.inertia) * unit
    mean_mass = mech.mass.abs().mean().clamp_min(1e-6)
    mass = torch.where(mech.mass > 0, mech.mass, MIN_MASS_SHARE * mean_mass)
    value, vector = torch.linalg.eigh(J)
    bad = (value[:, 0] <= 1e-3 * MIN_THICKNESS_SHARE * mass) | (mech.mass <= 0)
    if not bool(bad.any()):
        return mech, ()
    clipped = value.clamp_min(0) + 0 * mass[:, None]
    clipped = torch.maximum(clipped, (MIN_THICKNESS_SHARE * mass)[:, None])
    near = (vector * clipped[:, None, :]) @ vector.mT / unit[:, None] / unit
    projected = from_pseudo_inertia(near)
    nominal = mech.mass, mech.com, mech.inertia
    new = [
        torch.where(bad.reshape(-1, *[1] * (x.ndim - 1)), y, x)
        for x, y in zip(nominal, projected, strict=True)
    ]
    names = tuple(
        name for name, is_bad in zip(mech.body_names, bad.tolist(), strict=True) if is_bad
    )
    return mech.replace(mass=new[0], com=new[1], inertia=new[2]), names


def unpack_inertias(phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Masses, centers of mass and central inertias of inertial parameters `[bodies * 10]`."""
    x = phi.reshape(-1, 10)
    mass, first = x[:, 0], x[:, 1:4]
    com = first / mass[:, None]
    xx, xy, yy, xz, yz, zz = x[:, 4:].unbind(-1)
    rows = [torch.stack(row, -1) for row in ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))]
    about = torch.stack(rows, -2)
    eye = torch.eye(3).to(x)
    square = com.square().sum(-1)[:, None, None] * eye - com[:, :, None] * com[:, None, :]
    return mass, com, about - mass[:, None, None] * square
