"""PPO: clipped ratios of probabilities, without gradients of the simulation.

Reference: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal policy optimization algorithms", 2017.
Equations (7), (9) and (11), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.envs.environment import Environment, EnvState
from torchsko.envs.learning.adam import Adam
from torchsko.envs.learning.learner import Learner, Update, Window, mean_over, set_rate
from torchsko.envs.learning.processes import Processes
from torchsko.envs.learning.returns import td_lambda


@dataclass(frozen=True)
class PPO:
    """Options of PPO.

    Attributes:
        horizon: steps of a window, T.
        gamma: discount.
        lam: lambda of the generalized advantage estimate.
        epsilon: clip range of the ratio.
        entropy: weight of the entropy, c2.
        rate: learning rate; it falls linearly to ``final_rate``.
        final_rate: learning rate at the end of the run.
        epochs: passes over the window, K.
        minibatches: parts of the window in a pass.
        grad_norm: bound of the norm of gradients of networks.
        actor_units: units of the policy's hidden layers.
        critic_units: units of the critic's.
        log_std: initial logarithm of the standard deviation of the noise.
    """

    name: ClassVar[str] = "ppo"
    horizon: int = 64
    gamma: float = 0.99
    lam: float = 0.95
    epsilon: float = 0.2
    entropy: float = 0.0
    rate: float = 5e-4
    final_rate: float = 1e-5
    epochs: int = 8
    minibatches: int = 16
    grad_norm: float = 0.5
    actor_units: tuple[int, ...] = (64, 64)
    critic_units: tuple[int, ...] = (64, 64)
    log_std: float = -0.5

    def learner(self, env: Environment, seed: int, processes: Processes) -> PpoLearner:
        """The algorithm at the start of a run."""
        return PpoLearner(env, self, seed, processes)


@dataclass
class PpoLearner(Learner):
    """State of PPO: the policy pi_theta and the critic V."""

    options: PPO

    def __post_init__(self) -> None:
        super().__post_init__()
        self.actor_optimizer = Adam(self.policy.parameters(), eps=1e-5)
        self.critic_optimizer = Adam(self.critic.parameters(), eps=1e-5)

    def update(self, state: EnvState, number: int, progress: float) -> Update:
        """Algorithm 1: collect a window, then K epochs of minibatches."""
        options, normalizer = self.options, self.policy.normalizer
        for optimizer in (self.actor_optimizer, self.critic_optimizer):
            set_rate(optimizer, options.rate, options.final_rate, progress)
        with torch.no_grad():
            state, window, _ = self.collect(state, number)
            advantage, target = (x.flatten() for x in self.estimates(window))
            old = self.policy.log_prob(window.observation, window.u).flatten()
        observation, u = window.observation.flatten(0, 1), window.u.flatten(0, 1)
        share = options.minibatches / (options.horizon * self.env.num_envs)
        actor_losses, value_losses, ratios = [], [], []
        for epoch in range(options.epochs):
            for rows in self.minibatches(number, epoch, options.minibatches):
                ratio = (self.policy.log_prob(observation[rows], u[rows]) - old[rows]).exp()
                loss = share * self.actor_loss(ratio, advantage[rows]).sum()
                loss = loss - options.entropy * self.policy.log_std.sum() / self.processes.count
                self.descend(self.actor_optimizer, loss, options.grad_norm)
                error = self.critic(normalizer(observation[rows])) - target[rows]
                value_loss = share * error.square().sum()
                self.descend(self.critic_optimizer, value_loss, options.grad_norm)
                actor_losses.append(loss.detach())
                value_losses.append(value_loss.detach())
                ratios.append(share * ((ratio.detach() - 1).abs() > options.epsilon).sum())
        normalizer.update(window.observation, self.processes.sum)
        means = {"actor_loss": actor_losses, "value_loss": value_losses, "clipped_ratios": ratios}
        return Update(
            state, window, {k: self.processes.sum(mean_over(x)) for k, x in means.items()}
        )

    def actor_loss(self, ratio: Tensor, advantage: Tensor) -> Tensor:
        """Equation (7): the negative clipped surrogate objective of each sample."""
        clipped = ratio.clamp(1 - self.options.epsilon, 1 + self.options.epsilon)
        return -torch.minimum(ratio * advantage, clipped * advantage)

    def estimates(self, window: Window) -> tuple[Tensor, Tensor]:
        """Normalized advantages and targets of the critic, `[T, n]`, by equation (11)."""
        transition, options, normalizer = window.transition, self.options, self.policy.normalizer
        following = self.critic(normalizer(transition.final_observation))
        following = torch.where(transition.terminated, 0.0, following)
        target = td_lambda(
            transition.reward, following, transition.done, options.gamma, options.lam
        )
        advantage = target - self.critic(normalizer(window.observation))
        count = options.horizon * self.env.num_envs
        mean = self.processes.sum(advantage.sum()) / count
        variance = self.processes.sum((advantage - mean).square().sum()) / count
        return (advantage - mean) / (variance.sqrt() + 1e-8), target
