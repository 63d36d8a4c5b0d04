"""Bodies that hang on one of their markers, against the same bodies in their first frame."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.func import grad, jacfwd

import torchsko as ts
from tests.flexible.test_beams import TABLE, beam, on_hub, spinning, squares
from tests.refusals import assert_refused


def body() -> ts.FlexibleBody:
    """A beam with bending and torsion, a rigid part at its frame, and a turned marker at its tip."""
    made = ts.FlexibleBody.beam(
        1.0, 1.3, EI_y=3.0, EI_z=2.0, GJ=2.5, shapes=(2, 3, 1), polar_inertia=0.02,
        markers={"middle": 0.4, "tip": 1.0},
    )  # fmt: skip
    J, c = np.diag([0.02, 0.03, 0.04, 0.5, 0.5, 0.5]), np.cross(np.eye(3), [0.02, 0.05, 0]).T
    J[:3, 3:], J[3:, :3], J[:3, :3] = 0.5 * c, 0.5 * c.T, J[:3, :3] + 0.5 * c @ c.T
    turn = np.linalg.qr(np.arange(9).reshape(3, 3) % 5)[0]
    turn = turn * np.linalg.det(turn)
    markers = made.markers | {"tip": replace(made.markers["tip"], rotation=turn)}
    return replace(made, core_inertia=J, markers=markers).damped(0.01)


def frequencies(body: ts.FlexibleBody) -> torch.Tensor:
    """Squares of the frequencies of the free body, which include six zeros."""
    mech = ts.MechanismBuilder("free").flexible_link("body", body).build(floating_base=True)
    n = mech.num_dof
    K = torch.zeros(n, n, dtype=mech.dtype)
    K[6:, 6:] = mech.modal_stiffness
    return squares(ts.mass_matrix(mech, mech.neutral()), K)


@pytest.mark.parametrize("marker", ["middle", "tip"])
def test_the_frequencies_of_a_free_body_do_not_depend_on_its_frame(marker):
    expected = frequencies(body())
    found = frequencies(body().framed_at(marker))
    assert (found - expected).abs().max() < 1e-11 * expected.max()


def test_a_frame_changed_twice_is_the_first_frame():
    first = body()
    again = first.framed_at("tip", origin="root").framed_at("root", origin="tip")
    k = len(first.masses)
    for name in ("points", "shapes", "slopes", "second_order", "masses", "inertias"):
        old, new = getattr(first, name), getattr(again, name)
        assert np.abs(new[:k] - old).max() < 1e-12 * max(1.0, np.abs(old).max())
    for name, marker in first.markers.items():
        for part, old in vars(marker).items():
            assert np.abs(getattr(again.markers[name], part) - old).max() < 1e-11


@pytest.mark.parametrize("rate", [2, 6])
def test_a_beam_that_spins_about_its_other_end_is_the_same_beam(rate):
    """Polynomials of one degree are complete at both ends, so the second-order shapes have to agree."""
    expected = spinning(on_hub(beam((5, 5))), rate)
    found = spinning(on_hub(beam((5, 5)).framed_at("tip")), rate)
    assert (found - expected).abs().max() < 1e-9 * expected.max()
    assert abs(float(found[1].sqrt()) - TABLE[rate]) < 3e-4


def test_positions_agree_to_second_order_for_one_deflection():
    """Of all points relative to the marker: the difference is of third order."""
    first = body()
    mechs = [
        ts.MechanismBuilder("body").flexible_link("body", x).build(floating_base=True)
        for x in (first, first.framed_at("tip"))
    ]
    g = torch.Generator().manual_seed(0)
    direction, errors = torch.randn(6, generator=g, dtype=torch.float64), []
    for size in (4e-3, 2e-3):
        q = torch.cat([mechs[0].neutral()[:7], size * direction])
        frame = ts.frame_pose(mechs[0], q, "body/tip")
        middle = ts.frame_pose(mechs[0], q, "body/middle").position
        expected = frame.rotation.mT @ (middle - frame.position)
        errors.append((ts.frame_pose(mechs[1], q, "body/middle").position - expected).norm())
    assert errors[1] < errors[0] / 7.5 and errors[0] < 1e-4


def test_the_bias_of_an_arm_on_a_marker_is_that_of_lagrange_equations():
    builder = ts.MechanismBuilder("arm").flexible_link(
        "link", body().framed_at("tip", origin="end")
    )
    builder.link("load", mass=0.4, com=(0.1, 0, 0), inertia=(0.01 * torch.eye(3)).tolist())
    builder.joint("hinge", "revolute", child="link", axis=(0, 1, 0))
    builder.joint("wrist", "revolute", parent="link/end", child="load", axis=(0, 1, 1))
    mech = builder.build()
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(1))
    M_q = jacfwd(lambda q: ts.mass_matrix(mech, q))(q)
    force = torch.einsum("ijk,k,j->i", M_q, qd, qd) - torch.einsum("jki,j,k->i", M_q, qd, qd) / 2
    force = force + grad(lambda q: ts.potential_energy(mech, q))(q)
    modes = mech.joints.modes[1]
    force = force.index_add(0, modes, mech.modal_damping @ qd[modes])
    assert (ts.bias_force(mech, q, qd) - force).abs().max() < 1e-12 * force.abs().max()


def test_unknown_markers_and_names_in_use_are_refused():
    assert_refused(lambda: body().framed_at("end"), "'end'.*tip")
    assert_refused(lambda: body().framed_at("tip", origin="middle"), "another marker 'middle'")


def test_a_joint_above_a_marker_is_refused():
    builder = ts.MechanismBuilder("arm").flexible_link("link", body())
    builder.joint("hinge", "revolute", child="link/tip", axis=(0, 1, 0))
    assert_refused(builder.build, "link/tip.*framed_at")
