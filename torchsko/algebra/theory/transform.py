r"""Aggregation of nodes, and embedding of constraints that couple their dofs.

When a set S of nodes meets the aggregation condition it becomes one node, with the stacked
velocities of its members. In the order C, S, P of `partition`,

.. math::
    E_A \to \begin{bmatrix} E_C & 0 & 0 \\ B_S & 0 & 0 \\ 0 & E_{SP} A_S & E_P \end{bmatrix}, \quad
    H_S \to H_S A_S, \quad a_S \to A_S^* a_S

while M, b and the armature stay. Mass matrix, bias and accelerations are those of the model it came
from, entry by entry: an aggregated model keeps the order of the dof vectors, in any numbering of the
tree. With new dofs qd, qd_S = X qd and qdd_S = X qdd + xi, the node becomes

.. math::
    H_S \to X^* H_S A_S, \quad a_S \to A_S^* (a_S + H_S^* \xi), \quad S \to X^* S X,

the mass matrix X* MM X and the bias X* (C + MM xi). The members keep their numbers and names in the tree of
the result, next to each other on the parent of the node. `layout.hinges` has the sets of nodes that share
their dofs and so form one node. `embedding` has the representation in O(members).

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*,
Nonlinear Dynamics, 2011, section 6; Part II: *Closed-chain constraint embedding*, 2012.
DEPARTS: the a in Eqs. 40-41 is the transformed one, A_S* a_S on the aggregate, as in Eq. 38; the copy
this was written from does not mark it there, and with the old a the bias comes out wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.topology.embedding_plan import embedding_plan
from torchsko.algebra.topology.subgraph import segment_groups
from torchsko.algebra.transforms.embedding import embedded


def aggregate(model: SKOModel, nodes: Iterable[int | str]) -> SKOModel:
    """The model in which a set of nodes is one node; same dynamics, same dof vectors, same nodes.

    Called at every state, make the plan once: ``embedded(model, embedding_plan(layout, [nodes]))``.

    Args:
        model: any SKO model, also an aggregated one.
        nodes: numbers or names of the nodes; they must meet the aggregation condition.

    Returns:
        An SKO model whose members hang side by side on one parent and share their dofs.

    Raises:
        TreeError: when the nodes do not meet the aggregation condition; the message gives the reason and
            the `aggregation_subgraph` that does.

    Reference: Jain 2011, Transformations Part I, Lemmas 7-9, Corollary 6.1.
    """
    return embedded(model, embedding_plan(model.layout, [nodes]))


def aggregate_segments(model: SKOModel) -> SKOModel:
    """The model with one node per serial-chain segment; same dynamics, same dof vectors.

    Args:
        model: any SKO model.

    Returns:
        The model of the segments; the same model where each is of one node.

    Reference: Jain 2011, Transformations Part I, section 7.
    """
    groups = [S for S in segment_groups(model.tree) if len(S) > 1]
    return embedded(model, embedding_plan(model.layout, groups)) if groups else model


def embed(
    model: SKOModel, members: Iterable[int | str], X: Tensor, xi: Tensor | None = None
) -> SKOModel:
    """The model in which a set of nodes is one node with new dofs.

    With several nodes, or at many states, make the plan once: see `embedding`.

    Args:
        model: any SKO model, also an embedded one.
        members: numbers or names of the nodes; they must meet the aggregation condition.
        X: rates of the members per rate of the node, `[*batch, d_S, d]`: rows in the order of the
            members' numbers, each one's dofs in their order.
        xi: acceleration of the members where that of the node vanishes, `[*batch, d_S]`; zero by default.

    Returns:
        An SKO model with d dofs in place of d_S: the first d places of those of the members are theirs.

    Raises:
        TreeError: when the nodes do not meet the aggregation condition.
        ShapeError: when X or xi has another number of rows, or X more columns than rows.

    Example:
        Two masses on one slide, the second geared to move twice as far as the first:

        >>> from torchsko.algebra.topology.tree import Tree
        >>> one, tree = torch.ones(1, 1), Tree.from_parents([-1, -1])
        >>> model = SKOModel.from_blocks(tree, [None, None], [one, one], [one, one])
        >>> from torchsko.algorithms import mass_matrix
        >>> mass_matrix(embed(model, [0, 1], torch.tensor([[1.0], [2.0]]))).tolist()
        [[5.0]]

    Reference: Jain 2012, Transformations Part II, constraint embedding.
    """
    plan = embedding_plan(model.layout, [members], [X.shape[-1]])
    return embedded(model, plan, [X], None if xi is None else [xi])


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
