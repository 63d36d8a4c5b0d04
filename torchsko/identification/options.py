"""What a fit is asked for besides its terms: refused by name where it cannot be."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from torch import nn

from torchsko.errors import FitError, unknown_name
from torchsko.identification.diagnostics.closed_chains import refuse_loops
from torchsko.identification.diagnostics.zero_limits import refuse_zero_limits
from torchsko.identification.estimators.estimators import ESTIMATORS
from torchsko.identification.friction import Term
from torchsko.identification.joint_terms import Learn
from torchsko.identification.regression.normal_equations import Regressor
from torchsko.mechanism.mechanism import Mechanism

MOST_FOLDS = 100
"""Of cross-validation."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What a fit is asked for; `torchsko.identification.identify` says what each is.

    Attributes:
        learn: terms of joints.
        library: terms to choose from.
        method: of `ESTIMATORS`.
        cutoff: of the filter [Hz].
        prior: weight of the nominal robot.
        folds: of cross-validation.
        window: of shooting [s].
        residual: a force that is learned.
        regressor: instead of `torque_regressor`.
        checkpoint: file to go on from.
    """

    learn: Learn
    library: Sequence[Term]
    method: str
    cutoff: float | None
    prior: float | None
    folds: int
    window: float | None
    residual: nn.Module | None
    regressor: Regressor | None
    checkpoint: str | os.PathLike[str] | None

    def check(self) -> None:
        """Refuse options out of range, by name."""
        prior, folds, window = self.prior, self.folds, self.window
        if not (
            isinstance(self.library, Sequence) and all(isinstance(x, Term) for x in self.library)
        ):
            raise FitError(
                f"library is {self.library!r}.",
                "It is a list of terms, with parentheses, to choose from.",
                "Pass library=[*torchsko.identification.friction.candidates.CANDIDATE_TERMS, "
                "MyTerm()], say, or leave it out.",
            )
        if self.method not in ESTIMATORS:
            raise FitError(*unknown_name("method", self.method, tuple(ESTIMATORS)))
        if prior is not None and not (isinstance(prior, Real) and 0 < prior < math.inf):
            raise FitError(
                f"prior is {prior!r}.",
                "It is a positive number: a small one leaves all to the data.",
                "Pass prior=1e-6, say, or leave it out: cross-validation chooses it.",
            )
        if not (isinstance(folds, Integral) and 2 <= folds <= MOST_FOLDS):
            raise FitError(
                f"folds is {folds!r}.",
                "Each stretch of time is left out once: there are two at least, and of more than "
                f"{MOST_FOLDS} each is like its neighbours.",
                "Pass folds=5, the default.",
            )
        for name, unit in (("cutoff", "Hz"), ("window", "s")):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise FitError(
                    f"{name} is {value!r}.",
                    f"It is a positive number, in {unit}.",
                    "Leave it out: it is chosen.",
                )
        if window is not None and self.method != "shooting":
            raise FitError(
                f"window={window} was given with method={self.method!r}.",
                'Windows are those of method="shooting"; others filter by `cutoff`.',
                'Leave it out, or pass method="shooting".',
            )
        if self.residual is not None and not isinstance(self.residual, nn.Module):
            raise FitError(
                f"residual was given as {type(self.residual).__name__}.",
                "A force that is learned is a module with parameters.",
                "Pass torchsko.identification.Network(...), or an nn.Module of yours.",
            )


def check_robot(mech: Mechanism) -> None:
    """Refuse several robots, one in single precision, a closed chain, or joints that may have no force."""
    if mech.batch_shape:
        raise FitError(
            f"{mech.name!r} is {mech.batch_shape.numel()} robots.",
            "A log is one robot's.",
            "Pass one, without batch dimensions.",
        )
    if mech.dtype != torch.float64:
        raise FitError(
            f"{mech.name!r} is {mech.dtype}.",
            "A log is fitted in double precision: sums over it lose what single precision keeps.",
            "Pass mech.to(torch.float64).",
        )
    refuse_loops(mech)
    refuse_zero_limits(mech, "effort_limit")
