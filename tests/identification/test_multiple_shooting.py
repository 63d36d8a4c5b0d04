"""Multiple shooting identifies robots from noisy positions at low sampling rates."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import texts
from tests.identification.test_fit import TERMS, arm, log_of
from tests.learn.simulated import simulated
from torchsko.identification.estimators.shooting import ForwardModel, ShootingEstimator, Windows
from torchsko.identification.estimators.shooting import shooting_estimator as estimate
from torchsko.identification.estimators.shooting.anderson import AndersonHistory
from torchsko.identification.estimators.shooting.block_elimination import eliminate_chain
from torchsko.identification.estimators.shooting.sensitivities import linearize, simulate_windows
from torchsko.identification.friction import (
    Coulomb,
    Offset,
    Ratio,
    RotorInertia,
    SmoothCoulomb,
    Viscous,
)
from torchsko.identification.regression.normal_equations import RegressionProblem, TimeFolds
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import Solution
from torchsko.identification.signals.filter_settings import design_filters

NOISE = 1e-3
NUMBERS = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)  # offset, viscous, smooth Coulomb


def friction(q, qd):
    return 0.3 * qd + 0.5 * np.tanh(qd / 0.1) + 0.2


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """An arm, its nominal robot, and noise-free positions and forces at 100 Hz."""
    truth, nominal = arm()
    t, q, _, tau = simulated(truth, friction, tmp_path_factory.mktemp("arm"))
    return truth, nominal, ts.identification.Log(t, q, tau, held=True)


def noisy(log, seed=0):
    shown = log.q + np.random.default_rng(seed).normal(0, NOISE, log.q.shape)
    return ts.identification.Log(log.t, shown, log.tau, held=log.held)


@pytest.fixture(scope="module")
def progress():
    """Texts and shares that the fit by shooting reports."""
    return []


@pytest.fixture(scope="module")
def fits(measured, progress):
    _, nominal, log = measured
    calls = {"physical": None, "wls": None, "shooting": lambda *x: progress.append(x)}
    return {
        method: ts.identification.identify(
            nominal, noisy(log), joint_terms=TERMS, method=method, progress=call
        )
        for method, call in calls.items()
    }


def off(fit, truth):
    true = fit.base.of(ts.inertial_parameters(truth).flatten())
    return fit.value - true, true.norm()


@pytest.mark.nightly
def test_positions_alone_give_the_robot_within_three_deviations(measured, fits):
    fit = fits["shooting"]
    away, _ = off(fit, measured[0])
    assert (away.abs() < 3 * fit.deviation).all()
    for x, s in zip(fit.numbers, fit.deviations, strict=True):
        assert ((x - NUMBERS).abs() < 3 * s).all()
        assert (s < 0.02 * NUMBERS).all()


def test_noise_in_positions_does_not_bias_as_it_does_least_squares(measured, fits):
    away, size = off(fits["shooting"], measured[0])
    for method in ("physical", "wls"):
        assert away.norm() < 0.1 * off(fits[method], measured[0])[0].norm()
    assert away.norm() < 1e-3 * size


def test_the_noise_is_estimated(fits):
    (line,) = texts(fits["shooting"], "shooting")
    told = [float(x) for x in line.split("residuals ")[1].split(" (rms)")[0].split(", ")]
    assert_close(np.array(told), np.full(3, NOISE), rtol=0.05, atol=0)


def parts(nominal, log, terms=tuple(TERMS), window=None):
    """Inputs of the shooting estimator."""
    settings, base = design_filters(log), ts.base_parameters(nominal)
    problem = RegressionProblem.of(nominal, terms)
    folds = TimeFolds(float(log.t[0]), float(log.t[-1]), 5)
    windows = Windows.of(problem.mech, log, settings, folds, window)
    every = (tuple(range(len(terms))),) * nominal.num_dof
    return ForwardModel.of(problem, every), windows, base


@pytest.mark.nightly
def test_it_converges_from_the_nominal_robot_without_friction(measured, fits):
    _, nominal, log = measured
    forward, windows, base = parts(nominal, noisy(log))
    phi = ts.inertial_parameters(nominal)
    nothing = Solution(
        phi.flatten(), base.of(phi.flatten()), (phi.new_zeros(3),) * 3, ((0, 1, 2),) * 3
    )
    shot = ShootingEstimator(forward, windows, base, EntropicPrior.at(phi, base.matrix), 5, nothing)
    shot.run(fits["shooting"].info.prior_weight, lambda step, share: None)
    gap = (base.of(shot.now.phi) - fits["shooting"].value).abs()
    assert (gap < 0.2 * fits["shooting"].deviation).all()


@pytest.mark.nightly
def test_sensitivities_are_finite_differences(measured):
    _, nominal, log = measured
    forward, windows, base = parts(nominal, log, (*TERMS, RotorInertia(), Ratio()))
    phi, g = ts.inertial_parameters(nominal).flatten(), torch.Generator().manual_seed(0)
    numbers = torch.rand(len(forward.slots), generator=g, dtype=phi.dtype)
    x = windows.starts()
    here = simulate_windows(forward.at(phi, numbers), windows, x, 20)
    near, h = linearize(forward.at(phi, numbers), windows, here).seen[windows.real], 1e-6
    size, lead = x.shape[-1], len(base)

    def differences(change):
        plus, minus = (simulate_windows(*change(s * h), 20).error for s in (-1, 1))
        return ((plus - minus) / (2 * h)).flatten(2)[windows.real]

    unit = torch.eye(size).to(x)
    for k in (0, 4):
        found = differences(lambda s, k=k: (forward.at(phi, numbers), windows, x + s * unit[k]))
        assert_close(found, near[..., k], rtol=1e-3, atol=1e-3 * found.abs().max().item())
    S = base.representative
    for k in (2, 7):
        found = differences(lambda s, k=k: (forward.at(phi + s * S[:, k], numbers), windows, x))
        mine = near[..., size + k]
        assert_close(found, mine, rtol=1e-3, atol=2e-3 * found.abs().max().item())
    for k in (0, 1, 3, 4):  # viscous, smooth Coulomb, a rotor, a ratio
        step = torch.zeros_like(numbers).index_fill(0, torch.tensor(k), 1.0)
        found = differences(lambda s, d=step: (forward.at(phi, numbers + s * d), windows, x))
        mine = near[..., size + lead + k]
        assert_close(found, mine, rtol=1e-3, atol=2e-3 * found.abs().max().item())


def test_steps_are_of_order_two_and_stable_where_friction_is_stiff(measured):
    _, nominal, log = measured
    forward, windows, _ = parts(nominal, log)
    phi = ts.inertial_parameters(nominal).flatten()
    at = forward.at(phi, NUMBERS.repeat(3))
    ends = [
        simulate_windows(at, windows, windows.starts(), n).states[:, :, -1] for n in (2, 4, 8, 64)
    ]
    error = [(x - ends[-1])[windows.real].norm() for x in ends[:-1]]
    assert 3.3 < error[0] / error[1] < 5 and 3.3 < error[1] / error[2] < 5
    # Steep friction stops a velocity within a step, in the motion and in what becomes of small changes.
    stiff = forward.at(phi, torch.tensor([1e6, 0.0, 0.0], dtype=phi.dtype).repeat(3))
    path = simulate_windows(stiff, windows, windows.starts(), 1)
    before = windows.starts()[..., 3:].abs().max()
    assert path.states[:, :, 1:, 3:].abs().max() < 1e-2 * before
    near = linearize(stiff, windows, path)
    later = near.seen.unflatten(2, (-1, 3))[:, :, 2:, :, 3:6]
    assert later.abs().max() < 1e-4  # a start's velocity has moved the robot by next to nothing


def light(mass=1.0, com=0.0):
    """Three links, each with a fifth of the mass of its parent."""
    builder = ts.MechanismBuilder()
    for k in range(3):
        size = 0.2**k
        at = np.array([-0.003, 0.03, 0.03]) * size**0.5 + [com, 0.0, com]
        inertia = np.diag([2e-4, 1.5e-4, 1e-4]) * size**1.6
        builder.link(f"link{k}", mass=0.15 * size * mass, com=at, inertia=inertia * mass)
        builder.joint(
            f"joint{k}", "revolute", child=f"link{k}", axis=((0, 1, 0), (1, 0, 0))[k % 2],
            position=(0, 0, 0.06), lower=-2.0, upper=2.0, velocity=1.0,
            **({"parent": f"link{k - 1}"} if k else {}),
        )  # fmt: skip
    return builder.build()


@pytest.fixture(scope="module")
def damped():
    """Light links with friction time constants of microseconds, positions and forces at 100 Hz."""
    log, _ = log_of(light(), lambda q, qd: 0.3 * qd + 0.02, seconds=4.0, rate=100.0)
    return ts.identification.Log(log.t, log.q, log.tau)


@pytest.mark.nightly
def test_light_links_under_heavy_damping_are_found_within_three_deviations(damped):
    fit = ts.identification.identify(
        light(1.2, 0.003),
        noisy(damped),
        joint_terms=[Viscous(), Offset()],
        method="shooting",
        prior=1e-2,
    )
    away, _ = off(fit, light())
    assert (away.abs() < 3 * fit.deviation).all()
    for x, s in zip(fit.numbers, fit.deviations, strict=True):
        assert ((x - torch.tensor([0.02, 0.3], dtype=x.dtype)).abs() < 3 * s).all()
        assert s[1] < 1e-2 * 0.3


def test_sensitivities_of_light_links_under_heavy_damping_are_finite_differences(damped):
    forward, windows, base = parts(light(), damped, (Offset(), Viscous()))
    phi = ts.inertial_parameters(light()).flatten()
    numbers = torch.tensor([0.02, 0.3], dtype=phi.dtype).repeat_interleave(3)[[0, 3, 1, 4, 2, 5]]
    at = forward.at(phi, numbers)
    # Forces jump from a sample to the next, as those of controllers do.
    windows = replace(windows, held=True)
    x, h = windows.starts(), 1e-6
    near = linearize(at, windows, simulate_windows(at, windows, x, 8)).seen[windows.real]
    size = x.shape[-1]
    for k in range(6):
        step = torch.zeros_like(numbers).index_fill(0, torch.tensor(k), h)
        plus, minus = (
            simulate_windows(forward.at(phi, numbers + s * step), windows, x, 8).error
            for s in (-1, 1)
        )
        found = ((plus - minus) / (2 * h)).flatten(2)[windows.real]
        mine = near[..., size + len(base) + k]
        assert_close(found, mine, rtol=1e-2, atol=1e-2 * found.abs().max().item())


def test_initial_velocities_of_chains_are_weighted_by_the_standard_error_of_a_parabola(measured):
    """The estimate has a weight of three standard errors, and none if velocities are measured."""
    _, nominal, log = measured
    _, windows, _ = parts(nominal, log)
    many = windows.t[:1, :1].expand(2000, -1, -1)
    t = many[:, :, :-1, None].expand(-1, -1, -1, 3)
    noise = torch.randn(t.shape, generator=torch.Generator().manual_seed(0), dtype=t.dtype)
    y = 0.3 + 0.7 * t - 0.4 * t.square() + NOISE * noise
    chains = replace(windows, t=many, seen=y)
    seen = torch.full((3,), NOISE**2, dtype=t.dtype)
    spread = (chains.starts()[:, 0, 3:] - 0.7).square().mean(0)
    known = chains.known_rates(seen)
    assert_close(1 / known.amax(0), 9 * spread, rtol=0.15, atol=0.0)
    # A motion that bends more is no noise: it is held the less.
    bent = replace(chains, seen=y + 200 * t**3).known_rates(seen)
    off = replace(chains, seen=y + 200 * t**3).starts()[:, 0, 3:] - 0.7
    assert (bent < 0.1 * known.amax(0)).all() and (off.square() * bent).mean() < 1
    both = replace(chains, seen=torch.cat([y, y], -1))
    assert not both.known_rates(seen.repeat(2)).any()


def test_a_wrong_transmission_ratio_is_estimated(measured):
    truth, nominal, log = measured
    shown = ts.identification.Log(log.t, log.q * np.array([1.0, 1.02, 1.0]), log.tau, held=True)
    learn = {name: [*TERMS, Ratio()] for name in nominal.joint_names}
    fit = ts.identification.identify(
        nominal, noisy(shown), joint_terms=learn, method="shooting", prior=1e-4
    )
    places = [some.index(Ratio()) for some in fit.terms]
    rows = zip(fit.numbers, fit.deviations, places, [0.0, 0.02, 0.0], strict=True)
    for x, s, k, true in rows:
        assert (x[k] - true).abs() < 3 * s[k] and s[k] < 2e-3
    assert (off(fit, truth)[0].abs() < 3 * fit.deviation).all()
    with pytest.raises(ts.FitError, match='Pass method="shooting"'):
        ts.identification.identify(nominal, shown, joint_terms=learn)


@pytest.mark.parametrize("windows", [1, 2, 7])
def test_a_chain_is_eliminated_as_a_dense_system_is(windows):
    g = torch.Generator().manual_seed(windows)
    n, p, chains = 4, 3, 2
    J = torch.randn(chains, 3, windows, 6, n, generator=g, dtype=torch.float64)
    A = torch.zeros(chains, 6 * windows * 2, n * windows, dtype=torch.float64)
    for w in range(windows):
        A[:, 6 * w : 6 * w + 6, n * w : n * w + n] = J[:, 0, w]
        if w + 1 < windows:
            rows = slice(6 * (windows + w), 6 * (windows + w) + 6)
            A[:, rows, n * w : n * w + n] = J[:, 1, w]
            A[:, rows, n * (w + 1) : n * (w + 2)] = J[:, 2, w]
    B = torch.randn(chains, A.shape[1], p + 1, generator=g, dtype=torch.float64)
    H, R, S = A.mT @ A, A.mT @ B, B.mT @ B

    def block(a, b):
        return H[:, n * a : n * a + n, n * b : n * b + n]

    D = torch.stack([block(w, w) for w in range(windows)], 1)
    O = [block(w, w + 1) for w in range(windows - 1)]
    O = torch.stack(O, 1) if O else D[:, :0]
    found = eliminate_chain(D, O, R.unflatten(1, (windows, n)), S)
    assert_close(found.left, S - R.mT @ torch.linalg.solve(H, R))
    z = torch.randn(p, generator=g, dtype=torch.float64)
    full = torch.cat([z, -torch.ones_like(z[:1])])
    x = -torch.linalg.solve(H, R @ full)
    assert_close(found.states(z).flatten(1), x)
    P, (own, cross) = torch.linalg.inv(H), found.covariances()
    for w in range(windows):
        assert_close(own[:, w], P[:, n * w : n * w + n, n * w : n * w + n])
        if w + 1 < windows:
            assert_close(cross[:, w], P[:, n * w : n * w + n, n * (w + 1) : n * (w + 2)])


def test_windows_contain_no_gap_and_no_invalid_force(measured):
    _, nominal, log = measured
    keep = np.r_[0:500, 560:2000]
    tau = np.array(log.tau)
    tau[1000, 1] = np.nan
    broken = ts.identification.Log(log.t[keep], log.q[keep], tau[keep])
    _, windows, _ = parts(nominal, broken)
    assert (torch.diff(windows.t)[windows.real] < 0.011).all()
    starts = windows.seen[..., 0, :][windows.real]
    first = torch.from_numpy(log.q)
    at = [int((first == row).all(-1).nonzero()[0]) for row in starts]
    assert not any(a <= 1000 <= a + 10 for a in at)
    assert not any(490 < a < 560 for a in at) and len(at) == len(set(at)) > 180
    assert bool(windows.good[~windows.real].any()) is False


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_huge_values_count_as_missing(measured):
    """Squares overflowed, and no outlier of that joint was found."""
    _, nominal, log = measured

    def windows(value):
        q, tau = np.array(log.q), np.array(log.tau)
        tau[1000, 1], tau[1500, 1], q[700, 0] = value, 1e6, value
        return parts(nominal, ts.identification.Log(log.t, q, tau))[1]

    none, huge = windows(np.nan), windows(1e200)
    for name in ("t", "real", "seen", "good"):
        assert torch.equal(getattr(none, name), getattr(huge, name))


def test_unsupported_terms_and_joints_are_named(measured):
    _, nominal, log = measured
    for options, match in (
        ({"joint_terms": [Viscous(), Coulomb()]}, "does not support Coulomb of joint 'joint0'"),
        ({"joint_terms": [SmoothCoulomb()], "window": 0.01}, "window is 0.01 s"),
    ):
        with pytest.raises(ts.FitError, match=match) as caught:
            ts.identification.identify(nominal, log, method="shooting", **options)
        assert str(caught.value).count("\n") == 2
    dog = ts.load(ts.robots.quadruped, floating_base=True)
    q, qd = (x.numpy() for x in dog.random_state(500))
    flying = ts.identification.Log(np.arange(500) / 100, q, 0 * qd, qd)
    with pytest.raises(ts.FitError, match="are a quaternion"):
        ts.identification.identify(dog, flying, method="shooting", joint_terms=[Viscous()])


@pytest.mark.nightly
def test_a_panda_from_positions_alone(tmp_path):
    truth = ts.load(ts.robots.panda)
    zero = torch.zeros_like(truth.damping)
    truth = truth.replace(damping=zero, friction=zero)
    size = np.array([0.5] * 4 + [0.2] * 3)

    def force(q, qd):
        return size * (0.6 * qd + np.tanh(qd / 0.1) + 0.3)

    t, q, _, tau = simulated(truth, force, tmp_path, fine=20)
    log = noisy(ts.identification.Log(t, q, tau, held=True))
    nominal = truth.replace(
        mass=1.2 * truth.mass, com=truth.com + 0.02, inertia=1.1 * truth.inertia
    )
    found = {
        method: ts.identification.identify(
            nominal, log, joint_terms=TERMS, method=method, prior=1e-4
        )
        for method in ("physical", "shooting")
    }
    away, size = off(found["shooting"], truth)
    assert away.norm() < 0.1 * off(found["physical"], truth)[0].norm()
    z = away / found["shooting"].deviation
    assert (z.abs() < 3).double().mean() > 0.95


@pytest.mark.nightly  # by day how they widen deviations: test_robust_covariance.py
def test_autocorrelated_residuals_count_with_their_information(tmp_path):
    """Elastic joints and delayed velocities autocorrelate residuals at 500 Hz."""
    truth, nominal = arm()
    t, q, qd, tau = simulated(truth, friction, tmp_path, seconds=8.0, rate=500.0, fine=2)
    phase = np.arange(q.shape[1])
    swings = (
        2e-3 * np.sin(2 * np.pi * 9 * t[:, None] + phase) * np.sin(2 * np.pi * 0.7 * t)[:, None]
    )
    late = np.stack([np.interp(t - 0.01, t, x) for x in qd.T], -1)
    shown = noisy(ts.identification.Log(t, q + swings, tau, held=True)).q
    log = ts.identification.Log(t, shown, tau, late, held=True)
    fit = ts.identification.identify(nominal, log, joint_terms=TERMS, method="shooting", cutoff=8.0)
    away, size = off(fit, truth)
    assert away.norm() < 0.01 * size
    for x in fit.numbers:
        assert_close(x[1:], NUMBERS[1:], rtol=0.2, atol=0.0)


def test_unstable_friction_is_not_used_as_a_start(measured):
    """A fit to little data can be unstable. The iteration then starts at the nominal robot."""
    _, nominal, log = measured
    forward, windows, base = parts(nominal, noisy(log))
    phi = ts.inertial_parameters(nominal)
    wild = phi.new_tensor([0.0, -1e4, 0.0])
    shot = ShootingEstimator(
        forward,
        windows,
        base,
        EntropicPrior.at(phi, base.matrix),
        5,
        Solution(phi.flatten(), base.of(phi.flatten()), (wild,) * 3, ((0, 1, 2),) * 3),
    )
    assert shot.now.path.states.isfinite().all() and not shot.now.coefficients.any()


def test_forces_that_drive_the_robot_away_within_a_window_are_refused(measured):
    _, nominal, log = measured
    forward, windows, base = parts(nominal, replace(log, tau=1e28 * log.tau))
    phi = ts.inertial_parameters(nominal)
    start = Solution(
        phi.flatten(), base.of(phi.flatten()), (phi.new_zeros(3),) * 3, ((0, 1, 2),) * 3
    )
    with pytest.raises(ts.FitError, match="pass a shorter window"):
        ShootingEstimator(forward, windows, base, EntropicPrior.at(phi, base.matrix), 5, start).run(
            1.0, lambda step, share: None
        )


def test_accelerated_steps_of_a_linear_map_converge_to_its_fixed_point():
    """It converges in n + 1 steps for n unknowns, where plain steps diverge."""
    g, n = torch.Generator().manual_seed(0), 4
    A = torch.randn(n, n, generator=g, dtype=torch.float64) - 2 * torch.eye(n, dtype=torch.float64)
    there, H = torch.randn(n, generator=g, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
    x, past, away = torch.zeros(n, dtype=torch.float64), AndersonHistory(), []
    for _ in range(n + 1):
        to = there + A @ (x - there)
        past = past.after(to - x, to)
        mixed = past.aim(H)
        x = to if mixed is None else mixed
        away.append(float((x - there).norm()))
    assert away[0] > 1
    assert away[-1] < 1e-6


@pytest.mark.nightly
def test_a_fit_that_has_not_converged_reports_its_last_step(measured, monkeypatch):
    _, nominal, log = measured
    monkeypatch.setattr(estimate, "MAX_ITERATIONS", 1)
    fit = ts.identification.identify(nominal, noisy(log), joint_terms=TERMS, method="shooting")
    (text,) = texts(fit, "not_converged")
    assert "stopped after 1 iterations. The last step changed parameters by" in text


def test_shooting_stops_at_its_time_limit_with_the_best_parameters_so_far(measured):
    """One iteration is done in any case; it explains the positions better than the nominal robot."""
    truth, nominal, log = measured
    shares, options = [], {"joint_terms": TERMS, "method": "shooting"}
    fit = ts.identification.identify(
        nominal, noisy(log), time_limit=1e-3, progress=lambda text, x: shares.append(x), **options
    )
    (text,) = texts(fit, "not_converged")
    assert "time limit of 0.001 s" in text and "--time-limit 0.01" in text
    true = fit.base.of(ts.inertial_parameters(truth).flatten())
    start = fit.base.of(fit.nominal_numbers)
    assert (fit.value - true).norm() < 0.5 * (start - true).norm()
    assert shares == sorted(shares) and shares[-1] == 1
    with pytest.raises(ts.FitError, match="time_limit=1 was given with method='wls'"):
        ts.identification.identify(nominal, log, method="wls", time_limit=1)


@pytest.mark.usefixtures("fits")
def test_progress_of_shooting_moves_with_its_iterations(progress):
    steps = [share for text, share in progress if "standard errors" in text and "last step" in text]
    assert len(set(steps)) == len(steps) > 2
    assert steps[-1] - steps[0] > 0.2
