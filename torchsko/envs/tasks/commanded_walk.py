"""Base class of robots with legs that follow velocity commands by a gait with a clock.

Each term of the reward has a useful gradient everywhere. Errors of velocity count in proportion:
exp(-error^2) of Rudin et al. 2021, "Learning to walk in minutes using massively parallel deep reinforcement
learning", is flat far from the command. A clock determines when a foot is up, since air times of feet jump at
contact (Siekmann et al. 2021, "Sim-to-real learning of all common bipedal gaits via periodic reward
composition").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchsko.envs.blocks.actions import scaled
from torchsko.envs.blocks.disturbances import occasional, push
from torchsko.envs.blocks.observations import base_velocity, projected_gravity
from torchsko.envs.blocks.rewards import pseudo_huber
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, Task, World
from torchsko.mechanism.simulation_state import State
from torchsko.verbs.frames import frame_pose


@dataclass(frozen=True)
class CommandedWalk(Task):
    """Joint targets follow commands of forward, sideward and turning velocity.

    An action of 1 moves a target by ``action_scale`` from `reference`. Commands change every
    ``command_time`` seconds on average; every tenth one is to stand. Noise and pushes are off by default.

    Attributes:
        command_range: largest commands [m/s, m/s, rad/s].
        command_time: mean time between commands [s].
        action_scale: for the joints of one leg [rad].
        observation_noise: standard deviation of the noise of sensors.
        push_force: of a push during one control step [N].
        push_time: mean time between pushes [s].
        start_noise: bound of the noise of joint angles at the start [rad].
        stand_height: of the base above the ground [m].
        period: of the gait [s].
        swing_height: largest height of a foot [m].
    """

    shac_options: ClassVar[Mapping[str, Any]] = {
        "horizon": 24, "log_std": -1.5, "gamma": 0.99, "final_gamma": 0.99, "clip": 100.0,
        "critic_rate": 2e-3, "critic_epochs": 8,
    }  # fmt: skip
    base: ClassVar[str]
    feet: ClassVar[tuple[str, ...]]
    """Frames of the feet."""
    radius: ClassVar[float]
    """Height of these frames in stance [m]."""
    standing: ClassVar[tuple[float, ...]]
    """Joint angles of the standing pose [rad]."""
    offsets: ClassVar[tuple[float, ...]]
    """When feet lift, as a part of the period."""
    command_range: tuple[float, float, float] = (1.0, 0.4, 1.0)
    command_time: float = 8.0
    action_scale: tuple[float, ...] = ()
    observation_noise: float = 0.0
    push_force: float = 0.0
    push_time: float = 4.0
    start_noise: float = 0.1
    stand_height: float = 0.0
    period: float = 0.4
    swing_height: float = 0.06

    @property
    def num_joints(self) -> int:
        """Number of joints."""
        return len(self.standing)

    def action_bounds(self, world: World) -> Tensor:
        return world.mech.mass.new_tensor([[-1.0, 1.0]] * self.num_joints)

    def disturbances(self, draw: Draws) -> Memory:
        scale = draw.uniform() > 0.1
        command = torch.cat([draw.uniform(-x, x) for x in self.command_range]) * scale
        drawn = {"command": command, "chance": draw.uniform()}
        if self.observation_noise:
            drawn["noise"] = draw.normal(9 + 2 * self.num_joints)
        if self.push_force:
            angle = draw.uniform(0.0, 2 * torch.pi)
            drawn["push"] = torch.cat([angle.cos(), angle.sin(), 0 * angle])
            drawn["push_chance"] = draw.uniform()
        return drawn

    def stand(self, world: World) -> Tensor:
        """Joint targets of the standing pose, `[num_joints]` [rad]."""
        return world.mech.mass.new_tensor(self.standing)

    def reference(self, world: World, memory: Memory) -> Tensor:
        """Joint targets of the action 0, `[num_joints]` [rad]; by default the standing pose."""
        return self.stand(world)

    def initial(self, world: World, draw: Draws) -> State:
        noise = draw.uniform(-self.start_noise, self.start_noise, self.num_joints)
        joints = self.stand(world) + noise
        q = torch.cat([world.mech.initial()[:7], joints])
        q = torch.cat([q[:2], q[2:3] - self.foot_heights(world, q).amin(), q[3:]])
        return State(q, draw.uniform(-0.05, 0.05, world.mech.num_dof))

    def memory(self, world: World, state: State, draw: Draws) -> Memory:
        nothing = state.q.new_zeros(self.num_joints)
        command, phase = world.disturbances["command"], draw.uniform()
        return {"command": command, "phase": phase, "action": nothing, "action_before": nothing}

    def advance(
        self, world: World, state: State, memory: Memory, action: Tensor
    ) -> tuple[State, Memory]:
        center, random = self.reference(world, memory), world.disturbances
        legs = self.num_joints // len(self.action_scale)
        ctrl = scaled(action, center, center.new_tensor(self.action_scale * legs))
        f_ext = None
        if self.push_force:
            is_pushed = random["push_chance"] < world.dt / self.push_time
            f_ext = push(world, state, self.base, self.push_force * random["push"] * is_pushed)
        after = world.step(state, ctrl, f_ext)
        chance = world.dt / self.command_time
        command = occasional(chance, random["chance"], random["command"], memory["command"])
        phase = memory["phase"] + world.dt / self.period
        actions = {"action": action, "action_before": memory["action"]}
        return after, {"command": command, "phase": phase, **actions}

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        omega, v = base_velocity(world, state, self.base)
        down = projected_gravity(world, state, self.base)
        joints = [state.q[7:] - self.stand(world), 0.1 * state.qd[6:]]
        sensed = torch.cat([v, 0.3 * omega, down, *joints])
        if self.observation_noise:
            sensed = sensed + self.observation_noise * world.disturbances["noise"]
        angle = 2 * torch.pi * memory["phase"]
        known = [memory["command"], memory["action"], angle.cos(), angle.sin(), self.swing(memory)]
        return torch.cat([sensed, *known, *self.scan(world, state)])

    def swing(self, memory: Memory) -> Tensor:
        """Heights of the feet that the gait has now, lower for slow commands, `[feet]` [m]."""
        offset, scale = (memory["phase"].new_tensor(x) for x in (self.offsets, (1.0, 1.0, 0.3)))
        speed = (scale * memory["command"]).square().sum()
        height = self.swing_height * speed / (speed + 0.1**2)
        return height * (2 * torch.pi * (memory["phase"] + offset)).sin().clamp(min=0)

    def reward(self, world: World, step: Step) -> Tensor:
        memory, command, q = step.memory, step.memory["command"], step.after.q
        omega, v = base_velocity(world, step.after, self.base)
        down = projected_gravity(world, step.after, self.base)
        follows = 2.0 * pseudo_huber(v[:2] - command[:2], 0.1)
        turns = pseudo_huber(omega[2:] - command[2:], 0.2)
        steady = v[2].square() + 0.05 * omega[:2].square().sum() + 5.0 * down[:2].square().sum()
        smooth = 0.02 * (memory["action"] - memory["action_before"]).square().sum()
        pose = 0.1 * (q[7:] - self.stand(world)).square().sum()
        height = self.height(world, step.after) - self.stand_height
        lift = self.foot_heights(world, q) - self.swing(memory)
        gait = 10.0 * height.square() + 100.0 * lift.square().sum()
        return 2.0 - follows - turns - steady - smooth - pose - gait

    def terminated(self, world: World, state: State, memory: Memory) -> Tensor:
        falls = projected_gravity(world, state, self.base)[2] > -0.5
        return falls | (self.height(world, state) < 0.4 * self.stand_height)

    def height(self, world: World, state: State) -> Tensor:
        """Height of the base above the ground, `[]` [m]."""
        position = frame_pose(world.mech, state.q, self.base).position
        return position[2] - self.ground_heights(world, position[None])[0]

    def foot_heights(self, world: World, q: Tensor) -> Tensor:
        """Heights of the feet above the ground, zero in stance, `[feet]` [m]."""
        feet = frame_pose(world.mech, q, self.feet).position
        return feet[:, 2] - self.ground_heights(world, feet) - self.radius

    def ground_heights(self, world: World, points: Tensor) -> Tensor:
        """Heights of the ground below points, `[k]` [m]."""
        return torch.zeros_like(points[:, 2])

    def scan(self, world: World, state: State) -> list[Tensor]:
        """Observations of the ground."""
        return []
