r"""Block elimination for least squares of chains of states with shared parameters.

In the unknowns :math:`(x_1, \dots, x_L, p)` the normal equations are block tridiagonal, with a border for the
parameters p. The states x are eliminated from first to last, batched over chains. The Schur complements of p
add up over chains.

Reference: G. Golub, C. Van Loan, *Matrix Computations*, 4th edition, 2013, section 4.5.1 (block tridiagonal);
H. Rauch, F. Tung, C. Striebel, *Maximum likelihood estimates of linear dynamic systems*, AIAA Journal 3(8),
1965 (covariances on the way back).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class EliminatedChain:
    """Chains with eliminated states.

    Attributes:
        left: normal equations of (p, -1), `[chains, P + 1, P + 1]`.
        gains: products of pivots with the coupling to the next state, `[windows - 1][chains, n, n]`.
        pivots: inverses of the pivot blocks, `[windows][chains, n, n]`.
        rights: columns of p and -1 at each state, `[windows][chains, n, P + 1]`.
    """

    left: Tensor
    gains: tuple[Tensor, ...]
    pivots: tuple[Tensor, ...]
    rights: tuple[Tensor, ...]

    def states(self, p: Tensor) -> Tensor:
        """Optimal states at parameters p `[P]`, `[chains, windows, n]`."""
        full = torch.cat([p, -torch.ones_like(p[:1])])
        return self._back_substitute(full[:, None])[..., 0]

    def changes(self) -> Tensor:
        """Derivatives of the optimal states with respect to p, `[chains, windows, n, P]`."""
        size = self.left.shape[-1]
        return self._back_substitute(torch.eye(size).to(self.left)[:, :-1])

    def _back_substitute(self, full: Tensor) -> Tensor:
        """Optimal states for columns of (p, -1) `[P + 1, k]`, `[chains, windows, n, k]`."""
        after = -(self.pivots[-1] @ self.rights[-1]) @ full
        states = [after]
        for pivot, right, gain in zip(
            reversed(self.pivots[:-1]),
            reversed(self.rights[:-1]),
            reversed(self.gains),
            strict=True,
        ):
            after = -(pivot @ right) @ full - gain @ after
            states.append(after)
        return torch.stack(states[::-1], 1)

    def covariances(self) -> tuple[Tensor, Tensor]:
        """Covariances of states at known p, and those with the next state.

        Returns:
            `[chains, windows, n, n]` and `[chains, windows - 1, n, n]`.
        """
        states, cross = [self.pivots[-1]], []
        for pivot, gain in zip(reversed(self.pivots[:-1]), reversed(self.gains), strict=True):
            cross.append(-gain @ states[-1])
            states.append(pivot - cross[-1] @ gain.mT)
        between = torch.stack(cross[::-1], 1) if cross else states[0][:, None][:, :0]
        return torch.stack(states[::-1], 1), between


def eliminate_chain(D: Tensor, O: Tensor, R: Tensor, S: Tensor) -> EliminatedChain:
    """Eliminate the states of chains.

    Args:
        D: diagonal blocks of states, `[chains, windows, n, n]`.
        O: blocks of states and the next states, `[chains, windows - 1, n, n]`.
        R: blocks of states and (p, -1), `[chains, windows, n, P + 1]`.
        S: block of (p, -1), `[chains, P + 1, P + 1]`.
    """
    gains, pivots, rights, block, right = [], [], [], D[:, 0], R[:, 0]
    for w in range(D.shape[1]):
        if w:
            gain = gains[-1].mT
            block, right = D[:, w] - gain @ O[:, w - 1], R[:, w] - gain @ right
        pivot = _scaled_inverse(block)
        S = S - right.mT @ pivot @ right
        pivots, rights = [*pivots, pivot], [*rights, right]
        if w < O.shape[1]:
            gains = [*gains, pivot @ O[:, w]]
    return EliminatedChain(S, tuple(gains), tuple(pivots), tuple(rights))


def _scaled_inverse(A: Tensor) -> Tensor:
    """Inverse of positive definite matrices after scaling to unit diagonal."""
    size = A.diagonal(dim1=-2, dim2=-1).rsqrt()
    inner = torch.linalg.inv(size[..., :, None] * A * size[..., None, :])
    return size[..., :, None] * (inner + inner.mT) / 2 * size[..., None, :]
