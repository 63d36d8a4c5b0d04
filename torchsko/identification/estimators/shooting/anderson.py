"""Anderson acceleration of Gauss-Newton steps.

With large residuals Gauss-Newton steps overshoot in some directions and oscillate. The affine combination of
the last steps with the smallest combined change damps these oscillations.

References: D. Anderson, *Iterative procedures for nonlinear integral equations*, Journal of the ACM 12(4),
1965; H. Walker, P. Ni, *Anderson acceleration for fixed-point iterations*, SIAM Journal on Numerical
Analysis 49(4), 2011, equation 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_HISTORY = 4
"""Number of earlier steps that are combined with the present one."""

RANK_TOLERANCE = 1e-10
"""Relative eigenvalue below which differences of changes count as linearly dependent."""


@dataclass(frozen=True, eq=False)
class AndersonHistory:
    """The last steps, oldest first.

    Attributes:
        changes: changes of the parameters, each `[parameters]`.
        aims: unknowns at which each step ended, each `[unknowns]`.
    """

    changes: tuple[Tensor, ...] = ()
    aims: tuple[Tensor, ...] = ()

    def after(self, change: Tensor, aim: Tensor) -> AndersonHistory:
        """Append a step and keep at most `MAX_HISTORY` earlier ones."""
        return AndersonHistory(
            (*self.changes[-MAX_HISTORY:], change), (*self.aims[-MAX_HISTORY:], aim)
        )

    @property
    def restarted(self) -> AndersonHistory:
        """Keep only the last step."""
        return AndersonHistory(self.changes[-1:], self.aims[-1:])

    def aim(self, H: Tensor) -> Tensor | None:
        """Affine combination `[unknowns]` of the steps; None for a single step.

        Args:
            H: positive semidefinite metric of the changes, `[parameters, parameters]`.
        """
        if len(self.changes) < 2:
            return None
        dx, dy = (torch.stack(x, 1).diff(dim=1) for x in (self.changes, self.aims))
        inverse = torch.linalg.pinv(dx.mT @ H @ dx, rtol=RANK_TOLERANCE, hermitian=True)
        weights = inverse @ (dx.mT @ (H @ self.changes[-1]))
        return self.aims[-1] - dy @ weights
