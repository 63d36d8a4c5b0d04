"""Identifiability: parameter combinations that the log cannot separate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchsko.identification.friction import Term
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.instrumental import assembled
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
    """Find combinations of base parameters and terms with collinear columns.

    Args:
        normal: equations of the whole log as one fold.
        model: weights of the fit.
        choice: terms of each dof.

    Returns:
        Share of each parameter, `[combinations, parameters]`; see `collinear_combinations`.
    """
    return collinear_combinations(
        assembled(mean_equations(normal), model.scale, choice, normal.num_base)[0]
    )


def with_infinite_std(uncertainty: ParameterUncertainty, shares: Tensor) -> ParameterUncertainty:
    """Set standard errors of unidentifiable parameters to infinity; their values are those of the prior."""
    sizes = [len(uncertainty.covariance), *map(len, uncertainty.term_std)]
    base, *terms = (shares > 0).any(0).split(sizes)
    pairs = zip(uncertainty.term_std, terms, strict=True)
    return replace(
        uncertainty,
        covariance=torch.where(base.diag_embed(), torch.inf, uncertainty.covariance),
        term_std=tuple(torch.where(unknown, torch.inf, x) for x, unknown in pairs),
    )


def parameter_names(
    mech: Mechanism, base: BaseParameters, choice: TermChoice, terms: Sequence[Term]
) -> list[str]:
    """Names of base parameters, by their first inertial parameter, and of all terms."""
    names = [name.split(" + ")[0].split(" - ")[0] for name in base.names]
    rows = zip(mech.dof_names, choice, strict=True)
    return names + [f"{terms[k].label} of {dof}" for dof, chosen in rows for k in chosen]
