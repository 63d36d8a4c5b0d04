"""Warning about a whole-body program without a solution, with the name of what it violates most."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from torch import Tensor

from torchsko.control.qp import QPSolution, QuadraticProgram
from torchsko.errors import caller_stack_level
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import matvec

INFEASIBLE = 1e-2
"""Residual above which a program has no solution, in any precision and after any number of priorities."""


def warn_infeasible(
    program: QuadraticProgram,
    solution: QPSolution,
    names: Callable[[], tuple[list[str], list[str]]],
) -> None:
    """Warn of samples without a solution, where values can be read for free.

    Args:
        program: the program.
        solution: its solution.
        names: gives a name of each row of A and of G.
    """
    residual = concrete_values(solution.residual)
    if residual is None or not (residual > INFEASIBLE).any():
        return
    equations, limits = names()
    m = len(limits)
    above = solution.row_values - program.h[..., :m]
    below = -solution.row_values[..., : program.h.shape[-1] - m] - program.h[..., m:]
    equation = (matvec(program.A, solution.x) - program.b).abs()
    rows = [*equations, *limits, *limits]
    sample = tuple(int(k) for k in np.argwhere(residual > INFEASIBLE)[0])
    sizes = np.concatenate([_row(x, sample) for x in (equation, above, below)])
    worst = int(np.nanargmax(sizes))
    count = int((residual > INFEASIBLE).sum())
    where = f" in {count} of {residual.size} samples, first in {list(sample)}" if sample else ""
    warnings.warn(
        f"whole_body_control has no solution{where}: the residual is {residual[sample]:.1e}. The largest "
        f"violation is {sizes[worst]:.1e}, of {rows[worst]}.\n"
        "Contacts, limits of forces and joints, and objectives of earlier priorities contradict each other.\n"
        "Leave a contact out by active=, or widen this limit.",
        RuntimeWarning,
        stacklevel=caller_stack_level(),
    )


def _row(x: Tensor, sample: tuple[int, ...]) -> np.ndarray:
    """Values of one sample of a tensor whose leading dimensions broadcast."""
    lead = x.shape[:-1]
    index = tuple(
        0 if n == 1 else k for n, k in zip(lead, sample[len(sample) - len(lead) :], strict=True)
    )
    return x[index].detach().numpy()
