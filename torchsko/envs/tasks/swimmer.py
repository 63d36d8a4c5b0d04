"""Swimmer-v5 of Gymnasium: a chain of three links swims forward in a viscous fluid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torchsko.envs.tasks.gymnasium_task import ForwardTask


@dataclass(frozen=True)
class Swimmer(ForwardTask):
    """Swimmer-v5. Options and their defaults are those of Gymnasium."""

    name: ClassVar[str] = "Swimmer-v5"
    num_hidden: ClassVar[int] = 2
    model: str = "swimmer.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-4
    reset_noise_scale: float = 0.1
