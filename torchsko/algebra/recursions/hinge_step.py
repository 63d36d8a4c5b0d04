r"""The step of the articulated-body recursions across the hinges of one level: P, z and the gain.

.. math::
    D = H P H^* + S, \quad G = P H^* D^{-1}, \quad P^+ = P - G H P, \qquad
    z^+ = z + G \epsilon, \quad \nu = D^{-1} \epsilon

Along the hinge both results are known exactly, :math:`P^+ H^* = G S` and :math:`H z^+ = T - S \nu`. Rounding
loses them: on a chain of 64 links in float32 it costs two digits of the accelerations. Let rows E satisfy
E H* = I; E is H itself where its rows are orthonormal. Let N = I - H* E, and Y = (X + X*) / 2 the
symmetric part of X = P - G H P. The known parts are then imposed:

.. math::
    P^+ = Y + C E + (C E)^*, \quad C = (I - \tfrac12 E^* H)(G S - Y H^*), \qquad
    z^+ = N^*(z + G \epsilon) + E^*(T - S \nu)

The symmetric part is needed as well, since an antisymmetric part of P grows from hinge to hinge.
Where rows of E are unit vectors of the coordinates, N is a mask and C = (I - E* H / 2) G S.

Where several nodes share a hinge (see `sharing`), D = sum H P H* + S and the innovation are sums over them,
and P+ has blocks off the diagonal: -G(k) D G*(j) for two of them. Their E is zero. Sweeps cross such a hinge
once, in the axes of its parent, as if its nodes were one:

.. math::
    U = \sum_k A(k) P(k) H^*(k), \quad K = U D^{-1}, \quad
    P(p) \mathrel{+}= \sum_k A(k) P(k) A^*(k) - K U^*, \qquad
    z(p) \mathrel{+}= \sum_k A(k) z(k) + K \epsilon .

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemma 7, Eq. 33 and Algorithm 6.1; with an armature, `articulated` (DEPARTS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.algebra.operators.hinge import (
    armature_blocks,
    armature_diagonal,
    level_maps,
    project,
    spread,
    times,
    times_rows,
)
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.topology.sharing import Share, total
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.linalg.symmetric import mirror, mirror_upper, spd_solve, symmetric_part


class Mask(NamedTuple):
    """N and (I - E* H / 2) S of hinges whose rows of E are unit vectors of the coordinates, or zero.

    Attributes:
        vector: 0 where a component is one of the rows, else 1, `[*, n, m, 1]`.
        matrix: 0 where either component is, else 1, or 1/2 in dense form, `[*, n, m, m]`.
        slip: `[*, n, m, d]`, None without armature.
    """

    vector: Tensor
    matrix: Tensor
    slip: Tensor | None


@dataclass(frozen=True, eq=False)
class HingeStep:
    """The hinges of a level, or of any other run of nodes.

    Attributes:
        joint_map: H, `[*, n, d, m]`.
        armature: diagonal of S, `[*, n, d, 1]`, or None for zero.
        offset: what is added to H P H*, `[*, n, d, d]`, or None: S, and 1 for padded dofs.
        straight: E, `[*, n, d, m]`, or None where nothing is written exactly.
        mask: for a simple E, else None.
        share: which nodes share a hinge; None where each has its own.
        padding: where some do, the 1 for padded dofs, `[n, d, d]`; else it is in `offset`.
    """

    joint_map: Tensor
    armature: Tensor | None
    offset: Tensor | None
    straight: Tensor | None
    mask: Mask | None
    share: Share | None
    padding: Tensor | None

    def cross(self, P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """D, G and the diagonal blocks of P+ from P, `[*, n, m, m]`."""
        U, D = self.inertia(P)
        return D, *self._crossed(P, U, spd_solve(D, U.mT).mT)

    def inertia(self, P: Tensor) -> tuple[Tensor, Tensor]:
        """P H* of every node, and D of its hinge, `[*, n, d, d]`."""
        U = P @ self.joint_map.mT
        D = mirror(project(self.joint_map, U))
        D = total(self.share, D if self.offset is None else D + self.offset)
        return U, D if self.padding is None else D + self.padding

    def cross_single(self, P: Tensor, U: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
        """G and P+ of nodes with a hinge of their own; zero and P for nodes that share one.

        Args:
            P: articulated-body inertias, `[*, n, m, m]`.
            U: P H*, `[*, n, m, d]`.
            D: hinge inertia, `[*, n, d, d]`.
        """
        if self.share is None:
            return self._crossed(P, U, spd_solve(D, U.mT).mT)
        if self.share.single is None:
            return torch.zeros_like(U), P
        return self._crossed(P, U, torch.where(self.share.single, spd_solve(D, U.mT).mT, 0.0))

    def shared_gain(self, U: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
        """Gains K of shared hinges in the axes of their parents, and the inertia K U* that they release.

        Args:
            U: A P H* of the nodes, `[*, n, m, d]`.
            D: hinge inertia, `[*, n, d, d]`.

        Returns:
            K `[*, hinges, m, d]` and K U* `[*, hinges, m, m]`, zero for hinges of one node.
        """
        assert self.share is not None
        U = self.share.hinge_total(U)
        K = spd_solve(self.share.once(D), U.mT).mT
        if self.share.shared is not None:
            K = torch.where(self.share.shared, K, 0.0)
        return K, times_rows(K, U.mT)

    def coupling(self, K: Tensor, D: Tensor) -> Tensor:
        """For each node the blocks of A (G D G*) A* with the others of its hinge; zero where alone.

        Args:
            K: A G, `[*, n, m, d]`.
            D: hinge inertia, `[*, n, d, d]`.

        Returns:
            `[*, n, m, m]`; the sum over the nodes of a hinge is symmetric.
        """
        return times_rows(times_rows(K, D), (total(self.share, K) - K).mT)

    def innovation(self, T: Tensor, z: Tensor | None) -> Tensor:
        """Eps = T - H z, z None for zero; columns `[*, n, *, r]`."""
        return T if z is None else T - total(self.share, project(self.joint_map, z))

    def slip(self, G: Tensor, alpha_plus: Tensor) -> Tensor:
        """G* alpha+, what the hinge yields to the acceleration handed down to it, `[*, n, d, r]`."""
        return total(self.share, G.mT @ alpha_plus)

    def divide(self, D: Tensor, x: Tensor) -> Tensor:
        """D^-1 x, columns `[*, n, d, r]`, solved once for each hinge."""
        if self.share is None:
            return spd_solve(D, x)
        return self.share.copies(spd_solve(self.share.once(D), self.share.once(x)))

    def carry(self, z: Tensor | None, T: Tensor, eps: Tensor, D: Tensor, G: Tensor) -> Tensor:
        """Return z+ from z (None: zero), hinge force T and innovation eps; columns `[*, n, *, r]`."""
        z_plus = times(G, eps)
        z_plus = z_plus if z is None else z + z_plus
        E = self.straight
        # In a traced program this makes the force along the hinge a plain input; in eager it is two more
        # passes, and no float32 error that was measured changed by it.
        if E is None or not is_scalar_form():
            return z_plus
        if self.armature is not None:
            T = T - self.armature * spd_solve(D, eps)
        if self.mask is None:
            return z_plus + spread(E, T - project(self.joint_map, z_plus))
        return self.mask.vector * z_plus + spread(E, T)

    def passing(self, D: Tensor, G: Tensor) -> Tensor:
        """I - G H, what passes the hinge, with H (I - G H) = S D^-1 H written in; `[*, n, m, m]`."""
        H, E = self.joint_map, self.straight
        through = torch.eye(H.shape[-1], dtype=G.dtype, device=G.device) - G @ H
        if E is None:
            return through
        if self.mask is not None:
            through = self.mask.vector * through
        else:
            through = through - E.mT @ (H @ through)
        if self.armature is None:
            return through
        return through + E.mT @ (self.armature * spd_solve(D, H))

    def passing_weight(self, A: Tensor, D: Tensor, G: Tensor) -> Tensor:
        """The weights of E_psi = E_A (I - G H), `[*, n, m, m]`, for dense weights A."""
        weight = A @ self.passing(D, G)
        if self.share is None:
            return weight
        K = A @ G
        return weight - (self.share.total(K) - K) @ self.joint_map

    def select(self, nodes: Tensor, share: Share | None) -> HingeStep:
        """The hinges of the nodes at these positions, int64 `[k]`, of which these share one."""

        def chosen(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.index_select(-3, nodes)

        fields = (self.joint_map, self.armature, self.offset, self.straight, self.padding)
        H, S, offset, E, padding = map(chosen, fields)
        assert H is not None
        mask = None
        if self.mask is not None:
            vector, matrix, slip = map(chosen, self.mask)
            assert vector is not None and matrix is not None
            mask = Mask(vector, matrix, slip)
        return HingeStep(H, S, offset, E, mask, share, padding)

    def _crossed(self, P: Tensor, U: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
        """G and P+; the gain is U / D, so that in a traced program entries of P+ along the hinge cancel."""
        return G, self._written(P - times_rows(G, U.mT), G)

    def _written(self, X: Tensor, G: Tensor) -> Tensor:
        """P+ from P - G H P, what is known of it written in."""
        H, E, S = self.joint_map, self.straight, self.armature
        if E is None:
            return symmetric_part(X)
        if self.mask is not None:
            return self._masked(
                X, None if self.mask.slip is None else times_rows(G * self.mask.slip, E)
            )
        Y = symmetric_part(X)
        lost = Y @ H.mT
        C = -lost if S is None else G * S.mT - lost
        CE = times_rows(C - spread(E, project(H, C)) / 2, E)
        return mirror(Y + (CE + CE.mT))

    def _masked(self, X: Tensor, CE: Tensor | None) -> Tensor:
        """N Y N + C E + (C E)* where N is a mask."""
        assert self.mask is not None
        if is_scalar_form():
            Y = X * self.mask.matrix
            return mirror_upper(Y if CE is None else Y + (CE + CE.mT))
        if CE is None:
            return (X + X.mT) * self.mask.matrix
        Z = torch.addcmul(CE, X, self.mask.matrix)
        return Z + Z.mT


def hinge_steps(model: SKOModel) -> tuple[HingeStep, ...]:
    """The hinges of every level, bases first."""
    layout = model.layout
    levels = layout.tree.levels

    def split(x: Tensor | None, dim: int) -> Sequence[Tensor | None]:
        return [None] * len(levels) if x is None else layout.split_dofs(x, dim)

    aligned = [all(model.aligned[k] for k in level) for level in levels]
    mask = _mask(model) if model.straight is not None and any(aligned) else None
    masks: Sequence[Mask | None] = [None] * len(levels)
    if mask is not None:
        slips = split(mask.slip, -1)
        parts = zip(layout.split(mask.vector), layout.split(mask.matrix), slips, strict=True)
        masks = [
            Mask(*part) if simple else None for part, simple in zip(parts, aligned, strict=True)
        ]
    H = level_maps(layout, model.maps)
    # Where E is H, as for orthonormal rows, its levels are those of H: nothing is cut twice.
    E = H if model.straight is model.maps else split(model.straight, -2)
    S = model.armature
    S_levels = split(None if S is None else armature_diagonal(S), -2)
    return tuple(
        HingeStep(H[i], S_levels[i], before, E[i], masks[i], layout.shares[i], after)
        for i, (before, after) in enumerate(_offsets(model))
    )


def packed_hinges(model: SKOModel) -> HingeStep:
    """All hinges as one run of nodes, breadth first, dofs padded to the common width."""
    H, E, S, layout = model.joint_map, model.straight, model.armature, model.layout
    offset = None if S is None else armature_blocks(S)
    padding = None
    if layout.dofs.padded:
        padding = torch.diag_embed(layout.dofs.padding.to(model.inertia.dtype))
    if layout.share is None and padding is not None:
        offset, padding = padding if offset is None else offset + padding, None
    S = None if S is None else armature_diagonal(S)
    mask = _mask(model) if E is not None and all(model.aligned) else None
    return HingeStep(H, S, offset, E, mask, layout.share, padding)


def _mask(model: SKOModel) -> Mask:
    """Masks of all nodes; meant for those whose rows of E are unit vectors."""
    E, S = model.straight, model.armature
    assert E is not None
    vector = (1 - E.square().sum(-2))[..., None]
    matrix = vector * vector.mT
    slip = None if S is None else (1 + vector) * (armature_diagonal(S).mT / 2)
    return Mask(vector, matrix if is_scalar_form() else matrix / 2, slip)


def _offsets(model: SKOModel) -> list[tuple[Tensor | None, Tensor | None]]:
    """For each level what is added to H P H*: before the sum over nodes that share a hinge, and after.

    A padded dof gets D = 1, so its logarithm is 0 and its acceleration is its (zero) force. Where no
    hinge is shared, all is added at once.
    """
    layout, S = model.layout, model.armature
    found: list[tuple[Tensor | None, Tensor | None]] = []
    pads = layout.split_dofs(layout.dofs.padding[..., None], -2)
    S_levels = [None] * len(pads) if S is None else layout.split_dofs(S, -2)
    for level, pad, S_l, share in zip(
        layout.tree.levels, pads, S_levels, layout.shares, strict=True
    ):
        d = pad.shape[-2]
        full = all(layout.dofs.sizes[k] == d for k in level)
        ones = None if full else pad.to(model.inertia.dtype)
        if S_l is None or S_l.shape[-1] == 1:
            if share is None and ones is not None:
                S_l, ones = ones if S_l is None else S_l + ones, None
            S_l = None if S_l is None else _diagonal(S_l)
        else:
            S_l = S_l.narrow(-1, 0, d)
        ones = None if ones is None else _diagonal(ones)
        found.append((S_l, ones))
    return found


def _diagonal(x: Tensor) -> Tensor:
    """Columns `[*, d, 1]` as diagonal matrices."""
    return x if x.shape[-2] == 1 else torch.diag_embed(x[..., 0])
