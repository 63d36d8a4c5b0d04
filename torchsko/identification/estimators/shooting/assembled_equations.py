"""Normal equations of windows' motions where they are linearised."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.identification.estimators.shooting.block_elimination import Eliminated, eliminated
from torchsko.identification.estimators.shooting.integrator import Forward
from torchsko.identification.estimators.shooting.noise_variances import Noise
from torchsko.identification.estimators.shooting.sensitivities import Linear
from torchsko.identification.estimators.shooting.windows import Windows
from torchsko.identification.regression.normal_equations import Normal


def without_states(near: Linear, windows: Windows, noise: Noise, held: Tensor) -> Eliminated:
    """Normal equations, states of windows eliminated.

    Args:
        near: how motions depend on states and numbers.
        windows: what was measured.
        noise: its variances.
        held: what holds chains where they start, see `held_starts`.
    """
    size, pad = near.next.shape[-1], torch.nn.functional.pad
    seen = noise.seen.repeat(windows.seen.shape[2])
    X = near.seen / seen[:, None].sqrt()
    E, N = (x / noise.gaps[:, None].sqrt() for x in (near.end, near.next))
    total = X.mT @ X + pad(E.mT @ E, (0, 0, 0, 0, 0, 1))
    total = total + pad((held.mT @ held)[:, None], (0, 0, 0, 0, 0, total.shape[1] - 1))
    fake = ~windows.real[..., None, None] * torch.eye(size).to(X)
    D = total[..., :size, :size] + pad(N.mT @ N, (0, 0, 0, 0, 1, 0)) + fake
    R = total[..., :size, size:] + pad(N.mT @ E[..., size:], (0, 0, 0, 0, 1, 0))
    return eliminated(D, E[..., :size].mT @ N, R, total[..., size:, size:].sum(1))


def held_starts(forward: Forward, starts: Tensor, off: Tensor, known: Tensor) -> Tensor:
    """Rows of what is known of velocities where chains start, like `Linear`, `[chains, num_dof, columns]`.

    Args:
        forward: the robot where motions are linearised.
        starts: states where chains start, `[chains, 2 num_dof]`.
        off: how far velocities there are from those known, `[chains, num_dof]`.
        known: one over variances of those known, `[chains, num_dof]`.
    """
    rate = torch.diag_embed(forward.shown(torch.ones_like(off)))
    own = forward.shown_by(starts[:, off.shape[-1] :])
    rows = torch.cat([torch.zeros_like(rate), rate, own, off[..., None]], -1)
    return known[..., None].sqrt() * rows


def of_folds(left: Tensor, here: Tensor, windows: Windows, folds: int, base: int) -> Normal:
    """Normal equations of each fold, of numbers themselves in place of their changes.

    Args:
        left: of changes and -1, chain by chain, `[chains, P + 1, P + 1]`.
        here: numbers from which they change, `[P]`.
        windows: what was measured.
        folds: how many.
        base: how many of the numbers are base parameters.
    """
    M = torch.eye(left.shape[-1]).to(left)
    M = torch.cat([M[:, :-1], M[:, -1:] + torch.cat([here, left.new_zeros(1)])[:, None]], 1)
    each = M.mT @ left @ M
    count = windows.good.sum((1, 2, 3)).to(left) / windows.mass.shape[-1]
    sums = left.new_zeros(folds, *each.shape[1:]).index_add(0, windows.fold, each)
    rows = left.new_zeros(folds, 1).index_add(0, windows.fold, count[:, None])
    return Normal(sums, rows, base)
