"""Environments as ``VecEnv`` of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from torchsko.envs.environment import Environment
from torchsko.utils.optional_dependencies import require

require("stable_baselines3", "sb3")

from gymnasium.spaces import Box  # noqa: E402 # pyright: ignore[reportMissingImports]
from stable_baselines3.common.vec_env import VecEnv  # noqa: E402 # pyright: ignore[reportMissingImports]

Indices = int | Iterable[int] | None


class SB3VecEnv(VecEnv):
    """A vector environment of Stable-Baselines3, with same-step resets, in float32.

    Args:
        env: the environments.

    Example:
        >>> import torchsko as ts
        >>> from stable_baselines3 import PPO  # doctest: +SKIP
        >>> envs = ts.envs.SB3VecEnv(ts.envs.make("Hopper-v5", num_envs=64))  # doctest: +SKIP
        >>> model = PPO("MlpPolicy", envs).learn(10_000)  # doctest: +SKIP
    """

    def __init__(self, env: Environment) -> None:
        self.env = replace(env, autoreset="same-step")
        self.state, self.actions = self.env.reset(), np.zeros(0)
        bound = np.full(env.observation_size, np.inf, np.float32)
        low, high = (x.cpu().numpy().astype(np.float32) for x in (env.action_low, env.action_high))
        spaces = Box(-bound, bound, dtype=np.float32), Box(low, high, dtype=np.float32)
        self.render_mode = None
        super().__init__(env.num_envs, *spaces)

    def reset(self) -> np.ndarray:
        """Begin the next episode of all environments, or the first one of a seed."""
        seeds, everyone = self._seeds, torch.ones_like(self.state.ended)
        with torch.no_grad():
            if seeds and seeds[0] is not None:
                self.state = self.env.reset(seed=seeds[0])
            else:
                self.state = self.env.restart(self.state, everyone)
        self._reset_seeds()
        return _single(self.state.observation)

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions of the step."""
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Advance all environments by a control step."""
        like = self.env.mech.mass
        action = torch.as_tensor(self.actions, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            self.state, found = self.env.step(self.state, action)
        done, final = found.done.cpu().numpy(), _single(found.final_observation)
        cut = (found.truncated & ~found.terminated).cpu().numpy()
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": bool(x)} for x in cut]
        for k in np.flatnonzero(done):
            infos[k]["terminal_observation"] = final[k]
        return _single(found.observation), _single(found.reward), done, infos

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute, the same for all environments."""
        return [getattr(self, attr_name)] * len(self._chosen(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of all environments."""
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of `Environment`, the same for all environments."""
        result = getattr(self.env, method_name)(*method_args, **method_kwargs)
        return [result] * len(self._chosen(indices))

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """False for all environments."""
        return [False] * len(self._chosen(indices))

    def _chosen(self, indices: Indices) -> Sequence[int]:
        return list(self._get_indices(indices))


def _single(x: torch.Tensor) -> np.ndarray:
    return x.cpu().numpy().astype(np.float32)
