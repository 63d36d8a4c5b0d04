r"""Joint-space control laws: computed torque, and PD control with gravity compensation.

With the error :math:`e = q_{target} \ominus q` along the manifold (`torchsko.difference`),

.. math::
    \tau = ID(q, \dot q, \ddot q_{target} + K_p e + K_d (\dot q_{target} - \dot q)), \qquad
    \tau = K_p e - K_d \dot q + ID(q, 0, 0).

Under the first, every joint with vector coordinates obeys :math:`\ddot e + K_d \dot e + K_p e = 0`.
Under the second, where the springs have a potential (see `torchsko.potential_energy`), the energy
:math:`T + \tfrac12 e^* K_p e` falls at the rate :math:`\dot q^* K_d \dot q` plus the passive losses.

References: B. Siciliano, L. Sciavicco, L. Villani, G. Oriolo, *Robotics*, Springer 2009, sections 8.5.1 and
8.5.2; M. Takegaki, S. Arimoto, *A new feedback method for dynamic control of manipulators*, Journal of
Dynamic Systems, Measurement, and Control 103(2), 1981.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.manifold import difference
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.mechanism.validation import check_gains
from torchsko.utils.shapes import broadcast_shapes
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
    """Joint forces that make tracking errors decay like a spring-damper system with unit mass.

    The mechanism is the model: damping, friction, springs and Coriolis forces are compensated.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        q_target: target configuration, `[*batch, num_q]`.
        qd_target: target velocity, `[*batch, num_dof]`; default zero.
        qdd_target: target acceleration, `[*batch, num_dof]`; default zero.
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
        >>> expected = 100 * ts.difference(arm, q, arm.middle()) - 20 * qd
        >>> torch.allclose(ts.forward_dynamics(arm, q, qd, tau), expected)
        True
    """
    robot = as_mechanism(mech)
    optional = {"qd_target": qd_target, "qdd_target": qdd_target}
    targets = {name: x for name, x in optional.items() if x is not None}
    batch = check_tracking_state(robot, q, qd, q_target=q_target, **targets)
    check_gains(robot, batch, stiffness=stiffness, damping=damping)
    e = difference(robot, q, q_target)
    ed = -qd if qd_target is None else qd_target - qd
    qdd = stiffness * e + damping * ed
    qdd = qdd if qdd_target is None else qdd + qdd_target
    return inverse_dynamics(mech, q, qd, qdd)


def pd_with_gravity(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    q_target: Tensor,
    *,
    stiffness: float | Tensor,
    damping: float | Tensor,
) -> Tensor:
    """PD control to a target configuration with compensation of gravity.

    The compensated forces are those of gravity and of springs at joints, at zero velocity. The target is
    stable even if the masses of the model are wrong, as far as these forces are right.

    Sampled every dt, the damping of a joint must stay below 2 / (dt (M^-1)_ii). A wrist of 5e-3 kg m^2
    without rotor inertia allows 10 N m s/rad at 1 kHz. Choose gains per dof.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        q_target: target configuration, `[*batch, num_q]`.
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
    feedback = stiffness * difference(robot, q, q_target) - damping * qd
    return feedback + bias_force(mech, q, torch.zeros_like(qd))


def check_tracking_state(
    mech: Mechanism, q: Tensor, qd: Tensor, **targets: Tensor
) -> tuple[int, ...]:
    """Check a state and its targets; return their batch dimensions."""
    check_state(mech, q=q, qd=qd, **targets)
    shapes = (x.shape[:-1] for x in (q, qd, *targets.values()))
    return tuple(broadcast_shapes(*shapes, mech.batch_shape))
