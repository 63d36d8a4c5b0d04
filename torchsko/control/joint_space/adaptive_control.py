r"""Passivity-based adaptive control: a robot learns its inertial parameters while it tracks.

With the error e = q_target - q, the reference :math:`v = \dot q_{target} + S e`, its rate a, and
:math:`s = \dot q - v`,

.. math::
    \tau = \hat M a + \hat C v + \hat g + \text{passive} - K s, \qquad
    \dot{\hat\phi} = -\Gamma\, Y^*(q, \dot q, v, a)\, s,

the energy :math:`\tfrac12 s^* M s + \tfrac12 (\hat\phi - \phi)^* \Gamma^{-1} (\hat\phi - \phi)` falls at the
rate :math:`s^* K s`, whatever the parameters are. The regressor Y is not formed: with the velocity V of a
body, its velocity W under v, the rate A of W less gravity, and its velocity S under s,

.. math::
    f = \hat I A + W \times_f \hat I V, \qquad
    \frac{\partial (S^* f)}{\partial I} = S A^* - (W \times_m S) V^*,

one sweep outward and one inward. The map that takes W to :math:`W \times_f I V` is skew-symmetric, which
makes dM/dt - 2 C so.

Sampled every dt, of a linear error :math:`(s, \hat\phi - \phi)` a step is

.. math::
    \begin{bmatrix} 1 - dt\, M^{-1} K & dt\, M^{-1} Y \\ -dt\, \Gamma Y^* & 1 \end{bmatrix}, \quad
    \text{of one joint stable for } dt\, Y \Gamma Y^* < K < \tfrac{2}{dt} M + \tfrac{dt}{2} Y \Gamma Y^*,

for the parameters trail by a step. Those after it in the force add :math:`dt\, Y \Gamma Y^*` to K, a
proportional part of the adaptation, under which the energy falls faster; what is left then is
:math:`2\, dt\, K + dt^2\, Y \Gamma Y^* < 4 M`.

References: J.-J. Slotine, W. Li, *On the adaptive control of robot manipulators*, International Journal of
Robotics Research 6(3), 1987; G. Niemeyer, J.-J. Slotine, *Performance in adaptive manipulator control*,
International Journal of Robotics Research 10(2), 1991 (the recursion).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_momenta import joint_forces_of
from torchsko.bridge.body_motion import body_accels, body_jacobian_rates, body_jacobians, body_rates
from torchsko.control.joint_space.gains import is_nonnegative
from torchsko.control.joint_space.tracking import check_tracking_state
from torchsko.errors import MechanismError
from torchsko.mechanism.coordinates import all_rates, own_forces
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import shared_batch
from torchsko.mechanism.validation import check_gains, check_placement
from torchsko.rollout.argument_checks import check_dt
from torchsko.spatial.inertia import inertia_of_vector
from torchsko.spatial.motion import cross_force, cross_motion
from torchsko.verbs.dynamics import passive_force


class AdaptiveResult(NamedTuple):
    """What an adaptive controller does.

    Attributes:
        tau: joint forces, `[*batch, num_dof]` [N m or N].
        rate: of its parameters, `[*batch, num_bodies, 10]`, per second.
    """

    tau: Tensor
    rate: Tensor


def adaptive_control(
    mech: MechanismLike,
    parameters: Tensor,
    q: Tensor,
    qd: Tensor,
    q_target: Tensor,
    qd_target: Tensor,
    qdd_target: Tensor,
    *,
    slope: float | Tensor,
    gain: float | Tensor,
    adaptation: float | Tensor,
    dt: float | Tensor | None = None,
) -> AdaptiveResult:
    """The law of Slotine and Li: joint forces, and how the parameters they come from change.

    Armature and passive forces are the mechanism's own, taken as known; its inertial parameters are not read.
    The caller adds ``dt * rate`` to the parameters.

    The energy above falls in continuous time. Sampled every dt, K takes the share dt M^-1 K of s: choose it
    so that no eigenvalue of that reaches 1. One number for all joints of an arm does not fit both its
    shoulder and its wrist, which it throws about: at 1 kHz a Panda takes 12 N m s/rad at its shoulder, and
    0.2 at its last joint.

    The adaptation has a bound, too. Without `dt` the parameters trail by a sample, which takes dt Y Gamma Y*
    from K: where less than none is left, the arm swings up, if slowly. With `dt` forces are those of the
    parameters after the step, and eigenvalues of M^-1 (2 dt K + dt^2 Y Gamma Y*) have to stay below 4: that
    Panda takes an adaptation of 200, instead of 2. The regressor near the motion is
    ``Y = torchsko.torque_regressor(mech, q_target, qd_target, qdd_target).flatten(-2)``, and with a number
    as adaptation Y Gamma Y* is ``adaptation * Y @ Y.mT``.

    Args:
        mech: the mechanism; all coordinates are vectors.
        parameters: what is thought of `torchsko.inertial_parameters`, `[*batch, num_bodies, 10]`.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        q_target: where to be, `[*batch, num_q]`.
        qd_target: how fast, `[*batch, num_dof]`.
        qdd_target: with what acceleration, `[*batch, num_dof]`.
        slope: S, at which errors die out once s is zero, a number or `[*batch, num_dof]` [1/s].
        gain: K, a number or `[*batch, num_dof]` [N m s/rad or N s/m].
        adaptation: Gamma, a number, or one for each parameter, `[*batch, num_bodies, 10]`.
        dt: time [s] from one call to the next, a number or `[*batch]`; left out, forces are those of the
            parameters given.

    Raises:
        MechanismError: when a joint's coordinates are no vector, which it names, adaptation is not finite or
            below 0, in one place of a tensor, too, or a gain is not finite.
        ShapeError: when a shape or dtype does not fit the mechanism.
        TorchskoError: on a dt that is not above 0, or not finite.
    """
    robot = as_mechanism(mech)
    targets = {"q_target": q_target, "qd_target": qd_target, "qdd_target": qdd_target}
    batch = check_tracking_state(robot, q, qd, **targets)
    whole = _check(robot, batch, parameters, adaptation)
    check_gains(robot, whole, slope=slope, gain=gain)
    if dt is not None:
        check_dt(robot, dt, whole, backward=False)
    e, rate = q_target - q, qd_target - qd
    v, a = qd_target + slope * e, qdd_target + slope * rate
    s = qd - v
    V, W, A = _motions(robot, q, qd, v, a)
    S = body_jacobians(robot, q, s[..., None])
    layout = robot.layout
    unit = torch.eye(10, dtype=q.dtype, device=q.device)
    slope_to_I = layout.tree_order(S @ A.mT - cross_motion(W, S) @ V.mT, -3)
    to_each = slope_to_I.flatten(-2) @ inertia_of_vector(unit).flatten(-2).mT
    change = -adaptation * to_each
    if dt is not None:
        step = dt[..., None, None] if isinstance(dt, Tensor) else dt
        parameters = parameters + step * change
    I = layout.breadth_first(inertia_of_vector(parameters), -3)
    f = I @ A + cross_force(W, I @ V)
    own = own_forces(robot, robot.armature * all_rates(robot, a)) + passive_force(mech, q, qd)
    tau = joint_forces_of(robot, q, f) + own - gain * s
    return AdaptiveResult(tau, change)


def _motions(
    mech: Mechanism, q: Tensor, qd: Tensor, v: Tensor, a: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """V, W and A of every body, `[*batch, n, 6, 1]`, breadth first."""
    W, turned = body_jacobian_rates(mech, q, qd, v[..., None])
    still = torch.zeros_like(qd)
    gravity = body_accels(mech, q, still, still)[1]
    return body_rates(mech, q, qd), W, body_jacobians(mech, q, a[..., None]) + turned + gravity


def _check(
    mech: Mechanism, batch: tuple[int, ...], parameters: Any, adaptation: Any
) -> tuple[int, ...]:
    """Refuse what the law cannot take; the batch dimensions of all."""
    for k in mech.independent_joints:
        if not mech.joints.kinds[k].vector:
            raise MechanismError(
                f"joint {mech.tree_joint_names[k]!r} is {mech.joints.kinds[k].name}: its coordinates are no "
                "vector.",
                "The law of Slotine and Li differentiates the error, which here has no plain rate.",
                f"Hold it, mech.lock({{{mech.tree_joint_names[k]!r}: ...}}), or use computed_torque.",
            )
    meaning = f"{mech.name!r} has {mech.num_bodies} bodies, ten numbers each."
    given = {"parameters": parameters}
    if isinstance(adaptation, Tensor) and adaptation.ndim:
        given |= {"adaptation": adaptation}
    elif not is_nonnegative(adaptation):
        raise MechanismError(
            f"adaptation is {adaptation!r}.",
            advice=f"{_ADAPTATION}",
        )
    batches = {
        f"the tensor {name}": check_placement(
            mech, f"tensor {name}", x, (mech.num_bodies, 10), meaning, required=True
        )
        for name, x in given.items()
    }
    if not is_nonnegative(adaptation):
        raise MechanismError(
            "adaptation is less than 0, or not finite, in a place.",
            advice=f"{_ADAPTATION}",
        )
    return shared_batch({"the state": batch} | batches)


_ADAPTATION = (
    "With less than none the parameters would run away from those that fit.\n"
    "Pass a number, 0 or more, or one for each parameter, as torch.ones_like(parameters)."
)
