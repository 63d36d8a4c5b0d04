r"""Optimal control problems of a mechanism, with phases.

A problem determines the inputs u of N steps that minimize

.. math:: J = \sum_{t < N} l_t(q_t, \dot q_t, u_t, f_t) + \sum_p L_p(q_{N_p}, \dot q_{N_p})

from a given initial state, with the constraint forces f and a final cost at the end of each phase p. Near a
trajectory z = [d; w; u] stands for the configuration integrate(q, d), the velocity w and the input u, so
quaternions count with three coordinates. A cost that returns a vector r stands for |r|^2 / 2. Its Hessian is
the Gauss-Newton approximation J_r* J_r; the curvature adds the remaining terms and those of the dynamics,
weighted by the costates.

An impact precedes the first step of its phase. The state at that step is the one before the impact, and the
step leads from it through the impact to the next state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.control.ilqr.expansion import Cost, PhaseFunctions
from torchsko.control.ilqr.phase_dynamics import PhaseDynamics
from torchsko.control.ilqr.problem_checks import (
    actuated_dofs,
    check_bounds,
    check_cost,
    check_phases,
    parse_shapes,
)
from torchsko.control.ilqr.riccati_step import (
    backward_step,
    bounded_backward_step,
    costate_step,
)
from torchsko.errors import TorchskoError
from torchsko.integrators.step import Step
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.held.held_mechanism import HeldMechanism

Compiler = Callable[..., Any]
"""Compiles a function; see `torchsko.fuse`."""


@dataclass(frozen=True, eq=False)
class Phase:
    """A part of a motion in which dynamics and costs have one form, such as stance or flight.

    Costs are twice differentiable functions of tensors with any batch dimensions. They return a number for
    each sample `[*batch]`, or residuals `[*batch, r]`, of which half the square counts.

    Attributes:
        mech: the mechanism, or a mechanism with held frames or cut loops (`torchsko.constrain`). Values of a
            layer are read once. All phases of a problem have the same joints.
        steps: number of time steps.
        dt: time step [s], positive; a number, or a tensor of shape [].
        running: the cost of a step, (mech, q, qd, u, *goals, *series) for a free mechanism. If constraints or
            contacts act, (mech, q, qd, u, forces, *goals, *series), with their forces `[*batch, rows]` in the
            order of the constraints [N m, N]; see `torchsko.constraints.HeldMechanism`.
        final: the cost of the state at the end of the phase, (mech, q, qd, *goals, *series); None for none.
            Before an impact it sees the velocity that causes the impact.
        impact: whether the phase starts with an impact that stops the held frames. Its first step leads from
            the state before the impact, and the running cost sees the velocity after it.
        method: integrator, a name in `torchsko.integrators.integrators.INTEGRATORS` or a function, as in
            `torchsko.rollout`. `torchsko.integrators.SemiImplicitEuler` with a larger ``creep`` helps where
            joints with dry friction start, stop or turn back: at 0.1 rad/s iterations are about as many as
            without friction. `torchsko.ContactStep` is the step of `torchsko.step`, with its soft contacts,
            under joint forces; its derivatives are those of the solution of the contact problem.

    Example:
        >>> import torchsko as ts, torch
        >>> dog = ts.load(ts.robots.quadruped, floating_base=True)
        >>> feet = [name for name in dog.frame_names if name.endswith("foot")]
        >>> held = ts.constrain(dog, [ts.HeldFrame(foot) for foot in feet])
        >>> stance = ts.control.Phase(held, 20, 0.01, lambda mech, q, qd, u, forces: 0.01 * u)
        >>> flight = ts.control.Phase(dog, 10, 0.01, lambda mech, q, qd, u: 0.01 * u)
    """

    mech: MechanismLike | HeldMechanism
    steps: int
    dt: float | Tensor
    running: Cost
    final: Cost | None = None
    impact: bool = False
    method: str | Step = "semi_implicit_euler"


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive steps with one form of dynamics, and the functions of them.

    Attributes:
        mech: the mechanism.
        start: index of the first step.
        stop: index after the last step.
        has_final: whether a final cost follows the last step.
        are_scalar: see `torchsko.control.ilqr.expansion.PhaseFunctions`, as all others.
    """

    mech: Mechanism
    start: int
    stop: int
    has_final: bool
    expand: Compiler
    curvature: Compiler
    step: Compiler
    expand_final: Compiler
    final_curvature: Compiler
    cost_final: Compiler
    are_scalar: Compiler

    @property
    def rows(self) -> slice:
        """The steps of the segment."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, eq=False)
class OptimalControl:
    """An optimal control problem, to be solved for many initial states; `optimal_control` makes it.

    Attributes:
        mech: the mechanism of the first phase.
        dofs: degrees of freedom on which the inputs act.
        segments: the steps of the phases; an impact and the step after it are a segment.
        backward: see `torchsko.control.ilqr.backward_pass`.
        costates: see `torchsko.control.ilqr.riccati_step.costate_step`.
        bounds: lower and upper bounds of the inputs, `[num_u]` each; or None.
        goals: names of further arguments of the costs, with shapes for one sample.
        series: names of arguments that change from step to step, with shapes for one sample and step. They
            follow the goals.
    """

    mech: Mechanism
    dofs: tuple[int, ...]
    segments: tuple[Segment, ...]
    backward: Compiler
    costates: Compiler
    bounds: tuple[Tensor, Tensor] | None
    goals: Mapping[str, tuple[int, ...]]
    series: Mapping[str, tuple[int, ...]]

    @property
    def num_u(self) -> int:
        """Number of inputs."""
        return len(self.dofs)

    @property
    def num_steps(self) -> int:
        """Number of steps of all phases."""
        return self.segments[-1].stop

    @property
    def is_batched(self) -> bool:
        """True if a mechanism has batch dimensions, so that samples cannot be selected."""
        return any(segment.mech.batch_shape for segment in self.segments)

    def expand(
        self, q: Tensor, qd: Tensor, u: Tensor, goals: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """A, B, gradient and Hessian of each step, then gradient and Hessian at the end, time first.

        The gradient and Hessian of a step contain those of the final cost of the phase before it.
        """
        parts, end = [], None
        for s in self.segments:
            part = s.expand(q[s.rows], qd[s.rows], u[s.rows], *(g[s.rows] for g in goals))
            if end is not None:
                A, B, gradient, hessian = part
                part = A, B, _add_to_first(gradient, end[0], 1), _add_to_first(hessian, end[1], 2)
            parts.append(part)
            end = None
            if s.has_final:
                end = s.expand_final(q[s.stop], qd[s.stop], *(g[s.stop] for g in goals))
        if end is None:
            end = self._zero(qd, 1), self._zero(qd, 2)
        return *map(_join, zip(*parts, strict=True)), *end

    def curvature(
        self, q: Tensor, qd: Tensor, u: Tensor, costates: Tensor, goals: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Second-order terms of each step that `expand` omits, and those at the end."""
        parts, end = [], None
        for s in self.segments:
            part = s.curvature(*(x[s.rows] for x in (q, qd, u, costates, *goals)))
            parts.append(part if end is None else _add_to_first(part, end, 2))
            end = None
            if s.has_final:
                end = s.final_curvature(q[s.stop], qd[s.stop], *(g[s.stop] for g in goals))
        return _join(parts), self._zero(qd, 2) if end is None else end

    def _zero(self, qd: Tensor, rank: int) -> Tensor:
        """Zeros in the shape of a vector or a matrix of the state."""
        return qd.new_zeros(*qd.shape[1:-1], *(2 * self.mech.num_dof,) * rank)

    def are_scalar(
        self, q: Tensor, qd: Tensor, u: Tensor, goals: Sequence[Tensor]
    ) -> tuple[bool, bool]:
        """True if a cost of the steps, and that of the end, is scalar instead of residuals."""
        flags = [
            s.are_scalar(*(x[s.start] for x in (q, qd, u)), *(g[s.start] for g in goals))
            for s in self.segments
        ]
        return any(x for x, _ in flags) or any(x for _, x in flags[:-1]), flags[-1][1]


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def _add_to_first(series: Tensor, final: Tensor, rank: int) -> Tensor:
    """A series of gradients or Hessians whose first row contains that of the final cost before it."""
    count = series.shape[-1] - final.shape[-1]
    first = series[:1] + torch.nn.functional.pad(final, (0, count) * rank)
    return torch.cat([first, series[1:]])


def optimal_control(
    phases: Sequence[Phase],
    *,
    goals: Mapping[str, tuple[int, ...]] | None = None,
    series: Mapping[str, tuple[int, ...]] | None = None,
    actuated: Sequence[str] | None = None,
    bounds: tuple[Tensor, Tensor] | None = None,
    fuse: Compiler | None = None,
) -> OptimalControl:
    """Define an optimal control problem by its phases.

    `ilqr` compares the gradient of the cost with an absolute tolerance, so costs much smaller than one
    converge too early.

    Args:
        phases: in their order in time; see `Phase`.
        goals: names of further arguments of the costs, with their shapes for one sample, such as
            ``{"target": (3,)}``. Their values are passed to `ilqr`.
        series: names of arguments that change from step to step, such as a reference, a time, a moving
            obstacle or a weight, with their shapes for one sample and one step. `ilqr` takes steps + 1 rows
            of each: row t for the cost of step t, and the row after the last step of a phase for its final
            cost.
        actuated: names of the joints on which inputs act; None: all.
        bounds: lower and upper bounds of the inputs, `[num_u]` each [N m or N], infinite where there is none.
        fuse: `torchsko.fuse`, which compiles all parts: expansions, and the backward pass and the rollout of
            a phase as one kernel each. Each kernel is built at its first use, some in half a minute, and
            stays in the disk cache. None: eager.

    Returns:
        The problem; solve it by `torchsko.control.ilqr`.

    Raises:
        MechanismError: on an unknown joint, a joint that is named twice, no input, or phases of different
            robots.
        ShapeError: on bounds whose shape or dtype does not fit; while solving, on a cost that is neither
            `[*batch]` nor `[*batch, r]`.
        TorchskoError: on phases that are not a sequence of `Phase`, no phase, an impact without held frames,
            a number of steps or a time step that is not positive, a cost with other arguments, or an unknown
            method. On goals or series that do not map names to shapes. On a lower bound above the upper, or a
            fuse that is not callable.

    Example:
        A slide tracks a sine wave, of which each step receives one point:

        >>> import torchsko as ts, torch
        >>> builder = ts.MechanismBuilder("slide").link("mass", mass=1.0)
        >>> builder = builder.joint("slide", "prismatic", child="mass")
        >>> slide = builder.build(gravity=(0, 0, 0))
        >>> track = ts.control.Phase(
        ...     slide,
        ...     20,
        ...     0.05,
        ...     lambda mech, q, qd, u, wave: torch.cat([q - wave, 1e-3 * u], -1),
        ...     lambda mech, q, qd, wave: q - wave,
        ... )
        >>> problem = ts.control.optimal_control([track], series={"wave": (1,)})
        >>> t = 0.05 * torch.arange(21, dtype=torch.float64)
        >>> wave, start = 0.1 * torch.sin(6 * t)[:, None], torch.zeros(1).double()
        >>> found = ts.control.ilqr(problem, start, start, torch.zeros(20, 1).double(), wave)
        >>> bool(found.converged), bool((found.q - wave).abs().max() < 0.03)
        (True, True)
    """
    robots, steps = check_phases(phases, Phase)
    robot = robots[0]
    dofs = actuated_dofs(robot, actuated)
    check_bounds(robot, dofs, bounds)
    if fuse is not None and not callable(fuse):
        raise TorchskoError(
            f"optimal_control was given fuse={fuse!r}.",
            "It is a function that compiles the parts of the problem, or None.",
            "Pass fuse=torchsko.fuse, or leave it out.",
        )
    reserved = {"mech", "forces", *_shapes(robot, 1)}
    goal_shapes = parse_shapes("goals", goals, (*reserved,))
    series_shapes = parse_shapes("series", series, (*reserved, *goal_shapes))
    segments: list[Segment] = []
    for phase, mech, step in zip(phases, robots, steps, strict=True):
        held = phase.mech.constraints if isinstance(phase.mech, HeldMechanism) else None
        dynamics = PhaseDynamics(held, phase.impact, phase.dt, step)
        extra = [*goal_shapes, *series_shapes]
        forces = ["forces"] if dynamics.has_forces else []
        check_cost("running", phase.running, ["mech", "q", "qd", "u", *forces, *extra])
        if phase.final is not None:
            check_cost("final", phase.final, ["mech", "q", "qd", *extra])
        parts = PhaseFunctions(phase.running, phase.final, dynamics, dofs, bounds, len(goal_shapes))
        start = segments[-1].stop if segments else 0
        stop = start + phase.steps
        # The rest of the phase has kernels without the impact.
        if phase.impact and phase.steps > 1:
            first = replace(parts, final=None)
            segments.append(
                _segment(first, mech, start, start + 1, goal_shapes, series_shapes, fuse)
            )
            parts, start = replace(parts, dynamics=replace(dynamics, impact=False)), start + 1
        segments.append(_segment(parts, mech, start, stop, goal_shapes, series_shapes, fuse))
    backward = backward_step if bounds is None else bounded_backward_step
    shapes = _shapes(robot, len(dofs))
    return OptimalControl(
        mech=robot,
        dofs=dofs,
        segments=tuple(segments),
        backward=_compiled(backward, robot, shapes, fuse),
        costates=_compiled(costate_step, robot, shapes, fuse),
        bounds=bounds,
        goals=goal_shapes,
        series=series_shapes,
    )


def _segment(
    parts: PhaseFunctions,
    mech: Mechanism,
    start: int,
    stop: int,
    goals: Mapping[str, tuple[int, ...]],
    series: Mapping[str, tuple[int, ...]],
    fuse: Compiler | None,
) -> Segment:
    """A segment with its functions, compiled where `fuse` is given."""
    shapes = _shapes(mech, len(parts.dofs)) | dict(goals) | dict(series)
    extra = (*goals, *series)
    arguments = {
        "expand": ("q", "qd", "u", *extra),
        "curvature": ("q", "qd", "u", "costate", *extra),
        "step": ("q", "qd", "q_bar", "qd_bar", "u", "k", "K", "gap", *series, "alpha", *goals),
    }
    finals = {
        name: ("q", "qd", *extra) for name in ("expand_final", "final_curvature", "cost_final")
    }
    functions: dict[str, Compiler] = {
        name: partial(getattr(parts, name), mech) for name in (*arguments, *finals)
    }
    if fuse is not None:
        needed = arguments if parts.final is None else arguments | finals
        for name, names in needed.items():
            fn = _with_argument_names(getattr(parts, name), names)
            functions[name] = _compiled(fn, mech, shapes, fuse)
    functions["are_scalar"] = partial(parts.are_scalar, mech)
    return Segment(mech, start, stop, parts.final is not None, **functions)


def _compiled(
    fn: Compiler, mech: Mechanism, shapes: Mapping[str, tuple[int, ...]], fuse: Compiler | None
) -> Compiler:
    """A function of the mechanism and tensors as a function of the tensors."""
    if fuse is None:
        return partial(fn, mech)
    names = [name for name in inspect.signature(fn).parameters if name != "mech"]
    return fuse(fn, mech, shapes={name: shapes[name] for name in names})


def _with_argument_names(fn: Compiler, names: Sequence[str]) -> Compiler:
    """The function with these names for its arguments after the mechanism; kernels name their inputs."""

    def call(mech: Mechanism, *args: Tensor) -> Any:
        return fn(mech, *args)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    cast(Any, call).__signature__ = inspect.Signature(
        [inspect.Parameter(name, kind) for name in ("mech", *names)]
    )
    return call


def _shapes(mech: Mechanism, m: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the arguments of all functions for one sample and step."""
    n, num_q = mech.num_dof, mech.num_q
    x = 2 * n
    return {
        "q": (num_q,), "qd": (n,), "u": (m,), "costate": (x,), "q_bar": (num_q,), "qd_bar": (n,),
        "k": (m,), "K": (m, x), "alpha": (), "gap": (x,), "V": (x, x), "v": (x,), "s": (x,),
        "p": (x,), "A": (x, x), "B": (x, m), "gradient": (x + m,), "hessian": (x + m, x + m),
        "descent": (m,), "low": (m,), "high": (m,), "mu": (),
    }  # fmt: skip
