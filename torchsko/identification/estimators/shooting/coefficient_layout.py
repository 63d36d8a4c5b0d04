"""Numbers of terms, all in one row, a slot each: shooting solves for them as for those of one dof."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.identification.estimators.shooting.integrator import ForwardModel
from torchsko.identification.regression.solution import Solution


def flatten_coefficients(forward: ForwardModel, solution: Solution) -> Tensor:
    """Numbers of all slots of a solution dof by dof; zero where it has none."""
    out = []
    for k, dof in forward.slots:
        some, place = solution.choice[dof], forward.places[k]
        known = place in some
        out.append(
            solution.coefficients[dof][some.index(place)] if known else solution.phi.new_zeros(())
        )
    return torch.stack(out) if out else solution.phi[:0]


def full_coefficients(forward: ForwardModel, solution: Solution) -> Tensor:
    """Those of a solution as of one dof: zero where friction came out negative and was left out."""
    (kept,), (values,) = solution.choice, solution.coefficients
    at = torch.tensor(kept, dtype=torch.long, device=values.device)
    return values.new_zeros(len(forward.slots)).index_put((at,), values)


def split_by_dof(forward: ForwardModel, solution: Solution) -> Solution:
    """A solution as of one dof, its numbers dof by dof."""
    (kept,), (values,) = solution.choice, solution.coefficients
    choice, numbers = [], []
    for mine in slots_by_dof(forward, kept):
        choice.append(tuple(forward.places[forward.slots[kept[i]][0]] for i in mine))
        numbers.append(values[mine])
    return Solution(solution.phi, solution.beta, tuple(numbers), tuple(choice))


def slots_by_dof(forward: ForwardModel, kept: Sequence[int]) -> list[list[int]]:
    """Places among the slots that are kept, of each dof."""
    return [
        [i for i, k in enumerate(kept) if forward.slots[k][1] == dof]
        for dof in range(len(forward.shows))
    ]
