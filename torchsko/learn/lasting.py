"""How surely parameters are known when errors last, and go with the motion: from their influence on the fit.

A tooth that pulls, or friction that is not quite what the terms say, leaves errors that are no noise: they
come back where the joint comes back. The autocorrelation of errors alone does not tell what they do to a
parameter, since its columns go with the motion, too. What a sample does to a parameter, its influence,
does: sums of influences over stretches longer than errors last vary as the estimate does. Where a motion
repeats itself, as Fourier series do, such errors come back with it: periods are laid on top of one another
before.

References: W. Newey, K. West, *A simple, positive semi-definite, heteroskedasticity and autocorrelation
consistent covariance matrix*, Econometrica 55(3), 1987; D. Andrews, *Heteroskedasticity and autocorrelation
consistent covariance matrix estimation*, Econometrica 59(3), 1991 (too small of short series).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchsko.learn.base_parameters import BaseParameters
from torchsko.learn.least_squares import Information, scaled_pseudo_inverse
from torchsko.learn.motion import Motion
from torchsko.learn.normal import Normal, Problem
from torchsko.learn.reduced import eliminated, means
from torchsko.learn.solving import Model, Solution

SAME = 1e-2
"""Mean square difference, relative to that of unrelated motions, of a motion to itself a period later."""

STRETCHES = 5
"""Length of a stretch in times that errors last: what is left out beyond is a fifth of a fifth."""


def with_lasting_errors(
    told: Information, problem: Problem, motions: Sequence[Motion], normal: Normal, model: Model,
    solution: Solution, base: BaseParameters, inflation: Tensor,
) -> Information:  # fmt: skip
    """`Information` where errors go with the motion: deviations of influences, where they are larger.

    Args:
        told: by errors that go with nothing.
        problem: what explains forces.
        motions: to look at errors in.
        normal: equations of one fold: all.
        model: weights of the fit.
        solution: what was fitted.
        base: parameters.
        inflation: samples of each dof's error that are one, `[num_dof]`.

    Reference: Newey, West 1987.
    """
    count = normal.count[0]
    seen = free = count.new_zeros(())
    total = told.covariance.new_zeros(len(base) + sum(len(x) for x in told.terms))
    influence = _Influence(normal, model, solution, base)
    length = max(1, math.ceil(STRETCHES * float(inflation.max())))
    for motion in motions:
        parts = [(t, influence(X, good), good) for t, X, good in problem.rows([motion])]
        if parts:
            t, x, good = (torch.cat(part) for part in zip(*parts, strict=True))
            q = motion.q[torch.searchsorted(motion.t.contiguous(), t).clamp_max(len(motion.t) - 1)]
            after = period(q)
            total = total + _stretches(_folded(x, after), length)
            seen = seen + good.sum()
            free = free + (good.sum(0) / inflation).sum() * after / len(x)
    # Motions may be a choice out of more.
    total = total * count.sum() / seen.clamp_min(1)
    known = torch.cat([told.covariance.diagonal(), *(x.square() for x in told.terms)])
    # Every parameter that is fitted takes its part of errors that come back.
    more = (total - known).clamp_min(0) * free / (free - len(total)).clamp_min(1)
    wider = ((known + more) / known.clamp_min(1e-300)).sqrt()
    base_wider, *own = wider.split([len(base), *(len(x) for x in told.terms)])
    return replace(
        told,
        covariance=base_wider[:, None] * told.covariance * base_wider,
        terms=tuple(x * y for x, y in zip(told.terms, own, strict=True)),
    )


class _Influence:
    """What each sample's error does to base parameters and terms, `[samples, parameters]`."""

    def __init__(
        self, normal: Normal, model: Model, solution: Solution, base: BaseParameters
    ) -> None:
        G, n, self.lead = means(normal), normal.count[0], base.independent
        self.solution, self.inertial = solution, normal.inertial
        parts = [eliminated(g, normal.inertial, t) for g, t in zip(G, solution.choice, strict=True)]
        A = torch.stack([p.A[self.lead[:, None], self.lead] for p in parts])
        self.bread, _ = scaled_pseudo_inverse(((model.scale * n)[:, None, None] * A).sum(0))
        self.scale, self.gain = model.scale, [p.gain[:, self.lead] for p in parts]
        self.of_terms, self.inverse = [], []
        for j, chosen in enumerate(solution.choice):
            S = torch.tensor([normal.inertial + k for k in chosen], dtype=torch.long).to(G.device)
            self.of_terms.append(S)
            own = G[j][S[:, None], S] * n[j]
            self.inverse.append(scaled_pseudo_inverse(own)[0] if len(S) else own)

    def __call__(self, X: Tensor, good: Tensor) -> Tensor:
        e = torch.where(good, self.solution.error(X), 0.0)
        base, own = e.new_zeros(len(e), len(self.lead)), []
        for j, (S, gain, inverse) in enumerate(
            zip(self.of_terms, self.gain, self.inverse, strict=True)
        ):
            terms = X[:, j].index_select(-1, S)
            left = X[:, j].index_select(-1, self.lead) - terms @ gain
            base = base + self.scale[j] * e[:, j, None] * left
            own.append(e[:, j, None] * terms @ inverse)
        base = base @ self.bread
        own = [x - base @ gain.mT for x, gain in zip(own, self.gain, strict=True)]
        return torch.cat([base, *own], -1)


def _stretches(x: Tensor, length: int) -> Tensor:
    """Mean of squared sums over all stretches of a length that touch a series, per sample of a stretch."""
    run = torch.nn.functional.pad(x, (0, 0, length, length - 1)).cumsum(0)
    return (run[length:] - run[:-length]).square().sum(0) / length


def _folded(x: Tensor, period: int) -> Tensor:
    """Periods of a series on top of one another."""
    place = torch.arange(len(x), device=x.device) % period
    return x.new_zeros(min(period, len(x)), x.shape[1]).index_add(0, place, x)


def period(q: Tensor) -> int:
    """After how many samples a series `[samples, coordinates]` repeats itself; its length if it does not."""
    n = len(q)
    x = q - q.mean(0)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = torch.fft.rfft(x, size, dim=0)
    products = torch.fft.irfft(spectrum.abs().square(), size, dim=0)[:n].sum(1)
    squares = x.square().sum(1).cumsum(0)
    both = squares.flip(0) + squares[-1] - torch.cat([squares.new_zeros(1), squares[:-1]])
    apart = (both - 2 * products) / both.clamp_min(1e-300)  # 1 between what has nothing in common
    lags = torch.arange(n, device=q.device)
    away = (apart > 0.5).cumsum(0) > 0
    again = (away & (apart < SAME) & (lags <= n - n // 5)).nonzero()
    if not len(again):
        return n
    first = int(again[0])
    near = apart[first : first + max(1, first // 10)]
    return first + int(near.argmin())
