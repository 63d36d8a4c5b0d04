"""How much surer numbers seem than they are, where errors of a window go together.

Noise of measured forces moves all that follows in a window, and what no term says comes back. So what each
window as a whole does to a number, its influence, counts, and how far sums of influences over a few windows
in a row spread.

References: W. Newey, K. West, *A simple, positive semi-definite, heteroskedasticity and autocorrelation
consistent covariance matrix*, Econometrica 55(3), 1987; K.-Y. Liang, S. Zeger, *Longitudinal data analysis
using generalized linear models*, Biometrika 73(1), 1986 (errors in clusters).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.identification.estimators.shooting.block_elimination import EliminatedChain
from torchsko.identification.estimators.shooting.noise_variances import NoiseVariances
from torchsko.identification.estimators.shooting.sensitivities import LinearisedMotion
from torchsko.identification.estimators.shooting.windows import Windows
from torchsko.identification.regression.least_squares import scaled_pseudo_inverse
from torchsko.identification.uncertainty.robust_covariance import block_sum_products

WINDOWS_PER_CLUSTER = 3
"""Windows: neighbours share the state between them."""


def cluster_std_factors(
    chain: EliminatedChain,
    near: LinearisedMotion,
    windows: Windows,
    noise: NoiseVariances,
    kept: Tensor,
) -> Tensor:
    """By how much deviations of numbers grow, `[kept]`, 1 at least.

    Args:
        chain: equations of `near`, states eliminated.
        near: the motion where the fit is.
        windows: what was measured.
        noise: its variances.
        kept: places of the numbers that were fitted.

    Reference: Liang, Zeger 1986.
    """
    inverse = scaled_pseudo_inverse(chain.left[:, :-1, :-1].sum(0)[kept[:, None], kept])[0]
    influence = _slopes(chain, near, windows, noise)[..., kept] @ inverse
    found = torch.stack(
        [block_sum_products(x, WINDOWS_PER_CLUSTER).diagonal() for x in influence]
    ).sum(0)
    # Every number that is fitted takes its part of errors.
    count = windows.real.sum()
    found = found * count / (count - len(kept)).clamp_min(1)
    return (found / inverse.diagonal().clamp_min(1e-300)).clamp_min(1.0).sqrt()


def _slopes(
    chain: EliminatedChain, near: LinearisedMotion, windows: Windows, noise: NoiseVariances
) -> Tensor:
    """What each window adds to the slope of the likelihood, states at their best, `[chains, windows, P]`."""
    change = chain.changes()
    size = change.shape[-2]
    seen = near.seen[..., :size] @ change + near.seen[..., size:-1]
    error = near.seen[..., -1] / noise.seen.repeat(windows.seen.shape[2])
    end = near.end[..., :size] @ change[:, :-1] + near.end[..., size:-1] + near.next @ change[:, 1:]
    gap = near.end[..., -1] / noise.gaps
    after = (end * gap[..., None]).sum(-2)
    return (seen * error[..., None]).sum(-2) + torch.nn.functional.pad(after, (0, 0, 0, 1))
