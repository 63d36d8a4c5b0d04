"""Rank of constraint rows, determined once when a mechanism is constrained."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.configuration import add_step
from torchsko.mechanism.data import first_sample
from torchsko.mechanism.loops.placements import Placements
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import matvec
from torchsko.verbs.held.held_rows import HeldRows

SAMPLES = 4
"""Random configurations at which the rank is computed."""

CLOSING_STEPS = 20
"""Gauss-Newton steps to the constraints, near which rows may lose rank."""

RANK_TOLERANCE = 1e-7
"""Singular values below this fraction of the largest are zero."""


CLOSED_RESIDUAL = 1e-8
"""Residual below which the constraints hold [m or 1], in float64."""

CLOSED_RESIDUAL_FLOAT32 = 1e-4
"""Residual below which the constraints hold [m or 1], in float32."""


def are_redundant(mech: Mechanism, rows: HeldRows) -> bool:
    """True if the rows are dependent wherever the constraints hold, or if their values cannot be read."""
    if any(concrete_values(x) is None for x in (mech.mass, mech.joint_position)):
        return True
    one = first_sample(mech)
    with torch.no_grad():
        numbers = Placements(
            *(_first(x, k) for x, k in zip(rows.numbers(one), (3, 2, 1), strict=True))
        )
        generator = torch.Generator(device=mech.device).manual_seed(0)
        q, _ = one.random_state(SAMPLES, generator=generator)
        q = torch.cat([q, one.initial()[None]])
        for _ in range(CLOSING_STEPS):
            found = rows.at(Kinematics.of(one, q), numbers)
            step = matvec(torch.linalg.pinv(found.jacobian, rtol=1e-4), found.residual)
            moved = add_step(one, q, -step)  # nan where loops cannot follow
            q = torch.where(moved.isfinite().all(-1, keepdim=True), moved, q)
        # Rows of open loops may have a larger rank than those of closed ones.
        left = rows.at(Kinematics.of(one, q), numbers).residual.abs().amax(-1)
        least = CLOSED_RESIDUAL if q.dtype == torch.float64 else CLOSED_RESIDUAL_FLOAT32
        ranks, holds = _ranks(one, rows, q, numbers), left < least
    return bool((ranks[holds] if holds.any() else ranks).max() < rows.num_rows)


def _ranks(mech: Mechanism, rows: HeldRows, q: Tensor, numbers: Placements) -> Tensor:
    G = rows.at(Kinematics.of(mech, q), numbers).jacobian.double()
    return torch.linalg.matrix_rank(G.nan_to_num(), rtol=RANK_TOLERANCE)


def _first(x: Tensor, rank: int) -> Tensor:
    return x[(0,) * (x.ndim - rank)]
