"""HalfCheetah-v5 of Gymnasium: a planar robot of two legs runs forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import World
from torchsko.envs.tasks.gymnasium_task import SHORT_WINDOWS, ForwardTask
from torchsko.mechanism.simulation_state import State


@dataclass(frozen=True)
class HalfCheetah(ForwardTask):
    """HalfCheetah-v5. Options and their defaults are those of Gymnasium."""

    name: ClassVar[str] = "HalfCheetah-v5"
    shac_options: ClassVar[Mapping[str, Any]] = SHORT_WINDOWS
    model: str = "half_cheetah.xml"
    frame_skip: int = 5
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1

    def initial(self, world: World, draw: Draws) -> State:
        return self.normal_start(world, draw, self.reset_noise_scale)
