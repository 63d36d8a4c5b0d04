"""The two kernels of an environment: the start of an episode, and a control step."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchsko.contact.drive import all_activations
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, Task, World
from torchsko.errors import RobotFileWarning
from torchsko.fused.fuse import fuse
from torchsko.fused.fused_call import FusedCall
from torchsko.mechanism.fields import FIELDS
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.utils.computed import computed

MAX_VALUE = 1e10
"""Bound of the entries of states, observations and rewards, beyond which a sample has diverged (MuJoCo's)."""

INPUTS = ("q", "qd", "act", "t", "warmstart")
"""Fields of a state that a step depends on."""


class Beginning(NamedTuple):
    """Start of an episode; see `EnvState`."""

    physics: State
    params: dict[str, Tensor]
    memory: dict[str, Tensor]
    observation: Tensor


class Advanced(NamedTuple):
    """Result of the kernel of a control step."""

    physics: State
    memory: dict[str, Tensor]
    observation: Tensor
    reward: Tensor
    terminated: Tensor
    finite: Tensor


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of a task, each built at its first call.

    Attributes:
        task: the task.
        mech: its robot.
    """

    captured_attributes: ClassVar = ("task", "mech")  # see `torchsko.fused.tracing.object_graph`
    task: Task
    mech: Mechanism

    def world(
        self, mech: Mechanism, params: Mapping[str, Tensor] | None = None, **fields: Any
    ) -> World:
        """The robot with parameters of an environment."""
        # The contact model is that of the nominal robot: its tensors are constants of the kernel.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RobotFileWarning)  # `make` has warned
            contact, actuators = self.task.contact(mech), self.task.actuators(mech)
        options = self.task.frame_skip, self.task.integrator
        world = World(mech, contact, actuators, *options, {}, {})
        return replace(_with_parameters(world, params or {}), **fields)

    @computed
    def _nominal_start(self) -> tuple[Beginning, int]:
        return self._begin(self.mech, None)

    @property
    def outline(self) -> Beginning:
        """The start of an episode with 1/2 for all random numbers: shapes of all tensors."""
        return self._nominal_start[0]

    @property
    def num_draws(self) -> int:
        """Random numbers that the start of an episode takes."""
        return self._nominal_start[1]

    @computed
    def num_disturbances(self) -> int:
        """Random numbers that a control step takes."""
        draw = Draws(None, self.mech.mass)
        self.task.disturbances(draw)
        return draw.count

    def begin(self, numbers: Tensor) -> Beginning:
        """The start of an episode, for uniform numbers `[n, num_draws]`."""
        return self._fused_begin(numbers)

    def step(
        self,
        physics: State,
        params: Mapping[str, Tensor],
        memory: Memory,
        action: Tensor,
        numbers: Tensor,
    ) -> Advanced:
        """A control step of all environments."""
        inputs = {f"state_{name}": getattr(physics, name) for name in INPUTS}
        # In one order, since each order of arguments has a kernel.
        inputs |= {f"param_{name}": params[name] for name in self.outline.params}
        inputs |= {f"memory_{name}": memory[name] for name in self.outline.memory}
        return self._fused_step(**inputs, action=action, numbers=numbers)

    def _begin(self, mech: Mechanism, numbers: Tensor | None) -> tuple[Beginning, int]:
        """The start of an episode, and how many random numbers it takes."""
        task, draw = self.task, Draws(numbers, mech.mass)
        world = self.world(mech)
        params = task.parameters(world, draw)
        world = self.world(mech, params, disturbances=task.disturbances(draw))
        state = task.initial(world, draw)
        state = state._replace(act=all_activations(world.mech, state.act, world.actuators))
        memory = task.memory(world, state, draw)
        observation = task.observe(world, state, memory)
        return Beginning(state, dict(params), dict(memory), observation), draw.count

    @computed
    def _fused_begin(self) -> FusedCall:
        def begin(mech: Mechanism, numbers: Tensor) -> Beginning:
            return self._begin(mech, numbers)[0]

        return fuse(begin, self.mech, shapes={"numbers": (self.num_draws,)})

    @computed
    def _fused_step(self) -> FusedCall:
        task, outline = self.task, self.outline

        def control_step(mech: Mechanism, **inputs: Tensor) -> Advanced:
            def part(prefix: str, names: Sequence[str]) -> dict[str, Tensor]:
                return {name: inputs[f"{prefix}_{name}"] for name in names}

            action, draw = inputs["action"], Draws(inputs["numbers"], mech.mass)
            params = part("param", tuple(outline.params))
            world = self.world(mech, params, disturbances=task.disturbances(draw))
            before = State(**part("state", INPUTS))
            memory = part("memory", tuple(outline.memory))
            after, memory, observation, reward, ends = outcome(task, world, before, memory, action)
            parts = (after.q, after.qd, after.act, observation, reward[None], *memory.values())
            finite = (torch.cat([x.flatten() for x in parts]).abs() < MAX_VALUE).all()
            memory = {name: memory[name] for name in outline.memory}
            return Advanced(after, memory, observation, reward, ends, finite)

        tensors = {f"state_{name}": getattr(outline.physics, name) for name in INPUTS}
        tensors |= {f"param_{name}": x for name, x in outline.params.items()}
        tensors |= {f"memory_{name}": x for name, x in outline.memory.items()}
        shapes = {name: tuple(x.shape) for name, x in tensors.items()}
        shapes |= {"action": (self.task.action_bounds(self.world(self.mech)).shape[-2],)}
        return fuse(control_step, self.mech, shapes={**shapes, "numbers": (self.num_disturbances,)})


def outcome(
    task: Task, world: World, before: State, memory: Memory, action: Tensor
) -> tuple[State, Memory, Tensor, Tensor, Tensor]:
    """State and memory after a control step, observation, reward, and whether the episode ends."""
    after, memory = task.advance(world, before, memory, action)
    observation = task.observe(world, after, memory)
    reward = task.reward(world, Step(before, after, memory, action))
    return after, memory, observation, reward, task.terminated(world, after, memory)


def _with_parameters(world: World, params: Mapping[str, Tensor]) -> World:
    """A world whose tensors are replaced by parameters of their names; see `World.params`."""
    of_robot = {name: x for name, x in params.items() if name in FIELDS}
    changes: dict[str, Any] = {"mech": world.mech.replace(**of_robot)} if of_robot else {}
    for owner in ("contact", "actuators"):
        found = {
            name.removeprefix(f"{owner}."): x
            for name, x in params.items()
            if name.startswith(f"{owner}.")
        }
        if found:
            changes[owner] = getattr(world, owner).replace(**found)
    return replace(world, **changes, params=params)
