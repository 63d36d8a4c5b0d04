"""Normal equations whose terms are eliminated: those of base parameters alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.regression.normal_equations import Normal
from torchsko.utils.shapes import matvec

Choice = tuple[tuple[int, ...], ...]
"""For each dof the terms it has, by place in the problem's."""


@dataclass(frozen=True, eq=False)
class Gains:
    """How a dof's terms answer to base parameters.

    Attributes:
        products: of the terms' columns with base parameters', `[*batch, terms, base]`.
        gain: what the terms' numbers lose to base parameters, `[*batch, terms, base]`.
        start: these numbers where base parameters are zero, `[*batch, terms]`.
    """

    products: Tensor
    gain: Tensor
    start: Tensor

    @classmethod
    def stacked(cls, some: Sequence[Gains]) -> Gains:
        """Those of several problems as one, `[problems, ...]`."""
        each = ((x.products, x.gain, x.start) for x in some)
        return cls(*map(torch.stack, zip(*each, strict=True)))

    def numbers(self, beta: Tensor) -> Tensor:
        """The terms' numbers that are best beside base parameters, `[*batch, terms]`."""
        return self.start - matvec(self.gain, beta)

    @property
    def form(self) -> Tensor:
        """The same as a matrix on base parameters and 1, `[*batch, terms, base + 1]`."""
        return torch.cat([-self.gain, self.start[..., None]], -1)


@dataclass(frozen=True, eq=False)
class Reduced(Gains):
    """Normal equations whose terms are eliminated: those of base parameters alone.

    Attributes:
        A: `[*batch, base, base]`.
        c: `[*batch, base]`.
    """

    A: Tensor
    c: Tensor


def places(base: int, terms: Sequence[int], like: Tensor) -> Tensor:
    """Columns of terms."""
    return torch.tensor([base + k for k in terms], dtype=torch.long, device=like.device)


def gains(rows: Tensor, base: int, at: Tensor) -> Gains:
    """What terms answer, of their own equations, means of squares.

    Collinear ones share; a term that never acts has the number zero.

    Args:
        rows: `[*batch, terms, columns]`.
        base: how many columns are base parameters'.
        at: columns of the terms, `[terms]` or `[*batch, terms]`.
    """
    count = rows.shape[-2]
    own = rows.gather(-1, at[..., None, :].expand(*rows.shape[:-1], count))
    size = own.diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    unit = size[..., :, None] * own * size[..., None, :]
    unit = unit + TOGETHER * torch.eye(count).to(rows)
    both = torch.cat([rows[..., :base], rows[..., -1:]], -1)
    solved = size[..., None] * torch.linalg.solve(unit, size[..., None] * both) if count else both
    return Gains(rows[..., :base], solved[..., :base], solved[..., base])


def all_gains(G: Tensor, base: int, choices: Mapping[int, Choice]) -> dict[int, list[Gains]]:
    """What terms of each dof of some problems answer, those of as many terms found at once.

    Args:
        G: `[problems, num_dof, columns, columns]`, means of squares.
        base: how many columns are base parameters'.
        choices: terms of each dof, of these problems.
    """
    like: dict[int, list[tuple[int, int]]] = {}
    for k, choice in choices.items():
        for dof, chosen in enumerate(choice):
            like.setdefault(len(chosen), []).append((k, dof))
    found: dict[tuple[int, int], Gains] = {}
    for some in like.values():
        k, dof = torch.tensor(some, device=G.device)[..., None].unbind(1)
        at = torch.stack([places(base, choices[k][dof], G) for k, dof in some])
        part = gains(G[k, dof, at], base, at)
        each = zip(part.products, part.gain, part.start, strict=True)
        found |= {one: Gains(*fields) for one, fields in zip(some, each, strict=True)}
    return {k: [found[k, dof] for dof in range(G.shape[1])] for k in choices}


def eliminated(G: Tensor, base: int, terms: Sequence[int]) -> Reduced:
    """Eliminate terms from one dof's normal equations `[*batch, columns, columns]`, means of squares."""
    at = places(base, terms, G)
    part = gains(G.index_select(-2, at), base, at)
    A = G[..., :base, :base] - part.products.mT @ part.gain
    c = G[..., :base, -1] - matvec(part.products.mT, part.start)
    return Reduced(part.products, part.gain, part.start, (A + A.mT) / 2, c)


def summed(G: Tensor, scale: Tensor) -> Tensor:
    """Weighted sums over dofs of equations `[problems, num_dof, columns, columns]`."""
    # One at a time, each is a product of a vector and a matrix that is not copied.
    return torch.stack([scale @ one.flatten(1) for one in G]).unflatten(-1, G.shape[-2:])


def explained(total: Tensor, scale: Tensor, parts: Sequence[Gains]) -> tuple[Tensor, Tensor]:
    """Normal equations of base parameters, of all dofs together, their terms eliminated.

    Terms are few beside base parameters: what they take is a product of tall matrices, all dofs' at once.

    Args:
        total: weighted sum of the dofs' equations, `[*batch, columns, columns]`.
        scale: their weights.
        parts: their terms.

    Returns:
        `[*batch, base, base]` and `[*batch, base]`.
    """
    n = parts[0].gain.shape[-1]
    rows = torch.cat([w * p.products for w, p in zip(scale, parts, strict=True)], -2).mT
    A = total[..., :n, :n] - rows @ torch.cat([p.gain for p in parts], -2)
    c = total[..., :n, -1] - matvec(rows, torch.cat([p.start for p in parts], -1))
    return (A + A.mT) / 2, c


TOGETHER = 1e-10
"""Square of the sine of the angle between two terms that share: they act alike."""


def means(normal: Normal) -> Tensor:
    """Normal equations of one fold as means, `[num_dof, columns, columns]`."""
    return normal.sums[0] / normal.count[0].clamp_min(1)[:, None, None]


def judged(
    total: Tensor, G: Tensor, scale: Tensor, parts: Sequence[Gains], choice: Sequence[Sequence[int]]
) -> Tensor:
    """Weighted mean square error of dofs as a quadratic form of base parameters and 1, terms at their best.

    Args:
        total: weighted sum of the dofs' equations, `[*batch, columns, columns]`.
        G: of each dof, `[*batch, num_dof, columns, columns]`.
        scale: their weights, `[num_dof]`.
        parts: terms of each dof.
        choice: which these are.
    """
    n, forms, halves = parts[0].gain.shape[-1], [], []
    for j, (part, terms) in enumerate(zip(parts, choice, strict=True)):
        S, form = places(n, terms, G), part.form
        rows = G[..., j, :, :].index_select(-2, S)
        cross = torch.cat([rows[..., :n], -rows[..., -1:]], -1)
        forms.append(form)
        halves.append(scale[j] * (cross + rows.index_select(-1, S) @ form / 2))
    half = torch.cat(forms, -2).mT @ torch.cat(halves, -2)
    ends = torch.tensor([*range(n), total.shape[-1] - 1], device=total.device)
    sign = torch.cat([total.new_ones(n), -total.new_ones(1)])
    plain = sign[:, None] * total.index_select(-2, ends).index_select(-1, ends) * sign
    return plain + half + half.mT
