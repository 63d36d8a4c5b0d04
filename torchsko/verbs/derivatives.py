r"""Derivatives of inverse and forward dynamics in closed form, in tangent coordinates.

With qdd the acceleration that tau causes, of :math:`\tau = ID(q, \dot q, \ddot q)` follows

.. math::
    \partial_q \ddot q = -\mathcal{M}^{-1} \partial_q ID, \qquad
    \partial_{\dot q} \ddot q = -\mathcal{M}^{-1} \partial_{\dot q} ID, \qquad
    \partial_\tau \ddot q = \mathcal{M}^{-1} = W^* W,

with the whitening W = D^(-1/2) [I - H psi K] of the innovations factorization, which is zero wherever two
joints are not on one path.

References: J. Carpentier, N. Mansard, *Analytical derivatives of rigid body dynamics algorithms*, Robotics:
Science and Systems 2018; S. Singh, R. Russell, P. Wensing, *Efficient analytical derivatives of rigid-body
dynamics using spatial vector algebra*, IEEE Robotics and Automation Letters 7(2), 2022; A. Jain, *Graph
Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System Dynamics 26(3), 2011, Lemma 11.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import model_at, tree_model
from torchsko.bridge.kinematics import Kinematics
from torchsko.bridge.tangents import tangents
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import broadcast_shapes
from torchsko.verbs.dynamics import inverse_dynamics, mass_matrix, refuse_singular
from torchsko.verbs.joint_tangents import joint_bends
from torchsko.verbs.manifold_derivatives import state_jacobians
from torchsko.verbs.passive_forces import acting_terms, passive_forces


@verb
def inverse_dynamics_derivatives(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, f_ext: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of `inverse_dynamics` to tangent steps of q, to qd and to qdd, in one sweep.

    Args:
        f_ext: as in `inverse_dynamics`; held in the bodies' frames.

    Returns:
        Three matrices `[*batch, num_dof, num_dof]`, a row for each joint force: to steps d of
        ``integrate(mech, q, d)`` at d = 0, to qd, and to qdd, which is the mass matrix. Dry friction has
        the derivative zero.

    Reference: Singh, Russell, Wensing 2022; Carpentier, Mansard 2018.

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> to_q, to_qd, M = ts.inverse_dynamics_derivatives(arm, q, qd, torch.zeros_like(qd))
        >>> torch.allclose(M, ts.mass_matrix(arm, q))
        True
    """
    if mech.closing is not None:
        return _closed_inverse(mech, q, qd, qdd, f_ext)
    to_q, to_qd, M, _ = inverse_derivatives(Kinematics.of(mech, q, qd), qdd, f_ext)
    to_q, to_qd, M = torch.broadcast_tensors(to_q, to_qd, M)
    return to_q, to_qd, M


@verb
def forward_dynamics_derivatives(
    mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of `forward_dynamics` to tangent steps of q, to qd and to tau.

    Args:
        f_ext: as in `inverse_dynamics`; held in the bodies' frames.

    Returns:
        Three matrices `[*batch, num_dof, num_dof]`, a row for each joint's acceleration: to steps d of
        ``integrate(mech, q, d)`` at d = 0, to qd, and to tau, which is the inverse of the mass matrix. Dry
        friction has the derivative zero.

    Raises:
        MechanismError: when a joint's hinge inertia vanishes; names the joints.

    Reference: Carpentier, Mansard 2018, section IV; Jain 2011, Part II, Lemma 11.
    """
    refuse_singular(mech)
    return forward_dynamics_expanded(mech, q, qd, tau, f_ext)[1:]


def forward_dynamics_expanded(
    mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The acceleration and `forward_dynamics_derivatives`, without checks of the state."""
    state = Kinematics.of(mech, q, qd)
    factors = algorithms.innovations(model_at(state, f_ext))
    qdd = factors.forward_dynamics(tau - passive_forces(state))
    if mech.closing is not None:
        to_q, to_qd, _ = _closed_inverse(mech, q, qd, qdd, f_ext)
        inverse = factors.inverse()
        return qdd, -inverse @ to_q, -inverse @ to_qd, inverse
    # In a traced program constant columns cost nothing; in eager mode they would cost operations.
    base_accels_apart = is_scalar_form() and mech.coupling is None
    to_q, to_qd, _, base_accels = inverse_derivatives(
        state, qdd, f_ext, base_accels_apart=base_accels_apart
    )
    W = factors.whiten(state.identity(), columns=True)
    to_q, to_qd = (-W.mT @ (W @ torch.cat([to_q, to_qd], -1))).split(mech.num_dof, -1)
    if base_accels is not None:
        to_q, to_qd = to_q + base_accels[0], to_qd + base_accels[1]
    # The mass matrix of a single free body is the same everywhere.
    return qdd, to_q, to_qd, (W.mT @ W).expand_as(to_q)


def _closed_inverse(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, f_ext: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`inverse_dynamics_derivatives` of a mechanism with loops, along the closed manifold."""
    fn = lambda q, qd: inverse_dynamics(mech, q, qd, qdd, f_ext)  # noqa: E731
    batch = qdd.shape[:-1] if f_ext is None else broadcast_shapes(qdd.shape[:-1], f_ext.shape[:-2])
    to_q, to_qd = state_jacobians(mech, fn, q, qd, batch)
    to_q, to_qd, M = torch.broadcast_tensors(to_q, to_qd, mass_matrix(mech, q))
    return to_q, to_qd, M


def inverse_derivatives(
    state: Kinematics,
    qdd: Tensor,
    f_ext: Tensor | None,
    *,
    base_accels_apart: bool = False,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """`inverse_dynamics_derivatives` of a mechanism without loops, without checks of the state.

    The fourth result are ``base_accels`` of `torchsko.bridge.tangents.Tangents`.
    """
    tree, tree_q, tree_qd = state.tree, state.tree_q, state.tree_qd
    model = tree_model(state, at_rest=True)
    motion = tangents(
        state,
        model.inertia,
        state.tree_rates(qdd),
        f_ext,
        joint_bends(tree, tree_q, tree_qd),
        base_accels_apart=base_accels_apart,
    )
    M, to_q, to_qd = algorithms.mass_and_motion_matrices(
        model, motion.inertia_rate, [motion.to_q, motion.to_qd]
    )
    for term in acting_terms(state.mech):
        stiffness, damping = term.derivatives(state)
        to_q = to_q if stiffness is None else to_q + stiffness
        to_qd = to_qd if damping is None else to_qd + damping
    base_accels = motion.base_accels
    if base_accels is not None and (S := model.armature_matrix()) is not None:
        # An armature takes part in the acceleration, though not in the motion of the tree.
        to_q, to_qd = to_q + S @ base_accels[0], to_qd + S @ base_accels[1]
    to_q, to_qd, M = (state.independent_matrix(x) for x in (to_q, to_qd, M))
    return to_q, to_qd, M, base_accels
