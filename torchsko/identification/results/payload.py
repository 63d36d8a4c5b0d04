"""What one body became: a payload's numbers with their error bars, where all other bodies are as before."""

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
    """How the inertial numbers of one body changed, by what base parameters changed.

    Attributes:
        body: that changed.
        change: m, mx, my, mz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz as `inertial_parameters` has them, at the body's
            origin and in its axes, `[10]`: of what was attached, its own.
        deviation: standard deviations, infinite of numbers that base parameters do not tell, `[10]`.
        covariance: `[10, 10]`, with what `misfit` is above one.
        misfit: mean square of what base parameters changed by besides, in their deviations. Far above one,
            other bodies changed too, and these numbers are not the payload's.
    """

    body: str
    change: Tensor
    deviation: Tensor
    covariance: Tensor
    misfit: float

    @property
    def com(self) -> Tensor:
        """Centre of mass of what was attached, in the body's axes at its origin, `[3]` [m]."""
        return self.change[1:4] / self.change[0]


def payload(fit: Fit, body: str, before: Fit | None = None) -> Payload:
    """What was attached to a body, by a log with it.

    Least squares of the change of base parameters, weighed by their covariance: the numbers that a fit would
    find in which this body's alone were free.

    Args:
        fit: of a log with the payload; by "wls", "ols" or "iv", since the prior of "physical" pulls to the
            nominal robot.
        body: that it is attached to.
        before: a fit without it, of the same nominal robot; its base parameters are those before, and their
            error bars count. The nominal robot's, as if they were exact, when left out.

    Raises:
        FitError: no such body, one that no force depends on, or fits of two robots; names it.
    """
    names = fit.nominal.body_names
    if body not in names:
        raise FitError(
            f"there is no body {body!r}.",
            "A payload is attached to a body that moves.",
            f"Pass one of {', '.join(names)}.",
        )
    base, covariance, old = fit.base, fit.covariance, fit.base.of(fit.nominal_numbers)
    if before is not None:
        if before.base.names != base.names or not torch.allclose(before.base.matrix, base.matrix):
            raise FitError(
                "the fit before is of another robot: its base parameters are other sums.",
                "A change is told of the same sums.",
                "Fit both logs from one nominal robot.",
            )
        old, covariance = before.value, covariance + before.covariance
    at = 10 * names.index(body)
    columns = base.matrix[:, at : at + 10]
    if not bool((columns != 0).any()):
        raise FitError(
            f"no force depends on body {body!r}.",
            "What is attached there shows nowhere.",
            "Name the body that carries it.",
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
    # What this body does not explain, others did: it counts as noise does.
    spread = max(misfit, 1.0) * spread
    unknown = (alike > 0).any(0)
    deviation = torch.where(unknown, torch.inf, spread.diagonal().clamp_min(0).sqrt())
    return Payload(body, change, deviation, spread, misfit)
