"""Hybrid dynamics against inverse dynamics, forward dynamics and a dense Schur complement."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchsko as ts
from tests.batteries import CountOperations, branched_model, ramp
from tests.strategies import (
    agree,
    dense_bias,
    dense_mass_matrix,
    mechanisms,
    random_model,
    sko_models,
    straightened,
)
from torchsko import algorithms
from torchsko.algebra.topology.tree import Tree
from torchsko.algorithms import hybrid_dynamics

ANY = sko_models(max_nodes=12, mixed=True, min_dofs=0)


def column(x):
    return x[..., None]


def flat_mask(model, nodes):
    """Whether a dof belongs to one of these nodes, `[num_dof]`."""
    mask = torch.zeros(model.num_dof, dtype=torch.bool)
    for k in nodes:
        mask[list(model.layout.dofs.places[k])] = True
    return mask


@st.composite
def subsets(draw, models=ANY):
    model = draw(models)
    nodes = draw(st.sets(st.integers(0, model.tree.num_nodes - 1)))
    return model, sorted(nodes)


@pytest.mark.shows("Jain 2024, SOA slides 9", "O(N) hybrid dynamics", hybrid_dynamics)
@given(subsets())
def test_the_solution_is_the_schur_complement_of_the_mass_matrix(case):
    model, nodes = case
    known = flat_mask(model, nodes)
    tau, qdd = ramp(model), ramp(model, 0.3)
    accel, force = hybrid_dynamics(model, tau, qdd, nodes)
    MM, C = dense_mass_matrix(model), dense_bias(model)
    free = ~known
    rhs = column(tau - C)[..., free, :] - MM[..., free, :][..., known] @ column(qdd[known])
    solved = torch.linalg.solve(MM[..., free, :][..., free], rhs)
    agree(column(accel[..., free]), solved, 1e-8)
    agree(column(force[..., known]), column((MM @ column(accel))[..., 0] + C)[..., known, :], 1e-8)


def test_a_part_of_a_node_whose_armature_couples_dofs_may_be_prescribed():
    model = random_model(Tree.from_parents([-1, 0]), [4, 5], [3, 2], seed=1)
    root = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    inside = (~model.layout.dofs.padding).double()
    S = root @ root.mT * inside[:, :, None] * inside[:, None, :]
    model, known = replace(model, armature=S), torch.tensor([True, False, True, False, True])
    tau, qdd = ramp(model), ramp(model, 0.3)
    accel, force = hybrid_dynamics(model, tau, qdd, known)
    total = algorithms.mass_matrix(model) @ accel + dense_bias(model)
    assert torch.equal(accel[known], qdd[known]) and torch.equal(force[~known], tau[~known])
    agree(column(total), column(force), 1e-9)


@given(subsets())
def test_given_forces_and_accelerations_are_returned_unchanged(case):
    model, nodes = case
    known, tau, qdd = flat_mask(model, nodes), ramp(model), ramp(model, 0.3)
    accel, force = hybrid_dynamics(model, tau, qdd, nodes)
    assert (accel == qdd)[..., known].all() and (force == tau)[..., ~known].all()


@given(subsets())
def test_unused_entries_are_not_read(case):
    model, nodes = case
    known, tau, qdd = flat_mask(model, nodes), ramp(model), ramp(model, 0.3)
    blank = torch.full_like(tau, torch.nan)
    hidden = hybrid_dynamics(
        model, torch.where(known, blank, tau), torch.where(known, qdd, blank), nodes
    )
    for actual, expected in zip(hidden, hybrid_dynamics(model, tau, qdd, nodes), strict=True):
        assert torch.equal(actual, expected)


@given(ANY)
def test_every_node_prescribed_is_inverse_dynamics(model):
    qdd, nodes = ramp(model), range(model.tree.num_nodes)
    _, force = hybrid_dynamics(model, torch.zeros_like(qdd), qdd, nodes)
    agree(column(force), column(algorithms.inverse_dynamics(model, qdd)))


@given(ANY)
def test_no_node_prescribed_is_forward_dynamics(model):
    tau = ramp(model)
    accel, _ = hybrid_dynamics(model, tau, torch.zeros_like(tau), [])
    agree(column(accel), column(algorithms.forward_dynamics(model, tau)), 1e-8)


@given(straightened(sko_models(max_nodes=12)), st.integers(0, 4095))
def test_locked_models_keep_straight_hinges(model, bits):
    nodes = [k for k in range(model.tree.num_nodes) if bits >> k & 1]
    tau, qdd = ramp(model), ramp(model, 0.3)
    accel, force = hybrid_dynamics(model, tau, qdd, nodes)
    total = (dense_mass_matrix(model) @ column(accel))[..., 0] + dense_bias(model)
    agree(column(total), column(force), 1e-8)


def test_nodes_are_numbers_or_names_and_unknown_ones_are_refused():
    tree = Tree.from_parents([-1, 0, 1], ["hip", "knee", "foot"])
    model = random_model(tree, [3, 3, 3], [1, 1, 1])
    tau, qdd = ramp(model), ramp(model, 0.3)
    by_name = hybrid_dynamics(model, tau, qdd, ["knee"])
    for x, y in zip(by_name, hybrid_dynamics(model, tau, qdd, [1]), strict=True):
        assert torch.equal(x, y)
    with pytest.raises(ts.TreeError, match="knee"):
        hybrid_dynamics(model, tau, qdd, ["kne"])
    with pytest.raises(ts.TreeError, match="3 is no node"):
        hybrid_dynamics(model, tau, qdd, [3])


def test_vectors_of_another_length_are_refused():
    model = random_model(Tree.from_parents([-1, 0]), [3, 3], [1, 2])
    tau, qdd = ramp(model), ramp(model, 0.3)
    for short in ((tau[..., :1], qdd), (tau, qdd[..., :1])):
        with pytest.raises(ts.ShapeError, match=r"length 1 .* 3 components"):
            hybrid_dynamics(model, *short, [0])


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("parents", [[-1], [-1, 0, 0, 0], [-1, -1, -1]], ids=str)
def test_one_body_star_and_forest(parents, batch):
    tree = Tree.from_parents(parents)
    model = random_model(tree, [3] * len(parents), [2] * len(parents), batch, armature=True)
    accel, force = hybrid_dynamics(model, ramp(model), ramp(model, 0.3), [0])
    assert accel.shape == force.shape == (*batch, model.num_dof)
    agree(column(algorithms.inverse_dynamics(model, accel)), column(force))


def test_derivatives_to_given_forces_and_accelerations():
    model = branched_model()
    inputs = [ramp(model).requires_grad_(), ramp(model, 0.3).requires_grad_()]

    def function(tau, qdd):
        return torch.cat(hybrid_dynamics(model, tau, qdd, [2, 5]), -1)

    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, fast_mode=True)


def test_operations_do_not_grow_with_prescribed_nodes():
    def operations(leaves, nodes):
        tree = Tree.from_parents([-1, *[0] * leaves])
        model = random_model(tree, [3] * (leaves + 1), [1] * (leaves + 1))
        with CountOperations() as count:
            hybrid_dynamics(model, ramp(model), ramp(model, 0.3), nodes)
        return count.total

    assert operations(2, [0, 1]) == operations(20, [0]) == operations(20, range(20))


@pytest.mark.shows("Jain 2024, SOA slides 9", "O(N) hybrid dynamics", ts.hybrid_dynamics)
@given(mechanisms(armature=None), st.integers(0, 31))
def test_a_mechanism_moves_by_the_missing_forces_as_by_the_given_ones(mech, bits):
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(2, generator=g)
    tau, qdd = torch.randn(2, 2, mech.num_dof, generator=g, dtype=torch.float64)
    joints = [name for k, name in enumerate(mech.joint_names) if bits >> k & 1]
    f_ext = torch.randn(2, mech.num_bodies, 6, generator=g, dtype=torch.float64)
    accel, force = ts.hybrid_dynamics(mech, q, qd, tau, qdd, joints, f_ext)
    agree(ts.inverse_dynamics(mech, q, qd, accel, f_ext), force, 1e-8)
    for k, name in enumerate(mech.joint_names):
        kept, given_one = (accel, qdd) if bits >> k & 1 else (force, tau)
        agree(kept[..., mech.dof_slice(name)], given_one[..., mech.dof_slice(name)])


def test_prescribed_motion_makes_the_first_joint_of_an_arm_follow_a_sine():
    arm = ts.load(ts.robots.panda)
    none = torch.zeros(7, dtype=torch.float64)
    q, qd = arm.random_state(generator=torch.Generator().manual_seed(0))
    dt, steps, first = 1e-3, 300, arm.joint_names[0]
    start = float(q[0])
    qd = torch.cat([torch.ones(1, dtype=torch.float64), none[1:]])
    for k in range(steps):
        wanted = torch.full_like(none, -torch.tensor(dt * (k + 0.5)).sin().item())
        qdd, tau = ts.hybrid_dynamics(arm, q, qd, none, wanted, [first])
        assert (tau[1:] == 0).all()
        q, qd = ts.integrate(arm, q, dt * qd + 0.5 * dt**2 * qdd), qd + dt * qdd
    assert abs(float(q[0]) - start - float(torch.tensor(dt * steps).sin())) < 1e-5


def dangling():
    """An arm whose last link has no mass: forward dynamics refuses its joint."""
    builder = ts.MechanismBuilder("dangling")
    inertia = torch.eye(3, dtype=torch.float64).tolist()
    for k, mass in enumerate((1.0, 1.0, 0.0)):
        builder.link(f"link{k}", mass=mass, inertia=inertia if mass else [[0.0] * 3] * 3)
        builder.joint(
            f"joint{k}", "revolute", child=f"link{k}", parent=f"link{k - 1}" if k else None,
            axis=(0.0, 0.0, 1.0), position=(0.0, 0.3, 0.0),
        )  # fmt: skip
    return builder.build()


def test_a_joint_without_inertia_may_be_prescribed_but_not_driven():
    mech = dangling()
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))
    with pytest.raises(ts.MechanismError, match="'joint2'"):
        ts.hybrid_dynamics(mech, q, qd, qd, qd, ["joint0"])
    accel, force = ts.hybrid_dynamics(mech, q, qd, qd, qd, ["joint2"])
    agree(ts.inverse_dynamics(mech, q, qd, accel)[None], force[None])
