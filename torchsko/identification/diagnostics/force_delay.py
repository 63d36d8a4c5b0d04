"""Check for a common delay of measured forces relative to measured positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.friction import Delay
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.least_squares import (
    fit_base_parameters,
    parameter_uncertainty,
)
from torchsko.identification.selection.cross_validation import mean_square_errors
from torchsko.identification.selection.model_selection import least_squares_structure
from torchsko.identification.uncertainty.residuals import CONSTANT_TOLERANCE

MIN_STEPS = 0.5
"""Smallest delay that is reported, in time steps: dry friction that reverses between samples shifts forces
by a part of a step."""

MIN_Z_SCORE = 2.0
"""Standard errors by which a delay must exceed the smallest one. Filtered samples count as independent."""

MIN_REDUCTION = 0.3
"""Share of a joint's residual variance that the delay must explain."""

MIN_JOINTS = 0.5
"""Share of the joints whose residual the delay must explain."""

MAX_SPREAD = 0.5
"""Largest deviation of a joint's delay from the common one, relative to it."""

MIN_CONSISTENT = 0.5
"""Share of the explained variance that joints with the common delay must have: friction of other joints
resembles a delay."""


def force_delay(context: FitContext) -> Iterator[Finding]:
    """Forces are measured at the time of the positions."""
    problem, normal = context.problem, context.equations.pooled
    plain, index = least_squares_structure(problem), problem.terms.index(Delay())
    late = replace(plain, choice=tuple((*x, index) for x in plain.choice))
    fits = [fit_base_parameters(normal, model, problem.base) for model in (plain, late)]
    G = mean_equations(normal)
    before, after = (mean_square_errors(fit, G) for fit in fits)
    rounding = CONSTANT_TOLERANCE * G[:, -1, -1]
    used = (context.equations.count.sum(0) > 0) & (before > rounding)
    found = used & (after < (1 - MIN_REDUCTION) * before)
    if not int(found.sum()) >= max(1.0, MIN_JOINTS * int(used.sum())):
        return
    each = torch.stack([x[-1] for x in fits[1].coefficients])[found]
    weight = (before - after)[found]
    common = weighted_median(each, weight)
    std = parameter_uncertainty(normal, late, late.choice, after, torch.ones_like(after)).term_std
    standard_error = float(torch.stack([x[-1] for x in std])[found][(each - common).abs().argmin()])
    near = (each - common).abs() <= MAX_SPREAD * abs(common)
    if (
        float(weight[near].sum()) >= MIN_CONSISTENT * float(weight.sum())
        and (abs(common) - MIN_Z_SCORE * standard_error) * context.settings.rate > MIN_STEPS
    ):
        reduction = float((1 - after / before)[found].median())
        yield finding(
            "delay",
            f"Forces are {'late' if common > 0 else 'early'} by {abs(common):.3g} s relative to positions.",
            f"Type --delay tau={common:.4g}, or call log.calibrate(mech, delay={{'tau': {common:.4g}}}).",
            joints=[x for x, y in zip(context.nominal.dof_names, found.tolist(), strict=True) if y],
            reason=f"This explains {100 * reduction:.0f} % of what least squares leaves.",
        )


def weighted_median(x: Tensor, weight: Tensor) -> float:
    """Median of values with positive weights, `[values]` each."""
    order = x.argsort()
    total = weight[order].cumsum(0)
    return float(x[order][int((total >= total[-1] / 2).int().argmax())])
