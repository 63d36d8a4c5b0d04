"""From a log to a robot: what is found is true, physical, and as sure as it says."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import texts
from tests.strategies import random_mechanism
from torchsko.identification.friction import (
    Coulomb,
    Dahl,
    Offset,
    SmoothCoulomb,
    TermInput,
    Viscous,
)
from torchsko.identification.friction.dahl import bristle_state
from torchsko.identification.regression.nearest_physical import nearest_physical
from torchsko.identification.regression.physical_least_squares import (
    MASS_WEIGHT,
    EntropicPrior,
    entropic_least_squares,
)
from torchsko.identification.results import html_report as report
from torchsko.identification.uncertainty.residuals import integrated_autocorrelation
from torchsko.spatial.inertia import pseudo_inertia

integrate = pytest.importorskip("scipy.integrate")


def arm(seed=4):
    """Three joints, and the same robot with other numbers."""
    truth = random_mechanism(["revolute"] * 3, [-1, 0, 1], seed=seed)
    zero = torch.zeros_like(truth.damping)
    truth = truth.replace(damping=zero, friction=zero, armature=zero, stiffness=zero)
    nominal = truth.replace(
        mass=1.2 * truth.mass, com=truth.com + 0.02, inertia=1.1 * truth.inertia
    )
    return truth, nominal


def log_of(truth, force, *, seconds=20.0, rate=400.0, seed=0, noise=0.0):
    """What sensors show of a robot with forces at its joints."""
    motion = ts.identification.exciting_trajectory(
        truth, generator=torch.Generator().manual_seed(seed)
    )
    t = torch.arange(int(seconds * rate), dtype=truth.dtype) / rate
    q, qd, qdd = motion(t)
    tau = ts.inverse_dynamics(truth, q, qd, qdd) + force(q, qd)
    tau = tau + noise * torch.from_numpy(np.random.default_rng(seed).normal(size=tau.shape))
    return ts.identification.Log(t.numpy(), q.numpy(), tau.numpy(), qd.numpy()), (q, qd, qdd, tau)


def friction(q, qd):
    return 0.3 * qd + 0.5 * (qd / 0.1).tanh() + 0.2


EVERY = torch.eye(70, dtype=torch.float64)
"""Of the Panda's numbers as if forces told each."""


def test_the_entropic_minimum_is_stationary_and_physical_however_small_the_prior():
    mech = ts.load(ts.robots.panda)
    prior = EntropicPrior.at(ts.inertial_parameters(mech), EVERY)
    g = torch.Generator().manual_seed(0)
    X = torch.randn(30, 70, generator=g, dtype=mech.dtype)
    # Data that no body explains: the minimum lies at the wall of the cone.
    y = torch.randn(30, generator=g, dtype=mech.dtype)
    for weight in (1.0, 1e-3):
        phi, _ = entropic_least_squares(X.mT @ X, X.mT @ y, prior, weight)
        assert (torch.linalg.eigvalsh(prior.pseudo(phi)) > 0).all()

        def objective(p, weight=weight):
            J = prior.pseudo(p)
            way = (prior.inverse_inertia * J).sum() - torch.logdet(J).sum()
            ratio = p.reshape(-1, 10)[:, 0] / mech.mass
            way = way + MASS_WEIGHT * (ratio - ratio.log()).sum()
            return (X @ p - y).square().sum() + weight * way

        slope = torch.func.grad(objective)(phi)
        H = torch.func.hessian(objective)(phi)
        decrement = slope @ torch.linalg.solve(H, slope)
        assert decrement < 1e-9 * objective(phi).abs()


@pytest.mark.parametrize(("size", "weight"), [(1.0, 1e-4), (10.0, 1e-2)])
def test_forces_of_unphysical_inertias_end_at_the_minimum(size, weight):
    """There Newton's method creeps along the wall of the cone, for more than a thousand steps."""
    mech = ts.load(ts.robots.panda)
    base, nominal = ts.base_parameters(mech), ts.inertial_parameters(mech)
    prior, g = EntropicPrior.at(nominal, base.matrix), torch.Generator().manual_seed(0)
    X = torch.randn(500, len(base), generator=g, dtype=mech.dtype)
    y = X @ (size * torch.randn(len(base), generator=g, dtype=mech.dtype))
    phi, steps = entropic_least_squares(X.mT @ X, y @ X, prior, weight)
    assert (torch.linalg.eigvalsh(prior.pseudo(phi)) > 0).all()
    assert steps < 150
    slope, curvature = prior.derivatives(phi)
    misses = X @ base.of(phi) - y
    g = 2 * misses @ X @ base.matrix + weight * slope
    H = 2 * base.matrix.mT @ X.mT @ X @ base.matrix + weight * curvature
    scale = H.diagonal().rsqrt()
    decrement = scale * g @ torch.linalg.solve(scale[:, None] * H * scale, scale * g)
    # Over its weight the objective is self-concordant: the minimum is no more than this below.
    assert decrement < 1e-4 * weight


@pytest.mark.parametrize(("size", "weight"), [(1e3, 1e-2), (1e5, 1e-4), (1e6, 1e-8)])
def test_without_information_the_divergence_alone_determines_the_estimate(size, weight):
    """Its slope is zero there, however large squares are beside its weight."""
    mech = ts.load(ts.robots.panda)
    base, nominal = ts.base_parameters(mech), ts.inertial_parameters(mech)
    prior, g = EntropicPrior.at(nominal, base.matrix), torch.Generator().manual_seed(3)
    X = size * torch.randn(500, len(base), generator=g, dtype=mech.dtype)
    y = X @ base.of(1.3 * nominal.flatten()) + torch.randn(500, generator=g, dtype=mech.dtype)
    phi, _ = entropic_least_squares(X.mT @ X, y @ X, prior, weight)
    free = torch.linalg.svd(base.matrix)[2][len(base) :]
    slope, curvature = prior.derivatives(phi)
    away = free.mT @ torch.linalg.solve(free @ curvature @ free.mT, free @ slope)
    assert away.abs().max() < 1e-9 * phi.abs().max()


def test_a_smaller_prior_leaves_smaller_squares_and_a_robot_farther_away():
    """As all minima of a sum with a weight. Forces ask for what no body is: next to the cone's wall."""
    mech = ts.load(ts.robots.panda)
    base, nominal = ts.base_parameters(mech), ts.inertial_parameters(mech)
    prior, g = EntropicPrior.at(nominal, base.matrix), torch.Generator().manual_seed(1)
    X = torch.randn(500, len(base), generator=g, dtype=mech.dtype)
    y = X @ torch.randn(len(base), generator=g, dtype=mech.dtype)
    found = [entropic_least_squares(X.mT @ X, y @ X, prior, 10.0**-k)[0] for k in range(7)]
    squares = [float((X @ base.of(phi) - y).square().sum()) for phi in found]
    apart = [float(prior.value(phi)) for phi in found]
    assert all(low < high for high, low in pairwise(squares))
    assert all(low < high for low, high in pairwise(apart))


def test_problems_side_by_side_are_solved_as_each_alone():
    """The slowest lies at the wall of the cone, the fastest is the nominal robot."""
    mech = ts.load(ts.robots.panda)
    prior, g = (
        EntropicPrior.at(ts.inertial_parameters(mech), EVERY),
        torch.Generator().manual_seed(2),
    )
    X = torch.randn(3, 60, 70, generator=g, dtype=mech.dtype)
    at = X @ prior.nominal.flatten()
    y = at + torch.tensor([0.0, 0.1, 10.0])[:, None] * torch.randn(3, 60, generator=g).to(at)
    A, c = X.mT @ X, (X.mT @ y[..., None])[..., 0]
    both, _ = entropic_least_squares(A, c, prior, 1e-2)
    for k in range(3):
        alone, _ = entropic_least_squares(A[k], c[k], prior, 1e-2)
        assert_close(both[k], alone, rtol=1e-7, atol=1e-7)
    assert_close(both[0], prior.nominal.flatten(), rtol=1e-9, atol=1e-9)
    _, steps = entropic_least_squares(A, c, prior, 1e-2, both)
    assert steps <= 2


def test_a_start_outside_of_the_cone_is_refused():
    prior = EntropicPrior.at(ts.inertial_parameters(ts.load(ts.robots.panda)), EVERY)
    A, c = torch.eye(70, dtype=torch.float64), torch.ones(70, dtype=torch.float64)
    with pytest.raises(ts.FitError, match="not positive definite"):
        entropic_least_squares(A, c, prior, 1.0, -prior.nominal.flatten())


def test_equations_beyond_all_numbers_are_refused():
    prior = EntropicPrior.at(ts.inertial_parameters(ts.load(ts.robots.panda)), EVERY)
    A = torch.full((70, 70), torch.inf, dtype=torch.float64)
    with pytest.raises(ts.FitError, match="orders of magnitude"):
        entropic_least_squares(A, A[0], prior, 1.0)


def test_forces_that_a_fit_does_not_predict_are_named():
    """Those in an order of joints that no check before the fit sees; a log of the robot has none."""
    truth, nominal = arm()
    log, _ = log_of(truth, friction, seconds=10.0, noise=0.05)
    turned = dataclasses.replace(log, tau=np.ascontiguousarray(log.tau[:, [1, 2, 0]]))
    (note,) = texts(ts.identification.identify(nominal, turned, cutoff=8.0), "unpredicted_force")
    assert all(name in note for name in truth.joint_names)
    assert not texts(ts.identification.identify(nominal, log, cutoff=8.0), "unpredicted_force")


def test_a_fit_finds_robot_and_friction_and_predicts_another_motion():
    truth, nominal = arm()
    log, _ = log_of(truth, friction, noise=0.02)
    fit = ts.identification.identify(nominal, log, cutoff=8.0)
    _, (q, qd, qdd, tau) = log_of(truth, friction, seed=5)
    spread = tau.std(0)
    mine = (fit.inverse_dynamics(q, qd, qdd, series=True) - tau).square().mean(0).sqrt()
    theirs = (ts.inverse_dynamics(nominal, q, qd, qdd) - tau).square().mean(0).sqrt()
    assert (mine < 0.01 * spread).all() and (mine < 0.05 * theirs).all()
    J = pseudo_inertia(fit.mechanism.mass, fit.mechanism.com, fit.mechanism.inertia)
    assert (torch.linalg.eigvalsh(J) > 0).all()
    rigid = ts.inertial_parameters(fit.mechanism).flatten()
    assert_close(rigid, fit.phi, rtol=1e-9, atol=1e-9)
    assert fit.errors["physical"].mean() < fit.errors["nominal"].mean()
    for word in ("joint0", "base parameters", "frequency 8 Hz (as given)"):
        assert word in str(fit)


TERMS = [Viscous(), SmoothCoulomb(0.1), Offset()]


def test_least_squares_without_noise_finds_the_true_parameters():
    """With the true terms the columns explain the forces: what is left is the filter's rounding."""
    truth, nominal = arm()
    log, _ = log_of(truth, friction, rate=1000.0)
    fit = ts.identification.identify(nominal, log, joint_terms=TERMS, method="ols", cutoff=20.0)
    true = fit.base.of(ts.inertial_parameters(truth).flatten())
    assert (fit.value - true).abs().max() < 3e-3 * true.abs().max()
    for x in fit.numbers:
        assert_close(x, x.new_tensor([0.2, 0.3, 0.5]), rtol=0.02, atol=0)


def test_the_fit_does_not_depend_on_how_the_log_is_cut_into_pieces(monkeypatch):
    truth, nominal = arm()
    log, _ = log_of(truth, friction, noise=0.02)
    found = []
    for piece in (10**6, 2000):
        monkeypatch.setattr("torchsko.identification.signals.preprocess.PIECE_SAMPLES", piece)
        found.append(
            ts.identification.identify(nominal, log, joint_terms=TERMS, cutoff=8.0, prior=1e-2).phi
        )
    assert_close(*found, rtol=1e-6, atol=1e-9)


def test_a_saved_fit_is_the_fit(tmp_path):
    truth, nominal = arm()
    log, (q, qd, qdd, _) = log_of(truth, friction, noise=0.02)
    fit = ts.identification.identify(
        nominal, log, joint_terms={"joint1": [Dahl(0.01), Viscous()]}, cutoff=8.0
    )
    assert fit.memory is not None and fit.memory.terms[1] == (Viscous(), Dahl(0.01))
    with pytest.warns(ts.RobotFileWarning, match=r"does not have the constant force of joint"):
        fit.save(tmp_path / "fit")
    again = ts.identification.Fit.load(tmp_path / "fit")
    for series in (True, False):
        mine, theirs = (f.inverse_dynamics(q, qd, qdd, series=series) for f in (fit, again))
        assert torch.equal(mine, theirs)
    assert str(fit) == str(again)
    # The robot is the memoryless model: offsets and smooth friction included.
    assert {type(x) for some in fit.terms for x in some} >= {Coulomb, SmoothCoulomb, Offset}
    for robot in (fit.mechanism, again.mechanism, ts.Dynamics(again.mechanism)):
        forces = ts.inverse_dynamics(robot, q, qd, qdd)
        assert_close(forces, fit.inverse_dynamics(q, qd, qdd), rtol=1e-9, atol=1e-9)
    assert_close(ts.load(tmp_path / "fit" / "robot.urdf").mass, fit.mechanism.mass)
    with pytest.raises(ts.FitError, match="has no fit"):
        ts.identification.Fit.load(tmp_path)
    (tmp_path / "fit" / "fit.pt").write_bytes(b"nothing")
    with pytest.raises(ts.FitError, match=r"fit\.pt is not a fit"):
        ts.identification.Fit.load(tmp_path / "fit")


def test_bristles_follow_dahls_law():
    t = np.linspace(0, 4, 4001)
    x, xd = np.sin(2 * t) * t, 2 * np.cos(2 * t) * t + np.sin(2 * t)
    way = 0.05

    def law(s, z):
        v = 2 * np.cos(2 * s) * s + np.sin(2 * s)
        return (v - abs(v) * z) / way

    solved = integrate.solve_ivp(law, (0, 4), [0.0], t_eval=t, rtol=1e-8, atol=1e-10, max_step=1e-3)
    # The derivative is zero where it starts, so the state starts at zero.
    mine = bristle_state(torch.from_numpy(x / way)[:, None], torch.from_numpy(np.sign(xd))[:, None])
    assert_close(mine[:, 0], torch.from_numpy(solved.y[0]), rtol=0, atol=2e-3)


def test_dry_friction_with_memory_is_found_where_it_is():
    truth, nominal = arm()

    def memory(q, qd):
        series = TermInput(q, qd, qd, qd)
        return 0.8 * Dahl(0.03).basis(series) + 0.1 * qd

    log, _ = log_of(truth, memory, noise=0.01)
    fit = ts.identification.identify(nominal, log, cutoff=8.0)
    assert fit.memory is not None
    assert all(any(isinstance(term, Dahl) for term in some) for some in fit.memory.terms)


def test_correlated_errors_count_as_fewer():
    g = torch.Generator().manual_seed(0)
    white = torch.randn(200_000, 1, generator=g, dtype=torch.float64)
    assert integrated_autocorrelation(white) < 1.1
    lasting = white.unfold(0, 20, 1).mean(-1)  # correlations 1 - k / 20: their sum is 20
    assert_close(
        integrated_autocorrelation(lasting), torch.tensor([20.0]).double(), rtol=0.1, atol=0
    )


def test_unphysical_nominal_inertias_are_made_physical_and_named():
    truth, nominal = arm()
    flat = torch.diag(torch.tensor([1.0, 1.0, 5.0], dtype=truth.dtype))
    bad = nominal.inertia.clone()
    bad[1] = flat * nominal.inertia[1].diagonal().max()
    robot = nominal.replace(inertia=bad)
    near, names = nearest_physical(robot)
    assert names == ("body1",)
    assert (torch.linalg.eigvalsh(pseudo_inertia(near.mass, near.com, near.inertia)) > 0).all()
    assert torch.equal(near.inertia[[0, 2]], robot.inertia[[0, 2]])
    log, _ = log_of(truth, friction)
    fit = ts.identification.identify(robot, log, joint_terms=TERMS, cutoff=8.0, prior=1e-2)
    (note,) = texts(fit, "unphysical_inertia")
    assert "body1" in note


def test_options_out_of_range_are_named():
    truth, nominal = arm()
    log, _ = log_of(truth, friction, seconds=4.0)
    many = nominal.replace(mass=nominal.mass.expand(2, -1))
    for mech, options, match in (
        (nominal, {"method": "lstsq"}, "no method is named 'lstsq'"),
        (nominal, {"prior": 0.0}, "prior is 0.0"),
        (nominal, {"folds": 1}, "folds is 1"),
        (nominal, {"joint_terms": {"elbow": []}}, "no joint is named 'elbow'"),
        (nominal, {"joint_terms": {nominal.body_names[2]: []}}, "names the body 'body2'"),
        (nominal, {"joint_terms": {nominal.body_names[2] + ".mass": []}}, "names the body 'body2'"),
        (nominal, {"joint_terms": [Coulomb]}, "is not a term"),
        (many, {}, "is a batch of 2 robots"),
    ):
        with pytest.raises(ts.FitError, match=match) as caught:
            ts.identification.identify(mech, log, **options)
        assert str(caught.value).count("\n") == 2


def test_long_names_of_joints_lie_inside_of_a_reports_figures(monkeypatch):
    """The first joint's was cut off, and errors had the room that names left."""
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    truth, nominal = arm()
    fit = ts.identification.identify(
        nominal, log_of(truth, friction, seconds=8.0)[0], joint_terms=TERMS, prior=1e-3
    )
    names = [f"robot_arm_left_front_shoulder_pitch_joint_actuator_{k}" for k in range(3)]
    monkeypatch.setattr(ts.Mechanism, "dof_names", names)
    for title, _, draw in report.FIGURES:
        figure = Figure()
        draw(figure, fit)
        FigureCanvasAgg(figure).draw()
        for ax in figure.axes:
            for text in (*ax.get_xticklabels(), *ax.get_yticklabels(), ax.title):
                box = text.get_window_extent().transformed(figure.transFigure.inverted())
                assert not text.get_text() or (box.x0 >= 0 and box.y0 >= 0), (title, text)
            assert ax.get_position().height * figure.get_size_inches()[1] > 1.0, title


@pytest.mark.nightly
def test_base_parameters_lie_within_what_is_reported_over_repetitions():
    """50 logs with quantized encoders, no velocities and noisy torques: 99% within three deviations."""
    truth, nominal = arm()
    encoder, z = 2 * np.pi / 2**17, []
    for seed in range(50):
        log, _ = log_of(truth, friction, seed=seed, noise=0.1)
        q = np.round(log.q / encoder) * encoder
        log = ts.identification.Log(log.t, q, log.tau)
        fit = ts.identification.identify(nominal, log, joint_terms=TERMS, cutoff=8.0, prior=1e-4)
        true = fit.base.of(ts.inertial_parameters(truth).flatten())
        z.append((fit.value - true) / fit.deviation)
    z = torch.stack(z)
    assert (z.abs() < 3).double().mean() >= 0.99
    # Nor are they larger than they have to be.
    assert 0.6 < z.square().mean().sqrt() < 1.3


def test_a_light_joint_on_a_heavy_one_is_fitted_to_its_own_noise():
    """A sensor's tilt on a lift: a million times less force, and as much noise. Its friction was lost."""
    builder = ts.MechanismBuilder("lift")
    builder.link("mast", mass=300.0)
    builder.joint("lift", "prismatic", child="mast", axis=(0, 0, 1))
    builder.link(
        "scanner", mass=0.05, com=(0.02, 0, 0), inertia=np.diag([3e-5, 4e-5, 4e-5]).tolist()
    )
    builder.joint("tilt", "revolute", parent="mast", child="scanner", axis=(0, 1, 0))
    truth = builder.build()
    force = torch.tensor([3000.0, 0.003]).to(truth.mass)
    log, (q, qd, qdd, _) = log_of(truth, lambda q, qd: 0.3 * force * (qd / 0.05).tanh())
    size = np.array([100.0, 1e-4])
    tau = log.tau + size * np.random.default_rng(0).normal(size=log.tau.shape)
    fit = ts.identification.identify(
        truth.replace(mass=1.1 * truth.mass), ts.identification.Log(log.t, log.q, tau, log.qd)
    )
    off = fit.inverse_dynamics(q, qd, qdd) - torch.from_numpy(log.tau)
    assert (off.square().mean(0).sqrt() < 0.08 * torch.from_numpy(size)).all()


def test_a_report_has_figures_of_all_joints_of_a_walking_robot(monkeypatch, tmp_path):
    """Of a quadruped that floats the hind legs were left out without a word: its base took their place."""
    import matplotlib.figure as figures

    builder = ts.MechanismBuilder("floating")
    for name in ("body", "leg", "foot"):
        builder.link(name, mass=1.0, com=(0.1, 0, 0), inertia=np.diag([0.02, 0.03, 0.03]).tolist())
    builder.joint("root", "free", child="body")
    builder.joint("hip", "revolute", parent="body", child="leg", axis=(0, 1, 0))
    builder.joint(
        "knee", "revolute", parent="leg", child="foot", position=(0.2, 0, 0), axis=(0, 1, 0)
    )
    mech = builder.build()
    t = torch.arange(1000, dtype=mech.dtype) / 100
    w = 0.7 + torch.rand(8, generator=torch.Generator().manual_seed(0), dtype=t.dtype)
    turn = w * t[:, None]
    qd, qdd = 0.8 * turn.cos(), -0.8 * w * turn.sin()
    q = [mech.neutral()]
    for a, b in pairwise(qd):
        q.append(ts.integrate(mech, q[-1], (a + b) / 2 / 100))
    q = torch.stack(q)
    tau = ts.inverse_dynamics(mech, q, qd, qdd) + 0.3 * qd * (torch.arange(8) > 5)
    log = ts.identification.Log(t.numpy(), q.numpy(), tau.numpy(), qd.numpy())
    fit = ts.identification.identify(
        mech, log, joint_terms={"root": [], "hip": [Viscous()], "knee": [Viscous()]}
    )

    def titles(draw):
        figure = figures.Figure()
        draw(figure, fit)
        return [ax.get_title() for ax in figure.axes if ax.get_title()]

    assert titles(report.draw_friction) == ["hip", "knee"]
    assert len(titles(report.draw_forces)) == 8
    monkeypatch.setattr(report, "MAX_DOFS", 7)
    report.write_report(fit, tmp_path / "report.html")
    assert "The first 7 dofs; not shown: knee." in (tmp_path / "report.html").read_text("utf-8")


def test_a_report_plots_friction_at_the_speeds_of_the_log(
    tmp_path,
):
    """A limit of 0 in the file left an empty picture, one of 1000 hid dry friction; so did offsets alone."""
    figures = pytest.importorskip("matplotlib.figure")
    truth, nominal = arm()
    has = torch.tensor([1.0, 1.0, 0.0]).to(truth.mass)
    log, (_, qd, *_) = log_of(truth, lambda q, qd: has * friction(q, qd), seconds=8.0)
    limit = torch.tensor([0.0, 1000.0, 5.0]).to(nominal.velocity_limit)
    names = nominal.joint_names
    learn = {names[0]: TERMS, names[1]: TERMS, names[2]: [Offset()]}
    nominal = nominal.replace(velocity_limit=limit)
    fit = ts.identification.identify(nominal, log, joint_terms=learn, prior=1e-3)
    fit.save(tmp_path)
    for some in (fit, ts.identification.Fit.load(tmp_path)):
        figure = figures.Figure()
        report.draw_friction(figure, some)
        shown = [ax for ax in figure.axes if ax.get_title()]
        assert [ax.get_title() for ax in shown] == list(names[:2])
        for ax, fastest in zip(shown, qd.abs().amax(0).tolist(), strict=False):
            v, force = ax.lines[0].get_data()
            assert 0.9 * fastest < max(v) < 1.1 * fastest and min(v) == -max(v)
            assert np.allclose(force, friction(None, torch.as_tensor(v)) - 0.2, atol=0.02)
    bare = ts.identification.identify(nominal, log, joint_terms=(), prior=1e-3)
    report.write_report(bare, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "No joint has friction terms." in page and page.count("<img") == 3


def test_a_report_pictures_base_parameters_in_the_order_of_its_text():
    figures = pytest.importorskip("matplotlib.figure")
    truth, nominal = arm()
    fit = ts.identification.identify(
        nominal, log_of(truth, friction, seconds=8.0)[0], joint_terms=TERMS, prior=1e-3
    )
    figure = figures.Figure()
    report.draw_base(figure, fit)
    (ax,) = figure.axes
    heights = [ax.transData.transform((0, k))[1] for k in ax.get_yticks()]
    assert heights == sorted(heights, reverse=True)
    labels = [x.get_text() for x in ax.get_yticklabels()]
    assert all(a.startswith(b) for a, b in zip(fit.base.names, labels, strict=True))
