"""The four worked examples of the Generalized Mass Matrix paper, against its printed closed forms.

Each example is built twice: as a mechanism in body frames by `MechanismBuilder`, and as the paper does, as
an SKO model in inertial axes about the joint points, where (with the paper's letters)

    v_i = [omega_i; d eta_i / dt],  A*(p(i), i) = D_i = [[e, 0], [-d~_i, e]],  H*(i) = G_i,
    M_i = [[I_i - m_i s~_i s~_i, m_i s~_i], [-m_i s~_i, m_i e]].

Masses, inertias, centers of mass, joint placements and configurations are random; at zero joint angles all
body frames are parallel to the inertial one. Joint 1 sits at the origin, as in the paper (eta_1 = 0).

DEPARTS, all of them loose ends of the print:
- Its introduction allows rotation about one axis only, the root on the ground; examples 1 and 3 then use a
  sliding and a free first body. Nothing else changes: G_1 = [0; e_x] and G_1 = e.
- Example 4 writes e_x for the axes of joints 2 and 3 without saying, as Example 3 does in (O2), that it
  turns with body 1. With e_x fixed in the inertial frame (P7) is wrong (see the counter-example).
- Example 3 calls its array rates theta_1, theta_2; by the paper's own rule (the inboard angle of b_i) they
  are theta_2, theta_3.
- It says that step 3 of the procedure, J^T Q, is of order N^2; on a chain it is of order N^3 even when all
  zeros of J are left out (see the counter-example).

Reference: Concurrent Dynamics International, *Generalized Mass Matrix of MBS*, 2018, examples 1-4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.strategies import agree, random_model
from torchsko.algebra.operators.composition import compose
from torchsko.algebra.recursions.articulated import operators
from torchsko.algorithms import mass_matrix, mass_matrix_by_jacobian, node_jacobian

BATCH = 5
EX, EY, EZ = torch.eye(3, dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)
ZERO = torch.zeros(3, 3, dtype=torch.float64)


@dataclass(frozen=True)
class Example:
    """One worked example at random configurations; vectors in inertial axes, `[batch, 3]`.

    Attributes:
        parents: parent of each body.
        m: masses.
        s: joint to center of mass.
        d: parent's joint to joint.
        I: inertia about the center of mass.
        G: free motion axes, `[batch, 6, d_i]`.
        printed: the closed form of the mass matrix, as printed.
        mech: the mechanism, with its configurations q.
        rates: takes the mechanism's velocities to the paper's, `[batch, n, n]`.
    """

    parents: list[int]
    m: list[float]
    s: list[Tensor]
    d: list[Tensor]
    I: list[Tensor]
    G: list[Tensor]
    printed: Tensor
    mech: ts.Mechanism
    q: Tensor
    rates: Tensor

    @property
    def D(self) -> list[Tensor]:
        """D_i = [[e, 0], [-d~_i, e]]."""
        return [blocks(EYE, ZERO, -tilde(d), EYE) for d in self.d]

    @property
    def M(self) -> list[Tensor]:
        """M_i about joint i."""
        return [
            blocks(inertia - m * tilde(s) @ tilde(s), m * tilde(s), -m * tilde(s), m * EYE)
            for m, s, inertia in zip(self.m, self.s, self.I, strict=True)
        ]

    @property
    def model(self) -> ts.algebra.SKOModel:
        """The SKO model in inertial axes: A(p(i), i) = D_i*, H = G*."""
        weights = [None if p < 0 else D.mT for p, D in zip(self.parents, self.D, strict=True)]
        tree = ts.algebra.Tree.from_parents(self.parents)
        return ts.algebra.SKOModel.from_blocks(tree, weights, [G.mT for G in self.G], self.M)


def tilde(v: Tensor) -> Tensor:
    """v x."""
    return torch.linalg.cross(v[..., None, :], -EYE.expand(*v.shape[:-1], 3, 3))


def blocks(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """[[a, b], [c, d]], batch dimensions broadcast."""
    a, b, c, d = torch.broadcast_tensors(a, b, c, d)
    return torch.cat([torch.cat([a, b], -1), torch.cat([c, d], -1)], -2)


def turn(axis: Tensor, angle: Tensor) -> Tensor:
    """Rotation by an angle `[batch]` about an axis."""
    return torch.linalg.matrix_exp(angle[:, None, None] * tilde(axis))


def rotational(axis: Tensor) -> Tensor:
    """[g; 0] as one column, `[batch, 6, 1]`."""
    return torch.cat([axis, torch.zeros_like(axis)], -1).expand(BATCH, 6)[..., None]


@dataclass(frozen=True)
class Bodies:
    """Random bodies in their own axes: mass, center of mass, inertia, joint in the parent."""

    m: list[float]
    s: list[Tensor]
    I: list[Tensor]
    d: list[Tensor]

    @staticmethod
    def random(count: int, g: torch.Generator) -> Bodies:
        def randn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        roots = [randn(3, 3) for _ in range(count)]
        # A second moment matrix C gives the inertia tr(C) e - C, physical whatever C is.
        moments = [0.1 * root @ root.mT for root in roots]
        return Bodies(
            m=(0.5 + torch.rand(count, generator=g)).double().tolist(),
            s=[0.3 * randn(3) for _ in range(count)],
            I=[C.trace() * EYE - C for C in moments],
            d=[torch.zeros(3).double()] + [randn(3) for _ in range(count - 1)],
        )

    def mechanism(self, parents: list[int], kinds: list[str], axes: list[Tensor]) -> ts.Mechanism:
        """The bodies on these joints, all frames parallel to the inertial one at zero angles."""
        builder = ts.MechanismBuilder("example")
        for k, (p, kind, axis) in enumerate(zip(parents, kinds, axes, strict=True)):
            builder.link(
                f"b{k}", mass=self.m[k], com=self.s[k].tolist(), inertia=self.I[k].tolist()
            )
            builder.joint(
                f"joint{k}", kind, child=f"b{k}", parent=None if p < 0 else f"b{p}",
                position=self.d[k].tolist(), axis=axis.tolist(),
            )  # fmt: skip
        return builder.build()

    def turned(self, parents: list[int], C: list[Tensor]) -> dict[str, list[Tensor]]:
        """s, d and I in inertial axes; C takes each body's axes to them, `[batch, 3, 3]`."""
        above = [EYE.expand(BATCH, 3, 3) if p < 0 else C[p] for p in parents]
        return {
            "s": [(R @ s[:, None])[..., 0] for R, s in zip(C, self.s, strict=True)],
            "d": [(R @ d[:, None])[..., 0] for R, d in zip(above, self.d, strict=True)],
            "I": [R @ inertia @ R.mT for R, inertia in zip(C, self.I, strict=True)],
        }


def angles(count: int, g: torch.Generator) -> list[Tensor]:
    return list(4 * torch.rand(count, BATCH, generator=g, dtype=torch.float64) - 2)


def dot(left: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
    """left^T matrix right, `[batch]`."""
    row, column = left.expand(BATCH, 3)[:, None, :], right.expand(BATCH, 3)[..., None]
    return (row @ matrix @ column)[:, 0, 0]


def table(rows: list[list[Tensor]]) -> Tensor:
    """Scalars `[batch]` as a matrix `[batch, r, c]`."""
    return torch.stack(
        [torch.stack([x.expand(BATCH) for x in row], -1) for row in rows], -2
    )  # fmt: skip


def pendulum_on_a_moving_base(g: torch.Generator) -> Example:
    """Example 1: a base that slides along e_x, a pendulum of length L that turns about e_z."""
    parents, bodies, (x, theta) = [-1, 0], Bodies.random(2, g), angles(2, g)
    L = 0.8
    bodies.s[:], bodies.d[1] = [torch.zeros(3).double(), -L * EY], torch.zeros(3).double()
    base = EYE.expand(BATCH, 3, 3)
    vectors = bodies.turned(parents, [base, turn(EZ, theta)])
    m1, m2 = (torch.tensor(m, dtype=torch.float64) for m in bodies.m)
    couple = m2 * L * torch.cos(theta)
    printed = table([[m1 + m2, couple], [couple, bodies.I[1][2, 2] + m2 * L**2]])
    sliding = torch.cat([torch.zeros(3).double(), EX]).expand(BATCH, 6)[..., None]
    mech = bodies.mechanism(parents, ["prismatic", "revolute"], [EX, EZ])
    return Example(
        parents, bodies.m, **vectors, G=[sliding, rotational(EZ)], printed=printed,
        mech=mech, q=torch.stack([x, theta], -1), rates=torch.eye(2).double(),
    )  # fmt: skip


def double_pendulum(g: torch.Generator) -> Example:
    """Example 2: two bodies that turn about e_x."""
    parents, bodies, (one, two) = [-1, 0], Bodies.random(2, g), angles(2, g)
    vectors = bodies.turned(parents, [turn(EX, one), turn(EX, one + two)])
    (s1, s2), d2, (I1, I2), (m1, m2) = vectors["s"], vectors["d"][1], vectors["I"], bodies.m
    r1, r2 = tilde(s1), tilde(d2 + s2)
    s2 = tilde(s2)
    printed = table(
        [
            [dot(EX, I1 + I2 - m1 * r1 @ r1 - m2 * r2 @ r2, EX), dot(EX, I2 - m2 * r2 @ s2, EX)],
            [dot(EX, I2 - m2 * s2 @ r2, EX), dot(EX, I2 - m2 * s2 @ s2, EX)],
        ]
    )
    mech = bodies.mechanism(parents, ["revolute", "revolute"], [EX, EX])
    return Example(
        parents, bodies.m, **vectors, G=[rotational(EX)] * 2, printed=printed,
        mech=mech, q=torch.stack([one, two], -1), rates=torch.eye(2).double(),
    )  # fmt: skip


def satellite_with_two_arrays(g: torch.Generator) -> Example:
    """Example 3: a free body, two arrays that turn about its x axis."""
    parents, bodies, (two, three) = [-1, 0, 0], Bodies.random(3, g), angles(2, g)
    mech = bodies.mechanism(parents, ["free", "revolute", "revolute"], [EX, EX, EX])
    quat = torch.nn.functional.normalize(
        torch.randn(BATCH, 4, generator=g, dtype=torch.float64), dim=-1
    )
    position = torch.randn(BATCH, 3, generator=g, dtype=torch.float64)
    q = torch.cat([position, quat, two[:, None], three[:, None]], -1)
    # The rotation of a unit quaternion w + v, as the square of its action.
    w, v = quat[:, :1, None], tilde(quat[:, 1:])
    C1 = EYE + 2 * w * v + 2 * v @ v
    vectors = bodies.turned(parents, [C1, C1 @ turn(EX, two), C1 @ turn(EX, three)])
    (s1, s2, s3), (_, d2, d3), inertias = vectors["s"], vectors["d"], vectors["I"]
    ex = (C1 @ EX[:, None])[..., 0]  # (O2)
    arms = [s1, d2 + s2, d3 + s3]
    total = sum(bodies.m)
    c = sum(m * r for m, r in zip(bodies.m, arms, strict=True)) / total
    body = sum(
        inertia - m * tilde(r) @ tilde(r)
        for m, r, inertia in zip(bodies.m, arms, inertias, strict=True)
    )
    # Columns and rows of the arrays, j = 2 and 3, as printed above and left of the diagonal.
    right, below = [], []
    for m, r, s, inertia in zip(bodies.m[1:], arms[1:], (s2, s3), inertias[1:], strict=True):
        r, s, e = tilde(r), tilde(s), ex[..., None]
        right.append(torch.cat([(inertia - m * r @ s) @ e, -m * s @ e], -2))
        below.append(torch.cat([e.mT @ (inertia - m * s @ r), e.mT @ (m * s)], -1))
    own = [
        dot(ex, inertia - m * tilde(s) @ tilde(s), ex)
        for m, s, inertia in zip(bodies.m[1:], (s2, s3), inertias[1:], strict=True)
    ]
    rigid = blocks(body, total * tilde(c), -total * tilde(c), total * EYE)
    zero = torch.zeros(BATCH, dtype=torch.float64)
    arrays = table([[own[0], zero], [zero, own[1]]])
    upper, lower = [rigid, *right], [torch.cat(below, -2), arrays]
    printed = torch.cat([torch.cat(upper, -1), torch.cat(lower, -1)], -2)
    # Ours: [omega; v] in body axes; the paper's in inertial ones.
    rates = torch.zeros(BATCH, 8, 8, dtype=torch.float64)
    rates[:, :3, :3] = rates[:, 3:6, 3:6] = C1
    rates[:, 6, 6] = rates[:, 7, 7] = 1
    free = torch.eye(6, dtype=torch.float64).expand(BATCH, 6, 6)
    return Example(
        parents, bodies.m, **vectors, G=[free, rotational(ex), rotational(ex)], printed=printed,
        mech=mech, q=q, rates=rates,
    )  # fmt: skip


def three_link_arm(g: torch.Generator, first: Tensor | None = None) -> Example:
    """Example 4: a turntable about e_z that carries two links turning about its x axis."""
    parents, bodies, (one, two, three) = [-1, 0, 1], Bodies.random(3, g), angles(3, g)
    one = one if first is None else first
    C1 = turn(EZ, one)
    C2 = C1 @ turn(EX, two)
    vectors = bodies.turned(parents, [C1, C2, C2 @ turn(EX, three)])
    # DEPARTS: the paper writes e_x; the axes of joints 2 and 3 are body 1's x axis.
    ex = (C1 @ EX[:, None])[..., 0]
    mech = bodies.mechanism(parents, ["revolute"] * 3, [EZ, EX, EX])
    return Example(
        parents, bodies.m, **vectors, G=[rotational(EZ), rotational(ex), rotational(ex)],
        printed=equation_p7(bodies.m, vectors, ex), mech=mech,
        q=torch.stack([one, two, three], -1), rates=torch.eye(3).double(),
    )  # fmt: skip


def equation_p7(m: list[float], vectors: dict[str, list[Tensor]], ex: Tensor) -> Tensor:
    """The closed form (P7) of the 3-link arm, with e_x as given."""
    (s1, s2, s3), (_, d2, d3), inertias = vectors["s"], vectors["d"], vectors["I"]
    r = [tilde(x) for x in (s1, d2 + s2, d2 + d3 + s3)]
    eta2, s3 = tilde(d2), tilde(s3)
    ahead = [x - eta2 for x in r]

    def total(bodies: tuple[int, ...], left: list[Tensor], right: list[Tensor]) -> Tensor:
        return sum((inertias[j] - m[j] * left[j] @ right[j] for j in bodies), start=ZERO)

    last = [ZERO, ZERO, s3]
    return table(
        [
            [
                dot(EZ, total((0, 1, 2), r, r), EZ),
                dot(EZ, total((1, 2), r, ahead), ex),
                dot(EZ, total((2,), r, last), ex),
            ],
            [
                dot(ex, total((1, 2), ahead, r), EZ),
                dot(ex, total((1, 2), ahead, ahead), ex),
                dot(ex, total((2,), ahead, last), ex),
            ],
            [
                dot(ex, total((2,), last, r), EZ),
                dot(ex, total((2,), last, ahead), ex),
                dot(ex, total((2,), last, last), ex),
            ],
        ]
    )


EXAMPLES: dict[str, Callable[[torch.Generator], Example]] = {
    "pendulum on a moving base": pendulum_on_a_moving_base,
    "double pendulum": double_pendulum,
    "satellite with two arrays": satellite_with_two_arrays,
    "3-link arm": three_link_arm,
}
NILPOTENCY = {
    "pendulum on a moving base": 2,
    "double pendulum": 2,
    "satellite with two arrays": 2,
    "3-link arm": 3,
}


@pytest.fixture(params=[(name, seed) for name in EXAMPLES for seed in range(3)], ids=str)
def example(request) -> Example:
    name, seed = request.param
    return EXAMPLES[name](torch.Generator().manual_seed(seed))


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 4.2", ts.mass_matrix)
def test_the_mechanism_has_the_printed_mass_matrix(example):
    MM = ts.mass_matrix(example.mech, example.q)
    agree(MM, example.rates.mT @ example.printed @ example.rates, 1e-12)


def test_the_sko_model_in_inertial_axes_has_the_printed_mass_matrix(example):
    agree(mass_matrix(example.model), example.printed, 1e-12)


@pytest.mark.shows(
    "Concurrent Dynamics 2018, Generalized Mass Matrix", "Procedure", mass_matrix_by_jacobian
)
@pytest.mark.shows(
    "Concurrent Dynamics 2018, Generalized Mass Matrix", "Procedure step 1", node_jacobian
)
def test_the_procedure_by_the_jacobian_gives_the_printed_mass_matrix(example):
    agree(mass_matrix_by_jacobian(example.model), example.printed, 1e-12)


def test_the_mass_matrix_operator_is_the_printed_factorization(example):
    agree(operators(example.model).mass_matrix.to_dense(), example.printed, 1e-12)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 11", ts.innovations)
def test_both_innovations_factorizations_invert_the_printed_mass_matrix(example):
    inverse = torch.linalg.inv(example.printed)
    agree(ts.innovations(example.model).inverse(), inverse, 1e-10)
    fac = ts.innovations(ts.assemble(example.mech, example.q))
    agree(example.rates @ fac.inverse() @ example.rates.mT, inverse, 1e-10)
    torch.testing.assert_close(fac.logdet(), torch.logdet(example.printed))


def test_the_mass_matrix_is_the_second_derivative_of_the_kinetic_energy(example):
    """Eqs. 6, 11 and 15: T = v^T M v / 2 with v = S Psi G qd, body by body at centers of mass."""
    ops = operators(example.model)
    J = (ops.spo.T @ ops.joint_map.T).to_dense().unflatten(-2, (-1, 6))

    def energy(qd: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for k, m in enumerate(example.m):
            v = (J[:, k] @ qd)[..., None]
            omega, joint = v[:, :3], v[:, 3:]
            center = joint - tilde(example.s[k]) @ omega
            twice = omega.mT @ example.I[k] @ omega + m * center.mT @ center
            total = total + twice.sum() / 2
        return total

    qd = torch.ones(example.printed.shape[-1], dtype=torch.float64)
    agree(torch.func.hessian(energy)(qd), example.printed.sum(0), 1e-12)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_influence_matrix_is_nilpotent_of_the_printed_degree(name):
    model = EXAMPLES[name](torch.Generator().manual_seed(0)).model
    Phi = operators(model).sko.T
    degree = NILPOTENCY[name]
    assert model.tree.nilpotency == degree
    assert compose(*[Phi] * (degree - 1)).to_dense().any()
    assert not compose(*[Phi] * degree).to_dense().any()


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("pendulum on a moving base", lambda e, D: [[e, 0], [e, e]]),  # (M3)
        ("double pendulum", lambda e, D: [[e, 0], [D[1], e]]),  # (N3)
        ("satellite with two arrays", lambda e, D: [[e, 0, 0], [D[1], e, 0], [D[2], 0, e]]),  # (O5)
        ("3-link arm", lambda e, D: [[e, 0, 0], [D[1], e, 0], [D[2] @ D[1], D[2], e]]),  # (P3)
    ],
)
def test_psi_is_the_printed_block_matrix(name, printed):
    example = EXAMPLES[name](torch.Generator().manual_seed(1))
    e = torch.eye(6, dtype=torch.float64).expand(BATCH, 6, 6)
    rows = [
        torch.cat([torch.zeros_like(e) if isinstance(x, int) else x.expand_as(e) for x in row], -1)
        for row in printed(e, example.D)
    ]
    agree(operators(example.model).spo.T.to_dense(), torch.cat(rows, -2), 1e-12)


@pytest.mark.parametrize(("angle", "holds"), [(0.0, True), (0.3, False), (1.5, False)])
def test_the_3_link_arm_as_printed_holds_only_when_its_first_joint_is_at_zero(angle, holds):
    """Read literally, e_x is an inertial axis in (P7); the axes of joints 2 and 3 turn with body 1."""
    first = torch.full((BATCH,), angle, dtype=torch.float64)
    example = three_link_arm(torch.Generator().manual_seed(0), first)
    vectors = {"s": example.s, "d": example.d, "I": example.I}
    literal = equation_p7(example.m, vectors, EX)
    wrong = (literal - ts.mass_matrix(example.mech, example.q)).abs().amax((-1, -2))
    assert bool((wrong < 1e-12).all()) if holds else bool((wrong > 1e-2).all())


def test_the_product_of_the_jacobian_and_its_momenta_is_of_third_order_on_a_chain():
    """The paper's Ans1 says second: doubling N would then cost four times as much, zeros left out."""

    def products(n: int) -> int:
        chain = random_model(ts.algebra.Tree.from_parents(range(-1, n - 1)), [2] * n, [1] * n)
        met = (node_jacobian(chain) != 0).any(-2).sum(-1)
        return int((met**2).sum())

    assert products(24) / products(12) > 7
