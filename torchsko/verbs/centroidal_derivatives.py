r"""Derivatives of momentum about the center of mass, and of its rate, in closed form.

A step of joint k changes the momentum of all outboard bodies by R Psi + eta x_f p and its rate by
R beta + 2 Y Psi + eta x_f f. R and Y are composite inertias, p and f the composite momentum and force
(see `torchsko.bridge.tangents`). In inertial axes at the center of mass c, which moves with the step,
:math:`\partial c \times p_{linear}` is subtracted from the angular part.

References: J. Carpentier, N. Mansard, *Analytical derivatives of rigid body dynamics algorithms*, Robotics:
Science and Systems 2018; D. Orin, A. Goswami, S.-H. Lee, *Centroidal dynamics of a humanoid robot*,
Autonomous Robots 35(2-3), 2013.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.bridge.tangents import momentum_tangents
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import skew
from torchsko.verbs.balance import centroidal_momentum_rate
from torchsko.verbs.joint_tangents import joint_bends
from torchsko.verbs.manifold_derivatives import state_jacobians
from torchsko.verbs.momenta import about_center, centroidal_momentum, of_dofs


class CentroidalDerivatives(NamedTuple):
    """Derivatives of centroidal momentum and its rate, each `[*batch, 6, num_dof]`.

    Attributes:
        momentum_q: of the momentum to tangent steps of q.
        rate_q: of its rate to tangent steps of q.
        rate_qd: of its rate to qd.
        matrix: of the momentum to qd, and of its rate to qdd: the `centroidal_momentum_matrix`.
    """

    momentum_q: Tensor
    rate_q: Tensor
    rate_qd: Tensor
    matrix: Tensor


@verb
def centroidal_derivatives(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor
) -> CentroidalDerivatives:
    """Derivatives of `centroidal_momentum` and of `centroidal_momentum_rate`, O(N).

    Returns:
        `CentroidalDerivatives`, four matrices `[*batch, 6, num_dof]`, rows [angular; linear] in inertial axes
        at the center of mass; those to q are to steps d of ``integrate(mech, q, d)`` at d = 0.

    Reference: Carpentier, Mansard 2018; Orin, Goswami, Lee 2013.

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> ts.centroidal_derivatives(arm, q, qd, torch.zeros_like(qd)).rate_q.shape
        torch.Size([5, 6, 7])
    """
    if mech.closing is not None:
        return _closed(mech, q, qd, qdd)
    state = Kinematics.of(mech, q, qd)
    bends = joint_bends(state.tree, state.tree_q, state.tree_qd)
    columns = momentum_tangents(state, state.tree_rates(qdd), bends)
    side_by_side = torch.cat(torch.broadcast_tensors(*columns), -1)
    about = about_center(state, mech.layout.tree_order(side_by_side, -3))
    h_q, rate_q, rate_qd, matrix = (of_dofs(state, x) for x in about.chunk(4, -1))
    shift = matrix[..., 3:, :] / mech.mass.sum(-1)[..., None, None]
    h, rate = centroidal_momentum(mech, q, qd), centroidal_momentum_rate(mech, q, qd, qdd)
    return CentroidalDerivatives(
        _about_moving(h_q, h, shift), _about_moving(rate_q, rate, shift), rate_qd, matrix
    )


def _closed(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> CentroidalDerivatives:
    """The derivatives of a mechanism with loops, along the closed manifold."""
    momentum = lambda q, qd: centroidal_momentum(mech, q, qd)  # noqa: E731
    rate = lambda q, qd: centroidal_momentum_rate(mech, q, qd, qdd)  # noqa: E731
    h_q, matrix = state_jacobians(mech, momentum, q, qd)
    return CentroidalDerivatives(h_q, *state_jacobians(mech, rate, q, qd, qdd.shape[:-1]), matrix)


def _about_moving(columns: Tensor, force: Tensor, shift: Tensor) -> Tensor:
    """Changes of a force about a moving point, from the changes about its initial position."""
    turned = skew(force[..., 3:]) @ shift  # - shift x force
    return torch.cat([columns[..., :3, :] + turned, columns[..., 3:, :]], -2)
