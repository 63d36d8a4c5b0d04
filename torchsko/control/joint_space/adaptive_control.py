r"""Passivity-based adaptive control: tracking with online estimation of inertial parameters.

With the error e = q_target - q, the reference :math:`v = \dot q_{target} + S e`, its rate a, and
:math:`s = \dot q - v`,

.. math::
    \tau = \hat M a + \hat C v + \hat g + \text{passive} - K s, \qquad
    \dot{\hat\phi} = -\Gamma\, Y^*(q, \dot q, v, a)\, s,

the energy :math:`\tfrac12 s^* M s + \tfrac12 (\hat\phi - \phi)^* \Gamma^{-1} (\hat\phi - \phi)` falls at the
rate :math:`s^* K s`, whatever the parameters are. The regressor Y is not formed. With the velocity V of a
body, its velocity W under v, the rate A of W less gravity, and its velocity S under s,

.. math::
    f = \hat I A + W \times_f \hat I V, \qquad
    \frac{\partial (S^* f)}{\partial I} = S A^* - (W \times_m S) V^*,

one outward and one inward sweep suffice. The map from W to :math:`W \times_f I V` is skew-symmetric, and so
is dM/dt - 2 C.

Sampled every dt, a step maps the linearized error :math:`(s, \hat\phi - \phi)` by

.. math::
    \begin{bmatrix} 1 - dt\, M^{-1} K & dt\, M^{-1} Y \\ -dt\, \Gamma Y^* & 1 \end{bmatrix}, \quad
    \text{stable for one joint if } dt\, Y \Gamma Y^* < K < \tfrac{2}{dt} M + \tfrac{dt}{2} Y \Gamma Y^*,

since the parameters lag by one step. Using the parameters after the step in the force adds
:math:`dt\, Y \Gamma Y^*` to K, a proportional part of the adaptation. The condition is then
:math:`2\, dt\, K + dt^2\, Y \Gamma Y^* < 4 M`.

References: J.-J. Slotine, W. Li, *On the adaptive control of robot manipulators*, International Journal of
Robotics Research 6(3), 1987; G. Niemeyer, J.-J. Slotine, *Performance in adaptive manipulator control*,
International Journal of Robotics Research 10(2), 1991 (the recursion).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_momenta import tree_forces_of
from torchsko.bridge.body_motion import body_accels, body_jacobian_rates, body_jacobians, body_rates
from torchsko.bridge.kinematics import Kinematics
from torchsko.control.joint_space.gains import is_nonnegative
from torchsko.control.joint_space.tracking import check_tracking_state
from torchsko.errors import MechanismError
from torchsko.mechanism.configuration import subtract
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import shared_batch
from torchsko.mechanism.time_step import check_dt
from torchsko.mechanism.validation import check_gains, check_placement
from torchsko.spatial.inertia import inertia_of_vector
from torchsko.spatial.motion import cross_force, cross_motion
from torchsko.verbs.passive_forces import passive_forces


class AdaptiveResult(NamedTuple):
    """Result of `adaptive_control`.

    Attributes:
        tau: joint forces, `[*batch, num_dof]` [N m or N].
        rate: time derivative of the estimated parameters, `[*batch, num_bodies, 10]`, per second.
    """

    tau: Tensor
    rate: Tensor


def adaptive_control(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    parameters: Tensor,
    q_target: Tensor,
    qd_target: Tensor,
    qdd_target: Tensor,
    *,
    slope: float | Tensor,
    gain: float | Tensor,
    adaptation: float | Tensor,
    dt: float | Tensor | None = None,
) -> AdaptiveResult:
    """The adaptive law of Slotine and Li: joint forces, and the rate of the estimated parameters.

    Armature and passive forces are those of the mechanism and count as known. Its inertial parameters are not
    used. The caller adds ``dt * rate`` to the parameters.

    In continuous time the energy of the module's formula falls. Sampled every dt, no eigenvalue of dt M^-1 K
    may reach 1. One gain for all joints of an arm does not fit both its shoulder and its wrist: at 1 kHz a
    Panda takes 12 N m s/rad at its shoulder, and 0.2 at its last joint.

    The adaptation is limited as well. Without `dt` the parameters lag by one sample, which subtracts
    dt Y Gamma Y* from K. A difference that is not positive makes the arm unstable. With `dt` the forces use
    the parameters after the step, and the eigenvalues of M^-1 (2 dt K + dt^2 Y Gamma Y*) must stay below 4:
    the Panda then takes an adaptation of 200 instead of 2. The regressor near the motion is
    ``Y = torchsko.torque_regressor(mech, q_target, qd_target, qdd_target).flatten(-2)``, and with a number
    as adaptation Y Gamma Y* is ``adaptation * Y @ Y.mT``.

    Args:
        mech: the mechanism; all coordinates are vectors.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        parameters: estimate of `torchsko.inertial_parameters`, `[*batch, num_bodies, 10]`.
        q_target: target configuration, `[*batch, num_q]`.
        qd_target: target velocity, `[*batch, num_dof]`.
        qdd_target: target acceleration, `[*batch, num_dof]`.
        slope: S, decay rate of errors on the sliding surface s = 0, a number or `[*batch, num_dof]` [1/s].
        gain: K, a number or `[*batch, num_dof]` [N m s/rad or N s/m].
        adaptation: Gamma, a number, or one for each parameter, `[*batch, num_bodies, 10]`.
        dt: time between calls [s], a number or `[*batch]`. Default: forces use the parameters before the
            step.

    Raises:
        MechanismError: when the coordinates of a joint are not a vector, an adaptation is negative or not
            finite, or a gain is not finite.
        ShapeError: when a shape or dtype does not fit the mechanism.
        TorchskoError: on a dt that is not positive and finite.
    """
    robot = as_mechanism(mech)
    targets = {"q_target": q_target, "qd_target": qd_target, "qdd_target": qdd_target}
    batch = check_tracking_state(robot, q, qd, **targets)
    batch = _check(robot, batch, parameters, adaptation)
    check_gains(robot, batch, slope=slope, gain=gain)
    if dt is not None:
        check_dt(robot, dt, batch, backward=False)
    e, ed = subtract(robot, q, q_target), qd_target - qd
    v, a = qd_target + slope * e, qdd_target + slope * ed
    s = qd - v
    state = Kinematics.of(robot, q, qd)
    V, W, A = _body_motion(state, v, a)
    S = body_jacobians(state, s[..., None])
    layout = robot.layout
    unit = torch.eye(10, dtype=q.dtype, device=q.device)
    inertia_gradient = layout.tree_order(S @ A.mT - cross_motion(W, S) @ V.mT, -3)
    gradient = inertia_gradient.flatten(-2) @ inertia_of_vector(unit).flatten(-2).mT
    rate = -adaptation * gradient
    if dt is not None:
        step = dt[..., None, None] if isinstance(dt, Tensor) else dt
        parameters = parameters + step * rate
    I = layout.breadth_first(inertia_of_vector(parameters), -3)
    f = I @ A + cross_force(W, I @ V)
    accel = state.tree_rates(a)
    change = state.tree_column_rates(v[..., None])
    accel = accel if change is None else accel + change[..., 0]
    known = robot.armature * accel + tree_forces_of(state, f)
    tau = state.independent_forces(known) + passive_forces(state) - gain * s
    return AdaptiveResult(tau, rate)


def _body_motion(state: Kinematics, v: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """V, W and A of every body, `[*batch, n, 6, 1]`, breadth first."""
    W, bias = body_jacobian_rates(state, v[..., None])
    zero = torch.zeros_like(v)
    gravity = body_accels(state.moving(zero), zero)[1]
    return body_rates(state), W, body_jacobians(state, a[..., None]) + bias + gravity


def _check(
    mech: Mechanism, batch: tuple[int, ...], parameters: Any, adaptation: Any
) -> tuple[int, ...]:
    """Check the joints, the parameters and the adaptation; return the batch dimensions of all."""
    for k in mech.independent_joints:
        if not mech.joints.kinds[k].vector:
            raise MechanismError(
                f"the coordinates of joint {mech.tree_joint_names[k]!r} ({mech.joints.kinds[k].name}) are "
                "not a vector.",
                "The law of Slotine and Li needs the time derivative of the position error.",
                f"Lock it with mech.lock({{{mech.tree_joint_names[k]!r}: ...}}), or use computed_torque.",
            )
    meaning = f"{mech.name!r} has {mech.num_bodies} bodies with ten parameters each."
    tensors = {"parameters": parameters}
    if isinstance(adaptation, Tensor) and adaptation.ndim:
        tensors |= {"adaptation": adaptation}
    elif not is_nonnegative(adaptation):
        raise MechanismError(f"adaptation is {adaptation!r}.", *_ADAPTATION)
    batches = {
        f"the tensor {name}": check_placement(
            mech, f"tensor {name}", x, (mech.num_bodies, 10), meaning, required=True
        )
        for name, x in tensors.items()
    }
    if not is_nonnegative(adaptation):
        raise MechanismError(
            "adaptation has an entry that is negative or not finite.", *_ADAPTATION
        )
    return shared_batch({"the state": batch} | batches)


_ADAPTATION = (
    "The estimate diverges under a negative adaptation.",
    "Pass a number of 0 or more, or one for each parameter, such as torch.ones_like(parameters).",
)
