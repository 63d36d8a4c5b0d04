"""What a log does not tell apart: combinations of numbers that act alike, named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchsko.identification.dof_names import dof_names
from torchsko.identification.estimators.instrumental import assembled
from torchsko.identification.friction import Term
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.least_squares import (
    ParameterUncertainty,
    collinear_combinations,
)
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.solution import ModelStructure, TermChoice
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.base_parameters import BaseParameters


def unidentifiable_combinations(
    normal: NormalEquations, model: ModelStructure, choice: TermChoice
) -> Tensor:
    """Combinations of base parameters and terms whose columns cancel each other, `[combinations, numbers]`.

    Args:
        normal: equations of one fold: all.
        model: weights of the fit.
        choice: terms of each dof.

    Returns:
        The share of each number; see `collinear_combinations`.
    """
    return collinear_combinations(
        assembled(mean_equations(normal), model.scale, choice, normal.num_base)[0]
    )


def with_infinite_std(told: ParameterUncertainty, shares: Tensor) -> ParameterUncertainty:
    """Infinite deviations of numbers that are not told apart: only the nominal robot says what they are."""
    base, *terms = (shares > 0).any(0).split([len(told.covariance), *map(len, told.term_std)])
    each = zip(told.term_std, terms, strict=True)
    return replace(
        told,
        covariance=torch.where(base.diag_embed(), torch.inf, told.covariance),
        term_std=tuple(torch.where(unknown, torch.inf, x) for x, unknown in each),
    )


def parameter_names(
    mech: Mechanism, base: BaseParameters, choice: TermChoice, terms: Sequence[Term]
) -> list[str]:
    """Names of base parameters, by the number that leads, and of all terms."""
    lead = [name.split(" + ")[0].split(" - ")[0] for name in base.names]
    rows = zip(dof_names(mech), choice, strict=True)
    return lead + [f"{terms[k].label} of {name}" for name, some in rows for k in some]
