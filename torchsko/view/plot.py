"""Pictures of a tree and of the zeros it leaves in matrices. Needs the extra `plot` (matplotlib).

Serial-chain segments have one colour each. In a matrix the block of a segment with itself has that
colour, the block of two related segments a grey, and unrelated segments leave the paper white.

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
LARGEST = 128
"""Most nodes of a figure."""

RELATED, INK = "#dcdfe3", "#2b2d31"


def sparsity_figure(shown: Tree | SKOModel) -> Figure:
    """A tree, and beside it the block pattern of its mass matrix.

    Args:
        shown: a tree, one row per node; or a model, rows as tall as its nodes have dofs. Nodes that one
            hinge moves, as in an aggregated model, are one.

    Returns:
        A matplotlib figure that pyplot knows nothing of: save it with `figure.savefig(path)`, or
        leave it as the last line of a notebook cell.

    Raises:
        MissingExtraError: when matplotlib is not installed.
        TreeError: when the tree has more nodes than a figure can show.
    """
    tree, sizes = (shown, None) if isinstance(shown, Tree) else _hinged(shown)
    figure = require("matplotlib.figure", "plot").Figure(figsize=(11.0, 5.4), layout="constrained")
    _refuse_large(tree)
    left, right = figure.subplots(1, 2)
    draw_tree(left, tree)
    draw_pattern(right, tree, mass_matrix_pattern(tree), sizes)
    left.set_title("tree, one colour per serial-chain segment", fontsize=11)
    right.set_xlabel(
        "mass matrix: grey where segments are related, zero where white", fontsize=11, labelpad=9
    )
    return figure


def _hinged(model: SKOModel) -> tuple[Tree, list[int]]:
    """A model's tree with one node for each hinge, and how many dofs each has."""
    layout = model.layout
    # Members that share a hinge share its dofs: a row for each would count these several times.
    sizes = [layout.dofs.sizes[members[0]] for members in layout.hinges]
    return coarse_tree(model.tree, layout.hinges), sizes


def _refuse_large(tree: Tree) -> None:
    if tree.num_nodes > LARGEST:
        raise TreeError(
            f"the tree has {tree.num_nodes} nodes; a figure shows {LARGEST}.",
            f"Each pair of them may be a rectangle, up to {tree.num_nodes**2} of them.",
            "Draw a part of it: torchsko.plot.sparsity_figure(torchsko.algebra.topology.subgraph."
            f"induced_subgraph(tree, range({LARGEST}))).",
        )


def draw_tree(ax: Axes, tree: Tree) -> None:
    """Draw a tree on axes, bases at the bottom on the inertial frame, one colour per segment.

    Args:
        ax: matplotlib axes.
        tree: any tree or forest.
    """
    x, colour = _places(tree), segment_colours(tree)
    for k, p in enumerate(tree.parent):
        start = (x[p], tree.depth(p)) if p >= 0 else (x[k], -0.75)
        ax.plot(
            [start[0], x[k]], [start[1], tree.depth(k)],
            color=INK, linewidth=1.6, linestyle="-" if p >= 0 else ":", zorder=1,
        )  # fmt: skip
    ends = (min(x) - 0.5, max(x) + 0.5)
    ax.plot(ends, (-0.75, -0.75), color=INK, linewidth=2.5, zorder=1)
    ax.text(ends[1], -0.85, "inertial frame", ha="right", va="top", color=INK, fontsize=9)
    fontsize = 10 if tree.num_nodes <= 16 else 7
    for k, name in enumerate(tree.names):
        ax.text(
            x[k], tree.depth(k), name, ha="center", va="center", fontsize=fontsize, color=INK, zorder=2,
            bbox={"boxstyle": "round,pad=0.45,rounding_size=0.9", "facecolor": colour[k],
                  "edgecolor": INK, "linewidth": 1.0},
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
    """Draw which node blocks of a matrix may be nonzero, rows and columns segment by segment.

    Args:
        ax: matplotlib axes.
        tree: the tree whose nodes are the rows and columns.
        pattern: bool `[n, n]`, for example `mass_matrix_pattern(tree)`.
        sizes: height and width of each node's blocks; 1 when left out.
        nodes: order of rows and columns; depth first, so that segments stay together, when left out.

    Reference: Jain 2011, Transformations Part I, Fig. 7.
    """
    rectangle = require("matplotlib.patches", "plot").Rectangle
    home = {k: i for i, segment in enumerate(tree.segments) for k in segment}
    colour = segment_colours(tree)
    nodes = _depth_first(tree) if nodes is None else list(nodes)
    size = {k: 1 if sizes is None else sizes[k] for k in nodes}
    start, total = {}, 0
    for k in nodes:
        start[k], total = total, total + size[k]
    for i in nodes:
        for j in nodes:
            if pattern[i, j]:
                face = colour[i] if home[i] == home[j] else RELATED
                ax.add_patch(
                    rectangle(
                        (start[j], start[i]), size[j], size[i],
                        facecolor=face, edgecolor="white", linewidth=1.2,
                    )
                )  # fmt: skip
    ax.set_xlim(0, max(total, 1))
    ax.set_ylim(max(total, 1), 0)
    ax.set_aspect("equal")
    labelled = [k for k in nodes if size[k]]
    middles, names = [start[k] + size[k] / 2 for k in labelled], [tree.names[k] for k in labelled]
    ax.set_xticks(middles, names, rotation=90 if max(map(len, names), default=0) > 2 else 0)
    ax.set_yticks(middles, names)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=9 if len(nodes) <= 24 else 6)
    for spine in ax.spines.values():
        spine.set_edgecolor(INK)


def segment_colours(tree: Tree) -> list[str]:
    """One colour per node, the same within a serial-chain segment."""
    home = {k: i for i, segment in enumerate(tree.segments) for k in segment}
    return [PALETTE[home[k] % len(PALETTE)] for k in range(tree.num_nodes)]


def _depth_first(tree: Tree) -> list[int]:
    """Every node before its children, a whole branch before the next."""
    found, waiting = [], list(reversed(tree.bases))
    while waiting:
        found.append(waiting.pop())
        waiting += reversed(tree.children[found[-1]])
    return found


def _places(tree: Tree) -> list[float]:
    """Horizontal place of each node: tips side by side, parents over the middle of their children."""
    order = _depth_first(tree)
    tips = {k: at for at, k in enumerate(k for k in order if not tree.children[k])}
    x = [float(tips.get(k, 0)) for k in range(tree.num_nodes)]
    for k in reversed(order):
        if below := tree.children[k]:
            x[k] = (x[below[0]] + x[below[-1]]) / 2
    return x
