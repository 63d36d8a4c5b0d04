"""Hinges that move several nodes at once: which nodes of a run share the dofs of one hinge.

Siblings may share their dofs: one hinge then moves all of them against the parent they have in common.
So stands a node of several members in the tree: its members hang side by side on the parent of the node,
each with its own weight and its own joint map from the dofs they share (see `transform`). What belongs to
the hinge (D, its force, its acceleration) is held once per member, in equal copies; what each member adds
to it is summed over the members by `Share.total`.
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
        first: of every hinge its first node, int64.
    """

    sums: Sums
    first: Tensor

    @staticmethod
    def of(hinges: Sequence[Hashable]) -> Share | None:
        """The sharing of nodes with these hinges; None if no hinge is shared."""
        nodes: dict[Hashable, list[int]] = {}
        for k, hinge in enumerate(hinges):
            nodes.setdefault(hinge, []).append(k)
        if len(nodes) == len(hinges):
            return None
        return Share(
            Sums.of([nodes[hinge] for hinge in hinges], len(hinges)),
            torch.tensor([members[0] for members in nodes.values()], dtype=torch.int64),
        )

    def total(self, x: Tensor) -> Tensor:
        """The sum over the nodes of each hinge, at each of them: `[*, n, r, c]` to the same."""
        return self.sums.take(x)

    def once(self, x: Tensor) -> Tensor:
        """One copy per hinge, `[*, hinges, r, c]`, of values repeated for each node, `[*, n, r, c]`."""
        return x.index_select(-3, self.first)


def total(share: Share | None, x: Tensor) -> Tensor:
    """`Share.total`; x itself if no hinge is shared."""
    return x if share is None else share.total(x)
