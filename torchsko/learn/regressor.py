r"""Joint forces are linear in inertial parameters: the regressor, and a distance between robots.

With phi(k) = [m, m c, I_o] (mass, first moment, inertia about the body's origin; ten numbers a
body), tau = Y(q, qd, qdd) phi + passive forces. The columns of Y are dependent: only some
combinations of phi, the *base parameters*, move any torque, and only those can be identified from
torques.

References: C. Atkeson, C. An, J. Hollerbach, *Estimation of inertial parameters of manipulator
loads and links*, International Journal of Robotics Research 5(3), 1986; M. Gautier, W. Khalil,
*Direct calculation of minimum set of inertial parameters of serial robots*, IEEE Trans. Robotics
and Automation 6(3), 1990.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.dynamics import inverse_dynamics
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import pseudo_inertia
from torchsko.spatial.rotation import skew


def linear_parameters(mech: Mechanism) -> Tensor:
    """The inertial parameters in which joint forces are linear.

    Args:
        mech: the mechanism.

    Returns:
        `[*batch, num_bodies, 10]`: mass [kg], first moment m c (3) [kg m], inertia about the body's
        origin in its axes (xx, yy, zz, xy, xz, yz) [kg m^2].
    """
    C = skew(mech.com)
    about_origin = (mech.inertia + mech.inertia.mT) / 2 - mech.mass[..., None, None] * (C @ C)
    entries = [about_origin[..., i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]
    first = mech.mass[..., None] * mech.com
    parts = [mech.mass, *first.unbind(-1), *entries]
    return torch.stack(torch.broadcast_tensors(*parts), -1)


def torque_regressor(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """The matrix Y that takes `linear_parameters` to joint forces, passive forces apart.

    Args:
        mech: the mechanism, without batch dimensions; its inertial parameters do not matter.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]`.
        qdd: acceleration, `[*batch, num_dof]`.

    Returns:
        `[*batch, num_dof, num_bodies, 10]`.
    """

    def forces(phi: Tensor) -> Tensor:
        return inverse_dynamics(_from_linear(mech, phi), q, qd, qdd)

    # The derivative of a linear map is the map; at unit masses nothing divides by zero.
    phi = torch.zeros(mech.num_bodies, 10, dtype=mech.dtype, device=mech.device)
    return torch.func.jacfwd(forces)(phi + torch.nn.functional.pad(phi[:, :1] + 1, (0, 9)))


def inertia_divergence(mech: Mechanism, reference: Mechanism) -> Tensor:
    """How far the inertial parameters of each body are from others, free of units and frames.

    The log-det Bregman divergence of pseudo-inertias, tr(X) - log det(X) - 4 with X = J J_ref^-1:
    zero when they agree, without bound towards unphysical ones. Added to a loss, it holds what the
    data cannot see near the reference.

    Args:
        mech: the mechanism.
        reference: one of as many bodies, all with positive definite pseudo-inertia.

    Returns:
        `[*batch, num_bodies]`, not negative.

    Reference: T. Lee, P. Wensing, F. Park, *Geometric robot dynamic identification: a convex
    programming approach*, IEEE Transactions on Robotics 36(2), 2020.
    """
    J = pseudo_inertia(mech.mass, mech.com, mech.inertia)
    J_ref = pseudo_inertia(reference.mass, reference.com, reference.inertia)
    factor = torch.linalg.cholesky_ex(J_ref).L
    half = torch.linalg.solve_triangular(factor, J, upper=False)
    X = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    log_det = torch.linalg.cholesky_ex(X).L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return X.diagonal(dim1=-2, dim2=-1).sum(-1) - 2 * log_det - 4


def _from_linear(mech: Mechanism, phi: Tensor) -> Mechanism:
    mass, (xx, yy, zz, xy, xz, yz) = phi[..., 0], phi[..., 4:].unbind(-1)
    com = phi[..., 1:4] / mass[..., None]
    rows = [torch.stack(row, -1) for row in ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))]
    C = skew(com)
    inertia = torch.stack(rows, -2) + mass[..., None, None] * (C @ C)
    return mech.replace(mass=mass, com=com, inertia=inertia)
