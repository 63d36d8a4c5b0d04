r"""Binomial checkpoints: the fewest steps computed again for a number of states that are kept.

With s states kept and each step computed at most r + 1 times, the longest rollout that can be reversed has

.. math:: \beta(s, r) = \binom{s + r}{s}

steps. The schedule keeps the start, goes on to where the rest can be reversed with s - 1 states, keeps that
state, and so on; behind it, the freed states serve what comes before.

Reference: A. Griewank, A. Walther, *Algorithm 799: revolve*, ACM Transactions on Mathematical Software 26(1),
2000.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb


@dataclass(frozen=True)
class Binomial:
    """Keep so many states for the backward pass, besides that at the start: ``rollout(checkpoint=...)``.

    Attributes:
        states: their number, 0 at least. The tape is that of one step.
    """

    states: int


def repetitions(steps: int, states: int) -> int:
    """The least r with beta(states + 1, r) >= steps: how often a step is computed again at most."""
    r = 0
    while comb(states + 1 + r, r) < steps:
        r += 1
    return r


def next_checkpoint(steps: int, states: int) -> int:
    """Where to keep the next state, of `steps` steps ahead and `states` states free: an optimal place.

    Args:
        steps: two at least.
        states: how many may be kept besides the start.

    Returns:
        A number of steps from 1 to steps - 1.
    """
    if states < 1:
        return steps - 1
    r = repetitions(steps, states)
    # What is ahead has one state less and as many repetitions; what is behind, one repetition less.
    ahead = comb(states + r, r)
    fewer = comb(states + r - 1, r - 2) if r > 1 else 0
    return min(max(steps - ahead, fewer, 1), steps - 1)
