"""`Trajectory`: the states of a rollout, and the forces of its steps."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torchsko.mechanism.simulation_state import State


class Trajectory(NamedTuple):
    """States of a rollout with the start, and results of its steps: a named tuple of tensors.

    With n = steps // every, states are `[*batch, n + 1, ...]`, and results of the steps that end in the
    states after the start are `[*batch, n, ...]`. Fields that a method does not have are None. Functions that
    torch.func transforms return tensors only: return single fields there.

    Attributes:
        q: configurations, `[*batch, n + 1, num_q]`.
        qd: velocities, `[*batch, n + 1, num_dof]` [rad/s or m/s].
        t: time of the last state [s], `[*batch]`.
        forces: joint forces of the control as applied, after saturation, `[*batch, n, num_dof]` [N m or N]:
            those at the start of a step, and at its end for implicit actuators. Forces of limits are not
            included. None for a control that is a function, under a method that does not evaluate it at the
            start of a step.
        act: activations of the actuators of a `torchsko.ContactStep`, `[*batch, n + 1, m]`.
        constraint_forces: generalized forces of contact and other soft constraints at the start of each step
            of a `torchsko.ContactStep`, `[*batch, n, num_dof]` [N m or N].
        residual: largest error of the equations of motion in each step of a `torchsko.ContactStep`,
            `[*batch, n]` [N m or N].
        results: further results of a method that is a function, each `[*batch, n, *shape]`.
        memory: memory of a controller at the last state, `[*batch, ...]`; None if steps is not a multiple of
            every.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> start = ts.State(*arm.random_state(4))
        >>> trajectory = ts.rollout(arm, start, lambda t, q, qd: -2.0 * qd, steps=10)
        >>> trajectory.q.shape, trajectory.forces.shape
        (torch.Size([4, 11, 7]), torch.Size([4, 10, 7]))
        >>> trajectory.last_state.q.equal(trajectory.q[:, -1])
        True
    """

    q: Tensor
    qd: Tensor
    t: Tensor
    forces: Tensor | None = None
    act: Tensor | None = None
    constraint_forces: Tensor | None = None
    residual: Tensor | None = None
    results: tuple[Tensor, ...] = ()
    memory: Tensor | None = None

    @property
    def last_state(self) -> State:
        """The last state, from which another rollout or `torchsko.step` goes on."""
        state = State(self.q[..., -1, :], self.qd[..., -1, :], t=self.t.expand(self.q.shape[:-2]))
        return state if self.act is None else state._replace(act=self.act[..., -1, :])
