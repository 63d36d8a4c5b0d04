r"""Aggregation: SKO models with fewer, larger nodes and the same dynamics.

When a set S of nodes meets the aggregation condition it becomes one node, with the stacked
velocities of its members. In the order C, S, P of `partition`,

.. math::
    E_A \to \begin{bmatrix} E_C & 0 & 0 \\ B_S & 0 & 0 \\ 0 & E_{SP} A_S & E_P \end{bmatrix}, \quad
    H_S \to H_S A_S, \quad a_S \to A_S^* a_S

while M (now one block), b and the armature stay. Mass matrix, bias and accelerations are those of
the model it came from, entry by entry: an aggregated model keeps the order of the dof vectors, in
any numbering of the tree.

============= ============================================= =======================
paper         meaning                                       code
============= ============================================= =======================
A_S           SPO inside S                                  ``A_S``
E_SP          weights of the edges from S to its parent     ``weight``
E_SP A_S      A(j, i) for all members i, j the new parent   ``weight @ A_S``
============= ============================================= =======================

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*,
Nonlinear Dynamics, 2011, section 6.
DEPARTS: the a in Eqs. 40-41 is the transformed one, A_S* a_S on the aggregate, as in Eq. 38; the copy
this was written from does not mark it there, and with the old a the bias comes out wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torchsko.algebra.blocks import Blocks, block_diagonal, blocks_of, connector
from torchsko.algebra.model import SKOModel
from torchsko.algebra.subgraph import (
    coarse_tree,
    contract,
    contracted_groups,
    induced_subgraph,
    node_numbers,
    segment_groups,
)
from torchsko.algebra.tree import Tree
from torchsko.errors import ShapeError

LARGEST = 4096
"""Most velocity components of a node: its blocks, dense, take 134 MB each in float64."""


def aggregate(model: SKOModel, nodes: Iterable[int | str], name: str | None = None) -> SKOModel:
    """The model in which a set of nodes is one node; same dynamics, same dof vectors.

    The new node has m_S = sum m_k velocities and d_S = sum d_k dofs. It stands in the tree where
    its lowest-numbered member stood, its members' velocities stacked in their old order. Dof
    vectors keep the order they have in `model`, whatever the numbering, so mass matrices, biases
    and accelerations compare entry by entry; `layout.dofs.places` says where each node's dofs are.

    Args:
        model: any SKO model, also an aggregated one.
        nodes: numbers or names of the nodes; they must meet the aggregation condition.
        name: name of the new node; by default its members' names joined by "+".

    Returns:
        An SKO model on the contracted tree.

    Raises:
        ShapeError: when the node would have more than `LARGEST` velocity components.
        TreeError: when the nodes do not meet the aggregation condition; the message says why and
            gives the `aggregation_subgraph` that does.

    Reference: Jain 2011, Transformations Part I, Lemmas 7-9, Corollary 6.1.
    """
    S = node_numbers(model.tree, nodes)
    return _regroup(model, contract(model.tree, S, name), contracted_groups(model.tree, S))


def aggregate_segments(model: SKOModel) -> SKOModel:
    """The model with one node per serial-chain segment; same dynamics, same dof vectors.

    Raises:
        ShapeError: when a node would have more than `LARGEST` velocity components.

    Reference: Jain 2011, Transformations Part I, section 7.
    """
    groups = segment_groups(model.tree)
    return _regroup(model, coarse_tree(model.tree, groups), groups)


def _regroup(model: SKOModel, coarse: Tree, groups: Sequence[Sequence[int]]) -> SKOModel:
    """The model on the coarse tree whose node i stands for groups[i] (Lemma 9)."""
    tree, blocks = model.tree, blocks_of(model)
    for S, name in zip(groups, coarse.names, strict=True):
        _refuse_large(sum(blocks.inertia[k].shape[-1] for k in S), name)

    def stacked(of: list[Tensor], S: Sequence[int]) -> Tensor:
        return torch.cat([of[k] for k in S], dim=-2)

    weights, joint_maps, inertias, coriolis = [], [], [], []
    for S, p in zip(groups, coarse.parent, strict=True):
        weight = connector(tree, blocks, groups[p] if p >= 0 else (), S)
        H, a = block_diagonal([blocks.joint_map[k] for k in S]), stacked(blocks.coriolis_accel, S)
        if len(S) > 1:  # else A_S = I
            A_S = resolvent(connector(tree, blocks, S, S), induced_subgraph(tree, S).nilpotency)
            weight, H, a = weight @ A_S, H @ A_S, A_S.mT @ a
        weights.append(weight)
        joint_maps.append(H)
        inertias.append(block_diagonal([blocks.inertia[k] for k in S]))
        coriolis.append(a)
    armature = blocks.armature
    return Blocks(
        edge_weight=weights,
        joint_map=joint_maps,
        inertia=inertias,
        coriolis_accel=coriolis,
        gyro_force=[stacked(blocks.gyro_force, S) for S in groups],
        armature=None if armature is None else [stacked(armature, S) for S in groups],
        straight=None,
        aligned=[False] * len(groups),
        dof_places=[tuple(i for k in S for i in blocks.dof_places[k]) for S in groups],
        scalar=blocks.scalar,
    ).model(coarse)


def _refuse_large(components: int, name: str) -> None:
    if components > LARGEST:
        short = name if len(name) <= 60 else f"{name[:30]}...{name[-25:]}"
        raise ShapeError(
            f"the node {short!r} would have {components} velocity components.\n"
            f"Its blocks are dense: {8 * components**2 / 1e9:.1f} GB in float64, several of them, for "
            f"each sample.\nAggregate nodes of at most {LARGEST} components together, or sweep over "
            "the tree as it is."
        )


def resolvent(E: Tensor, nilpotency: int) -> Tensor:
    """(I - E)^-1 = (I + E)(I + E^2)(I + E^4)... for a matrix whose power `nilpotency` is zero.

    Args:
        E: `[*batch, m, m]`.
        nilpotency: smallest p with E^p = 0.

    Returns:
        `[*batch, m, m]`, in 2 log2(nilpotency) products.

    Reference: Jain 2011, Part II, section 2 (the SPO as a 1-resolvent).
    """
    A = torch.eye(E.shape[-1], dtype=E.dtype, device=E.device) + E
    power, reach = E, 2
    while reach < nilpotency:
        power, reach = power @ power, 2 * reach
        A = A + power @ A
    return A
