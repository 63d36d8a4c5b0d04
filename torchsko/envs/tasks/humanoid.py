"""Humanoid-v5 and HumanoidStandup-v5 of Gymnasium: a humanoid walks, or stands up."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.contact.contact_step import Evaluation
from torchsko.envs.mujoco_data import Links
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, World
from torchsko.envs.tasks.gymnasium_task import HealthyTask, is_within
from torchsko.mechanism.simulation_state import State


@dataclass(frozen=True)
class Humanoid(HealthyTask):
    """Humanoid-v5. Options and their defaults are those of Gymnasium.

    Inertias, velocities and forces of bodies are those of the last stage of the step, as in Gymnasium.
    Gymnasium iterates the solver of the file to a tolerance of 1e-8, torchsko to rounding.
    """

    name: ClassVar[str] = "Humanoid-v5"
    num_hidden: ClassVar[int] = 2
    model: str = "humanoid.xml"
    frame_skip: int = 5
    forward_reward_weight: float = 1.25
    ctrl_cost_weight: float = 0.1
    contact_cost_weight: float = 5e-7
    contact_cost_range: tuple[float, float] = (-inf, 10.0)
    healthy_reward: float = 5.0
    healthy_z_range: tuple[float, float] = (1.0, 2.0)
    reset_noise_scale: float = 1e-2
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True

    def memory(self, world: World, state: State, draw: Draws) -> Memory:
        found = _measured(world.evaluate(state))
        nothing = {name: 0 * found[name] for name in ("cfrc_ext", "ctrl")}
        return {**found, **nothing, "x_before": found["x"]}

    def advance(
        self, world: World, state: State, memory: Memory, action: Tensor
    ) -> tuple[State, Memory]:
        after, last = world.step_with_evaluation(state, action)
        return after, {**_measured(last), "x_before": memory["x"]}

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        names = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
        seen = [memory[x].flatten() for x in names if getattr(self, f"include_{x}_in_observation")]
        return torch.cat([self.seen_position(world, state), world.qvel(state), *seen])

    def is_healthy(self, state: State) -> Tensor:
        return is_within(state.q[2], self.healthy_z_range)

    def speed(self, world: World, step: Step) -> Tensor:
        return (step.memory["x"] - step.memory["x_before"]) / world.dt

    def cost(self, step: Step) -> Tensor:
        return self.control_cost(step) + self.contact_cost(step)

    def control_cost(self, step: Step) -> Tensor:
        return self.ctrl_cost_weight * step.memory["ctrl"].square().sum()

    def contact_cost(self, step: Step) -> Tensor:
        """Cost of the contact forces, `[]`."""
        cost = self.contact_cost_weight * step.memory["cfrc_ext"].square().sum()
        return cost.clamp(*self.contact_cost_range)


@dataclass(frozen=True)
class HumanoidStandup(Humanoid):
    """HumanoidStandup-v5: the height is the reward, and no state ends the episode."""

    name: ClassVar[str] = "HumanoidStandup-v5"
    model: str = "humanoidstandup.xml"
    uph_cost_weight: float = 1.0
    contact_cost_weight: float = 5e-7
    terminate_when_unhealthy: bool = False

    def reward(self, world: World, step: Step) -> Tensor:
        up = self.uph_cost_weight * step.after.q[2] / world.contact.options.timestep
        return up - self.cost(step) + 1


def _measured(last: Evaluation) -> dict[str, Tensor]:
    """Fields of MuJoCo's data, the controls, and the position of the center of mass along x."""
    links, drive = Links.at(last), last.drive
    assert drive.ctrl is not None
    return {
        "cinert": links.inertias(),
        "cvel": links.velocities(),
        "qfrc_actuator": last.actuator_force[6:],
        "cfrc_ext": links.contact_forces(),
        "ctrl": drive.ctrl,
        "x": links.origin[0],
    }
