"""The Riccati equation and Jain's operator identities (Part II, Lemmas 7-10), one test each.

Every identity is written with the library's operators, as in the paper, on random trees and forests with
ragged blocks, singular weights, hinges without freedom, and fields whose batch dimensions differ. What
holds with an armature S is tested with and without it; `test_with_an_armature_...` state what replaces the
rest.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import agree, dense_riccati, random_model, sko_models, straightened
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.articulated import articulated_operators, operators
from torchsko.algebra.recursions.riccati import solve_riccati
from torchsko.algebra.topology.tree import Tree

ANY = sko_models(mixed=True, min_dofs=0)
BARE = sko_models(mixed=True, min_dofs=0, armature=False)
WITH_ARMATURE = sko_models(mixed=True, min_dofs=0, armature=True)


def letters(model: SKOModel) -> SimpleNamespace:
    """All operators by the papers' letters; I on nodes, J on dofs, At = A - I, Pt = psi - I."""
    m, r = operators(model), articulated_operators(model)
    return SimpleNamespace(
        E=m.sko, A=m.spo, H=m.joint_map, M=m.inertia, S=m.armature, I=m.identity, J=m.dof_identity,
        P=r.art_inertia, D=r.hinge_inertia, D_inv=r.hinge_compliance, G=r.gain, K=r.shifted_gain,
        tau=r.projection, tau_bar=r.coprojection, P_plus=r.art_inertia_plus,
        E_psi=r.art_sko, psi=r.art_spo,
        At=m.spo - m.identity, Pt=r.art_spo - m.identity,
    )  # fmt: skip


def same(left, right) -> None:
    agree(left.to_dense(), right.to_dense(), 1e-9)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 7", solve_riccati, articulated_operators)
@given(ANY)
def test_the_sweep_solves_the_riccati_equation(model):
    x = letters(model)
    same(x.P, x.M + x.E @ x.P_plus @ x.E.T)


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


@given(ANY)
def test_the_hinge_inertia_is_h_p_h(model):
    x = letters(model)
    same(x.D, x.H @ x.P @ x.H.T if x.S is None else x.H @ x.P @ x.H.T + x.S)


@given(ANY)
def test_the_gain_is_p_h_d_inverse(model):
    x = letters(model)
    same(x.G @ x.D, x.P @ x.H.T)
    same(x.G, x.P @ x.H.T @ x.D_inv)


@given(ANY)
def test_the_articulated_spo_inverts_identity_minus_its_sko(model):
    x = letters(model)
    same(x.psi @ (x.I - x.E_psi), x.I)


@given(ANY)
def test_p_plus_is_tau_bar_p_and_p_tau_bar_transposed(model):
    x = letters(model)
    same(x.P_plus, x.tau_bar @ x.P)
    same(x.P_plus, x.P @ x.tau_bar.T)


@given(BARE)
def test_p_plus_is_tau_bar_p_tau_bar_transposed(model):
    x = letters(model)
    same(x.P_plus, x.tau_bar @ x.P @ x.tau_bar.T)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 8", articulated_operators)
@given(BARE)
def test_m_is_p_minus_e_psi_p_e_psi(model):
    x = letters(model)
    same(x.M, x.P - x.E_psi @ x.P @ x.E_psi.T)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 8", articulated_operators)
@given(ANY)
def test_m_is_p_minus_e_a_p_e_psi(model):
    x = letters(model)
    same(x.M, x.P - x.E @ x.P @ x.E_psi.T)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 9", articulated_operators)
@given(BARE)
def test_h_g_is_the_identity(model):
    x = letters(model)
    same(x.H @ x.G, x.J)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 9", articulated_operators)
@given(BARE)
def test_h_tau_is_h_and_h_tau_bar_is_zero(model):
    x = letters(model)
    same(x.H @ x.tau, x.H)
    same(x.H @ x.tau_bar, x.H - x.H)


@given(BARE)
def test_projections_are_idempotent(model):
    x = letters(model)
    same(x.tau @ x.tau, x.tau)
    same(x.tau_bar @ x.tau_bar, x.tau_bar)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 9", articulated_operators)
@given(BARE)
def test_identity_plus_h_a_k_is_h_a_g(model):
    x = letters(model)
    same(x.J + x.H @ x.A @ x.K, x.H @ x.A @ x.G)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 9", articulated_operators)
@given(BARE)
def test_h_a_tau_bar_is_h_a_e_psi(model):
    x = letters(model)
    same(x.H @ x.A @ x.tau_bar, x.H @ x.A @ x.E_psi)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 9", articulated_operators)
@given(BARE)
def test_h_a_tau_is_h_a_psi_inverse(model):
    x = letters(model)
    same(x.H @ x.A @ x.tau, x.H @ x.A @ (x.I - x.E_psi))


@pytest.mark.shows("Jain 2011, Part II", "Lemma 9", articulated_operators)
@given(ANY)
def test_a_m_psi_transposed_is_p_plus_a_tilde_p_plus_p_psi_tilde(model):
    x = letters(model)
    same(x.A @ x.M @ x.psi.T, x.P + x.At @ x.P + x.P @ x.Pt.T)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(BARE)
def test_psi_m_psi_transposed_is_p_plus_psi_tilde_p_plus_p_psi_tilde(model):
    x = letters(model)
    same(x.psi @ x.M @ x.psi.T, x.P + x.Pt @ x.P + x.P @ x.Pt.T)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_psi_inverse_minus_a_inverse_is_k_h(model):
    x = letters(model)
    same((x.I - x.E_psi) - (x.I - x.E), x.K @ x.H)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_psi_inverse_a_is_identity_plus_k_h_a(model):
    x = letters(model)
    same((x.I - x.E_psi) @ x.A, x.I + x.K @ x.H @ x.A)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_a_psi_inverse_is_identity_plus_a_k_h(model):
    x = letters(model)
    same(x.A @ (x.I - x.E_psi), x.I + x.A @ x.K @ x.H)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_a_inverse_psi_is_identity_minus_k_h_psi(model):
    x = letters(model)
    same((x.I - x.E) @ x.psi, x.I - x.K @ x.H @ x.psi)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_psi_a_inverse_is_identity_minus_psi_k_h(model):
    x = letters(model)
    same(x.psi @ (x.I - x.E), x.I - x.psi @ x.K @ x.H)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_one_minus_h_psi_k_times_h_a_is_h_psi(model):
    x = letters(model)
    same((x.J - x.H @ x.psi @ x.K) @ x.H @ x.A, x.H @ x.psi)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_a_k_times_one_minus_h_psi_k_is_psi_k(model):
    x = letters(model)
    same(x.A @ x.K @ (x.J - x.H @ x.psi @ x.K), x.psi @ x.K)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_one_plus_h_a_k_times_h_psi_is_h_a(model):
    x = letters(model)
    same((x.J + x.H @ x.A @ x.K) @ x.H @ x.psi, x.H @ x.A)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_psi_k_times_one_plus_h_a_k_is_a_k(model):
    x = letters(model)
    same(x.psi @ x.K @ (x.J + x.H @ x.A @ x.K), x.A @ x.K)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(BARE)
def test_h_psi_m_psi_transposed_h_is_the_hinge_inertia(model):
    x = letters(model)
    same(x.H @ x.psi @ x.M @ x.psi.T @ x.H.T, x.D)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(ANY)
def test_a_m_a_transposed_decomposes_by_the_articulated_inertia(model):
    x = letters(model)
    innovation = x.A @ x.K @ x.D @ x.K.T @ x.A.T
    same(x.A @ x.M @ x.A.T, x.P + x.At @ x.P + x.P @ x.At.T + innovation)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 10", articulated_operators)
@given(BARE)
def test_a_m_a_transposed_h_factors_through_one_plus_a_k_h(model):
    x = letters(model)
    same(x.A @ x.M @ x.A.T @ x.H.T, (x.I + x.A @ x.K @ x.H) @ x.P @ x.A.T @ x.H.T)


@given(WITH_ARMATURE)
def test_with_an_armature_the_hinge_identities_pick_up_s_d_inverse(model):
    x = letters(model)
    same(x.H @ x.G, x.J - x.S @ x.D_inv)
    same(x.H @ x.tau_bar, x.S @ x.D_inv @ x.H)
    same(x.J + x.H @ x.A @ x.K, x.H @ x.A @ x.G + x.S @ x.D_inv)


@given(WITH_ARMATURE)
def test_with_an_armature_the_congruences_pick_up_g_s_g(model):
    x = letters(model)
    same(x.P_plus, x.tau_bar @ x.P @ x.tau_bar.T + x.G @ x.S @ x.G.T)
    same(x.M, x.P - x.E_psi @ x.P @ x.E_psi.T - x.K @ x.S @ x.K.T)


@given(WITH_ARMATURE)
def test_with_an_armature_the_innovations_share_the_hinge_inertia_with_it(model):
    x = letters(model)
    L = x.J - x.H @ x.psi @ x.K
    same(x.H @ x.psi @ x.M @ x.psi.T @ x.H.T + L @ x.S @ L.T, x.D)
    through = (x.I + x.A @ x.K @ x.H) @ x.P @ x.A.T @ x.H.T
    same(x.A @ x.M @ x.A.T @ x.H.T, through + x.A @ x.K @ x.S)


@given(straightened(sko_models(mixed=True, min_dofs=0)), st.booleans())
def test_what_is_written_along_hinges_is_what_the_recursion_comes_to(model, scalar):
    model = replace(model, edge_weight=replace(model.edge_weight, scalar=scalar))
    plain = solve_riccati(replace(model, straight=None))
    for mine, its in zip(vars(plain).values(), vars(solve_riccati(model)).values(), strict=True):
        for x, y in zip(mine, its, strict=True):
            agree(x, y, 1e-9)


@pytest.mark.parametrize("armature", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
def test_in_single_precision_inertia_across_a_hinge_is_gain_times_armature_along_it(
    aligned, armature
):
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


@given(sko_models(mixed=True, scalar=True))
def test_the_scalar_reading_gives_the_same_inertias(model):
    dense = replace(model, edge_weight=replace(model.edge_weight, scalar=False))
    one, other = solve_riccati(model), solve_riccati(dense)
    for mine, its in zip(vars(one).values(), vars(other).values(), strict=True):
        for x, y in zip(mine, its, strict=True):
            agree(x, y)
