"""Environments: a task for a batch of robots, as pure functions of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchsko.envs.control_step import Beginning, Kernels
from torchsko.envs.random_numbers import AGE_STEP, environment_keys, uniform_numbers
from torchsko.envs.task import Task, World
from torchsko.errors import NonFiniteError, ShapeError, name_list
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.utils.computed import computed
from torchsko.utils.concrete_values import concrete_values

AutoReset = Literal["same-step", "next-step", "off"]
"""When an environment that ended begins its next episode."""

Tree = TypeVar("Tree")

MIN_RESTARTED = 5
"""Fewest environments that a kernel restarts: a few samples can have another kernel, which would be built."""


class EnvState(NamedTuple):
    """State of n environments: a named tuple of tensors, and of dictionaries with constant keys.

    Attributes:
        physics: state of the robots, `[n, ...]`.
        age: control steps since the reset, int64 `[n]`.
        episode: number of the episode, int64 `[n]`.
        key: key of the random numbers, int64 `[n]`; with the episode and the age it determines them.
        params: parameters of each environment, drawn at its reset, `[n, ...]`; with gradients, if they
            require any. See `World.params`.
        memory: tensors that the task keeps from step to step, `[n, ...]`.
        observation: the last observation, `[n, k]`.
        ended: whether the episode has ended and the next step resets, bool `[n]`.
        num_diverged: episodes that ended since they diverged, int64 `[n]`.
        num_clipped: control steps with an action out of bounds, int64 `[n]`.
    """

    physics: State
    age: Tensor
    episode: Tensor
    key: Tensor
    params: dict[str, Tensor]
    memory: dict[str, Tensor]
    observation: Tensor
    ended: Tensor
    num_diverged: Tensor
    num_clipped: Tensor


class Transition(NamedTuple):
    """Result of a control step of n environments.

    Attributes:
        observation: after the step and the reset of environments that ended, `[n, k]`.
        reward: `[n]`.
        terminated: whether the episode has ended by the rules of the task, or diverged, bool `[n]`.
        truncated: whether it has ended by its length, bool `[n]`.
        final_observation: after the step, before the reset, `[n, k]`: the value after a truncation is that of
            this observation. The last finite one of an environment that diverged.
        diverged: whether an entry of state, observation or reward was not finite, or beyond 1e10 as
            in MuJoCo, bool `[n]`. The reward is zero then.
        clipped: whether an entry of the action was out of bounds, bool `[n]`.
    """

    observation: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_observation: Tensor
    diverged: Tensor
    clipped: Tensor

    @property
    def done(self) -> Tensor:
        """True if the episode has ended, bool `[n]`."""
        return self.terminated | self.truncated


torch.serialization.add_safe_globals([EnvState, Transition])


@dataclass(frozen=True, eq=False)
class Environment:
    """A task for a batch of robots; `torchsko.envs.make` makes it.

    `reset` and `step` are pure functions: states are values, which can be kept, copied and differentiated. A
    step is one kernel, built at the first call, with gradients to the state, the action and the parameters.
    The gradient is cut at resets.

    Attributes:
        task: the task.
        mech: its robot.
        num_envs: number of environments.
        seed: of the random numbers.
        autoreset: "same-step": a step resets environments that end. "next-step": the following step resets
            them, without regard to their action. "off": only `restart` does.

    Example:
        >>> import torch, torchsko as ts
        >>> env = ts.envs.make("InvertedPendulum-v5", num_envs=4)
        >>> state = env.reset()
        >>> action = torch.zeros(4, env.action_size, dtype=torch.float64, requires_grad=True)
        >>> state, transition = env.step(state, action)
        >>> transition.observation.shape, transition.reward.tolist()
        (torch.Size([4, 4]), [1.0, 1.0, 1.0, 1.0])
        >>> torch.autograd.grad(transition.observation.sum(), action)[0].shape
        torch.Size([4, 1])
    """

    task: Task
    mech: Mechanism
    num_envs: int
    seed: int = 0
    autoreset: AutoReset = "same-step"

    @computed
    def _kernels(self) -> Kernels:
        return Kernels(self.task, self.mech)

    @computed
    def _bounds(self) -> Tensor:
        """Bounds of actions, `[num_actions, 2]`."""
        return self.task.action_bounds(self.world)

    @computed
    def world(self) -> World:
        """The robot with its nominal parameters."""
        return self._kernels.world(self.mech)

    @property
    def dt(self) -> float:
        """Duration of a control step [s]."""
        return self.world.dt

    @property
    def episode_length(self) -> int:
        """Control steps after which an episode is truncated."""
        return self.task.episode_length

    @property
    def observation_size(self) -> int:
        """Numbers in an observation."""
        return self._kernels.outline.observation.shape[-1]

    @property
    def action_size(self) -> int:
        """Numbers in an action."""
        return self._bounds.shape[-2]

    @property
    def action_low(self) -> Tensor:
        """Lower bounds of actions, `[action_size]`."""
        return self._bounds[..., 0]

    @property
    def action_high(self) -> Tensor:
        """Upper bounds of actions, `[action_size]`."""
        return self._bounds[..., 1]

    def observation(self, state: EnvState) -> Tensor:
        """The observation of a state, `[n, observation_size]`."""
        return state.observation

    def reset(
        self,
        n: int | None = None,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        first: int = 0,
        random_ages: bool = False,
    ) -> EnvState:
        """Begin the first episode of all environments.

        Args:
            n: number of environments; by default ``num_envs``.
            seed: of the random numbers; by default that of the environment.
            generator: draws the seed instead.
            first: index of the first environment. Environments first to first + n - 1 are the same in every
                batch that contains them, such as those of another process.
            random_ages: begin with uniformly random ages, so that the episodes do not end together.
        """
        if generator is not None:
            seed = int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
        n = self.num_envs if n is None else n
        index = torch.arange(first, first + n, device=self.mech.device)
        key, zero = environment_keys(self.seed if seed is None else seed, index), 0 * index
        start = self._begin(key, zero)
        never = torch.zeros_like(zero, dtype=torch.bool)
        age = zero
        if random_ages:
            age = uniform_numbers(key, zero, AGE_STEP, 1, torch.float64)[:, 0]
            age = (age * self.episode_length).to(torch.int64)
        return EnvState(start.physics, age, zero, key, *start[1:], never, zero, zero)

    def restart(self, state: EnvState, mask: Tensor) -> EnvState:
        """Begin the next episode of some environments.

        Args:
            state: the state.
            mask: environments to reset, bool `[n]`.

        Returns:
            The state with the other environments unchanged. It has no gradient to those that were reset.
        """
        _check(self, "mask", mask, state, (), torch.bool)
        rows = _known_rows(mask)
        if rows is not None and not len(rows):
            return state
        episode = state.episode + mask
        state = state._replace(
            age=torch.where(mask, 0, state.age), episode=episode, ended=state.ended & ~mask
        )
        before = Beginning(state.physics, state.params, state.memory, state.observation)
        if rows is None:
            after = select(mask, self._begin(state.key, episode), before)
        else:
            start = self._begin(state.key[rows], episode[rows])
            after = pytree.tree_map(lambda x, y: x.index_copy(0, rows, y), before, start)
        return state._replace(**after._asdict())

    def step(self, state: EnvState, action: Tensor) -> tuple[EnvState, Transition]:
        """Advance all environments by a control step.

        Args:
            state: from `reset`, `restart` or `step`.
            action: `[n, action_size]`. Actuators clip it to their ranges; the reward is that of the action
                itself, as in Gymnasium. Steps with an entry out of bounds are counted.

        Returns:
            The state after the step and after the resets of ``autoreset``; and the transition.

        Raises:
            ShapeError: when the action has another shape, dtype or device.
            NonFiniteError: when an entry of the action is not finite, where its value can be read without
                waiting for a device; names the environments. Elsewhere these environments diverge.
        """
        _check(self, "action", action, state, (self.action_size,), self.mech.dtype)
        _check_finite(action)
        numbers = uniform_numbers(
            state.key, state.episode, state.age + 1, self._kernels.num_disturbances, action.dtype
        )
        after = self._kernels.step(state.physics, state.params, state.memory, action, numbers)
        diverged = ~after.finite
        last = torch.where(diverged[:, None], state.observation.detach(), after.observation)
        low, high = self._bounds.detach().unbind(-1)
        clipped = ((action < low) | (action > high)).any(-1)
        transition = Transition(
            last,
            torch.where(diverged, 0.0, after.reward),
            after.terminated | diverged,
            state.age + 1 >= self.episode_length,
            last,
            diverged,
            clipped,
        )
        following = state._replace(
            physics=after.physics,
            memory=after.memory,
            age=state.age + 1,
            observation=last,
            num_diverged=state.num_diverged + diverged,
            num_clipped=state.num_clipped + clipped,
        )
        if self.autoreset == "next-step":
            following = following._replace(ended=transition.done)
            # An environment that ended in the last step begins now: its action has no effect.
            never, none = torch.zeros_like(diverged), torch.zeros_like(transition.reward)
            idle = Transition(last, none, never, never, last, never, never)
            transition = select(state.ended, idle, transition)
            counts = {name: getattr(state, name) for name in ("num_diverged", "num_clipped")}
            following = select(state.ended, following._replace(**counts), following)
        resets = {"same-step": transition.done, "next-step": state.ended}.get(self.autoreset)
        if resets is None:
            return following, transition
        following = self.restart(following, resets)
        if self.autoreset == "next-step":
            final = torch.where(resets[:, None], following.observation, last)
            transition = transition._replace(final_observation=final)
        return following, transition._replace(observation=following.observation)

    def _begin(self, key: Tensor, episode: Tensor) -> Beginning:
        """The start of an episode of each environment, without gradients."""
        count, dtype = self._kernels.num_draws, self.mech.dtype
        with torch.no_grad():
            return self._kernels.begin(uniform_numbers(key, episode, 0, count, dtype))


def select(mask: Tensor, x: Tree, y: Tree) -> Tree:
    """The rows of ``x`` where a mask is true, and those of ``y`` elsewhere, for all tensors of a tree."""

    def chosen(a: Any, b: Any) -> Any:
        return torch.where(mask[(..., *[None] * (b.ndim - mask.ndim))], a, b)

    return pytree.tree_map(chosen, x, y)


def detached(tree: Tree) -> Tree:
    """A state without gradients to what it was computed from, or any other tree of tensors."""
    return pytree.tree_map(Tensor.detach, tree)


def _known_rows(mask: Tensor) -> Tensor | None:
    """Indices of the true entries, if they can be read without waiting for a device.

    The first one, if there is one, is repeated up to `MIN_RESTARTED`.
    """
    values = concrete_values(mask)
    if values is None:
        return None
    rows = torch.from_numpy(values.nonzero()[0])
    return torch.cat([rows, *[rows[:1]] * (MIN_RESTARTED - len(rows))])


def _check(
    env: Environment,
    name: str,
    x: object,
    state: EnvState,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    """Check the shape, dtype and device of an argument."""
    shape = (*state.age.shape, *shape)
    device = state.age.device
    if isinstance(x, Tensor) and (tuple(x.shape), x.dtype, x.device) == (shape, dtype, device):
        return
    found = f"{list(x.shape)} of {x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x)
    raise ShapeError(
        f"the {name} of {type(env.task).__name__} is {found}.",
        f"There are {len(state.age)} environments, each with one {name}.",
        f"Pass a tensor {list(shape)} of {dtype} on {device}.",
    )


def _check_finite(action: Tensor) -> None:
    """Refuse actions that are not finite, where their values can be read without waiting for a device."""
    values = concrete_values(action.isfinite().all(-1))
    if values is not None and not values.all():
        rows = [str(k) for k in range(len(values)) if not values[k]]
        raise NonFiniteError(
            f"the action of {len(rows)} environments is not finite: {name_list(rows)}.",
            "Their state would be lost.",
            "Check the weights of the policy, or replace these actions.",
        )
