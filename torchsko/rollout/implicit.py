r"""A step in which neither losses nor Coriolis forces can add energy, however long it is.

It is split in two. From q, v all forces but the Coriolis ones lead to the velocity u, and u to the pose q',
as in `SemiImplicitEuler`:

.. math:: (\mathcal M + h B)(u - v) = h (\tau - g - B v), \qquad q' = q \oplus h u.

Then Coriolis forces alone lead to v', while the mass matrix changes from M at q to M' at q':

.. math:: [\tfrac12 (\mathcal M + \mathcal M') + h S]\, v' = \mathcal M u, \qquad
    S = \tfrac12 [\mathcal C(q, v) - \mathcal C^*(q, v)],

C being the factor with dM/dt = C + C* (`torchsko.coriolis_matrix`). S does no work. So the product of the
first equation with u, and that of the second with v', are balances of the kinetic energy T, without a
remainder:

.. math::
    T(q, u) - T(q, v) &= h\, u^* (\tau - g) - h\, u^* B u - \tfrac12 |u - v|_{\mathcal M}^2, \\
    T(q', v') - T(q, u) &= - \tfrac12 |v' - u|_{\mathcal M}^2.

Of potential forces the work differs from what the potential U loses by its curvature along the step,
:math:`U(q') - U(q) - h\, u^* g = O(h^2)`: only by that can the energy grow.

Rates of free joints stand in axes that are those of the child at q, and do not turn over the step: what no
force acts on flies straight on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from torchsko.linalg.unpivoted import solve_without_pivots
from torchsko.mechanism.joints.configuration import advance, transport, transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.step import Accelerate, State, implicit_losses
from torchsko.utils.shapes import matvec
from torchsko.verbs.coriolis import mass_and_coriolis_matrix
from torchsko.verbs.dynamics import mass_matrix


@dataclass(frozen=True)
class ImplicitEuler:
    """Losses and Coriolis forces act on the new velocity, as a `Step`: order 1, one evaluation.

    For robots with links so light, or so fast, that Coriolis forces on the old velocity feed them energy.
    The rest is as in `SemiImplicitEuler`, and so is the result where there are no Coriolis forces. Besides
    the evaluation a step takes two mass matrices, one Coriolis matrix and a dense solve. It has a price
    in energy, too: of first order in the step, like all its errors, and lost, not gained.

    Attributes:
        creep: speed below which dry friction acts like damping [rad/s or m/s].
    """

    creep: float = 1e-4

    def __call__(
        self, mech: Mechanism, accelerate: Accelerate, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> State:
        """The next state."""
        opposed = implicit_losses(mech, qd, dt, self.creep) if mech.has_losses else mech
        M, C = mass_and_coriolis_matrix(mech, q, qd)
        kick = accelerate(opposed, t, q, qd, matvec(C, qd))
        u, turning = qd + dt * kick, transport_rate(mech, qd, qd)
        if turning is None:
            end, v = advance(mech, q, qd, kick, dt)
            return end, v - _lost(mech, M, mass_matrix(mech, end), C, u, dt)
        end, v = advance(mech, q, qd, kick - turning, dt)
        step, units = dt * u, _units(qd)
        P = transport(mech, step, units).movedim(0, -1)
        W = cast(Tensor, transport_rate(mech, qd, units)).movedim(0, -1)
        M_end = P.mT @ mass_matrix(mech, end) @ P
        return end, v - transport(mech, step, _lost(mech, M, M_end, C - M @ W, u, dt))


def _lost(
    mech: Mechanism, M: Tensor, M_end: Tensor, C: Tensor, u: Tensor, dt: float | Tensor
) -> Tensor:
    """What the second equation takes from u; nothing, without rounding, where M stays and S = 0."""
    h = dt[..., None] if isinstance(dt, Tensor) else dt
    change = (M_end - M + h * (C - C.mT)) / 2
    return solve_without_pivots(M + change, matvec(change, u), scalar=mech.scalar)


def _units(qd: Tensor) -> Tensor:
    """The unit vectors of rates, `[num_dof, *1, num_dof]`."""
    n = qd.shape[-1]
    units = torch.eye(n, dtype=qd.dtype, device=qd.device)
    return units.reshape(n, *(1 for _ in qd.shape[:-1]), n)
