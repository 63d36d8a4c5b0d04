"""A task: a robot with an observation, a reward, a termination, a start and random parameters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.bridge.conventions.conversion import Conventions, conventions
from torchsko.contact.contact_fields import PARAMETER_DIMS
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.contact_step import Evaluation, step, step_with_evaluation
from torchsko.contact.drive import default_actuators
from torchsko.contact.randomize import vary_robots
from torchsko.envs.random_numbers import Draws
from torchsko.errors import MechanismError, RobotFileWarning
from torchsko.io.loading.files import load
from torchsko.mechanism.fields import FIELDS
from torchsko.mechanism.manifold import integrate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.sensing.sensor_inputs import accelerations, inputs_at
from torchsko.verbs.randomize import Range

Memory = Mapping[str, Tensor]
"""Tensors that a task keeps from step to step, by name."""


class Step(NamedTuple):
    """A control step, as `Task.reward` takes it.

    Attributes:
        before: state of the robot at its start.
        after: state at its end.
        memory: after the step.
        action: `[num_actions]`.
    """

    before: State
    after: State
    memory: Memory
    action: Tensor


@dataclass(frozen=True, eq=False)
class World:
    """The robot of one environment with its parameters, as the methods of a `Task` take it.

    Attributes:
        mech: the robot, with the parameters of this environment.
        contact: its contact model.
        actuators: None if actions are joint forces.
        frame_skip: time steps of a control step.
        integrator: see `torchsko.step`.
        params: tensors of this environment, drawn at its reset. "mass" and other names of fields replace
            those of ``mech``, "contact.friction" those of ``contact``, "actuators.gain" those of
            ``actuators``; other names are for the task.
        disturbances: random tensors of this control step, from `Task.disturbances`.
    """

    mech: Mechanism
    contact: ContactModel
    actuators: Actuators | None
    frame_skip: int
    integrator: str | None
    params: Mapping[str, Tensor]
    disturbances: Mapping[str, Tensor]

    @property
    def dt(self) -> float:
        """Duration of a control step [s]."""
        return self.contact.options.timestep * self.frame_skip

    @property
    def mujoco(self) -> Conventions:
        """Conversion to the coordinates of MuJoCo."""
        return conventions("mujoco", self.mech)

    def step(self, state: State, ctrl: Tensor, f_ext: Tensor | None = None) -> State:
        """The state after a control step; see `torchsko.step`.

        Args:
            state: at its start.
            ctrl: controls, `[num_controls]`.
            f_ext: external force on each body, `[num_bodies, 6]`, in the body frame at its origin.
        """
        return step(self.mech, state, ctrl, self.actuators, **self._options(f_ext))

    def step_with_evaluation(
        self, state: State, ctrl: Tensor, f_ext: Tensor | None = None
    ) -> tuple[State, Evaluation]:
        """The result of `step`, and the evaluation that MuJoCo's data have after ``mj_step``.

        See `torchsko.envs.mujoco_data` for these data.
        """
        return step_with_evaluation(self.mech, state, ctrl, self.actuators, **self._options(f_ext))

    def evaluate(self, state: State) -> Evaluation:
        """Accelerations at a state without controls, as after ``mj_forward``."""
        drive, state, _ = inputs_at(
            self.mech, state, None, self.actuators, self.contact, None, None
        )
        return Evaluation(drive, state, accelerations(drive, state, None))

    def _options(self, f_ext: Tensor | None) -> dict[str, Any]:
        steps = {"integrator": self.integrator, "substeps": self.frame_skip}
        return {"contact": self.contact, "f_ext": f_ext, **steps}

    def qpos(self, state: State) -> Tensor:
        """Configuration in MuJoCo's coordinates."""
        return self.mujoco.q_to(state.q)

    def qvel(self, state: State) -> Tensor:
        """Velocity in MuJoCo's coordinates."""
        return self.mujoco.qd_to(state.q, state.qd)

    def state_at(self, qpos: Tensor, qvel: Tensor) -> State:
        """The state of a configuration and a velocity in MuJoCo's coordinates; quaternions have unit norm."""
        q = integrate(self.mech, self.mujoco.q_from(qpos), qpos.new_zeros(self.mech.num_dof))
        count = 0 if self.actuators is None else len(self.actuators.activation_names)
        return State(q, self.mujoco.qd_from(q, qvel), q.new_zeros(count))


@dataclass(frozen=True)
class Task:
    """Base class of tasks: derive a frozen dataclass from it, whose fields are the options of the task.

    Methods see one environment: tensors without batch dimensions. They are traced into one kernel, as
    functions of `torchsko.fuse`: no branch depends on the value of a tensor, and nothing is in place.

    Attributes:
        model: path of a robot file, or its text.
        frame_skip: time steps of a control step.
        integrator: see `torchsko.step`; by default that of the file.
        episode_length: control steps after which an episode is truncated.
        ranges: lower and upper bounds of random parameters of each episode, by the names of
            `torchsko.randomize`: those of the robot, its contact and its actuators.
        shac_options: options of `torchsko.envs.SHAC` that suit the task better than the defaults.
    """

    name: ClassVar[str] = ""
    shac_options: ClassVar[Mapping[str, Any]] = {}
    model: str | Path = field(default="", repr=False)
    frame_skip: int = 1
    integrator: str | None = None
    episode_length: int = 1000
    ranges: Mapping[str, Range] = field(default_factory=dict)

    def mechanism(self, dtype: torch.dtype, device: torch.device | str) -> Mechanism:
        """The robot; by default that of ``model``, with soft equalities of joints as in MuJoCo."""
        with warnings.catch_warnings():
            # Parts that rollouts lack act in steps; `make` refuses those that steps lack.
            only_rollouts = "ts.forward_dynamics and ts.rollout of"
            warnings.filterwarnings("ignore", only_rollouts, RobotFileWarning)
            return load(self.model, mimic="independent", dtype=dtype, device=device)

    def contact(self, mech: Mechanism) -> ContactModel:
        """The contact model; by default that of the file."""
        return ContactModel.of(mech)

    def actuators(self, mech: Mechanism) -> Actuators | None:
        """The actuators; by default those of the file."""
        return default_actuators(mech)

    def action_bounds(self, world: World) -> Tensor:
        """Bounds of actions, `[num_actions, 2]`; by default those of the controls."""
        if world.actuators is None:
            raise MechanismError(
                f"the robot of the task {type(self).__name__} has no actuators.",
                "Actions are controls of actuators.",
                "Add actuators to its file, or override Task.actuators.",
            )
        return world.actuators.control_range

    def parameters(self, world: World, draw: Draws) -> Memory:
        """Parameters of an environment at its reset, see ``World.params``; by default those of ``ranges``."""

        def uniform(shape: Sequence[int]) -> Tensor:
            return draw.uniform(size=prod(shape)).reshape(*shape)

        ranges = self.ranges
        robots = vary_robots(world.mech, (), ranges, uniform, world.contact, world.actuators)
        owners = {
            "": (FIELDS, world.mech, robots.mech),
            "contact.": (PARAMETER_DIMS, world.contact, robots.contact),
            "actuators.": (("transmission", "gain", "bias"), world.actuators, robots.actuators),
        }
        return {
            prefix + name: getattr(after, name)
            for prefix, (names, before, after) in owners.items()
            if before is not after
            for name in names
            if getattr(after, name) is not getattr(before, name)
        }

    def disturbances(self, draw: Draws) -> Memory:
        """Random tensors of each control step, such as pushes and noise of sensors."""
        return {}

    def initial(self, world: World, draw: Draws) -> State:
        """The state after a reset."""
        raise NotImplementedError

    def memory(self, world: World, state: State, draw: Draws) -> Memory:
        """Tensors that the task keeps from step to step, at the reset: a command, the last action."""
        return {}

    def advance(
        self, world: World, state: State, memory: Memory, action: Tensor
    ) -> tuple[State, Memory]:
        """State and memory after a control step; by default the action is the control."""
        return world.step(state, action), memory

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        """The observation, `[num_observations]`."""
        raise NotImplementedError

    def reward(self, world: World, step: Step) -> Tensor:
        """Reward of a control step, `[]`."""
        raise NotImplementedError

    def terminated(self, world: World, state: State, memory: Memory) -> Tensor:
        """True if the episode ends in this state, bool `[]`; by default never."""
        return torch.zeros((), dtype=torch.bool, device=state.q.device)
