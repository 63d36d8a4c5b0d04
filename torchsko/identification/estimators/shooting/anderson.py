"""Steps that learn from those before: Anderson's mixing of where steps of Gauss and Newton lead.

Where much is left over that no number explains, Gauss and Newton's steps are too long in some directions, and
lead to and fro. A mixture of the last ones whose changes add up to least goes between.

References: D. Anderson, *Iterative procedures for nonlinear integral equations*, Journal of the ACM 12(4),
1965; H. Walker, P. Ni, *Anderson acceleration for fixed-point iterations*, SIAM Journal on Numerical
Analysis 49(4), 2011, equation 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_HISTORY = 4
"""Steps before the present one that are mixed with it."""

RANK_TOLERANCE = 1e-10
"""Squared part of the largest difference of changes up to which others are none."""


@dataclass(frozen=True, eq=False)
class AndersonHistory:
    """The last steps.

    Attributes:
        changes: of numbers, `[numbers]` each, the last one last.
        aims: where each would have led, `[unknowns]` each.
    """

    changes: tuple[Tensor, ...] = ()
    aims: tuple[Tensor, ...] = ()

    def after(self, change: Tensor, aim: Tensor) -> AndersonHistory:
        """With one more step, and no more than `MAX_HISTORY` before it."""
        return AndersonHistory(
            (*self.changes[-MAX_HISTORY:], change), (*self.aims[-MAX_HISTORY:], aim)
        )

    @property
    def begun(self) -> AndersonHistory:
        """With the last step alone."""
        return AndersonHistory(self.changes[-1:], self.aims[-1:])

    def aim(self, H: Tensor) -> Tensor | None:
        """The mixture `[unknowns]`, of weights that add up to one; None of a single step.

        Args:
            H: by which lengths of changes are measured, positive semidefinite, `[numbers, numbers]`.
        """
        if len(self.changes) < 2:
            return None
        apart, led = (torch.stack(x, 1).diff(dim=1) for x in (self.changes, self.aims))
        inverse = torch.linalg.pinv(apart.mT @ H @ apart, rtol=RANK_TOLERANCE, hermitian=True)
        shares = inverse @ (apart.mT @ (H @ self.changes[-1]))
        return self.aims[-1] - led @ shares
