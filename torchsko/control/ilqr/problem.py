r"""Optimal control problems of a mechanism, and their expansions along a motion in tangent coordinates.

A problem asks for the inputs u of N steps that lower

.. math:: J = \sum_{t < N} l(q_t, \dot q_t, u_t) + l_N(q_N, \dot q_N)

from a given state. Near a motion z = [d; w; u] stands for the configuration integrate(q, d), the velocity w
and the input u, so quaternions count with three coordinates. A cost that is a vector r stands for
|r|^2 / 2; its Hessian is taken as J_r* J_r (Gauss and Newton), to which the curvature adds what is missing
with that of the steps, weighed by the costates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from torchsko.control.ilqr.expansion import Cost, ProblemFunctions
from torchsko.control.ilqr.problem_checks import (
    actuated_dofs,
    check_bounds,
    check_cost,
    parse_shapes,
)
from torchsko.control.ilqr.riccati_step import bounded_step, riccati_step
from torchsko.errors import TorchskoError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.argument_checks import as_number, check_dt, check_method_name
from torchsko.rollout.implicit import ImplicitEuler
from torchsko.rollout.integrators import INTEGRATORS, SemiImplicitEuler
from torchsko.rollout.step import Step

Compiler = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class OptimalControl:
    """An optimal control problem, ready to be solved for many starts: `optimal_control` makes it.

    Attributes:
        mech: the mechanism.
        dofs: degrees of freedom on which the inputs act.
        expand: (q, qd, u, *goals) to A, B, gradient and Hessian of the running cost.
        curvature: (q, qd, u, costate, *goals) to what their Hessian leaves out.
        expand_final: (q, qd, *goals) to gradient and Hessian of the final cost.
        final_curvature: (q, qd, *goals) to what that Hessian leaves out.
        cost_final: (q, qd, *goals) to the final cost.
        follow: one step under feedback; see `ilqr`.
        numbers: (q, qd, u, *goals) to whether the running and the final cost are numbers, not residuals.
        riccati: see `torchsko.control.ilqr.riccati_step.riccati_step`, and `bounded_step` there of
            inputs with bounds.
        bounds: the lowest and the highest inputs, `[num_u]` each; None: none.
        goals: names of what costs depend on besides, with shapes for one sample.
        series: names of what changes from step to step, with shapes for one sample and step. Where goals
            are arguments, those of the step come after them.
    """

    mech: Mechanism
    dofs: tuple[int, ...]
    expand: Compiler
    curvature: Compiler
    expand_final: Compiler
    final_curvature: Compiler
    cost_final: Compiler
    feedback_step: Compiler
    numbers: Compiler
    riccati: Compiler
    bounds: tuple[Tensor, Tensor] | None
    goals: Mapping[str, tuple[int, ...]]
    series: Mapping[str, tuple[int, ...]]

    @property
    def num_u(self) -> int:
        """Number of inputs."""
        return len(self.dofs)


def optimal_control(
    mech: MechanismLike,
    running: Cost,
    final: Cost,
    dt: float | Tensor,
    *,
    goals: Mapping[str, tuple[int, ...]] | None = None,
    series: Mapping[str, tuple[int, ...]] | None = None,
    actuated: Sequence[str] | None = None,
    bounds: tuple[Tensor, Tensor] | None = None,
    method: str = "semi_implicit_euler",
    creep: float | None = None,
    fuse: Compiler | None = None,
) -> OptimalControl:
    """An optimal control problem: what a motion costs.

    Costs are functions of tensors with any batch dimensions in front, twice differentiable. Mind their
    units: `ilqr` stops at a norm of the gradient, which costs a million times smaller meet at once.

    Args:
        mech: the mechanism. A layer's values are read once.
        running: (mech, q, qd, u, *goals, *series) to the cost of a step `[*batch]`, or to residuals
            `[*batch, r]`, of which half the square counts.
        final: (mech, q, qd, *goals, *series) likewise, at the end.
        dt: time step [s], positive; a number, or a tensor of shape [].
        goals: names of further tensors that costs depend on, with their shapes for one sample, such as
            ``{"target": (3,)}``; they are given to `ilqr`.
        series: likewise of what changes from step to step, such as a reference, a time, an obstacle on its
            way or a weight, with their shapes for one sample and one step. `ilqr` takes steps + 1 rows of
            each: row t is what the cost of step t is given, the last what the final cost is.
        actuated: names of the joints on which inputs act; None: all.
        bounds: the lowest and the highest inputs, `[num_u]` each [N m or N], infinite where there is none;
            None: none at all.
        method: of the step: a name in `torchsko.rollout.integrators.INTEGRATORS`; no step of another kind.
        creep: speed [rad/s or m/s] below which steps take dry friction as damping; None: 1e-4, as rollouts
            do. Linear models of friction so sharp hold for speeds that differ by as little, and `ilqr` goes
            on in small steps where joints start, stop or turn back. At 0.1 it takes about as many iterations
            as without friction, and its gains make up for the difference: a double pendulum's motion so
            planned costs 1.5 % more than its plan at most, followed under the friction of rollouts. The
            plan itself is the rollout by ``method=SemiImplicitEuler(creep)``.
        fuse: `torchsko.fuse`, which makes all parts kernels; each is built at its first use, some take
            half a minute, and is kept on disk. None: eager.

    Returns:
        The problem; solve it by `torchsko.control.ilqr.solver`.

    Raises:
        MechanismError: on an unknown joint, one named twice, or no input at all.
        ShapeError: on bounds whose shape or dtype does not fit; while solving, on a cost that is neither
            `[*batch]` nor `[*batch, r]`.
        TorchskoError: on a cost of other arguments, an unknown method, a creep that is not above 0, or of
            a method that takes none, a time step that is not positive,
            goals or series that are no mapping of names to shapes, a lowest input above the highest, or a
            fuse that is no function.

    Example:
        A slide follows a wave, of which each step is given its own point:

        >>> import torchsko as ts, torch
        >>> builder = ts.MechanismBuilder("slide").link("mass", mass=1.0)
        >>> builder = builder.joint("slide", "prismatic", child="mass")
        >>> slide = builder.build(gravity=(0, 0, 0))
        >>> problem = ts.control.optimal_control(
        ...     slide,
        ...     lambda mech, q, qd, u, wave: torch.cat([q - wave, 1e-3 * u], -1),
        ...     lambda mech, q, qd, wave: q - wave,
        ...     dt=0.05,
        ...     series={"wave": (1,)},
        ... )
        >>> t = 0.05 * torch.arange(21, dtype=torch.float64)
        >>> wave, start = 0.1 * torch.sin(6 * t)[:, None], torch.zeros(1).double()
        >>> found = ts.control.ilqr(problem, start, start, torch.zeros(20, 1).double(), wave)
        >>> bool(found.converged), bool((found.q - wave).abs().max() < 0.03)
        (True, True)
    """
    robot = as_mechanism(mech)
    check_method_name(method, "optimal_control")
    check_dt(robot, dt, None, backward=False)
    dofs = actuated_dofs(robot, actuated)
    check_bounds(robot, dofs, bounds)
    if fuse is not None and not callable(fuse):
        raise TorchskoError(
            f"optimal_control was given fuse={fuse!r}.",
            "It is what makes kernels of the parts of a problem, or None.",
            "Pass fuse=torchsko.fuse, or leave it out.",
        )
    taken = {"mech", *(name for names in _ARGUMENTS.values() for name in names)}
    held = parse_shapes("goals", goals, (*taken,))
    moving = parse_shapes("series", series, (*taken, *held))
    further = [*held, *moving]
    check_cost("running", running, ["mech", "q", "qd", "u", *further])
    check_cost("final", final, ["mech", "q", "qd", *further])
    parts = ProblemFunctions(running, final, dofs, dt, _step(method, creep), bounds)
    named = (
        "expand",
        "curvature",
        "expand_final",
        "final_curvature",
        "cost_final",
        "feedback_step",
    )
    made = {name: _bound(getattr(parts, name), robot) for name in named}
    back = riccati_step if bounds is None else bounded_step
    made["riccati"] = _bound(back, robot)
    made["numbers"] = _bound(parts.numbers, robot)
    wanted = held | moving
    if fuse is not None:
        own = _shapes(robot.num_q, robot.num_dof, len(dofs))
        shapes = own | wanted
        for name in named:
            made[name] = _Kernel(fuse, getattr(parts, name), robot, shapes, tuple(wanted))
        taken = inspect.signature(back).parameters
        made["riccati"] = fuse(back, robot, shapes={k: own[k] for k in taken if k != "mech"})
    return OptimalControl(mech=robot, dofs=dofs, bounds=bounds, goals=held, series=moving, **made)


def _step(method: str, creep: float | None) -> Step:
    """The step of a name, with a creep of its own where one is given.

    Raises:
        TorchskoError: when that is no speed, or the step has none.
    """
    step = INTEGRATORS[method]
    if creep is None:
        return step
    speed = as_number(creep)
    if not isinstance(step, SemiImplicitEuler | ImplicitEuler) or speed is None or not speed > 0:
        raise TorchskoError(
            f"optimal_control was given creep={creep!r} with method={method!r}.",
            'It is a speed above 0, of the steps "semi_implicit_euler" and "implicit".',
            "Pass creep=0.1, say, or leave it out.",
        )
    return replace(step, creep=speed)


def _bound(fn: Compiler, mech: Mechanism) -> Compiler:
    return lambda *args: fn(mech, *args)


class _Kernel:
    """A part as a kernel, of which goals are arguments by name: made at its first call."""

    def __init__(
        self,
        fuse: Compiler,
        fn: Compiler,
        mech: Mechanism,
        shapes: Mapping[str, tuple[int, ...]],
        goals: tuple[str, ...],
    ) -> None:
        names = _ARGUMENTS[fn.__name__] + goals
        known = {name: shapes[name] for name in names if name in shapes}
        self._call = fuse(_named(fn, names), mech, shapes=known)

    def __call__(self, *args: Tensor) -> Any:
        return self._call(*args)


def _named(fn: Compiler, names: Sequence[str]) -> Compiler:
    """The function with these names for its arguments after the mechanism: a kernel's inputs have names."""

    def call(mech: Mechanism, *args: Tensor) -> Any:
        return fn(mech, *args)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    cast(Any, call).__signature__ = inspect.Signature(
        [inspect.Parameter(name, kind) for name in ("mech", *names)]
    )
    return call


_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "expand": ("q", "qd", "u"),
    "curvature": ("q", "qd", "u", "costate"),
    "expand_final": ("q", "qd"),
    "final_curvature": ("q", "qd"),
    "cost_final": ("q", "qd"),
    "feedback_step": ("q", "qd", "q_bar", "qd_bar", "u", "k", "K", "alpha"),
}
"""What the parts of a problem take, goals left out."""


def _shapes(num_q: int, n: int, m: int) -> dict[str, tuple[int, ...]]:
    x = 2 * n
    return {
        "u": (m,), "costate": (x,), "q_bar": (num_q,), "qd_bar": (n,), "k": (m,), "K": (m, x),
        "alpha": (), "V": (x, x), "v": (x,), "A": (x, x), "B": (x, m), "gradient": (x + m,),
        "hessian": (x + m, x + m), "low": (m,), "high": (m,), "mu": (),
    }  # fmt: skip
