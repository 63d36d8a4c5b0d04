"""Estimators of one interface: which normal equations each takes of a log, and how it solves them.

=========  ===========================================================================================
method     what it is
=========  ===========================================================================================
physical   least squares in the cone of physical inertias, with a prior to the nominal robot
ols        ordinary least squares on base parameters
wls        the same, each dof's error weighed by its own size
irls       the same, iteratively reweighted: samples that stand out count less (Huber)
iv         instrumental variables: the regressor of a little earlier and later, whose noise is another
=========  ===========================================================================================

Reference: M. Gautier, Ph. Poignet, *Extended Kalman filtering and weighted least squares dynamic
identification of robot*, Control Engineering Practice 9(12), 2001 (wls); P. Huber, *Robust estimation of a
location parameter*, Annals of Mathematical Statistics 35(1), 1964; A. Janot, P. Vandanjon, M. Gautier, *A
generic instrumental variable approach for industrial robot identification*, IEEE Trans. Control Systems
Technology 22(1), 2014; T. Soderstrom, P. Stoica, *Instrumental variable methods for system identification*,
1983 (delayed signals as instruments).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.learn.base_parameters import BaseParameters
from torchsko.learn.entropic import Prior
from torchsko.learn.friction import Term
from torchsko.learn.instrumental import instrumental_fit, instrumental_information, paired
from torchsko.learn.lasting import with_lasting_errors
from torchsko.learn.least_squares import Information, base_fit, information
from torchsko.learn.normal import Normal, Problem
from torchsko.learn.reading import Seen
from torchsko.learn.residuals import Residuals, residuals
from torchsko.learn.settings import Settings
from torchsko.learn.solving import Model, Solution, solved

HUBER = 1.345
"""Deviations beyond which a sample counts less: of normal noise 5% of the precision is lost."""

ROUNDS = 20
"""Of reweighting at most."""

STILL = 1e-3
"""Change of weights at which they are the same."""

LAG = 1.5
"""Time over the cut-off's period after which filtered noise is another."""


@dataclass(frozen=True, eq=False)
class Data:
    """What estimators know of a log.

    Attributes:
        problem: what explains forces.
        normal: its normal equations.
        seen: motions to look at residuals in.
        settings: how the log was filtered.
        again: other normal equations, of `lag` or `weigh`.
    """

    problem: Problem
    normal: Normal
    seen: Seen
    settings: Settings
    again: Callable[..., Normal]

    @property
    def terms(self) -> Sequence[Term]:
        """That there are to choose from."""
        return self.problem.terms


Solve = Callable[[Normal], Solution]
Estimator = Callable[[Data, Model, BaseParameters, Prior], tuple[Normal, Solve]]


def physical(data: Data, model: Model, base: BaseParameters, prior: Prior) -> tuple[Normal, Solve]:
    """Physically consistent least squares."""
    return data.normal, lambda normal: solved(normal, model, prior, data.terms)


def ordinary(data: Data, model: Model, base: BaseParameters, prior: Prior) -> tuple[Normal, Solve]:
    """Ordinary least squares."""
    even = replace(model, scale=torch.ones_like(model.scale))
    return data.normal, lambda normal: base_fit(normal, even, base)


def weighted(data: Data, model: Model, base: BaseParameters, prior: Prior) -> tuple[Normal, Solve]:
    """Least squares weighed dof by dof."""
    return data.normal, lambda normal: base_fit(normal, model, base)


def reweighted(
    data: Data, model: Model, base: BaseParameters, prior: Prior
) -> tuple[Normal, Solve]:
    """Least squares whose weights follow the errors, until they do not change."""
    normal, last = data.normal, None
    for _ in range(ROUNDS):
        fit = base_fit(normal.all, model, base)
        spread = usual(residuals(data.problem, data.seen.motions, fit).error)
        normal = data.again(weigh=lambda X, fit=fit, spread=spread: huber(fit.error(X), spread))
        if last is not None and bool(((spread - last).abs() <= STILL * last).all()):
            break
        last = spread
    return normal, lambda normal: base_fit(normal, model, base)


def instrumental(
    data: Data, model: Model, base: BaseParameters, prior: Prior
) -> tuple[Normal, Solve]:
    """Instrumental variables: columns a lag before and after."""
    lag = math.ceil(LAG / data.settings.cutoff * data.settings.coarse)
    return paired(data.again(lag=lag), data.normal), lambda normal: instrumental_fit(
        normal, model, base
    )


ESTIMATORS: Mapping[str, Estimator] = {
    "physical": physical,
    "ols": ordinary,
    "wls": weighted,
    "irls": reweighted,
    "iv": instrumental,
}
"""By the name that a fit knows them by."""


def informed(
    method: str, data: Data, used: Normal, model: Model, solution: Solution, base: BaseParameters,
    left: Residuals,
) -> Information:  # fmt: skip
    """What the data tell of a method's solution."""
    if method == "iv":
        return instrumental_information(used.all, model, base, left.variance, left.inflation)
    even = replace(model, scale=torch.ones_like(model.scale)) if method == "ols" else model
    told = information(used.all, even, solution.choice, base, left.variance, left.inflation)
    return with_lasting_errors(
        told, data.problem, data.seen.motions, used.all, even, solution, base, left.inflation
    )


def usual(error: Tensor) -> Tensor:
    """A standard deviation that outliers do not reach, `[samples, dofs]` to `[dofs]`."""
    return 1.4826 * error.abs().median(0).values


def huber(error: Tensor, spread: Tensor) -> Tensor:
    """Weights of errors: one up to `HUBER` deviations, then less."""
    return (HUBER * spread / error.abs().clamp_min(1e-300)).clamp_max(1.0)
