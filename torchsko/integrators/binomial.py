r"""Binomial checkpointing: the fewest recomputed steps for a number of stored states.

With s stored states and each step computed at most r + 1 times, the longest rollout that can be reversed has

.. math:: \beta(s, r) = \binom{s + r}{s}

steps. The schedule stores the start, advances to the point from which the rest can be reversed with s - 1
states, stores that state, and so on. The states freed behind it then serve the part before it.

Reference: A. Griewank, A. Walther, *Algorithm 799: revolve*, ACM Transactions on Mathematical Software 26(1),
2000.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb


@dataclass(frozen=True)
class Binomial:
    """Number of states stored for the backward pass, besides the start: ``rollout(checkpoint=Binomial(20))``.

    Attributes:
        states: number of states, 0 or more. The autograd graph is that of one step.
    """

    states: int


def repetitions(steps: int, states: int) -> int:
    """The smallest r with beta(states + 1, r) >= steps: the maximum number of recomputations of a step."""
    r = 0
    while comb(states + 1 + r, r) < steps:
        r += 1
    return r


def next_checkpoint(steps: int, states: int) -> int:
    """Optimal position of the next stored state.

    Args:
        steps: steps ahead, at least two.
        states: number of states that may be stored besides the start.

    Returns:
        A number of steps from 1 to steps - 1.
    """
    if states < 1:
        return steps - 1
    r = repetitions(steps, states)
    # The part ahead has one state less and as many repetitions; the part behind has one repetition less.
    ahead = comb(states + r, r)
    fewer = comb(states + r - 1, r - 2) if r > 1 else 0
    return min(max(steps - ahead, fewer, 1), steps - 1)
