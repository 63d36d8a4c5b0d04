r"""The innovations factorization of the mass matrix, and everything it solves.

.. math::
    \mathcal{M} = [I + HAK] D [I + HAK]^*, \qquad [I + HAK]^{-1} = I - H \psi K, \qquad
    \det \mathcal{M} = \prod_k \det D(k)

with K = E_A G and psi the SPO of the weights A (I - G H). No product is ever formed: each factor acts by
one sweep, O(N) operations, in which psi appears as a gather that subtracts the innovation and a scatter
that adds the hinge acceleration.

====== ======================================= =====================
paper  meaning                                 code
====== ======================================= =====================
z, z+  correction force before, after a hinge  ``z``, ``z_plus``
eps    innovation, T - H z                     ``eps``
nu     D^-1 eps                                ``nu``
alpha+ parent's acceleration, carried over     ``alpha_plus``
====== ======================================= =====================

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemmas 11-12, Corollary 6.1, Algorithm 6.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.algebra.operators.edges import EdgeWeight
from torchsko.algebra.operators.hinge import apply_blocks, project, spread, times
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.hinge_step import HingeStep, hinge_steps
from torchsko.algebra.recursions.riccati import ArticulatedInertias, solve_riccati
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.sharing import total
from torchsko.errors import ShapeError
from torchsko.linalg.symmetric import factor_solve, spd_factor, spd_logdet
from torchsko.utils.dtype import without_autocast
from torchsko.utils.shapes import concatenate


@dataclass(frozen=True, eq=False)
class Innovations:
    """The factors of a mass matrix; made by `innovations`.

    Vectors are `[*batch, num_dof]`, node by node in the tree's order; pass ``columns=True`` for
    matrices `[*batch, num_dof, r]`. `solve` takes joint forces [N m or N] to accelerations
    [rad/s^2 or m/s^2], or momenta [N m s or N s] to velocities [rad/s or m/s].

    Attributes:
        model: the model factored.
        riccati: its articulated inertias.
        hinges: what the hinges of each level do (see `hinge_step`).

    Raises:
        ShapeError: from every method that takes a vector, when its type is not the model's.
    """

    model: SKOModel
    riccati: ArticulatedInertias
    hinges: tuple[HingeStep, ...]

    def __repr__(self) -> str:
        return f"Innovations({self.model!r})"

    @without_autocast
    def solve(self, x: Tensor, *, columns: bool = False) -> Tensor:
        """M^-1 x = [I - H psi K]* D^-1 [I - H psi K] x, shape of x.

        Reference: Jain 2011, Part II, Lemma 11.
        """
        return self._columns(x, columns, self._solve)

    @without_autocast
    def forward_dynamics(self, gen_force: Tensor) -> Tensor:
        """Accelerations M^-1 (T - C) by the articulated-body sweeps.

        Args:
            gen_force: T, `[*batch, num_dof]` [N m or N].

        Returns:
            Generalized accelerations `[*batch, num_dof]` [rad/s^2 or m/s^2].

        Reference: Jain 2011, Part II, Lemma 12.
        """
        s = self.model.hinge_bias
        if s is not None:
            gen_force = gen_force - self.model.layout.dofs.collect(s)[..., 0]
        return self._columns(gen_force, False, self._accelerate)

    @without_autocast
    def inverse(self) -> Tensor:
        """The dense inverse of the mass matrix, `[*batch, num_dof, num_dof]`.

        Reference: Jain 2011, Part II, Lemma 11.
        """
        n = self.model.num_dof
        identity = torch.eye(n, dtype=self.model.inertia.dtype, device=self.model.inertia.device)
        return self.solve(identity, columns=True)

    @without_autocast
    def logdet(self) -> Tensor:
        """Logarithm of the determinant of the mass matrix, sum of log det D(k), `[*batch]`.

        Reference: Jain 2011, Part II, Corollary 6.1.
        """
        parts = [
            spd_logdet(D if hinge.share is None else hinge.share.once(D))
            for D, hinge in zip(self.riccati.hinge_inertia, self.hinges, strict=True)
        ]
        return concatenate(parts, batch=self.model.batch_shape).sum(-1)

    @without_autocast
    def sqrt(self, x: Tensor, *, columns: bool = False) -> Tensor:
        """[I + H A K] D^(1/2) x: an action W with W W* = mass matrix, shape of x.

        D^(1/2) is the lower triangular Cholesky factor of each hinge inertia.

        Reference: Jain 2011, Part II, Lemma 11.
        """
        return self._columns(x, columns, self._sqrt)

    @without_autocast
    def whiten(self, x: Tensor, *, columns: bool = False) -> Tensor:
        """D^(-1/2) [I - H psi K] x, the inverse of `sqrt`, shape of x; whitens forces of covariance M."""
        return self._columns(x, columns, self._whiten)

    @without_autocast
    def sqrt_transpose(self, x: Tensor, *, columns: bool = False) -> Tensor:
        """D^(1/2)* [I + H A K]* x, shape of x.

        On velocities these are diagonalized rates: their squared length is twice the kinetic energy.
        """
        return self._columns(x, columns, self._sqrt_transpose)

    @without_autocast
    def whiten_transpose(self, x: Tensor, *, columns: bool = False) -> Tensor:
        """[I - H psi K]* D^(-1/2)* x, the inverse of `sqrt_transpose`, shape of x."""
        return self._columns(x, columns, self._whiten_transpose)

    @without_autocast
    def sample(
        self, n: int, *, generator: torch.Generator | None = None, inverse: bool = False
    ) -> Tensor:
        """Normal samples of mean zero whose covariance is the mass matrix, or its inverse, O(N) each.

        White noise x becomes `sqrt(x)`, or `whiten_transpose(x)`. Samples are differentiable in the
        model's tensors for fixed noise.

        Args:
            n: number of samples for every batch entry.
            generator: source of the noise, on the model's device; torch's own when left out, as it must
                be inside `torch.compile`.
            inverse: covariance M^-1 instead of M. Velocities drawn so, times sqrt(k T), are those of
                a system at temperature T.

        Returns:
            `[n, *batch, num_dof]`.

        Reference: Jain 2011, Part II, Lemma 11.
        """
        M = self.model.inertia
        shape = (n, *self.model.batch_shape, self.model.num_dof)
        noise = torch.randn(shape, generator=generator, dtype=M.dtype, device=M.device)
        return self.whiten_transpose(noise) if inverse else self.sqrt(noise)

    @without_autocast
    def hinge_certificate(self) -> Tensor:
        """Smallest eigenvalue of the hinge inertia D(k) of every node, `[*batch, num_nodes]`.

        The mass matrix is positive definite if and only if all are positive. The node with the smallest value
        is the joint that the least inertia resists. Nodes are in the tree's order; a node without dofs has
        inf. Units are those of D(k), mixed where a joint both rotates and translates.

        Reference: Jain 2011, Part II, Lemma 11 (the mass matrix is congruent to D).
        """
        layout = self.model.layout
        padding = layout.split_dofs(layout.dofs.padding[..., None], -2)
        smallest = [
            smallest_eigenvalue(D, pad[..., 0])
            for D, pad in zip(self.riccati.hinge_inertia, padding, strict=True)
        ]
        return layout.tree_order(concatenate(smallest, batch=self.model.batch_shape), -1)

    def _columns(
        self, x: Tensor, columns: bool, action: Callable[[Tensor], list[Tensor]]
    ) -> Tensor:
        layout, dtype = self.model.layout, self.model.inertia.dtype
        if x.dtype != dtype:
            raise ShapeError(
                f"a vector of {x.dtype} was given, the model is {dtype}.",
                "Nothing is cast in silence.",
                f"Pass x.to({dtype}).",
            )
        y = action(layout.dofs.pack(x if columns else x[..., None]))
        flat = layout.dofs.unpack(join([layout.widen_dofs(level) for level in y]))
        return flat if columns else flat[..., 0]

    def _gather_innovations(self, T: Tensor, bias: Sequence[Tensor] | None) -> list[Tensor]:
        """Innovations eps = [I - H psi K] T; with bias p(k) = P a + b, less H psi p."""
        layout, D, G = self.model.layout, self.riccati.hinge_inertia, self.riccati.gain
        T_levels = layout.split_dofs(T, -2)
        edges = self.model.edge_weight.split(layout.level_sizes)
        eps: list[Tensor] = []
        received: Tensor | None = None
        for depth, hinge in reversed(list(enumerate(self.hinges))):
            z, given = received if bias is None else _add(received, bias[depth]), T_levels[depth]
            eps.append(hinge.innovation(given, z))
            if depth:
                z_plus = hinge.carry(z, given, eps[-1], D[depth], G[depth])
                received = self._handed(depth, edges[depth], z_plus, eps[-1])
        return eps[::-1]

    def _handed(self, depth: int, edge: EdgeWeight, z_plus: Tensor, eps: Tensor) -> Tensor:
        """Force that a level hands to its parents, with K eps of the hinges that several nodes share."""
        layout, K = self.model.layout, self.riccati.shared_gain[depth]
        handed = layout.links[depth].sum_to_parents(edge.up(z_plus))
        share, link = self.hinges[depth].share, layout.hinge_links[depth]
        if K is None or share is None or link is None:
            return handed
        return handed + link.sum_to_parents(times(K, share.once(eps)))

    def _slip(self, depth: int, alpha: Tensor, alpha_plus: Tensor) -> Tensor:
        """Acceleration by which the hinges of a level yield to their parents, `[*, n, d, r]`.

        Args:
            depth: the level.
            alpha: acceleration of the nodes above, `[*, parents, m, r]`.
            alpha_plus: the same carried to the level, `[*, n, m, r]`.
        """
        share, link = self.hinges[depth].share, self.model.layout.hinge_links[depth]
        K, slip = self.riccati.shared_gain[depth], self.riccati.gain[depth].mT @ alpha_plus
        if K is None or share is None or link is None:
            return slip
        return slip + share.copies(K.mT @ link.to_children(alpha))

    def _scatter_accelerations(
        self, nu: Sequence[Tensor], a: Sequence[Tensor] | None
    ) -> list[Tensor]:
        """Accelerations [I - H psi K]* nu; with a(k), those of Alg. 6.1."""
        layout = self.model.layout
        edges = self.model.edge_weight.split(layout.level_sizes)
        qdd: list[Tensor] = []
        alpha: Tensor | None = None
        for depth, hinge in enumerate(self.hinges):
            accel = nu[depth]
            alpha_plus = None
            if alpha is not None:
                alpha_plus = edges[depth].down(layout.links[depth].to_children(alpha))
                accel = accel - self._slip(depth, alpha, alpha_plus)
            alpha = _add(alpha_plus, spread(hinge.joint_map, accel))
            alpha = alpha if a is None else alpha + a[depth]
            qdd.append(accel)
        return qdd

    def _solve(self, T: Tensor) -> list[Tensor]:
        return self._scatter_accelerations(self._divide(self._gather_innovations(T, None)), None)

    def _accelerate(self, T: Tensor) -> list[Tensor]:
        a = self.model.layout.split(self.model.coriolis_accel)
        b = self.model.layout.split(self.model.gyro_force)
        P = self.riccati.art_inertia
        bias = [apply_blocks(P_l, a_l) + b_l for P_l, a_l, b_l in zip(P, a, b, strict=True)]
        return self._scatter_accelerations(self._divide(self._gather_innovations(T, bias)), a)

    def _divide(self, eps: Sequence[Tensor]) -> list[Tensor]:
        """D^-1 eps."""
        blocks = zip(self.hinges, self.riccati.hinge_inertia, eps, strict=True)
        return [hinge.divide(D, e) for hinge, D, e in blocks]

    def _whiten(self, x: Tensor) -> list[Tensor]:
        D = self.riccati.hinge_inertia
        eps = self._gather_innovations(x, None)
        return [factor_solve(D_l, e, adjoint=False) for D_l, e in zip(D, eps, strict=True)]

    def _whiten_transpose(self, x: Tensor) -> list[Tensor]:
        D = self.riccati.hinge_inertia
        x_levels = self.model.layout.split_dofs(x, -2)
        nu = [factor_solve(D_l, x_l, adjoint=True) for D_l, x_l in zip(D, x_levels, strict=True)]
        return self._scatter_accelerations(nu, None)

    def _sqrt(self, x: Tensor) -> list[Tensor]:
        """A gather of A G L x, read through H one edge up, plus L x; L L* = D."""
        layout = self.model.layout
        x_levels = layout.split_dofs(x, -2)
        edges = self.model.edge_weight.split(layout.level_sizes)
        y: list[Tensor] = []
        z: Tensor | None = None
        for depth, hinge in reversed(list(enumerate(self.hinges))):
            eps = spd_factor(self.riccati.hinge_inertia[depth]) @ x_levels[depth]
            felt = None if z is None else total(hinge.share, project(hinge.joint_map, z))
            y.append(_add(felt, eps))
            if depth:
                z_plus = _add(z, times(self.riccati.gain[depth], eps))
                z = self._handed(depth, edges[depth], z_plus, eps)
        return y[::-1]

    def _sqrt_transpose(self, x: Tensor) -> list[Tensor]:
        """A scatter of H* x, then L* (x + G* alpha+) at each hinge; L L* = D."""
        layout = self.model.layout
        x_levels = layout.split_dofs(x, -2)
        edges = self.model.edge_weight.split(layout.level_sizes)
        y: list[Tensor] = []
        alpha: Tensor | None = None
        for depth, hinge in enumerate(self.hinges):
            rate, alpha_plus = x_levels[depth], None
            if alpha is not None:
                alpha_plus = edges[depth].down(layout.links[depth].to_children(alpha))
                rate = rate + self._slip(depth, alpha, alpha_plus)
            alpha = _add(alpha_plus, spread(hinge.joint_map, x_levels[depth]))
            y.append(spd_factor(self.riccati.hinge_inertia[depth]).mT @ rate)
        return y


def smallest_eigenvalue(D: Tensor, padding: Tensor) -> Tensor:
    """Of each block `[*, n, d, d]`, leaving padded dofs `[n, d]` out of account; `[*, n]`."""
    if D.shape[-1] == 0:
        return D.new_full(D.shape[:-2], torch.inf)
    # In place of the 1 on a padded diagonal stands what is larger than every eigenvalue here.
    bound = torch.where(padding.all(-1), torch.inf, D.square().sum((-2, -1)).sqrt())
    finite = D.isfinite().all(-1).all(-1) & bound.isfinite()
    padded = D + padding.to(D.dtype).diag_embed() * torch.where(finite, bound, 0.0)[..., None, None]
    # Eigenvalue routines answer nan with numbers.
    smallest = torch.linalg.eigvalsh(padded)[..., 0]
    return torch.where(finite, smallest, torch.where(padding.all(-1), torch.inf, torch.nan))


def _add(x: Tensor | None, y: Tensor) -> Tensor:
    """Sum of two terms of which the first may be absent."""
    return y if x is None else x + y


def swept_innovations(model: SKOModel) -> Innovations:
    """Factor the mass matrix of a model: one sweep of the Riccati recursion, O(N).

    Raises:
        Nothing at run time: a hinge inertia that is singular gives inf or nan for its sample.
        Mechanisms refuse such joints by name at load.

    Reference: Jain 2011, Part II, Lemma 11.
    """
    hinges = hinge_steps(model)
    return Innovations(model, solve_riccati(model, hinges), hinges)
