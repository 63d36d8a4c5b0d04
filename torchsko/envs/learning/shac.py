"""SHAC: short windows with gradients through the simulation, and a value function behind them.

Reference: Xu, Makoviychuk, Narang, Ramos, Matusik, Garg, Macklin, "Accelerated policy learning with parallel
differentiable simulation", ICLR 2022. Equations (4) to (7) and algorithm 1.

DEPARTS in three points, without which policies of tasks that terminate learn to fall fast, or to stand still.
A termination is a jump of the return, which the gradient of the rewards before it does not contain.

- The critic is fitted to zero at terminal observations, and the objective of the policy contains its value
  there. The gradient of this value leads away from the border.
- The objective is the lambda return instead of the reward of the window with one value at its end (Hafner et
  al., "Dream to control", ICLR 2020, equation 6). ``lam=1`` is the objective of the paper.
- The discount rises over a run: early policies move, late ones keep standing. See `SHAC.gamma`.
"""

from __future__ import annotations

from copy import deepcopy
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
class SHAC:
    """Options of SHAC.

    Attributes:
        horizon: steps of a window, h.
        gamma: discount at the start; 1 - gamma falls geometrically to 1 - ``final_gamma`` (François-Lavet,
            Fonteneau, Ernst, "How to discount deep reinforcement learning", 2015). With 0.995 from the start
            a hopper may learn to stand and stay there; with 0.99 until the end it sprints and falls.
        final_gamma: discount at the end of the run.
        lam: lambda of the returns, which are the objective of the policy and the targets of the critic.
        actor_rate: learning rate of the policy; it falls linearly to ``final_rate``.
        critic_rate: learning rate of the critic; it falls linearly to ``final_rate``.
        final_rate: learning rates at the end of the run.
        betas: of Adam.
        critic_epochs: passes over the window for the critic.
        critic_minibatches: parts of the window in a pass.
        alpha: share of the target critic that an update keeps.
        grad_norm: bound of the norm of gradients of networks.
        clip: bound of the norm of the adjoint of one environment's state, for a sum of rewards. That of a
            value is some hundreds; a lower bound makes policies short-sighted.
        actor_units: units of the policy's hidden layers.
        critic_units: units of the critic's.
        log_std: initial logarithm of the standard deviation of the noise.
    """

    name: ClassVar[str] = "shac"
    horizon: int = 32
    gamma: float = 0.99
    final_gamma: float = 0.997
    lam: float = 0.95
    actor_rate: float = 2e-3
    critic_rate: float = 5e-4
    final_rate: float = 1e-5
    betas: tuple[float, float] = (0.7, 0.95)
    critic_epochs: int = 4
    critic_minibatches: int = 4
    alpha: float = 0.2
    grad_norm: float = 1.0
    clip: float = 300.0
    actor_units: tuple[int, ...] = (128, 64, 32)
    critic_units: tuple[int, ...] = (64, 64)
    log_std: float = -1.0

    def learner(self, env: Environment, seed: int, processes: Processes) -> ShacLearner:
        """The algorithm at the start of a run."""
        return ShacLearner(env, self, seed, processes)


@dataclass(frozen=True)
class APG(SHAC):
    """Options of APG, analytic policy gradients: the gradient of the rewards of a window alone.

    It is SHAC without a critic: values after the window, and after terminations, are zero.

    Reference: Freeman et al., "Brax: a differentiable physics engine", 2021, section 4.
    """

    name: ClassVar[str] = "apg"
    horizon: int = 64
    lam: float = 1.0

    def learner(self, env: Environment, seed: int, processes: Processes) -> ApgLearner:
        """The algorithm at the start of a run."""
        return ApgLearner(env, self, seed, processes)


@dataclass
class ShacLearner(Learner):
    """State of SHAC: the policy pi_theta, the critic V_phi and the target critic V_phi'."""

    options: SHAC

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gamma, self.target_critic = self.options.gamma, deepcopy(self.critic)
        betas = self.options.betas
        self.actor_optimizer = Adam(self.policy.parameters(), betas)
        self.critic_optimizer = Adam(self.critic.parameters(), betas)

    def update(self, state: EnvState, number: int, progress: float) -> Update:
        """Algorithm 1: a gradient step of the policy along a window, then the fit of the critic."""
        options, total = self.options, self.options.horizon * self.env.num_envs
        set_rate(self.actor_optimizer, options.actor_rate, options.final_rate, progress)
        set_rate(self.critic_optimizer, options.critic_rate, options.final_rate, progress)
        self.gamma = (
            1 - (1 - options.gamma) ** (1 - progress) * (1 - options.final_gamma) ** progress
        )
        state, window, _ = self.collect(state, number, options.clip / total)
        loss = self.actor_loss(window)
        norm = self.descend(self.actor_optimizer, loss, options.grad_norm)
        value_loss = self.fit_critic(window, number)
        self.policy.normalizer.update(window.observation.detach(), self.processes.sum)
        measures = {"actor_loss": self.processes.sum(loss.detach()), "gradient_norm": norm}
        return Update(state, window, measures | {"value_loss": value_loss})

    def actor_loss(self, window: Window) -> Tensor:
        """Equation (5): the negative return of the window per step; each episode in it begins another sum."""
        transition, options = window.transition, self.options
        following = self.following_values(window)
        returns = td_lambda(transition.reward, following, transition.done, self.gamma, options.lam)
        begins = torch.cat([torch.ones_like(transition.done[:1]), transition.done[:-1]])
        return -torch.where(begins, returns, 0.0).sum() / (options.horizon * self.env.num_envs)

    def following_values(self, window: Window) -> Tensor:
        """Values of the target critic after each step, before resets, `[h, n]`."""
        return self.target_critic(self.policy.normalizer(window.transition.final_observation))

    def fit_critic(self, window: Window, number: int) -> Tensor:
        """Equations (6) and (7): fit the critic to TD(lambda), and move the target critic."""
        options, transition, normalizer = self.options, window.transition, self.policy.normalizer
        with torch.no_grad():
            following = torch.where(transition.terminated, 0.0, self.following_values(window))
            targets = td_lambda(
                transition.reward, following, transition.done, self.gamma, options.lam
            ).flatten()
            observations = normalizer(window.observation).flatten(0, 1)
            ends = normalizer(transition.final_observation).flatten(0, 1)
            is_terminal = transition.terminated.flatten()
        share = options.critic_minibatches / (options.horizon * self.env.num_envs)
        losses = []
        for epoch in range(options.critic_epochs):
            for rows in self.minibatches(number, epoch, options.critic_minibatches):
                error = self.critic(observations[rows]) - targets[rows]
                at_end = self.critic(ends[rows][is_terminal[rows]])
                loss = share * (error.square().sum() + at_end.square().sum())
                self.descend(self.critic_optimizer, loss, options.grad_norm)
                losses.append(loss.detach())
        with torch.no_grad():
            for old, new in zip(
                self.target_critic.parameters(), self.critic.parameters(), strict=True
            ):
                old.lerp_(new, 1 - options.alpha)
        return self.processes.sum(mean_over(losses))


@dataclass
class ApgLearner(ShacLearner):
    """State of APG."""

    def following_values(self, window: Window) -> Tensor:
        """Zero."""
        return torch.zeros_like(window.transition.reward)

    def fit_critic(self, window: Window, number: int) -> Tensor:
        """Nothing: there is no critic."""
        return torch.zeros_like(window.transition.reward[0, 0])
