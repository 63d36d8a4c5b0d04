"""Pictures: every nonzero block is drawn where it stands, and no other."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given, settings

import torchsko as ts
from tests.strategies import sko_models
from torchsko.algebra.topology.sparsity import (
    expand,
    mass_matrix_pattern,
    segment_tree,
    spo_pattern,
)
from torchsko.utils.optional_dependencies import require

pytest.importorskip("matplotlib")


def axes():
    from matplotlib.figure import Figure

    return Figure().subplots()


@pytest.mark.shows("Jain 2011, Transformations Part I", "Fig. 7", ts.plot.draw_pattern)
@settings(max_examples=10)
@given(sko_models(9, min_dofs=0))
def test_mass_matrix_picture_has_one_rectangle_per_block_of_related_nodes(model):
    ax, tree, sizes = axes(), model.tree, model.layout.dofs.sizes
    nodes = list(range(tree.num_nodes))
    ts.plot.draw_pattern(ax, tree, mass_matrix_pattern(tree), sizes, nodes)
    drawn = {(r.get_y(), r.get_x(), r.get_height(), r.get_width()) for r in ax.patches}
    start = [sum(sizes[:k]) for k in nodes]
    assert drawn == {
        (start[i], start[j], sizes[i], sizes[j]) for i in nodes for j in nodes if tree.related(i, j)
    }


def test_only_blocks_within_a_segment_have_its_color():
    tree = ts.algebra.Tree.from_parents([-1, 0, 0, 2])
    ax = axes()
    ts.plot.draw_pattern(ax, tree, spo_pattern(tree), nodes=range(4))
    from matplotlib.colors import to_hex

    face = {(int(r.get_y()), int(r.get_x())): to_hex(r.get_facecolor()) for r in ax.patches}
    color = ts.plot.segment_colors(tree)
    assert face.pop((2, 3)) == color[2] == color[3]
    assert all((c == color[i]) == (i == j) for (i, j), c in face.items())
    assert set(face) == {(0, 0), (1, 1), (2, 2), (3, 3), (0, 1), (0, 2), (0, 3)}


@settings(max_examples=10)
@given(sko_models(9, min_dofs=0))
def test_tree_picture_names_every_node_and_draws_every_edge_upwards(model):
    ax, tree = axes(), model.tree
    ts.plot.draw_tree(ax, tree)
    assert {text.get_text() for text in ax.texts} == {*tree.names, "inertial frame"}
    at = {text.get_text(): text.get_position() for text in ax.texts}
    assert len(set(at.values())) == tree.num_nodes + 1
    for k, p in enumerate(tree.parent):
        if p >= 0:
            assert at[tree.names[k]][1] == at[tree.names[p]][1] + 1
    assert len(ax.lines) == tree.num_nodes + 1


@pytest.mark.parametrize("parents", [[-1], [-1, -1], [-1, 0, 1, 1, 0]], ids=str)
def test_sparsity_figure_saves(parents):
    file = io.BytesIO()
    ts.plot.sparsity_figure(ts.algebra.Tree.from_parents(parents)).savefig(
        file, format="png", dpi=30
    )
    assert file.getvalue().startswith(b"\x89PNG")


@settings(max_examples=10)
@given(sko_models(9))
def test_figure_of_an_aggregated_model_has_a_row_for_each_dof_and_white_where_zeros_are(model):
    tree, dofs = model.tree, model.layout.dofs
    _, ax = ts.plot.sparsity_figure(ts.algebra.aggregate_segments(model)).axes
    assert {label.get_text() for label in ax.get_yticklabels()} == set(segment_tree(tree).names)
    assert ax.get_xlim() == (0, dofs.total)
    area = sum(r.get_height() * r.get_width() for r in ax.patches)
    assert area == expand(mass_matrix_pattern(tree), dofs, dofs).sum()


def test_missing_matplotlib_names_the_extra(monkeypatch):
    for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ts.MissingExtraError, match=r'pip install matplotlib(.|\n)*"\.\[plot\]"'):
        ts.plot.sparsity_figure(ts.algebra.Tree.from_parents([-1]))


@pytest.mark.parametrize(("module", "distribution"), [("PIL", "pillow"), ("collada", "pycollada")])
def test_a_missing_module_is_installed_by_the_name_of_its_distribution(
    module, distribution, monkeypatch
):
    for name in [m for m in sys.modules if m.split(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ts.MissingExtraError, match=rf"pip install {distribution},"):
        require(module, "view")
