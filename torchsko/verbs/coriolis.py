r"""The Coriolis matrix of a mechanism, in the factorisation that makes dM/dt - 2 C skew-symmetric.

Its nodes split the rate of their inertia M, seen from the inertial frame, as

.. math::
    B = \tfrac12 [(V \times_f) M - M (V \times_m) + (M V) \bar\times_f], \qquad
    B V = V \times_f M V, \qquad B + B^* = (V \times_f) M - M (V \times_m),

with :math:`h \bar\times_f V = V \times_f h`.

Reference: S. Echeandia, P. Wensing, *Numerical methods to compute the Coriolis matrix and Christoffel
symbols for rigid-body systems*, Journal of Computational and Nonlinear Dynamics 16(9), 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import model_at
from torchsko.bridge.kinematics import body_velocities
from torchsko.mechanism.coordinates import all_q, all_rates, own_forces, uncoupled
from torchsko.mechanism.joints.groups import JointGroup
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.mechanism.verb import verb
from torchsko.spatial.motion import motion_matrix, swapped_force_matrix


@verb
def coriolis_matrix(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """The matrix C(q, qd) of Coriolis and centrifugal forces, linear in qd.

    ``C @ qd`` are these forces: the `bias_force` without gravity and passive forces. The rate of the mass
    matrix along the motion is C + C*, so dM/dt - 2 C is skew-symmetric. Many matrices do both; where qd is
    the rate of q, this is the one made of Christoffel symbols.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].

    Returns:
        `[*batch, num_dof, num_dof]` [N m s/rad, N s or N s/m].

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: Echeandia and Wensing 2021, Algorithm 1.

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> ts.coriolis_matrix(arm, q, qd).shape
        torch.Size([5, 7, 7])
    """
    check_state(mech, q=q, qd=qd)
    return mass_and_coriolis_matrix(mech, q, qd)[1]


def mass_and_coriolis_matrix(mech: Mechanism, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
    """The mass matrix and the Coriolis matrix at a state, each `[*batch, num_dof, num_dof]`."""
    if mech.coupling is not None:
        tree = uncoupled(mech)
        both = mass_and_coriolis_matrix(tree, all_q(mech, q), all_rates(mech, qd))
        M, C = (own_forces(mech, own_forces(mech, A).mT).mT for A in both)
        return M, C
    model = model_at(mech, q)
    H = model.joint_map
    V, _ = body_velocities(mech, model.edge_weight, H, q, qd)
    across = motion_matrix(V)
    own = _own_map_rates(mech, q, qd)
    X = H @ across.mT
    X = X if own is None else X + own
    half = model.inertia @ across
    B = (swapped_force_matrix(model.inertia @ V) - half - half.mT) / 2
    return algorithms.mass_and_coriolis_matrix(model, X, B)


def _own_map_rates(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor | None:
    """dH/dt of every body in its own frame, `[*batch, n, d, 6]`, breadth first; None for zero."""
    groups = mech.joints.groups
    if all(group.kind.constant_map for group in groups):
        return None
    width, parts = mech.layout.dofs.width, []
    for group in groups:
        d = group.kind.num_dof
        still = group.kind.constant_map
        rate = q.new_zeros(group.bodies.shape[0], d, 6) if still else _map_rate(group, mech, q, qd)
        parts.append(torch.nn.functional.pad(rate, (0, 0, 0, width - d)))
    return mech.joints.nodes(parts, -3)


def _map_rate(group: JointGroup, mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    r"""dH/dt of the joints of one kind, `[*batch, g, d, 6]`.

    A kind gives b(u) = Hdot* u, quadratic in the rates u. The derivative of half of it is dH/dt but for what
    the order of two motions makes, V_J x H_i, less what of it is the rates' own:

    .. math:: \dot H_i = \tfrac12 \partial b / \partial u_i - \tfrac12 (V_J \times H_i + H^* [e_i, u]).
    """
    kind, constants, x = group.kind, group.constants(mech), group.coordinates(q)
    u, H = group.rates(qd), kind.joint_map_at(constants, x)
    rows: list[Tensor] = []
    for e in torch.eye(kind.num_dof, dtype=u.dtype, device=u.device).unbind(0):
        # Of a quadratic form the central difference is exact, at any distance.
        ahead, behind = (kind.bias_accel(constants, x, w) for w in (u + e, u - e))
        own = kind.bracket(e.expand(u.shape), u)[..., None, :] @ H
        rows.append((ahead - behind) / 4 - own[..., 0, :] / 2)
    halves = H @ motion_matrix(H.mT @ u[..., None]).mT / 2
    return torch.stack(torch.broadcast_tensors(*rows), -2) - halves
