"""Frequencies of beams at rest and in rotation against closed forms, and refusals of flexible bodies."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.refusals import assert_refused
from torchsko.mechanism.flexible.beam_shapes import BeamMotion, nodes, static_shapes

CANTILEVER = (
    torch.tensor([1.875104068711961, 4.694091132974175, 7.854757438237613], dtype=torch.float64)
    ** 2
)


def beam(shapes, basis="static", **options):
    """A beam of unit length, density and stiffness."""
    return ts.FlexibleBody.beam(1.0, 1.0, EI_y=1.0, EI_z=1.0, shapes=shapes, basis=basis, **options)


def clamped(body, **options) -> ts.Mechanism:
    return ts.MechanismBuilder("clamped").flexible_link("beam", body).build(**options)


def on_hub(body, inertia=0.0) -> ts.Mechanism:
    """A beam on a hub that turns about z."""
    about = (inertia * torch.eye(3)).tolist()
    builder = ts.MechanismBuilder("hub").link("hub", inertia=about).flexible_link("beam", body)
    builder.joint("axle", "revolute", child="hub").joint(
        "root", "fixed", parent="hub", child="beam"
    )
    return builder.build(gravity=(0, 0, 0))


def squares(M: Tensor, K: Tensor) -> Tensor:
    """Squares of the angular frequencies, ascending [rad^2/s^2]."""
    inner = torch.linalg.inv(torch.linalg.cholesky(M))
    return torch.linalg.eigvalsh(inner @ K @ inner.mT)


def at_rest(mech: ts.Mechanism) -> Tensor:
    K = torch.zeros(mech.num_dof, mech.num_dof, dtype=mech.dtype)
    modes = mech.dof_slice("beam_modes")
    K[modes, modes] = mech.modal_stiffness
    return squares(ts.mass_matrix(mech, mech.neutral()), K)


def spinning(mech: ts.Mechanism, rate: float) -> Tensor:
    """Squares of the frequencies of vibration of a beam whose hub turns at a constant rate."""
    q, modes = mech.neutral(), mech.dof_slice("beam_modes")
    qd = torch.zeros_like(q)
    qd[0] = rate

    def force(eta: Tensor) -> Tensor:
        return ts.inverse_dynamics(mech, torch.cat([q[:1], eta]), qd, torch.zeros_like(q))[modes]

    return squares(ts.mass_matrix(mech, q)[modes, modes], torch.func.jacrev(force)(q[1:]))


def test_clamped_shapes_have_the_frequencies_of_a_cantilever():
    found = at_rest(clamped(beam((3, 0), "clamped"))).sqrt()
    assert (found / CANTILEVER - 1).abs().max() < 1e-8


@pytest.mark.parametrize(("count", "error"), [(2, 5e-3), (4, 2e-6), (6, 1e-8)])
def test_static_shapes_converge_to_a_cantilever(count, error):
    found = at_rest(clamped(beam((0, count)))).sqrt()
    assert abs(found[0] / CANTILEVER[0] - 1) < error


def test_torsion_has_the_frequencies_of_a_shaft():
    shaft = ts.FlexibleBody.beam(
        1.0, 1.0, GJ=3.0, shapes=(0, 0, 3), polar_inertia=0.2, basis="clamped"
    )
    expected = (torch.arange(3).double() + 0.5) * torch.pi * (3.0 / 0.2) ** 0.5
    assert torch.allclose(at_rest(clamped(shaft)).sqrt(), expected, rtol=1e-10)


@pytest.mark.parametrize("inertia", [0.1, 1.0])
def test_a_beam_on_a_hub_has_the_frequencies_of_its_characteristic_equation(inertia):
    """Of the equation for shapes a sin + b cos + c sinh - b cosh with J b^3 (a + c) = 2 b at the hub."""

    def determinant(b: float) -> float:
        s, c, sh, ch = np.sin(b), np.cos(b), np.sinh(b), np.cosh(b)
        rows = [[-s, -c - ch, sh], [-c, s - sh, ch], [inertia * b**3, -2.0, inertia * b**3]]
        return float(np.linalg.det(np.array(rows) / [1.0, 1.0, 1.0]))

    roots, grid = [], np.linspace(0.5, 9.0, 400)
    for low, high in pairwise(grid):
        if determinant(low) * determinant(high) < 0:
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (
                    (low, middle) if determinant(low) * determinant(middle) <= 0 else (middle, high)
                )
            roots.append(low)  # fmt: skip
    found = at_rest(on_hub(beam((0, 6), "clamped"), inertia)).clamp(min=0).sqrt()
    for k in range(2):
        assert abs(float(found[1 + k]) / roots[k] ** 2 - 1) < 1e-6


TABLE = {1: 3.6817, 2: 4.1373, 3: 4.7973, 6: 7.3604, 12: 13.1702}
"""Frequency of the first flap mode by angular rate, by a Ritz solution of 14 terms; unit sqrt(EI / mL^4)."""


@pytest.mark.parametrize("rate", TABLE)
def test_spin_stiffens_a_beam(rate):
    flap = spinning(on_hub(beam((6, 0))), rate)[0]
    lag = spinning(on_hub(beam((0, 6))), rate)[0]
    assert abs(float(flap.sqrt()) - TABLE[rate]) < 3e-4
    assert abs(float(lag - (flap - rate**2))) < 1e-8


def test_without_second_order_shapes_a_beam_that_spins_fast_is_unstable():
    without = replace(beam((0, 6)), second_order=None)
    assert spinning(on_hub(without), 4.0)[0] < 0 < spinning(on_hub(beam((0, 6))), 4.0)[0]


def test_the_inertia_is_the_sum_of_squares_of_the_motions_of_its_points():
    """M = sum m J* J with J = [Phi + Gamma eta, -skew(x), 1], positive semidefinite at any deflection."""
    body = beam((2, 2))
    mech = ts.MechanismBuilder("free").flexible_link("beam", body).build(floating_base=True)
    for scale in (0.0, 0.1, 3.0):
        eta = scale * np.array([0.3, -0.2, 0.1, 0.4])
        M = np.zeros((10, 10))
        for m, x, U, second in zip(
            body.masses, body.points, body.shapes, body.second_order, strict=True
        ):
            at = x + U @ eta + (second @ eta) @ eta / 2
            turned = np.cross(np.eye(3), at).T
            J = np.concatenate([turned, np.eye(3), U + second @ eta], -1)
            M += m * J.T @ J
        q = torch.cat([mech.neutral()[:7], torch.tensor(eta)])
        assert (ts.mass_matrix(mech, q) - torch.tensor(M)).abs().max() < 1e-12
        assert np.linalg.eigvalsh(M).min() > -1e-13


def test_modal_damping_is_a_ratio_of_each_mode():
    mech = clamped(beam((3, 2)).damped(0.02))
    K, C = mech.modal_stiffness, mech.modal_damping
    M = ts.mass_matrix(mech, mech.neutral())
    system = torch.cat([torch.cat([torch.zeros_like(M), torch.eye(5).double()], -1),
                        -torch.linalg.solve(M, torch.cat([K, C], -1))])  # fmt: skip
    poles = torch.linalg.eigvals(system)
    assert torch.allclose(-poles.real / poles.abs(), torch.full((10,), 0.02).double(), atol=1e-10)


def thin(axis) -> ts.Mechanism:
    """A beam without torsion or thickness, which carries a body with an inertia about its axis or none."""
    builder = ts.MechanismBuilder("thin").flexible_link("beam", beam((1, 1)))
    builder.link("load", mass=0.2, inertia=(0.01 * torch.eye(3)).tolist())
    builder.joint("hub", "revolute", child="beam", axis=axis)
    builder.joint("swivel", "revolute", parent="beam/tip", child="load", axis=(1, 0, 0))
    return builder.build(gravity=(0, 0, 0))


def test_a_thin_beam_whose_inertia_about_its_axis_vanishes_moves_on_other_hinges():
    mech = thin((0, 0, 1))
    q, qd = mech.random_state(4, generator=torch.Generator().manual_seed(0))
    tau = torch.ones_like(qd)
    dense = torch.linalg.solve(ts.mass_matrix(mech, q), tau - ts.bias_force(mech, q, qd))
    for method in ("articulated", "composite"):
        found = ts.forward_dynamics(mech, q, qd, tau, method=method)
        assert (found - dense).abs().max() < 1e-11 * dense.abs().max()


def test_a_thin_beam_on_a_hinge_about_its_axis_is_refused_by_the_name_of_the_hinge():
    mech = thin((1, 0, 0))
    assert "hub" in mech.singular_joints
    q = mech.neutral()
    assert_refused(lambda: ts.forward_dynamics(mech, q, 0 * q, 0 * q), "'hub'")


POINTS = np.array([[0.2, 0, 0], [0.6, 0, 0], [1.0, 0, 0]])


def general(**changes):
    shapes = np.zeros((3, 3, 2))
    shapes[:, 1, 0], shapes[:, 1, 1] = POINTS[:, 0] ** 2, POINTS[:, 0] ** 3
    fields = {"points": POINTS, "masses": [1, 2, 1], "shapes": shapes, "stiffness": np.eye(2)}
    return ts.FlexibleBody(**(fields | changes))


def test_dependent_shapes_are_refused_by_name():
    shapes = general().shapes
    shapes = np.concatenate([shapes, 2 * shapes[..., :1] - shapes[..., 1:]], -1)
    assert_refused(lambda: general(shapes=shapes, stiffness=np.eye(3)), "rank 2 of 3.*'mode3'")


REFUSED = {
    "stiffness.*not symmetric": {"stiffness": [[1, 0.1], [0, 1]]},
    "stiffness.*eigenvalue -1": {"stiffness": [[1, 2], [2, 1]]},
    "'far'.*outside": {"markers": {"far": ts.Marker((2, 0, 0), np.zeros((3, 2)))}},
    "marker has the name '7'": {"markers": {"7": ts.Marker((1, 0, 0), np.zeros((3, 2)))}},
    r"masses.*shape \[2\]": {"masses": [1, 2]},
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_flexible_body_that_does_not_fit_is_refused(what):
    assert_refused(lambda: general(**REFUSED[what]), what)


def test_a_beam_that_does_not_fit_is_refused():
    assert_refused(lambda: beam((1, 0), markers={"far": 1.2}), "'far'.*outside of the beam")
    assert_refused(lambda: ts.FlexibleBody.beam(1.0, 1.0, EI_y=1.0, shapes=(1, 1)), "EI_z")
    assert_refused(lambda: beam((1, 0), "free"), "'free'")


def test_fewer_shortened_points_have_the_inertia_of_the_quadrature():
    """Products of masses, positions and shapes, and the moments of the foreshortening that spin acts on."""
    x, w = nodes(5)
    at = BeamMotion.of([static_shapes(2, 3), static_shapes(2, 2), static_shapes(1, 0)], x, 1.0)
    body = beam((3, 2))
    found = (body.masses, body.points[:, 0], body.shapes, body.second_order)
    sums = []
    for mass, place, shapes, second in (found, (w, x, at.shapes, at.second_order)):
        rows = np.concatenate([np.ones((5, 1)), place[:, None], shapes.reshape(5, -1)], -1)
        moments = np.einsum("k,ka,kinm->ainm", mass, rows[:, :2], second)
        sums.append(np.concatenate([((rows.T * mass) @ rows).ravel(), moments.ravel()]))
    assert np.abs(sums[0] - sums[1]).max() < 1e-14
    assert not body.second_order[2:].any() and not body.points[2:].any()
