r"""Balance of the whole robot: subtrees, the rate of centroidal momentum, the zero-moment point.

With X(k) the transform of forces from body k to inertial axes at the center of mass c, the linear momentum
p and its columns :math:`A_p`,

.. math::
    A_G = \sum_k X M J, \qquad
    \dot A_G = \sum_k X\,(M \dot J + V \times_f M J) - [\dot c \times A_p;\, 0],

and of :math:`\dot h_G = A_G \ddot q + \dot A_G \dot q` the last term vanishes: p is parallel to c's rate.

References: D. Orin, A. Goswami, S.-H. Lee, *Centroidal dynamics of a humanoid robot*, Autonomous Robots
35(2-3), 2013; M. Vukobratovic, B. Borovac, *Zero-moment point*, International Journal of Humanoid Robotics
1(1), 2004.
"""

from __future__ import annotations

from numbers import Real

import torch
from torch import Tensor

from torchsko.bridge.body_momenta import body_momenta
from torchsko.bridge.body_motion import body_accels, body_jacobian_rates, body_rates
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import ShapeError
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.motion import cross_force, motion_matrix
from torchsko.spatial.rigid_transform import rotate_vector, translate_force
from torchsko.spatial.rotation import cross, skew
from torchsko.verbs.momenta import about_center, body_centers, center_of_mass, com_velocity


@verb
def subtree_masses(mech: Mechanism) -> Tensor:
    """Mass of every body with all outboard of it.

    Returns:
        `[*batch, num_bodies]` [kg], in the order of ``mech.body_names``.
    """
    return _outboard_sums(mech, mech.mass[..., None])[..., 0]


@verb
def subtree_centers(mech: Mechanism, q: Tensor) -> Tensor:
    """Center of mass of every body with all outboard of it.

    Args:
        mech: the mechanism. A massless subtree has no center: the result is nan, without gradient.

    Returns:
        In the inertial frame, `[*batch, num_bodies, 3]` [m].
    """
    moments = mech.mass[..., None] * body_centers(Kinematics.of(mech, q))
    mass = subtree_masses(mech)[..., None]
    none = mass == 0
    # Zero by zero would be nan in gradients of the other centers, too.
    return torch.where(
        none, torch.nan, _outboard_sums(mech, moments) / torch.where(none, 1.0, mass)
    )


def subtree_momenta(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Momentum of every body with all outboard of it, about the origin of the inertial frame.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]`.

    Returns:
        [angular; linear] in inertial axes, `[*batch, num_bodies, 6]` [kg m^2/s, kg m/s].
    """
    state = Kinematics.of(mech, q, qd)
    momenta = mech.layout.tree_order(body_momenta(state)[1], -3)
    pose = state.poses
    at_origin = translate_force(pose.position, rotate_vector(pose.rotation, momenta))
    return _outboard_sums(mech, at_origin[..., 0])


@verb
def centroidal_momentum_rate(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """Rate of `centroidal_momentum`, O(N); with qdd = 0 its bias, dA_G/dt qd.

    Returns:
        [angular; linear] in inertial axes at the center of mass, `[*batch, 6]` [N m, N]: the sum of all
        external forces, weight included.

    Reference: Orin, Goswami, Lee 2013.
    """
    state = Kinematics.of(mech, q, qd)
    V, alpha = body_accels(state, qdd, gravity=False)
    M = state.inertia
    forces = mech.layout.tree_order(M @ alpha + cross_force(V, M @ V), -3)
    return about_center(state, forces).sum(-3)[..., 0]


@verb
def centroidal_momentum_matrix_rate(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Time derivative of `centroidal_momentum_matrix`, of every entry, along qd.

    Its product with qd alone is cheaper by `centroidal_momentum_rate` at qdd = 0.

    Returns:
        `[*batch, 6, num_dof]`, rows [angular; linear] in inertial axes at the center of mass.

    Reference: Orin, Goswami, Lee 2013 (the rate of A_G).
    """
    state = Kinematics.of(mech, q, qd)
    J, rate = body_jacobian_rates(state, state.identity())
    M, V = state.inertia, body_rates(state)
    momenta = M @ J
    turned = M @ rate - motion_matrix(V).mT @ momenta
    both = torch.cat(torch.broadcast_tensors(momenta, turned), -1)
    A, change = about_center(state, mech.layout.tree_order(both, -3)).sum(-3).chunk(2, -1)
    swung = skew(com_velocity(mech, q, qd)) @ A[..., 3:, :]
    return torch.cat([change[..., :3, :] - swung, change[..., 3:, :]], -2)


@verb
def zero_moment_point(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, *, height: float = 0.0
) -> Tensor:
    """The point of the ground about which the forces of the ground have no tipping moment.

    The ground is level, perpendicular to gravity, and the only external forces are those of the ground.
    For a robot at rest it is the point below the center of mass.

    Args:
        mech: the mechanism, under gravity.
        height: of the ground above the inertial frame's origin, against gravity [m].

    Returns:
        In the inertial frame, `[*batch, 3]` [m]. In free fall it is undefined: the ground force is zero up to
        rounding, and the result is arbitrary or not finite.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism, or the height is not a number.

    Reference: Vukobratovic, Borovac 2004.
    """
    if not isinstance(height, Real) and not (isinstance(height, Tensor) and height.ndim == 0):
        raise ShapeError(
            f"height is {height!r}.",
            "The ground is level: one number for all samples [m].",
            "Pass height=0.0, say.",
        )
    rate = centroidal_momentum_rate(mech, q, qd, qdd)
    force = rate[..., 3:] - mech.mass.sum(-1, keepdim=True) * mech.gravity
    c = center_of_mass(mech, q)
    moment = rate[..., :3] + cross(c, force)
    up = -mech.gravity / mech.gravity.square().sum(-1, keepdim=True).sqrt()
    lifted = (up * force).sum(-1, keepdim=True)
    return (cross(up, moment) + height * force) / lifted


def _outboard_sums(mech: Mechanism, x: Tensor) -> Tensor:
    """Sums over every body and all outboard of it, of numbers `[*batch, num_bodies, r]`."""
    layout = mech.layout
    levels = list(layout.split(layout.breadth_first(x, -2)[..., None]))
    for depth in reversed(range(1, len(levels))):
        levels[depth - 1] = levels[depth - 1] + layout.links[depth].sum_to_parents(levels[depth])
    return layout.tree_order(torch.cat(levels, -3), -3)[..., 0]
