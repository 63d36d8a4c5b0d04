"""Inertial parameters of a payload, from the change of base parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.regression.least_squares import (
    collinear_combinations,
    scaled_pseudo_inverse,
)
from torchsko.identification.results.result import Fit


@dataclass(frozen=True, eq=False)
class Payload:
    """Change of the inertial parameters of one body.

    Attributes:
        body: name of the body.
        change: m, mx, my, mz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz of the payload, in the order of
            `inertial_parameters`, at the origin and in the axes of the body, `[10]`.
        deviation: standard errors, `[10]`; infinite for parameters that the log does not determine.
        covariance: covariance, scaled by `misfit` if this is above 1, `[10, 10]`.
        misfit: mean square of the remaining change of base parameters, in standard errors. A value far
            above 1 means that other bodies changed too.
    """

    body: str
    change: Tensor
    deviation: Tensor
    covariance: Tensor
    misfit: float

    @property
    def com(self) -> Tensor:
        """Center of mass of the payload, in the axes and from the origin of the body, `[3]` [m]."""
        return self.change[1:4] / self.change[0]


def payload(fit: Fit, body: str, before: Fit | None = None) -> Payload:
    """Estimate the payload of a body from a fit with it.

    The payload explains the change of base parameters by weighted least squares. The estimate equals that of
    a fit in which only the parameters of this body are free.

    Args:
        fit: a fit with the payload, by "wls", "ols" or "iv": the prior of "physical" would bias the change
            towards zero.
        body: name of the body that carries the payload.
        before: a fit without the payload, of the same nominal robot. By default the change is relative to the
            nominal robot, which is taken as exact.

    Raises:
        FitError: an unknown body, a body that no force depends on, or fits of different robots.
    """
    names = fit.nominal.body_names
    if body not in names:
        raise FitError(
            f"there is no body {body!r}.",
            "A payload belongs to a moving body.",
            f"Pass one of {', '.join(names)}.",
        )
    base, covariance, old = fit.base, fit.covariance, fit.base.of(fit.nominal_numbers)
    if before is not None:
        if before.base.names != base.names or not torch.allclose(before.base.matrix, base.matrix):
            raise FitError(
                "the fit without the payload has other base parameters.",
                "A change is defined for equal base parameters only.",
                "Fit both logs with the same nominal robot.",
            )
        old, covariance = before.value, covariance + before.covariance
    at = 10 * names.index(body)
    columns = base.matrix[:, at : at + 10]
    if not bool((columns != 0).any()):
        raise FitError(
            f"no force depends on body {body!r}.",
            "Its payload cannot be identified.",
            "Name the body that carries the payload.",
        )
    told = covariance.diagonal().isfinite()
    inverse, _ = scaled_pseudo_inverse(covariance[told][:, told])
    columns, moved = columns[told], (fit.value - old)[told]
    information = columns.mT @ inverse @ columns
    alike = collinear_combinations(information)
    spread, _ = scaled_pseudo_inverse(information)
    change = spread @ (columns.mT @ (inverse @ moved))
    rest = moved - columns @ change
    free = len(moved) - (10 - len(alike))
    misfit = float(rest @ (inverse @ rest)) / max(free, 1)
    # Changes of other bodies count as noise.
    spread = max(misfit, 1.0) * spread
    unknown = (alike > 0).any(0)
    deviation = torch.where(unknown, torch.inf, spread.diagonal().clamp_min(0).sqrt())
    return Payload(body, change, deviation, spread, misfit)
