"""Spatial inertias: from mass, centre of mass and rotational inertia to 6 x 6, and the pseudo-inertia.

Spatial vectors are angular first; inertias are about the body frame's origin, in its axes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.spatial.rotation import skew


def spatial_inertia(mass: Tensor, com: Tensor, inertia: Tensor) -> Tensor:
    """Spatial inertia about the body origin.

    Args:
        mass: `[*]` [kg].
        com: centre of mass in the body frame, `[*, 3]` [m].
        inertia: rotational inertia about the centre of mass, in the body frame's axes, `[*, 3, 3]`
            [kg m^2]; its symmetric part is used, so that gradients to it are symmetric.

    Returns:
        `[*, 6, 6]`: [[I_o, m skew(c)], [-m skew(c), m 1]].
    """
    C = skew(com)
    h = mass[..., None, None] * C
    I_o = (inertia + inertia.mT) / 2 - h @ C
    identity = torch.eye(3, dtype=mass.dtype, device=mass.device)
    m = mass[..., None, None] * identity
    I_o, h, m = torch.broadcast_tensors(I_o, h, m)
    return torch.cat([torch.cat([I_o, h], -1), torch.cat([h.mT, m], -1)], -2)


def pseudo_inertia(mass: Tensor, com: Tensor, inertia: Tensor) -> Tensor:
    """The 4 x 4 pseudo-inertia, positive definite exactly for physical parameters.

    Args:
        mass: `[*]` [kg].
        com: `[*, 3]` [m].
        inertia: about the centre of mass, `[*, 3, 3]` [kg m^2].

    Returns:
        `[*, 4, 4]`: [[Sigma, m c], [m c*, m]], Sigma the second moment of mass about the origin.

    Reference: P. Wensing, S. Kim, J.-J. Slotine, *Linear matrix inequalities for physically consistent
    inertial parameter identification*, IEEE RA-L 3(1), 2018.
    """
    identity = torch.eye(3, dtype=mass.dtype, device=mass.device)
    trace = inertia.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    first = mass[..., None] * com
    sigma = trace / 2 * identity - inertia + first[..., :, None] * com[..., None, :]
    last = torch.cat([first, mass[..., None]], -1)
    return torch.cat([torch.cat([sigma, first[..., None]], -1), last[..., None, :]], -2)


def from_pseudo_inertia(J: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mass `[*]`, centre of mass `[*, 3]` and inertia about it `[*, 3, 3]` of a pseudo-inertia."""
    mass = J[..., 3, 3]
    com = J[..., :3, 3] / mass[..., None]
    sigma = J[..., :3, :3] - mass[..., None, None] * com[..., :, None] * com[..., None, :]
    identity = torch.eye(3, dtype=J.dtype, device=J.device)
    trace = sigma.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return mass, com, trace * identity - sigma
