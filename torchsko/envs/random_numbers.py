"""Random numbers by counter: the same for one environment in every batch, in every order, on every device.

A number depends on the seed, the environment, the episode, the control step and its place alone; see
`torchsko.utils.split_mix`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.utils.split_mix import leading_bits, split, streams_of_seed

AGE_STEP = -1
"""Step of the stream of random ages."""


def environment_keys(seed: int, index: Tensor) -> Tensor:
    """Key of the random numbers of each environment.

    Args:
        seed: any integer.
        index: number of each environment, int64 `[n]`.

    Returns:
        int64 `[n]`.
    """
    return streams_of_seed(seed, index)


def uniform_numbers(
    key: Tensor, episode: Tensor, step: Tensor | int, count: int, dtype: torch.dtype
) -> Tensor:
    """Uniform numbers of one control step of each environment.

    Args:
        key: of each environment, int64 `[n]`.
        episode: its number, int64 `[n]`.
        step: of the episode, int64 `[n]` or one number.
        count: numbers for each environment.
        dtype: of the result; float32 numbers are the leading 24 bits of the 53 bits of float64 numbers.

    Returns:
        In [0, 1), `[n, count]`.
    """
    if count == 0:  # tasks without disturbances, at each step
        return key.new_empty((len(key), 0), dtype=dtype)
    stream = split(split(key, episode), step)
    places = torch.arange(count, device=key.device)
    bits = 53 if dtype == torch.float64 else 24
    return leading_bits(split(stream[:, None], places), bits).to(dtype) * 2.0**-bits


class Draws:
    """Random numbers of one environment for a task; each call takes the next ones.

    Args:
        numbers: uniform in [0, 1), `[k]`; None to count how many a task takes, with 1/2 for all.
        like: tensor with the dtype and device of the numbers.
    """

    def __init__(self, numbers: Tensor | None, like: Tensor) -> None:
        self._numbers, self._like, self.count = numbers, like, 0

    def uniform(
        self, low: float | Tensor = 0.0, high: float | Tensor = 1.0, size: int = 1
    ) -> Tensor:
        """Uniform in [low, high), `[size]`; the bounds broadcast."""
        first, self.count = self.count, self.count + size
        if self._numbers is None:
            u = self._like.new_full((size,), 0.5)
        elif self.count > self._numbers.shape[-1]:
            raise ShapeError(
                f"a task draws more than {self._numbers.shape[-1]} random numbers.",
                "The number of draws is that of its first evaluation.",
                "Draw the same numbers each time that a method of the task is called.",
            )
        else:
            u = self._numbers[..., first : self.count]
        return low + (high - low) * u

    def normal(self, size: int = 1) -> Tensor:
        """Standard normal numbers, `[size]`, by the method of Box and Muller (1958)."""
        radius = (-2 * (1 - self.uniform(size=size)).log()).sqrt()
        return radius * (2 * torch.pi * self.uniform(size=size)).cos()
