"""A `World` whose steps are those of MuJoCo, for the evaluation of policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.contact.contact_step import Evaluation
from torchsko.envs.task import World
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.utils.optional_dependencies import require
from torchsko.utils.shapes import mapped_first


class Simulations:
    """Simulations of MuJoCo, one for each environment of a batch.

    Args:
        models: of each environment.
        frame_skip: time steps of a control step.
        mech: the robot.
    """

    def __init__(self, models: Sequence[Any], frame_skip: int, mech: Mechanism) -> None:
        self.mujoco, self.frame_skip = require("mujoco", "envs"), frame_skip
        self.rows = [(model, self.mujoco.MjData(model)) for model in models]
        name_to_id = self.mujoco.mj_name2id
        self.bodies = [
            name_to_id(models[0], self.mujoco.mjtObj.mjOBJ_BODY, name) for name in mech.body_names
        ]

    def step(self, row: int, *inputs: np.ndarray) -> np.ndarray:
        """Position, velocity and activation of MuJoCo after a control step, as one array."""
        (model, data), mujoco = self.rows[row], self.mujoco
        qpos, qvel, act, ctrl, f_ext = inputs
        data.qpos[:], data.qvel[:], data.ctrl[:] = qpos, qvel, ctrl
        data.act[:] = act[: model.na]
        if f_ext.any():
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
        for body, (moment, force) in zip(self.bodies, f_ext.reshape(-1, 2, 3), strict=True):
            R = data.xmat[body].reshape(3, 3)
            arm = data.xpos[body] - data.xipos[body]
            data.xfrc_applied[body] = np.r_[R @ force, R @ moment + np.cross(arm, R @ force)]
        for _ in range(self.frame_skip):
            mujoco.mj_step(model, data)
        return np.concatenate([data.qpos, data.qvel, data.act])


class _Step(torch.autograd.Function):
    """A control step of all simulations; it exists for batches alone."""

    @staticmethod
    def forward(simulations: Simulations, *inputs: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        (simulations, *inputs), (_, *dims) = args, in_dims
        rows = [x.double().numpy() for x in mapped_first(info.batch_size, dims, inputs)]
        after = [simulations.step(k, *(x[k] for x in rows)) for k in range(info.batch_size)]
        return torch.tensor(np.array(after), dtype=inputs[0].dtype), 0


@dataclass(frozen=True, eq=False)
class MujocoWorld(World):
    """A world in which MuJoCo simulates the robot.

    Attributes:
        simulations: of all environments.
    """

    simulations: Simulations

    def step(self, state: State, ctrl: Tensor, f_ext: Tensor | None = None) -> State:
        """The state after a control step of MuJoCo; the external force is constant in the world."""
        f_ext = state.q.new_zeros(self.mech.num_bodies, 6) if f_ext is None else f_ext
        qpos, qvel = self.qpos(state), self.qvel(state)
        after = _Step.apply(self.simulations, qpos, qvel, state.act, ctrl, f_ext)
        nq, nv = qpos.shape[-1], qvel.shape[-1]
        # Without activations a state has one number in their place.
        count = self.simulations.rows[0][0].na
        act = after[nq + nv :] if count else state.act
        at = self.state_at(after[:nq], after[nq : nq + nv])
        return State(at.q, at.qd, act, state.t + self.dt)

    def step_with_evaluation(
        self, state: State, ctrl: Tensor, f_ext: Tensor | None = None
    ) -> tuple[State, Evaluation]:
        """The state after a control step of MuJoCo, and our evaluation of the step from the same start."""
        _, evaluation = World.step_with_evaluation(self, state, ctrl, f_ext)
        return self.step(state, ctrl, f_ext), evaluation
