"""Divergence between the inertial parameters of two robots."""

from __future__ import annotations

from torch import Tensor

from torchsko.linalg.symmetric import spd_factor, spd_logdet, triangular_solve
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import pseudo_inertia


@verb
def inertia_divergence(mech: Mechanism, reference: MechanismLike) -> Tensor:
    """Log-det Bregman divergence of each body's pseudo-inertia from a reference.

    The value is tr(X) - log det(X) - 4 with X = J J_ref^-1. It does not depend on units and frames, is zero
    for equal inertias, and grows without bound towards unphysical ones. As a term of a loss it keeps
    unidentifiable parameters near the reference.

    Args:
        reference: a mechanism with as many bodies, each with a positive definite pseudo-inertia.

    Returns:
        `[*batch, num_bodies]`, not negative.

    Reference: T. Lee, P. Wensing, F. Park, *Geometric robot dynamic identification: a convex
    programming approach*, IEEE Transactions on Robotics 36(2), 2020.
    """
    reference = as_mechanism(reference)
    J = pseudo_inertia(mech.mass, mech.com, mech.inertia)
    J_ref = pseudo_inertia(reference.mass, reference.com, reference.inertia)
    L = spd_factor(J_ref)
    half = triangular_solve(L, J, adjoint=False)
    X = triangular_solve(L, half.mT, adjoint=False)
    return X.diagonal(dim1=-2, dim2=-1).sum(-1) - spd_logdet(X) - 4
