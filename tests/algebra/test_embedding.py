"""Nodes that move by dofs of their own, against dense matrices: X* MM X, KKT, and closed formulas."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

import torchsko as ts
from tests.algebra.test_sharing import assert_compliance
from tests.strategies import (
    agree,
    dense_bias,
    dense_mass_matrix,
    dense_operators,
    random_model,
    sko_models,
    straightened,
)
from torchsko import algorithms
from torchsko.algebra.operators.edges import DenseEdges, LevelEdges
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.innovations import swept_innovations
from torchsko.algebra.recursions.riccati import solve_riccati
from torchsko.algebra.topology.embedding_plan import EmbeddingPlan, embedding_plan
from torchsko.algebra.topology.subgraph import aggregation_subgraph
from torchsko.algebra.transforms.embedding import embedded
from torchsko.linalg.scalar_form import scalar_form

FIELDS = ("maps", "inertia", "coriolis_accel", "gyro_force", "armature")


def column(x: Tensor) -> Tensor:
    return x[..., None]


def noise(seed: int, *shape: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


class Case:
    """A model, some of its nodes as one or two nodes, their X and xi, and the dense X, xi of the whole."""

    def __init__(self, model, groups, num_dofs, batched, seed):
        layout, batch = model.layout, model.batch_shape if batched else ()
        self.model = model
        self.plan: EmbeddingPlan = embedding_plan(layout, groups, num_dofs)
        self.X = [noise(seed + g, *batch, *sizes) for g, sizes in enumerate(self.plan.num_dofs)]
        self.xi = [noise(seed + 9 + g, *batch, d) for g, (d, _) in enumerate(self.plan.num_dofs)]
        new = {k: row for k, row in enumerate(self.plan.layout.dofs.places)}
        self.whole = torch.zeros(*batch, layout.dofs.total, self.plan.layout.dofs.total).double()
        self.rest = torch.zeros(*batch, layout.dofs.total).double()
        inside = {k for S in groups for k in S}
        for k, row in enumerate(layout.dofs.places):
            for i, j in zip(row, new[k], strict=False):
                if k not in inside:
                    self.whole[..., i, j] = 1.0
        for S, X, xi in zip(groups, self.X, self.xi, strict=True):
            rows = [i for k in sorted(S) for i in layout.dofs.places[k]]
            for r, i in enumerate(rows):
                self.rest[..., i] = xi[..., r]
                for c, j in enumerate(new[next(iter(S))]):
                    self.whole[..., i, j] = X[..., r, c]

    @property
    def made(self) -> SKOModel:
        return embedded(self.model, self.plan, self.X, self.xi)

    @property
    def mass_matrix(self) -> Tensor:
        return self.whole.mT @ dense_mass_matrix(self.model) @ self.whole

    @property
    def bias(self) -> Tensor:
        MM, C = dense_mass_matrix(self.model), column(dense_bias(self.model))
        return self.whole.mT @ (C + MM @ column(self.rest))


@st.composite
def cases(draw: st.DrawFn, max_nodes: int = 9, mixed: bool = True) -> Case:
    model = draw(straightened(sko_models(max_nodes, mixed=mixed)))
    n, tree = model.tree.num_nodes, model.tree
    groups: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, 2))):
        some = draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=3))
        S = aggregation_subgraph(tree, some)
        groups += [S] if not any(set(S).intersection(G) for G in groups) else []
    of = [sum(model.layout.dofs.sizes[k] for k in S) for S in groups]
    num_dofs = [draw(st.integers(0 if sum(of) > d else 1, d)) for d in of]
    num_dofs[0] = max(1, num_dofs[0])
    return Case(model, groups, num_dofs, draw(st.booleans()), draw(st.integers(0, 999)))


@pytest.mark.shows("Jain 2012, Transformations Part II", "constraint embedding", embedded)
@given(cases())
def test_mass_matrix_and_bias_are_those_of_the_members_through_x(case):
    made, MM = case.made, case.mass_matrix
    agree(dense_mass_matrix(made), MM, 1e-12)
    agree(column(dense_bias(made)), case.bias, 1e-12)
    for way in ("mass_matrix", "mass_matrix_by_jacobian", "mass_matrix_by_inverse_dynamics"):
        agree(getattr(algorithms, way)(made), MM, 1e-12)
    agree(column(algorithms.bias_force(made)), case.bias, 1e-12)


@given(cases(), st.sampled_from(["sweep", "scan"]))
def test_the_members_accelerate_as_the_dense_constrained_system_does(case, method):
    """KKT: MM qdd = T - C + G* lam, G (qdd - xi) = 0 with the rows of G orthogonal to X."""
    made, model = case.made, case.model
    T = noise(3, model.num_dof)
    reduced = (case.whole.mT @ column(T))[..., 0]
    qdd = ts.innovations(made, method=method).forward_dynamics(reduced)
    found = case.whole @ column(qdd) + column(case.rest)
    MM, C = torch.broadcast_tensors(dense_mass_matrix(model), column(dense_bias(model)))
    C = C[..., :1]
    Q = torch.linalg.qr(case.whole, mode="complete").Q
    G = Q[..., case.whole.shape[-1] :].mT
    G = G.expand(*MM.shape[:-2], *G.shape[-2:])
    zero = G.new_zeros(*G.shape[:-2], G.shape[-2], G.shape[-2])
    kkt = torch.cat([torch.cat([MM, -G.mT], -1), torch.cat([G, zero], -1)], -2)
    right = torch.cat([(column(T) - C), G @ column(case.rest)], -2)
    expected = torch.linalg.solve(kkt, right)[..., : model.num_dof, :]
    agree(found, expected, 1e-9)


def fixed_case(batch: tuple[int, ...] = ()) -> Case:
    """A chain of four nodes as one with two dofs, and under its second member two siblings as one."""
    tree = ts.algebra.Tree.from_parents([-1, 0, 1, 2, 3, 2, 2, 5, 6])
    model = random_model(tree, [6] * 9, [1] * 9, batch, 5, True)
    return Case(model, [(1, 2, 3, 4), (5, 6)], [2, 1], True, 0)


def test_well_conditioned_members_follow_to_thirteen_digits():
    case = fixed_case((20,))
    agree(
        case.made.armature_matrix() * 0 + algorithms.mass_matrix(case.made), case.mass_matrix, 1e-13
    )
    T = noise(1, 20, case.made.num_dof)
    qdd = algorithms.forward_dynamics(case.made, T)
    expected = torch.linalg.solve(case.mass_matrix, column(T) - case.bias)
    agree(column(qdd), expected, 1e-13)


def test_the_step_over_members_is_that_of_the_stacked_node():
    """What reaches the parent c, by members side by side and by m_S x m_S blocks: 1e-14."""
    tree = ts.algebra.Tree.from_parents([-1, 0, 1, 1])
    model = random_model(tree, [6] * 4, [1, 2, 1, 1], (7,), 2)
    S, (X, xi) = (1, 2, 3), (noise(0, 7, 4, 2), noise(1, 7, 4))
    made = ts.algebra.embed(model, S, X, xi)
    dense, rows = dense_operators(model), slice(6, 24)
    A_S = torch.linalg.inv(torch.eye(18).double() - dense.E[..., rows, rows])
    P, H, E = (
        dense.M[..., rows, rows],
        X.mT @ dense.H[..., 1:, rows] @ A_S,
        dense.E[..., :6, rows] @ A_S,
    )
    D = H @ P @ H.mT
    G = torch.linalg.solve(D, H @ P).mT
    felt = dense.M[..., :6, :6] + E @ (P - G @ D @ G.mT) @ E.mT
    found = solve_riccati(made)
    agree(found.hinge_inertia[1], D[:, None].expand(-1, 3, -1, -1), 1e-14)
    agree(found.art_inertia[0][:, 0], felt, 1e-14)


@given(cases(), st.integers(0, 2**20))
def test_hybrid_dynamics_of_an_embedded_model(case, bits):
    made = case.made
    known = torch.tensor([bool(bits >> i & 1) for i in range(made.num_dof)])
    tau, qdd = noise(1, 2, made.num_dof)
    accel, force = algorithms.hybrid_dynamics(made, tau, qdd, known)
    agree(case.mass_matrix @ column(accel) + case.bias, column(force), 1e-8)
    assert (accel == qdd)[..., known].all() and (force == tau)[..., ~known].all()


@given(cases(), st.data())
def test_operational_space_compliance_of_members_and_others(case, data):
    """Bodies keep their numbers: J of body k of the tree, times X, is that of the embedded model."""
    model, made = case.model, case.made
    J = model.layout.nodes.unpack(algorithms.node_jacobian(model)) @ case.whole
    whole = J @ torch.linalg.solve(case.mass_matrix, J.mT)
    assert_compliance(algorithms.extended_compliance(made), whole, model, data)


@given(cases(mixed=False))
def test_scalar_operations_on_an_embedded_model_have_equal_results(case):
    T = noise(2, case.plan.layout.dofs.total)
    with scalar_form():
        one, MM = algorithms.forward_dynamics(case.made, T), algorithms.mass_matrix(case.made)
    other = algorithms.forward_dynamics(case.made, T)
    agree(column(one), column(other), 1e-8)
    agree(MM, case.mass_matrix, 1e-11)


def test_no_node_is_as_wide_as_its_members_together():
    case = fixed_case()
    made = case.made
    assert made.inertia.shape == case.model.inertia.shape
    assert made.edge_weight.dense().shape == case.model.edge_weight.dense().shape


def test_the_caller_chooses_the_independent_dofs():
    case = fixed_case()
    of = [(1, 2, 3, 4), (5, 6)]
    plan = embedding_plan(case.model.layout, of, [2, 1], dofs=[(4, 2), (6,)])
    made = embedded(case.model, plan, case.X, case.xi)
    # Left are the dofs 0, 2, 4, 6, 7, 8: the first columns of X stand at 4 and 2, the last at 6.
    order = [0, 2, 1, 3, 4, 5]
    agree(algorithms.mass_matrix(made), case.mass_matrix[order][:, order], 1e-12)


@pytest.mark.shows("Jain 2012, Transformations Part II", "constraint embedding", ts.algebra.embed)
def test_embedding_one_node_after_another_is_embedding_both():
    case = fixed_case()
    first = ts.algebra.embed(case.model, (5, 6), case.X[1], case.xi[1])
    both = ts.algebra.embed(first, (1, 2, 3, 4), case.X[0], case.xi[0])
    agree(algorithms.mass_matrix(both), case.mass_matrix, 1e-12)
    agree(column(algorithms.bias_force(both)), case.bias, 1e-12)


def test_edges_held_by_levels_stay_as_they_are_where_members_hang_on_the_parent_already():
    tree = ts.algebra.Tree.from_parents([-1, 0, 0, 1, 2])
    model = random_model(tree, [6] * 5, [1] * 5)
    sizes = model.layout.level_sizes
    edges = LevelEdges(tuple(model.edge_weight.split(sizes)), sizes)
    plan = embedding_plan(model.layout, [(1, 2)], [1])
    assert plan.same_tree
    assert embedded(replace(model, edge_weight=edges), plan, [noise(0, 2, 1)]).edge_weight is edges


def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
    weight, *rest = tensors
    fields, X, xi = rest[:5], rest[5:7], rest[7:]
    changed = dict(zip(FIELDS, fields, strict=True))
    changed["inertia"] = (changed["inertia"] + changed["inertia"].mT) / 2
    model = replace(LIKE.model, edge_weight=DenseEdges(weight), **changed)
    made = embedded(model, LIKE.plan, X, xi)
    T = torch.linspace(-1, 1, made.num_dof, dtype=torch.float64)
    return algorithms.forward_dynamics(made, T), swept_innovations(made).logdet()


LIKE = fixed_case()


def leaves(batch: tuple[int, ...] = ()) -> list[Tensor]:
    case = fixed_case(batch)
    fields = [getattr(case.model, name) for name in FIELDS]
    return [case.model.edge_weight.dense(), *fields, *case.X, *case.xi]


def test_gradients_to_every_tensor_and_to_x_and_xi():
    inputs = tuple(x.requires_grad_() for x in leaves())
    assert torch.autograd.gradcheck(forward, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(forward, inputs, fast_mode=True)


@pytest.mark.nightly
def test_vmap_and_compile():
    inputs = leaves((3,))
    expected = forward(*inputs)
    torch.testing.assert_close(torch.vmap(forward)(*inputs), expected)
    torch._dynamo.reset()

    def through(X: Tensor, xi: Tensor) -> Tensor:
        made = embedded(LIKE.model, LIKE.plan, [X, LIKE.X[1]], [xi, LIKE.xi[1]])
        return algorithms.forward_dynamics(made, torch.ones(made.num_dof).double())

    X, xi = inputs[6], inputs[8]
    compiled = torch.compile(through, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X, xi), through(X, xi))
    torch._dynamo.reset()


def arm(motor: str, s: Tensor, J: float) -> ts.Mechanism:
    """Three links; on the second a rotor of moment J about s and J / 2 across, held by a joint of a kind."""
    builder = ts.MechanismBuilder("arm")
    for k in range(3):
        moments = torch.diag(torch.tensor([0.2, 0.3, 0.25])).tolist()
        builder.link(f"l{k}", mass=1.0 + k, com=(0.1, 0.0, 0.2), inertia=moments)
        builder.joint(
            f"j{k}", "revolute", child=f"l{k}", parent=f"l{k - 1}" if k else None,
            axis=noise(k, 3).tolist(), position=(0.3, 0.1, 0.2),
        )  # fmt: skip
    inertia = (J / 2 * (torch.eye(3).double() + s[:, None] * s)).tolist()
    builder.link("rotor", mass=0.1, inertia=inertia)
    builder.joint(
        "motor", motor, child="rotor", parent="l1", axis=s.tolist(), position=(0.1, 0.2, 0.3)
    )
    return builder.build()


@pytest.mark.parametrize("ratio", [50.0, -30.0])
def test_a_geared_rotor_is_its_closed_formula(ratio):
    """With all of the rotor lumped into its carrier, N its ratio, e the unit vector of its coordinate:

    MM = MM_lumped + N^2 J e e* + N J (e s* Jw + Jw* s e*),
    C = C_lumped + N J e s* alpha + Jw* (w x s) J N qd
    with Jw, w and alpha (at qdd = 0) of the carrier's rotation.
    """
    N, J, s = ratio, 2e-4, torch.nn.functional.normalize(noise(4, 3), dim=0)
    still = {"gravity": torch.zeros(3).double()}
    geared, fixed = (arm(kind, s, J).replace(**still) for kind in ("revolute", "fixed"))
    q, qd, e = noise(7, 3), noise(8, 3), torch.tensor([0.0, 0.0, 1.0]).double()
    whole = torch.cat([torch.eye(3).double(), N * e[None]])
    names = ("l2", "rotor")
    made = ts.algebra.embed(
        ts.assemble(geared, whole @ q, whole @ qd), names, torch.tensor([[1.0], [N]]).double()
    )
    lumped = ts.assemble(fixed, q, qd)
    Jw = algorithms.node_jacobian(lumped)[1, :3]
    a, cross = lumped.coriolis_accel, N * J * torch.outer(e, s @ Jw)
    alpha = (lumped.edge_weight.dense()[1].mT @ a[0] + a[1])[:3, 0]
    MM = algorithms.mass_matrix(lumped) + N**2 * J * torch.outer(e, e) + cross + cross.mT
    agree(algorithms.mass_matrix(made), MM, 1e-13)
    turning = torch.linalg.cross(Jw @ qd, s)
    C = algorithms.bias_force(lumped) + N * J * e * (s @ alpha) + Jw.mT @ turning * J * N * qd[2]
    agree(column(algorithms.bias_force(made)), column(C), 1e-13)


def test_invalid_embeddings_are_refused_by_name():
    case = fixed_case()
    layout = case.model.layout
    with pytest.raises(ts.TreeError, match=r"Aggregate torchsko.algebra.aggregation_subgraph"):
        embedding_plan(layout, [(1, 3)])
    with pytest.raises(ts.TreeError, match=r"'2' would be members of two nodes"):
        embedding_plan(layout, [(1, 2), (2, 3)])
    with pytest.raises(ts.ShapeError, match=r"'5', '6' is given 3 dofs"):
        embedding_plan(layout, [(5, 6)], [3])
    with pytest.raises(
        ts.ShapeError, match=r"X has the shapes \[\(3, 1\)\] for the nodes \['5\+6'\]"
    ):
        ts.algebra.embed(case.model, (5, 6), noise(0, 3, 1))
    with pytest.raises(ts.ShapeError, match=r"xi has the shapes \[\(3,\)\]"):
        ts.algebra.embed(case.model, (5, 6), noise(0, 2, 1), noise(0, 3))
    with pytest.raises(ts.TreeError, match=r"share a hinge, and only some are members"):
        ts.algebra.aggregate(case.made, [5])
