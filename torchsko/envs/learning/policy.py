"""Networks of a learner: a Gaussian policy with bounded actions, and a value function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

EPSILON = 1e-5
"""Added to variances of observations, so that constant entries stay finite."""

INITIAL_COUNT = 1e-4
"""Weight of the initial mean 0 and variance 1, in observations."""


class Normalizer(nn.Module):
    """Running mean and variance of observations.

    Reference: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", 1979.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=dtype))
        self.register_buffer("var", torch.ones(size, dtype=dtype))
        self.register_buffer("count", torch.tensor(INITIAL_COUNT, dtype=torch.float64))

    def forward(self, observation: Tensor) -> Tensor:
        """Normalized observations, `[*batch, size]`."""
        return (observation - self.mean) / (self.var + EPSILON).sqrt()

    @torch.no_grad()
    def update(self, observations: Tensor, sum_over_processes: Callable[[Tensor], Tensor]) -> None:
        """Include observations, `[..., size]`."""
        rows = observations.flatten(0, -2) - self.mean  # about the old mean: less rounding
        one = rows.new_full((1,), len(rows))
        total = sum_over_processes(torch.cat([one, rows.sum(0), rows.square().sum(0)]))
        n, size = total[0], len(self.mean)
        shift, square = total[1 : size + 1] / n, total[size + 1 :] / n
        old, new = self.count / (self.count + n), n / (self.count + n)
        var = old * self.var + new * (square - shift.square()) + old * new * shift.square()
        self.var.copy_(var.clamp_min(0.0))
        self.mean.add_(new * shift)
        self.count.add_(n)


class Network(nn.Sequential):
    """Layers of ELU units with normalized outputs, and a linear layer (Xu et al. 2022, appendix)."""

    def __init__(self, sizes: Sequence[int], gain: float, dtype: torch.dtype) -> None:
        layers: list[nn.Module] = []
        for size, following in pairwise(sizes[:-1]):
            linear = nn.Linear(size, following, dtype=dtype)
            nn.init.orthogonal_(linear.weight, 2**0.5)
            layers += [linear, nn.ELU(), nn.LayerNorm(following, dtype=dtype)]
        last = nn.Linear(sizes[-2], sizes[-1], dtype=dtype)
        nn.init.orthogonal_(last.weight, gain)
        super().__init__(*layers, last)
        for layer in self:
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)


class Policy(nn.Module):
    """A Gaussian policy: the action is tanh(u), scaled to its bounds, with u = mu(s) + sigma noise.

    The module itself is deterministic: u = mu(s).

    Args:
        low: lower bounds of actions, `[num_actions]`.
        high: upper bounds.
        num_observations: numbers in an observation.
        hidden: units of the hidden layers.
        log_std: initial logarithm of sigma.

    Attributes:
        normalizer: of observations.
        mu: network of the mean of u.
        log_std: logarithm of sigma, `[num_actions]`.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        low: Tensor,
        high: Tensor,
        num_observations: int,
        hidden: Sequence[int] = (128, 64, 32),
        log_std: float = -1.0,
    ) -> None:
        super().__init__()
        dtype = low.dtype
        self.normalizer = Normalizer(num_observations, dtype)
        self.mu = Network((num_observations, *hidden, len(low)), 0.01, dtype)
        self.log_std = nn.Parameter(torch.full((len(low),), log_std, dtype=dtype))
        self.register_buffer("low", low.detach().clone())
        self.register_buffer("high", high.detach().clone())

    def forward(self, observation: Tensor) -> Tensor:
        """Actions, `[*batch, num_actions]`, of observations `[*batch, num_observations]`."""
        return self.bounded(self.mean(observation))

    def mean(self, observation: Tensor) -> Tensor:
        """The mean of u, `[*batch, num_actions]`."""
        return self.mu(self.normalizer(observation))

    def sample(self, observation: Tensor, noise: Tensor) -> Tensor:
        """A sample of u for standard normal noise, `[*batch, num_actions]`."""
        return self.mean(observation) + self.log_std.exp() * noise

    def log_prob(self, observation: Tensor, u: Tensor) -> Tensor:
        """Logarithm of the density of u, `[*batch]`."""
        return (
            torch.distributions.Normal(
                self.mean(observation), self.log_std.exp(), validate_args=False
            )
            .log_prob(u)
            .sum(-1)
        )

    def bounded(self, u: Tensor) -> Tensor:
        """The action of u."""
        return self.low + (self.high - self.low) * (0.5 * (1 + u.tanh()))


class Critic(nn.Module):
    """A value function of normalized observations.

    Args:
        num_observations: numbers in an observation.
        hidden: units of the hidden layers.
        scale: factor of the network's output, so that the output is of the size of a reward.
        dtype: of the weights.
    """

    def __init__(
        self, num_observations: int, hidden: Sequence[int], scale: float, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.network = Network((num_observations, *hidden, 1), 0.01, dtype)
        self.scale = scale

    def forward(self, observation: Tensor) -> Tensor:
        """Values, `[*batch]`."""
        return self.scale * self.network(observation).squeeze(-1)
