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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.control.ilqr.problem_checks import (
    actuated_dofs,
    check_bounds,
    check_phases,
    parse_shapes,
)
from torchsko.control.ilqr.riccati_step import (
    backward_step,
    bounded_backward_step,
    costate_step,
)
from torchsko.control.ilqr.segments import (
    Compiler,
    Phase,
    Segment,
    compiled,
    make_segments,
    step_shapes,
)
from torchsko.errors import TorchskoError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.mechanism_inputs import without_gradients


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
    def num_rows(self) -> int:
        """Largest number of values of the inequalities of a step."""
        return max(0 if x.inequalities is None else x.inequalities.num_rows for x in self.segments)

    @property
    def num_steps(self) -> int:
        """Number of steps of all phases."""
        return self.segments[-1].stop

    @property
    def is_batched(self) -> bool:
        """True if a mechanism has batch dimensions, so that samples cannot be selected."""
        return any(segment.mech.batch_shape for segment in self.segments)

    def project(self, values: Tensor) -> Tensor:
        """The nearest values that satisfy the inequalities, `[steps, *batch, num_rows]`."""
        parts = []
        for s in self.segments:
            count = 0 if s.inequalities is None else s.inequalities.num_rows
            part = values[s.rows]
            if s.inequalities is not None:
                found = s.inequalities.project(part[..., :count])
                part = torch.nn.functional.pad(found, (0, part.shape[-1] - count))
            parts.append(part)
        return _join(parts)

    def expand(
        self,
        q: Tensor,
        qd: Tensor,
        u: Tensor,
        multipliers: Tensor,
        penalty: Tensor,
        goals: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """A, B, gradient and Hessian of each step, then gradient and Hessian at the end, time first.

        The gradient and Hessian of a step contain those of the final cost of the phase before it.
        """
        parts, end = [], None
        for s in self.segments:
            extra = s.arguments(goals, multipliers, penalty)
            part = s.expand(*(x[s.rows] for x in (q, qd, u)), *extra)
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
        self,
        q: Tensor,
        qd: Tensor,
        u: Tensor,
        costates: Tensor,
        multipliers: Tensor,
        penalty: Tensor,
        goals: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Second-order terms of each step that `expand` omits, and those at the end."""
        parts, end = [], None
        for s in self.segments:
            extra = s.arguments(goals, multipliers, penalty)
            part = s.curvature(*(x[s.rows] for x in (q, qd, u, costates)), *extra)
            parts.append(part if end is None else _add_to_first(part, end, 2))
            end = None
            if s.has_final:
                end = s.final_curvature(q[s.stop], qd[s.stop], *(g[s.stop] for g in goals))
        return _join(parts), self._zero(qd, 2) if end is None else end

    def value_jacobian(self, q: Tensor, qd: Tensor, u: Tensor, goals: Sequence[Tensor]) -> Tensor:
        """Derivatives of the inequalities of each step, `[steps, *batch, num_rows, 2 num_dof + num_u]`."""
        parts = []
        for s in self.segments:
            arguments = (x[s.rows] for x in (q, qd, u, *goals))
            part = s.functions.value_jacobian(s.mech, *arguments)
            parts.append(torch.nn.functional.pad(part, (0, 0, 0, self.num_rows - part.shape[-2])))
        return _join(parts)

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
    reserved = {"mech", "forces", "multipliers", *step_shapes(robot, 1)}
    goal_shapes = parse_shapes("goals", goals, (*reserved,))
    series_shapes = parse_shapes("series", series, (*reserved, *goal_shapes))
    shapes = step_shapes(robot, len(dofs))
    segments = make_segments(
        phases, robots, steps, (dofs, bounds), (goal_shapes, series_shapes), fuse
    )
    backward = backward_step if bounds is None else bounded_backward_step
    constant = without_gradients(robot)
    return OptimalControl(
        mech=robot,
        dofs=dofs,
        segments=segments,
        backward=compiled(backward, constant, shapes, fuse),
        costates=compiled(costate_step, constant, shapes, fuse),
        bounds=bounds,
        goals=goal_shapes,
        series=series_shapes,
    )
