"""Partition and aggregation: the block formulas, and dynamics that do not notice the aggregation."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

import torchsko as ts
from tests.strategies import (
    dense_bias,
    dense_blocks,
    dense_mass_matrix,
    dense_operators,
    dense_sko,
    dense_spo,
    random_mechanism,
    random_model,
    sko_models,
    straightened,
)
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.theory.partition import Partition
from torchsko.algebra.theory.path_induced import path_induced_nodes
from torchsko.algebra.theory.transform import resolvent
from torchsko.algebra.topology.embedding_plan import embedding_plan
from torchsko.algebra.topology.subgraph import (
    coarse_tree,
    contract,
    contracted_groups,
    segment_groups,
)
from torchsko.algebra.transforms.embedding import embedded

exactly_shaped = torch.testing.assert_close

TREE = ts.algebra.Tree.from_parents([3, 0, -1, 2, 3, 2, 1])
MEMBERS = (0, 3)
FIELDS = ("maps", "inertia", "coriolis_accel", "gyro_force", "armature")


def fixed_model(batch: tuple[int, ...] = (), armature: bool = True) -> SKOModel:
    return random_model(TREE, [3, 2, 4, 5, 2, 6, 3], [1, 2, 2, 3, 1, 1, 2], batch, 5, armature)


def close(found: Tensor, expected: Tensor) -> None:
    """Equal after broadcasting batch dimensions: fields and results carry only those they need."""
    exactly_shaped(*torch.broadcast_tensors(found, expected), rtol=1e-9, atol=1e-9)
    assert found.shape[-1:] == expected.shape[-1:]


@st.composite
def models_with_nodes(draw: st.DrawFn, max_nodes: int = 12) -> tuple[SKOModel, tuple[int, ...]]:
    model = draw(sko_models(max_nodes, mixed=True, min_dofs=0))
    nodes = draw(st.sets(st.integers(0, model.tree.num_nodes - 1), min_size=1))
    return model, tuple(sorted(nodes))


@st.composite
def models_with_members(draw: st.DrawFn, max_nodes: int = 12) -> tuple[SKOModel, tuple[int, ...]]:
    """A model and a set of nodes that meets the aggregation condition."""
    model, nodes = draw(models_with_nodes(max_nodes))
    return model, ts.algebra.aggregation_subgraph(model.tree, nodes)


def places(sizes: tuple[int, ...], nodes: list[int] | tuple[int, ...]) -> list[int]:
    """Flat places of these nodes' components, one node after another."""
    return [i for k in nodes for i in range(sum(sizes[:k]), sum(sizes[: k + 1]))]


def permuted(matrix: Tensor, order: list[int]) -> Tensor:
    return matrix[..., order, :][..., order]


def vectors(model: SKOModel, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*model.batch_shape, model.num_dof, generator=g, dtype=torch.float64)


@pytest.mark.shows("Jain 2011, Transformations Part I", "Corollary 6.1", ts.algebra.aggregate)
@given(models_with_members())
def test_corollary_6_1_mass_matrix_and_bias_are_invariant(case):
    model, members = case
    aggregated = ts.algebra.aggregate(model, members)
    close(ts.algorithms.mass_matrix(aggregated), dense_mass_matrix(model))
    close(ts.algorithms.bias_force(aggregated), dense_bias(model))


@given(models_with_members())
def test_every_algorithm_gives_the_same_on_the_aggregated_model(case):
    model, members = case
    aggregated, x = ts.algebra.aggregate(model, members), vectors(model)
    for law in (
        ts.algorithms.inverse_dynamics,
        ts.algorithms.forward_dynamics,
        ts.algorithms.composite_inverse_dynamics,
        ts.algorithms.composite_forward_dynamics,
        lambda model, x: ts.innovations(model).solve(x),
        lambda model, x: ts.innovations(model).logdet(),
        lambda model, x: ts.algorithms.mass_matrix_trace(model),
        lambda model, x: ts.algorithms.mass_matrix_by_jacobian(model),
        lambda model, x: ts.algorithms.mass_matrix_by_inverse_dynamics(model),
    ):
        close(law(aggregated, x), law(model, x))


@given(models_with_members(max_nodes=8))
def test_hybrid_dynamics_with_the_members_prescribed_is_that_of_the_aggregate(case):
    model, members = case
    tau, qdd = vectors(model, 1), vectors(model, 2)
    aggregated = ts.algebra.aggregate(model, members)
    for found, expected in zip(
        ts.algorithms.hybrid_dynamics(aggregated, tau, qdd, prescribed=members),
        ts.algorithms.hybrid_dynamics(model, tau, qdd, prescribed=members),
        strict=True,
    ):
        close(found, expected)


@given(models_with_members(max_nodes=8))
def test_operational_space_compliance_of_the_aggregate_is_that_of_its_members(case):
    model, members = case
    aggregated = ts.algebra.aggregate(model, members)
    for i in members:
        for j in members:
            compliance = ts.algorithms.compliance_block
            close(compliance(aggregated, i, j), compliance(model, i, j))


@pytest.mark.shows("Jain 2011, Transformations Part I", "Lemma 7", ts.algebra.aggregate)
@given(models_with_members())
def test_lemma_7_sko_operator_of_the_aggregated_tree(case):
    model, members = case
    inside = places(model.layout.nodes.sizes, members)
    outside = [i for i in range(model.layout.nodes.total) if i not in inside]
    E = dense_sko(model)
    E_S = E[..., inside, :][..., inside]
    A_S = torch.linalg.inv(torch.eye(len(inside), dtype=E.dtype) - E_S)
    expected = E.clone()
    rows, cols = torch.tensor(outside, dtype=torch.int64), torch.tensor(inside)
    expected[..., cols[:, None], cols] = 0.0
    expected[..., rows[:, None], cols] = E[..., rows, :][..., cols] @ A_S
    close(dense_sko(ts.algebra.aggregate(model, members)), expected)


@pytest.mark.shows("Jain 2011, Transformations Part I", "Lemmas 8 and 9", ts.algebra.aggregate)
@given(models_with_members())
def test_lemmas_8_and_9_transform_spo_joint_map_and_accelerations(case):
    model, members = case
    aggregated = ts.algebra.aggregate(model, members)
    inside = torch.tensor(places(model.layout.nodes.sizes, members))
    A = dense_spo(model)
    J_inverse = torch.eye(A.shape[-1], dtype=A.dtype).expand_as(A).clone()
    J_inverse[..., inside[:, None], inside] = A[..., inside[:, None], inside]
    close(J_inverse @ dense_spo(aggregated), A)
    H = dense_blocks(model, model.joint_map, "dofs", "nodes")
    H_a = dense_blocks(aggregated, aggregated.joint_map, "dofs", "nodes")
    close(H_a, H @ J_inverse)
    a = model.layout.nodes.unpack(model.coriolis_accel)
    close(aggregated.layout.nodes.unpack(aggregated.coriolis_accel), J_inverse.mT @ a)


def test_the_bias_takes_the_transformed_acceleration():
    """DEPARTS: Eqs. 40-41 of Part I, taken literally, have the untransformed one."""
    model = fixed_model()
    whole = ts.algebra.aggregate(model, range(7))
    old = model.layout.tree_order(model.coriolis_accel, -3)
    untransformed = whole.layout.breadth_first(old, -3)
    assert not torch.allclose(
        ts.algorithms.bias_force(replace(whole, coriolis_accel=untransformed)), dense_bias(model)
    )


@given(models_with_members())
def test_lemma_5_members_are_one_node_of_the_contracted_tree_and_keep_numbers_and_names(case):
    model, members = case
    aggregated = ts.algebra.aggregate(model, members)
    assert aggregated.tree.names == model.tree.names
    assert aggregated.num_dof == model.num_dof
    groups = contracted_groups(model.tree, members)
    if any(model.layout.dofs.sizes[k] for k in members):
        assert set(aggregated.layout.hinges) == set(groups)
    assert coarse_tree(aggregated.tree, groups).parent == contract(model.tree, members).parent
    assert aggregated.layout.nodes.width == model.layout.nodes.width


@given(models_with_members())
def test_repeated_aggregation_ends_in_one_node_with_the_same_dynamics(case):
    model, members = case
    first = ts.algebra.aggregate(model, members)
    second = ts.algebra.aggregate(first, ts.algebra.aggregation_subgraph(first.tree, [*members, 0]))
    third = ts.algebra.aggregate(second, range(second.tree.num_nodes))
    assert third.tree.num_levels == 1
    for coarser in (second, third):
        close(ts.algorithms.mass_matrix(coarser), dense_mass_matrix(model))
        close(ts.algorithms.bias_force(coarser), dense_bias(model))


@pytest.mark.shows("Jain 2011, Transformations Part I", "section 7", ts.algebra.aggregate_segments)
@given(sko_models(12, mixed=True))
def test_aggregating_every_segment_leaves_no_serial_chain_and_the_same_dynamics(model):
    coarse, x = ts.algebra.aggregate_segments(model), vectors(model)
    assert len(coarse.layout.hinges) == len(model.tree.segments)
    nodes = coarse_tree(coarse.tree, coarse.layout.hinges)
    assert all(len(children) != 1 for children in nodes.children)
    close(ts.algorithms.mass_matrix(coarse), dense_mass_matrix(model))
    close(ts.algorithms.forward_dynamics(coarse, x), ts.algorithms.forward_dynamics(model, x))


@pytest.mark.shows(
    "Jain 2011, Transformations Part I", "Lemma 2", ts.algebra.partition, Partition.spo
)
@given(models_with_nodes())
def test_lemma_2_parts_and_connectors_give_the_operators_of_the_whole(case):
    model, nodes = case
    parts = ts.algebra.partition(model, path_induced_nodes(model.tree, nodes))
    C, S, P = parts.child_nodes, parts.selected_nodes, parts.parent_nodes
    sizes = model.layout.nodes.sizes
    E, A = dense_sko(model), dense_spo(model)

    def block(of: Tensor, rows: tuple[int, ...], cols: tuple[int, ...]) -> Tensor:
        return of[..., places(sizes, rows), :][..., places(sizes, cols)]

    for part, k in ((parts.child, C), (parts.selected, S), (parts.parent, P)):
        assert (part is None) == (not k)
        if part is not None:
            close(dense_sko(part), block(E, k, k))
            close(dense_spo(part), block(A, k, k))
    close(parts.child_connector, block(E, S, C))
    close(parts.parent_connector, block(E, P, S))
    for rows, cols in ((P, C), (C, S), (C, P), (S, P)):
        assert not block(E, rows, cols).any()
    whole = permuted(A, places(sizes, C + S + P))
    close(parts.spo(), whole)


@pytest.mark.shows("Jain 2011, Transformations Part I", "Lemma 1", ts.algebra.partition)
@given(models_with_nodes())
def test_parts_are_models_with_the_joint_maps_and_inertias_of_the_whole(case):
    model, nodes = case
    parts = ts.algebra.partition(model, path_induced_nodes(model.tree, nodes))
    whole = dense_operators(model)
    for part, nodes, dofs in (
        (parts.child, parts.child_nodes, parts.child_dofs),
        (parts.selected, parts.selected_nodes, parts.selected_dofs),
        (parts.parent, parts.parent_nodes, parts.parent_dofs),
    ):
        if part is not None:
            k, d = places(model.layout.nodes.sizes, nodes), list(dofs)
            H, A, M = whole.H[..., d, :][..., k], permuted(whole.A, k), permuted(whole.M, k)
            close(ts.algorithms.mass_matrix(part), H @ A @ M @ A.mT @ H.mT + permuted(whole.S, d))
            a, b = (
                model.layout.nodes.unpack(x)[..., k, :]
                for x in (model.coriolis_accel, model.gyro_force)
            )
            close(ts.algorithms.bias_force(part), (H @ A @ (M @ A.mT @ a + b))[..., 0])


@pytest.mark.shows(
    "Jain 2011, Transformations Part I", "Corollary 4.1", Partition.mass_matrix_blocks
)
@given(models_with_nodes())
def test_corollary_4_1_outer_block_of_the_mass_matrix_is_that_of_the_outer_system(case):
    model, nodes = case
    outer = sorted({*nodes, *(j for k in nodes for j in model.tree.descendants(k))})
    parts = ts.algebra.partition(model, outer)
    blocks, MM = parts.mass_matrix_blocks(), dense_mass_matrix(model)
    i, j = list(parts.selected_dofs), list(parts.parent_dofs)
    close(ts.algorithms.mass_matrix(parts.selected), MM[..., i, :][..., i])
    for found, whole in (
        (blocks.outer, MM[..., i, :][..., i]),
        (blocks.coupling, MM[..., i, :][..., j]),
        (blocks.inner + blocks.reflected, MM[..., j, :][..., j]),
    ):
        close(found, whole)
    if parts.parent is not None:
        close(blocks.inner, dense_mass_matrix(parts.parent))


def test_corollary_4_1_is_refused_for_a_system_that_is_not_the_outer_one():
    parts = ts.algebra.partition(fixed_model(), [0])
    with pytest.raises(ts.TreeError, match=r"'1', '6' hang below(?s:.*)\[0, 1, 6\]"):
        parts.mass_matrix_blocks()


def test_a_part_of_an_aggregated_model_is_the_aggregate_of_the_part():
    model = fixed_model()
    parts = ts.algebra.partition(ts.algebra.aggregate(model, MEMBERS), [*MEMBERS, "1"])
    same = ts.algebra.partition(model, [0, 1, 3])
    assert parts.selected_dofs == same.selected_dofs
    close(ts.algorithms.mass_matrix(parts.selected), dense_mass_matrix(same.selected))


@given(straightened(sko_models(8)))
def test_parts_keep_what_is_written_along_their_hinges(model):
    part = ts.algebra.partition(model, [0]).selected
    assert part.straight is not None and part.aligned == (False,)
    whole = ts.algebra.aggregate(
        model, ts.algebra.aggregation_subgraph(model.tree, range(model.tree.num_nodes))
    )
    for made in (part, whole):
        x = vectors(made)
        force = (dense_mass_matrix(made) @ x[..., None])[..., 0] + dense_bias(made)
        close(ts.algorithms.forward_dynamics(made, force), x)


def test_a_mechanism_aggregates_at_any_state():
    mech = random_mechanism(
        ["free", "revolute", "prismatic", "spherical"], [-1, 0, 1, 0], armature=True
    )
    g = torch.Generator().manual_seed(3)
    step = torch.randn(3, mech.num_dof, generator=g, dtype=torch.float64)
    q = ts.integrate(mech, mech.neutral(), step)
    qd = torch.randn(3, mech.num_dof, generator=g, dtype=torch.float64)
    model = ts.assemble(mech, q, qd)
    aggregated = ts.algebra.aggregate(model, [1, 2, 3])
    close(ts.algorithms.mass_matrix(aggregated), ts.algorithms.mass_matrix(model))
    close(ts.algorithms.bias_force(aggregated), ts.algorithms.bias_force(model))
    close(ts.algorithms.forward_dynamics(aggregated, qd), ts.algorithms.forward_dynamics(model, qd))


# Differentiation, vectorization, compilation: functions of a model's tensors.


LIKE = fixed_model()
PLAN = embedding_plan(LIKE.layout, [MEMBERS])
SEGMENTS = embedding_plan(LIKE.layout, segment_groups(LIKE.tree))


def tensors(model: SKOModel) -> tuple[Tensor, ...]:
    return (model.edge_weight.dense(), *(getattr(model, name) for name in FIELDS))


def rebuilt(like: SKOModel, weight: Tensor, *fields: Tensor) -> SKOModel:
    changed = dict(zip(FIELDS, fields, strict=True))
    M = changed["inertia"]
    changed["inertia"] = (M + M.mT) / 2
    return replace(like, edge_weight=DenseEdges(weight), **changed)


def aggregated_dynamics(*fields: Tensor) -> tuple[Tensor, ...]:
    model = rebuilt(LIKE, *fields)
    aggregated = embedded(model, PLAN)
    force = torch.linspace(-1, 1, model.num_dof, dtype=torch.float64)
    return (
        ts.algorithms.mass_matrix(aggregated),
        ts.algorithms.forward_dynamics(aggregated, force),
    )


def plain_dynamics(*fields: Tensor) -> tuple[Tensor, ...]:
    model = rebuilt(LIKE, *fields)
    force = torch.linspace(-1, 1, model.num_dof, dtype=torch.float64)
    return ts.algorithms.mass_matrix(model), ts.algorithms.forward_dynamics(model, force)


def segment_dynamics(*fields: Tensor) -> tuple[Tensor, ...]:
    return (ts.algorithms.mass_matrix(embedded(rebuilt(LIKE, *fields), SEGMENTS)),)


def partitioned(*fields: Tensor) -> tuple[Tensor, ...]:
    model = rebuilt(LIKE, *fields)
    three, two = ts.algebra.partition(model, MEMBERS), ts.algebra.partition(model, [0, 1, 6])
    assert three.child is not None
    force = torch.linspace(-1, 1, three.child.num_dof, dtype=torch.float64)
    return (
        three.spo(),
        ts.algorithms.forward_dynamics(three.child, force),
        *two.mass_matrix_blocks(),
    )


functions = pytest.mark.parametrize(
    "fn", [aggregated_dynamics, segment_dynamics, partitioned], ids=lambda fn: fn.__name__
)


@functions
def test_first_derivatives_in_reverse_and_forward_mode(fn):
    given_tensors = tuple(x.requires_grad_() for x in tensors(fixed_model()))
    assert torch.autograd.gradcheck(fn, given_tensors, check_forward_ad=True, fast_mode=True)


def test_second_derivatives_through_aggregation():
    given_tensors = tuple(x.requires_grad_() for x in tensors(fixed_model()))
    assert torch.autograd.gradgradcheck(aggregated_dynamics, given_tensors, fast_mode=True)


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_aggregation_leaves_gradients_to_every_block_as_they_are(batch):
    leaves = tuple(x.requires_grad_() for x in tensors(fixed_model(batch)))
    grads = [
        torch.autograd.grad(sum(y.sin().sum() for y in fn(*leaves)), leaves)
        for fn in (aggregated_dynamics, plain_dynamics)
    ]
    exactly_shaped(*grads)


@functions
def test_vmap_is_the_batched_call(fn):
    batched = tensors(fixed_model((3,)))
    exactly_shaped(torch.vmap(fn)(*batched), fn(*batched))


@functions
def test_vmap_over_one_tensor_shares_the_others(fn):
    batched, single = tensors(fixed_model((3,))), tensors(fixed_model())
    for i in range(len(single)):
        mixed = [batched[i] if i == j else x for j, x in enumerate(single)]
        dims = tuple(0 if i == j else None for j in range(len(single)))
        for found, expected in zip(torch.vmap(fn, in_dims=dims)(*mixed), fn(*mixed), strict=True):
            close(found, expected)


@pytest.mark.some(1)
@functions
def test_compiled_function_is_the_eager_one(fn):
    torch._dynamo.reset()
    given_tensors = tensors(fixed_model((2,)))
    exactly_shaped(
        torch.compile(fn, fullgraph=True, backend="aot_eager")(*given_tensors), fn(*given_tensors)
    )
    torch._dynamo.reset()


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("parents", [[-1], [-1, 0, 0, 0, 0], [-1, -1, -1]], ids=str)
def test_one_body_star_and_forest(parents, batch):
    n = len(parents)
    model = random_model(
        ts.algebra.Tree.from_parents(parents), [3] * n, [1 + k % 2 for k in range(n)], batch
    )
    for members in ([0], range(n), [n - 1]):
        close(
            ts.algorithms.mass_matrix(ts.algebra.aggregate(model, members)),
            dense_mass_matrix(model),
        )
        parts = ts.algebra.partition(model, members)
        close(ts.algorithms.mass_matrix(parts.selected), dense_mass_matrix(parts.selected))


def test_float32_stays_float32():
    model = fixed_model()
    single = rebuilt(model, *(x.float() for x in tensors(model)))
    aggregated = ts.algebra.aggregate(single, MEMBERS)
    assert ts.algorithms.mass_matrix(aggregated).dtype == torch.float32
    assert ts.algebra.partition(single, MEMBERS).spo().dtype == torch.float32


@pytest.mark.shows("Jain 2011, Part II", "section 2", resolvent)
@given(sko_models(12))
def test_resolvent_of_the_sko_operator_is_the_spo(model):
    close(resolvent(dense_sko(model), model.tree.nilpotency), dense_spo(model))
