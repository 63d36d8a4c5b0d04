"""Rollouts: simulation of a mechanism under a control, differentiable through every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast, overload

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, fused_methods_of
from torchsko.mechanism.state import check_state
from torchsko.rollout.argument_checks import (
    check_counts,
    check_dt,
    check_memory_steps,
    check_start,
    resolve_step,
)
from torchsko.rollout.binomial import Binomial
from torchsko.rollout.controls import Controller, Effort, Policy, check_control
from torchsko.rollout.early_termination import check_lengths
from torchsko.rollout.external import Wrenches, check_wrenches, with_checks
from torchsko.rollout.finite_checks import report_nonfinite
from torchsko.rollout.fused_rollout import has_trajectory_kernel, run_fused
from torchsko.rollout.limit_springs import LimitSprings, check_limits, require_implicit_damping
from torchsko.rollout.simulation import Simulation
from torchsko.rollout.step import Step
from torchsko.utils.shapes import broadcast_shapes
from torchsko.verbs.dynamics import refuse_singular


@overload
def rollout(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    control: Tensor | Policy | Controller | None = None,
    steps: int = 500,
    dt: float | Tensor = 2e-3,
    method: str | Step = "semi_implicit_euler",
    *,
    effort: Effort = None,
    limits: LimitSprings | None = None,
    f_ext: Tensor | Wrenches | None = None,
    lengths: Tensor | None = None,
    every: int = 1,
    checkpoint: int | Binomial | None = None,
    truncate: int | None = None,
    memory: None = None,
    t0: float = 0.0,
    check: bool | None = None,
    fused: bool | None = None,
) -> tuple[Tensor, Tensor]: ...


@overload
def rollout(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    control: Controller,
    steps: int = 500,
    dt: float | Tensor = 2e-3,
    method: str | Step = "semi_implicit_euler",
    *,
    effort: Effort = None,
    limits: LimitSprings | None = None,
    f_ext: Tensor | Wrenches | None = None,
    lengths: Tensor | None = None,
    every: int = 1,
    checkpoint: int | Binomial | None = None,
    truncate: int | None = None,
    memory: Tensor,
    t0: float = 0.0,
    check: bool | None = None,
    fused: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...


def rollout(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    control: Tensor | Policy | Controller | None = None,
    steps: int = 500,
    dt: float | Tensor = 2e-3,
    method: str | Step = "semi_implicit_euler",
    *,
    effort: Effort = None,
    limits: LimitSprings | None = None,
    f_ext: Tensor | Wrenches | None = None,
    lengths: Tensor | None = None,
    every: int = 1,
    checkpoint: int | Binomial | None = None,
    truncate: int | None = None,
    memory: Tensor | None = None,
    t0: float = 0.0,
    check: bool | None = None,
    fused: bool | None = None,
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Simulate a mechanism under a control.

    Batch dimensions of the mechanism, the state and the control broadcast together. Gradients, in
    reverse and in forward mode, reach all of them.

    Args:
        mech: a mechanism, a `Dynamics` layer, whose values are read once, or a fused mechanism, whose kernels
            run; see ``fused``.
        q: initial configuration, `[*batch, num_q]`.
        qd: initial velocity, `[*batch, num_dof]` [rad/s or m/s].
        control: joint forces [N m or N]. A tensor `[num_dof]`, or `[*batch, num_dof]` with the batch
            dimensions of the state, is constant; `[*batch, steps, num_dof]` is constant over each step (a
            size of 1 instead of `steps`: constant). A function or module is called as control(t, q, qd), t in
            seconds, at every evaluation of the dynamics (four times per step in "rk4"), and returns `[*batch,
            num_dof]`. A `torchsko.rollout.controls.Controller`, such as
            `torchsko.rollout.motor.MotorControl`, is evaluated once per step and has a memory. None: no
            force.
        steps: number of time steps.
        dt: time step [s], common to all samples: a number, or a tensor `[]` of the mechanism's dtype.
        method: "semi_implicit_euler" (order 1, one evaluation per step, implicit damping and dry friction:
            stable at any step), "implicit" (with implicit Coriolis forces as well, for light links to which
            these add energy; one more dense solve), "rk4" (order 4, four evaluations), "newmark" (order 2,
            four evaluations), both with explicit damping. Or a function like those in
            `torchsko.rollout.integrators`, `torchsko.rollout.adaptive_steps` and `torchsko.rollout.midpoint`.
            ``benchmarks/energy.py`` compares their energy errors.
        effort: "clamp" saturates the control at ``mech.effort_limit``, with the gradient of `torch.clamp`:
            zero beyond the limit. None: forces are applied unchanged.
        limits: `torchsko.rollout.limit_springs.LimitSprings` holds joints within ``mech.lower`` and
            ``mech.upper``, in "semi_implicit_euler" and "implicit". None: positions are not limited. The
            damping of a fused mechanism must then be an input: ``ts.fuse(mech, inputs=("damping",))``.
            Velocity limits are not enforced.
        f_ext: forces on all bodies in their frames, as in `torchsko.forward_dynamics`: a series
            `[*batch, steps, num_bodies, 6]`, constant over each step (a size of 1 instead of `steps`:
            constant), or a function (t, q, qd). None: none.
        lengths: number of steps of each sample, integers `[*batch]`; its state is constant afterwards.
            Control and f_ext have no effect there. Functions are still evaluated for the sample, at its
            initial state, and must be finite at later times for finite gradients.
        every: return every so many states, the start included.
        checkpoint: store only every so many steps for the backward pass and recompute those in between, at
            the cost of one more forward pass. Gradients agree up to the order of sums. Memory besides the
            result is then every so many states, the graph of so many steps and the gradient of the result. It
            pays in long rollouts of large batches. A control, f_ext or method that is a function, or limits,
            are evaluated again, with their autograd nodes; the backward pass raises an error if their results
            differ. It supports ``backward`` and `torch.autograd.grad`, also of gradients, but not torch.func.
            `torchsko.rollout.binomial.Binomial` stores a given number of states by the schedule that
            recomputes the fewest steps; use it with `every`, since the result stores states as well.
        truncate: truncate gradients at windows of so many steps from the start of the rollout. The first
            state of a window is a constant, and a kernel of all steps is called once per window. None: no
            truncation.
        memory: memory of a `Controller` at the start, in place of its ``initial_memory``. The memory at the
            last state is then a third result, which the next rollout takes: a long rollout can be split, with
            an optimizer step in between. None: the controller's initial memory, and two results.
        t0: start time [s] for functions and controllers. A rollout that continues after ``steps`` of ``dt``
            starts at ``t0 + steps * dt``.
        check: report a non-finite state with its step, sample and joint. True: raise an error; this reduces
            the last state and waits for the device. None: warn, where reading is free: on a CPU, neither
            traced nor under vmap. False: never. `torchsko.first_nonfinite` checks any trajectory.
        fused: which kernels of a fused mechanism run; True also accepts a layer. None: all steps are one
            kernel, and so is their gradient, where ``control`` and ``f_ext`` are tensors or None, without
            ``limits`` or a method that is a function. Otherwise each step, or its forward dynamics, is a
            kernel. True: all steps are one kernel also with functions and controllers, which are traced once
            as by `torchsko.fuse`: they see one sample, t is a tensor, captured tensors are inputs with
            gradients, captured Python numbers (``policy.scale``) are constants whose change recompiles, and
            side effects are lost. The kernels of the last eight such controls are cached in the fused
            mechanism, so define a function once and reuse it. False: eager functions run. For a mechanism or
            a layer on a CPU, None compiles kernels once eager calls have taken longer than the build (see
            `torchsko.fused.automatic`). This excludes limits, and methods that are functions. Kernels of all
            steps store the states of ``every``, or of a ``checkpoint`` that divides it, and recompute those
            in between. They run on CPUs; on other devices single steps are kernels. They cause a graph break
            under `torch.compile`.

    Returns:
        Configurations `[*batch, steps // every + 1, num_q]` and velocities
        `[*batch, steps // every + 1, num_dof]`, the start included; with ``memory`` also the memory at the
        last of them, `[*batch, ...]`.

    Raises:
        ShapeError: when a state, the control or dt does not fit the mechanism or its batch. When the control
            could be both constant and a series, because the batch is as long as the rollout. When a memory
            differs from the controller's initial memory in shape or dtype.
        MechanismError: when a joint's hinge inertia vanishes; names the joints.
        NonFiniteError: with ``check=True``, when a state is not finite.
        FusedError: with limits, when the damping of a fused mechanism is not an input of its kernels; with
            ``fused=True``, when there are no kernels, or the control cannot be traced.
        TorchskoError: on an unknown method or effort, or a control or f_ext with other arguments. On invalid
            limits, or a method that does not support them. On steps, dt, t0, every, truncate or checkpoint
            out of range. On a memory without a controller, or with steps that are not a multiple of every.
            On a checkpoint inside torch.func or forward mode.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(16)
        >>> qs, qds = ts.rollout(arm, q, qd, lambda t, q, qd: -5.0 * qd, steps=10)
        >>> qs.shape
        torch.Size([16, 11, 7])
    """
    robot = as_mechanism(mech)
    check_state(robot, q=q, qd=qd)
    refuse_singular(robot)
    steps, every, checkpoint, truncate = check_counts(steps, every, checkpoint, truncate)
    check_dt(robot, dt, None, backward=False)
    check_start(t0)
    h = cast(float, dt)  # a tensor [] computes like a float
    batch = broadcast_shapes(q.shape[:-1], qd.shape[:-1], robot.batch_shape)
    wrenches, batch = check_wrenches(robot, f_ext, steps, batch)
    forces = check_control(robot, control, effort, steps, h, batch)
    step = resolve_step(method)
    if limits is not None:
        check_limits(robot, limits)
        require_implicit_damping(step, "limits= was given")
    if isinstance(forces.source, Controller) and forces.source.acts_implicitly:
        require_implicit_damping(step, "a controller that acts implicitly was given")
    fast = mech if "trajectory" in fused_methods_of(mech) and fused is not False else robot
    if fused and "trajectory" not in fused_methods_of(fast):
        raise FusedError(
            "fused=True was given with a mechanism that has no kernels.",
            "Kernels must be compiled for a mechanism first.",
            "Pass ts.fuse(mech).",
        )
    batch = forces.batch
    q, qd = q.expand(*batch, robot.num_q), qd.expand(*batch, robot.num_dof)
    if memory is not None:
        check_memory_steps(steps, every)
        forces = forces.with_memory(memory, q, qd)
    wrenches = with_checks(robot, wrenches, batch)
    counts = None if lengths is None else check_lengths(lengths, steps, every, batch)
    simulation = Simulation(
        fast, robot, forces, h, method, step, limits, every, truncate, wrenches, counts, t0=t0
    )
    if fused or (fused is None and has_trajectory_kernel(simulation, steps)):
        run: Callable[..., tuple[Tensor, Tensor, Tensor]] = run_fused
        if torch.compiler.is_compiling():
            from torchsko.rollout.compile_boundary import run_fused_outside_graph as run
        qs, qds, last_memory = run(simulation, q, qd, steps, checkpoint)
    else:
        qs, qds, last_memory = simulation.unbound().run(q, qd, steps, checkpoint)
    report_nonfinite(robot, qs, qds, h, every, check, step)
    return (qs, qds) if memory is None else (qs, qds, last_memory)
