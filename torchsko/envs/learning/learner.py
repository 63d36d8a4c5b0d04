"""Base of the learning algorithms: networks, noise, windows of steps, and updates of networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchsko.envs.environment import Environment, EnvState, Transition, detached
from torchsko.envs.learning.adam import Adam
from torchsko.envs.learning.policy import Critic, Policy
from torchsko.envs.learning.processes import Processes
from torchsko.envs.random_numbers import Draws, environment_keys, uniform_numbers

NOISE_SEED = 0x6E6F697365
"""Added to the seed for the noise of actions, so that it differs from the numbers of the environments."""


class Window(NamedTuple):
    """Steps of all environments of a process.

    Attributes:
        observation: before each step, `[h, n, k]`.
        u: sample of the policy, `[h, n, num_actions]`; see `Policy`.
        transition: results, `[h, n, ...]`.
    """

    observation: Tensor
    u: Tensor
    transition: Transition


class Update(NamedTuple):
    """Result of an update.

    Attributes:
        state: of the environments after it.
        window: the steps that it took.
        measures: numbers of the learning curve, by name.
    """

    state: EnvState
    window: Window
    measures: dict[str, Tensor]


@dataclass
class Learner:
    """State of a learning algorithm; derived classes have the algorithm.

    Attributes:
        env: the environment.
        options: those of the algorithm.
        seed: of weights, noise and minibatches.
        processes: that share the environments.
    """

    env: Environment
    options: Any
    seed: int
    processes: Processes

    def __post_init__(self) -> None:
        env, options = self.env, self.options
        size, device = env.observation_size, env.mech.device
        bounds = env.action_low.cpu(), env.action_high.cpu()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            policy = Policy(*bounds, size, options.actor_units, options.log_std)
            # Effective number of rewards in a value.
            scale = 1 / (1 - options.gamma * (1 - 1 / env.episode_length))
            critic = Critic(size, options.critic_units, scale, policy.low.dtype)
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.first, self.n = self.processes.share(env.num_envs)
        index = torch.arange(self.first, self.first + self.n, device=device)
        self.noise_key = environment_keys(self.seed + NOISE_SEED, index)

    def reset(self) -> EnvState:
        """The environments of this process at the start of a run."""
        return self.env.reset(self.n, seed=self.seed, first=self.first, random_ages=True)

    def update(self, state: EnvState, number: int, progress: float) -> Update:
        """Learn from a window of steps.

        Args:
            state: of the environments.
            number: of the update; it determines noise and minibatches.
            progress: share of the run that is done, from 0 to 1, for schedules.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """State of networks and optimizers."""
        parts = (x for x in vars(self).items() if isinstance(x[1], nn.Module | Adam))
        return {name: part.state_dict() for name, part in parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

    def noise(self, number: int) -> Tensor:
        """Standard normal numbers for the steps of an update, `[horizon, n, num_actions]`."""
        shape = self.options.horizon, self.env.action_size
        size, key = shape[0] * shape[1], self.noise_key
        numbers = uniform_numbers(
            key, torch.full_like(key, number), 0, 2 * size, self.policy.low.dtype
        )
        return Draws(numbers, numbers).normal(size).view(self.n, *shape).transpose(0, 1)

    def collect(self, state: EnvState, number: int, clip: float | None = None) -> Update:
        """Steps of the policy with noise. With ``clip``, adjoints of states are clipped between steps."""
        observations, samples, transitions = [], [], []
        for noise in self.noise(number):
            if clip is not None:
                state = clip_adjoint(state, clip)
            u = self.policy.sample(state.observation, noise)
            observations.append(state.observation)
            state, transition = self.env.step(state, self.policy.bounded(u))
            samples.append(u)
            transitions.append(transition)
        stacked = Transition(*map(torch.stack, zip(*transitions, strict=True)))
        window = Window(torch.stack(observations), torch.stack(samples), stacked)
        return Update(detached(state), window, {})

    def minibatches(self, number: int, epoch: int, count: int) -> Iterator[Tensor]:
        """Random parts of the steps of a window: indices into `[horizon * n]` of this process.

        A part has the same steps whatever the number of processes.
        """
        generator = torch.Generator().manual_seed(hash((self.seed, number, epoch)) % (1 << 63))
        total = self.options.horizon * self.env.num_envs
        for part in torch.randperm(total, generator=generator).chunk(count):
            step, row = part // self.env.num_envs, part % self.env.num_envs - self.first
            mine = (row >= 0) & (row < self.n)
            yield (step * self.n + row)[mine].to(self.noise_key.device)

    def descend(self, optimizer: Adam, loss: Tensor, limit: float) -> Tensor:
        """A step of an optimizer along the sum of the gradients of all processes; returns their norm.

        The norm is clipped to ``limit``. A gradient that is not finite is zero.
        """
        parameters = optimizer.parameters
        for x in parameters:
            x.grad = None
        loss.backward()
        self.processes.sum_gradients(parameters)
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        is_finite = norm.isfinite()
        for x in parameters:
            if x.grad is not None:
                x.grad.copy_(torch.where(is_finite, x.grad, 0.0))
        optimizer.step()
        return norm


def set_rate(optimizer: Adam, first: float, last: float, progress: float) -> None:
    """Set the learning rate, which changes linearly over a run."""
    optimizer.rate = first + progress * (last - first)


def clip_adjoint(state: EnvState, limit: float) -> EnvState:
    """The same state; in reverse mode the adjoint of each environment has at most the norm ``limit``.

    An adjoint that is not finite becomes zero: this environment is left out of the gradient.
    """
    leaves, structure = pytree.tree_flatten((state.physics, state.memory, state.observation))
    # Tensors without gradients, such as the time, would get kernels with gradients to them.
    places = [k for k, x in enumerate(leaves) if x.requires_grad]
    for k, x in zip(
        places, _ClippedAdjoint.apply(limit, *(leaves[k] for k in places)), strict=True
    ):
        leaves[k] = x
    physics, memory, observation = pytree.tree_unflatten(leaves, structure)
    return state._replace(physics=physics, memory=memory, observation=observation)


class _ClippedAdjoint(torch.autograd.Function):
    """The identity; see `clip_adjoint`."""

    @staticmethod
    def forward(ctx: Any, limit: float, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.limit = limit
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *adjoints: Tensor) -> tuple[Tensor | None, ...]:
        norm = torch.stack([x.square().reshape(len(x), -1).sum(1) for x in adjoints]).sum(0).sqrt()
        finite, factor = norm.isfinite(), ctx.limit / norm.clamp_min(ctx.limit)

        def clipped(x: Tensor) -> Tensor:
            shape = (-1, *[1] * (x.ndim - 1))
            return torch.where(finite.view(shape), x * factor.view(shape), 0.0)

        return None, *map(clipped, adjoints)


def mean_over(values: Sequence[Tensor]) -> Tensor:
    """The mean of scalars."""
    return torch.stack(list(values)).mean()
