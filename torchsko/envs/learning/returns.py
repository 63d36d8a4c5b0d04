"""Returns of windows of episodes that end by termination or by truncation."""

from __future__ import annotations

import torch
from torch import Tensor


def td_lambda(reward: Tensor, following: Tensor, done: Tensor, gamma: float, lam: float) -> Tensor:
    """Returns TD(lambda) of each step of a window.

    G_t = r_t + gamma ((1 - lam) V_{t+1} + lam G_{t+1}) within an episode, and r_t + gamma V_{t+1} at the last
    step of the window or of an episode.

    Args:
        reward: `[h, n]`.
        following: V_{t+1}, value of the observation after each step and before its reset, zero after a
            termination, `[h, n]`.
        done: whether the episode ends, by termination or truncation, bool `[h, n]`.
        gamma: discount.
        lam: lambda; 0 for one step, 1 for the whole window.

    Returns:
        `[h, n]`. Less the values V_t, it is the generalized advantage estimate of Schulman et al. (2016).

    Reference: Sutton, Barto, *Reinforcement Learning*, 2018, section 12.1.
    """
    target, targets = following[-1], []
    for t in range(len(reward) - 1, -1, -1):
        mixed = (1 - lam) * following[t] + lam * target
        target = reward[t] + gamma * torch.where(done[t], following[t], mixed)
        targets.append(target)
    return torch.stack(targets[::-1])
