r"""Optimal control problems of a mechanism.

A problem determines the inputs u of N steps that minimize

.. math:: J = \sum_{t < N} l(q_t, \dot q_t, u_t) + l_N(q_N, \dot q_N)

from a given initial state. Near a trajectory z = [d; w; u] stands for the configuration integrate(q, d), the
velocity w and the input u, so quaternions count with three coordinates. A cost that returns a vector r stands
for |r|^2 / 2. Its Hessian is the Gauss-Newton approximation J_r* J_r; the curvature adds the remaining terms
and those of the dynamics, weighted by the costates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from torchsko.integrators.implicit import SemiImplicitEuler
from torchsko.integrators.integrators import INTEGRATORS, check_method_name
from torchsko.integrators.step import Step
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.time_step import check_dt
from torchsko.utils.numbers import as_number

Compiler = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class OptimalControl:
    """An optimal control problem, to be solved for many initial states; `optimal_control` makes it.

    Attributes:
        mech: the mechanism.
        dofs: degrees of freedom on which the inputs act.
        expand: (q, qd, u, *goals) to A, B, gradient and Hessian of the running cost.
        curvature: (q, qd, u, costate, *goals) to the second-order terms that `expand` omits.
        expand_final: (q, qd, *goals) to gradient and Hessian of the final cost.
        final_curvature: (q, qd, *goals) to the terms that this Hessian omits.
        cost_final: (q, qd, *goals) to the final cost.
        feedback_step: one step under a feedback policy; see `ilqr`.
        scalar_costs: (q, qd, u, *goals) to whether the running and the final cost are scalar.
        riccati: see `torchsko.control.ilqr.riccati_step.riccati_step`, or `bounded_step` with bounds.
        bounds: lower and upper bounds of the inputs, `[num_u]` each; or None.
        goals: names of further arguments of the costs, with shapes for one sample.
        series: names of arguments that change from step to step, with shapes for one sample and step. They
            follow the goals.
    """

    mech: Mechanism
    dofs: tuple[int, ...]
    expand: Compiler
    curvature: Compiler
    expand_final: Compiler
    final_curvature: Compiler
    cost_final: Compiler
    feedback_step: Compiler
    scalar_costs: Compiler
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
    """Define an optimal control problem by its costs.

    Costs are twice differentiable functions of tensors with any batch dimensions. `ilqr` compares the
    gradient of the cost with an absolute tolerance, so costs much smaller than one converge too early.

    Args:
        mech: the mechanism. Values of a layer are read once.
        running: (mech, q, qd, u, *goals, *series) to the cost of a step `[*batch]`, or to residuals
            `[*batch, r]`, of which half the square counts.
        final: (mech, q, qd, *goals, *series) to the final cost, in the same form.
        dt: time step [s], positive; a number, or a tensor of shape [].
        goals: names of further arguments of the costs, with their shapes for one sample, such as
            ``{"target": (3,)}``. Their values are passed to `ilqr`.
        series: names of arguments that change from step to step, such as a reference, a time, a moving
            obstacle or a weight, with their shapes for one sample and one step. `ilqr` takes steps + 1 rows
            of each: row t for the cost of step t, the last row for the final cost.
        actuated: names of the joints on which inputs act; None: all.
        bounds: lower and upper bounds of the inputs, `[num_u]` each [N m or N], infinite where there is none.
        method: integrator, a name in `torchsko.integrators.integrators.INTEGRATORS`.
        creep: speed [rad/s or m/s] below which dry friction acts like damping; None: 1e-4, as in rollouts.
            Linear models with so small a value hold for tiny changes of speed only, and `ilqr` needs many
            iterations where joints start, stop or turn back. At 0.1 it takes about as many iterations as
            without friction, and the feedback compensates the difference: the trajectory of a double pendulum
            under the friction of rollouts costs at most 1.5 % more than planned. The plan itself is the
            rollout by ``method=SemiImplicitEuler(creep)``.
        fuse: `torchsko.fuse`, which compiles all parts. Each kernel is built at its first use, some in half a
            minute, and stays in the disk cache. None: eager.

    Returns:
        The problem; solve it by `torchsko.control.ilqr`.

    Raises:
        MechanismError: on an unknown joint, a joint that is named twice, or no input.
        ShapeError: on bounds whose shape or dtype does not fit; while solving, on a cost that is neither
            `[*batch]` nor `[*batch, r]`.
        TorchskoError: on a cost with other arguments, an unknown method, or a time step that is not positive.
            On a creep that is not positive, or that the method does not have. On goals or series that do not
            map names to shapes. On a lower bound above the upper, or a fuse that is not callable.

    Example:
        A slide tracks a sine wave, of which each step receives one point:

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
            "It is a function that compiles the parts of the problem, or None.",
            "Pass fuse=torchsko.fuse, or leave it out.",
        )
    reserved = {"mech", *(name for names in _ARGUMENTS.values() for name in names)}
    goal_shapes = parse_shapes("goals", goals, (*reserved,))
    series_shapes = parse_shapes("series", series, (*reserved, *goal_shapes))
    extra_shapes = goal_shapes | series_shapes
    check_cost("running", running, ["mech", "q", "qd", "u", *extra_shapes])
    check_cost("final", final, ["mech", "q", "qd", *extra_shapes])
    parts = ProblemFunctions(running, final, dofs, dt, _step(method, creep), bounds)
    riccati = riccati_step if bounds is None else bounded_step
    functions: dict[str, Any] = {
        name: partial(getattr(parts, name), robot) for name in (*_ARGUMENTS, "scalar_costs")
    }
    functions["riccati"] = partial(riccati, robot)
    if fuse is not None:
        shapes = _shapes(robot.num_q, robot.num_dof, len(dofs))
        for name, arguments in _ARGUMENTS.items():
            names = (*arguments, *extra_shapes)
            fn = _with_argument_names(getattr(parts, name), names)
            inputs = {k: x for k, x in (shapes | extra_shapes).items() if k in names}
            functions[name] = fuse(fn, robot, shapes=inputs)
        arguments = inspect.signature(riccati).parameters
        inputs = {k: shapes[k] for k in arguments if k != "mech"}
        functions["riccati"] = fuse(riccati, robot, shapes=inputs)
    return OptimalControl(
        mech=robot, dofs=dofs, bounds=bounds, goals=goal_shapes, series=series_shapes, **functions
    )


def _step(method: str, creep: float | None) -> Step:
    """The integrator of a name, with another creep where one is given."""
    step = INTEGRATORS[method]
    if creep is None:
        return step
    speed = as_number(creep)
    if not isinstance(step, SemiImplicitEuler) or speed is None or not speed > 0:
        raise TorchskoError(
            f"optimal_control was given creep={creep!r} with method={method!r}.",
            'It is a positive speed, for the methods "semi_implicit_euler" and "implicit".',
            "Pass creep=0.1, say, or leave it out.",
        )
    return replace(step, creep=speed)


def _with_argument_names(fn: Compiler, names: Sequence[str]) -> Compiler:
    """The function with these names for its arguments after the mechanism; kernels name their inputs."""

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
"""Arguments of the functions of a problem, without goals."""


def _shapes(num_q: int, n: int, m: int) -> dict[str, tuple[int, ...]]:
    x = 2 * n
    return {
        "u": (m,), "costate": (x,), "q_bar": (num_q,), "qd_bar": (n,), "k": (m,), "K": (m, x),
        "alpha": (), "V": (x, x), "v": (x,), "A": (x, x), "B": (x, m), "gradient": (x + m,),
        "hessian": (x + m, x + m), "low": (m,), "high": (m,), "mu": (),
    }  # fmt: skip
