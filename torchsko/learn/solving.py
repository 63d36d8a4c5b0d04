"""The physically consistent fit of a model whose terms are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.learn.entropic import Prior, entropic_least_squares
from torchsko.learn.friction import Term
from torchsko.learn.normal import Normal
from torchsko.learn.reduced import eliminated, means, weighed

Choice = tuple[tuple[int, ...], ...]
"""For each dof the terms it has, by place in the problem's."""


@dataclass(frozen=True, eq=False)
class Model:
    """What a fit has decided of its form.

    Attributes:
        choice: terms of each dof.
        scale: one over the variance of each dof's error, `[num_dof]`.
        prior_weight: of the divergence from the nominal robot, against the mean weighted square error.
    """

    choice: Choice
    scale: Tensor
    prior_weight: float


@dataclass(frozen=True, eq=False)
class Solution:
    """Numbers that were fitted.

    Attributes:
        phi: inertial, `[inertial]`.
        numbers: of the terms of each dof.
        choice: terms of each dof that were kept: friction that came out negative is left out.
    """

    phi: Tensor
    numbers: tuple[Tensor, ...]
    choice: Choice

    def error(self, X: Tensor) -> Tensor:
        """Predicted less measured force of columns `[samples, num_dof, columns]`: `[samples, num_dof]`."""
        inertial, out = len(self.phi), []
        for j, (chosen, x) in enumerate(zip(self.choice, self.numbers, strict=True)):
            S = torch.tensor([inertial + k for k in chosen], dtype=torch.long, device=X.device)
            out.append(X[:, j, :inertial] @ self.phi + X[:, j][:, S] @ x - X[:, j, -1])
        return torch.stack(out, -1)


def solved(
    normal: Normal,
    model: Model,
    prior: Prior,
    terms: Sequence[Term],
    start: Solution | None = None,
) -> Solution:
    """The physically consistent fit of a model to normal equations of one fold.

    Friction that comes out negative is left out, and the rest fitted again.
    """
    G, choice = means(normal), list(model.choice if start is None else start.choice)
    phi = None if start is None else start.phi
    while True:
        parts = [eliminated(g, normal.inertial, t) for g, t in zip(G, choice, strict=True)]
        A, c = weighed(model.scale, parts)
        phi, _ = entropic_least_squares(A, c, prior, model.prior_weight, phi)
        numbers = tuple(p.numbers(phi) for p in parts)
        dropped = [_without_negative(t, x, terms) for t, x in zip(choice, numbers, strict=True)]
        if dropped == choice:
            return Solution(phi, numbers, tuple(choice))
        choice = dropped


def _without_negative(
    chosen: tuple[int, ...], numbers: Tensor, terms: Sequence[Term]
) -> tuple[int, ...]:
    """A dof's terms without the most negative of those that are friction."""
    low = [(x, k) for x, k in zip(numbers.tolist(), chosen, strict=True)
           if terms[k].dissipates and x < 0]  # fmt: skip
    if not low:
        return chosen
    worst = min(low)[1]
    return tuple(k for k in chosen if k != worst)
