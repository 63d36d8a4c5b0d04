r"""The whole robot: center of mass, energies, momentum about the center of mass, forces in its joints.

A spatial momentum is [angular; linear]. R(k) is the composite inertia of body k with all outboard joints
locked, and X(k) the transform of forces from body k to inertial axes at the center of mass. The matrix
that maps qd to the centroidal momentum has the columns

.. math:: A_G = \sum_k X(k) M(k) J(k) = \big[ X(k)\, R(k)\, H^*(k) \big]_k.

Armature does not contribute to momentum; rotors that do are bodies (`MechanismBuilder.rotor`).

Reference: D. Orin, A. Goswami, S.-H. Lee, *Centroidal dynamics of a humanoid robot*, Autonomous Robots
35(2-3), 2013.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import model_at
from torchsko.bridge.body_momenta import body_momenta, composite_momenta, joint_forces
from torchsko.bridge.body_motion import body_accels, body_rates
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rigid_transform import rotate_vector, translate_force
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec
from torchsko.verbs.passive_forces import acting_terms


@verb
def center_of_mass(mech: Mechanism, q: Tensor) -> Tensor:
    """Center of mass of the robot.

    Args:
        mech: the mechanism; a robot without any mass has none (nan).

    Returns:
        In the inertial frame, `[*batch, 3]` [m].
    """
    return _mean(mech, body_centers(Kinematics.of(mech, q)))


@verb
def com_velocity(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Velocity of the center of mass, O(N).

    Returns:
        In inertial axes, `[*batch, 3]` [m/s].

    Reference: Orin, Goswami, Lee 2013 (linear momentum per unit mass).
    """
    state = Kinematics.of(mech, q, qd)
    V = mech.layout.tree_order(body_rates(state), -3)[..., 0]
    v = V[..., 3:] + cross(V[..., :3], mech.com)
    return _mean(mech, matvec(state.poses.rotation, v))


@verb
def com_acceleration(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """Acceleration of the center of mass, O(N); without gravity's -g.

    Returns:
        In inertial axes, `[*batch, 3]` [m/s^2]; times the mass it is the sum of all external forces,
        weight included.

    Reference: Orin, Goswami, Lee 2013 (the rate of linear momentum, per unit mass).
    """
    state = Kinematics.of(mech, q, qd)
    both = body_accels(state, qdd, gravity=False)
    V, alpha = (mech.layout.tree_order(x, -3)[..., 0] for x in both)
    w, v = V[..., :3], V[..., 3:]
    a = alpha[..., 3:] + cross(alpha[..., :3], mech.com) + cross(w, v + cross(w, mech.com))
    return _mean(mech, matvec(state.poses.rotation, a))


@verb
def com_jacobian(mech: Mechanism, q: Tensor) -> Tensor:
    """Jacobian of the center of mass, O(N), from composite inertias.

    Returns:
        `[*batch, 3, num_dof]` [m/rad, or 1 at joints that slide], in inertial axes; times qd it is
        `com_velocity`.

    Reference: Orin, Goswami, Lee 2013 (the linear rows of A_G, per unit mass).
    """
    state = Kinematics.of(mech, q)
    columns = mech.layout.tree_order(composite_momenta(state), -3)[..., 3:, :]
    forces = state.poses.rotation @ columns
    return of_dofs(state, forces) / mech.mass.sum(-1)[..., None, None]


@verb
def kinetic_energy(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Kinetic energy, 1/2 qd* M qd with the mass matrix M, armature included; O(N).

    Returns:
        `[*batch]` [J].

    Reference: Concurrent Dynamics 2018, Generalized Mass Matrix, Eqs. 10 and 13.
    """
    state = Kinematics.of(mech, q, qd)
    V, momentum = body_momenta(state)
    twice = (V * momentum).sum((-3, -2, -1))
    if mech.has_armature:
        twice = twice + (mech.armature * state.tree_qd.square()).sum(-1)
    return twice / 2


@verb
def potential_energy(mech: Mechanism, q: Tensor) -> Tensor:
    """Potential energy of gravity, less gravity compensation, and of joint springs.

    It is zero where the center of mass is level with the inertial frame's origin (at a right angle to
    gravity) and all springs are relaxed (`spring_reference`). Springs of deflection x count 1/2 stiffness *
    x^2, and the integrals of `higher_stiffness`. That is their potential where the coordinates of each joint
    with springs are a vector, and of spherical and free joints where they are equally stiff about every axis
    and along every axis. Otherwise they have none: along a closed path they add or remove energy.

    Returns:
        `[*batch]` [J]; its gradient is `gravity_force` and the part of springs that have a potential, and of
        compensated weights, in `passive_force`.

    Reference: Siciliano et al. 2009, Robotics (potential energy of links).
    """
    state = Kinematics.of(mech, q)
    moment = (mech.mass[..., None] * body_centers(state)).sum(-2)
    energies = [term.energy(state) for term in acting_terms(mech)]
    stored = reduce(add, [energy for energy in energies if energy is not None])
    return stored - (mech.gravity * moment).sum(-1)


@verb
def centroidal_momentum(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Momentum of the robot about its center of mass, O(N).

    Returns:
        [angular; linear] in inertial axes at the center of mass, `[*batch, 6]` [kg m^2/s, kg m/s].

    Reference: Orin, Goswami, Lee 2013.
    """
    state = Kinematics.of(mech, q, qd)
    momenta = mech.layout.tree_order(body_momenta(state)[1], -3)
    return about_center(state, momenta).sum(-3)[..., 0]


@verb
def centroidal_momentum_matrix(mech: Mechanism, q: Tensor) -> Tensor:
    """The matrix A_G that takes qd to `centroidal_momentum`, O(N), from composite inertias.

    Returns:
        `[*batch, 6, num_dof]`, rows [angular; linear] in inertial axes at the center of mass; times
        qd [kg m^2/s; kg m/s].

    Reference: Orin, Goswami, Lee 2013.
    """
    state = Kinematics.of(mech, q)
    columns = mech.layout.tree_order(composite_momenta(state), -3)
    return of_dofs(state, about_center(state, columns))


@verb
def gravity_force(mech: Mechanism, q: Tensor) -> Tensor:
    """Joint forces that hold the robot still against gravity alone: no springs.

    Returns:
        `[*batch, num_dof]` [N m or N], the gradient of gravity's potential energy; part of
        `bias_force`.

    Reference: Siciliano et al. 2009, Robotics (gravity from the potential energy).
    """
    return algorithms.bias_force(model_at(Kinematics.of(mech, q)))


@verb
def joint_wrenches(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, f_ext: Tensor | None = None
) -> Tensor:
    """Force and moment that each joint transmits to the body it moves.

    It moves the body and all outboard bodies against gravity and external forces. Its projection on the
    joint's dofs is `inverse_dynamics` less passive forces and armature. For a base body it is the force of
    the ground.

    Returns:
        [moment; force] in each body's frame at its origin, `[*batch, num_bodies, 6]` [N m, N], in the
        order of ``mech.body_names``; dependent joints included.

    Reference: Jain 2011, Part II, Algorithm 3.1.
    """
    forces = joint_forces(Kinematics.of(mech, q, qd), qdd, f_ext)
    return mech.layout.tree_order(forces, -3)[..., 0]


def body_centers(state: Kinematics) -> Tensor:
    """Centers of mass of all bodies in the inertial frame, `[*batch, n, 3]`."""
    return state.poses.position + matvec(state.poses.rotation, state.mech.com)


def _mean(mech: Mechanism, x: Tensor) -> Tensor:
    """Vectors of all bodies, weighted by mass, `[*batch, 3]`."""
    return (mech.mass[..., None] * x).sum(-2) / mech.mass.sum(-1, keepdim=True)


def about_center(state: Kinematics, y: Tensor) -> Tensor:
    """Force columns of all bodies in inertial axes at the center of mass, `[*batch, n, 6, r]`."""
    pose = state.poses
    center = _mean(state.mech, body_centers(state))
    return translate_force(pose.position - center[..., None, :], rotate_vector(pose.rotation, y))


def of_dofs(state: Kinematics, columns: Tensor) -> Tensor:
    """Columns of every body's own dofs, `[*batch, n, r, d]`, as one matrix `[*batch, r, num_dof]`."""
    layout = state.mech.layout
    packed = layout.breadth_first(columns, -3).mT
    return state.independent_rows(layout.dofs.collect(packed).mT)
