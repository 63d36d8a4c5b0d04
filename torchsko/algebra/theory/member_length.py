r"""The member length matrix: who is supported by whom, as Isobe and Yagi write it.

Joint torques follow from nodal forces P by T = L Tr P, Tr their rotation into the links. Row i of L holds
the lengths L_j of link i and of every link supported by it, so that with A the SPO of identity weights

.. math:: L = A\, \mathrm{diag}(L_1, \ldots, L_n).

Reference: D. Isobe, A. Yagi, *General-purpose expression of structural connectivity in the parallel
solution scheme of inverse dynamics*, section II.B and Fig. 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.algebra.operators.composition import TreeOperator, compose
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.operators import SPO, BlockDiagonal
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import ShapeError
from torchsko.utils.devices import on_device

MemberLengths = Tensor | Sequence[Tensor]
"""One length per link, `[*batch, n]`, or a list of one block per link, each `[*batch, r, c]`."""


def member_length_matrix(tree: Tree, member_lengths: MemberLengths) -> Tensor:
    """The member length matrix by the paper's construction: rows added to the mother's row.

    Links are taken tips first. The paper goes from link n down to link 1, which asks that mothers are
    numbered before their children; any numbering will do here.

    Args:
        tree: which link supports which; the mother of a link is its parent, the base no node.
        member_lengths: L_i of each link in the tree's order [m]: `[*batch, n]`, or a list of n blocks
            `[*batch, r, c]` with the same number of rows.

    Returns:
        L, `[*batch, n, n]`, or `[*batch, n r, sum of c]` [m].

    Raises:
        ShapeError: when the number of links or of rows does not fit.

    Example:
        A link that carries two others:

        >>> tree = Tree.from_parents([-1, 0, 0])
        >>> member_length_matrix(tree, torch.tensor([1.0, 2.0, 3.0])).tolist()
        [[1.0, 2.0, 3.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]]

    Reference: Isobe and Yagi (undated), General-purpose expression, Fig. 3 and Eqs. 4-6.
    """
    blocks = _blocks(tree, member_lengths)
    end = [0]
    for block in blocks:
        end.append(end[-1] + block.shape[-1])
    rows = {
        i: torch.nn.functional.pad(block, (end[i], end[-1] - end[i + 1]))
        for i, block in enumerate(blocks)
    }
    for i in reversed(tree.order):
        if (mother := tree.parent[i]) >= 0:
            rows[mother] = rows[mother] + rows[i]
    return torch.cat(torch.broadcast_tensors(*(rows[i] for i in range(tree.num_nodes))), -2)


def member_length_operator(tree: Tree, member_lengths: MemberLengths) -> TreeOperator:
    """The member length matrix as a product of operators, applied in O(N): equal by `to_dense`.

    Args:
        tree: as in `member_length_matrix`.
        member_lengths: as in `member_length_matrix`.

    Returns:
        A diag(L_i), A the SPO of identity weights; maps columns of the blocks to their rows.

    Raises:
        ShapeError: as in `member_length_matrix`.

    Reference: Isobe and Yagi (undated), General-purpose expression, Eqs. 4-6; Jain 2011,
    Part II, section 2.
    """
    blocks = _blocks(tree, member_lengths)
    rows, widths = blocks[0].shape[-2], [block.shape[-1] for block in blocks]
    layout = on_device(Layout.of(tree, [rows] * tree.num_nodes, widths), blocks[0].device)
    padded = [
        torch.nn.functional.pad(block, (0, layout.dofs.width - block.shape[-1])) for block in blocks
    ]
    packed = torch.stack(torch.broadcast_tensors(*(padded[k] for k in tree.order)), -3)
    one = torch.eye(rows, dtype=packed.dtype, device=packed.device).expand(tree.num_nodes, -1, -1)
    return compose(SPO(layout, DenseEdges(one)), BlockDiagonal(layout, packed, "nodes", "dofs"))


def _blocks(tree: Tree, member_lengths: MemberLengths) -> list[Tensor]:
    """One block per link, checked."""
    if isinstance(member_lengths, Tensor):
        blocks = list(member_lengths[..., None, None].unbind(-3))
    else:
        blocks = list(member_lengths)
    if len(blocks) != tree.num_nodes or len({block.shape[-2] for block in blocks}) > 1:
        shapes = [list(block.shape) for block in blocks]
        raise ShapeError(
            f"member lengths of shapes {shapes} were given for {tree.num_nodes} links.",
            "Rows of the matrix are added up, link by link.",
            f"Pass a tensor [*batch, {tree.num_nodes}], or {tree.num_nodes} blocks [*batch, r, c] with "
            "the same r.",
        )
    return blocks
