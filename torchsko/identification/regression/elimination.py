"""Elimination of friction terms from normal equations by Schur complements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.utils.shapes import matvec

TermChoice = tuple[tuple[int, ...], ...]
"""Indices of the chosen terms of each dof, into the terms of the problem."""

COLLINEARITY_RIDGE = 1e-10
"""Ridge on terms of unit length, the squared sine of the angle below which two terms share one force."""


@dataclass(frozen=True, eq=False)
class EliminatedTerms:
    """Least-squares coefficients of a dof's terms, as an affine function of base parameters.

    Attributes:
        cross_products: products of the terms' columns with those of base parameters, `[*batch, terms, base]`.
        base_gain: decrease of the coefficients per base parameter, `[*batch, terms, base]`.
        start: coefficients at zero base parameters, `[*batch, terms]`.
    """

    cross_products: Tensor
    base_gain: Tensor
    start: Tensor

    @classmethod
    def stacked(cls, problems: Sequence[EliminatedTerms]) -> EliminatedTerms:
        """Stack several problems along a new first dimension."""
        fields = ((x.cross_products, x.base_gain, x.start) for x in problems)
        return cls(*map(torch.stack, zip(*fields, strict=True)))

    def coefficients(self, beta: Tensor) -> Tensor:
        """Least-squares coefficients of the terms at base parameters `beta`, `[*batch, terms]`."""
        return self.start - matvec(self.base_gain, beta)

    @property
    def affine_map(self) -> Tensor:
        """Matrix from base parameters and 1 to coefficients, `[*batch, terms, base + 1]`."""
        return torch.cat([-self.base_gain, self.start[..., None]], -1)


@dataclass(frozen=True, eq=False)
class SchurComplement(EliminatedTerms):
    """Normal equations of base parameters after the terms are eliminated.

    Attributes:
        A: `[*batch, base, base]`.
        c: `[*batch, base]`.
    """

    A: Tensor
    c: Tensor


def term_columns(base: int, terms: Sequence[int], like: Tensor) -> Tensor:
    """Column indices of terms in normal equations with `base` base parameters."""
    return torch.tensor([base + k for k in terms], dtype=torch.long, device=like.device)


def eliminate_terms(rows: Tensor, base: int, columns: Tensor) -> EliminatedTerms:
    """Solve a dof's mean equations for its terms.

    Collinear terms share one force. A term that never acts has the coefficient zero.

    Args:
        rows: rows of the terms in the mean equations, `[*batch, terms, columns]`.
        base: number of base parameters, which are the first columns.
        columns: column indices of the terms, `[terms]` or `[*batch, terms]`.
    """
    count = rows.shape[-2]
    block = rows.gather(-1, columns[..., None, :].expand(*rows.shape[:-1], count))
    scale = block.diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    unit = scale[..., :, None] * block * scale[..., None, :]
    unit = unit + COLLINEARITY_RIDGE * torch.eye(count).to(rows)
    right = torch.cat([rows[..., :base], rows[..., -1:]], -1)
    if count:
        right = scale[..., None] * torch.linalg.solve(unit, scale[..., None] * right)
    return EliminatedTerms(rows[..., :base], right[..., :base], right[..., base])


def eliminate_terms_of_problems(
    G: Tensor, base: int, choices: Mapping[int, TermChoice]
) -> dict[int, list[EliminatedTerms]]:
    """Eliminate the terms of each dof of several problems, batched by the number of terms.

    Args:
        G: mean equations, `[problems, num_dof, columns, columns]`.
        base: number of base parameters.
        choices: terms of each dof, by index of the problem.
    """
    by_count: dict[int, list[tuple[int, int]]] = {}
    for k, choice in choices.items():
        for dof, chosen in enumerate(choice):
            by_count.setdefault(len(chosen), []).append((k, dof))
    eliminated: dict[tuple[int, int], EliminatedTerms] = {}
    for keys in by_count.values():
        k, dof = torch.tensor(keys, device=G.device)[..., None].unbind(1)
        columns = torch.stack([term_columns(base, choices[k][dof], G) for k, dof in keys])
        part = eliminate_terms(G[k, dof, columns], base, columns)
        fields = zip(part.cross_products, part.base_gain, part.start, strict=True)
        eliminated |= {key: EliminatedTerms(*x) for key, x in zip(keys, fields, strict=True)}
    return {k: [eliminated[k, dof] for dof in range(G.shape[1])] for k in choices}


def schur_complement(G: Tensor, base: int, terms: Sequence[int]) -> SchurComplement:
    """Eliminate terms from the mean equations of one dof, `[*batch, columns, columns]`."""
    columns = term_columns(base, terms, G)
    part = eliminate_terms(G.index_select(-2, columns), base, columns)
    A = G[..., :base, :base] - part.cross_products.mT @ part.base_gain
    c = G[..., :base, -1] - matvec(part.cross_products.mT, part.start)
    return SchurComplement(part.cross_products, part.base_gain, part.start, (A + A.mT) / 2, c)


def weighted_sum(G: Tensor, scale: Tensor) -> Tensor:
    """Sum mean equations `[problems, num_dof, columns, columns]` over dofs with weights `[num_dof]`."""
    # A vector-matrix product for each problem avoids a copy of G.
    return torch.stack([scale @ one.flatten(1) for one in G]).unflatten(-1, G.shape[-2:])


def schur_complement_over_dofs(
    total: Tensor, scale: Tensor, parts: Sequence[EliminatedTerms]
) -> tuple[Tensor, Tensor]:
    """Normal equations of base parameters over all dofs, terms eliminated.

    The terms of all dofs are subtracted in one product of tall matrices.

    Args:
        total: weighted sum of the dofs' equations, `[*batch, columns, columns]`.
        scale: weights of the dofs, `[num_dof]`.
        parts: eliminated terms of each dof.

    Returns:
        The matrix `[*batch, base, base]` and the right side `[*batch, base]`.
    """
    n = parts[0].base_gain.shape[-1]
    rows = torch.cat([w * p.cross_products for w, p in zip(scale, parts, strict=True)], -2).mT
    A = total[..., :n, :n] - rows @ torch.cat([p.base_gain for p in parts], -2)
    c = total[..., :n, -1] - matvec(rows, torch.cat([p.start for p in parts], -1))
    return (A + A.mT) / 2, c


def mean_equations(normal: NormalEquations) -> Tensor:
    """Normal equations of one fold divided by their number of samples, `[num_dof, columns, columns]`."""
    return normal.sums[0] / normal.count[0].clamp_min(1)[:, None, None]


def residual_quadratic_form(
    total: Tensor,
    G: Tensor,
    scale: Tensor,
    parts: Sequence[EliminatedTerms],
    choice: Sequence[Sequence[int]],
) -> Tensor:
    """Quadratic form `[*batch, base + 1, base + 1]` of the mean square error in base parameters and 1.

    Args:
        total: weighted sum of the dofs' test equations, `[*batch, columns, columns]`.
        G: test equations of each dof, `[*batch, num_dof, columns, columns]`.
        scale: weights of the dofs, `[num_dof]`.
        parts: terms of each dof, eliminated with the training equations.
        choice: indices of these terms.
    """
    n, maps, halves = parts[0].base_gain.shape[-1], [], []
    for j, (part, terms) in enumerate(zip(parts, choice, strict=True)):
        columns, affine = term_columns(n, terms, G), part.affine_map
        rows = G[..., j, :, :].index_select(-2, columns)
        cross = torch.cat([rows[..., :n], -rows[..., -1:]], -1)
        maps.append(affine)
        halves.append(scale[j] * (cross + rows.index_select(-1, columns) @ affine / 2))
    half = torch.cat(maps, -2).mT @ torch.cat(halves, -2)
    ends = torch.tensor([*range(n), total.shape[-1] - 1], device=total.device)
    sign = torch.cat([total.new_ones(n), -total.new_ones(1)])
    plain = sign[:, None] * total.index_select(-2, ends).index_select(-1, ends) * sign
    return plain + half + half.mT
