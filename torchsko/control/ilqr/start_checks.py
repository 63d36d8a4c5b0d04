"""Whether what a problem is solved from fits: starts, inputs, states and goals, by name."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.problem_checks import Shapes
from torchsko.errors import NonFiniteError, ShapeError, TorchskoError, caller_stack_level
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import misfit, shared_batch
from torchsko.rollout.argument_checks import as_integer, as_number
from torchsko.rollout.finite_checks import first_nonfinite
from torchsko.utils.concrete_values import concrete_values


def check_solver(tolerance: Any, max_iterations: Any, exact: Any, stop_early: Any) -> None:
    """Refuse what no iteration could end by, and what is neither True nor False where it has to be.

    Raises:
        TorchskoError: says what to type.
    """
    number, whole = as_number(tolerance), as_integer(max_iterations)
    if number is None or not number > 0 or whole is None or whole < 0:
        raise TorchskoError(
            f"ilqr was given tolerance={tolerance}, max_iterations={max_iterations}.",
            "It stops at a small norm of the gradient, after some whole number of steps at most.",
            "Pass tolerance=1e-6 and max_iterations=100, say.",
        )
    for name, x, why in (
        ("exact", exact, "Second derivatives of steps count, or they do not: they have no weight"),
        ("stop_early", stop_early, "Samples that have all converged end it, or they do not"),
    ):
        if not isinstance(x, bool):
            raise TorchskoError(
                f"ilqr was given {name}={x!r}.",
                f"{why}.",
                f"Pass {name}=True or {name}=False.",
            )


def check_start(
    problem: OptimalControl,
    q: Tensor,
    qd: Tensor,
    u: Tensor,
    goals: tuple[Tensor, ...],
    states: tuple[Tensor, Tensor] | None,
) -> tuple[torch.Size, Shapes, dict[str, Tensor]]:
    """Batch dimensions of all that is given; shapes for one sample, and tensors, by name.

    Raises:
        ShapeError: when something does not fit.
        NonFiniteError: on NaN in a start, inputs or states.
        TorchskoError: when the problem is none.
    """
    if not isinstance(problem, OptimalControl):
        raise TorchskoError(
            f"ilqr was given {type(problem).__name__} for a problem.",
            "A problem is a mechanism with what its motions cost.",
            "Pass ts.control.optimal_control(mech, running, final, dt).",
        )
    names = [*problem.goals, *problem.series]
    if len(goals) != len(names):
        raise ShapeError(
            f"{len(goals)} goals were given.",
            f"The problem's costs depend on {names}.",
            "Pass them after u, in this order.",
        )
    mech = problem.mech
    n, m, steps = mech.num_dof, problem.num_u, _steps(u)
    shapes: Shapes = {"q": (mech.num_q,), "qd": (n,), "u": (steps, m)}
    tensors: dict[str, Tensor] = {"q": q, "qd": qd, "u": u}
    if states is not None:
        configurations, velocities = _pair(states)
        shapes |= {"states[0]": (steps + 1, mech.num_q), "states[1]": (steps + 1, n)}
        tensors |= {"states[0]": configurations, "states[1]": velocities}
    for name, x in tensors.items():
        _check(mech, name, x, shapes[name], finite=True)
    shapes |= dict(problem.goals) | {k: (steps + 1, *shape) for k, shape in problem.series.items()}
    tensors |= dict(zip(names, goals, strict=True))
    for name in names:
        _check(mech, name, tensors[name], shapes[name])
    batches = {name: x.shape[: x.ndim - len(shapes[name])] for name, x in tensors.items()}
    return shared_batch({"the mechanism": mech.batch_shape} | batches), shapes, tensors


def _steps(u: Any) -> int:
    """How many steps inputs are for, where they say so.

    Raises:
        ShapeError: when that is none.
    """
    steps = u.shape[-2] if isinstance(u, Tensor) and u.ndim > 1 else 1
    if not steps:
        raise ShapeError(
            f"u has shape {list(u.shape)}: no steps.",
            "A motion is at least one step.",
            f"Pass inputs of shape [*batch, steps, {u.shape[-1]}].",
        )
    return steps


def _pair(states: Any) -> tuple[Any, Any]:
    """Configurations and velocities.

    Raises:
        ShapeError: when they are no pair.
    """
    if not isinstance(states, Sequence) or len(states) != 2:
        told = f"{len(states)} of them" if isinstance(states, Sequence) else type(states).__name__
        raise ShapeError(
            f"states was given as {told}.",
            "It has configurations, and velocities.",
            "Pass a pair of shapes [*batch, steps + 1, num_q] and [*batch, steps + 1, num_dof].",
        )
    return states[0], states[1]


def _check(
    mech: Mechanism, name: str, x: Any, shape: tuple[int, ...], finite: bool = False
) -> None:
    """Refuse what is no tensor `[*batch, *shape]` of the mechanism's type, and values that are not finite.

    Values are read on a CPU only, and where there are any.

    Raises:
        ShapeError: when it does not fit.
        NonFiniteError: names the first sample.
    """
    if not isinstance(x, Tensor):
        wanted = f"torch.as_tensor({name}, dtype={mech.dtype})"
        if x is None:
            wanted = f"torch.zeros({', '.join(map(str, shape))}, dtype={mech.dtype}), say"
        raise ShapeError(
            f"{name} was given as {type(x).__name__}.",
            f"It is a tensor, of shape {list(shape)} for one sample.",
            f"Pass {wanted}.",
        )
    if x.ndim < len(shape) or tuple(x.shape[x.ndim - len(shape) :]) != tuple(shape):
        raise ShapeError(
            f"{name} has shape {list(x.shape)}.",
            f"Its last dimensions are those of one sample, {list(shape)}.",
            f"Pass a tensor of shape [*batch, {', '.join(map(str, shape))}].",
        )
    if (why := misfit(mech, name, x, shape)) is not None:
        raise ShapeError(why)
    read = concrete_values(x) if finite else None
    if read is not None and not np.isfinite(read).all():
        sample = np.argwhere(~np.isfinite(read))[0, : x.ndim - len(shape)].tolist()
        raise NonFiniteError(
            f"{name} is not finite{f' in sample {sample}' if sample else ''}.",
            "No motion could be followed from there.",
            f"Look at where {name} comes from; leave such samples out.",
        )


def warn_nonfinite(
    problem: OptimalControl, q: Tensor, qd: Tensor, cost: Tensor, gradient: Tensor
) -> None:
    """Say by a warning which samples are not finite, where that is free to read.

    Args:
        problem: the problem.
        q: configurations that were found, `[*batch, steps + 1, num_q]`.
        qd: velocities, `[*batch, steps + 1, num_dof]`.
        cost: their cost, `[*batch]`.
        gradient: norm of its gradient, `[*batch]`.
    """
    values, norms = concrete_values(cost), concrete_values(gradient)
    if values is None or norms is None:
        return
    wrong = np.argwhere(~(np.isfinite(values) & np.isfinite(norms)))
    if not len(wrong):
        return
    sample = wrong[0].tolist()
    left = first_nonfinite(problem.mech, q[*sample], qd[*sample])
    if left is not None:
        what = f"the motion left the finite numbers at step {left.step}, at joint {left.joint!r}"
        advice = "Begin with smaller inputs, or with states=; or make the problem with a shorter dt"
    elif not np.isfinite(values[*sample]):
        what = f"the cost of the motion is {values[*sample]}"
        advice = "Look at its goals and series, and begin where all costs are numbers"
    else:
        what = "the gradient of the cost is not finite"
        advice = "Look at roots and norms in the costs, which have no derivative at 0"
    where = f" in sample {sample} ({len(wrong)} such in the batch)" if sample else ""
    warnings.warn(
        f"ilqr goes no further{where}: {what}.\n"
        "Nothing leads down from there: it stays as it is, and has not converged.\n"
        f"{advice}.",
        RuntimeWarning,
        stacklevel=caller_stack_level(),
    )
