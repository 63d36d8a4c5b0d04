"""An iterate of multiple shooting, and the error for motions that diverge."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.estimators.shooting.sensitivities import WindowTrajectories


def divergence_error() -> FitError:
    """The error for simulated motions that are not finite."""
    return FitError(
        "simulated motions are not finite.",
        "The measured forces drive the robot away from the log within a window.",
        'Check units and signs of tau, pass a shorter window, or method="physical".',
    )


@dataclass(frozen=True, eq=False)
class ShootingIterate:
    """An iterate of the Gauss-Newton method.

    Attributes:
        phi: inertial parameters, `[inertial]`.
        coefficients: coefficients of all slots, `[slots]`.
        starts: initial states of windows, `[chains, windows, 2 num_dof]`.
        path: simulated windows.
    """

    phi: Tensor
    coefficients: Tensor
    starts: Tensor
    path: WindowTrajectories
