r"""Motors with feed-forward and PID: a control for `torchsko.rollout`.

The torque asked of the motors is what the motion takes, rotors and friction included, and what the PID
adds to it:

.. math::
    \tau = J \ddot q_d + D \dot q_d + f_c\, \mathrm{sign}(\dot q_d) + \tau_{ID}
         + K_P (q_d - q) + K_I \int (q_d - q) + K_D (\dot q_d - \dot q)

DEPARTS: the paper prints f_c without a sign; dry friction opposes motion either way.

Reference: D. Isobe, A. Yagi, *General-purpose expression of structural connectivity in the parallel
solution scheme of inverse dynamics*, Eqs. 7-8 and Table I.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.coordinates import among_all_dofs
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.joints.configuration import difference
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics

Target = Callable[[float], tuple[Tensor, Tensor, Tensor]]
"""Time [s] to the configuration, velocity and acceleration wanted."""

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
        """The mechanism with these motors at its independent joints, in place of its armature and losses."""
        mech = as_mechanism(mech)
        zero = torch.zeros_like(mech.velocity_limit)
        given = {"armature": self.inertia, "damping": self.damping, "friction": self.friction}
        return mech.replace(**{k: among_all_dofs(mech, zero + x) for k, x in given.items()})


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
class MotorControl:
    """Feed-forward by inverse dynamics, and PID feedback: a `Controller` for `torchsko.rollout`.

    Acts once a time step and holds the torque over it; remembers the integral of the error. Errors of
    quaternions are taken on their manifold.

    Attributes:
        mech: what the feed-forward knows of the links, without motors.
        target: the motion wanted.
        motor: what it knows of the motors.
        pid: feedback gains.
        feed_forward: share of the feed-forward torque that is applied: 1 for Eq. 7, 0 for feedback alone.
        parents: another connectivity of the links, as in `torchsko.inverse_dynamics`.

    Reference: Isobe and Yagi (undated), General-purpose expression, Eqs. 7-8.
    """

    mech: MechanismLike
    target: Target
    motor: Motor
    pid: PID
    feed_forward: Number = 1.0
    parents: Tensor | None = None

    def start(self, q: Tensor, qd: Tensor) -> Tensor:
        """No error yet, `[*batch, num_dof]`."""
        return torch.zeros_like(qd)

    def act(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Joint torque `[*batch, num_dof]` [N m], and the integral of the error up to t + dt."""
        q_d, qd_d, _ = self.target(t)
        error = difference(self.mech, q, q_d)
        feedback = self.pid.kp * error + self.pid.ki * memory + self.pid.kd * (qd_d - qd)
        return feedback + self.feed_forward * self.motion_torque(t), memory + dt * error

    def motion_torque(self, t: float) -> Tensor:
        """The feed-forward torque: what the motion wanted takes, `[*batch, num_dof]` [N m]."""
        q_d, qd_d, qdd_d = self.target(t)
        links = inverse_dynamics(
            self.mech, q_d, qd_d, qdd_d, method="parallel", parents=self.parents
        )
        motor = self.motor
        opposed = motor.damping * qd_d + motor.friction * torch.sign(qd_d)
        return motor.inertia * qdd_d + opposed + links
