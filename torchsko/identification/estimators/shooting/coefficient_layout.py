"""Flat layout of the terms' coefficients of all dofs, one slot for each coefficient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.identification.estimators.shooting.integrator import ForwardModel
from torchsko.identification.regression.solution import Solution


def flatten_coefficients(forward: ForwardModel, solution: Solution) -> Tensor:
    """Coefficients of all slots from a solution by dof; zero for terms it omits."""
    values = []
    for k, dof in forward.slots:
        chosen, place = solution.choice[dof], forward.places[k]
        values.append(
            solution.coefficients[dof][chosen.index(place)]
            if place in chosen
            else solution.phi.new_zeros(())
        )
    return torch.stack(values) if values else solution.phi[:0]


def full_coefficients(forward: ForwardModel, solution: Solution) -> Tensor:
    """Coefficients of all slots from a flat solution; zero for terms removed as negative."""
    (kept,), (values,) = solution.choice, solution.coefficients
    index = torch.tensor(kept, dtype=torch.long, device=values.device)
    return values.new_zeros(len(forward.slots)).index_put((index,), values)


def split_by_dof(forward: ForwardModel, solution: Solution) -> Solution:
    """Split a flat solution by dof."""
    (kept,), (values,) = solution.choice, solution.coefficients
    choice, coefficients = [], []
    for indices in slots_by_dof(forward, kept):
        choice.append(tuple(forward.places[forward.slots[kept[i]][0]] for i in indices))
        coefficients.append(values[indices])
    return Solution(solution.phi, solution.beta, tuple(coefficients), tuple(choice))


def slots_by_dof(forward: ForwardModel, kept: Sequence[int]) -> list[list[int]]:
    """Indices into the kept slots, by dof."""
    return [
        [i for i, k in enumerate(kept) if forward.slots[k][1] == dof]
        for dof in range(len(forward.shows))
    ]
