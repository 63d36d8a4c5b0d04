"""Normal equations whose terms are eliminated: those of base parameters alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.utils.shapes import matvec

TermChoice = tuple[tuple[int, ...], ...]
"""For each dof the terms it has, by place in the problem's."""


@dataclass(frozen=True, eq=False)
class EliminatedTerms:
    """How a dof's terms answer to base parameters.

    Attributes:
        products: of the terms' columns with base parameters', `[*batch, terms, base]`.
        gain: what the terms' numbers lose to base parameters, `[*batch, terms, base]`.
        start: these numbers where base parameters are zero, `[*batch, terms]`.
    """

    cross_products: Tensor
    base_gain: Tensor
    start: Tensor

    @classmethod
    def stacked(cls, some: Sequence[EliminatedTerms]) -> EliminatedTerms:
        """Those of several problems as one, `[problems, ...]`."""
        each = ((x.cross_products, x.base_gain, x.start) for x in some)
        return cls(*map(torch.stack, zip(*each, strict=True)))

    def numbers(self, beta: Tensor) -> Tensor:
        """The terms' numbers that are best beside base parameters, `[*batch, terms]`."""
        return self.start - matvec(self.base_gain, beta)

    @property
    def form(self) -> Tensor:
        """The same as a matrix on base parameters and 1, `[*batch, terms, base + 1]`."""
        return torch.cat([-self.base_gain, self.start[..., None]], -1)


@dataclass(frozen=True, eq=False)
class SchurComplement(EliminatedTerms):
    """Normal equations whose terms are eliminated: those of base parameters alone.

    Attributes:
        A: `[*batch, base, base]`.
        c: `[*batch, base]`.
    """

    A: Tensor
    c: Tensor


def term_columns(base: int, terms: Sequence[int], like: Tensor) -> Tensor:
    """Columns of terms."""
    return torch.tensor([base + k for k in terms], dtype=torch.long, device=like.device)


def eliminate_terms(rows: Tensor, base: int, at: Tensor) -> EliminatedTerms:
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
    unit = unit + COLLINEARITY_RIDGE * torch.eye(count).to(rows)
    both = torch.cat([rows[..., :base], rows[..., -1:]], -1)
    solved = size[..., None] * torch.linalg.solve(unit, size[..., None] * both) if count else both
    return EliminatedTerms(rows[..., :base], solved[..., :base], solved[..., base])


def eliminate_terms_of_problems(
    G: Tensor, base: int, choices: Mapping[int, TermChoice]
) -> dict[int, list[EliminatedTerms]]:
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
    found: dict[tuple[int, int], EliminatedTerms] = {}
    for some in like.values():
        k, dof = torch.tensor(some, device=G.device)[..., None].unbind(1)
        at = torch.stack([term_columns(base, choices[k][dof], G) for k, dof in some])
        part = eliminate_terms(G[k, dof, at], base, at)
        each = zip(part.cross_products, part.base_gain, part.start, strict=True)
        found |= {one: EliminatedTerms(*fields) for one, fields in zip(some, each, strict=True)}
    return {k: [found[k, dof] for dof in range(G.shape[1])] for k in choices}


def schur_complement(G: Tensor, base: int, terms: Sequence[int]) -> SchurComplement:
    """Eliminate terms from one dof's normal equations `[*batch, columns, columns]`, means of squares."""
    at = term_columns(base, terms, G)
    part = eliminate_terms(G.index_select(-2, at), base, at)
    A = G[..., :base, :base] - part.cross_products.mT @ part.base_gain
    c = G[..., :base, -1] - matvec(part.cross_products.mT, part.start)
    return SchurComplement(part.cross_products, part.base_gain, part.start, (A + A.mT) / 2, c)


def weighted_sum(G: Tensor, scale: Tensor) -> Tensor:
    """Weighted sums over dofs of equations `[problems, num_dof, columns, columns]`."""
    # One at a time, each is a product of a vector and a matrix that is not copied.
    return torch.stack([scale @ one.flatten(1) for one in G]).unflatten(-1, G.shape[-2:])


def schur_complement_over_dofs(
    total: Tensor, scale: Tensor, parts: Sequence[EliminatedTerms]
) -> tuple[Tensor, Tensor]:
    """Normal equations of base parameters, of all dofs together, their terms eliminated.

    Terms are few beside base parameters: what they take is a product of tall matrices, all dofs' at once.

    Args:
        total: weighted sum of the dofs' equations, `[*batch, columns, columns]`.
        scale: their weights.
        parts: their terms.

    Returns:
        `[*batch, base, base]` and `[*batch, base]`.
    """
    n = parts[0].base_gain.shape[-1]
    rows = torch.cat([w * p.cross_products for w, p in zip(scale, parts, strict=True)], -2).mT
    A = total[..., :n, :n] - rows @ torch.cat([p.base_gain for p in parts], -2)
    c = total[..., :n, -1] - matvec(rows, torch.cat([p.start for p in parts], -1))
    return (A + A.mT) / 2, c


COLLINEARITY_RIDGE = 1e-10
"""Square of the sine of the angle between two terms that share: they act alike."""


def mean_equations(normal: NormalEquations) -> Tensor:
    """Normal equations of one fold as means, `[num_dof, columns, columns]`."""
    return normal.sums[0] / normal.count[0].clamp_min(1)[:, None, None]


def residual_quadratic_form(
    total: Tensor,
    G: Tensor,
    scale: Tensor,
    parts: Sequence[EliminatedTerms],
    choice: Sequence[Sequence[int]],
) -> Tensor:
    """Weighted mean square error of dofs as a quadratic form of base parameters and 1, terms at their best.

    Args:
        total: weighted sum of the dofs' equations, `[*batch, columns, columns]`.
        G: of each dof, `[*batch, num_dof, columns, columns]`.
        scale: their weights, `[num_dof]`.
        parts: terms of each dof.
        choice: which these are.
    """
    n, forms, halves = parts[0].base_gain.shape[-1], [], []
    for j, (part, terms) in enumerate(zip(parts, choice, strict=True)):
        S, form = term_columns(n, terms, G), part.form
        rows = G[..., j, :, :].index_select(-2, S)
        cross = torch.cat([rows[..., :n], -rows[..., -1:]], -1)
        forms.append(form)
        halves.append(scale[j] * (cross + rows.index_select(-1, S) @ form / 2))
    half = torch.cat(forms, -2).mT @ torch.cat(halves, -2)
    ends = torch.tensor([*range(n), total.shape[-1] - 1], device=total.device)
    sign = torch.cat([total.new_ones(n), -total.new_ones(1)])
    plain = sign[:, None] * total.index_select(-2, ends).index_select(-1, ends) * sign
    return plain + half + half.mT
