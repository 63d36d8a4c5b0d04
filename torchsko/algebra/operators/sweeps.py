r"""The two sweeps of a tree, and their one-edge steps.

With the SKO operator :math:`E_A` (block (p(k), k) is the edge weight A(p(k), k), all others zero) and the
SPO :math:`A = (I - E_A)^{-1}`:

=============== ========================== ==================================================
function        operator                   recursion
=============== ========================== ==================================================
`gather`        A x       (Lemma 1)        y(k) = sum over children j of A(k,j) y(j) + x(k)
`scatter`       A* x      (Lemma 2)        y(k) = A*(p(k),k) y(p(k)) + x(k)
`step_up`       E_A x                      y(k) = sum over children j of A(k,j) x(j)
`step_down`     E_A* x                     y(k) = A*(p(k),k) x(p(k))
`gather_tilde`  (A - I) x  (Cor. 3.1)      y(k) = sum over children j of A(k,j) [y(j) + x(j)]
`scatter_tilde` (A - I)* x (Cor. 3.1)      y(k) = A*(p(k),k) [y(p(k)) + x(p(k))]
=============== ========================== ==================================================

Every step handles a whole level: the number of tensor operations grows with the depth of the tree, not
with its nodes; `gather` and `scatter` by ``method="doubling"`` take as many as its logarithm
(see `logdepth`). Vectors are packed columns, `[*batch, n, m, r]` (see `layout`); batch dimensions of
weights and vectors broadcast.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemmas 1-2 and Corollary 3.1.
DEPARTS: the paper prints x(k) for x(p(k)) in the second half of Corollary 3.1; (A - I)* = E_A* A* needs
the parent's x, as here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algebra.operators import logdepth
from torchsko.algebra.operators.edges import EdgeWeight
from torchsko.algebra.operators.logdepth import Method, doubles
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.layout import Layout


def gather(
    layout: Layout, edge_weight: EdgeWeight, x: Tensor, *, method: Method = "sweep"
) -> Tensor:
    """A x, tips to bases: `[*batch, n, m, r]` to the same. Reference: Jain 2011, Part II, Lemma 1."""
    if doubles(method):
        jumps = layout.jumps
        return logdepth.gather(jumps, logdepth.powers(jumps, edge_weight.dense()), x)
    levels = list(layout.split(x))
    edges = edge_weight.split(layout.level_sizes)
    for depth in range(len(levels) - 1, 0, -1):
        handed = edges[depth].up(levels[depth])
        levels[depth - 1] = levels[depth - 1] + layout.links[depth].sum_to_parents(handed)
    return join(levels)


def scatter(
    layout: Layout, edge_weight: EdgeWeight, x: Tensor, *, method: Method = "sweep"
) -> Tensor:
    """A* x, bases to tips: `[*batch, n, m, r]` to the same. Reference: Jain 2011, Part II, Lemma 2."""
    if doubles(method):
        jumps = layout.jumps
        return logdepth.scatter(jumps, logdepth.powers(jumps, edge_weight.dense()), x)
    levels = list(layout.split(x))
    edges = edge_weight.split(layout.level_sizes)
    for depth in range(1, len(levels)):
        above = layout.links[depth].to_children(levels[depth - 1])
        levels[depth] = edges[depth].down(above) + levels[depth]
    return join(levels)


def step_up(layout: Layout, edge_weight: EdgeWeight, x: Tensor) -> Tensor:
    """E_A x: what each node receives from its children, `[*batch, n, m, r]`."""
    handed = layout.split(edge_weight.up(x))
    received = [layout.links[d].sum_to_parents(handed[d]) for d in range(1, len(handed))]
    return join([*received, torch.zeros_like(handed[-1])])


def step_down(layout: Layout, edge_weight: EdgeWeight, x: Tensor) -> Tensor:
    """E_A* x: what each node receives from its parent, `[*batch, n, m, r]`; zero at a base."""
    levels = layout.split(x)
    edges = edge_weight.split(layout.level_sizes)
    received = [torch.zeros_like(levels[0])]
    for depth in range(1, len(levels)):
        received.append(edges[depth].down(layout.links[depth].to_children(levels[depth - 1])))
    return join(received)


def gather_tilde(layout: Layout, edge_weight: EdgeWeight, x: Tensor) -> Tensor:
    """(A - I) x = E_A A x, `[*batch, n, m, r]`. Reference: Jain 2011, Part II, Corollary 3.1."""
    return step_up(layout, edge_weight, gather(layout, edge_weight, x))


def scatter_tilde(layout: Layout, edge_weight: EdgeWeight, x: Tensor) -> Tensor:
    """(A - I)* x = E_A* A* x, `[*batch, n, m, r]`. Reference: Jain 2011, Part II, Corollary 3.1."""
    return step_down(layout, edge_weight, scatter(layout, edge_weight, x))
