r"""The innovations factorization in O(log depth) operations per round of the tree.

The factors are those of `innovations`, found by `riccati_scan`; the sweeps by which they act become
products with powers of two SKO operators, E_A and E_psi = E_A (I - G H) (see `logdepth`):

.. math::
    z = \psi\,(E_A G\, T + P a + b), \quad \epsilon = T - H z, \qquad
    \alpha = \psi^* (H^* \nu + a), \quad \ddot q = \nu - K^* \alpha

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemmas 11-12, Corollary 6.1; the powers: section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from torchsko.algebra.operators import logdepth
from torchsko.algebra.operators.hinge import apply_blocks, project, spread
from torchsko.algebra.operators.logdepth import Powers
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.hinge_step import packed_hinges
from torchsko.algebra.recursions.innovations import Innovations, smallest_eigenvalue
from torchsko.algebra.recursions.riccati_scan import solve_riccati_scan
from torchsko.algebra.topology.sharing import total
from torchsko.linalg.symmetric import factor_solve, spd_factor, spd_solve


@final
@dataclass(frozen=True, eq=False)
class ScannedInnovations(Innovations):
    """The factors of a mass matrix, found and applied without levels; made by `innovations`.

    All nodes are one run in `riccati`, dofs padded to one width. What a user calls is as in
    `Innovations`.

    Attributes:
        powers: of E_A.
        art_powers: of E_psi.
    """

    powers: Powers
    art_powers: Powers

    def hinge_certificate(self) -> Tensor:
        """See `Innovations.hinge_certificate`."""
        layout, batch = self.model.layout, self.model.batch_shape
        smallest = smallest_eigenvalue(self.riccati.hinge_inertia[0], layout.dofs.padding)
        return layout.tree_order(smallest.expand(*batch, smallest.shape[-1]), -1)

    def _innovations(self, T: Tensor, bias: Tensor | None) -> Tensor:
        """Innovations eps = [I - H psi K] T; with bias p = P a + b, less H psi p."""
        jumps = self.model.layout.jumps
        crossed = self.hinges[0].carry(
            None, T, T, self.riccati.hinge_inertia[0], self.riccati.gain[0]
        )
        source = logdepth.step_up(jumps, self.powers, crossed)
        z = logdepth.gather(jumps, self.art_powers, source if bias is None else source + bias)
        return self.hinges[0].innovation(T, z)

    def _accelerations(self, nu: Tensor, a: Tensor | None) -> Tensor:
        """Accelerations [I - H psi K]* nu; with a, those of Alg. 6.1."""
        jumps, source = self.model.layout.jumps, spread(self.model.joint_map, nu)
        alpha = logdepth.scatter(jumps, self.art_powers, source if a is None else source + a)
        alpha_plus = logdepth.step_down(jumps, self.powers, alpha)
        return nu - self.hinges[0].slip(self.riccati.gain[0], alpha_plus)

    def _factor(self) -> Tensor:
        return spd_factor(self.riccati.hinge_inertia[0])

    def _divide_by_root(self, x: Tensor, *, adjoint: bool) -> Tensor:
        D = self.riccati.hinge_inertia[0]
        return factor_solve(D, x, adjoint=adjoint)

    def _solve(self, T: Tensor) -> list[Tensor]:
        nu = spd_solve(self.riccati.hinge_inertia[0], self._innovations(T, None))
        return [self._accelerations(nu, None)]

    def _accelerate(self, T: Tensor) -> list[Tensor]:
        a = self.model.coriolis_accel
        bias = apply_blocks(self.riccati.art_inertia[0], a) + self.model.gyro_force
        nu = spd_solve(self.riccati.hinge_inertia[0], self._innovations(T, bias))
        return [self._accelerations(nu, a)]

    def _whiten(self, x: Tensor) -> list[Tensor]:
        return [self._divide_by_root(self._innovations(x, None), adjoint=False)]

    def _whiten_transpose(self, x: Tensor) -> list[Tensor]:
        return [self._accelerations(self._divide_by_root(x, adjoint=True), None)]

    def _sqrt(self, x: Tensor) -> list[Tensor]:
        """[I + H A K] L x, L L* = D."""
        jumps, eps = self.model.layout.jumps, self._factor() @ x
        source = logdepth.step_up(jumps, self.powers, self.riccati.gain[0] @ eps)
        z = logdepth.gather(jumps, self.powers, source)
        return [total(self.hinges[0].share, project(self.model.joint_map, z)) + eps]

    def _sqrt_transpose(self, x: Tensor) -> list[Tensor]:
        """L* [I + H A K]* x, L L* = D."""
        jumps = self.model.layout.jumps
        alpha = logdepth.scatter(jumps, self.powers, spread(self.model.joint_map, x))
        alpha_plus = logdepth.step_down(jumps, self.powers, alpha)
        return [self._factor().mT @ (x + self.hinges[0].slip(self.riccati.gain[0], alpha_plus))]


def scanned_innovations(
    model: SKOModel, accumulate: torch.dtype = torch.float64
) -> ScannedInnovations:
    """Factor the mass matrix of a model in O(log depth) operations per round of the tree.

    Args:
        model: an SKO model; H M H* + S of every node must be positive definite.
        accumulate: floating-point type in which articulated inertias are composed; everything else is
            done, and given, in the model's own.

    Reference: Jain 2011, Part II, Lemma 11; Sarkka and Garcia-Fernandez 2021, Temporal parallelization,
    filtering operator.
    """
    riccati, jumps = solve_riccati_scan(model, accumulate), model.layout.jumps
    A, hinges = model.edge_weight.dense(), packed_hinges(model)
    D, G = riccati.hinge_inertia[0], riccati.gain[0]
    art_weight = hinges.passing_weight(A, D, G)
    return ScannedInnovations(
        model, riccati, (hinges,), logdepth.powers(jumps, A), logdepth.powers(jumps, art_weight)
    )
