r"""Inertial parameters and the regressor matrices of joint forces, momenta and energies.

.. math::
    \tau_i = \sum_k J^*(k, i)\, Y_k(V, \alpha)\, \phi_k + \text{passive}_i + S_i \ddot q_i

Joint forces are linear in the ten inertial parameters phi of every body, Y from
`torchsko.spatial.inertia.force_regressor` and the Jacobian J of all bodies, zero where joint i does not
carry body k. The columns are dependent: only some combinations of phi, the *base parameters*, affect any
torque, and only those are identifiable from torques.

References: C. Atkeson, C. An, J. Hollerbach, *Estimation of inertial parameters of manipulator
loads and links*, International Journal of Robotics Research 5(3), 1986; M. Gautier, W. Khalil,
*Direct calculation of minimum set of inertial parameters of serial robots*, IEEE Trans. Robotics
and Automation 6(3), 1990.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.bridge.body_motion import body_accels, body_jacobians, body_rates
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.configuration import stretch, transport_rate
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import force_regressor, inertia_of_vector, inertial_vector
from torchsko.spatial.rigid_transform import rotate_vector, translate_force
from torchsko.utils.shapes import broadcast_shapes
from torchsko.verbs.frame import Frame, Frames, with_frames
from torchsko.verbs.frames import check_reference, forward_kinematics, frame_poses
from torchsko.verbs.passive.friction import friction_direction


@verb
def inertial_parameters(mech: Mechanism) -> Tensor:
    """The inertial parameters in which joint forces are linear, in Pinocchio's order.

    Returns:
        `[*batch, num_bodies, 10]`, bodies in the order of ``mech.body_names``: mass [kg], first
        moment m c (3) [kg m], inertia about the body's origin in its axes (xx, xy, yy, xz, yz, zz)
        [kg m^2].

    Reference: Atkeson, An, Hollerbach 1986.
    """
    return inertial_vector(mech.mass, mech.com, mech.inertia)


@verb
def torque_regressor(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """The matrix Y that takes `inertial_parameters` to joint forces.

    Inverse dynamics is Y phi, plus `passive_force` and ``mech.armature * qdd``: damping, friction, springs
    and armature of joints are in neither Y nor phi. Gravity is in Y.

    Returns:
        `[*batch, num_dof, num_bodies, 10]`; zero where a joint does not carry a body. One matrix a
        sample is `.flatten(-2)`.

    Reference: Atkeson, An, Hollerbach 1986 (there the columns go from tip to base).

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> Y = ts.torque_regressor(arm, q, qd, torch.ones_like(qd))
        >>> tau = (Y * ts.inertial_parameters(arm)).sum((-2, -1)) + ts.passive_force(arm, q, qd)
        >>> torch.allclose(tau, ts.inverse_dynamics(arm, q, qd, torch.ones_like(qd)))
        True
    """
    layout, state = mech.layout, Kinematics.of(mech, q, qd)
    Y = layout.tree_order(force_regressor(*body_accels(state, qdd)), -3)
    # Two spare columns: torch calls BLAS for 6 x 6 times 6 x 12, and is slower with fewer columns.
    identity = torch.eye(mech.num_dof, max(mech.num_dof, 12), dtype=q.dtype, device=q.device)
    J = layout.tree_order(body_jacobians(state, identity)[..., : mech.num_dof], -3)
    return (J.mT @ Y).movedim(-3, -2)


@verb
def wrench_regressor(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, frames: Frames, *, reference: str = "body"
) -> Tensor:
    """Regressor of the wrench that moves a frame's body and all bodies outboard of it.

    A force-torque sensor at the frame measures this wrench if it carries all outboard bodies. At the frame
    of a body it is the wrench of `joint_wrenches`; at a frame of the ground, the force of the ground.
    Gravity is included.

    Args:
        reference: axes and point of the wrench, as in `torchsko.frame_velocity`.

    Returns:
        `[*batch, len(frames), 6, num_bodies, 10]`, rows [moment; force]; zero at bodies that are not
        outboard; of one frame without its dimension.

    Reference: Atkeson, An, Hollerbach 1986 (a wrist sensor).
    """
    check_reference(reference)
    given, numbers = with_frames(mech, frames, q=q, qd=qd, qdd=qdd)
    state = Kinematics.of(given, q, qd)
    Y = mech.layout.tree_order(force_regressor(*body_accels(state, qdd)), -3)
    bodies = state.poses
    Y = rotate_vector(bodies.rotation, Y)
    poses = frame_poses(state, numbers)
    tree, found = mech.layout.tree, []
    for i, k in enumerate(numbers):
        R, r = poses.rotation[..., i, None, :, :], poses.position[..., i, None, :]
        at = bodies.position if reference == "world" else bodies.position - r
        felt = translate_force(at, Y)
        felt = rotate_vector(R.mT, felt) if reference == "body" else felt
        body = given.frame_body[k]
        carried = [body in (-1, j, *tree.ancestors(j)) for j in range(mech.num_bodies)]
        mask = torch.tensor(carried, dtype=q.dtype, device=q.device)[:, None, None]
        found.append((mask * felt).movedim(-3, -2))
    return found[0] if isinstance(frames, str | Frame) else torch.stack(found, -4)


@verb
def friction_parameters(mech: Mechanism) -> Tensor:
    """The joint parameters in which joint forces are linear, one row per dof of the tree.

    Returns:
        `[*batch, num_tree_dof, 4]`: armature [kg m^2 or kg], damping [N m s/rad or N s/m], dry friction
        [N m or N], stiffness [N m/rad or N/m].

    Reference: Khalil, Dombre 2002, Modeling, Identification and Control of Robots (rotors, friction).
    """
    parts = (mech.armature, mech.damping, mech.friction, mech.stiffness)
    return torch.stack(torch.broadcast_tensors(*parts), -1)


@verb
def friction_regressor(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """The matrix that maps `friction_parameters` to joint forces: armature, damping, friction, spring
    columns.

    Inverse dynamics is `torque_regressor` times `inertial_parameters` plus this times
    `friction_parameters`, and `force_offset` and the forces of modal coordinates where a robot has them. A
    rotor of inertia J behind a gear of ratio n is an armature of n^2 J: its column is that of the armature
    times n^2.

    Args:
        mech: the mechanism; of its joints' numbers only `spring_reference` and `friction_speed` matter.

    Returns:
        `[*batch, num_dof, num_tree_dof, 4]`.

    Reference: Khalil, Dombre 2002, Modeling, Identification and Control of Robots (rotors, friction).
    """
    state = Kinematics.of(mech, q, qd)
    tree, rates, accels = state.tree, state.tree_qd, state.tree_accels(qdd)
    deflection, turning = stretch(tree, state.tree_q)[0], transport_rate(tree, rates, rates)
    accels = accels if turning is None else accels + turning
    parts = torch.broadcast_tensors(accels, rates, friction_direction(mech, rates), deflection)
    return torch.stack([state.independent_rows(torch.diag_embed(x)).mT for x in parts], -1)


@verb
def momentum_regressor(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """The matrix that maps `inertial_parameters` to the generalized momentum M qd, without armature.

    The rate of the momentum equals torques without measured accelerations: for identification and observers.

    Returns:
        `[*batch, num_dof, num_bodies, 10]`; zero where a joint does not carry a body.
    """
    layout, state = mech.layout, Kinematics.of(mech, q, qd)
    V = layout.tree_order(body_rates(state), -3)
    each = (_units(mech) @ V[..., None, :, :])[..., 0].mT
    J = layout.tree_order(body_jacobians(state, state.identity()), -3)
    return (J.mT @ each).movedim(-3, -2)


@verb
def kinetic_energy_regressor(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """The coefficients that map `inertial_parameters` to the kinetic energy, without armature.

    Returns:
        `[*batch, num_bodies, 10]`; times the parameters, summed, it is the energy [J].

    Reference: Gautier 1997, Dynamic identification of robots with power model (the energy model).
    """
    V = mech.layout.tree_order(body_rates(Kinematics.of(mech, q, qd)), -3)[..., None, :, :]
    return (V.mT @ _units(mech) @ V)[..., 0, 0] / 2


@verb
def potential_energy_regressor(mech: Mechanism, q: Tensor) -> Tensor:
    """The coefficients that map `inertial_parameters` to the potential energy of gravity, without springs.

    Returns:
        `[*batch, num_bodies, 10]`; times the parameters, summed, it is the energy [J].

    Reference: Gautier 1997, Dynamic identification of robots with power model (the energy model).
    """
    pose = forward_kinematics(mech, q)
    g = mech.gravity[..., None, :]
    of_mass = -(g * pose.position).sum(-1, keepdim=True)
    of_moment = -(g[..., None, :] @ pose.rotation)[..., 0, :]
    of_mass, of_moment = (
        x.expand(*broadcast_shapes(of_mass.shape[:-1], of_moment.shape[:-1]), x.shape[-1])
        for x in (of_mass, of_moment)
    )
    return torch.cat([of_mass, of_moment, of_moment.new_zeros(*of_moment.shape[:-1], 6)], -1)


def _units(mech: Mechanism) -> Tensor:
    """The spatial inertia of each of the ten numbers, `[10, 6, 6]`."""
    return inertia_of_vector(torch.eye(10, dtype=mech.dtype, device=mech.device))
