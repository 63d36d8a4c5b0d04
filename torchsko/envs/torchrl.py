"""Environments as ``EnvBase`` of TorchRL."""

from __future__ import annotations

from dataclasses import replace

import torch

from torchsko.envs.environment import Environment
from torchsko.utils.optional_dependencies import require

require("torchrl", "torchrl")

from tensordict import TensorDict, TensorDictBase  # noqa: E402 # pyright: ignore[reportMissingImports]
from torchrl.data import Binary, Bounded, Composite, Unbounded  # noqa: E402 # pyright: ignore[reportMissingImports]
from torchrl.envs import EnvBase  # noqa: E402 # pyright: ignore[reportMissingImports]

FLAGS = ("done", "terminated", "truncated")


class TorchRLEnv(EnvBase):
    """An environment of TorchRL with the batch [num_envs]: resets by ``"_reset"``, and gradients.

    Rollouts and collectors reset environments that end. A rollout has gradients to its actions, and to the
    tensors of ``state``, the state of the environments; set ``env.state = ts.envs.detached(env.state)``
    between updates.

    Args:
        env: the environments; their own resets are turned off.

    Example:
        >>> import torchsko as ts
        >>> env = ts.envs.TorchRLEnv(ts.envs.make("Hopper-v5", num_envs=8))  # doctest: +SKIP
        >>> env.rollout(10, break_when_any_done=False)["next", "reward"].shape  # doctest: +SKIP
        torch.Size([8, 10, 1])
    """

    def __init__(self, env: Environment) -> None:
        self.env = replace(env, autoreset="off")
        n, dtype, device = env.num_envs, env.mech.dtype, env.mech.device
        batch, kind = torch.Size([n]), {"dtype": dtype, "device": device}
        super().__init__(device=device, batch_size=batch)
        seen = Unbounded(torch.Size([n, env.observation_size]), **kind)
        self.observation_spec = Composite({"observation": seen}, shape=batch)
        low, high = (x.expand(n, -1) for x in (env.action_low, env.action_high))
        self.action_spec = Bounded(low, high, shape=torch.Size([n, env.action_size]), **kind)
        column = torch.Size([n, 1])
        self.reward_spec = Unbounded(column, **kind)
        done = {name: Binary(1, column, dtype=torch.bool, device=device) for name in FLAGS}
        self.done_spec = Composite(done, shape=batch)
        self.state = self.env.reset()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            mask = torch.ones_like(self.state.ended)
        self.state = self.env.restart(self.state, mask.reshape(self.batch_size))
        none = torch.zeros(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        flags = {name: none.clone() for name in FLAGS}
        return TensorDict({"observation": self.state.observation, **flags}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.state, found = self.env.step(self.state, tensordict["action"])
        rows = {name: getattr(found, name)[:, None] for name in ("reward", *FLAGS)}
        return TensorDict({"observation": found.observation, **rows}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        self.state = self.env.reset(seed=seed)
