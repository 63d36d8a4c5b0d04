"""Base class of the tasks that equal Gymnasium's, with robot files of the installed package."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchsko.contact.contact_model import ContactModel
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, Task, World
from torchsko.errors import RobotFileWarning
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.utils.optional_dependencies import require

SHORT_WINDOWS: Mapping[str, Any] = {"horizon": 8, "critic_epochs": 2, "critic_rate": 1e-3}
"""Options of SHAC that change the policy more often. A hopper keeps standing with them."""


@dataclass(frozen=True)
class GymnasiumTask(Task):
    """A task of Gymnasium. Its ``model`` is the name of a file of the package, or a path with a folder."""

    def mechanism(self, dtype: torch.dtype, device: torch.device | str) -> Mechanism:
        path = Path(self.model)
        if path.name == str(path):
            package = Path(str(require("gymnasium", "envs").__file__)).parent
            path = package / "envs" / "mujoco" / "assets" / path
        return Task.mechanism(replace(self, model=path), dtype, device)

    def contact(self, mech: Mechanism) -> ContactModel:
        with warnings.catch_warnings():
            # MuJoCo uses longer time constants as well, without a warning.
            warnings.simplefilter("ignore", RobotFileWarning)
            return Task.contact(self, mech)

    def uniform_start(self, world: World, draw: Draws, scale: float) -> State:
        """The initial state of the file, with uniform noise in MuJoCo's coordinates."""
        qpos = world.mujoco.q_to(world.mech.initial())
        qpos = qpos + draw.uniform(-scale, scale, world.mujoco.num_q)
        return world.state_at(qpos, draw.uniform(-scale, scale, world.mujoco.num_dof))

    def normal_start(self, world: World, draw: Draws, scale: float) -> State:
        """The initial state of the file, with uniform noise of positions and normal one of velocities."""
        qpos = world.mujoco.q_to(world.mech.initial())
        qpos = qpos + draw.uniform(-scale, scale, world.mujoco.num_q)
        return world.state_at(qpos, scale * draw.normal(world.mujoco.num_dof))


@dataclass(frozen=True)
class ForwardTask(GymnasiumTask):
    """A task that rewards the speed along x less the cost of the action."""

    num_hidden: ClassVar[int] = 1
    """Leading coordinates that the observation excludes."""

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 1e-3
    reset_noise_scale: float = 5e-3
    exclude_current_positions_from_observation: bool = True

    def initial(self, world: World, draw: Draws) -> State:
        return self.uniform_start(world, draw, self.reset_noise_scale)

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        return torch.cat([self.seen_position(world, state), world.qvel(state)])

    def seen_position(self, world: World, state: State) -> Tensor:
        """Coordinates that the observation includes."""
        first = self.num_hidden if self.exclude_current_positions_from_observation else 0
        return world.qpos(state)[first:]

    def reward(self, world: World, step: Step) -> Tensor:
        return self.forward_reward_weight * self.speed(world, step) - self.cost(step)

    def speed(self, world: World, step: Step) -> Tensor:
        """Speed along x, `[]` [m/s]."""
        return (step.after.q[0] - step.before.q[0]) / world.dt

    def cost(self, step: Step) -> Tensor:
        """Costs, which the reward is reduced by, `[]`."""
        return self.control_cost(step)

    def control_cost(self, step: Step) -> Tensor:
        """Cost of the action, `[]`."""
        return self.ctrl_cost_weight * step.action.square().sum()


@dataclass(frozen=True)
class HealthyTask(ForwardTask):
    """A forward task that rewards each step in a healthy state, and may end in any other one."""

    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float] = (0.0, inf)

    def is_healthy(self, state: State) -> Tensor:
        """True if a state is healthy, bool `[]`."""
        raise NotImplementedError

    def reward(self, world: World, step: Step) -> Tensor:
        healthy = torch.where(self.is_healthy(step.after), self.healthy_reward, 0.0)
        return ForwardTask.reward(self, world, step) + healthy

    def terminated(self, world: World, state: State, memory: Memory) -> Tensor:
        return ~self.is_healthy(state) & self.terminate_when_unhealthy


def is_within(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """True if numbers are strictly between two bounds."""
    return (bounds[0] < x) & (x < bounds[1])
