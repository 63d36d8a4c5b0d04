r"""Forces of transmissions that act at the end of a time step, as damping does.

With lengths l = B q, to first order of a step of length h to the velocity v',

.. math::
    \tau(q + h v', v') = \tau - B^* d\, B\, (v' - v) - h\, B^* k\, B\, v',

where d and k are how the forces fall with speed and length. With d alone this is what MuJoCo's
"implicitfast" does.

Reference: MuJoCo documentation, "Computation", Numerical integration.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.coordinates import all_rates, own_forces, own_rows
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import concatenate, matvec


@dataclass(frozen=True, eq=False)
class ForceSlopes:
    """How the forces of transmissions fall with their lengths and speeds.

    Attributes:
        transmission: B, rates of lengths over rates of joints, `[*, n, num_tree_dof]`; without the joints
            whose force saturates.
        stiffness: k, `[*batch, n]`.
        damping: d, likewise.
        alone: transmissions of one joint each, int64.
        several: the others, int64.
    """

    transmission: Tensor
    stiffness: Tensor
    damping: Tensor
    alone: Tensor
    several: Tensor

    def beside(self, other: ForceSlopes) -> ForceSlopes:
        """Both as one."""
        n = self.stiffness.shape[-1]
        return ForceSlopes(
            concatenate((self.transmission, other.transmission), -2),
            concatenate((self.stiffness, other.stiffness)),
            concatenate((self.damping, other.damping)),
            torch.cat([self.alone, n + other.alone]),
            torch.cat([self.several, n + other.several]),
        )


@dataclass(frozen=True, eq=False)
class ImplicitForce:
    """Joint forces that answer the velocity v' at the end of a step: push - D v' - R* d R v'.

    Attributes:
        push: what does not depend on it, `[*batch, num_dof]` [N m or N].
        damping: the diagonal D, `[*batch, num_tree_dof]` [N m s/rad or N s/m].
        rows: R, rates over qd, `[*, r, num_dof]`; None where there are none.
        row_damping: d, `[*batch, r]`.
    """

    push: Tensor
    damping: Tensor
    rows: Tensor | None = None
    row_damping: Tensor | None = None


def implicit_force(
    mech: Mechanism,
    tau: Tensor,
    slopes: ForceSlopes,
    qd: Tensor,
    dt: float | Tensor,
    positions: bool,
) -> ImplicitForce:
    """How forces tau at the start of a step answer it.

    Args:
        mech: the mechanism.
        tau: `[*batch, num_dof]`.
        slopes: of the forces that make it up.
        qd: velocity at the start, `[*batch, num_dof]`.
        dt: time step [s].
        positions: whether lengths are those at the end of the step, too.
    """
    B = slopes.transmission
    held = slopes.damping * matvec(B, all_rates(mech, qd))
    push = tau + own_forces(mech, matvec(B.mT, held))
    d = slopes.damping + dt * slopes.stiffness if positions else slopes.damping
    one = B.index_select(-2, slopes.alone)
    damping = matvec((one * one).mT, d.index_select(-1, slopes.alone))
    if not len(slopes.several):
        return ImplicitForce(push, damping)
    rows = own_rows(mech, B.index_select(-2, slopes.several))
    return ImplicitForce(push, damping, rows, d.index_select(-1, slopes.several))


class ImplicitController:
    """Base class of controllers whose forces may act at the velocity after the step, as damping does.

    A `torchsko.rollout.controls.Controller` besides. It is an ordinary class: `torch.compile` cannot test
    with ``isinstance`` for a Protocol that has a property.
    """

    @property
    def is_implicit(self) -> bool:
        """Whether the forces act at the velocity after the step."""
        return False

    def answer(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[ImplicitForce, Tensor]:
        """In place of `act`: the response of the forces from t [s] to t + dt, and the memory at t + dt."""
        raise NotImplementedError
