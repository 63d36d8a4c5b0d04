"""Stages of explicit Runge-Kutta methods, for tuples of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Row = tuple[float, ...]
"""Coefficients of the rates of stages."""

Rates = tuple[Tensor, ...]
"""Rates of the parts of a state."""

RK4_ROWS: tuple[Row, ...] = ((0.5,), (0.0, 0.5), (0.0, 0.0, 1.0))
"""Coefficients of the later stages of the classical method of order 4."""

RK4_WEIGHTS: Row = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
"""Weights of its stages in the step."""


def stage_rates(
    rows: Sequence[Row],
    rate: Callable[[float | Tensor, Rates | None], Rates],
    h: float | Tensor,
) -> list[Rates]:
    """Rates at all stages of a step.

    Args:
        rows: coefficients of each later stage on the rates before it.
        rate: maps the time since the start [s], and the changes of the state since then (None at the start),
            to rates.
        h: length of the step [s].
    """
    found = [rate(0.0, None)]
    for row in rows:
        found.append(rate(h * sum(row), combine(row, found, h)))
    return found


def combine(coefficients: Row, rates: Sequence[Rates], h: float | Tensor) -> Rates:
    """Changes h sum_i c_i k_i for rates k_i, without those whose coefficient is zero."""
    # h c first: in kernels it is one product for all entries.
    terms = [(h * c, rate) for c, rate in zip(coefficients, rates, strict=False) if c]
    parts = zip(*(tuple(c * x for x in rate) for c, rate in terms), strict=True)
    return tuple(part[0] if len(part) == 1 else torch.stack(part).sum(0) for part in parts)
