"""Layout of a model in memory: packings of its vectors, links between its levels.

Node k of a tree has ``m_k`` velocity components and ``d_k`` degrees of freedom. Users see flat
vectors, node by node in the tree's order; recursions see *packed* tensors
``[*batch, n, width, columns]`` with nodes breadth first, so that a level is a slice, and blocks
padded with zeros to a common width. All offsets and index tensors of the library are made here, and in
`packing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.algebra.topology.gathering import Sums
from torchsko.algebra.topology.jumps import Jump, Round, ancestor_jumps, peel
from torchsko.algebra.topology.packing import Packing
from torchsko.algebra.topology.pairs import KEPT, Pairs
from torchsko.algebra.topology.sharing import Share
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import TreeError


@dataclass(frozen=True, eq=False)
class Link:
    """Parents of the nodes of one level in the level above.

    Attributes:
        num_parents: number of nodes in the level above.
        one_to_one: every node above has exactly one child here, in order.
        parent: position of each node's parent in the level above, int64.
        children: positions of the children of each node above.
    """

    num_parents: int
    one_to_one: bool
    parent: Tensor
    children: Sums

    @staticmethod
    def of(parents: list[int], num_parents: int) -> Link:
        """The link of nodes with these parents, siblings side by side."""
        children: list[list[int]] = [[] for _ in range(num_parents)]
        for k, p in enumerate(parents):
            children[p].append(k)
        return Link(
            num_parents,
            parents == list(range(num_parents)),
            torch.tensor(parents, dtype=torch.int64),
            Sums.of(children, len(parents)),
        )

    def to_children(self, x: Tensor) -> Tensor:
        """Hand each node its parent's block: `[*, parents, r, c]` to `[*, children, r, c]`."""
        if self.one_to_one or self.num_parents == 1:
            return x  # one parent: broadcasting hands it to all
        return x.index_select(-3, self.parent)

    def sum_to_parents(self, y: Tensor) -> Tensor:
        """Sum over the children of each parent: `[*, children, r, c]` to `[*, parents, r, c]`."""
        if self.one_to_one:
            return y
        return self.children.take(y)


@dataclass(frozen=True, eq=False)
class Layout:
    """Sizes, packings and level links of a model on a tree.

    Attributes:
        tree: the topology.
        nodes: packing of node vectors (velocities, forces).
        dofs: packing of generalized coordinates' rates and forces.
        level_sizes: number of nodes in each level.
        level_dofs: largest number of dofs in each level, 1 at least: sweeps narrow padded dofs to
            it, and a level without freedom keeps one padded dof, so that no block is empty.
        links: link of each level to the one above; that of level 0 is never used.
        order: breadth-first order of the nodes, int64.
        rank: place of each node in that order, int64.
        in_order: whether the tree's own numbering is breadth first already.
        jumps: 2^i nodes towards the base, for recursions without levels.
        rounds: how the tree comes apart into unbranched runs, tips first, for the same.
        shares: for each level which of its nodes share a hinge, None where each has its own.
        hinge_links: for the levels of `shares` the link of the hinges to the level above, else None.
        share: the same for all nodes, breadth first.
        apart: where hinges are shared, the packing of dof vectors in which every node has its own copy.
        kept_pairs: what `pairs` gives, kept for trees that are not large; else None.
    """

    tree: Tree
    nodes: Packing
    dofs: Packing
    level_sizes: tuple[int, ...]
    level_dofs: tuple[int, ...]
    links: tuple[Link, ...]
    order: Tensor
    rank: Tensor
    in_order: bool
    jumps: tuple[Jump, ...]
    rounds: tuple[Round, ...]
    shares: tuple[Share | None, ...]
    hinge_links: tuple[Link | None, ...]
    share: Share | None
    apart: Packing | None
    kept_pairs: Pairs | None = None

    @staticmethod
    def of(
        tree: Tree,
        node_sizes: Sequence[int],
        dof_sizes: Sequence[int],
        dof_places: Sequence[Sequence[int]] | None = None,
    ) -> Layout:
        """Layout of a tree whose node k has node_sizes[k] velocities and dof_sizes[k] dofs.

        The dofs of node k stand at dof_places[k] in dof vectors; node by node when left out. Siblings
        with the same places share one hinge.

        Raises:
            TreeError: when nodes that are no siblings share dofs, or share some and not others.
        """
        order = tree.order
        dofs = Packing.of(dof_sizes, order, dof_places)
        hinges = _hinges(tree, dofs.places)
        position = {k: i for level in tree.levels for i, k in enumerate(level)}
        shares = tuple(Share.of([hinges[k] for k in level]) for level in tree.levels)
        layout = Layout(
            tree=tree,
            nodes=Packing.of(node_sizes, order),
            dofs=dofs,
            level_sizes=tuple(map(len, tree.levels)),
            level_dofs=tuple(max(1, *(dof_sizes[k] for k in level)) for level in tree.levels),
            links=tuple(_link(tree, depth, position) for depth in range(tree.num_levels)),
            order=torch.tensor(order, dtype=torch.int64),
            rank=torch.argsort(torch.tensor(order, dtype=torch.int64)),
            in_order=order == tuple(range(tree.num_nodes)),
            jumps=ancestor_jumps(tree),
            rounds=peel(tree, hinges),
            shares=shares,
            hinge_links=tuple(
                None if share is None else _link(tree, depth, position, share.first.tolist())
                for depth, share in enumerate(shares)
            ),
            share=Share.of([hinges[k] for k in order]),
            apart=None if dofs.most == 1 else Packing.of(dof_sizes, order),
        )
        if max(tree.num_nodes, sum(layout.dofs.sizes)) > KEPT:
            return layout
        return replace(layout, kept_pairs=layout.pairs)

    @property
    def pairs(self) -> Pairs:
        """Index tensors over pairs of nodes: those kept, or, for a large tree, made here."""
        if self.kept_pairs is not None:
            return self.kept_pairs
        parents = [link.parent for link in self.links]
        places = (self.dofs if self.apart is None else self.apart).places
        return Pairs.of(self.tree, parents, self.jumps, self.level_dofs, places)

    @property
    def hinges(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of every hinge, by their numbers, in the order of the first ones."""
        nodes: dict[object, list[int]] = {}
        for k, row in enumerate(self.dofs.places):
            nodes.setdefault(row or (self.tree.names[k],), []).append(k)
        return tuple(map(tuple, nodes.values()))

    def breadth_first(self, x: Tensor, dim: int) -> Tensor:
        """Reorder dimension `dim` from the tree's order to breadth first."""
        return x if self.in_order else x.index_select(dim, self.order)

    def tree_order(self, x: Tensor, dim: int) -> Tensor:
        """Reorder dimension `dim` from breadth first to the tree's order."""
        return x if self.in_order else x.index_select(dim, self.rank)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Packed blocks `[*batch, n, r, c]` to one tensor per level."""
        return x.split(self.level_sizes, dim=-3)

    def split_dofs(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """As `split`, with the padded dof dimension `dim` narrowed to what each level has."""
        levels = self.split(x)
        return tuple(
            level if d == x.shape[dim] else level.narrow(dim, 0, d)
            for level, d in zip(levels, self.level_dofs, strict=True)
        )

    def widen_dofs(self, x: Tensor) -> Tensor:
        """Dof columns of a level, `[*, n_l, d_l, r]`, zero-padded to the common width."""
        missing = self.dofs.width - x.shape[-2]
        return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


def _hinges(tree: Tree, places: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """For each node the first node of its hinge: itself, or a sibling with the same dofs."""
    first: dict[int, int] = {}
    hinge = []
    for k, row in enumerate(places):
        own = {first.setdefault(i, k) for i in row} or {k}
        j = min(own)
        if len(own) > 1 or (j != k and (places[j] != row or tree.parent[j] != tree.parent[k])):
            raise TreeError(
                f"nodes {tree.names[j]!r} and {tree.names[k]!r} share degrees of freedom, but not all of "
                "them, or not a parent.",
                "One hinge moves several nodes only together, against the parent they have in common.",
                "Give siblings the same dof_places, in the same order, or disjoint ones.",
            )
        hinge.append(j)
    return tuple(hinge)


def _link(
    tree: Tree, depth: int, position: dict[int, int], places: Sequence[int] | None = None
) -> Link:
    """The link of a level, or of its nodes at these places, to the level above."""
    if depth == 0:
        return Link.of([], 0)
    level = tree.levels[depth]
    nodes = level if places is None else [level[i] for i in places]
    parents = [position[tree.parent[k]] for k in nodes]
    return Link.of(parents, len(tree.levels[depth - 1]))
