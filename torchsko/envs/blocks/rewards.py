"""Parts of rewards."""

from __future__ import annotations

from math import inf, log

from torch import Tensor


def tolerance(
    x: Tensor,
    low: float,
    high: float,
    margin: float,
    at_margin: float = 0.1,
    kind: str = "gaussian",
) -> Tensor:
    """1 between two bounds, and less beyond them, down to a value at a margin.

    Args:
        x: any shape.
        low: lower bound.
        high: upper bound; infinite for none.
        margin: distance from the bounds, positive.
        at_margin: value there, between 0 and 1; positive for "gaussian".
        kind: "gaussian", "linear" or "quadratic".

    Reference: Tassa et al. 2018, "DeepMind Control Suite", section 2 (``tolerance``).
    """
    beyond = (low - x).clamp(min=0)
    if high != inf:
        beyond = beyond + (x - high).clamp(min=0)
    distance = beyond / margin
    if kind == "gaussian":
        return (log(at_margin) * distance.square()).exp()
    decrease = (1 - at_margin) * (distance if kind == "linear" else distance.square())
    return (1 - decrease).clamp(min=0)


def pseudo_huber(error: Tensor, small: float) -> Tensor:
    """Smooth norm of an error: in proportion beyond ``small``, quadratic below it, zero at zero.

    Args:
        error: `[n]`.
        small: positive, in the units of the error.

    Returns:
        `[]`. Its gradient has the norm 1 far from zero, where that of ``exp(-error**2)`` vanishes.
    """
    return (error.square().sum(-1) + small**2).sqrt() - small
