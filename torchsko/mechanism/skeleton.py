"""Index structures of a mechanism, which follow from its tree, joint types and couplings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.packing import Packing
from torchsko.algebra.topology.tree import Tree
from torchsko.mechanism.coupling import Coupling, Row
from torchsko.mechanism.joints.groups import JointSet
from torchsko.mechanism.joints.kind import JointType
from torchsko.utils.devices import on_device


def skeleton(
    body_names: Sequence[str],
    parents: Sequence[int],
    kinds: Sequence[JointType],
    followed: Mapping[int, Row],
    leaders: Sequence[int],
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """The fields `layout`, `coordinates`, `joints` and `coupling` of a mechanism.

    Args:
        body_names: names of the bodies.
        parents: index of each body's parent; -1 for the inertial frame.
        kinds: type of the joint that moves each body.
        followed: for each dependent joint the joints that it follows, in the order of its coefficients.
        leaders: for each joint the joint whose coordinates it has: itself, or an elastic joint of the same
            body.
        device: device of the index tensors.

    Raises:
        TreeError: when the bodies do not form a tree.
    """
    tree = Tree.from_parents(parents, body_names)
    num_q, num_dof = [kind.num_q for kind in kinds], [kind.num_dof for kind in kinds]
    layout = Layout.of(tree, [6] * len(kinds), num_dof, _places(num_dof, leaders))
    coordinates = Packing.of(num_q, tree.order, _places(num_q, leaders))
    structure = {
        "layout": layout,
        "coordinates": coordinates,
        "joints": JointSet.of(tuple(kinds), tree.levels, coordinates, layout.dofs),
        "coupling": Coupling.of(layout, coordinates, followed) if followed else None,
    }
    return {name: on_device(x, device) for name, x in structure.items()}


def _places(sizes: Sequence[int], leaders: Sequence[int]) -> list[tuple[int, ...]]:
    """Indices of the entries of each joint: joint after joint, and those of its leader."""
    places: list[tuple[int, ...]] = []
    end = 0
    for k, (size, leader) in enumerate(zip(sizes, leaders, strict=True)):
        if leader == k:
            places.append(tuple(range(end, end + size)))
            end += size
        else:
            places.append(places[leader])
    return places
