"""Composite bodies, three ways to the mass matrix, its trace; four mass matrices derived by hand."""

import pytest
import torch
from hypothesis import given

import torchsko as ts
from tests.batteries import ramp
from tests.strategies import (
    agree,
    dense_bias,
    dense_blocks,
    dense_mass_matrix,
    dense_operators,
    dense_sko,
    mechanisms,
    sko_models,
)
from torchsko import algorithms
from torchsko.algebra.topology.gathering import join

ANY = sko_models(max_nodes=12, mixed=True, min_dofs=0)
SLIDES = "Jain 2024, SOA slides 9"
MATRICES = [
    algorithms.mass_matrix,
    algorithms.mass_matrix_by_jacobian,
    pytest.param(
        algorithms.mass_matrix_by_inverse_dynamics,
        marks=pytest.mark.shows(
            SLIDES, "inverse dynamics based mass matrix", algorithms.mass_matrix_by_inverse_dynamics
        ),
    ),
]
ways = pytest.mark.parametrize("way", MATRICES, ids=lambda way: way.__name__)


def composite(model):
    packed = join(list(algorithms.composite_inertia(model)))
    return dense_blocks(model, packed, "nodes", "nodes")


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 4.1", algorithms.composite_inertia)
@given(ANY)
def test_composite_inertias_solve_m_equals_r_less_e_a_r_e_a_transposed(model):
    R, E = composite(model), dense_sko(model)
    agree(R - E @ R @ E.mT, dense_blocks(model, model.inertia, "nodes", "nodes"))


@given(ANY)
def test_the_mass_matrix_is_the_sum_of_three_terms_and_the_armature(model):
    x, R = dense_operators(model), composite(model)
    above = x.E @ x.A
    terms = (R, above @ R, R @ above.mT)
    agree(x.H @ sum(terms) @ x.H.mT + x.S, algorithms.mass_matrix(model))


@ways
@given(ANY)
def test_every_way_gives_the_mass_matrix(way, model):
    MM = dense_mass_matrix(model)
    agree(way(model), MM)
    assert way(model).shape[:-2] == model.batch_shape


@pytest.mark.shows("Jain 2011, Part II", "Lemma 4", algorithms.composite_inverse_dynamics)
@given(ANY)
def test_composite_inverse_dynamics_is_mass_matrix_times_acceleration_plus_bias(model):
    qdd = ramp(model)
    expected = dense_mass_matrix(model) @ qdd + dense_bias(model)
    agree(algorithms.composite_inverse_dynamics(model, qdd)[..., None, :], expected[..., None, :])


@pytest.mark.shows(
    "Jain 2024, SOA slides 9", "trace of the general mass matrix", algorithms.mass_matrix_trace
)
@given(ANY)
def test_the_trace_needs_no_matrix(model):
    trace = dense_mass_matrix(model).diagonal(dim1=-2, dim2=-1).sum(-1)
    agree(algorithms.mass_matrix_trace(model)[..., None, None], trace[..., None, None])


@given(sko_models(max_nodes=12))
def test_the_sko_operator_vanishes_at_its_power_nilpotency_and_not_before(model):
    E, p = dense_sko(model), model.tree.nilpotency
    assert not torch.linalg.matrix_power(E, p).any()
    # Weights of full rank: the product along the longest path does not vanish by chance.
    ones = (E != 0).double()
    assert torch.linalg.matrix_power(ones, p - 1).any()


@given(mechanisms())
def test_both_inverse_dynamics_of_a_mechanism_agree(mech):
    q, qd = mech.random_state(2, generator=torch.Generator().manual_seed(0))
    plain = ts.inverse_dynamics(mech, q, qd, qd.cos())
    agree(ts.inverse_dynamics(mech, q, qd, qd.cos(), method="composite"), plain)


def test_an_unknown_method_is_refused_with_the_known_ones():
    arm = ts.load(ts.robots.panda)
    q, qd = arm.random_state()
    with pytest.raises(ts.ShapeError, match="'newton_euler', 'composite'"):
        ts.inverse_dynamics(arm, q, qd, qd, method="rnea")


# The four examples of *Generalized Mass Matrix of MBS* (Concurrent Dynamics, 2018), in inertial axes.


def tilde(v):
    return torch.linalg.cross(v.expand(3, 3), torch.eye(3, dtype=v.dtype)).mT


class Body:
    """Mass, inertia about the center of mass, joint to center s, parent joint to joint d."""

    def __init__(self, seed, s=None, d=None):
        g = torch.Generator().manual_seed(seed)
        draw = torch.randn(3, 3, generator=g, dtype=torch.float64)
        self.m = float(draw[0, 0].square() + 1)
        self.I = draw @ draw.mT + torch.eye(3, dtype=torch.float64)
        self.s = torch.randn(3, generator=g, dtype=torch.float64) if s is None else s
        self.d = torch.randn(3, generator=g, dtype=torch.float64) if d is None else d

    def spatial(self):
        corner, one = self.m * tilde(self.s), torch.eye(3, dtype=torch.float64)
        top = torch.cat([self.I - self.m * tilde(self.s) @ tilde(self.s), corner], 1)
        return torch.cat([top, torch.cat([-corner, self.m * one], 1)])

    def weight(self):
        one, none = torch.eye(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
        D = torch.cat([torch.cat([one, none], 1), torch.cat([-tilde(self.d), one], 1)])
        return D.mT


X, Y, Z = torch.eye(3, dtype=torch.float64)
NONE = torch.zeros(3, dtype=torch.float64)


def turning(axis):
    return torch.cat([axis, NONE])[None]


def check_example(parents, bodies, joint_maps, expected):
    tree = ts.algebra.Tree.from_parents(parents)
    weights = [None if p < 0 else body.weight() for p, body in zip(parents, bodies, strict=True)]
    model = ts.algebra.SKOModel.from_blocks(
        tree, weights, joint_maps, [b.spatial() for b in bodies]
    )
    for way in (
        algorithms.mass_matrix,
        algorithms.mass_matrix_by_jacobian,
        algorithms.mass_matrix_by_inverse_dynamics,
    ):
        torch.testing.assert_close(way(model), expected)


def rows(*entries):
    return torch.stack([torch.stack([torch.as_tensor(x) for x in row]) for row in entries])


def test_example_1_a_pendulum_on_a_moving_base():
    angle, L = 0.7, 1.3
    s = L * torch.tensor([torch.tensor(angle).sin(), -torch.tensor(angle).cos(), 0.0]).double()
    base, bob = Body(0, s=NONE), Body(1, s=s, d=NONE)
    slide = torch.cat([NONE, X])[None]
    across = bob.m * -s[1]
    expected = rows([base.m + bob.m + 0 * across, across], [across, bob.I[2, 2] + bob.m * L**2])
    check_example([-1, 0], [base, bob], [slide, turning(Z)], expected)


def test_example_2_a_double_pendulum():
    one, two = Body(2), Body(3)
    r1, r2 = tilde(one.s), tilde(two.d + two.s)
    s2 = tilde(two.s)
    both = one.I + two.I - one.m * r1 @ r1 - two.m * r2 @ r2
    expected = rows(
        [X @ both @ X, X @ (two.I - two.m * r2 @ s2) @ X],
        [X @ (two.I - two.m * s2 @ r2) @ X, X @ (two.I - two.m * s2 @ s2) @ X],
    )
    check_example([-1, 0], [one, two], [turning(X)] * 2, expected)


def test_example_3_a_satellite_with_two_arrays():
    hub, *arrays = bodies = [Body(4, d=NONE), Body(5), Body(6)]
    r = [hub.s, *(body.d + body.s for body in arrays)]
    turn = sum(b.I - b.m * tilde(x) @ tilde(x) for b, x in zip(bodies, r, strict=True))
    moment = sum(b.m * tilde(x) for b, x in zip(bodies, r, strict=True))
    mass = sum(b.m for b in bodies) * torch.eye(3, dtype=torch.float64)
    frame = torch.cat([torch.cat([turn, moment], 1), torch.cat([-moment, mass], 1)])
    columns, own = [], []
    for body, x in zip(arrays, r[1:], strict=True):
        s = tilde(body.s)
        columns.append(torch.cat([(body.I - body.m * tilde(x) @ s) @ X, -body.m * s @ X]))
        own.append(X @ (body.I - body.m * s @ s) @ X)
    side = torch.stack(columns, 1)
    expected = torch.cat(
        [torch.cat([frame, side], 1), torch.cat([side.mT, torch.diag(torch.stack(own))], 1)]
    )
    free = torch.eye(6, dtype=torch.float64)
    check_example([-1, 0, 0], bodies, [free, turning(X), turning(X)], expected)


def test_example_4_a_three_link_arm():
    one, two, three = bodies = [Body(7, d=NONE), Body(8), Body(9)]
    eta = tilde(two.d)
    r = [tilde(one.s), tilde(two.d + two.s), tilde(two.d + three.d + three.s)]
    s3 = tilde(three.s)
    outer = list(zip(bodies, r, strict=True))[1:]
    M11 = Z @ sum(b.I - b.m * x @ x for b, x in zip(bodies, r, strict=True)) @ Z
    M12 = Z @ sum(b.I - b.m * x @ (x - eta) for b, x in outer) @ X
    M22 = X @ sum(b.I - b.m * (x - eta) @ (x - eta) for b, x in outer) @ X
    M13 = Z @ (three.I - three.m * r[2] @ s3) @ X
    M23 = X @ (three.I - three.m * (r[2] - eta) @ s3) @ X
    M33 = X @ (three.I - three.m * s3 @ s3) @ X
    expected = rows([M11, M12, M13], [M12, M22, M23], [M13, M23, M33])
    check_example([-1, 0, 1], bodies, [turning(Z), turning(X), turning(X)], expected)


def test_departs_the_influence_matrix_is_triangular_only_when_parents_come_first():
    tree = ts.algebra.Tree.from_parents([1, -1])
    one = torch.eye(2, dtype=torch.float64)
    E = dense_sko(ts.algebra.SKOModel.from_blocks(tree, [one, None], [one, one], [one, one]))
    assert not E.mT.tril(-1).any() and E.any() and not (E @ E).any()
