"""Reduced finite-element models against their whole matrices, beams in closed form, and refusals."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.flexible.finite_elements import block, cantilever
from tests.flexible.test_beams import CANTILEVER, TABLE, at_rest, clamped, on_hub, spinning
from tests.refusals import assert_refused
from torchsko.mechanism.flexible.craig_bampton import condense, reduce_model

reduced = ts.FlexibleBody.from_finite_elements


def rigid(positions, d):
    """Rotation about the origin and translation of all nodes, by their definition."""
    R = np.zeros((len(positions), d, 6))
    for R_i, x in zip(R, positions, strict=True):
        R_i[:3, :3], R_i[:3, 3:] = np.cross(np.eye(3), x).T, np.eye(3)
        if d == 6:
            R_i[3:, :3] = np.eye(3)
    return R.reshape(-1, 6)


def frequencies(M, K, held, d):
    """Angular frequencies of the whole model, ascending [rad/s]."""
    free = np.setdiff1d(np.arange(len(M)), (d * np.array(held)[:, None] + np.arange(d)).reshape(-1))
    inner = np.linalg.inv(np.linalg.cholesky(M[np.ix_(free, free)]))
    return np.sqrt(np.linalg.eigvalsh(inner @ K[np.ix_(free, free)] @ inner.T))


def test_a_reduced_cantilever_has_the_frequencies_of_its_model_and_of_the_beam():
    M, K, x = cantilever()
    body = reduced(M, K, x, markers={"tip": 40}, root=0, modes=12)
    found = at_rest(clamped(body)).sqrt()
    wanted = torch.from_numpy(frequencies(M, K, [0], 6))
    assert (found[:4] / wanted[:4] - 1).abs().max() < 1e-4
    for plane in (found[0:4:2], found[1:4:2]):
        assert torch.allclose(plane, CANTILEVER[:2], rtol=1e-4)
    assert torch.allclose(found**2, torch.tensor(np.diag(body.stiffness)), rtol=1e-10)


def test_static_deflections_under_loads_at_the_marker_are_exact():
    M, K, x = cantilever()
    body = reduced(M, K, x, markers={"tip": 40}, root=0, modes=0)
    tip = np.concatenate([body.markers["tip"].shape, body.markers["tip"].slope])
    found = tip @ np.linalg.solve(body.stiffness, tip.T)
    wanted = np.diag([1e-4, 1 / 3, 1 / 3, 1, 1, 1])
    wanted[1, 5] = wanted[5, 1] = 1 / 2
    wanted[2, 4] = wanted[4, 2] = -1 / 2
    assert np.abs(found - wanted).max() < 1e-10


def inertia_at_rest(body) -> np.ndarray:
    mech = ts.MechanismBuilder("free").flexible_link("body", body).build(floating_base=True)
    return ts.mass_matrix(mech, mech.neutral()).numpy()


@pytest.mark.parametrize(
    ("model", "d", "root", "end"),
    [(cantilever(4), 6, [0], 4), (block((2, 1, 1)), 3, [0, 1, 2, 3], [8, 9, 10, 11])],
    ids=["beam", "block"],
)
def test_the_inertia_at_rest_is_that_of_the_consistent_mass_matrix(model, d, root, end):
    """Of rigid-body motions, of modes, and, of all modes together, their coupling (effective masses)."""
    M, K, x = model
    body = reduced(M, K, x, markers={"end": end}, root=root, modes=18, second_order=None)
    found, R = inertia_at_rest(body), rigid(x, d)
    assert np.abs(found[:6, :6] - R.T @ M @ R).max() < 1e-12
    assert np.abs(found[6:, 6:] - np.eye(24)).max() < 1e-9
    free = np.arange(len(M))[d * len(root) :]
    coupling = (M @ R)[free]
    wanted = coupling.T @ np.linalg.solve(M[np.ix_(free, free)], coupling)
    assert np.abs(found[:6, 6:] @ found[6:, :6] - wanted).max() < 1e-10


def test_condensed_points_have_the_inertia_of_all_points_at_any_deflection():
    M, K, x = block((6, 3, 3))
    ends = {"end": [*range(96, 112)]}
    whole = reduce_model(M, K, x, ends, range(16), 0)
    few = condense(whole, ends["end"])
    assert len(whole.masses) == 112
    assert len(few.masses) == 16 + 4 + 3 * 6
    mechs = [
        ts.MechanismBuilder("free")
        .flexible_link("body", ts.FlexibleBody(m.points, m.masses, m.shapes, m.stiffness))
        .build(floating_base=True)
        for m in (whole, few)
    ]
    q, qd = mechs[0].random_state(3)
    for verb in (lambda mech: ts.mass_matrix(mech, q), lambda mech: ts.bias_force(mech, q, qd)):
        expected, found = map(verb, mechs)
        assert (found - expected).abs().max() < 1e-12 * expected.abs().max()


def test_the_inertia_of_the_deformed_body_converges_with_the_square_of_the_size_of_elements():
    def deformed(count):
        M, K, x = cantilever(count)
        body = reduced(M, K, x, markers={"tip": count}, root=0, modes=0, second_order=None)
        mech = ts.MechanismBuilder("free").flexible_link("body", body).build(floating_base=True)
        load = body.markers["tip"].shape.T @ [0.0, 0.9, 0.6]
        eta = torch.tensor(np.linalg.solve(body.stiffness, load))
        return ts.mass_matrix(mech, torch.cat([mech.neutral()[:7], eta]))[:6, :6]

    limit = deformed(32)
    coarse, fine = ((deformed(count) - limit).abs().max() for count in (4, 8))
    assert fine < 1e-5
    assert coarse > 4 * fine


def test_a_reduced_block_keeps_the_frequencies_of_its_model():
    M, K, x = block()
    root, end = [*range(9)], [*range(36, 45)]
    body = reduced(M, K, x, markers={"end": end}, root=root, modes=30, second_order=None)
    found = at_rest(clamped(body)).sqrt()
    wanted = frequencies(M, K, root, 3)
    assert np.abs(found.numpy()[:3] / wanted[:3] - 1).max() < 1e-4


def test_nodes_of_a_marker_move_it_as_the_rigid_body_that_fits_them():
    """A force and a moment at the marker do the work of forces on its nodes."""
    M, K, x = block()
    root, end = [*range(9)], [*range(36, 45)]
    body = reduced(M, K, x, markers={"end": end}, root=root, modes=0, second_order=None)
    marker = body.markers["end"]
    assert np.allclose(marker.point, x[end].mean(0))
    free = np.setdiff1d(np.arange(len(M)), np.arange(27))
    fit = np.linalg.pinv(rigid(x[end] - marker.point, 3))
    rows = np.zeros((6, len(M)))
    rows[:, 108:] = fit
    wanted = rows[:, free] @ np.linalg.solve(K[np.ix_(free, free)], rows[:, free].T)
    motion = np.concatenate([marker.slope, marker.shape])
    found = motion @ np.linalg.solve(body.stiffness, motion.T)
    assert np.abs(found - wanted).max() < 1e-10 * np.abs(wanted).max()


def test_a_reduced_beam_on_a_hub_moves_as_the_beam():
    """Tip of a beam whose hub is driven by a constant torque for one second."""
    M, K, x = cantilever(8)
    bodies = [
        reduced(M, K, x, markers={"tip": 8}, root=0, modes=8),
        ts.FlexibleBody.beam(1.0, 1.0, EI_z=1.0, shapes=(0, 4)),
    ]
    runs = []
    for body in bodies:
        mech = on_hub(body, inertia=1.0)
        q = mech.neutral()
        tau = torch.zeros(mech.num_dof, dtype=mech.dtype)
        tau[0] = 1e-2
        run = ts.rollout(
            mech, ts.State(q, torch.zeros_like(tau)), tau, steps=20, dt=5e-2,
            method=ts.integrators.ImplicitMidpoint(),
        )  # fmt: skip
        runs.append(ts.frame_pose(mech, run.q, "beam/tip").position)
    assert (runs[0] - runs[1])[:, :2].abs().max() < 1e-3 * runs[1][:, 1].abs().max()


def test_spin_stiffens_a_line_of_beam_elements_as_the_beam():
    """The error of the mass points falls with the square of the size of elements."""
    errors = []
    for count in (10, 20):
        M, K, x = cantilever(count, EA=1e6, polar=1e-8)
        mech = on_hub(reduced(M, K, x, markers={"tip": count}, root=0, modes=16))
        lag, flap = spinning(mech, 6.0)[:2]
        assert abs(float(lag - (flap - 36))) < 1e-4
        errors.append(abs(float(flap.sqrt()) - TABLE[6]))
    assert errors[1] < min(3.5e-3, errors[0] / 3.5)


@pytest.mark.parametrize("turn", [np.eye(3), np.linalg.qr(np.arange(9).reshape(3, 3) % 5)[0]])
def test_second_order_shapes_of_a_line_are_those_of_its_geometric_stiffness(turn):
    """Of the matrix of a beam under a force at the tip, in any direction of the line."""
    count, h = 6, 1 / 6
    M, K, x = cantilever(count)
    N = np.array([[36, 3 * h, -36, 3 * h], [3 * h, 4 * h * h, -3 * h, -h * h],
                  [-36, -3 * h, 36, -3 * h], [3 * h, -h * h, -3 * h, 4 * h * h]]) / (30 * h)  # fmt: skip
    G = np.zeros_like(K)
    for start in range(0, 6 * count, 6):
        for rows, sign in (((1, 5, 7, 11), 1.0), ((2, 4, 8, 10), -1.0)):
            flip = np.array([1, sign, 1, sign])
            G[np.ix_(*[start + np.array(rows)] * 2)] += N * np.outer(flip, flip)
    force = np.zeros(len(K))
    force[6 * count] = 1.0
    whole = np.kron(np.eye(2 * count + 2), turn)
    M, K, G = (whole @ A @ whole.T for A in (M, K, G))
    options = {"markers": {"tip": count}, "root": 0, "modes": 2}
    bodies = [
        reduced(M, K, x @ turn.T, **options, **second)
        for second in ({}, {"second_order": [(whole @ force, G)]})
    ]
    line, loads = (body.markers["tip"].second_order for body in bodies)
    assert np.abs(line - loads).max() < 1e-9 * np.abs(line).max()


def test_spin_stiffens_a_block_as_its_geometric_stiffness():
    """A block that turns about z, against the model with all nodes: K + W^2 (K_G - M of x and y)."""
    counts, rate = (8, 1, 2), 20.0
    M, K, x = block(counts)
    root, end = [*range(6)], [*range(48, 54)]
    free = np.arange(18, len(M))
    across = np.tile([1.0, 1.0, 0.0], len(x))
    force = M @ (across * x.reshape(-1))
    moved = np.zeros(len(M))
    moved[free] = np.linalg.solve(K[np.ix_(free, free)], force[free])
    G = block(counts, moved=moved)[1]
    options = {"markers": {"end": end}, "root": root, "modes": 24}
    body = reduced(M, K, x, **options, second_order=[(force, G)])
    whole = K + rate**2 * (G - M * across)
    wanted = frequencies(M, whole, root, 3)[:2] ** 2
    found = spinning(on_hub(body), rate)[:2]
    assert np.abs(found.numpy() / wanted - 1).max() < 2e-3
    without = spinning(on_hub(reduced(M, K, x, **options, second_order=None)), rate)
    assert without[0] < 0


def test_a_sparse_matrix_is_read_as_its_array():
    class Sparse:
        def __init__(self, array):
            self.toarray = lambda: array

    M, K, x = cantilever(4)
    options = {"markers": {"tip": 4}, "root": 0, "modes": 1}
    found = reduced(Sparse(M), Sparse(K), x, **options)
    assert (found.shapes == reduced(M, K, x, **options).shapes).all()


def asymmetric(A):
    A = A.copy()
    A[0, 1] += 1.0
    return A


REFUSED = {
    "mass.*not symmetric": lambda M, K: {"mass": asymmetric(M)},
    "stiffness.*not symmetric": lambda M, K: {"stiffness": asymmetric(K)},
    "stiffness.*eigenvalue -": lambda M, K: {"stiffness": -K},
    r"stiffness.*shape \[24, 24\]": lambda M, K: {"stiffness": K[6:, 6:]},
    r"mass.*shape \[29, 29\]": lambda M, K: {"mass": M[1:, 1:]},
    "marker 'tip' has the node 9, and the model has 5": lambda M, K: {"markers": {"tip": 9}},
    "root has the node -1": lambda M, K: {"root": -1},
    "root has no node": lambda M, K: {"root": []},
    "have no mass": lambda M, K: {"mass": M * np.outer(*[np.arange(30) % 6 != 3] * 2)},
    "0 degrees of freedom when root": lambda M, K: {"root": [*range(5)]},
    "25 normal modes": lambda M, K: {"modes": 25},
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_model_that_does_not_fit_is_refused(what):
    M, K, x = cantilever(4)
    options = {
        "mass": M,
        "stiffness": K,
        "positions": x,
        "markers": {"tip": 4},
        "root": 0,
        "modes": 1,
    }
    assert_refused(lambda: reduced(**(options | REFUSED[what](M, K))), what)


def test_a_root_that_leaves_rigid_body_motions_is_refused_with_its_rank():
    M, K, x = block((2, 1, 1))
    options = {"markers": {"end": [8, 9, 10, 11]}, "modes": 1, "second_order": None}
    assert_refused(lambda: reduced(M, K, x, root=0, **options), "rank 30 of 33")
    assert_refused(lambda: reduced(M, K, x, root=[0, 1], **options), "rank 29 of 30")


def test_nodes_off_a_line_need_loads_for_second_order_shapes():
    M, K, x = cantilever(4)
    options = {"markers": {"tip": 4}, "root": 0, "modes": 1}
    bent = x + 0.01 * np.array([[0], [0], [1], [0], [0]])
    assert_refused(
        lambda: reduced(M, K, bent, **options), "up to 0.0141 m from a line.*second_order=None"
    )
    ends = options | {"root": [0, 4], "markers": {"middle": 2}}
    assert_refused(lambda: reduced(M, K, x, **ends), "between nodes of the root")
    assert_refused(lambda: reduced(M, K, x[[0, 1, 2, 3, 3]], **options), "at one place")
    load = (np.zeros(30), asymmetric(K))
    assert_refused(
        lambda: reduced(M, K, x, **options, second_order=[load]), "load 0.*not symmetric"
    )


def test_a_mass_off_the_line_of_the_nodes_is_refused():
    M, K, x = cantilever(4)
    J = np.eye(6)
    J[:3, 3:] = np.cross(np.eye(3), [0, 0.3, 0.0]).T
    M[24:, 24:] += J[:3].T @ J[:3]
    assert_refused(
        lambda: reduced(M, K, x, markers={"tip": 4}, root=0, modes=1), "inertia of the mass points"
    )
