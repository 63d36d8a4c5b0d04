"""Rollouts: simulation of a mechanism under a control, differentiable through every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from torchsko.actuators.law import Binding, Law, check_law_inputs, refuse_unused_inputs
from torchsko.contact.drive import check_activations
from torchsko.errors import FusedError
from torchsko.integrators.argument_checks import (
    check_counts,
    check_memory_steps,
    check_start,
    resolve_step,
    step_names,
)
from torchsko.integrators.binomial import Binomial
from torchsko.integrators.contact_integrator import ContactStep
from torchsko.integrators.controls import (
    BoundController,
    Controller,
    Effort,
    Forces,
    Policy,
    check_control,
)
from torchsko.integrators.diverged_samples import drop_diverged, mask_diverged
from torchsko.integrators.early_termination import check_lengths
from torchsko.integrators.external import Wrenches, check_wrenches, with_checks
from torchsko.integrators.finite_checks import NonFiniteChoice, check_nonfinite, report_nonfinite
from torchsko.integrators.fused_rollout import has_trajectory_kernel, run_fused
from torchsko.integrators.integrators import held_step
from torchsko.integrators.limit_springs import LimitSprings, check_limits, require_implicit_damping
from torchsko.integrators.simulation import Simulation
from torchsko.integrators.step import Integrator, Step, StepWithResults
from torchsko.integrators.trajectory import Trajectory
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, fused_methods_of
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State, check_is_state
from torchsko.mechanism.state import check_state
from torchsko.mechanism.time_step import check_dt
from torchsko.utils.shapes import broadcast_shapes
from torchsko.verbs.dynamics import refuse_singular
from torchsko.verbs.held.held_mechanism import HeldMechanism


def rollout(
    mech: MechanismLike | HeldMechanism,
    state: State,
    control: Tensor | Policy | Controller | None = None,
    *,
    steps: int = 500,
    dt: float | Tensor | None = None,
    method: str | Step | StepWithResults = "semi_implicit_euler",
    effort: Effort = None,
    limits: LimitSprings | None = None,
    f_ext: Tensor | Wrenches | None = None,
    params: Mapping[str, Tensor] | None = None,
    series: Mapping[str, Tensor] | None = None,
    lengths: Tensor | None = None,
    every: int = 1,
    checkpoint: int | Binomial | None = None,
    truncate: int | None = None,
    memory: Tensor | None = None,
    t0: float = 0.0,
    nonfinite: NonFiniteChoice = "warn",
    fused: bool | None = None,
) -> Trajectory:
    """Simulate a mechanism under a control.

    Batch dimensions of the mechanism, the state and the control broadcast together. Gradients, in
    reverse and in forward mode, reach all of them.

    Args:
        mech: a mechanism, a `Dynamics` layer, whose values are read once, or a fused mechanism, whose kernels
            run; see ``fused``. A `torchsko.constraints.HeldMechanism` moves under its constraints, by the
            methods "semi_implicit_euler", "rk4" and "newmark"; all its steps are one kernel if it is fused.
        state: at the start. Its activations are those of the actuators of a `torchsko.ContactStep`.
        control: joint forces [N m or N]; with the method `torchsko.ContactStep` the controls of the actuators
            of the robot file, n in place of num_dof, as in `torchsko.step`. A tensor `[*batch, num_dof]` with
            at most the batch dimensions of the state is constant in time; with one more, `[*batch, steps,
            num_dof]`, it is a series, constant over each step (a size of 1 instead of `steps`: constant). A
            function or module returns `[*batch, num_dof]`. It is called as control(t, q, qd), t in seconds,
            at every evaluation of the dynamics (four times per step in "rk4"). If it takes four arguments,
            it is called as control(mech, t, q, qd) with the mechanism of the rollout. A
            `torchsko.actuators.Controller`, such as `torchsko.actuators.ActuatedControl`, is evaluated once
            per step and has a memory. None: no force.
        steps: number of time steps.
        dt: time step [s], common to all samples: a number, or a tensor `[]` of the mechanism's dtype. By
            default that of the robot file, 2 ms for a file without one.
        method: "semi_implicit_euler" (order 1, one evaluation per step, implicit damping and dry friction:
            stable at any step), "implicit" (with implicit Coriolis forces as well, for light links to which
            these add energy; one more dense solve), "rk4" (order 4, four evaluations), "newmark" (order 2,
            four evaluations), both with explicit damping. Or a function like those in
            `torchsko.integrators.integrators`, `torchsko.integrators.dormand_prince` or
            `torchsko.integrators.ImplicitMidpoint`. ``benchmarks/energy.py`` compares their energy errors.
            `torchsko.ContactStep` is the step of `torchsko.step`, with its integrators. A function may
            return results after q and qd, such as forces, residuals or rewards, each `[*batch, *shape]`:
            ``results`` of the trajectory.
        effort: "clamp" saturates the control at ``mech.effort_limit``, with the gradient of `torch.clamp`:
            zero beyond the limit. None: forces are applied unchanged.
        limits: `torchsko.integrators.LimitSprings` holds joints within ``mech.lower`` and
            ``mech.upper``, in "semi_implicit_euler" and "implicit". None: positions are not limited. Velocity
            limits are not enforced.
        f_ext: forces on all bodies in their frames, as in `torchsko.forward_dynamics`: a tensor
            `[*batch, num_bodies, 6]`, constant in time, a series `[*batch, steps, num_bodies, 6]`, or a
            function (t, q, qd) or (mech, t, q, qd). None: none.
        params: tensors `[*batch, *shape]` that functions, methods and controllers take by name, as in
            ``def law(t, q, qd, *, target)``: they may differ from sample to sample, and have gradients.
            `torchsko.ContactStep` takes parameters of its contact model by their names.
            ``x[..., None]`` in a law makes a number of each sample a vector in all modes.
        series: tensors `[*batch, steps, *shape]` that functions and controllers take by name: of each step
            they receive its row `[*batch, *shape]`.
        lengths: number of steps of each sample, integers `[*batch]`; its state is constant afterwards.
            Control and f_ext have no effect there, and may be infinite: functions are evaluated at the state,
            ``params`` and ``series`` of a running sample, or at the start time. Tensors that they capture are
            not replaced, and methods that are functions are evaluated at the initial state: these must be
            finite at later times for finite gradients.
        every: return every so many states, the start included.
        checkpoint: store only every so many steps for the backward pass and recompute those in between, at
            the cost of one more forward pass. Gradients agree up to the order of sums. Memory besides the
            result is then every so many states, the graph of so many steps and the gradient of the result. It
            pays in long rollouts of large batches. A control, f_ext or method that is a function, or limits,
            are evaluated again, with their autograd nodes; the backward pass raises an error if their results
            differ. It supports ``backward`` and `torch.autograd.grad`, also of gradients, but not torch.func.
            `torchsko.integrators.Binomial` stores a given number of states by the schedule that
            recomputes the fewest steps; use it with `every`, since the result stores states as well.
        truncate: truncate gradients at windows of so many steps from the start of the rollout. The first
            state of a window is a constant, and a kernel of all steps is called once per window. None: no
            truncation.
        memory: memory of a `Controller` at the start, in place of its ``initial_memory``. The ``memory`` of
            the trajectory is that at the last state, which the next rollout takes: a long rollout can be
            split, with an optimizer step in between. None: the controller's initial memory.
        t0: start time [s] for functions and controllers, a number that all samples share, unlike the time of
            the state. A rollout that continues after ``steps`` of ``dt`` starts at ``t0 + steps * dt``.
        nonfinite: what happens if a sample leaves the finite numbers; the other samples go on. "warn": a
            warning with its step, sample and joint, where reading is free: on a CPU, neither traced nor under
            vmap. "raise": an error; this waits for the device. "zero": a warning, and the gradient of such a
            sample is zero, so that it does not make gradients of shared parameters non-finite; this also
            includes states whose square overflows, reads the last state, and repeats the rollout where a
            sample diverged. "ignore": nothing. In all cases states that are not finite are constants in the
            gradient, where values can be read, and in kernels: a mask of the loss is enough to exclude them.
            `torchsko.integrators.first_nonfinite` checks any trajectory.
        fused: which kernels of a fused mechanism run; True also accepts a layer. None: all steps are one
            kernel, and so is their gradient, where ``control`` and ``f_ext`` are tensors or None, without
            ``limits`` or a method that is a function. Otherwise each step, or its forward dynamics, is a
            kernel. True: all steps are one kernel also with functions and controllers, which are traced once
            as by `torchsko.fuse`: they see one sample, t and dt are tensors, captured tensors are inputs with
            gradients, captured Python numbers (``policy.scale``) are constants whose change recompiles, and
            side effects are lost. The kernels of the last eight such controls are cached in the fused
            mechanism, so define a function once and reuse it. A control of more than
            `torchsko.integrators.fused_rollout.MAX_CONTROL_PRODUCTS` multiply-add operations, such as a
            network of 128-wide layers, runs outside of the kernel, which is logged. False: eager functions
            run. For a mechanism or a layer on a CPU, None compiles kernels once eager calls have taken
            longer than the build (see `torchsko.fused.automatic`). This excludes limits, and methods that
            are functions. Kernels of all steps store the states of ``every``, or of a ``checkpoint`` that
            divides it, and recompute those in between. They run on CPUs and NVIDIA GPUs, and cause a graph
            break under `torch.compile`.

    Returns:
        The states, the start included, and the forces and results of the steps.

    Raises:
        ShapeError: when a state, the control, a parameter or dt does not fit the mechanism or its batch.
            When a memory differs from the controller's initial memory in shape or dtype.
        MechanismError: when a joint's hinge inertia vanishes; names the joints.
        NonFiniteError: with ``nonfinite="raise"``, when a state is not finite.
        FusedError: with ``fused=True``, when there are no kernels, or the control cannot be traced.
        TorchskoError: on an unknown method or effort, or a control or f_ext with other arguments. On invalid
            limits, or a method that does not support them. On steps, dt, t0, every, truncate or checkpoint
            out of range. On a memory without a controller, or with steps that are not a multiple of every.
            On a checkpoint inside torch.func or forward mode. On a parameter that no
            function takes. On ``nonfinite="zero"`` where values cannot be read.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> start = ts.State(*arm.random_state(16))
        >>> trajectory = ts.rollout(arm, start, lambda t, q, qd: -5.0 * qd, steps=10)
        >>> trajectory.q.shape
        torch.Size([16, 11, 7])
    """
    if isinstance(mech, HeldMechanism):
        method = held_step(mech.constraints, method)
        mech = mech.source
        fused = "trajectory" in fused_methods_of(mech) if fused is None else fused
    robot = as_mechanism(mech)
    check_is_state("state", state, "ts.rollout(mech, ts.State(q, qd), control)")
    q, qd = state.q, state.qd
    check_state(robot, q=q, qd=qd)
    refuse_singular(robot)
    steps, every, checkpoint, truncate = check_counts(steps, every, checkpoint, truncate)
    dt = robot.file_metadata.solver.timestep if dt is None else dt
    check_dt(robot, dt, None, backward=False)
    check_start(t0)
    check_nonfinite(nonfinite)
    h = cast(float, dt)  # a tensor [] computes like a float
    batch = broadcast_shapes(q.shape[:-1], qd.shape[:-1], robot.batch_shape)
    inputs = check_law_inputs(params, series, steps, batch, robot.dtype)
    if isinstance(control, Controller):
        inputs = inputs.merged(*control.inputs(steps, h, batch))
    wrenches, batch = check_wrenches(robot, f_ext, steps, batch, inputs.names)
    step = resolve_step(method, inputs.names)
    contact_step = step if isinstance(step, ContactStep) else None
    forces = check_control(robot, control, effort, steps, h, batch, inputs.names, contact_step)
    taken = Binding(False, step_names(step, inputs.names))
    laws = [x.binding for x in (forces.source, wrenches) if isinstance(x, Law | BoundController)]
    refuse_unused_inputs(inputs, [*laws, taken])
    if limits is not None:
        check_limits(robot, limits)
        require_implicit_damping(step, "limits= was given")
    if isinstance(forces.source, BoundController) and forces.source.acts_implicitly:
        require_implicit_damping(step, "a controller that acts implicitly was given")
    fast = _mechanism_with_kernels(mech, robot, fused)
    batch = forces.batch
    q, qd = q.expand(*batch, robot.num_q), qd.expand(*batch, robot.num_dof)
    if memory is not None:
        check_memory_steps(steps, every)
        forces = forces.with_memory(memory, q, qd)
    elif contact_step is not None:
        forces = forces.with_activations(state.act)
    else:
        check_activations(robot, state)
    counts = None if lengths is None else check_lengths(lengths, steps, every, batch)
    simulation = Simulation(
        fast, robot, forces, h, method, step, limits, every, truncate,
        with_checks(robot, wrenches, batch), counts, t0=t0, inputs=inputs,
        records_forces=_records_forces(forces, step),
        step_names=taken.names,
    )  # fmt: skip
    use_kernel = fused or (fused is None and has_trajectory_kernel(simulation, steps))

    found, last_memory, seen = _run(simulation, q, qd, steps, checkpoint, use_kernel, nonfinite)
    report_nonfinite(robot, seen[0], seen[1], h, every, nonfinite, step)
    return _trajectory(simulation, state.t, found, last_memory, steps)


def _mechanism_with_kernels(
    mech: MechanismLike, robot: Mechanism, fused: bool | None
) -> MechanismLike:
    """The mechanism whose kernels a rollout calls; the plain one for a rollout without kernels."""
    has_kernels = "trajectory" in fused_methods_of(mech)
    if fused and not has_kernels:
        raise FusedError(
            "fused=True was given with a mechanism that has no kernels.",
            "Kernels must be compiled for a mechanism first.",
            "Pass ts.fuse(mech).",
        )
    return mech if has_kernels and fused is not False else robot


def _run(
    simulation: Simulation,
    q: Tensor,
    qd: Tensor,
    steps: int,
    checkpoint: int | Binomial | None,
    use_kernel: bool,
    nonfinite: str,
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """States and results of a rollout, its last memory, and the states that a warning names.

    Samples that diverge are constants in the gradient, or have none with ``nonfinite="zero"``.
    """

    def run(simulation: Simulation, q: Tensor, qd: Tensor) -> tuple[list[Tensor], Tensor]:
        if not use_kernel:
            return simulation.unbound().run(q, qd, steps, checkpoint)
        if torch.compiler.is_compiling():
            from torchsko.integrators.compile_boundary import run_fused_outside_graph

            return run_fused_outside_graph(simulation, q, qd, steps, checkpoint)
        return run_fused(simulation, q, qd, steps, checkpoint)

    found, last_memory = run(simulation, q, qd)
    if nonfinite == "zero":
        return drop_diverged(run, simulation, (q, qd), found, last_memory)
    if not use_kernel:
        found, last_memory = mask_diverged(run, simulation, (q, qd), found, last_memory)
    return found, last_memory, found


def _trajectory(
    simulation: Simulation, t: Tensor, found: list[Tensor], memory: Tensor, steps: int
) -> Trajectory:
    """The result of a rollout, from its start time, states, results of steps and last memory."""
    forces, every, (q, qd, *results) = simulation.forces, simulation.every, found
    states = q, qd, t + simulation.dt * (steps // every * every)
    applied = None
    if forces.is_series:
        applied = applied_series(forces, simulation.lengths, steps, every)
    elif simulation.records_forces:
        applied, *results = results
    has_memory = isinstance(forces.source, BoundController) and steps % every == 0
    last = memory if has_memory else None
    if forces.contact_step is None or not results:
        return Trajectory(*states, applied, results=tuple(results), memory=last)
    exerted, residual, *after = results
    act = None
    if after:
        first = forces.memory(q[..., 0, :], qd[..., 0, :])[..., None, : after[0].shape[-1]]
        act = torch.cat([first, after[0]], -2)
    return Trajectory(*states, applied, act, exerted, residual, memory=last)


def _records_forces(forces: Forces, step: Step | StepWithResults) -> bool:
    """True if the joint forces of a rollout are known in its steps, without another evaluation."""
    if forces.is_series:
        return False
    evaluates_start = isinstance(step, Integrator) and step.evaluates_start
    return evaluates_start or not isinstance(forces.source, Law)


def applied_series(forces: Forces, lengths: Tensor | None, steps: int, every: int) -> Tensor:
    """Joint forces that are a tensor, over the steps that end in returned states."""
    tau = cast(Tensor, forces.source).expand(*forces.batch, steps, forces.mech.num_dof)
    if lengths is not None:
        runs = lengths[..., None] > torch.arange(steps, device=tau.device)
        tau = torch.where(runs[..., None], tau, torch.zeros_like(tau))
    return tau if every == 1 else tau[..., every - 1 : steps // every * every : every, :]
