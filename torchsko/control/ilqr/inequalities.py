r"""Inequality constraints of the steps of a phase, by the augmented Lagrangian.

Values s of the constraints lie in a product K of half-lines s >= 0 and second-order cones
:math:`|s_1| \le s_0`. With multipliers :math:`\lambda \in K`, a penalty rho, and the projection P onto K, the
cost of a step gains

.. math:: \frac{|y|^2 - |\lambda|^2}{2 \rho}, \qquad y = P(\lambda - \rho s),

whose gradient is that of :math:`-y^* s`. After the minimization of the cost with constant multipliers, y is
the next estimate of them. At a solution y equals the multipliers: s is in K, and its product with them is
zero.

Reference: E. Birgin, J. Martinez, *Practical augmented Lagrangian methods for constrained optimization*,
SIAM 2014 (penalties); W. Jallet, A. Bambade, N. Mansard, J. Carpentier, *ProxDDP: proximal constrained
trajectory optimization*, 2023 (cones in differential dynamic programming).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Values = Callable[..., Tensor]
"""Maps the arguments of a running cost to values of constraints."""


@dataclass(frozen=True, eq=False)
class Inequalities:
    """Constraints of the steps of a phase.

    Attributes:
        half_lines: values `[*batch, c]` that are not negative; None for none.
        cones: values `[*batch, k, d]`, whose first entries are at least the norms of the others; None for
            none.
        num_half_lines: c.
        cone_shape: k and d.
    """

    half_lines: Values | None
    cones: Values | None
    num_half_lines: int
    cone_shape: tuple[int, int]

    @property
    def num_rows(self) -> int:
        """Number of values."""
        return self.num_half_lines + self.cone_shape[0] * self.cone_shape[1]

    def values(self, *arguments: Tensor) -> Tensor:
        """Values of all constraints, `[*batch, rows]`; the arguments are those of the running cost."""
        parts = [] if self.half_lines is None else [self.half_lines(*arguments)]
        if self.cones is not None:
            parts.append(self.cones(*arguments).flatten(-2))
        return torch.cat(parts, -1)

    def project(self, x: Tensor) -> Tensor:
        """The nearest values that satisfy the constraints, `[*batch, rows]`."""
        count = self.num_half_lines
        cones = _project_to_cone(x[..., count:].unflatten(-1, self.cone_shape))
        return torch.cat([torch.clamp(x[..., :count], min=0), cones.flatten(-2)], -1)


def _project_to_cone(x: Tensor) -> Tensor:
    """The projection of vectors `[*batch, d]` onto the second-order cone."""
    first, rest = x[..., :1], x[..., 1:]
    square = rest.square().sum(-1, keepdim=True)
    moves = square > 0
    norm = torch.where(
        moves, torch.where(moves, square, torch.ones_like(square)).sqrt(), 0 * square
    )
    middle = (first + norm) / 2
    direction = rest / torch.where(moves, norm, torch.ones_like(norm))
    boundary = torch.cat([middle, middle * direction], -1)
    inside, below = norm <= first, norm <= -first
    return torch.where(inside, x, torch.where(below, torch.zeros_like(x), boundary))
