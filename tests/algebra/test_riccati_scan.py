"""The Riccati recursion as a scan: equal to the sweep, in O(log depth) operations, sound in float32."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchsko as ts
from tests.batteries import BRANCHED, CountOperations, branched_model
from tests.strategies import (
    BATCHES,
    agree,
    dense_bias,
    dense_mass_matrix,
    dense_riccati,
    random_mechanism,
    random_model,
    sko_models,
    straightened,
)
from torchsko.algebra.recursions.articulated import articulated_operators
from torchsko.algebra.recursions.innovations_scan import scanned_innovations
from torchsko.algebra.recursions.riccati_scan import Crossing, compose, solve_riccati_scan
from torchsko.algebra.topology.tree import Tree
from torchsko.bridge.level_free import assemble_level_free
from torchsko.errors import MechanismError, TorchskoError

ANY = sko_models(max_nodes=12, mixed=True)
STRAIGHT = straightened(sko_models(max_nodes=12, mixed=True))
SHAPES = {
    "chain": [*range(-1, 10)],
    "star": [-1, 0, 0, 0, 0],
    "one": [-1],
    "caterpillar": [-1, 0, 0, 1, 1, 3, 3, 5, 5],
    "forest": [1, -1, 1, 2, 2, -1],
}


def dof_vector(model, r=2):
    g = torch.Generator().manual_seed(1)
    return torch.randn(model.num_dof, r, generator=g, dtype=torch.float64)


def crossings(count, seed=0):
    """Random maps of the form the scan composes: C and J symmetric, positive semidefinite."""
    x = torch.randn(
        3, count, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return [Crossing(E, C @ C.mT, J @ J.mT) for E, C, J in zip(*x, strict=True)]


def apply(crossing, X):
    E, C, J = crossing
    return C + E @ torch.linalg.solve(torch.eye(4, dtype=E.dtype) + X @ J, X) @ E.mT


@pytest.mark.shows(
    "Sarkka and Garcia-Fernandez 2021, Temporal parallelization", "filtering operator", compose
)
def test_a_composition_crosses_one_after_the_other():
    outer, inner, felt = crossings(3)
    agree(apply(compose(outer, inner), felt.C), apply(inner, apply(outer, felt.C)))


@pytest.mark.shows(
    "Sarkka and Garcia-Fernandez 2021, Temporal parallelization", "filtering operator", compose
)
def test_compositions_are_associative():
    a, b, c = crossings(3)
    for x, y in zip(compose(compose(a, b), c), compose(a, compose(b, c)), strict=True):
        agree(x, y)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 7", solve_riccati_scan)
@pytest.mark.shows(
    "Sarkka and Garcia-Fernandez 2021, Temporal parallelization",
    "filtering operator",
    solve_riccati_scan,
)
@given(st.one_of(ANY, STRAIGHT))
def test_the_scan_solves_the_riccati_equation(model):
    solution = articulated_operators(model, solve_riccati_scan(model))
    dense = dense_riccati(model)
    agree(solution.art_inertia.to_dense(), dense.P, 1e-9)
    agree(solution.hinge_inertia.to_dense(), dense.D, 1e-9)
    agree(solution.gain.to_dense(), dense.G, 1e-9)
    agree(solution.art_inertia_plus.to_dense(), dense.P_plus, 1e-9)


def test_the_inertia_across_a_hinge_has_exact_zeros_where_rows_of_h_are_unit_vectors():
    tree = Tree.from_parents(SHAPES["forest"])
    model = random_model(tree, [3] * 6, [1] * 6)
    units = torch.eye(3, dtype=torch.float64)[[0, 2, 1, 1, 0, 2]][:, None, :]
    model = replace(model, maps=units, straight=units, aligned=(True,) * 6)
    (P_plus,) = solve_riccati_scan(model).art_inertia_plus
    assert not (units @ P_plus).any()


@given(st.one_of(ANY, STRAIGHT))
def test_forward_dynamics_by_the_scan_inverts_the_equations_of_motion(model):
    T = dof_vector(model, 1)[:, 0]
    qdd = ts.innovations(model, method="scan").forward_dynamics(T)
    expected = torch.linalg.solve(dense_mass_matrix(model), T - dense_bias(model))
    agree(qdd[..., None], expected[..., None], 1e-9)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 11", ts.innovations, scanned_innovations)
@pytest.mark.shows(
    "Sarkka and Garcia-Fernandez 2021, Temporal parallelization",
    "filtering operator",
    scanned_innovations,
)
@given(st.one_of(ANY, STRAIGHT), st.sampled_from(BATCHES))
def test_every_action_equals_that_of_the_swept_factors(model, batch):
    x = dof_vector(model).expand(*batch, -1, -1)
    swept, scanned = ts.innovations(model), ts.innovations(model, method="scan")
    for name in ("solve", "sqrt", "whiten", "sqrt_transpose", "whiten_transpose"):
        expected = getattr(swept, name)(x, columns=True)
        agree(getattr(scanned, name)(x, columns=True), expected, 1e-9)
    agree(scanned.inverse(), swept.inverse(), 1e-9)
    assert scanned.logdet().shape == swept.logdet().shape
    agree(scanned.logdet()[..., None, None], swept.logdet()[..., None, None], 1e-9)
    certificate = swept.hinge_certificate()
    assert scanned.hinge_certificate().shape == certificate.shape
    agree(scanned.hinge_certificate()[..., None], certificate[..., None], 1e-9)


@pytest.mark.parametrize("parents", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("batch", BATCHES)
def test_every_shape_of_tree(parents, batch):
    n = len(parents)
    model = random_model(Tree.from_parents(parents), [3] * n, [1] * n, batch, 2)
    T = dof_vector(model, 1)[:, 0]
    swept = ts.innovations(model).forward_dynamics(T)
    agree(
        ts.innovations(model, method="scan").forward_dynamics(T)[..., None], swept[..., None], 1e-9
    )


def test_the_same_noise_gives_the_same_samples():
    model = branched_model((2,))
    for inverse in (False, True):
        samples = [
            ts.innovations(model, method=method).sample(
                3, generator=torch.Generator().manual_seed(0), inverse=inverse
            )
            for method in ("sweep", "scan")
        ]
        agree(*samples)


@pytest.mark.shows("Jain 2011, Part II", "section 2", assemble_level_free)
@pytest.mark.parametrize("armature", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_forward_dynamics_of_every_joint_kind_equals_the_sweeps(armature, batch):
    kinds = ["revolute", "prismatic", "spherical", "free", "revolute", "prismatic"]
    mech = random_mechanism(kinds, [-1, 0, 1, 0, 2, 2], seed=3, armature=armature)
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(*batch, generator=g)
    tau = torch.randn(mech.num_dof, generator=g, dtype=torch.float64)
    f_ext = torch.randn(mech.num_bodies, 6, generator=g, dtype=torch.float64)
    expected = ts.forward_dynamics(mech, q, qd, tau, f_ext)
    qdd = ts.forward_dynamics(mech, q, qd, tau, f_ext, method="scan")
    assert qdd.shape == expected.shape
    agree(qdd[..., None], expected[..., None])


def test_forward_dynamics_by_the_scan_has_the_derivatives_of_the_sweeps():
    mech = random_mechanism(["free", "spherical", "revolute", "prismatic"], [-1, 0, 1, 0], seed=5)
    q, qd = mech.random_state(2, generator=torch.Generator().manual_seed(0))
    gradients = []
    for method in ("articulated", "scan"):
        # Along the manifold: what a quaternion off the unit sphere means is a convention of each.
        start = (0 * qd, qd, qd, mech.mass, mech.com, mech.gravity)
        step, *states, mass, com, gravity = leaves = [x.clone().requires_grad_() for x in start]
        changed = mech.replace(mass=mass, com=com, gravity=gravity)
        moved = ts.integrate(mech, q, step)
        qdd = ts.forward_dynamics(changed, moved, *states, method=method)
        gradients.append(torch.autograd.grad(qdd.square().sum(), leaves))
    for scanned, swept in zip(*gradients, strict=True):
        torch.testing.assert_close(scanned, swept, rtol=1e-9, atol=1e-8)


def test_derivatives_by_the_scan_agree_in_every_order_of_modes_and_over_robots():
    mech = random_mechanism(
        ["revolute", "prismatic", "spherical", "revolute"], [-1, 0, 1, 2], seed=1
    )
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))

    def accelerate(mass, method="scan"):
        return ts.forward_dynamics(mech.replace(mass=mass), q, qd, qd, method=method)

    def along(fn):
        return lambda mass: torch.func.jvp(fn, (mass,), (mech.mass.flip(0),))[1]

    # Forward over reverse is the sweeps' own second derivative.
    slope = torch.func.grad(lambda mass: accelerate(mass, "articulated").sum())
    agree(torch.func.grad(along(lambda m: accelerate(m).sum()))(mech.mass), along(slope)(mech.mass))
    masses = mech.mass * torch.tensor([[1.0], [1.5], [2.0]], dtype=mech.dtype)
    by_columns, by_rows = (
        torch.vmap(way(accelerate))(masses) for way in (torch.func.jacfwd, torch.func.jacrev)
    )
    torch.testing.assert_close(by_columns, by_rows, rtol=1e-9, atol=1e-10)


@pytest.mark.nightly
def test_forward_dynamics_by_the_scan_compiles_and_vectorizes():
    mech = random_mechanism(["free", "spherical", "revolute", "prismatic"], [-1, 0, 1, 0], seed=5)
    q, qd = mech.random_state(3, generator=torch.Generator().manual_seed(0))

    def accelerate(q, qd, tau):
        return ts.forward_dynamics(mech, q, qd, tau, method="scan")

    expected = accelerate(q, qd, qd)
    torch.testing.assert_close(torch.vmap(accelerate)(q, qd, qd), expected)
    torch._dynamo.reset()
    compiled = torch.compile(accelerate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, qd, qd), expected)


def long_chain(links):
    builder = ts.MechanismBuilder("chain")
    quarter = [[1, 0, 0], [0, 0, 1], [0, -1, 0]]
    for k in range(links):
        builder.link(f"link{k}", mass=0.5, com=(0.01, -0.02, 0.05),
                     inertia=[[5e-4, 0, 0], [0, 5e-4, 0], [0, 0, 3e-4]])  # fmt: skip
        builder.joint(f"joint{k}", "revolute", child=f"link{k}", parent=f"link{k - 1}" if k else None,
                      rotation=quarter, position=(0, 0, 0.1))  # fmt: skip
    return builder.build()


def test_operations_grow_with_the_logarithm_of_the_depth():
    counts = []
    for links in (8, 32, 128):
        mech = long_chain(links)
        q, qd = mech.random_state()
        with torch.no_grad(), CountOperations() as count:
            ts.forward_dynamics(mech, q, qd, qd, method="scan")
        counts.append(count.total)
    assert counts[2] - counts[1] == counts[1] - counts[0] < counts[0]


def float32_error(single, speed, span=1.0):
    """Of forward dynamics by the scan, against float64 sweeps of the same numbers."""
    exact = single.to(torch.float64)
    g = torch.Generator().manual_seed(0)
    q, qd = single.random_state(4, generator=g)
    q, qd, tau = span * q, speed * qd, torch.randn(qd.shape, generator=g)
    expected = ts.forward_dynamics(exact, q.double(), qd.double(), tau.double())
    qdd = ts.forward_dynamics(single, q, qd, tau, method="scan").double()
    return float(((qdd - expected).abs().amax(-1) / expected.abs().amax(-1)).max())


@pytest.mark.parametrize("speed", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("span", [1.0, 1e-3])
def test_a_long_chain_in_float32_is_accurate_to_one_in_a_hundred_thousand(speed, span):
    assert float32_error(long_chain(256).to(torch.float32), speed, span) < 1e-5


def test_masses_that_alternate_by_a_thousand_cost_float32_no_digits():
    single = long_chain(256).to(torch.float32)
    factor = torch.tensor([1000.0, 1.0]).repeat(128)
    single = single.replace(
        mass=single.mass * factor, inertia=single.inertia * factor[:, None, None]
    )
    assert float32_error(single, 1.0) < 1e-5


def test_composing_in_float32_is_a_choice_that_costs_digits():
    single = long_chain(256).to(torch.float32)
    factor = torch.tensor([1000.0, 1.0]).repeat(128)
    single = single.replace(
        mass=single.mass * factor, inertia=single.inertia * factor[:, None, None]
    )
    q, _ = single.random_state(2, generator=torch.Generator().manual_seed(0))
    model, exact = (
        ts.assemble(mech, q.to(mech.dtype)) for mech in (single, single.to(torch.float64))
    )
    (P,) = solve_riccati_scan(exact).art_inertia

    def error(accumulate):
        (found,) = solve_riccati_scan(model, accumulate).art_inertia
        assert found.dtype == torch.float32
        return float(((found.double() - P).abs().amax((-1, -2)) / P.abs().amax((-1, -2))).max())

    assert error(torch.float64) < 1e-6 < 1e-5 < error(torch.float32)
    with pytest.raises(TorchskoError, match='pass method="scan"'):
        ts.innovations(model, accumulate=torch.float32)


def universal_joint(armature=0.0):
    """Two crossed hinges that meet in a massless body."""
    builder = ts.MechanismBuilder("universal")
    builder.link("cross").link(
        "arm", mass=1.0, com=(0, 0, 0.3), inertia=[[0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]]
    )
    builder.joint("first", "revolute", child="cross", axis=(1, 0, 0), armature=armature)
    builder.joint(
        "second", "revolute", child="arm", parent="cross", axis=(0, 1, 0), armature=armature
    )
    return builder.build()


def test_a_joint_that_its_own_body_does_not_resist_is_refused_by_name():
    mech = universal_joint()
    assert mech.bare_joints == ("first",) and mech.singular_joints == ()
    q, qd = mech.random_state()
    with pytest.raises(MechanismError, match=r"joint 'first'(.|\n)*method=\"articulated\""):
        ts.forward_dynamics(mech, q, qd, qd, method="scan")
    changed = universal_joint(armature=0.1)
    assert changed.bare_joints == ()
    expected = ts.forward_dynamics(changed, q, qd, qd)
    agree(ts.forward_dynamics(changed, q, qd, qd, method="scan")[None], expected[None])


def test_an_unknown_method_is_refused():
    with pytest.raises(TorchskoError, match="no method is named 'doubling'"):
        ts.innovations(branched_model(tree=BRANCHED), method="doubling")
