"""Validation of the arguments of `ilqr`, and its warning about non-finite samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.problem_checks import Shapes
from torchsko.errors import NonFiniteError, ShapeError, TorchskoError, caller_stack_level
from torchsko.integrators.finite_checks import first_nonfinite
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import misfit, no_tensor, shared_batch
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.numbers import as_integer, as_number


def check_solver(tolerance: Any, max_iterations: Any, exact: Any, stop_early: Any) -> None:
    """Check the options of the solver."""
    number, count = as_number(tolerance), as_integer(max_iterations)
    if number is None or not number > 0 or count is None or count < 0:
        raise TorchskoError(
            f"ilqr was given tolerance={tolerance}, max_iterations={max_iterations}.",
            "The tolerance is a positive number, the number of iterations an integer of 0 or more.",
            "Pass tolerance=1e-6 and max_iterations=100, say.",
        )
    for name, x in (("exact", exact), ("stop_early", stop_early)):
        if not isinstance(x, bool):
            raise TorchskoError(
                f"ilqr was given {name}={x!r}.",
                "It is True or False.",
                f"Pass {name}=True or {name}=False.",
            )


def check_problem(solver: str, problem: Any) -> None:
    """Check that a solver was given an optimal control problem."""
    if not isinstance(problem, OptimalControl):
        raise TorchskoError(
            f"{solver} was given a {type(problem).__name__} as problem.",
            "A problem is an OptimalControl: a mechanism with costs.",
            "Pass ts.control.optimal_control(phases).",
        )


def check_start(
    solver: str,
    problem: OptimalControl,
    start: tuple[Tensor, Tensor, Tensor],
    goals: tuple[Tensor, ...],
    further: Mapping[str, tuple[Tensor, tuple[int, ...]]],
) -> tuple[torch.Size, Shapes, dict[str, Tensor]]:
    """Check all tensors; return batch dimensions, shapes for one sample, and tensors, by name.

    Args:
        solver: name of the function that solves the problem.
        problem: the problem.
        start: initial configuration and velocity, and inputs.
        goals: goals and series.
        further: other finite tensors with shapes for one sample, which follow the inputs.
    """
    names = [*problem.goals, *problem.series]
    if len(goals) != len(names):
        raise ShapeError(
            f"{solver} was given {len(goals)} goals.",
            f"The costs of the problem depend on {names}.",
            "Pass them after u, in this order.",
        )
    mech = problem.mech
    n, m, steps = mech.num_dof, problem.num_u, problem.num_steps
    shapes: Shapes = {"q": (mech.num_q,), "qd": (n,), "u": (steps, m)}
    tensors = dict(zip(shapes, start, strict=True))
    shapes |= {name: shape for name, (_, shape) in further.items()}
    tensors |= {name: x for name, (x, _) in further.items()}
    for name, x in tensors.items():
        _check(mech, name, x, shapes[name], finite=True)
    shapes |= dict(problem.goals) | {k: (steps + 1, *shape) for k, shape in problem.series.items()}
    tensors |= dict(zip(names, goals, strict=True))
    for name in names:
        _check(mech, name, tensors[name], shapes[name])
    batches = {name: x.shape[: x.ndim - len(shapes[name])] for name, x in tensors.items()}
    return shared_batch({"the mechanism": mech.batch_shape} | batches), shapes, tensors


def guessed_states(
    problem: OptimalControl, states: Any
) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """The initial guess of states of multiple shooting, with shapes for one sample, by name."""
    if states is None:
        return {}
    configurations, velocities = _pair(states)
    mech, rows = problem.mech, problem.num_steps + 1
    return {
        "states[0]": (configurations, (rows, mech.num_q)),
        "states[1]": (velocities, (rows, mech.num_dof)),
    }


def _pair(states: Any) -> tuple[Any, Any]:
    """Configurations and velocities."""
    if not isinstance(states, Sequence) or len(states) != 2:
        kind = type(states).__name__
        kind = f"{len(states)} values" if isinstance(states, Sequence) else kind
        raise ShapeError(
            f"states was given as {kind}.",
            "It is a pair of configurations and velocities.",
            "Pass a pair of shapes [*batch, steps + 1, num_q] and [*batch, steps + 1, num_dof].",
        )
    return states[0], states[1]


def _check(
    mech: Mechanism, name: str, x: Any, shape: tuple[int, ...], finite: bool = False
) -> None:
    """Check that x is a tensor `[*batch, *shape]` of the mechanism's dtype, and finite if required.

    Values are read on a CPU only.
    """
    if not isinstance(x, Tensor):
        raise ShapeError(*no_tensor(name, x, mech, shape))
    meaning = f"Its last dimensions are those of one sample, {list(shape)}."
    if (why := misfit(mech, name, x, shape, meaning)) is not None:
        raise ShapeError(*why)
    read = concrete_values(x) if finite else None
    if read is not None and not np.isfinite(read).all():
        sample = np.argwhere(~np.isfinite(read))[0, : x.ndim - len(shape)].tolist()
        raise NonFiniteError(
            f"{name} is not finite{f' in sample {sample}' if sample else ''}.",
            "The trajectory would not be finite.",
            f"Check the source of {name}, or leave such samples out.",
        )


def warn_nonfinite(
    problem: OptimalControl, q: Tensor, qd: Tensor, cost: Tensor, gradient: Tensor
) -> None:
    """Warn of samples that are not finite, where values can be read for free."""
    values, norms = concrete_values(cost), concrete_values(gradient)
    if values is None or norms is None:
        return
    wrong = np.argwhere(~(np.isfinite(values) & np.isfinite(norms)))
    if not len(wrong):
        return
    sample = wrong[0].tolist()
    state = first_nonfinite(problem.mech, q[*sample], qd[*sample])
    if state is not None:
        what = f"the trajectory is not finite at step {state.step}, at joint {state.joint!r}"
        advice = "Start from smaller inputs or from states=, or use a shorter dt"
    elif not np.isfinite(values[*sample]):
        what = f"the cost of the trajectory is {values[*sample]}"
        advice = "Check the goals and series, and start where all costs are finite"
    else:
        what = "the gradient of the cost is not finite"
        advice = "Check roots and norms in the costs, which have no derivative at 0"
    where = f" in sample {sample} ({len(wrong)} such in the batch)" if sample else ""
    warnings.warn(
        f"ilqr stopped{where}: {what}.\n"
        "The sample has no descent direction and has not converged.\n"
        f"{advice}.",
        RuntimeWarning,
        stacklevel=caller_stack_level(),
    )
