r"""Motor control by feed-forward and PID feedback, as a controller for `torchsko.rollout`.

The motor torque is the inverse dynamics of the desired motion, with rotors and friction, plus the feedback:

.. math::
    \tau = J \ddot q_d + D \dot q_d + f_c\, \mathrm{sign}(\dot q_d) + \tau_{ID}
         + K_P (q_d - q) + K_I \int (q_d - q) + K_D (\dot q_d - \dot q)

DEPARTS: the paper prints f_c without a sign; dry friction opposes motion in both directions.

Reference: D. Isobe, A. Yagi, *General-purpose expression of structural connectivity in the parallel
solution scheme of inverse dynamics*, Eqs. 7-8 and Table I.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.actuators.controller import Controller
from torchsko.mechanism.coordinates import scatter_dofs
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.manifold import difference
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics

Target = Callable[[float], tuple[Tensor, Tensor, Tensor]]
"""Maps time [s] to the desired configuration, velocity and acceleration."""

Number = float | Tensor
"""One value for all joints, or one per degree of freedom, `[*batch, num_dof]`."""


@dataclass(frozen=True, eq=False)
class Motor:
    """A gearless motor at every joint.

    Attributes:
        inertia: J of its rotor [kg m^2].
        damping: D [N m s/rad].
        friction: f_c, dry [N m].
    """

    inertia: Number
    damping: Number
    friction: Number

    def on(self, mech: MechanismLike) -> Mechanism:
        """The mechanism with these motors at its independent joints; they replace its armature and losses."""
        mech = as_mechanism(mech)
        zero = torch.zeros_like(mech.velocity_limit)
        changes = {"armature": self.inertia, "damping": self.damping, "friction": self.friction}
        return mech.replace(**{k: scatter_dofs(mech, zero + x) for k, x in changes.items()})


@dataclass(frozen=True, eq=False)
class PID:
    """Feedback gains.

    Attributes:
        kp: of the angle [N m/rad].
        ki: of its integral [N m/(rad s)].
        kd: of the rate [N m s/rad].
    """

    kp: Number
    ki: Number
    kd: Number


@dataclass(frozen=True, eq=False)
class MotorControl(Controller):
    """Feed-forward by inverse dynamics with PID feedback: a `Controller` for `torchsko.rollout`.

    It computes the torque once per time step; its memory is the integral of the error. Errors of quaternions
    are taken on their manifold.

    Attributes:
        mech: model of the links for the feed-forward, without motors.
        target: the desired motion.
        motor: model of the motors for the feed-forward.
        pid: feedback gains.
        feed_forward: fraction of the feed-forward torque that is applied: 1 for Eq. 7, 0 for feedback alone.
        parents: another connectivity of the links, as in `torchsko.inverse_dynamics`.

    Reference: Isobe and Yagi (undated), General-purpose expression, Eqs. 7-8.
    """

    mech: MechanismLike
    target: Target
    motor: Motor
    pid: PID
    feed_forward: Number = 1.0
    parents: Tensor | None = None

    def initial_memory(self, q: Tensor, qd: Tensor) -> Tensor:
        """Integral of the error at the start, zeros `[*batch, num_dof]`."""
        return torch.zeros_like(qd)

    def act(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Joint torque `[*batch, num_dof]` [N m], and the integral of the error at t + dt."""
        q_d, qd_d, _ = self.target(t)
        error = difference(self.mech, q, q_d)
        feedback = self.pid.kp * error + self.pid.ki * memory + self.pid.kd * (qd_d - qd)
        return feedback + self.feed_forward * self.motion_torque(t), memory + dt * error

    def motion_torque(self, t: float) -> Tensor:
        """The feed-forward torque of the desired motion, `[*batch, num_dof]` [N m]."""
        q_d, qd_d, qdd_d = self.target(t)
        links = inverse_dynamics(
            self.mech, q_d, qd_d, qdd_d, method="parallel", parents=self.parents
        )
        motor = self.motor
        losses = motor.damping * qd_d + motor.friction * torch.sign(qd_d)
        return motor.inertia * qdd_d + losses + links
