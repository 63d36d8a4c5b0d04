"""Random bits by counter: the output function of SplitMix64, with wrapping 64-bit arithmetic.

Reference: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 14.
"""

from __future__ import annotations

import torch
from torch import Tensor

GAMMA = -0x61C8864680B583EB
"""0x9E3779B97F4A7C15 as a signed number: the odd integer closest to 2^64 over the golden ratio."""


def streams_of_seed(seed: int, index: Tensor) -> Tensor:
    """The state of one stream for each index, int64 like the index; the seed is any integer."""
    wrapped = (seed + (1 << 63)) % (1 << 64) - (1 << 63)
    return split(_mix(torch.full_like(index, wrapped)), index)


def split(x: Tensor, counter: Tensor | int) -> Tensor:
    """The state of the counter-th stream that splits off another one, int64."""
    return _mix(x + GAMMA * (counter + 1))


def leading_bits(x: Tensor, bits: int) -> Tensor:
    """The first bits of 64-bit integers, as nonnegative numbers."""
    return _shifted(x, 64 - bits)


def _mix(x: Tensor) -> Tensor:
    """The output function of SplitMix64, a bijection of 64-bit integers."""
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
