"""Rollouts: a mechanism moves under a control, and gradients pass through every step."""

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
from torchsko.rollout.controls import Controller, Effort, Policy, check_control, is_implicit
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
        mech: a mechanism, or a `Dynamics` layer, whose values are read once, or a fused mechanism, whose
            kernels run; see ``fused``.
        q: start configuration, `[*batch, num_q]`.
        qd: start velocity, `[*batch, num_dof]` [rad/s or m/s].
        control: joint forces [N m or N]. A tensor `[num_dof]` is constant, and so is one
            `[*batch, num_dof]` with the batch dimensions of the state; `[*batch, steps, num_dof]` is
            held over each step (`steps` may be 1: constant). A function or module is
            called as control(t, q, qd), t in seconds, at every evaluation of the dynamics (four
            times a step in "rk4"), and returns `[*batch, num_dof]`. A `Controller`, such as
            `torchsko.rollout.motor.MotorControl`, acts once a step and remembers. None: no force.
        steps: number of time steps.
        dt: time step [s], one for all samples: a number, or a tensor `[]` of the mechanism's type.
        method: "semi_implicit_euler" (order 1, one evaluation a step, damping and dry friction implicit:
            stable at any step), "implicit" (the same with Coriolis forces implicit, too, for light links
            that gain energy by them; a dense solve more), "rk4" (order 4, four evaluations), "newmark"
            (order 2, four evaluations), both with explicit damping, or a function like those in
            `torchsko.rollout.integrators`, `torchsko.rollout.adaptive_steps` and `torchsko.rollout.midpoint`:
            `linearize` and `optimal_control` take names only. How well each keeps energy:
            ``benchmarks/energy.py``.
        effort: "clamp" saturates the control at ``mech.effort_limit``, with the gradient of
            `torch.clamp`: none beyond the limit. None: forces act as they are given.
        limits: `torchsko.rollout.limit_springs.LimitSprings` holds joints within ``mech.lower`` and
            ``mech.upper``, in "semi_implicit_euler" and "implicit". None: joints move beyond them. With a
            fused mechanism its damping has to be an input: ``ts.fuse(mech, inputs=("damping",))``.
            Limits of velocity are never enforced.
        f_ext: forces on all bodies in their frames, as in `torchsko.forward_dynamics`: a series
            `[*batch, steps, num_bodies, 6]`, held over each step (`steps` may be 1: constant), or a function
            (t, q, qd) like the control. None: none.
        lengths: of each sample, in steps, integers `[*batch]`: its state stays as it is after so many. What
            control and f_ext are from there on is no matter; a function still sees the sample, at its start,
            and what it gives at a later time has to be finite for its own gradients to be.
        every: give the state after each so many steps, the start included.
        checkpoint: keep only every so many steps for the backward pass and compute those in between
            again, for one more forward pass; gradients are the same but for the order of sums. Held besides
            the result are then every so many states, the tape of so many steps and, as always, the gradient
            of the result: it pays in long rollouts of large batches. A control, an f_ext or a method
            of your own leaves autograd's nodes, too, as many for any batch, and so do limits; it is called
            again, and the backward pass says where it gives other numbers then.
            For ``backward`` and `torch.autograd.grad`, also of gradients; refused inside of torch.func.
            `torchsko.rollout.binomial.Binomial` keeps a number of states that is given, by the schedule
            that computes the fewest steps again; it pays with `every`, since the result keeps states, too.
        truncate: gradients of a state go back to the start of its window of so many steps, the first of which
            begins with the rollout: the state is a constant there. A kernel of all steps is called once for
            each window. None: to the start of the rollout.
        memory: what a `Controller` remembers at the start, in the place of what its ``start`` gives. Given,
            the memory at the last state is a third result, and the next rollout takes it: a long one may be
            made in parts, with a step of an optimizer between them. None: its own, and two results.
        t0: time at the start [s]: of a control and an f_ext that are functions, or controllers. A rollout
            that goes on after ``steps`` of ``dt`` begins at ``t0 + steps * dt``.
        check: whether a state that is not finite is said, with its step, sample and joint. True: by an
            error; it is one reduction over the last state, and waits for the device. None: by a
            warning, where reading is free: on a CPU, neither traced nor under vmap. False: not at all.
            `torchsko.first_nonfinite` asks the same of any trajectory.
        fused: of a fused mechanism, and with True of a layer, which kernels run. None: all steps are one
            kernel, and so is their gradient, where ``control`` and ``f_ext`` are tensors or None, and neither
            limits nor a method of your own are given; under functions and controllers each step is a kernel,
            or its forward dynamics. True: all steps are one kernel under those, too, of which the control is
            one. They are then traced once, as `torchsko.fuse` does: each sees one sample, t is a tensor,
            tensors that it reads from outside are inputs with gradients, Python numbers that it names
            (``policy.scale``) are constants, for other values of which kernels are made anew, and what it
            does besides computing is lost. Kernels of the controls of the last eight such calls are kept with
            the fused mechanism, so make a function once and pass it again. False: the eager functions run.
            For a mechanism or a layer on a CPU, None has kernels made where the rollout takes longer than
            their build, or all that the layer did so far, limits and methods of your own apart (see
            `torchsko.fused.automatic`). Whole kernels keep no tape, but the states that ``every`` or a
            ``checkpoint``
            that divides it says, and compute those in between again; they are for CPUs, elsewhere their steps
            are kernels. A graph of `torch.compile` is left for them, where it may be.

    Returns:
        Configurations `[*batch, steps // every + 1, num_q]` and velocities
        `[*batch, steps // every + 1, num_dof]`, the start included; the memory at the last of them,
        `[*batch, ...]`, where ``memory`` was given.

    Raises:
        ShapeError: when a state, the control or dt does not fit the mechanism, or the robots it holds are
            of another number, or the control could be both constant and a series, because the batch is as
            long as the rollout, or a memory is unlike the controller's own.
        MechanismError: when a joint's hinge inertia vanishes; names the joints.
        NonFiniteError: with ``check=True``, when a state is not finite.
        FusedError: when limits are given and the damping of a fused mechanism is no input of its kernels;
            with ``fused=True``, when there are no kernels, or the control cannot be traced.
        TorchskoError: on an unknown method or effort, a control or f_ext that takes other arguments, limits
            that are none or in another method than they are for, steps, dt, t0, every, truncate or checkpoint
            out of range, a memory without a controller, or with steps that no state given ends, or a
            checkpoint inside of torch.func or forward mode.

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
    h = cast(float, dt)  # as which a tensor [] computes
    batch = broadcast_shapes(q.shape[:-1], qd.shape[:-1], robot.batch_shape)
    wrenches, batch = check_wrenches(robot, f_ext, steps, batch)
    forces = check_control(robot, control, effort, steps, h, batch)
    step = resolve_step(method)
    if limits is not None:
        check_limits(robot, limits)
        require_implicit_damping(step, "limits= was given")
    if is_implicit(forces.source):
        require_implicit_damping(
            step, "a control whose forces act at the velocity after the step was given"
        )
    given = mech if "trajectory" in fused_methods_of(mech) and fused is not False else robot
    if fused and "trajectory" not in fused_methods_of(given):
        raise FusedError(
            "fused=True was given with a mechanism that has no kernels.",
            "Kernels are compiled for a mechanism first.",
            "Pass ts.fuse(mech).",
        )
    batch = forces.batch
    q, qd = q.expand(*batch, robot.num_q), qd.expand(*batch, robot.num_dof)
    if memory is not None:
        check_memory_steps(steps, every)
        forces = forces.remembering(memory, q, qd)
    wrenches = with_checks(robot, wrenches, batch)
    ends = None if lengths is None else check_lengths(lengths, steps, every, batch)
    simulation = Simulation(
        given, robot, forces, h, method, step, limits, every, truncate, wrenches, ends, t0=t0
    )
    if fused or (fused is None and has_trajectory_kernel(simulation, steps)):
        run: Callable[..., tuple[Tensor, Tensor, Tensor]] = run_fused
        if torch.compiler.is_compiling():
            from torchsko.rollout.compile_boundary import run_fused_outside_graph as run
        qs, qds, last = run(simulation, q, qd, steps, checkpoint)
    else:
        qs, qds, last = simulation.by_steps().run(q, qd, steps, checkpoint)
    report_nonfinite(robot, qs, qds, h, every, check, step)
    return (qs, qds) if memory is None else (qs, qds, last)
