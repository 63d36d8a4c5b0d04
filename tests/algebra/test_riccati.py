"""The Riccati equation and Jain's operator identities (Part II, Lemmas 7-10).

Every identity is written with the library's operators, as in the paper, on random trees and forests with
ragged blocks, singular weights, hinges without freedom, and fields whose batch dimensions differ. Models have
an armature S of the hinges or none; without it the identities are those of the paper.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.forms import in_form
from tests.strategies import agree, dense_riccati, random_model, sko_models, straightened
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.articulated import articulated_operators, operators
from torchsko.algebra.recursions.riccati import solve_riccati
from torchsko.algebra.topology.tree import Tree
from torchsko.linalg.scalar_form import scalar_form

ANY = sko_models(mixed=True, min_dofs=0)


def letters(model: SKOModel) -> SimpleNamespace:
    """Operators by the papers' letters; I on nodes, J on dofs, At = A - I, Pt = psi - I, L = J - H psi K."""
    m, r = operators(model), articulated_operators(model)
    S = r.hinge_inertia - r.hinge_inertia if m.armature is None else m.armature
    return SimpleNamespace(
        E=m.sko, A=m.spo, H=m.joint_map, M=m.inertia, S=S, I=m.identity, J=m.dof_identity,
        P=r.art_inertia, D=r.hinge_inertia, D_inv=r.hinge_compliance, G=r.gain, K=r.shifted_gain,
        tau=r.projection, tau_bar=r.coprojection, P_plus=r.art_inertia_plus,
        E_psi=r.art_sko, psi=r.art_spo,
        At=m.spo - m.identity, Pt=r.art_spo - m.identity,
        L=m.dof_identity - m.joint_map @ r.art_spo @ r.shifted_gain,
    )  # fmt: skip


@given(ANY)
def test_the_solution_is_the_fixed_point_of_the_dense_iteration(model):
    x, dense = letters(model), dense_riccati(model)
    for name in ("P", "D", "G", "K", "tau", "tau_bar", "P_plus", "E_psi", "psi"):
        agree(getattr(x, name).to_dense(), getattr(dense, name), 1e-9)


@given(ANY)
def test_articulated_inertias_are_symmetric_and_positive(model):
    x = letters(model)
    for operator in (x.P, x.D):
        matrix = operator.to_dense()
        agree(matrix, matrix.mT)
        if matrix.shape[-1]:
            assert bool((torch.linalg.eigvalsh(matrix) > 0).all())


IDENTITIES = {
    # Definitions, with the armature S of the hinges, which is zero in the papers.
    "D = H P H' + S": lambda x: (x.D, x.H @ x.P @ x.H.T + x.S),
    "G D = P H'": lambda x: (x.G @ x.D, x.P @ x.H.T),
    "G = P H' D^-1": lambda x: (x.G, x.P @ x.H.T @ x.D_inv),
    "psi (I - E_psi) = I": lambda x: (x.psi @ (x.I - x.E_psi), x.I),
    "P+ = tau_bar P": lambda x: (x.P_plus, x.tau_bar @ x.P),
    "P+ = P tau_bar'": lambda x: (x.P_plus, x.P @ x.tau_bar.T),
    "P+ = tau_bar P tau_bar' + G S G'": lambda x: (
        x.P_plus,
        x.tau_bar @ x.P @ x.tau_bar.T + x.G @ x.S @ x.G.T,
    ),
    "tau^2 = tau - G S D^-1 H": lambda x: (x.tau @ x.tau, x.tau - x.G @ x.S @ x.D_inv @ x.H),
    "tau_bar^2 = tau_bar - G S D^-1 H": lambda x: (
        x.tau_bar @ x.tau_bar,
        x.tau_bar - x.G @ x.S @ x.D_inv @ x.H,
    ),
    # Lemma 7
    "P = M + E P+ E'": lambda x: (x.P, x.M + x.E @ x.P_plus @ x.E.T),
    # Lemma 8
    "M = P - E_psi P E_psi' - K S K'": lambda x: (
        x.M,
        x.P - x.E_psi @ x.P @ x.E_psi.T - x.K @ x.S @ x.K.T,
    ),
    "M = P - E P E_psi'": lambda x: (x.M, x.P - x.E @ x.P @ x.E_psi.T),
    # Lemma 9
    "H G = J - S D^-1": lambda x: (x.H @ x.G, x.J - x.S @ x.D_inv),
    "H tau = H - S D^-1 H": lambda x: (x.H @ x.tau, x.H - x.S @ x.D_inv @ x.H),
    "H tau_bar = S D^-1 H": lambda x: (x.H @ x.tau_bar, x.S @ x.D_inv @ x.H),
    "J + H A K = H A G + S D^-1": lambda x: (
        x.J + x.H @ x.A @ x.K,
        x.H @ x.A @ x.G + x.S @ x.D_inv,
    ),
    "H A tau_bar = H A E_psi + S D^-1 H": lambda x: (
        x.H @ x.A @ x.tau_bar,
        x.H @ x.A @ x.E_psi + x.S @ x.D_inv @ x.H,
    ),
    "H A tau = H A psi^-1 - S D^-1 H": lambda x: (
        x.H @ x.A @ x.tau,
        x.H @ x.A @ (x.I - x.E_psi) - x.S @ x.D_inv @ x.H,
    ),
    "A M psi' = P + At P + P Pt'": lambda x: (
        x.A @ x.M @ x.psi.T,
        x.P + x.At @ x.P + x.P @ x.Pt.T,
    ),
    # Lemma 10
    "psi (M + K S K') psi' = P + Pt P + P Pt'": lambda x: (
        x.psi @ (x.M + x.K @ x.S @ x.K.T) @ x.psi.T,
        x.P + x.Pt @ x.P + x.P @ x.Pt.T,
    ),
    "psi^-1 - A^-1 = K H": lambda x: ((x.I - x.E_psi) - (x.I - x.E), x.K @ x.H),
    "psi^-1 A = I + K H A": lambda x: ((x.I - x.E_psi) @ x.A, x.I + x.K @ x.H @ x.A),
    "A psi^-1 = I + A K H": lambda x: (x.A @ (x.I - x.E_psi), x.I + x.A @ x.K @ x.H),
    "A^-1 psi = I - K H psi": lambda x: ((x.I - x.E) @ x.psi, x.I - x.K @ x.H @ x.psi),
    "psi A^-1 = I - psi K H": lambda x: (x.psi @ (x.I - x.E), x.I - x.psi @ x.K @ x.H),
    "L H A = H psi": lambda x: (x.L @ x.H @ x.A, x.H @ x.psi),
    "A K L = psi K": lambda x: (x.A @ x.K @ x.L, x.psi @ x.K),
    "(J + H A K) H psi = H A": lambda x: ((x.J + x.H @ x.A @ x.K) @ x.H @ x.psi, x.H @ x.A),
    "psi K (J + H A K) = A K": lambda x: (x.psi @ x.K @ (x.J + x.H @ x.A @ x.K), x.A @ x.K),
    "H psi M psi' H' + L S L' = D": lambda x: (
        x.H @ x.psi @ x.M @ x.psi.T @ x.H.T + x.L @ x.S @ x.L.T,
        x.D,
    ),
    "A M A' = P + At P + P At' + A K D K' A'": lambda x: (
        x.A @ x.M @ x.A.T,
        x.P + x.At @ x.P + x.P @ x.At.T + x.A @ x.K @ x.D @ x.K.T @ x.A.T,
    ),
    "A M A' H' = (I + A K H) P A' H' + A K S": lambda x: (
        x.A @ x.M @ x.A.T @ x.H.T,
        (x.I + x.A @ x.K @ x.H) @ x.P @ x.A.T @ x.H.T + x.A @ x.K @ x.S,
    ),
}
"""Both sides of identities of operators, by their formula; a prime is the transpose."""


@pytest.mark.shows("Jain 2011, Part II", "Lemma 7", solve_riccati)
@pytest.mark.shows("Jain 2011, Part II", "Lemmas 7-10", articulated_operators)
@given(ANY)
def test_operators_of_a_model_obey_the_lemmas_of_jain(model):
    x = letters(model)
    for formula, sides in IDENTITIES.items():
        left, right = (side.to_dense() for side in sides(x))
        try:
            agree(left, right, 1e-9)
        except AssertionError as error:
            raise AssertionError(formula) from error


@given(straightened(sko_models(mixed=True, min_dofs=0)), st.booleans())
def test_models_with_straight_hinges_have_the_same_solution(model, scalar):
    solve = in_form(scalar, solve_riccati)
    plain = solve(replace(model, straight=None))
    agree_by_level(plain, solve(model), 1e-9)


def agree_by_level(one, other, tolerance):
    """Assert equality of two solutions whose nodes have hinges of their own."""
    for name in ("art_inertia", "hinge_inertia", "gain", "art_inertia_plus"):
        for x, y in zip(getattr(one, name), getattr(other, name), strict=True):
            agree(x, y, tolerance)


@pytest.mark.parametrize("armature", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
def test_articulated_inertia_times_joint_map_is_gain_times_armature_in_float32(aligned, armature):
    tree = Tree.from_parents([-1, 0, 1, 1, 3, 4])
    model = random_model(tree, [6] * 6, [1, 2, 1, 3, 1, 2], (50,), 3, armature, orthonormal=True)
    if aligned:
        units = torch.eye(6, dtype=torch.float64).expand(6, 6, 6)[:, :3]
        H = torch.where(model.layout.dofs.padding[..., None], 0.0, units)
        model = replace(model, maps=H, straight=H, aligned=(True,) * 6)
    fields = ("maps", "straight", "inertia", "armature")
    single = {name: getattr(model, name) for name in fields}
    single = {name: None if x is None else x.float() for name, x in single.items()}
    model = replace(model, edge_weight=DenseEdges(model.edge_weight.dense().float()), **single)
    found, H = solve_riccati(model), model.layout.split_dofs(model.joint_map, -2)
    S = None if model.armature is None else model.layout.split_dofs(model.armature, -2)
    for depth, (P_plus, G) in enumerate(zip(found.art_inertia_plus, found.gain, strict=True)):
        wanted = torch.zeros_like(G) if S is None else G * S[depth].mT
        error = P_plus @ H[depth].mT - wanted
        size = float(P_plus.abs().max())
        assert float(error.abs().max()) <= (0.0 if aligned and not armature else 4e-7 * size)
        assert torch.equal(P_plus, P_plus.mT)


@given(sko_models(mixed=True))
def test_scalar_and_dense_operations_agree(model):
    agree_by_level(scalar_form()(solve_riccati)(model), solve_riccati(model), 1e-10)
