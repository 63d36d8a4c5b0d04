"""The physical robot nearest to one whose file has inertias that no body has."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import from_pseudo_inertia, pseudo_inertia

PHYSICAL_METHODS = ("physical", "shooting")
"""Methods whose inertial numbers are a body's."""

LENGTH_SCALE = 0.1
"""Length that makes masses and moments comparable [m]."""

MIN_THICKNESS_SHARE = 1e-4
"""Smallest second moment over the mass, in units of `LENGTH_SCALE` squared: a thickness of one millimetre."""


MIN_MASS_SHARE = 1e-3
"""Mass of a body that has none, against the mean of all."""


def nearest_physical(mech: Mechanism) -> tuple[Mechanism, tuple[str, ...]]:
    """The mechanism with every pseudo-inertia positive definite, and the names of bodies that changed.

    A pseudo-inertia is changed to the nearest (in the Frobenius norm, lengths in tenths of a metre) whose
    smallest eigenvalues are a small share of the mass. Bodies that are physical are untouched, to the bit.

    Reference: N. Higham, *Computing a nearest symmetric positive semidefinite matrix*, Linear Algebra and
    its Applications 103, 1988.
    """
    unit = torch.tensor([1 / LENGTH_SCALE] * 3 + [1.0]).to(mech.mass)
    J = unit[:, None] * pseudo_inertia(mech.mass, mech.com, mech.inertia) * unit
    usual = mech.mass.abs().mean().clamp_min(1e-6)
    mass = torch.where(mech.mass > 0, mech.mass, MIN_MASS_SHARE * usual)
    value, vector = torch.linalg.eigh(J)
    bad = (value[:, 0] <= 1e-3 * MIN_THICKNESS_SHARE * mass) | (mech.mass <= 0)
    if not bool(bad.any()):
        return mech, ()
    clipped = value.clamp_min(0) + 0 * mass[:, None]
    clipped = torch.maximum(clipped, (MIN_THICKNESS_SHARE * mass)[:, None])
    near = (vector * clipped[:, None, :]) @ vector.mT / unit[:, None] / unit
    found = from_pseudo_inertia(near)
    old = mech.mass, mech.com, mech.inertia
    new = [
        torch.where(bad.reshape(-1, *[1] * (x.ndim - 1)), y, x)
        for x, y in zip(old, found, strict=True)
    ]
    names = tuple(
        name for name, is_bad in zip(mech.body_names, bad.tolist(), strict=True) if is_bad
    )
    return mech.replace(mass=new[0], com=new[1], inertia=new[2]), names


def unpack_inertias(phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mass `[bodies]`, centre of mass `[bodies, 3]` and inertia about it of `[bodies * 10]`."""
    x = phi.reshape(-1, 10)
    mass, first = x[:, 0], x[:, 1:4]
    com = first / mass[:, None]
    xx, xy, yy, xz, yz, zz = x[:, 4:].unbind(-1)
    rows = [torch.stack(row, -1) for row in ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))]
    about = torch.stack(rows, -2)
    eye = torch.eye(3).to(x)
    square = com.square().sum(-1)[:, None, None] * eye - com[:, :, None] * com[:, None, :]
    return mass, com, about - mass[:, None, None] * square
