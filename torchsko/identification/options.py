"""Options of a fit, and checks of the options and the robot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import torch

from torchsko.errors import FitError, unknown_name
from torchsko.identification.diagnostics.findings import Action, check_actions
from torchsko.identification.diagnostics.robot_checks import (
    check_limits_nonzero,
    check_no_closed_chain,
)
from torchsko.identification.estimators.estimator import Estimator
from torchsko.identification.estimators.estimators import ESTIMATORS
from torchsko.identification.friction import Term
from torchsko.identification.joint_terms import JointTerms
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.normal_equations import Regressor
from torchsko.mechanism.mechanism import Mechanism

MAX_FOLDS = 100
"""Number of folds of cross-validation; intervals of more folds are correlated with their neighbors."""


@dataclass(frozen=True, eq=False)
class FitOptions:
    """Options of `torchsko.identification.identify`, which documents each.

    Attributes:
        joint_terms: terms of joints.
        candidate_terms: terms to select from.
        method: a key of `ESTIMATORS`.
        select: whether terms are selected; None for the default of the method.
        cutoff: of the filter [Hz].
        prior: weight of the prior at the nominal robot.
        folds: of cross-validation.
        window: length of shooting's windows [s].
        time_limit: time for the iterations of shooting [s].
        regressor: replaces `torque_regressor`.
        measurement_bias: whether to simulate the bias by noise of positions.
        on_findings: action by code of finding.
    """

    joint_terms: JointTerms
    candidate_terms: Sequence[Term]
    method: str
    select: bool | None
    cutoff: float | None
    prior: float | None
    folds: int
    window: float | None
    time_limit: float | None
    regressor: Regressor | None
    measurement_bias: bool
    on_findings: Mapping[str, Action]

    @property
    def estimator(self) -> type[Estimator]:
        """The estimator of the method."""
        return ESTIMATORS[self.method]

    @property
    def selects(self) -> bool:
        """True if terms are selected by cross-validation."""
        return self.estimator.selects_terms if self.select is None else self.select

    def check(self) -> None:
        """Check all options.

        Raises:
            FitError: names the option and its value.
        """
        terms = self.candidate_terms
        if not (isinstance(terms, Sequence) and all(isinstance(x, Term) for x in terms)):
            raise FitError(
                f"candidate_terms is {terms!r}.",
                "It must be a list of terms, with parentheses.",
                "Pass candidate_terms=[*torchsko.identification.friction.candidates.CANDIDATE_TERMS, "
                "MyTerm()], or leave it out.",
            )
        if self.method not in ESTIMATORS:
            raise FitError(*unknown_name("method", self.method, tuple(ESTIMATORS)))
        if self.prior is not None and not (
            isinstance(self.prior, Real) and 0 < self.prior < math.inf
        ):
            raise FitError(
                f"prior is {self.prior!r}.",
                "It must be a positive number.",
                "Pass a small one, such as prior=1e-6, or leave it out: cross-validation chooses it.",
            )
        if not (isinstance(self.folds, Integral) and 2 <= self.folds <= MAX_FOLDS):
            raise FitError(
                f"folds is {self.folds!r}.",
                f"It must be between 2 and {MAX_FOLDS}.",
                "Pass folds=5, the default.",
            )
        for name, unit in (("cutoff", "Hz"), ("window", "s"), ("time_limit", "s")):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise FitError(
                    f"{name} is {value!r}.",
                    f"It must be a positive number in {unit}.",
                    "Leave it out to use the default.",
                )
        for name, used in (
            ("prior", "has_prior"),
            ("window", "has_windows"),
            ("time_limit", "has_windows"),
        ):
            if getattr(self, name) is not None and not getattr(self.estimator, used):
                methods = [f"{x!r}" for x, kind in ESTIMATORS.items() if getattr(kind, used)]
                raise FitError(
                    f"{name}={getattr(self, name)} was given with method={self.method!r}.",
                    "This method does not use it.",
                    f"Leave it out, or pass method={' or '.join(methods)}.",
                )
        check_actions(self.on_findings)


def check_log(log: Log) -> None:
    """Check the type of a log.

    Raises:
        FitError: it is not a `Log`.
    """
    if not isinstance(log, Log):
        raise FitError(
            f"log is a {type(log).__name__}.",
            "It must be a ts.identification.Log.",
            "Pass ts.identification.Log(t, q, tau), ts.identification.Log.load(path, mech.joint_names), or "
            "ts.identification.Log.concatenate(logs) for several logs.",
        )


def check_robot(mech: Mechanism) -> None:
    """Check that a robot can be fitted: one robot, double precision, no closed chain, nonzero limits.

    Raises:
        FitError: names the property of the robot.
    """
    if mech.batch_shape:
        raise FitError(
            f"{mech.name!r} is a batch of {mech.batch_shape.numel()} robots.",
            "A log belongs to one robot.",
            "Pass one robot, without batch dimensions.",
        )
    if mech.dtype != torch.float64:
        raise FitError(
            f"{mech.name!r} is {mech.dtype}.",
            "Sums over a log need double precision.",
            "Pass mech.to(torch.float64).",
        )
    check_no_closed_chain(mech)
    check_limits_nonzero(mech, "effort_limit")
