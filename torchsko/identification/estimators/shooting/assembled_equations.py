"""Normal equations of windows at a linearized motion."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.identification.estimators.shooting.block_elimination import (
    EliminatedChain,
    eliminate_chain,
)
from torchsko.identification.estimators.shooting.integrator import ForwardModel
from torchsko.identification.estimators.shooting.noise_variances import NoiseVariances
from torchsko.identification.estimators.shooting.sensitivities import LinearizedMotion
from torchsko.identification.estimators.shooting.windows import Windows
from torchsko.identification.regression.normal_equations import NormalEquations


def eliminate_states(
    near: LinearizedMotion, windows: Windows, noise: NoiseVariances, held: Tensor
) -> EliminatedChain:
    """Build the normal equations and eliminate the states of windows.

    Args:
        near: linearized motion.
        windows: measurements.
        noise: their variances.
        held: rows that regularize initial velocities, from `start_velocity_rows`.
    """
    size, pad = near.next.shape[-1], torch.nn.functional.pad
    seen = noise.seen.repeat(windows.seen.shape[2])
    X = near.seen / seen[:, None].sqrt()
    E, N = (x / noise.gaps[:, None].sqrt() for x in (near.end, near.next))
    total = X.mT @ X + pad(E.mT @ E, (0, 0, 0, 0, 0, 1))
    total = total + pad((held.mT @ held)[:, None], (0, 0, 0, 0, 0, total.shape[1] - 1))
    padding = ~windows.real[..., None, None] * torch.eye(size).to(X)
    D = total[..., :size, :size] + pad(N.mT @ N, (0, 0, 0, 0, 1, 0)) + padding
    R = total[..., :size, size:] + pad(N.mT @ E[..., size:], (0, 0, 0, 0, 1, 0))
    return eliminate_chain(D, E[..., :size].mT @ N, R, total[..., size:, size:].sum(1))


def start_velocity_rows(
    forward: ForwardModel, starts: Tensor, off: Tensor, known: Tensor
) -> Tensor:
    """Rows that hold initial velocities of chains near estimates, `[chains, num_dof, columns]`.

    Args:
        forward: robot at which motions are linearized.
        starts: initial states of chains, `[chains, 2 num_dof]`.
        off: estimated velocities minus the present ones, `[chains, num_dof]`.
        known: one over the variances of the estimates, `[chains, num_dof]`.
    """
    rate = torch.diag_embed(forward.shown(torch.ones_like(off)))
    by_parameters = forward.shown_by(starts[:, off.shape[-1] :])
    rows = torch.cat([torch.zeros_like(rate), rate, by_parameters, off[..., None]], -1)
    return known[..., None].sqrt() * rows


def fold_equations(
    left: Tensor, here: Tensor, windows: Windows, folds: int, base: int
) -> NormalEquations:
    """Normal equations of each fold in the parameters themselves, from those in their changes.

    Args:
        left: equations of parameter changes and -1 of each chain, `[chains, P + 1, P + 1]`.
        here: parameters at which the motion is linearized, `[P]`.
        windows: measurements.
        folds: number of folds.
        base: number of base parameters.
    """
    M = torch.eye(left.shape[-1]).to(left)
    M = torch.cat([M[:, :-1], M[:, -1:] + torch.cat([here, left.new_zeros(1)])[:, None]], 1)
    each = M.mT @ left @ M
    count = windows.good.sum((1, 2, 3)).to(left) / windows.mass.shape[-1]
    sums = left.new_zeros(folds, *each.shape[1:]).index_add(0, windows.fold, each)
    rows = left.new_zeros(folds, 1).index_add(0, windows.fold, count[:, None])
    return NormalEquations(sums, rows, base)
