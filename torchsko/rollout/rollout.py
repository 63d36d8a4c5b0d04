"""Rollouts: a mechanism moves under a control, and gradients pass through every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from torchsko.errors import FusedError, TorchskoError, unknown_name
from torchsko.mechanism.coordinates import among_all_dofs
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.mechanism.verb import MechanismLike, as_mechanism, kernels_of
from torchsko.rollout.control import Controller, Effort, Forces, Policy, forces_of
from torchsko.rollout.finite import tell_nonfinite
from torchsko.rollout.integrators import INTEGRATORS
from torchsko.rollout.limits import LimitSprings, refuse_explicit
from torchsko.rollout.step import Step
from torchsko.verbs.dynamics import forward_dynamics, refuse_singular

SAMPLED_ONCE = ("semi_implicit_euler", "implicit")
"""Methods that ask for the forces once, at the start of the step."""


def rollout(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    control: Tensor | Policy | Controller | None = None,
    steps: int = 500,
    dt: float = 2e-3,
    method: str | Step = "semi_implicit_euler",
    *,
    effort: Effort = None,
    limits: LimitSprings | None = None,
    every: int = 1,
    checkpoint: int | None = None,
    check: bool | None = None,
    fused: bool | None = None,
) -> tuple[Tensor, Tensor]:
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
        dt: time step [s].
        method: "semi_implicit_euler" (order 1, one evaluation a step, damping and dry friction implicit:
            stable at any step), "implicit" (the same with Coriolis forces implicit, too, for light links
            that gain energy by them; a dense solve more), "rk4" (order 4, four evaluations), "newmark"
            (order 2, four evaluations), both with explicit damping, or a function like those in
            `torchsko.rollout.integrators`. How well each keeps energy: ``benchmarks/energy.py``.
        effort: "clamp" saturates the control at ``mech.effort_limit``, with the gradient of
            `torch.clamp`: none beyond the limit. None: forces act as they are given.
        limits: `torchsko.rollout.limits.LimitSprings` holds joints within ``mech.lower`` and
            ``mech.upper``, in "semi_implicit_euler" and "implicit". None: joints move beyond them. With a
            fused mechanism its damping has to be an input: ``ts.fuse(mech, inputs=("damping",))``.
            Limits of velocity are never enforced.
        every: give the state after each so many steps, the start included.
        checkpoint: keep only every so many steps for the backward pass and compute those in between
            again, for one more forward pass; gradients are the same to the bit. Held besides the result
            are then every so many states, the tape of so many steps, autograd's nodes (as many for any
            batch) and, as always, the gradient of the result: it pays in long rollouts of large batches.
            For ``backward`` and `torch.autograd.grad`, also of gradients; refused inside of torch.func.
        check: whether a state that is not finite is said, with its step, sample and joint. True: by an
            error; it is one reduction over the last state, and waits for the device. None: by a
            warning, where reading is free: on a CPU, neither traced nor under vmap. False: not at all.
            `torchsko.first_nonfinite` asks the same of any trajectory.
        fused: of a fused mechanism, which kernels run. None: all steps are one kernel, and so is their
            gradient, where ``control`` is a tensor or None, and neither limits nor a method of your own are
            given; under functions and controllers each step is a kernel, or its forward dynamics. True: all
            steps are one kernel under those, too. The control is then traced once, as `torchsko.fuse` does:
            it sees one sample, t is a tensor, tensors that it reads from outside are inputs with gradients,
            and what it does besides computing is lost. Kernels of the controls of the last eight such
            calls are kept with the fused mechanism, so make a function once and pass it again. False: the
            eager functions run. Whole kernels keep no tape, whatever ``checkpoint`` is; they are for CPUs,
            elsewhere their steps are kernels.

    Returns:
        Configurations `[*batch, steps // every + 1, num_q]` and velocities
        `[*batch, steps // every + 1, num_dof]`, the start included.

    Raises:
        ShapeError: when a state or the control does not fit the mechanism, or the control could be
            both constant and a series, because the batch is as long as the rollout.
        MechanismError: when a joint's hinge inertia vanishes; names the joints.
        NonFiniteError: with ``check=True``, when a state is not finite.
        FusedError: when limits are given and the damping of a fused mechanism is no input of its kernels;
            with ``fused=True``, when there are no kernels, or the control cannot be traced.
        TorchskoError: on an unknown method or effort, limits in another method than they are for,
            steps, dt, every or checkpoint out of range, or a checkpoint inside of torch.func or forward mode.

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
    _check_numbers(steps, dt, every, checkpoint)
    batch = torch.broadcast_shapes(q.shape[:-1], qd.shape[:-1], robot.batch_shape)
    forces = forces_of(robot, control, effort, steps, dt, batch)
    step = _step(method)
    if limits is not None:
        refuse_explicit(step)
    given = mech if kernels_of(mech) and fused is not False else robot
    if fused and "trajectory" not in kernels_of(given):
        raise FusedError(
            "fused=True was given with a mechanism that has no kernels.\n"
            "Kernels are compiled for a mechanism first.\nPass ts.fuse(mech)."
        )
    simulation = _Simulation(given, robot, forces, dt, method, step, limits, every)
    batch = forces.batch
    q, qd = q.expand(*batch, robot.num_q), qd.expand(*batch, robot.num_dof)
    whole = fused or (fused is None and simulation.has_a_kernel(steps))
    run = simulation.run_at_once if whole else simulation.run
    qs, qds = run(q, qd, steps, checkpoint)
    tell_nonfinite(robot, qs, qds, dt, every, check, stacklevel=3)
    return qs, qds


@dataclass(frozen=True, eq=False)
class _Simulation:
    """What one rollout steps: the mechanism, and the kernels given for it (or itself), forces, method."""

    given: MechanismLike
    robot: Mechanism
    forces: Forces
    dt: float
    method: str | Step
    step: Step
    limits: LimitSprings | None
    every: int = 1

    def run(
        self, q: Tensor, qd: Tensor, steps: int, checkpoint: int | None
    ) -> tuple[Tensor, Tensor]:
        """All states, joined only once: what is joined exists twice while it is."""
        qs, qds, memory = [q[..., None, :]], [qd[..., None, :]], self.forces.memory(q, qd)
        stride = checkpoint or 1
        for first in range(0, steps, stride):
            span = (first, min(first + stride, steps), q, qd, memory)
            run = self.segment if checkpoint is None else self.segment_without_tape
            q, qd, memory, *states = run(*span)
            qs.append(states[0])
            qds.append(states[1])
        joined = torch.cat(qs, -2)
        qs.clear()
        return joined, torch.cat(qds, -2)

    def has_a_kernel(self, steps: int) -> bool:
        """Whether all steps are one kernel by themselves: what no function decides on."""
        known = isinstance(self.method, str) and self.limits is None and steps > 1
        given = known and isinstance(self.forces.source, Tensor)
        return (
            given and "trajectory" in kernels_of(self.given) and not torch.compiler.is_compiling()
        )

    def run_at_once(
        self, q: Tensor, qd: Tensor, steps: int, checkpoint: int | None
    ) -> tuple[Tensor, Tensor]:
        """All states, from one kernel."""
        forces, given = self.forces, cast(Any, self.given)
        series = forces.series(steps)
        if series is not None and isinstance(self.method, str) and self.limits is None:
            return given.trajectory(q, qd, series, self.dt, method=self.method, every=self.every)
        if isinstance(forces.source, Tensor):  # limits, or a step of the user's own
            raise FusedError(_NOT_GIVEN)
        step = ControlledStep(
            forces.source, forces.effort, self.dt, self.method, self.step, self.limits
        )
        return given.driven(step, q, qd, forces.memory(q, qd), steps, self.every)

    def segment(
        self, first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, ...]:
        """State and memory after some steps, and the states `[*batch, last - first, ...]` on the way.

        The state comes apart from the others, since the next segment keeps what it starts from: as a view
        it would keep all of this one's. The others come as one tensor: many small ones that stay are
        strewn over the heap, where the large ones that come and go then find no room.
        """
        qs, qds = [], []
        for k in range(first, last):
            control, memory = self.forces.over(k, q, qd, memory)
            q, qd = self.advance(k * self.dt, q, qd, control)
            if (k + 1) % self.every:
                continue
            # At once, not when all are joined: gradients add up in the order of these views, step by step.
            qs.append(q[..., None, :])
            qds.append(qd[..., None, :])
        return q, qd, memory, _joined(qs, q), _joined(qds, qd)

    def segment_without_tape(self, *span: Any) -> tuple[Tensor, ...]:
        """A segment that is computed again in the backward pass, to its end.

        By default torch leaves it early, by an exception out of the last function that saves anything.
        Functions with a forward derivative, as forward dynamics is, then hold their own output: a cycle of
        references, which kept the tape of every segment until the garbage collector ran.
        """
        if torch.compiler.is_compiling() or self.robot.scalar:  # a trace keeps no tape
            return recompute(self.segment, *span, use_reentrant=False)
        try:
            after = recompute(self.segment, *span, use_reentrant=False, early_stop=False)
        except RuntimeError as error:
            if "saved tensor hooks" in str(error):
                raise TorchskoError(_NOT_AGAIN) from error
            raise
        if torch.is_grad_enabled() and _is_mapped(after[0]):
            raise TorchskoError(_NOT_AGAIN)
        return after

    def advance(
        self, t: float, q: Tensor, qd: Tensor, control: Tensor | Policy
    ) -> tuple[Tensor, Tensor]:
        """The state one step later."""
        given, robot, push = self._limited(q, qd)
        held = isinstance(control, Tensor) or self.method in SAMPLED_ONCE
        if held and isinstance(self.method, str) and "step" in kernels_of(given):
            tau = _sampled(control, t, q, qd, push)
            return cast(Any, given).step(q, qd, tau, self.dt, method=self.method)

        def accelerate(
            mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
        ) -> Tensor:
            tau = _sampled(control, t, q, qd, push, force)
            # A step may ask for another mechanism, of which there are no kernels.
            return forward_dynamics(given if mech is robot else mech, q, qd, tau)

        return self.step(robot, accelerate, t, q, qd, self.dt)

    def _limited(self, q: Tensor, qd: Tensor) -> tuple[MechanismLike, Mechanism, Tensor | None]:
        """What steps from this state: as given, and its numbers; and the force of the limits."""
        if self.limits is None:
            return self.given, self.robot, None
        damping, push = self.limits.act(self.robot, q, qd, self.dt)
        given = cast(Any, self.given).replace(
            damping=self.robot.damping + among_all_dofs(self.robot, damping)
        )
        return given, as_mechanism(given), push


@dataclass(frozen=True, eq=False)
class ControlledStep:
    """A step under a control, of one sample: what a kernel repeats.

    Attributes:
        source: the control.
        effort: see `rollout`.
        dt: time step [s].
        method: see `rollout`.
        step: of the method.
        limits: see `rollout`.
    """

    source: Policy | Controller
    effort: Effort
    dt: float
    method: str | Step
    step: Step
    limits: LimitSprings | None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for steps that do the same: those under one control, with the same choices."""
        return self.source, self.effort, self.dt, self.method, self.limits

    def __call__(
        self, mech: Mechanism, q: Tensor, qd: Tensor, memory: Tensor, t: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next state and memory."""
        forces = Forces(mech, self.source, torch.Size(), self.dt, self.effort)
        once = _Simulation(mech, mech, forces, self.dt, self.method, self.step, self.limits)
        control, memory = forces.asked(t, q, qd, memory)
        return *once.advance(cast(float, t), q, qd, control), memory


_NOT_GIVEN = (
    "fused=True was given with forces as a tensor, and limits or a method of your own.\n"
    "Which kernel that is depends on a function.\n"
    "Pass the control as a function, such as lambda t, q, qd: tau, or leave fused out."
)

_NOT_AGAIN = (
    "checkpoint is given inside of torch.func.grad, vjp, jvp or vmap, or around one in the control.\n"
    "What is computed there cannot be computed again later, and forward mode saves nothing anyway.\n"
    "Pass checkpoint=None there, or batch the states and call backward() or torch.autograd.grad."
)


def _is_mapped(x: Tensor) -> bool:
    """Whether a tensor stands for the samples of a vmap: it has no memory of its own."""
    try:
        x.data_ptr()
    except RuntimeError:
        return True
    return False


def _sampled(
    control: Tensor | Policy, t: float, q: Tensor, qd: Tensor, *others: Tensor | None
) -> Tensor:
    """The forces of a control at a state, and others added."""
    tau = control if isinstance(control, Tensor) else control(t, q, qd)
    for force in others:
        tau = tau if force is None else tau + force
    return tau


def _joined(states: list[Tensor], like: Tensor) -> Tensor:
    if not states:
        return like[..., None, :][..., :0, :]
    return states[0] if len(states) == 1 else torch.cat(states, -2)


def _check_numbers(steps: int, dt: float, every: int, checkpoint: int | None) -> None:
    for name, value, fits, advice in (
        ("steps", steps, steps >= 0, "steps=500"),
        ("dt", dt, dt > 0, "dt=2e-3"),
        ("every", every, every > 0, "every=1"),
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
