r"""Least squares of a chain: states of windows, each tied to the next, and numbers that all share.

In the unknowns :math:`(x_1, \dots, x_L, p)` the normal equations are an arrow, block tridiagonal but for the
last rows. The x are eliminated from the first to the last, all chains at once; what is left of p adds up over
chains.

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
    """A chain whose states are eliminated.

    Attributes:
        left: normal equations of (p, -1), `[chains, P + 1, P + 1]`.
        gains: what a state gains of the next, `[windows - 1][chains, n, n]`.
        pivots: inverses of the blocks met, `[windows][chains, n, n]`.
        rights: of p and -1, `[windows][chains, n, P + 1]`.
    """

    left: Tensor
    gains: tuple[Tensor, ...]
    pivots: tuple[Tensor, ...]
    rights: tuple[Tensor, ...]

    def states(self, p: Tensor) -> Tensor:
        """The states that are best beside p `[P]`, `[chains, windows, n]`."""
        full = torch.cat([p, -torch.ones_like(p[:1])])
        return self._beside(full[:, None])[..., 0]

    def changes(self) -> Tensor:
        """How these states change with p, `[chains, windows, n, P]`."""
        size = self.left.shape[-1]
        return self._beside(torch.eye(size).to(self.left)[:, :-1])

    def _beside(self, full: Tensor) -> Tensor:
        """The states that are best beside columns of (p, -1) `[P + 1, k]`, `[chains, windows, n, k]`."""
        after = -(self.pivots[-1] @ self.rights[-1]) @ full
        out = [after]
        for pivot, right, gain in zip(
            reversed(self.pivots[:-1]),
            reversed(self.rights[:-1]),
            reversed(self.gains),
            strict=True,
        ):
            after = -(pivot @ right) @ full - gain @ after
            out.append(after)
        return torch.stack(out[::-1], 1)

    def covariances(self) -> tuple[Tensor, Tensor]:
        """Of states, `[chains, windows, n, n]`, and with the next, `[chains, windows - 1, n, n]`; p known."""
        own, cross = [self.pivots[-1]], []
        for pivot, gain in zip(reversed(self.pivots[:-1]), reversed(self.gains), strict=True):
            cross.append(-gain @ own[-1])
            own.append(pivot - cross[-1] @ gain.mT)
        between = torch.stack(cross[::-1], 1) if cross else own[0][:, None][:, :0]
        return torch.stack(own[::-1], 1), between


def eliminate_chain(D: Tensor, O: Tensor, R: Tensor, S: Tensor) -> EliminatedChain:
    """Eliminate the states of chains.

    Args:
        D: blocks of states, `[chains, windows, n, n]`.
        O: of states with the next, `[chains, windows - 1, n, n]`.
        R: of states with (p, -1), `[chains, windows, n, P + 1]`.
        S: of (p, -1), `[chains, P + 1, P + 1]`.
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
    """Of positive definite matrices whose rows differ in size."""
    size = A.diagonal(dim1=-2, dim2=-1).rsqrt()
    inner = torch.linalg.inv(size[..., :, None] * A * size[..., None, :])
    return size[..., :, None] * (inner + inner.mT) / 2 * size[..., None, :]
