"""Applying the block-diagonal operators H and M: what a hinge or a body does to a vector.

Most hinges have one freedom and most models constant blocks; both are cheaper as elementwise products
or as one product per node over the whole batch than as a batch of tiny matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.layout import Layout


def spread(H: Tensor, x: Tensor) -> Tensor:
    """H* x: dof columns `[*, n, d, r]` to node columns `[*, n, m, r]`."""
    return H.mT * x if H.shape[-2] == 1 else H.mT @ x


def project(H: Tensor, y: Tensor) -> Tensor:
    """H y: node columns `[*, n, m, r]` to dof columns `[*, n, d, r]`."""
    return (H.mT * y).sum(-2, keepdim=True) if H.shape[-2] == 1 else H @ y


def times(G: Tensor, x: Tensor) -> Tensor:
    """G x: dof columns `[*, n, d, r]` to node columns `[*, n, m, r]`, for gains `[*, n, m, d]`."""
    return G * x if G.shape[-1] == 1 else G @ x


def times_rows(C: Tensor, E: Tensor) -> Tensor:
    """C E of columns `[*, n, m, d]` and rows `[*, n, d, m]`."""
    return C * E if E.shape[-2] == 1 else C @ E


def armature_force(S: Tensor, x: Tensor) -> Tensor:
    """S x: dof columns `[*, n, d, r]` to the same, for S as in `SKOModel`."""
    return S * x if S.shape[-1] == 1 else S @ x


def armature_blocks(S: Tensor) -> Tensor:
    """S as matrices `[*, n, d, d]`."""
    return S if S.shape[-1] == S.shape[-2] else torch.diag_embed(S[..., 0])


def armature_diagonal(S: Tensor) -> Tensor:
    """The diagonals of S, `[*, n, d, 1]`."""
    return S if S.shape[-1] == 1 else S.diagonal(dim1=-2, dim2=-1)[..., None]


@dataclass(frozen=True, eq=False)
class LevelMaps:
    """The joint maps of each level; batch dimensions and width may differ between levels.

    Attributes:
        levels: H, `[*batch, n_l, d_l, m]`, d_l the largest number of dofs in the level, 1 at least.
    """

    levels: tuple[Tensor, ...]


def level_maps(layout: Layout, H: Tensor | LevelMaps) -> tuple[Tensor, ...]:
    """Joint maps level by level, without padding dofs."""
    return H.levels if isinstance(H, LevelMaps) else layout.split_dofs(H, -2)


def spread_all(layout: Layout, H: Tensor | LevelMaps, x: Tensor) -> Tensor:
    """H* x for all nodes, packed; padded dofs are left out level by level."""
    if layout.dofs.width == 1 and isinstance(H, Tensor):
        return spread(H, x)
    maps, columns = level_maps(layout, H), layout.split_dofs(x, -2)
    parts = [spread(H_l, x_l) for H_l, x_l in zip(maps, columns, strict=True)]
    return join(parts)


def project_all(layout: Layout, H: Tensor | LevelMaps, y: Tensor) -> Tensor:
    """H y for all nodes, packed and zero-padded."""
    if layout.dofs.width == 1 and isinstance(H, Tensor):
        return project(H, y)
    parts = [
        layout.widen_dofs(project(H_l, y_l))
        for H_l, y_l in zip(level_maps(layout, H), layout.split(y), strict=True)
    ]
    return join(parts)


def apply_blocks(M: Tensor, x: Tensor) -> Tensor:
    """M x for square blocks: `[*, n, m, m]` and `[*, n, m, 1]` to `[*, n, m, 1]`."""
    if M.ndim == 3 and x.ndim > 3:
        # Constant blocks: one product per node over the whole batch instead of a copy per sample.
        return torch.einsum("nij,...nj->...ni", M, x[..., 0])[..., None]
    return M @ x
