"""Nodes that share a hinge: every recursion against dense matrices, in which H has one row for all."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchsko as ts
from tests.forms import in_form
from tests.strategies import (
    agree,
    dense_bias,
    dense_mass_matrix,
    dense_operators,
    dense_riccati,
    random_model,
    shared_models,
)
from torchsko import algorithms
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.articulated import articulated_operators, operators
from torchsko.algebra.recursions.riccati_scan import solve_riccati_scan
from torchsko.linalg.scalar_form import scalar_form

ANY = shared_models(mixed=True)
DRIVEN = shared_models(mixed=True, min_dofs=1)


def vector(model, r=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(model.num_dof, r, generator=g, dtype=torch.float64)


def column(x):
    return x[..., None]


@given(ANY)
def test_the_operators_of_a_model_act_as_their_matrices(model):
    x, dense = operators(model), dense_operators(model)
    for name, letter in (("sko", "E"), ("spo", "A"), ("joint_map", "H"), ("inertia", "M")):
        agree(getattr(x, name).to_dense(), getattr(dense, letter))
    agree(x.joint_map.T.to_dense(), dense.H.mT)
    agree(x.mass_matrix.to_dense(), dense_mass_matrix(model), 1e-9)


@given(ANY, st.sampled_from(["sweep", "scan"]))
def test_the_riccati_equation_is_solved(model, method):
    found = articulated_operators(model, solve_riccati_scan(model) if method == "scan" else None)
    dense = dense_riccati(model)
    agree(found.art_inertia.to_dense(), dense.P, 1e-9)
    agree(found.gain.to_dense(), dense.G, 1e-9)
    agree(found.art_inertia_plus.to_dense(), dense.P_plus, 1e-9)
    agree(found.projection.to_dense(), dense.tau, 1e-9)
    agree(found.coprojection.to_dense(), dense.tau_bar, 1e-9)
    agree(found.art_sko.to_dense(), dense.E_psi, 1e-9)
    agree(found.art_spo.to_dense(), dense.psi, 1e-9)


@given(DRIVEN, st.sampled_from(["sweep", "scan"]), st.booleans())
def test_innovations_factor_the_mass_matrix(model, method, scalar):
    in_form(scalar, check_factors)(model, method)


def check_factors(model, method):
    MM, x = dense_mass_matrix(model), vector(model)
    fac, one = ts.innovations(model, method=method), torch.eye(model.num_dof, dtype=x.dtype)
    agree(fac.solve(x, columns=True), torch.linalg.solve(MM, x), 1e-8)
    agree(fac.inverse(), torch.linalg.inv(MM), 1e-8)
    agree(column(column(fac.logdet())), torch.logdet(MM)[..., None, None], 1e-8)
    W = fac.sqrt(one, columns=True)
    agree(W @ W.mT, MM, 1e-9)
    agree(fac.sqrt_transpose(one, columns=True), W.mT, 1e-9)
    for inverse, action in ((fac.whiten, fac.sqrt), (fac.whiten_transpose, fac.sqrt_transpose)):
        agree(inverse(action(x, columns=True), columns=True), x, 1e-8)
    assert fac.sample(3).shape == (3, *model.batch_shape, model.num_dof)
    assert (fac.hinge_certificate() > 0).all()


@given(DRIVEN, st.sampled_from(["sweep", "scan"]))
def test_forward_dynamics_inverts_the_equations_of_motion(model, method):
    T = vector(model)[:, 0]
    qdd = ts.innovations(model, method=method).forward_dynamics(T)
    agree(dense_mass_matrix(model) @ column(qdd) + column(dense_bias(model)), column(T), 1e-8)
    agree(column(algorithms.composite_forward_dynamics(model, T)), column(qdd), 1e-8)


@given(ANY)
def test_mass_matrix_bias_and_inverse_dynamics_by_every_way(model):
    MM, bias, qdd = dense_mass_matrix(model), dense_bias(model), vector(model)[:, 0]
    agree(algorithms.mass_matrix(model), MM)
    agree(algorithms.mass_matrix_by_jacobian(model), MM)
    agree(algorithms.mass_matrix_by_inverse_dynamics(model), MM)
    trace = MM.diagonal(dim1=-2, dim2=-1).sum(-1)
    agree(column(column(algorithms.mass_matrix_trace(model))), column(column(trace)))
    agree(column(algorithms.bias_force(model)), column(bias))
    force = MM @ column(qdd) + column(bias)
    agree(column(algorithms.inverse_dynamics(model, qdd)), force, 1e-9)
    agree(column(algorithms.composite_inverse_dynamics(model, qdd)), force, 1e-9)


@given(DRIVEN, st.integers(0, 2**20))
def test_hybrid_dynamics_locks_single_dofs_also_of_shared_hinges(model, bits):
    known = torch.tensor([bool(bits >> i & 1) for i in range(model.num_dof)])
    tau, qdd = vector(model).unbind(-1)
    accel, force = algorithms.hybrid_dynamics(model, tau, qdd, known)
    total = dense_mass_matrix(model) @ column(accel) + column(dense_bias(model))
    agree(total, column(force), 1e-8)
    assert (accel == qdd)[..., known].all() and (force == tau)[..., ~known].all()


def assert_compliance(omega, whole, model, data):
    """A compliance, and a block of it that is drawn, are those of a dense matrix."""
    m = model.layout.nodes.sizes
    agree(omega.dense(), whole, 1e-8)
    i, j = (data.draw(st.integers(0, model.tree.num_nodes - 1)) for _ in range(2))
    rows, cols = ([sum(m[:k]) + r for r in range(m[k])] for k in (i, j))
    agree(omega.block(i, j), whole[..., rows, :][..., cols], 1e-8)


@given(DRIVEN, st.data())
def test_operational_space_compliance_is_that_of_the_jacobian(model, data):
    J = algorithms.node_jacobian(model)
    J = model.layout.nodes.unpack(J)
    whole = J @ torch.linalg.inv(dense_mass_matrix(model)) @ J.mT
    assert_compliance(algorithms.extended_compliance(model), whole, model, data)


@given(shared_models(mixed=True, min_dofs=1))
def test_scalar_and_dense_operations_agree(model):
    T = vector(model)[:, 0]
    one = scalar_form()(algorithms.forward_dynamics)(model, T)
    other = algorithms.forward_dynamics(model, T)
    agree(column(one), column(other), 1e-8)


def test_masks_of_dofs_may_differ_between_samples():
    tree = ts.algebra.Tree.from_parents([-1, 0, 0, 1])
    model = random_model(tree, [4] * 4, [2, 1, 2, 1], (3,), 1, armature=True)
    known = torch.tensor([[True, False] * 3, [False] * 6, [True] * 6])
    tau, qdd = vector(model).mT
    together = algorithms.hybrid_dynamics(model, tau, qdd, known)
    for s in range(3):
        alone = algorithms.hybrid_dynamics(model, tau, qdd, known[s])
        for x, y in zip(together, alone, strict=True):
            agree(x[s, :, None], y[s, :, None])
    with pytest.raises(ts.ShapeError, match="length 4 was given"):
        algorithms.hybrid_dynamics(model, tau, qdd, known[0, :4])
    with pytest.raises(ts.ShapeError, match=r"tensor of torch\.float32"):
        algorithms.hybrid_dynamics(model, tau, qdd, known.float())


def blocks(places, parents=(-1, 0, 0)):
    tree = ts.algebra.Tree.from_parents(list(parents), [f"n{k}" for k in range(len(parents))])
    like = random_model(tree, [3] * len(parents), [len(row) for row in places])
    weight = [None if p < 0 else torch.ones(3, 3, dtype=torch.float64) for p in parents]
    H = [like.layout.tree_order(like.joint_map, 0)[k, : len(row)] for k, row in enumerate(places)]
    M = [torch.eye(3, dtype=torch.float64)] * len(parents)
    return SKOModel.from_blocks(tree, weight, H, M, dof_places=places)


@pytest.mark.parametrize("places", [[[0], [1, 2], [2, 3]], [[0], [1, 2], [2, 1]], [[0], [0], [1]]])
def test_hinges_are_shared_among_all_siblings_and_no_others(places):
    with pytest.raises(ts.TreeError, match=r"share degrees of freedom, but not all"):
        blocks(places)


def test_a_part_has_its_hinges_to_itself():
    model = blocks([[0], [1], [1]])
    with pytest.raises(ts.TreeError, match=r"'n1', 'n2' share a hinge"):
        ts.algebra.partition(model, ["n1"])
    parts = ts.algebra.partition(model, ["n1", "n2"])
    agree(algorithms.mass_matrix(parts.selected), dense_mass_matrix(model)[1:, 1:])
