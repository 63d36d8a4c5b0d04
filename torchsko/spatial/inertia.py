"""Spatial inertias: from mass, center of mass and rotational inertia to 6 x 6, and the pseudo-inertia.

Spatial vectors are angular first; inertias are about the body frame's origin, in its axes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.spatial.rotation import cross, skew
from torchsko.utils.shapes import concatenate


def spatial_inertia(mass: Tensor, com: Tensor, inertia: Tensor) -> Tensor:
    """Spatial inertia about the body origin.

    Args:
        mass: `[*]` [kg].
        com: center of mass in the body frame, `[*, 3]` [m].
        inertia: rotational inertia about the center of mass, in the body frame's axes, `[*, 3, 3]`
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


def inertial_vector(mass: Tensor, com: Tensor, inertia: Tensor) -> Tensor:
    """The ten numbers in which everything a body does is linear, in Pinocchio's order.

    Args:
        mass: `[*]` [kg].
        com: `[*, 3]` [m].
        inertia: about the center of mass, `[*, 3, 3]` [kg m^2]; its symmetric part is used.

    Returns:
        `[*, 10]`: mass, first moment m c (3) [kg m], inertia about the body's origin in its axes
        (xx, xy, yy, xz, yz, zz) [kg m^2].
    """
    M = spatial_inertia(mass, com, inertia)
    places = ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2))
    first = mass[..., None] * com
    parts = [M[..., 5, 5], *first.unbind(-1), *(M[..., i, j] for i, j in places)]
    return torch.stack(torch.broadcast_tensors(*parts), -1)


def pack_inertial(mass: Tensor, com: Tensor, inertia: Tensor) -> Tensor:
    """Mass `[*]`, center of mass `[*, 3]`, inertia about it `[*, 3, 3]`, to `[*, 10]`."""
    symmetric = (inertia + inertia.mT) / 2
    moments = [
        symmetric[..., i, j, None] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))
    ]
    return concatenate([mass[..., None], com, *moments])


def unpack_inertial(value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mass `[*]`, center of mass `[*, 3]` and inertia about it `[*, 3, 3]` of `[*, 10]`."""
    mass, _, _, _, xx, yy, zz, xy, xz, yz = value.unbind(-1)
    rows = [torch.stack(row, -1) for row in ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))]
    return mass, value[..., 1:4], torch.stack(rows, -2)


def inertia_of_vector(vector: Tensor) -> Tensor:
    """Spatial inertia about the body origin of the numbers of `inertial_vector`, `[*, 10]` to `[*, 6, 6]`."""
    mass, first, moments = vector.split((1, 3, 6), -1)
    xx, xy, yy, xz, yz, zz = moments.unbind(-1)
    rows = [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]
    I_o = torch.stack([torch.stack(row, -1) for row in rows], -2)
    h = skew(first)
    m = mass[..., None] * torch.eye(3, dtype=vector.dtype, device=vector.device)
    return torch.cat([torch.cat([I_o, h], -1), torch.cat([h.mT, m], -1)], -2)


def compensated_mass(mass: Tensor, com: Tensor, gravcomp: Tensor) -> tuple[Tensor, Tensor]:
    """The mass of bodies whose weight is compensated, and its first moment in the body frame.

    Args:
        mass: `[*]` [kg].
        com: `[*, 3]` [m].
        gravcomp: share of the weight, and moment besides, `[*, 4]` [1, kg m].

    Returns:
        `[*, 1]` [kg] and `[*, 3]` [kg m].
    """
    lifted = gravcomp[..., :1] * mass[..., None]
    return lifted, lifted * com + gravcomp[..., 1:]


def force_regressor(V: Tensor, alpha: Tensor) -> Tensor:
    r"""The matrix that takes a body's `inertial_vector` to the force that moves it so.

    With the acceleration of the origin, d = dv/dt + w x v, and the matrix L(w) for which
    I w = L(w) [Ixx, Ixy, Iyy, Ixz, Iyz, Izz],

    .. math::
        Y = \begin{bmatrix} 0 & -\tilde d & L(\dot w) + \tilde w L(w) \\
        d & \tilde{\dot w} + \tilde w \tilde w & 0 \end{bmatrix}.

    Args:
        V: velocity of the body in its frame at its origin, column `[*, 6, 1]`.
        alpha: rate of V in that frame, less gravity's acceleration, column `[*, 6, 1]`.

    Returns:
        `[*, 6, 10]`; times the ten numbers it is M alpha + V x_f M V.

    Reference: C. Atkeson, C. An, J. Hollerbach, *Estimation of inertial parameters of manipulator
    loads and links*, International Journal of Robotics Research 5(3), 1986.
    """
    V, alpha = torch.broadcast_tensors(V, alpha)
    w, v = V[..., :3, 0], V[..., 3:, 0]
    origin = alpha[..., 3:, 0] + cross(w, v)
    # Y is linear in 15 numbers: one product with a constant is faster than placing 60 entries.
    products = (w[..., :, None] * w[..., None, :]).flatten(-2)
    numbers = torch.cat([alpha[..., :3, 0], origin, products], -1)
    unit = torch.eye(15, dtype=V.dtype, device=V.device)
    return (numbers @ _placed(unit).flatten(1)).unflatten(-1, (6, 10))


def _placed(numbers: Tensor) -> Tensor:
    """Y of dw/dt (3), d (3) and w w* (9), `[*, 15]` to `[*, 6, 10]`."""
    turning, origin, products = numbers.split((3, 3, 9), -1)
    square = products.unflatten(-1, (3, 3))
    x, y, z = _moments(square).unbind(-3)  # w_x L(w), w_y L(w), w_z L(w)
    swung = [y[..., 2, :] - z[..., 1, :], z[..., 0, :] - x[..., 2, :], x[..., 1, :] - y[..., 0, :]]
    moments = _moments(turning) + torch.stack(swung, -2)
    trace = square.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    identity = torch.eye(3, dtype=numbers.dtype, device=numbers.device)
    nothing = torch.zeros_like(moments)
    upper = [nothing[..., :1], skew(-origin), moments]
    lower = [origin[..., None], skew(turning) + square - trace * identity, nothing]
    return torch.cat([torch.cat(upper, -1), torch.cat(lower, -1)], -2)


def _moments(w: Tensor) -> Tensor:
    """L(w): I w as a matrix times (xx, xy, yy, xz, yz, zz), `[*, 3]` to `[*, 3, 6]`."""
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    rows = ((x, y, o, z, o, o), (o, x, y, o, z, o), (o, o, o, x, y, z))
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def pseudo_inertia(mass: Tensor, com: Tensor, inertia: Tensor) -> Tensor:
    """The 4 x 4 pseudo-inertia, positive definite exactly for physical parameters.

    Args:
        mass: `[*]` [kg].
        com: `[*, 3]` [m].
        inertia: about the center of mass, `[*, 3, 3]` [kg m^2].

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
    """Mass `[*]`, center of mass `[*, 3]` and inertia about it `[*, 3, 3]` of a pseudo-inertia."""
    mass = J[..., 3, 3]
    com = J[..., :3, 3] / mass[..., None]
    sigma = J[..., :3, :3] - mass[..., None, None] * com[..., :, None] * com[..., None, :]
    identity = torch.eye(3, dtype=J.dtype, device=J.device)
    trace = sigma.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return mass, com, trace * identity - sigma


def coriolis_inertia(M: Tensor, V: Tensor) -> Tensor:
    r"""The rate of an inertia as its body moves, split in two: B with B V = V x_f M V.

    .. math::
        B = \tfrac12 [(V \times_f) M - M (V \times_m) + (M V) \bar\times_f]
          = \begin{bmatrix} \tilde\omega (I - \tfrac12 \mathrm{tr}(I)\, 1) - \tilde h \tilde v & 0 \\
            -\tilde p & 0 \end{bmatrix},

    with the rotational inertia I about the origin, the first moment h and the linear momentum p. A steady
    translation adds nothing, as for Galilei; B + B* is the rate of M seen from the inertial frame.

    Args:
        M: spatial inertia of a rigid body, `[*, 6, 6]`.
        V: its velocity, column `[*, 6, 1]`.

    Returns:
        `[*, 6, 6]`.

    Reference: S. Echeandia, P. Wensing, *Numerical methods to compute the Coriolis matrix and Christoffel
    symbols for rigid-body systems*, Journal of Computational and Nonlinear Dynamics 16(9), 2021.
    """
    w, v = skew(V[..., :3, 0]), skew(V[..., 3:, 0])
    p = skew((M[..., 3:, :] @ V)[..., 0])
    I, h = M[..., :3, :3], M[..., :3, 3:]
    trace = I.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    half = I - trace * torch.eye(3, dtype=M.dtype, device=M.device) / 2
    left = torch.cat(torch.broadcast_tensors(w @ half - h @ v, -p), -2)
    return torch.cat([left, torch.zeros_like(left)], -1)
