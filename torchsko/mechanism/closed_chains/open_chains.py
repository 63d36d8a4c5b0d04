"""Mechanisms whose loops are cut, and names of independent dofs."""

from __future__ import annotations

from dataclasses import replace

import torch

from torchsko.mechanism.configuration import initial_configuration
from torchsko.mechanism.coordinates import tree_q
from torchsko.mechanism.data import M, MechanismData, first_sample, uncoupled
from torchsko.mechanism.loops.embedded_loops import EmbeddedNode
from torchsko.utils.shapes import matvec

Dof = tuple[str, int]
"""Name of a joint, and the index of one of its dofs."""


def cut_loops(mech: M) -> M:
    """The mechanism whose loops are cut; dependent dofs have no limits of speed and force."""
    closing = mech.closing
    if closing is None:
        return mech
    rates = {}
    for name in ("velocity_limit", "effort_limit"):
        own = getattr(mech, name)
        unlimited = own.new_full((*own.shape[:-1], closing.dependent.shape[0]), torch.inf)
        rates[name] = torch.cat([own, unlimited], -1).index_select(-1, closing.row_place)
    one = first_sample(mech)
    tree = uncoupled(one)
    keys = tuple(
        replace(key, qd=matvec(closing.open_matrix(one, tree, tree_q(one, key.q)), key.qd))
        for key in mech.file_metadata.keyframes
    )
    start = initial_configuration(mech)
    metadata = replace(mech.file_metadata, initial=start, keyframes=keys)
    return replace(mech, closing=None, file_metadata=metadata, **rates)


def independent_dofs(mech: MechanismData) -> set[Dof]:
    """Independent dofs of a mechanism with loops."""
    assert mech.closing is not None
    return {dof_name(mech, i) for i in mech.closing.own.tolist()}


def joints_of(mech: MechanismData, node: EmbeddedNode) -> list[str]:
    """Joints with open dofs in a node."""
    return [*dict.fromkeys(dof_name(mech, i)[0] for i in node.open_dofs.tolist())]


def independent_joints(mech: MechanismData) -> list[str]:
    """Joints with independent dofs in the loops of a mechanism, loop by loop."""
    assert mech.closing is not None
    free = {
        dof_name(mech, i)[0]: None
        for node in mech.closing.nodes
        for i in node.open_dofs.index_select(0, node.independent).tolist()
    }
    return [*free]


def independent_dof_numbers(mech: MechanismData) -> list[int]:
    """For each open dof its dof of the tree."""
    coupling = mech.coupling
    return (
        list(range(mech.num_tree_dof))
        if coupling is None
        else coupling.independent_dof_index.tolist()
    )


def dof_name(mech: MechanismData, i: int) -> Dof:
    """Joint of an open dof, and the dof's index in it."""
    dof = independent_dof_numbers(mech)[i]
    return next(
        (mech.tree_joint_names[k], row.index(dof))
        for k, row in enumerate(map(list, mech.layout.dofs.places))
        if dof in row
    )
