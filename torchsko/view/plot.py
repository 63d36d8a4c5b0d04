"""Figures of a tree and of the sparsity of its matrices. Needs the extra `plot` (matplotlib).

Each serial-chain segment has a color. In a matrix, the diagonal block of a segment has that color, the
block of two related segments is gray, and the block of unrelated segments is white.

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*,
Nonlinear Dynamics, 2011, section 7 (the figures drawn here are its Figs. 6 and 7, for any tree).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.topology.sparsity import mass_matrix_pattern
from torchsko.algebra.topology.subgraph import coarse_tree
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import TreeError
from torchsko.utils.optional_dependencies import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = (
    "#8fb4f0", "#f7cc62", "#ff9f8c", "#8ad392", "#c9a5f7", "#7fd6d0", "#cfa686", "#ffb3d1", "#b9c98b",
)  # fmt: skip
MAX_NODES = 128
"""Largest number of nodes in a figure."""

RELATED_COLOUR, LINE_COLOUR = "#dcdfe3", "#2b2d31"


def sparsity_figure(shown: Tree | SKOModel) -> Figure:
    """Draw a tree, and beside it the block pattern of its mass matrix.

    Args:
        shown: a tree, with one row per node; or a model, whose rows have the height of its nodes' dofs.
            Nodes moved by the same hinge, as in an aggregated model, are drawn as one.

    Returns:
        A matplotlib figure that pyplot does not manage: save it with `figure.savefig(path)`, or write it
        in the last line of a notebook cell.

    Raises:
        MissingExtraError: if matplotlib is not installed.
        TreeError: if the tree has too many nodes.
    """
    tree, sizes = (shown, None) if isinstance(shown, Tree) else _hinge_tree(shown)
    figure = require("matplotlib.figure", "plot").Figure(figsize=(11.0, 5.4), layout="constrained")
    _check_size(tree)
    left, right = figure.subplots(1, 2)
    draw_tree(left, tree)
    draw_pattern(right, tree, mass_matrix_pattern(tree), sizes)
    left.set_title("tree, one color per serial-chain segment", fontsize=11)
    right.set_xlabel(
        "mass matrix: gray where segments are related, zero where white", fontsize=11, labelpad=9
    )
    return figure


def _hinge_tree(model: SKOModel) -> tuple[Tree, list[int]]:
    """A model's tree with one node for each hinge, and the dofs of each hinge."""
    layout = model.layout
    # Nodes of the same hinge share its dofs, which would be counted several times with a row for each.
    sizes = [layout.dofs.sizes[members[0]] for members in layout.hinges]
    return coarse_tree(model.tree, layout.hinges), sizes


def _check_size(tree: Tree) -> None:
    if tree.num_nodes > MAX_NODES:
        raise TreeError(
            f"the tree has {tree.num_nodes} nodes; a figure shows at most {MAX_NODES}.",
            f"The figure could have {tree.num_nodes**2} rectangles.",
            "Draw a part of it: torchsko.plot.sparsity_figure(torchsko.algebra.theory.path_induced."
            f"induced_subgraph(tree, range({MAX_NODES}))).",
        )


def draw_tree(ax: Axes, tree: Tree) -> None:
    """Draw a tree on axes: bases at the bottom on the inertial frame, a color for each segment.

    Args:
        ax: matplotlib axes.
        tree: any tree or forest.
    """
    x, color = _horizontal_positions(tree), segment_colors(tree)
    for k, p in enumerate(tree.parent):
        start = (x[p], tree.depth(p)) if p >= 0 else (x[k], -0.75)
        ax.plot(
            [start[0], x[k]], [start[1], tree.depth(k)],
            color=LINE_COLOUR, linewidth=1.6, linestyle="-" if p >= 0 else ":", zorder=1,
        )  # fmt: skip
    ends = (min(x) - 0.5, max(x) + 0.5)
    ax.plot(ends, (-0.75, -0.75), color=LINE_COLOUR, linewidth=2.5, zorder=1)
    ax.text(ends[1], -0.85, "inertial frame", ha="right", va="top", color=LINE_COLOUR, fontsize=9)
    fontsize = 10 if tree.num_nodes <= 16 else 7
    for k, name in enumerate(tree.names):
        ax.text(
            x[k], tree.depth(k), name, ha="center", va="center", fontsize=fontsize, zorder=2,
            color=LINE_COLOUR,
            bbox={"boxstyle": "round,pad=0.45,rounding_size=0.9", "facecolor": color[k],
                  "edgecolor": LINE_COLOUR, "linewidth": 1.0},
        )  # fmt: skip
    ax.set_xlim(ends[0] - 0.2, ends[1] + 0.2)
    ax.set_ylim(-1.2, tree.num_levels - 0.5)
    ax.axis("off")


def draw_pattern(
    ax: Axes,
    tree: Tree,
    pattern: Tensor,
    sizes: Sequence[int] | None = None,
    nodes: Sequence[int] | None = None,
) -> None:
    """Draw the block pattern of a matrix: colored and gray blocks may be nonzero.

    Args:
        ax: matplotlib axes.
        tree: the tree whose nodes are the rows and columns.
        pattern: bool `[n, n]`, for example `mass_matrix_pattern(tree)`.
        sizes: height and width of each node's blocks; 1 when left out.
        nodes: order of rows and columns; when left out depth first, which keeps segments together.

    Reference: Jain 2011, Transformations Part I, Fig. 7.
    """
    rectangle = require("matplotlib.patches", "plot").Rectangle
    home = {k: i for i, segment in enumerate(tree.segments) for k in segment}
    color = segment_colors(tree)
    nodes = _depth_first(tree) if nodes is None else list(nodes)
    size = {k: 1 if sizes is None else sizes[k] for k in nodes}
    start, total = {}, 0
    for k in nodes:
        start[k], total = total, total + size[k]
    for i in nodes:
        for j in nodes:
            if pattern[i, j]:
                face = color[i] if home[i] == home[j] else RELATED_COLOUR
                ax.add_patch(
                    rectangle(
                        (start[j], start[i]), size[j], size[i],
                        facecolor=face, edgecolor="white", linewidth=1.2,
                    )
                )  # fmt: skip
    ax.set_xlim(0, max(total, 1))
    ax.set_ylim(max(total, 1), 0)
    ax.set_aspect("equal")
    labeled = [k for k in nodes if size[k]]
    middles, names = [start[k] + size[k] / 2 for k in labeled], [tree.names[k] for k in labeled]
    ax.set_xticks(middles, names, rotation=90 if max(map(len, names), default=0) > 2 else 0)
    ax.set_yticks(middles, names)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=9 if len(nodes) <= 24 else 6)
    for spine in ax.spines.values():
        spine.set_edgecolor(LINE_COLOUR)


def segment_colors(tree: Tree) -> list[str]:
    """A color for each node; nodes of a serial-chain segment have the same one."""
    home = {k: i for i, segment in enumerate(tree.segments) for k in segment}
    return [PALETTE[home[k] % len(PALETTE)] for k in range(tree.num_nodes)]


def _depth_first(tree: Tree) -> list[int]:
    """Nodes in depth-first order."""
    found, waiting = [], list(reversed(tree.bases))
    while waiting:
        found.append(waiting.pop())
        waiting += reversed(tree.children[found[-1]])
    return found


def _horizontal_positions(tree: Tree) -> list[float]:
    """Horizontal position of each node: tips side by side, parents centered over their children."""
    order = _depth_first(tree)
    tips = {k: at for at, k in enumerate(k for k in order if not tree.children[k])}
    x = [float(tips.get(k, 0)) for k in range(tree.num_nodes)]
    for k in reversed(order):
        if below := tree.children[k]:
            x[k] = (x[below[0]] + x[below[-1]]) / 2
    return x
