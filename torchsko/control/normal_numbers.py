r"""Normal random numbers in floating-point operations, which kernels compute.

The generator of Wichmann and Hill adds three congruential ones,

.. math:: x' = a x \bmod m, \qquad u = \sum_i x_i / m_i \bmod 1.

Its products are below 2^24, so its state is exact in float32. Its period is 6.95e12. Box and Muller's method
makes two normal numbers of two uniform ones.

Reference: B. A. Wichmann, I. D. Hill, *Algorithm AS 183: an efficient and portable pseudo-random number
generator*, Applied Statistics 31(2), 1982; G. E. P. Box, M. E. Muller, *A note on the generation of random
normal deviates*, Annals of Mathematical Statistics 29(2), 1958.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.utils.split_mix import leading_bits, split, streams_of_seed

MODULI, MULTIPLIERS = (30269, 30307, 30323), (171, 172, 170)


def start_states(seed: int, batch: Sequence[int], samples: int, like: Tensor) -> Tensor:
    """States of independent generators, which depend on the seed, the problem and the sample alone.

    Args:
        seed: any integer.
        batch: batch shape of the problems.
        samples: number of samples of each problem.
        like: tensor with the dtype and device of the states.

    Returns:
        `[*batch, samples, 3]`.
    """
    device = like.device
    problems = torch.arange(math.prod(batch), device=device).reshape(*batch, 1, 1)
    streams = split(streams_of_seed(seed, problems), torch.arange(samples, device=device)[:, None])
    bits = leading_bits(split(streams, torch.arange(3, device=device)), 32)
    moduli = torch.tensor(MODULI, device=device)
    return (1 + bits % (moduli - 1)).to(like.dtype)


def normal_numbers(state: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Standard normal numbers `[*batch, count]`, and the next state of the generators `[*batch, 3]`."""
    moduli, multipliers = state.new_tensor(MODULI), state.new_tensor(MULTIPLIERS)
    uniform = []
    for _ in range(2 * math.ceil(count / 2)):
        product = multipliers * state
        state = product - moduli * (product / moduli).floor()
        total = (state / moduli).sum(-1)
        uniform.append(total - total.floor())
    first, second = torch.stack(uniform[::2], -1), torch.stack(uniform[1::2], -1)
    radius, angle = (-2 * (1 - first).log()).sqrt(), 2 * math.pi * second
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :count], state
