"""Standard errors of shooting that are robust to correlated errors within and between windows.

Noise of measured forces disturbs the whole motion of a window, and model errors recur. So the variance is
estimated from the influences of windows, with a few consecutive windows as one cluster.

References: W. Newey, K. West, *A simple, positive semi-definite, heteroskedasticity and autocorrelation
consistent covariance matrix*, Econometrica 55(3), 1987; K.-Y. Liang, S. Zeger, *Longitudinal data analysis
using generalized linear models*, Biometrika 73(1), 1986 (clusters).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.identification.estimators.shooting.block_elimination import EliminatedChain
from torchsko.identification.estimators.shooting.noise_variances import NoiseVariances
from torchsko.identification.estimators.shooting.sensitivities import LinearizedMotion
from torchsko.identification.estimators.shooting.windows import Windows
from torchsko.identification.regression.least_squares import scaled_pseudo_inverse

WINDOWS_PER_CLUSTER = 3
"""Consecutive windows in a cluster; neighbors share a state."""


def cluster_std_factors(
    chain: EliminatedChain, near: LinearizedMotion, windows: Windows, noise: NoiseVariances, kept: Tensor
) -> Tensor:  # fmt: skip
    """Factors by which standard errors grow, `[kept]`, at least 1.

    Args:
        chain: equations of `near`, states eliminated.
        near: motion linearized at the fit.
        windows: measurements.
        noise: variances of the measurements and states.
        kept: indices of the fitted parameters.

    Reference: Liang, Zeger 1986.
    """
    inverse = scaled_pseudo_inverse(chain.left[:, :-1, :-1].sum(0)[kept[:, None], kept])[0]
    influence = _scores(chain, near, windows, noise)[..., kept] @ inverse
    products = [block_sum_products(x, WINDOWS_PER_CLUSTER).diagonal() for x in influence]
    # Small-sample factor for the degrees of freedom that the parameters use.
    count = windows.real.sum()
    variance = torch.stack(products).sum(0) * count / (count - len(kept)).clamp_min(1)
    return (variance / inverse.diagonal().clamp_min(1e-300)).clamp_min(1.0).sqrt()


def block_sum_products(x: Tensor, length: int) -> Tensor:
    """Newey-West estimate of the covariance of the sum of a series, from sums over all blocks.

    Args:
        x: `[samples, columns]`.
        length: length of a block [samples].
    """
    run = torch.nn.functional.pad(x, (0, 0, length, length - 1)).cumsum(0)
    sums = run[length:] - run[:-length]
    return sums.mT @ sums / length


def _scores(
    chain: EliminatedChain, near: LinearizedMotion, windows: Windows, noise: NoiseVariances
) -> Tensor:
    """Contribution of each window to the score at the optimal states, `[chains, windows, parameters]`."""
    change = chain.changes()
    size = change.shape[-2]
    outputs = near.seen[..., :size] @ change + near.seen[..., size:-1]
    error = near.seen[..., -1] / noise.seen.repeat(windows.seen.shape[2])
    end = near.end[..., :size] @ change[:, :-1] + near.end[..., size:-1] + near.next @ change[:, 1:]
    gap = near.end[..., -1] / noise.gaps
    after = (end * gap[..., None]).sum(-2)
    return (outputs * error[..., None]).sum(-2) + torch.nn.functional.pad(after, (0, 0, 0, 1))
