r"""Sweeps without levels: their number of operations grows with the logarithm of the depth.

.. math::
    A = (I - E_A)^{-1} = \prod_i (I + E_A^{2^i}), \qquad
    Y_{i+1} = Y_i + \mathrm{diag}(E_A^{2^i} Y_i E_A^{2^i *})

Row k of the power 2^i holds one block, the weight from node k to its ancestor 2^i places up the path
(pointer doubling). A power is therefore one weight per node, and squaring takes one product per node, on any
tree. The work is O(N log depth) instead of O(N). In return, fewer operations depend on one another, and in
float32 sums are pairwise instead of sequential along the tree.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, section 2 (the resolvent; its series ends because E_A is nilpotent), Lemmas 1-5.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torchsko.algebra.topology.jumps import Jump
from torchsko.errors import TorchskoError, unknown_name

Method = Literal["sweep", "doubling"]
"""Level by level, or without levels."""

Powers = tuple[Tensor, ...]
"""Weights of E_A, E_A^2, E_A^4, ..., each `[*batch, count, m, m]` for the nodes that jump that far."""


def doubles(method: Method) -> bool:
    """True for the method "doubling", False for "sweep".

    Raises:
        TorchskoError: when it is neither.
    """
    if method not in ("sweep", "doubling"):
        raise TorchskoError(*unknown_name("method", method, ("sweep", "doubling")))
    return method == "doubling"


def powers(jumps: tuple[Jump, ...], weight: Tensor) -> Powers:
    """Weights of the powers 2^i of an SKO operator.

    Args:
        jumps: `layout.jumps`.
        weight: A(p(k), k), packed `[*batch, n, m, m]`; those of base nodes are not read.

    Returns:
        For each jump the weight that carries the node to its target, up the path.

    Reference: Jain 2011, Part II, section 2.
    """
    found: list[Tensor] = []
    for jump in jumps:
        if found:
            shorter = jumps[len(found) - 1]
            # Nodes that jump far have a place of their own among those that jump half as far.
            far = found[-1].narrow(-3, jump.first - shorter.first, jump.count)
            found.append(_halfway(shorter, jump, found[-1]) @ far)
        else:
            found.append(jump.jumping(weight))
    return tuple(found)


def gather(jumps: tuple[Jump, ...], weights: Powers, x: Tensor) -> Tensor:
    """A x: `[*batch, n, m, r]` to the same, in O(log depth) operations.

    Reference: Jain 2011, Part II, section 2 and Lemma 1.
    """
    for jump, weight in zip(jumps, weights, strict=True):
        x = x + jump.sum_at_targets(weight @ jump.jumping(x))
    return x


def scatter(jumps: tuple[Jump, ...], weights: Powers, x: Tensor) -> Tensor:
    """A* x: `[*batch, n, m, r]` to the same, in O(log depth) operations.

    Reference: Jain 2011, Part II, section 2 and Lemma 2.
    """
    for jump, weight in zip(jumps, weights, strict=True):
        x = jump.exchange(x, weight.mT @ jump.targets(x) + jump.jumping(x))
    return x


def step_up(jumps: tuple[Jump, ...], weights: Powers, x: Tensor) -> Tensor:
    """E_A x, `[*batch, n, m, r]`. Reference: Jain 2011, Part II, section 2."""
    if not jumps:
        return torch.zeros_like(x)
    return jumps[0].sum_at_targets(weights[0] @ jumps[0].jumping(x))


def step_down(jumps: tuple[Jump, ...], weights: Powers, x: Tensor) -> Tensor:
    """E_A* x, `[*batch, n, m, r]`; zero at a base. Reference: Jain 2011, Part II, section 2."""
    if not jumps:
        return torch.zeros_like(x)
    return jumps[0].at_jumping(weights[0].mT @ jumps[0].targets(x))


def forward_diag(jumps: tuple[Jump, ...], A: Powers, X: Tensor, B: Powers | None = None) -> Tensor:
    """Diagonal blocks Y of A X B*, packed `[*batch, n, m, m]`, in O(log depth) operations.

    Args:
        jumps: `layout.jumps`.
        A: `powers` of the weights of the first SPO.
        X: blocks, packed `[*batch, n, m, m]`.
        B: those of the second SPO; when left out, B = A.

    Reference: Jain 2011, Part II, Lemma 3.
    """
    for jump, a, b in zip(jumps, A, B or A, strict=True):
        X = X + jump.sum_at_targets(a @ jump.jumping(X) @ b.mT)
    return X


def backward_diag_of(
    jumps: tuple[Jump, ...], A: Powers, X: Tensor, B: Powers | None = None
) -> Tensor:
    """Diagonal blocks Y of A* X B, packed `[*batch, n, m, m]`, in O(log depth) operations.

    Args: as in `forward_diag`.

    Reference: Jain 2011, Part II, Lemma 5.
    """
    for jump, a, b in zip(jumps, A, B or A, strict=True):
        X = jump.exchange(X, a.mT @ jump.targets(X) @ b + jump.jumping(X))
    return X


def _halfway(shorter: Jump, jump: Jump, weights: Tensor) -> Tensor:
    """For each node of `jump`, the weight of half the way that starts at its half-way node."""
    if shorter.slides:  # the half-way nodes of the last nodes are the ones just before them
        return weights.narrow(-3, 0, jump.count)
    halfway = shorter.target.narrow(0, jump.first - shorter.first, jump.count)
    return weights.index_select(-3, halfway - shorter.first)
