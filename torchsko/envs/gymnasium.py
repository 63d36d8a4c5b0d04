"""Environments as `gymnasium.vector.VectorEnv`; importing this module registers the tasks with Gymnasium."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.envs.environment import Environment
from torchsko.envs.registry import make, task_names
from torchsko.errors import ShapeError
from torchsko.utils.optional_dependencies import require

gymnasium = require("gymnasium", "envs")

from gymnasium.vector import AutoresetMode, VectorEnv  # noqa: E402 - after the message on a missing extra
from gymnasium.vector.utils import batch_space  # noqa: E402

MODES = {
    "same-step": AutoresetMode.SAME_STEP,
    "next-step": AutoresetMode.NEXT_STEP,
    "off": AutoresetMode.DISABLED,
}
"""Gymnasium's names of reset modes."""


class GymnasiumVectorEnv(VectorEnv):
    """A vector environment of Gymnasium, with NumPy arrays in and out, without gradients.

    ``gymnasium.make_vec("torchsko/Hopper-v5", num_envs=64)`` makes one after this module was imported, as by
    ``ts.envs.GymnasiumVectorEnv``; options are those of `torchsko.envs.make`. The state is ``state``.

    In the mode of same-step resets, ``info["final_obs"]`` has the observations before the reset of all
    environments, and ``info["_final_obs"]`` those that were reset. ``info["diverged"]`` is that of a
    `Transition`. ``reset(options={"reset_mask": mask})`` begins new episodes of some environments.

    Args:
        env: the environments.

    Example:
        >>> import torchsko as ts
        >>> envs = ts.envs.GymnasiumVectorEnv(ts.envs.make("InvertedPendulum-v5", num_envs=3))
        >>> observation, info = envs.reset(seed=1)
        >>> observation, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
        >>> observation.shape, reward.shape
        ((3, 4), (3,))
    """

    def __init__(self, env: Environment) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.state = env.reset()
        self.metadata = {"autoreset_mode": MODES[env.autoreset], "render_fps": round(1 / env.dt)}
        dtype = _array(env.mech.mass).dtype
        bound = np.full(env.observation_size, np.inf, dtype)
        self.single_observation_space = gymnasium.spaces.Box(-bound, bound, dtype=dtype)
        low, high = (_array(x).astype(np.float32) for x in (env.action_low, env.action_high))
        self.single_action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes; with a seed the first ones of this seed.

        Args:
            seed: of the random numbers.
            options: "reset_mask", a bool array [num_envs], selects environments.

        Raises:
            ShapeError: when the mask is no bool array of this shape.
        """
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        if not isinstance(mask, np.ndarray) or mask.dtype != bool or len(mask) != self.num_envs:
            raise ShapeError(
                f"reset_mask is {mask!r}.",
                "It selects the environments to reset.",
                f"Pass a NumPy array of bool of shape ({self.num_envs},).",
            )
        with torch.no_grad():
            if seed is not None:
                self.state = self.env.reset(seed=seed)
            else:
                rows = torch.as_tensor(mask, device=self.state.age.device)
                self.state = self.env.restart(self.state, rows)
        return _array(self.state.observation), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance all environments by a control step."""
        like = self.env.mech.mass
        action = torch.as_tensor(np.asarray(actions), dtype=like.dtype, device=like.device)
        with torch.no_grad():
            self.state, transition = self.env.step(self.state, action)
        info: dict[str, Any] = {"diverged": _array(transition.diverged)}
        if self.env.autoreset == "same-step":
            info["final_obs"] = _array(transition.final_observation)
            info["_final_obs"] = _array(transition.done)
        parts = (
            transition.observation,
            transition.reward,
            transition.terminated,
            transition.truncated,
        )
        return *map(_array, parts), info  # type: ignore[return-value]


def _array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().numpy()


def make_vector_env(num_envs: int = 1, *, task: str, **options: Any) -> GymnasiumVectorEnv:
    """The entry point of Gymnasium; see `torchsko.envs.make`.

    Args:
        num_envs: number of environments.
        task: its name.
        **options: of `torchsko.envs.make`.
    """
    return GymnasiumVectorEnv(make(task, num_envs, **options))


for _name in task_names():
    _entry = f"{__name__}:make_vector_env"
    gymnasium.register(f"torchsko/{_name}", vector_entry_point=_entry, kwargs={"task": _name})
