r"""Implicit forces of transmissions: they act at the end of a time step, like damping.

With lengths l = B q, to first order in a step of length h to the velocity v',

.. math::
    \tau(q + h v', v') = \tau - B^* d\, B\, (v' - v) - h\, B^* k\, B\, v',

where -d and -k are the derivatives of the forces with respect to speed and length. With d alone this is
MuJoCo's "implicitfast".

Reference: MuJoCo documentation, "Computation", Numerical integration.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.coordinates import (
    closed_matrix,
    independent_forces,
    independent_rows,
    tree_rates,
)
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import concatenate, matvec


@dataclass(frozen=True, eq=False)
class ForceSlopes:
    """Negative derivatives of the forces of transmissions with respect to lengths and speeds.

    Attributes:
        transmission: B, rates of lengths over rates of joints, `[*, n, num_tree_dof]`; zero at joints whose
            force saturates.
        stiffness: k, `[*batch, n]`.
        damping: d, `[*batch, n]`.
        single_joint: indices of transmissions of one joint, int64.
        multi_joint: indices of the others, int64.
    """

    transmission: Tensor
    stiffness: Tensor
    damping: Tensor
    single_joint: Tensor
    multi_joint: Tensor

    def concatenate(self, other: ForceSlopes) -> ForceSlopes:
        """The transmissions of both."""
        n = self.stiffness.shape[-1]
        return ForceSlopes(
            concatenate((self.transmission, other.transmission), -2),
            concatenate((self.stiffness, other.stiffness)),
            concatenate((self.damping, other.damping)),
            torch.cat([self.single_joint, n + other.single_joint]),
            torch.cat([self.multi_joint, n + other.multi_joint]),
        )


@dataclass(frozen=True, eq=False)
class ImplicitForce:
    """Joint forces that depend on the velocity v' at the end of a step: push - D v' - R* d R v'.

    Attributes:
        push: constant part, `[*batch, num_dof]` [N m or N].
        damping: the diagonal D, `[*batch, num_tree_dof]` [N m s/rad or N s/m].
        rows: R, rates over qd, `[*, r, num_dof]`; None without coupled joints.
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
    """Linearize forces tau at the start of a step.

    Args:
        mech: the mechanism.
        tau: `[*batch, num_dof]`.
        slopes: of the forces that contribute to tau.
        qd: velocity at the start, `[*batch, num_dof]`.
        dt: time step [s].
        positions: whether lengths are taken at the end of the step as well.
    """
    B = slopes.transmission
    X = closed_matrix(mech, None)  # refuses loops
    explicit = slopes.damping * matvec(B, tree_rates(mech, X, qd))
    push = tau + independent_forces(mech, X, matvec(B.mT, explicit))
    d = slopes.damping + dt * slopes.stiffness if positions else slopes.damping
    single = B.index_select(-2, slopes.single_joint)
    damping = matvec((single * single).mT, d.index_select(-1, slopes.single_joint))
    if not len(slopes.multi_joint):
        return ImplicitForce(push, damping)
    rows = independent_rows(mech, X, B.index_select(-2, slopes.multi_joint))
    return ImplicitForce(push, damping, rows, d.index_select(-1, slopes.multi_joint))
