"""Matrices, node positions and node sets of a finite-element model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchsko.errors import RobotFileError, unknown_name


@dataclass(frozen=True, eq=False)
class FiniteElementModel:
    """A finite-element model for `torchsko.FlexibleBody.from_finite_elements`.

    Attributes:
        mass: mass matrix with 3 displacements of each node, `[3 * num_nodes, 3 * num_nodes]`.
        stiffness: stiffness matrix, `[3 * num_nodes, 3 * num_nodes]`.
        positions: `[num_nodes, 3]`.
        nodes: number of each node in the file, ascending.
        sets: numbers of the nodes of each set in the file, by upper-case name.
    """

    mass: np.ndarray = field(repr=False)
    stiffness: np.ndarray = field(repr=False)
    positions: np.ndarray = field(repr=False)
    nodes: tuple[int, ...] = field(repr=False)
    sets: Mapping[str, tuple[int, ...]]

    def indices(self, nodes: str | int | Sequence[int]) -> list[int]:
        """Indices of nodes in `positions`.

        Args:
            nodes: name of a set, or numbers of nodes in the file.

        Raises:
            RobotFileError: for an unknown set, or a node without rows in the matrices.
        """
        if isinstance(nodes, str):
            if nodes.upper() not in self.sets:
                raise RobotFileError(*unknown_name("node set", nodes, tuple(self.sets)))
            numbers = self.sets[nodes.upper()]
        else:
            numbers = (nodes,) if isinstance(nodes, int) else tuple(nodes)
        place = {node: i for i, node in enumerate(self.nodes)}
        if missing := [node for node in numbers if node not in place]:
            raise RobotFileError(
                f"node {missing[0]} has no rows in the matrices.",
                "Boundary conditions remove rows, and so do nodes outside of elements.",
                "Leave *BOUNDARY out of the file: the root holds nodes of a flexible body.",
            )
        return [place[node] for node in numbers]
