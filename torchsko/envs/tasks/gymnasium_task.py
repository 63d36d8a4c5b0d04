"""Base class of the tasks that equal Gymnasium's, with robot files of the installed package."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from torchsko.contact.contact_model import ContactModel
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Task, World
from torchsko.errors import RobotFileWarning
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.utils.optional_dependencies import require


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


def is_within(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Whether numbers are strictly between two bounds."""
    return (bounds[0] < x) & (x < bounds[1])
