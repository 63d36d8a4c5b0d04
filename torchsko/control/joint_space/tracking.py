r"""Laws of control in joint space: computed torque, and feedback with gravity compensated.

With the error :math:`e = q_{target} \ominus q` along the manifold (`torchsko.difference`),

.. math::
    \tau = ID(q, \dot q, \ddot q_{target} + K_p e + K_d (\dot q_{target} - \dot q)), \qquad
    \tau = K_p e - K_d \dot q + ID(q, 0, 0).

Under the first every joint whose coordinates are a vector obeys :math:`\ddot e + K_d \dot e + K_p e = 0`.
Under the second, where these springs have a potential (`torchsko.potential_energy` says at which joints), the
energy :math:`T + \tfrac12 e^* K_p e` falls at the rate :math:`\dot q^* K_d \dot q`, and that of losses.

References: B. Siciliano, L. Sciavicco, L. Villani, G. Oriolo, *Robotics*, Springer 2009, sections 8.5.1 and
8.5.2; M. Takegaki, S. Arimoto, *A new feedback method for dynamic control of manipulators*, Journal of
Dynamic Systems, Measurement, and Control 103(2), 1981.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.joints.configuration import difference
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.mechanism.validation import check_gains
from torchsko.verbs.dynamics import bias_force, inverse_dynamics


def computed_torque(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    q_target: Tensor,
    qd_target: Tensor | None = None,
    qdd_target: Tensor | None = None,
    *,
    stiffness: float | Tensor,
    damping: float | Tensor,
) -> Tensor:
    """Joint forces under which errors die out as those of springs and dampers on unit masses do.

    What losses, springs and Coriolis forces do is in them: the mechanism is the model.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        q_target: where to be, `[*batch, num_q]`.
        qd_target: how fast, `[*batch, num_dof]`; at rest when left out.
        qdd_target: with what acceleration, `[*batch, num_dof]`; zero when left out.
        stiffness: K_p, a number or `[*batch, num_dof]` [1/s^2].
        damping: K_d, a number or `[*batch, num_dof]` [1/s].

    Returns:
        tau, `[*batch, num_dof]` [N m or N].

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.
        MechanismError: on a gain that is not finite.

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> tau = ts.control.computed_torque(arm, q, qd, arm.middle(), stiffness=100.0, damping=20.0)
        >>> asked = 100 * ts.difference(arm, q, arm.middle()) - 20 * qd
        >>> torch.allclose(ts.forward_dynamics(arm, q, qd, tau), asked)
        True
    """
    robot = as_mechanism(mech)
    moving = {"qd_target": qd_target, "qdd_target": qdd_target}
    asked_for = {name: x for name, x in moving.items() if x is not None}
    batch = check_tracking_state(robot, q, qd, q_target=q_target, **asked_for)
    check_gains(robot, batch, stiffness=stiffness, damping=damping)
    e = difference(robot, q, q_target)
    rate = -qd if qd_target is None else qd_target - qd
    asked = stiffness * e + damping * rate
    asked = asked if qdd_target is None else asked + qdd_target
    return inverse_dynamics(mech, q, qd, asked)


def pd_with_gravity(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    q_target: Tensor,
    *,
    stiffness: float | Tensor,
    damping: float | Tensor,
) -> Tensor:
    """Joint forces of springs to a target and of dampers, and those that hold the robot still where it is.

    What holds it is gravity's force, less that of compensated weights, and the force of springs at its
    joints. Stable at the target however wrong the masses are, but for those in these forces.

    Sampled every dt, dampers have to be slow for that: a joint's damping below 2 / (dt (M^-1)_ii), which a
    wrist of 5e-3 kg m^2 without a rotor's inertia takes at 1 kHz up to 10 N m s/rad. Give each dof its own.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        q_target: where to come to rest, `[*batch, num_q]`.
        stiffness: K_p, a number or `[*batch, num_dof]` [N m/rad or N/m].
        damping: K_d, a number or `[*batch, num_dof]` [N m s/rad or N s/m].

    Returns:
        tau, `[*batch, num_dof]` [N m or N].

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.
        MechanismError: on a gain that is not finite.
    """
    robot = as_mechanism(mech)
    batch = check_tracking_state(robot, q, qd, q_target=q_target)
    check_gains(robot, batch, stiffness=stiffness, damping=damping)
    pull = stiffness * difference(robot, q, q_target) - damping * qd
    return pull + bias_force(mech, q, torch.zeros_like(qd))


def check_tracking_state(
    mech: Mechanism, q: Tensor, qd: Tensor, **targets: Tensor
) -> tuple[int, ...]:
    """Batch dimensions of a state and its targets, none of which may be left out.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    check_state(mech, q=q, qd=qd, **targets)
    shapes = (x.shape[:-1] for x in (q, qd, *targets.values()))
    return tuple(torch.broadcast_shapes(*shapes, mech.batch_shape))
