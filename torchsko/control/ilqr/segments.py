"""Phases of a motion, and their division into segments of steps with one form of dynamics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.control.ilqr.expansion import Cost, PhaseFunctions
from torchsko.control.ilqr.inequalities import Inequalities
from torchsko.control.ilqr.phase_dynamics import PhaseDynamics
from torchsko.control.ilqr.problem_checks import Shapes, check_cost
from torchsko.errors import ShapeError
from torchsko.integrators.step import Step
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.held.held_mechanism import HeldMechanism
from torchsko.verbs.mechanism_inputs import without_gradients

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
        inequalities: constraints of each step, a function of the arguments of `running`: values `[*batch, c]`
            that must not be negative, such as distances to the ground, or limits of forces less the forces.
        cones: constraints of each step, a function of the arguments of `running`: vectors `[*batch, k, d]`
            whose first entry must be at least the norm of the others, such as [mu f_z, f_x, f_y] of each
            foot.
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
    inequalities: Cost | None = None
    cones: Cost | None = None
    method: str | Step = "semi_implicit_euler"


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive steps with one form of dynamics, and the functions of them.

    Attributes:
        mech: the mechanism.
        phase: number of the phase.
        start: index of the first step.
        stop: index after the last step.
        functions: the functions in eager mode; the other attributes are compiled if a compiler is given.
        are_scalar: see `torchsko.control.ilqr.expansion.PhaseFunctions`, as all others.
    """

    mech: Mechanism
    phase: int
    start: int
    stop: int
    functions: PhaseFunctions
    expand: Compiler
    curvature: Compiler
    step: Compiler
    sample: Compiler
    expand_final: Compiler
    final_curvature: Compiler
    cost_final: Compiler
    are_scalar: Compiler

    @property
    def rows(self) -> slice:
        """The steps of the segment."""
        return slice(self.start, self.stop)

    @property
    def has_final(self) -> bool:
        """True if a final cost follows the last step."""
        return self.functions.final is not None

    @property
    def inequalities(self) -> Inequalities | None:
        """Constraints of each step; None for none."""
        return self.functions.inequalities

    def arguments(
        self, goals: Sequence[Tensor], multipliers: Tensor, penalty: Tensor
    ) -> tuple[Tensor, ...]:
        """The goals of all steps, followed by the multipliers and penalties of the inequalities."""
        found = tuple(x[self.rows] for x in goals)
        if self.inequalities is None:
            return found
        duals = multipliers[self.rows, ..., : self.inequalities.num_rows]
        return *found, duals, penalty.expand(len(duals), *penalty.shape)


def make_segments(
    phases: Sequence[Phase],
    robots: Sequence[Mechanism],
    steps: Sequence[Step],
    inputs: tuple[tuple[int, ...], tuple[Tensor, Tensor] | None],
    extra: tuple[Shapes, Shapes],
    fuse: Compiler | None,
) -> tuple[Segment, ...]:
    """The segments of all phases.

    Args:
        phases: the phases.
        robots: the mechanism of each phase.
        steps: the integrator of each phase.
        inputs: degrees of freedom and bounds of the inputs.
        extra: goals and series, with shapes for one sample.
        fuse: `torchsko.fuse`, or None.
    """
    goals, series = extra
    segments: list[Segment] = []
    for number, (phase, mech, step) in enumerate(zip(phases, robots, steps, strict=True)):
        held = phase.mech.constraints if isinstance(phase.mech, HeldMechanism) else None
        dynamics = PhaseDynamics(held, phase.impact, phase.dt, step)
        forces = ["forces"] if dynamics.has_forces else []
        for name in ("running", "inequalities", "cones"):
            if (cost := getattr(phase, name)) is not None:
                check_cost(name, cost, ["mech", "q", "qd", "u", *forces, *goals, *series])
        if phase.final is not None:
            check_cost("final", phase.final, ["mech", "q", "qd", *goals, *series])
        parts = PhaseFunctions(phase.running, phase.final, dynamics, *inputs, len(goals), None)
        if phase.inequalities is not None or phase.cones is not None:
            found = _inequalities(phase, mech, parts, [*goals.values(), *series.values()])
            parts = replace(parts, inequalities=found)
        start = segments[-1].stop if segments else 0
        stop = start + phase.steps
        if phase.impact and phase.steps > 1:  # the rest of the phase has kernels without the impact
            first = replace(parts, final=None)
            segments.append(_segment(first, mech, number, (start, start + 1), goals, series, fuse))
            parts, start = replace(parts, dynamics=replace(dynamics, impact=False)), start + 1
        segments.append(_segment(parts, mech, number, (start, stop), goals, series, fuse))
    return tuple(segments)


def _inequalities(
    phase: Phase, mech: Mechanism, parts: PhaseFunctions, extra: Sequence[tuple[int, ...]]
) -> Inequalities:
    """The constraints of a phase, with the shapes of their values at rest in the initial configuration."""
    q = mech.initial()
    qd, u = q.new_zeros(mech.num_dof), q.new_zeros(len(parts.dofs))
    forces = ()
    if parts.dynamics.has_forces:
        forces = (parts.dynamics.advance(mech, q, qd, torch.zeros_like(qd)).forces,)
    arguments = (mech, q, qd, u, *forces, *(q.new_ones(shape) for shape in extra))
    count, cone_shape = 0, (0, 1)
    for name, rank in (("inequalities", 1), ("cones", 2)):
        if (values := getattr(phase, name)) is None:
            continue
        found = values(*arguments)
        lead = len(mech.batch_shape)
        if not isinstance(found, Tensor) or found.ndim != lead + rank or not found.shape[-1]:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ShapeError(
                f"{name} of a phase returned {shape} for one sample.",
                "Inequalities are values [*batch, c], cones vectors [*batch, k, d].",
                "Return torch.stack([mu * f[..., 2], f[..., 0], f[..., 1]], -1) of forces f "
                "[*batch, k, 3] as cones, say.",
            )
        if rank == 1:
            count = found.shape[-1]
        else:
            cone_shape = (found.shape[-2], found.shape[-1])
    return Inequalities(phase.inequalities, phase.cones, count, cone_shape)


def _segment(
    parts: PhaseFunctions,
    mech: Mechanism,
    phase: int,
    steps: tuple[int, int],
    goals: Mapping[str, tuple[int, ...]],
    series: Mapping[str, tuple[int, ...]],
    fuse: Compiler | None,
) -> Segment:
    """A segment with its functions, compiled where `fuse` is given."""
    source = parts  # a contact model of its own would lack the gradients of its weights to masses
    constant = without_gradients(mech)
    parts = replace(parts, dynamics=parts.dynamics.with_contact_of(constant))
    shapes = step_shapes(mech, len(parts.dofs)) | dict(goals) | dict(series)
    extra = (*goals, *series)
    duals = () if parts.inequalities is None else ("multipliers", "penalty")
    if parts.inequalities is not None:
        shapes["multipliers"] = (parts.inequalities.num_rows,)
    arguments = {
        "expand": ("q", "qd", "u", *extra, *duals),
        "curvature": ("q", "qd", "u", "costate", *extra, *duals),
        "sample": ("q", "qd", "cost", "random", "u", *series, "deviation", *goals),
        "step": ("q", "qd", "q_bar", "qd_bar", "u", "k", "K", "gap", *series, "alpha", *goals),
    }
    finals = {
        name: ("q", "qd", *extra) for name in ("expand_final", "final_curvature", "cost_final")
    }
    functions: dict[str, Compiler] = {
        name: partial(getattr(parts, name), constant) for name in (*arguments, *finals)
    }
    if fuse is not None:
        needed = arguments if parts.final is None else arguments | finals
        for name, names in needed.items():
            fn = _with_argument_names(getattr(parts, name), names)
            functions[name] = compiled(fn, constant, shapes, fuse)
    functions["are_scalar"] = partial(parts.are_scalar, constant)
    return Segment(mech, phase, *steps, source, **functions)


def compiled(
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


def step_shapes(mech: Mechanism, m: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the arguments of all functions for one sample and step."""
    n, num_q = mech.num_dof, mech.num_q
    x = 2 * n
    return {
        "q": (num_q,), "qd": (n,), "u": (m,), "costate": (x,), "q_bar": (num_q,), "qd_bar": (n,),
        "k": (m,), "K": (m, x), "alpha": (), "gap": (x,), "V": (x, x), "v": (x,), "s": (x,),
        "p": (x,), "A": (x, x), "B": (x, m), "gradient": (x + m,), "hessian": (x + m, x + m),
        "descent": (m,), "low": (m,), "high": (m,), "mu": (), "penalty": (), "cost": (),
        "random": (3,), "deviation": (m,),
    }  # fmt: skip
