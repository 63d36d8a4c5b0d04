r"""Energy, the balance of power, and inertias with joints locked.

.. math:: \dot T + \dot U = \tau^* \dot q + \sum_k V^*(k) f_{ext}(k) - \text{losses}

References: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System Dynamics
26(3), 2011, Algorithm 4.1; D. Orin, A. Goswami, S.-H. Lee, *Centroidal dynamics of a humanoid robot*,
Autonomous Robots 35(2-3), 2013.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_momenta import composite_inertias_of
from torchsko.bridge.body_motion import body_accels
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import broadcast_shapes
from torchsko.verbs.dynamics import forward_dynamics
from torchsko.verbs.momenta import about_center, gravity_force, kinetic_energy, potential_energy
from torchsko.verbs.passive_forces import passive_force_parts


class PowerBalance(NamedTuple):
    """Balance of power at a state, each `[*batch]` [W]; kinetic + potential = drives + external - losses.

    Attributes:
        kinetic: rate of `kinetic_energy`.
        potential: rate of the potential of gravity, less compensation, and of the energy of joint springs.
        drives: power of the joint forces tau.
        external: power of the external forces on bodies.
        losses: power dissipated by damping, dry friction and fluid, and absorbed by `force_offset`.
    """

    kinetic: Tensor
    potential: Tensor
    drives: Tensor
    external: Tensor
    losses: Tensor


@verb
def total_energy(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """`kinetic_energy` and `potential_energy` together.

    Returns:
        `[*batch]` [J].
    """
    return kinetic_energy(mech, q, qd) + potential_energy(mech, q)


@verb
def power_balance(
    mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None = None
) -> PowerBalance:
    """Balance of power under given joint and external forces.

    Returns:
        `PowerBalance`, each `[*batch]` [W].

    Raises:
        MechanismError: when a joint's hinge inertia vanishes; names the joints.

    Reference: Siciliano et al. 2009, Robotics (conservation of energy).

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> power = ts.power_balance(arm, q, qd, torch.ones_like(qd))
        >>> stored = power.kinetic + power.potential
        >>> torch.allclose(stored, power.drives + power.external - power.losses)
        True
    """
    qdd = forward_dynamics(mech, q, qd, tau, f_ext)
    state = Kinematics.of(mech, q, qd)
    V, alpha = body_accels(state, qdd, gravity=False)
    kinetic = (V * (state.inertia @ alpha)).sum((-3, -2, -1))
    if mech.has_armature:
        accels = state.tree_accels(qdd)
        kinetic = kinetic + (mech.armature * state.tree_qd * accels).sum(-1)
    damping, friction, springs, lifted, fluid, _ = passive_force_parts(mech, q, qd)
    external = torch.zeros_like(kinetic)
    if f_ext is not None:
        V = mech.layout.tree_order(V, -3)[..., 0]
        external = (V * f_ext).sum((-2, -1))
    potential = ((gravity_force(mech, q) + springs + lifted) * qd).sum(-1)
    drives, losses = (tau * qd).sum(-1), ((damping + friction + fluid) * qd).sum(-1)
    parts = torch.broadcast_tensors(kinetic, potential, drives, external, losses)
    return PowerBalance(*parts)


@verb
def composite_inertias(mech: Mechanism, q: Tensor) -> Tensor:
    """Spatial inertia of every body with all outboard of it frozen, O(N).

    Returns:
        `[*batch, num_bodies, 6, 6]` in each body's frame about its origin, [angular; linear], in the order
        of ``mech.body_names``: moments of inertia [kg m^2], first moments [kg m], masses [kg].

    Reference: Jain 2011, Part II, Algorithm 4.1.
    """
    found = mech.layout.tree_order(composite_inertias_of(Kinematics.of(mech, q)), -3)
    # The inertias of single bodies do not depend on q and lack its batch dimensions.
    batch = broadcast_shapes(q.shape[:-1], found.shape[:-3])
    return found.expand(*batch, *found.shape[-3:])


@verb
def centroidal_inertia(mech: Mechanism, q: Tensor) -> Tensor:
    """Spatial inertia of the robot with all joints locked, about its center of mass.

    Returns:
        `[*batch, 6, 6]` in inertial axes at the center of mass, [angular; linear]; block diagonal: the
        locked rotational inertia, and the mass.

    Reference: Orin, Goswami, Lee 2013.
    """
    state = Kinematics.of(mech, q)
    M = mech.layout.tree_order(state.inertia, -3)
    rows = about_center(state, M)  # rows, then columns, about the center of mass
    return about_center(state, rows.mT).sum(-3)
