"""Normal equations whose terms are eliminated: those of inertial numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.learn.normal import Normal


@dataclass(frozen=True, eq=False)
class Reduced:
    """Normal equations whose terms are eliminated: those of inertial numbers alone.

    Attributes:
        A: `[*batch, inertial, inertial]`.
        c: `[*batch, inertial]`.
        gain: what the terms' numbers lose to inertial ones, `[*batch, terms, inertial]`.
        start: these numbers where the inertial ones are zero, `[*batch, terms]`.
    """

    A: Tensor
    c: Tensor
    gain: Tensor
    start: Tensor

    def numbers(self, phi: Tensor) -> Tensor:
        """The terms' numbers that are best beside inertial ones, `[*batch, terms]`."""
        return self.start - (self.gain @ phi[..., None])[..., 0]


def eliminated(G: Tensor, inertial: int, terms: Sequence[int]) -> Reduced:
    """Eliminate terms from one dof's normal equations `[*batch, columns, columns]`, means of squares.

    Collinear ones share; a term that never acts has the number zero.
    """
    S = torch.tensor([inertial + k for k in terms], dtype=torch.long, device=G.device)
    rows = G.index_select(-2, S)
    size = rows.index_select(-1, S).diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    unit = size[..., :, None] * rows.index_select(-1, S) * size[..., None, :]
    unit = unit + TOGETHER * torch.eye(len(S)).to(G)
    GSp = rows[..., :inertial]
    both = torch.cat([GSp, rows[..., -1:]], -1)
    solved = size[..., None] * torch.linalg.solve(unit, size[..., None] * both) if len(S) else both
    gain, start = solved[..., :inertial], solved[..., inertial]
    A = G[..., :inertial, :inertial] - GSp.mT @ gain
    c = G[..., :inertial, -1] - (GSp.mT @ start[..., None])[..., 0]
    return Reduced((A + A.mT) / 2, c, gain, start)


def weighed(scale: Tensor, parts: Sequence[Reduced]) -> tuple[Tensor, Tensor]:
    """Normal equations of inertial numbers, all dofs together."""
    A, c = torch.stack([p.A for p in parts]), torch.stack([p.c for p in parts])
    return (scale[:, None, None] * A).sum(0), (scale[:, None] * c).sum(0)


TOGETHER = 1e-10
"""Square of the sine of the angle between two terms that share: they act alike."""


def means(normal: Normal) -> Tensor:
    """Normal equations of one fold as means, `[num_dof, columns, columns]`."""
    return normal.sums[0] / normal.count[0].clamp_min(1)[:, None, None]


def judged(G: Tensor, part: Reduced, terms: Sequence[int]) -> Tensor:
    """Mean square error of one dof as a quadratic form of inertial numbers and 1, terms at their best."""
    inertial = part.gain.shape[-1]
    index = [*range(inertial), *(inertial + k for k in terms), G.shape[-1] - 1]
    I = torch.tensor(index, device=G.device)
    eye = torch.eye(inertial + 1).to(G).expand(*G.shape[:-2], -1, -1)
    numbers = torch.cat([-part.gain, part.start[..., None]], -1)
    V = torch.cat([eye[..., :-1, :], numbers, -eye[..., -1:, :]], -2)
    return V.mT @ G.index_select(-2, I).index_select(-1, I) @ V
