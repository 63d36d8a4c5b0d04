"""Hinges that move several nodes at once: which nodes of a run share the dofs of one hinge.

Siblings may share their dofs: one hinge then moves all of them against the parent they have in common.
So stands a node of several members in the tree: its members hang side by side on the parent of the node,
each with its own weight and its own joint map from the dofs they share (see `transform`). What belongs to
the hinge (D, its force, its acceleration) is held once per member, in equal copies; what each member adds
to it is summed over the members by `Share.total`. Sweeps solve with D once per hinge.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.algebra.topology.gathering import Sums


@dataclass(frozen=True, eq=False)
class Share:
    """Groups of nodes of a run that share a hinge.

    Attributes:
        sums: for each node the nodes of its hinge.
        hinge_sums: for each hinge its nodes.
        first: of every hinge its first node, int64.
        hinge: for each node the number of its hinge, int64.
        leads: whether a node is the first of its hinge, `[n, 1, 1]`.
        single: whether a node is the only one of its hinge, `[n, 1, 1]`; None without such nodes.
        shared: whether several nodes have a hinge, `[hinges, 1, 1]`; None if all are.
    """

    sums: Sums
    hinge_sums: Sums
    first: Tensor
    hinge: Tensor
    leads: Tensor
    single: Tensor | None
    shared: Tensor | None

    @staticmethod
    def of(hinges: Sequence[Hashable]) -> Share | None:
        """The sharing of nodes with these hinges; None if no hinge is shared."""
        nodes: dict[Hashable, list[int]] = {}
        for k, hinge in enumerate(hinges):
            nodes.setdefault(hinge, []).append(k)
        if len(nodes) == len(hinges):
            return None
        number = {hinge: i for i, hinge in enumerate(nodes)}
        alone = [len(members) == 1 for members in nodes.values()]
        first = [members[0] for members in nodes.values()]
        single, shared = None, None
        if any(alone):
            shared = torch.tensor([not x for x in alone])[:, None, None]
            single = torch.tensor([alone[number[hinge]] for hinge in hinges])[:, None, None]
        return Share(
            Sums.of([nodes[hinge] for hinge in hinges], len(hinges)),
            Sums.of(list(nodes.values()), len(hinges)),
            torch.tensor(first, dtype=torch.int64),
            torch.tensor([number[hinge] for hinge in hinges], dtype=torch.int64),
            torch.tensor([k in first for k in range(len(hinges))])[:, None, None],
            single,
            shared,
        )

    def total(self, x: Tensor) -> Tensor:
        """The sum over the nodes of each hinge, at each of them: `[*, n, r, c]` to the same."""
        return self.sums.take(x)

    def leader_total(self, x: Tensor) -> Tensor:
        """The sum over the nodes of each hinge at the first of them, zero at others, `[*, n, r, c]`."""
        return torch.where(self.leads, self.total(x), 0.0)

    def hinge_total(self, x: Tensor) -> Tensor:
        """The sum over the nodes of each hinge: `[*, n, r, c]` to `[*, hinges, r, c]`."""
        return self.hinge_sums.take(x)

    def once(self, x: Tensor) -> Tensor:
        """One copy per hinge, `[*, hinges, r, c]`, of values repeated for each node, `[*, n, r, c]`."""
        return x.index_select(-3, self.first)

    def copies(self, x: Tensor) -> Tensor:
        """Values of hinges, `[*, hinges, r, c]`, repeated for each of their nodes, `[*, n, r, c]`."""
        return x.index_select(-3, self.hinge)


def total(share: Share | None, x: Tensor) -> Tensor:
    """`Share.total`; x itself if no hinge is shared."""
    return x if share is None else share.total(x)
