r"""Euler steps with implicit losses, `SemiImplicitEuler`, and with implicit Coriolis forces, `ImplicitEuler`.

In a step of `ImplicitEuler` neither losses nor Coriolis forces add energy, for any step length. It is split
in two. From q, v all forces except the Coriolis forces lead to the velocity u, and u to the pose q', as in
`SemiImplicitEuler`:

.. math:: (\mathcal M + h B)(u - v) = h (\tau - g - B v), \qquad q' = q \oplus h u.

Then the Coriolis forces lead to v', while the mass matrix changes from M at q to M' at q':

.. math:: [\tfrac12 (\mathcal M + \mathcal M') + h S]\, v' = \mathcal M u, \qquad
    S = \tfrac12 [\mathcal C(q, v) - \mathcal C^*(q, v)],

C being the factor with dM/dt = C + C* (`torchsko.coriolis_matrix`). S does no work. The products of the
first equation with u, and of the second with v', are therefore exact balances of the kinetic energy T:

.. math::
    T(q, u) - T(q, v) &= h\, u^* (\tau - g) - h\, u^* B u - \tfrac12 |u - v|_{\mathcal M}^2, \\
    T(q', v') - T(q, u) &= - \tfrac12 |v' - u|_{\mathcal M}^2.

The work of conservative forces differs from the change of the potential U by the curvature of U along the
step, :math:`U(q') - U(q) - h\, u^* g = O(h^2)`. Only this term can increase the energy.

Velocities of free joints refer to the child's axes at q, which stay fixed over the step: without forces the
body moves in a straight line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.integrators.step import Coordinates, Dynamics, Integrator, implicit_losses
from torchsko.linalg.unpivoted import solve_without_pivots
from torchsko.mechanism.configuration import advance, transport, transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.coriolis import mass_and_coriolis_matrix
from torchsko.verbs.dynamics import mass_matrix


@dataclass(frozen=True)
class SemiImplicitEuler(Integrator):
    r"""Velocity first, then position with the new velocity, as a `Step`: order 1, one evaluation.

    Damping and dry friction act on the new velocity, which is stable for any step:

    .. math::
        (\mathcal M + h B)\, \ddot q = \tau - \mathcal C - B \dot q, \quad
        B = d + f / \sqrt{\dot q^2 + v_s^2},

    with the step h, the damping d, the dry friction f and the Coriolis, gravity and spring forces C. The
    diagonal h B is added to the armature, so a step costs one forward dynamics. Dry friction is treated as a
    linear damping f / sqrt(v^2 + v_s^2), taken implicitly: it opposes motion and never reverses it. A joint
    stuck by friction creeps at v_s tau / sqrt(f^2 - tau^2), and takes about log(v / v_s) / log(tau / f) steps
    to break loose. The linear velocity of a free joint is advanced in the axes of the joint frame, so a body
    without forces moves in a straight line at constant speed.

    This is MuJoCo's "Euler" (with its implicit damping), whose dry friction is a soft constraint instead.
    The energy error is O(h) over times that depend on the motion; see ``benchmarks/energy.py``. Coriolis
    forces are those of the old velocity, which can add energy to light links with little damping; use
    `ImplicitEuler` for these.

    Attributes:
        creep: speed v_s below which dry friction acts like damping [rad/s or m/s].

    Reference: MuJoCo documentation, Computation, "Numerical integration" (Euler with implicit damping).
    """

    creep: float = 1e-4
    order: int = field(default=1, init=False)
    implicit_damping: ClassVar[bool] = True
    single_evaluation: ClassVar[bool] = True
    evaluates_start: ClassVar[bool] = True

    def __call__(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> Coordinates:
        """The next state."""
        if not mech.has_losses:
            return advance(mech, q, qd, accelerate(mech, t, q, qd), dt)
        lossy = implicit_losses(Kinematics.of(mech, q, qd), dt, self.creep)
        return advance(mech, q, qd, accelerate(lossy, t, q, qd), dt)


@dataclass(frozen=True)
class ImplicitEuler(SemiImplicitEuler):
    """Semi-implicit Euler with Coriolis forces implicit as well, as a `Step`: order 1, one evaluation.

    It is meant for robots with light or fast links, to which Coriolis forces at the old velocity add energy.
    Without Coriolis forces the result is that of `SemiImplicitEuler`. A step also takes two mass matrices,
    one Coriolis matrix and a dense solve. It dissipates energy, to first order in the step.
    """

    def __call__(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> Coordinates:
        """The next state."""
        state = Kinematics.of(mech, q, qd)
        lossy = implicit_losses(state, dt, self.creep) if mech.has_losses else mech
        M, C = mass_and_coriolis_matrix(state)
        free_motion, turning = matvec(C, qd), transport_rate(mech, qd, qd)
        if turning is not None:
            of_tree = cast(Tensor, transport_rate(state.tree, state.tree_qd, state.tree_qd))
            free_motion = free_motion + state.independent_forces(lossy.armature * of_tree)
        qdd = accelerate(lossy, t, q, qd, free_motion)
        u = qd + dt * qdd
        if turning is None:
            end, v = advance(mech, q, qd, qdd, dt)
            return end, v - _coriolis_change(mech, M, mass_matrix(mech, end), C, u, dt)
        end, v = advance(mech, q, qd, qdd - turning, dt)
        step, units = dt * u, _units(qd)
        P = transport(mech, step, units).movedim(0, -1)
        W = cast(Tensor, transport_rate(mech, qd, units)).movedim(0, -1)
        C = C + state.independent_matrix(torch.diag_embed(mech.armature)) @ W
        M_end = P.mT @ mass_matrix(mech, end) @ P
        return end, v - transport(mech, step, _coriolis_change(mech, M, M_end, C - M @ W, u, dt))


def _coriolis_change(
    mech: Mechanism, M: Tensor, M_end: Tensor, C: Tensor, u: Tensor, dt: float | Tensor
) -> Tensor:
    """Change of u by the second equation; exactly zero where M is constant and S = 0."""
    h = dt[..., None] if isinstance(dt, Tensor) else dt
    change = (M_end - M + h * (C - C.mT)) / 2
    return solve_without_pivots(M + change, matvec(change, u))


def _units(qd: Tensor) -> Tensor:
    """The unit vectors of velocities, `[num_dof, *1, num_dof]`."""
    n = qd.shape[-1]
    units = torch.eye(n, dtype=qd.dtype, device=qd.device)
    return units.reshape(n, *(1 for _ in qd.shape[:-1]), n)
