"""Rollouts: a mechanism moves under a control, and gradients pass through every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from torchsko.algebra.tree import unknown_name
from torchsko.dynamics import forward_dynamics, refuse_singular
from torchsko.errors import ShapeError, TorchskoError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import broadcasts, check_state
from torchsko.rollout.integrators import INTEGRATORS, Accelerate, Step

Policy = Callable[[float, Tensor, Tensor], Tensor]


class Layer(Protocol):
    """Anything that gives a mechanism, such as `torchsko.Dynamics`."""

    def mechanism(self) -> Mechanism:
        """The mechanism with the current values."""
        ...


@runtime_checkable
class Controller(Protocol):
    """A control with a memory (an integral, a hidden state), sampled once a step and held over it."""

    def start(self, q: Tensor, qd: Tensor) -> Tensor:
        """The memory at the start, `[*batch, ...]`."""
        ...

    def act(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Joint forces `[*batch, num_dof]` from t [s] to t + dt, and the memory at t + dt."""
        ...


def rollout(
    mech: Mechanism | Layer,
    q: Tensor,
    qd: Tensor,
    control: Tensor | Policy | Controller | None = None,
    steps: int = 500,
    dt: float = 2e-3,
    method: str | Step = "semi_implicit_euler",
    *,
    checkpoint: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Simulate a mechanism under a control.

    Batch dimensions of the mechanism, the state and the control broadcast together. Gradients, in
    reverse and in forward mode, reach all of them.

    Args:
        mech: a mechanism, or a `Dynamics` layer, whose values are read once.
        q: start configuration, `[*batch, num_q]`.
        qd: start velocity, `[*batch, num_dof]` [rad/s or m/s].
        control: joint forces [N m or N]. A tensor `[num_dof]` is constant, and so is one
            `[*batch, num_dof]` with the batch dimensions of the state; `[*batch, steps, num_dof]` is
            held over each step (`steps` may be 1: constant). A function or module is
            called as control(t, q, qd), t in seconds, at every evaluation of the dynamics (four
            times a step in "rk4"), and returns `[*batch, num_dof]`. A `Controller`, such as
            `torchsko.rollout.motor.MotorControl`, acts once a step and remembers. None: no force.
        steps: number of time steps.
        dt: time step [s].
        method: "semi_implicit_euler" (order 1, one evaluation a step, damping and dry friction implicit:
            stable at any step), "rk4" (order 4, four evaluations), "newmark" (order 2, four
            evaluations), both with explicit damping, or a function like those in
            `torchsko.rollout.integrators`. How well each keeps energy: ``benchmarks/energy.py``.
        checkpoint: keep only every so many steps for the backward pass and compute those in between
            again: memory for steps / checkpoint + checkpoint steps instead of all, for one more
            forward pass. Reverse mode by ``backward`` only. Best near the square root of `steps`.

    Returns:
        Configurations `[*batch, steps + 1, num_q]` and velocities `[*batch, steps + 1, num_dof]`,
        the start included.

    Raises:
        ShapeError: when a state or the control does not fit the mechanism, or the control could be
            both constant and a series, because the batch is as long as the rollout.
        MechanismError: when a joint's hinge inertia vanishes; names the joints.
        TorchskoError: on an unknown method, or steps, dt or checkpoint out of range.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(16)
        >>> qs, qds = ts.rollout(arm, q, qd, lambda t, q, qd: -5.0 * qd, steps=10)
        >>> qs.shape
        torch.Size([16, 11, 7])
    """
    robot = mech if isinstance(mech, Mechanism) else mech.mechanism()
    check_state(robot, q=q, qd=qd)
    refuse_singular(robot)
    _check_numbers(steps, dt, checkpoint)
    step = _step(method)
    batch = torch.broadcast_shapes(q.shape[:-1], qd.shape[:-1], robot.batch_shape)
    forces = _forces(robot, control, steps, batch)
    if isinstance(forces, Tensor):
        batch = torch.broadcast_shapes(batch, forces.shape[:-2])
    q, qd = q.expand(*batch, robot.num_q), qd.expand(*batch, robot.num_dof)

    def segment(
        first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        qs, qds = [], []
        for k in range(first, last):
            if isinstance(forces, Controller):
                tau, memory = forces.act(k * dt, dt, q, qd, memory)
                held = tau[..., None, :]
            else:
                held = forces
            q, qd = step(robot, _accelerate(held, k), k * dt, q, qd, dt)
            qs.append(q)
            qds.append(qd)
        return torch.stack(qs, -2), torch.stack(qds, -2), memory

    qs, qds = [q[..., None, :]], [qd[..., None, :]]
    memory = forces.start(q, qd) if isinstance(forces, Controller) else q[..., :0]
    stride = steps if checkpoint is None else checkpoint
    for first in range(0, steps, max(stride, 1)):
        last, start = min(first + stride, steps), (qs[-1][..., -1, :], qds[-1][..., -1, :], memory)
        q_part, qd_part, memory = (
            segment(first, last, *start)
            if checkpoint is None
            else recompute(segment, first, last, *start, use_reentrant=False)
        )
        qs.append(q_part)
        qds.append(qd_part)
    return torch.cat(qs, -2), torch.cat(qds, -2)


def _accelerate(control: Tensor | Policy, step: int) -> Accelerate:
    """Forward dynamics under the control of one step."""

    def accelerate(
        mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
    ) -> Tensor:
        if isinstance(control, Tensor):
            tau = control[..., step if control.shape[-2] > 1 else 0, :]
        else:
            tau = control(t, q, qd)
        qdd = forward_dynamics(mech, q, qd, tau if force is None else tau + force)
        if qdd.shape != qd.shape:
            raise ShapeError(
                f"the control returned joint forces of shape {list(tau.shape)}, the state has the "
                f"batch shape {list(q.shape[:-1])}.\n"
                "A rollout keeps its batch shape.\n"
                "Expand q and qd to the batch of the control before the rollout."
            )
        return qdd

    return accelerate


def _forces(
    mech: Mechanism, control: Tensor | Policy | Controller | None, steps: int, batch: torch.Size
) -> Tensor | Policy | Controller:
    """A control as a function, or as a tensor `[*batch, steps or 1, num_dof]`."""
    if control is None:
        return mech.damping.new_zeros(1, mech.num_dof)
    if callable(control) or isinstance(control, Controller):
        return control
    check_state(mech, control=control)
    shape = tuple(control.shape[:-1])
    constant = shape in ((), tuple(batch))
    series = bool(shape) and shape[-1] in (1, steps) and broadcasts(shape[:-1], tuple(batch))
    if constant and series and shape[-1] != 1:
        raise ShapeError(
            f"control has shape {list(control.shape)}: a constant for each of {shape[-1]} samples, or "
            f"a series of {steps} steps.\n"
            "The batch is as long as the rollout, so its shape does not tell.\n"
            "Pass control[..., None, :] for constants, control[None] for one series."
        )
    if not (constant or series):
        raise ShapeError(
            f"control has shape {list(control.shape)} for {steps} steps and the batch {list(batch)}.\n"
            "It is constant for each sample, or its dimension before the last is time.\n"
            f"Pass [*batch, {mech.num_dof}] or [*batch, {steps}, {mech.num_dof}]."
        )
    return control[..., None, :] if constant else control


def _check_numbers(steps: int, dt: float, checkpoint: int | None) -> None:
    for name, value, fits, advice in (
        ("steps", steps, steps >= 0, "steps=500"),
        ("dt", dt, dt > 0, "dt=2e-3"),
        ("checkpoint", checkpoint, checkpoint is None or checkpoint > 0, "checkpoint=20, or None"),
    ):
        if not fits:
            raise TorchskoError(
                f"{name} is {value}.\nTime runs forward, in whole steps.\nPass {advice}, say."
            )


def _step(method: str | Step) -> Step:
    if not isinstance(method, str):
        return method
    if method not in INTEGRATORS:
        raise TorchskoError(unknown_name("method", method, tuple(INTEGRATORS)))
    return INTEGRATORS[method]
