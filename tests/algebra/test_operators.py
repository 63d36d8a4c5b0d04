"""Operators: each equals its matrix; they compose, add, transpose and act as matrices do."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchsko as ts
from tests.forms import in_form
from tests.strategies import (
    BATCHES,
    agree,
    dense_mass_matrix,
    dense_operators,
    dense_riccati,
    mechanisms,
    random_model,
    seeds,
    sko_models,
    trees,
)
from torchsko.algebra.operators.composition import compose
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.operators import SKO, SPO, BlockDiagonal, Identity
from torchsko.algebra.recursions.articulated import articulated_operators, operators
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import ShapeError

MODELS = sko_models(mixed=True, min_dofs=0)


def letters(model):
    """The paper's letters of a model: E_A, A, H, M, I."""
    ops = operators(model)
    return ops.sko, ops.spo, ops.joint_map, ops.inertia, ops.identity


def expression(model):
    """An operator that uses every class, from dofs to nodes, and its matrix."""
    E, A, H, M, I = letters(model)
    x = dense_operators(model)
    one = torch.eye(x.M.shape[-1], dtype=x.M.dtype)
    operator = (I - E @ M + A.T @ A) @ (-H.T)
    return operator, (one - x.E @ x.M + x.A.mT @ x.A) @ (-x.H.mT)


@given(MODELS)
def test_each_operator_is_its_definition_at_true_sizes_in_the_tree_s_order(model):
    E, A, H, M, I = letters(model)
    dense = dense_operators(model)
    agree(E.to_dense(), dense.E)
    agree(A.to_dense(), dense.A)
    agree(H.to_dense(), dense.H)
    agree(M.to_dense(), dense.M)
    assert torch.equal(I.to_dense(), torch.eye(sum(model.layout.nodes.sizes), dtype=torch.float64))
    if model.armature is not None:
        agree(operators(model).armature.to_dense(), dense.S)


@given(MODELS)
def test_articulated_operators_are_their_definitions(model):
    ops, dense = articulated_operators(model), dense_riccati(model)
    one = torch.eye(model.num_dof, dtype=torch.float64)
    agree(ops.art_inertia.to_dense(), dense.P)
    agree(ops.hinge_inertia.to_dense(), dense.D)
    agree(ops.hinge_compliance.to_dense() @ dense.D, one)
    agree(ops.gain.to_dense(), dense.G)
    agree(ops.shifted_gain.to_dense(), dense.K)
    agree(ops.projection.to_dense(), dense.tau)
    agree(ops.coprojection.to_dense(), dense.tau_bar)
    agree(ops.art_inertia_plus.to_dense(), dense.P_plus)
    agree(ops.art_sko.to_dense(), dense.E_psi)
    agree(ops.art_spo.to_dense(), dense.psi)


@given(MODELS)
def test_the_mass_matrix_operator_is_the_newton_euler_factorization(model):
    agree(operators(model).mass_matrix.to_dense(), dense_mass_matrix(model))


@given(MODELS, st.sampled_from([*BATCHES, (4, 1, 1)]), st.integers(1, 3))
def test_an_operator_acts_on_columns_as_its_matrix_does(model, batch, r):
    operator, matrix = expression(model)
    x = torch.randn(*batch, model.num_dof, r, dtype=torch.float64)
    expected = matrix @ x
    actual = operator @ x
    assert actual.shape == torch.broadcast_shapes(expected.shape, actual.shape)
    agree(actual, expected)
    agree(compose(operator).act(x), expected)


@given(sko_models())
def test_shapes_are_those_of_matmul(model):
    for operator in (*letters(model), *vars(articulated_operators(model)).values()):
        matrix = operator.to_dense()
        for shape in ((matrix.shape[-1],), (matrix.shape[-1], 2), (4, 1, 1, matrix.shape[-1], 2)):
            x = torch.randn(*shape, dtype=torch.float64)
            assert (operator @ x).shape == torch.matmul(matrix, x).shape


@given(MODELS)
def test_transposition_is_an_involution_that_reverses_products(model):
    operator, matrix = expression(model)
    agree(operator.T.to_dense(), matrix.mT)
    agree(operator.T.T.to_dense(), matrix)
    for each in (*letters(model), *vars(articulated_operators(model)).values()):
        agree(each.T.to_dense(), each.to_dense().mT)


@given(MODELS, seeds)
def test_an_operator_and_its_transpose_are_adjoint(model, seed):
    operator, _ = expression(model)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(model.num_dof, 1, generator=g, dtype=torch.float64)
    y = torch.randn(model.layout.nodes.total, 1, generator=g, dtype=torch.float64)
    agree(y.mT @ (operator @ x), (operator.T @ y).mT @ x)


@given(MODELS)
def test_the_spo_inverts_identity_minus_sko(model):
    E, A, _, _, I = letters(model)
    agree(((I - E) @ A).to_dense(), I.to_dense())
    agree((A @ (I - E)).to_dense(), I.to_dense())


@given(MODELS)
def test_the_sko_operator_is_nilpotent_of_the_tree_s_index(model):
    E = operators(model).sko
    power = compose(*[E] * model.tree.nilpotency)
    assert not power.to_dense().any()


@given(trees())
def test_no_smaller_power_of_an_sko_operator_with_regular_weights_is_zero(tree):
    n = tree.num_nodes
    weights = [None if p < 0 else torch.eye(2).double() for p in tree.parent]
    model = random_model(tree, [2] * n, [1] * n).from_blocks(
        tree, weights, [torch.ones(1, 2).double()] * n, [torch.eye(2).double()] * n
    )
    E = operators(model).sko
    if tree.nilpotency > 1:
        assert compose(*[E] * (tree.nilpotency - 1)).to_dense().any()


@given(MODELS)
def test_the_spo_is_the_sum_of_the_powers_of_the_sko_operator(model):
    E, A, _, _, I = letters(model)
    total, power = I, I
    for _ in range(model.tree.nilpotency):
        power = power @ E
        total = total + power
    agree(A.to_dense(), total.to_dense())


@given(MODELS)
def test_the_spo_is_the_product_of_identity_plus_squared_powers(model):
    E, A, _, _, I = letters(model)
    product, power, reached = I + E, E, 2
    while reached < model.tree.nilpotency:
        power = power @ power
        product = product @ (I + power)
        reached *= 2
    agree(A.to_dense(), product.to_dense())


@given(MODELS)
def test_the_tilde_spo_is_e_a_before_or_after_the_spo(model):
    E, A, _, _, I = letters(model)
    agree((A - I).to_dense(), (E @ A).to_dense())
    agree((A - I).to_dense(), (A @ E).to_dense())


@given(sko_models())
def test_spo_blocks_are_products_of_weights_along_paths(model):
    layout, tree = model.layout, model.tree
    A, weight = operators(model).spo.to_dense(), layout.tree_order(model.edge_weight.dense(), -3)
    m, place = layout.nodes.sizes, layout.nodes.places
    for i in range(tree.num_nodes):
        for j in range(tree.num_nodes):
            block = A[..., place[i], :][..., place[j]]
            path = tree.path(i, j)
            if not path:
                assert not block.any()
                continue
            product = torch.eye(m[j], dtype=torch.float64)
            for k in path[:-1]:
                product = weight[..., k, : m[tree.parent[k]], : m[k]] @ product
            agree(block, product)


def test_the_spo_of_identity_weights_is_the_ancestor_matrix():
    tree = Tree.from_parents([3, 3, 0, -1, -1])
    one = torch.ones(1, 1, dtype=torch.float64)
    blocks = [one] * 5
    model = random_model(tree, [1] * 5, [1] * 5).from_blocks(tree, blocks, blocks, blocks)
    A = operators(model).spo.to_dense()
    expected = [[i == j or tree.is_ancestor(i, j) for j in range(5)] for i in range(5)]
    assert torch.equal(A, torch.tensor(expected, dtype=torch.float64))


@pytest.fixture
def model():
    return random_model(Tree.from_parents([-1, 0, 0]), [2, 3, 2], [1, 2, 1])


def test_operators_that_do_not_fit_are_refused_with_their_spaces(model):
    E, A, H, M, I = letters(model)
    with pytest.raises(ShapeError, match=r"(?s)SKO \(nodes <- nodes.*BlockDiagonal.*\.T"):
        E @ H
    with pytest.raises(ShapeError, match=r"(?s)BlockDiagonal \(dofs <- nodes.*added to SKO"):
        H + E
    with pytest.raises(ShapeError, match=r"length 6.*7 components"):
        M @ torch.zeros(6)
    other = random_model(Tree.from_parents([-1, 0, 1]), [2, 3, 2], [1, 2, 1])
    with pytest.raises(ShapeError, match="one tree"):
        A @ operators(other).spo
    with pytest.raises(TypeError):
        A @ 3.0
    with pytest.raises(TypeError):
        I + 1


def test_operators_of_equal_trees_compose_whoever_built_them(model):
    twin = random_model(model.tree, [2, 3, 2], [1, 2, 1])
    product = operators(model).spo @ operators(twin).spo
    A = dense_operators(model).A
    agree(product.to_dense(), A @ A)


def test_an_identity_factor_changes_nothing(model):
    dofs = Identity(model.layout, "dofs", torch.float64)
    H = operators(model).joint_map
    assert torch.equal((dofs @ H).to_dense(), H.to_dense())


def test_to_dense_has_the_operator_s_batch_even_where_no_weight_is_met():
    layout = Layout.of(Tree.from_parents([-1, -1]), [2, 2], [1, 1])
    weight = DenseEdges(torch.ones(2, 3, 2, 2, 2, dtype=torch.float64))
    for operator in (SKO(layout, weight), SPO(layout, weight), SPO(layout, weight, adjoint=True)):
        assert operator.to_dense().shape == (2, 3, 4, 4)
        assert (operator @ torch.ones(4, dtype=torch.float64)).shape == (2, 3, 4)


@pytest.mark.shows("Jain 2011, Part II", "section 2", ts.assemble)
@pytest.mark.parametrize("scalar", [False, True])
@given(mech=mechanisms())
def test_the_operators_of_a_mechanism_give_its_mass_matrix_and_inverse(scalar, mech):
    q, _ = mech.random_state(2, generator=torch.Generator().manual_seed(0))
    model = in_form(scalar, ts.assemble)(mech, q)
    art = in_form(scalar, articulated_operators)(model)
    ops, one = operators(model), operators(model).dof_identity
    MM = ts.mass_matrix(mech, q)
    agree(ops.mass_matrix.to_dense(), MM)
    L_inv = one - ops.joint_map @ art.art_spo @ art.shifted_gain
    inverse = L_inv.T @ art.hinge_compliance @ L_inv
    agree((ops.mass_matrix @ inverse).to_dense(), one.to_dense(), 1e-9)


def test_compose_and_act_trace_under_compile_fullgraph(model):
    def kinetic(weight_scale, qd):
        ops = operators(model)
        rates = compose(ops.spo.T, ops.joint_map.T).act(weight_scale * qd)
        return (rates * compose(ops.inertia).act(rates)).sum(), ops.mass_matrix.act(qd)

    qd = torch.randn(4, 2, dtype=torch.float64)
    compiled = torch.compile(kinetic, fullgraph=True, backend="aot_eager")
    scale = torch.tensor(2.0, dtype=torch.float64)
    torch.testing.assert_close(compiled(scale, qd), kinetic(scale, qd))


def test_operators_are_differentiable_in_weights_and_vectors(model):
    layout = model.layout

    def power(weight, blocks, x):
        A, M = SPO(layout, DenseEdges(weight)), BlockDiagonal(layout, blocks)
        return (A @ M @ A.T + M) @ x

    x = torch.randn(layout.nodes.total, 2, dtype=torch.float64)
    inputs = [v.clone().requires_grad_() for v in (model.edge_weight.dense(), model.inertia, x)]
    assert torch.autograd.gradcheck(power, inputs)
