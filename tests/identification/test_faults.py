"""What is wrong in a log, or with what is asked of it, is told or refused by name; the rest is fitted."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import check_raw, codes, texts
from torchsko.identification.friction import (
    Balancer,
    Coulomb,
    Dahl,
    LuGre,
    Offset,
    SmoothCoulomb,
    TermInput,
    Viscous,
)
from torchsko.identification.results.html_report import write_report
from torchsko.identification.signals.filter_settings import design_filters
from torchsko.identification.signals.unwrap import unwrap_angles


def two(limit=float("inf")):
    """An arm of two links that swings up and down."""
    builder = ts.MechanismBuilder("two")
    for name, mass in (("a", 2.0), ("b", 1.0)):
        builder.link(name, mass=mass, com=(0.3, 0, 0), inertia=np.diag([0.02, 0.03, 0.03]).tolist())
    builder.joint("j1", "revolute", child="a", axis=(0, 1, 0), effort=limit)
    builder.joint(
        "j2", "revolute", parent="a", child="b", position=(0.6, 0, 0), axis=(0, 1, 0), effort=limit
    )
    return builder.build()


def swinging(mech, parts=(1.0, 0.7), noise=0.01, n=2000):
    """Times, positions, forces and velocities; a joint whose part is 0 stands still at 0."""
    t = 0.01 * torch.arange(n, dtype=mech.dtype)
    w, part = torch.tensor([[1.3], [2.9]]).to(t), torch.tensor(parts).to(t)
    turn = w * t[:, None, None]
    q, qd, qdd = (part * x.sum(1) for x in (turn.sin(), w * turn.cos(), -w * w * turn.sin()))
    g = torch.Generator().manual_seed(0)
    tau = ts.inverse_dynamics(mech, q, qd, qdd) + 0.3 * qd
    tau = tau + noise * torch.randn(tau.shape, generator=g, dtype=tau.dtype)
    return [x.numpy() for x in (t, q, tau, qd)]


def test_a_joint_at_rest_at_zero_has_no_selected_friction():
    """What never acts, such as a spring there, is no candidate."""
    fit = ts.identification.identify(two(), ts.identification.Log(*swinging(two(), (1.0, 0.0))))
    assert (fit.errors["physical"] < 0.02).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_joint_at_rest_with_noise_has_no_selected_spring(seed):
    """Small as the noise is, cross-validation took springs of hundreds of N m/rad for what gravity pulls."""
    t, q, tau, _ = swinging(two(), (1.0, 0.0))
    noise = np.random.default_rng(seed).normal(size=q.shape)
    fit = ts.identification.identify(
        two(), ts.identification.Log(t, q + 1e-4 * noise, tau + 3 * noise[::-1] ** 2)
    )
    assert fit.terms[1] == (Offset(),) and len(fit.terms[0]) > 1
    (note,) = texts(fit, "static_joint")
    assert note.endswith(": j2.")


TERMS = [Viscous(), Coulomb()]


@pytest.mark.parametrize("rates", [None, 1e-2])
@pytest.mark.parametrize("noise", [1e-7, 1e-3, 3e-3])
def test_a_log_of_a_robot_at_rest_is_refused_at_any_noise(noise, rates):
    """It was fitted to noise of positions, or ended in an error of torch where velocities are noisy."""
    mech, rng = two(), np.random.default_rng(0)
    t, q, tau, _ = swinging(mech, parts=(0.0, 0.0), noise=0.05)
    q = 0.3 + noise * rng.standard_normal(q.shape)
    qd = None if rates is None else rates * rng.standard_normal(q.shape)
    with pytest.raises(ts.FitError, match="No joint moves more than the noise"):
        ts.identification.identify(mech, ts.identification.Log(t, q, tau, qd), joint_terms=TERMS)


def test_a_small_motion_above_its_noise_is_accepted():
    mech, rng = two(), np.random.default_rng(0)
    t, q, tau, _ = swinging(mech, parts=(1e-4, 1e-4), noise=1e-4)
    q = q + 1e-6 * rng.standard_normal(q.shape)
    ts.identification.identify(
        mech, ts.identification.Log(t, q, tau), joint_terms=TERMS, method="ols"
    )


def test_joints_partly_at_rest_are_a_finding_with_the_option_that_excludes_the_rest():
    """Dry friction at rest is anything up to its size: numbers lay five of their deviations off, unsaid."""
    mech, rng = two(), np.random.default_rng(1)
    step, rest, n = 100, 50, 24
    s = np.concatenate([np.zeros(rest), np.arange(step) / step])
    rise = 10 * s**3 - 15 * s**4 + 6 * s**5
    place = rng.uniform(-1, 1, (n + 1, 2))
    q = (place[:-1, None] + rise[:, None] * np.diff(place, axis=0)[:, None]).reshape(-1, 2)
    t = 0.01 * np.arange(len(q))
    qd = np.gradient(q, t, axis=0, edge_order=2)
    qdd = np.gradient(qd, t, axis=0, edge_order=2)
    held = rng.uniform(-1, 1, (n, 1, 2)).repeat(rest + step, 1).reshape(-1, 2)
    dry = np.where(np.abs(qd) > 1e-9, np.sign(qd), held)
    tau = ts.inverse_dynamics(mech, *map(torch.from_numpy, (q, qd, qdd))).numpy() + 0.5 * dry
    q = q + 1e-6 * rng.standard_normal(q.shape)
    log = ts.identification.Log(t, q, tau + 0.3 * qd + 0.02 * rng.standard_normal(q.shape))

    def fitted(log):
        fit = ts.identification.identify(mech, log, joint_terms=TERMS, method="ols")
        lines = texts(fit, "joint_at_rest")
        off = torch.stack(fit.numbers) - torch.tensor([0.3, 0.5]).to(fit.phi)
        return float(off.abs().max()), lines

    off, (line,) = fitted(log)
    assert "j1 3" in line and "j2 3" in line
    slow = float(re.search(r"slower than ([\d.e-]+)\.", line)[1])  # type: ignore[index]
    rest = np.abs(np.gradient(log.q, log.t, axis=0)) < slow
    less, lines = fitted(dataclasses.replace(log, tau=np.where(rest, np.nan, log.tau)))
    assert not lines and less < off / 10 and off > 0.02, (off, less)
    plain = ts.identification.Log(*swinging(mech)[:3])
    assert not fitted(plain)[1]


@pytest.mark.parametrize("with_rates", [True, False])
def test_degrees_of_joints_without_limits_are_found_by_gravity(with_rates):
    mech, factor = two(), 180 / np.pi
    t, q, tau, qd = swinging(mech)
    log = ts.identification.Log(t, q * factor, tau, qd * factor if with_rates else None)
    with pytest.raises(ts.FitError, match=r"(?s)positions are in degrees.*--unit q=deg"):
        ts.identification.identify(mech, log, joint_terms=TERMS)
    ramp = torch.stack([2.0 * torch.from_numpy(t), -3.0 * torch.from_numpy(t)], 1)
    still = torch.zeros_like(ramp)
    spinning = ts.inverse_dynamics(mech, ramp, still + torch.tensor([2.0, -3.0]), still)
    log = ts.identification.Log(t, ramp.numpy(), spinning.numpy())
    check_raw(mech, log, 100.0)


@pytest.mark.parametrize("with_rates", [True, False])
def test_while_positions_are_missing_no_force_counts(with_rates):
    """A second without an encoder changes nothing but how much is known, and is told."""
    mech = two()
    t, q, tau, qd = swinging(mech)
    q2, qd2 = q.copy(), qd.copy()
    q2[1000:1100, 1] = qd2[1000:1100, 1] = np.nan
    whole, part = (
        ts.identification.identify(
            mech,
            ts.identification.Log(t, x, tau, v if with_rates else None),
            joint_terms=TERMS,
            cutoff=8.0,
        )
        for x, v in ((q, qd), (q2, qd2))
    )
    assert (part.errors["physical"] < 1.2 * whole.errors["physical"]).all()
    assert part.info.equations < whole.info.equations - 50
    (note,) = texts(part, "invalid_positions")
    assert "velocities of j2 were interpolated" in note and "in long runs" in note


@pytest.mark.parametrize("rows", [(700, 700), (700, 900)], ids=["at once", "apart"])
def test_one_position_missing_of_each_joint_changes_no_cut_off(rows):
    """The data choose it as where all are there."""
    t, q, tau, qd = swinging(two())
    q2 = q.copy()
    q2[rows, (0, 1)] = np.nan
    whole, holes = (design_filters(ts.identification.Log(t, x, tau, qd)) for x in (q, q2))
    assert abs(holes.cutoff - whole.cutoff) < 0.02 * whole.cutoff


def test_limits_of_zero_count_as_no_limits():
    """As exporters of CAD programs write; held there, a joint seems to need fewer numbers."""
    mech = two()
    t, q, tau, qd = swinging(mech.replace(mass=1.2 * mech.mass))
    zero = torch.zeros_like(mech.lower)
    held = mech.replace(lower=zero, upper=zero, velocity_limit=zero)
    log, some = ts.identification.Log(t, q, tau, qd), [Viscous()]
    one, other = (
        ts.identification.identify(x, log, joint_terms=some, prior=1e-6) for x in (mech, held)
    )
    assert other.base.names == one.base.names
    assert_close(other.value, one.value, rtol=1e-6, atol=1e-8)


def test_requested_terms_with_coefficient_zero_are_a_finding():
    """Viscous friction that would drive is none."""
    mech = two()
    t, q, tau, qd = swinging(mech)
    fit = ts.identification.identify(
        mech, ts.identification.Log(t, q, tau - 0.5 * qd, qd), joint_terms=TERMS, prior=10.0
    )
    assert all(Viscous() not in some for some in fit.terms)
    (note,) = texts(fit, "zero_coefficient")
    assert "friction cannot drive" in note
    assert "Viscous of j1" in note
    assert "Viscous of j2" in note


def test_a_negative_spring_is_not_reported_as_friction():
    mech = two()
    t, q, tau, qd = swinging(mech)
    spring = Balancer(0.2, 0.6, zero=0.4)
    angle = torch.from_numpy(q)
    pull = spring.basis(TermInput(angle, angle, angle, angle)).numpy()
    log = ts.identification.Log(t, q, tau - 50 * pull, qd)
    fit = ts.identification.identify(mech, log, joint_terms=[*TERMS, spring], prior=10.0)
    (note,) = texts(fit, "zero_coefficient")
    assert (
        "Balancer" in note
        and "because no spring" in note
        and "friction" not in note
        and "zero=" in note
    )


def test_a_shock_is_an_outlier_and_noise_is_not():
    mech = two()
    t, q, tau, qd = swinging(mech, noise=0.05)

    def notes(x):
        log = ts.identification.Log(t, q, x, qd)
        fit = ts.identification.identify(mech, log, joint_terms=TERMS, cutoff=8.0)
        return texts(fit, "outliers")

    assert not notes(tau)
    hit = tau.copy()
    hit[[300, 900, 1500], 0] += 8.0
    assert [x for x in notes(hit) if x.startswith("3 outliers in forces of j1")]


def test_a_force_that_is_infinite_is_an_outlier_and_not_a_drive_at_its_limit():
    mech = two(limit=50.0)
    t, q, tau, qd = swinging(mech)
    tau[[300, 900], 0], tau[[500, 1500], 1] = np.inf, -np.inf
    fit = ts.identification.identify(
        mech, ts.identification.Log(t, q, tau, qd), joint_terms=TERMS, cutoff=8.0
    )
    assert not texts(fit, "saturated_forces")
    for joint in ("j1", "j2"):
        assert any(x.startswith(f"2 outliers in forces of {joint}") for x in texts(fit, "outliers"))


WRONG = {
    "dead encoder": (
        lambda t, q, tau, qd: (t, q * [1, np.nan], tau, qd),
        "q of joint 'j2' has no finite",
    ),
    "kNm": (lambda t, q, tau, qd: (t, q, tau / 1e3, qd), "0.001 times.*--unit tau=kNm"),
    "mNm": (lambda t, q, tau, qd: (t, q, tau * 1e3, qd), "times those.*--unit tau=mNm"),
    "other sign": (lambda t, q, tau, qd: (t, q, -tau, qd), "--sign tau=-1"),
    "ms": (lambda t, q, tau, qd: (1e3 * t, q, tau), "between samples is 10 s.*--unit t=ms"),
    "us": (lambda t, q, tau, qd: (1e6 * t, q, tau), "between samples is 1e[+]04 s.*--unit t=us"),
    "ns": (lambda t, q, tau, qd: (1.7e18 + 1e9 * t, q, tau), " s.*--unit t=ns"),
    "ms of a fast log": (
        lambda t, q, tau, qd: (100 * t, q, tau),
        "between samples is 1 s.*--unit t=ms",
    ),
    "ms of seconds": (
        lambda t, q, tau, qd: (1e-3 * t, q, tau),
        "between samples is 1e-05 s.*Multiply t by 1000",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_logs_in_other_units_or_without_numbers_are_refused(wrong):
    change, match = WRONG[wrong]
    log = ts.identification.Log(*change(*swinging(two())))
    with pytest.raises(ts.FitError, match=f"(?s){match}"):
        ts.identification.identify(two(), log, joint_terms=TERMS)


def test_forces_far_beyond_a_robots_limits_are_in_another_unit():
    t, q, tau, qd = swinging(two())
    with pytest.raises(ts.FitError, match=r"(?s)median force of joint 'j1'.*--unit tau=mNm"):
        ts.identification.identify(
            two(limit=50.0), ts.identification.Log(t, q, 1e3 * tau, qd), joint_terms=TERMS
        )


OPTIONS = {
    "a term alone": ({"joint_terms": Viscous()}, "joint_terms is a Viscous"),
    "no cut-off": ({"cutoff": float("nan")}, "cutoff is nan"),
    "window in words": ({"window": "0.1", "method": "shooting"}, "window is '0.1'"),
    "window of another": ({"window": 0.1}, "window=0.1 was given with method='physical'"),
    "folds": ({"folds": 5000}, "folds is 5000"),
    "prior without prior": (
        {"prior": 0.1, "method": "ols"},
        "prior=0.1 was given with method='ols'",
    ),
    "unknown action": ({"on_findings": {"gaps": "drop"}}, "is 'drop'"),
}


@pytest.mark.parametrize(("options", "match"), OPTIONS.values(), ids=OPTIONS)
def test_options_that_do_not_fit_are_refused_before_the_log_is_read(options, match):
    log = ts.identification.Log(*swinging(two(), n=400))
    with pytest.raises(ts.FitError, match=match) as error:
        ts.identification.identify(two(), log, **({"joint_terms": TERMS} | options))
    assert len(str(error.value).splitlines()) == 3


def test_robots_in_single_precision_lists_parts_and_empty_files_are_refused(tmp_path):
    t, q, tau, qd = swinging(two(), n=400)
    log = ts.identification.Log(t, q, tau, qd)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "head.csv").write_text("t,q_1,tau_1\n")
    for call, match in (
        (lambda: ts.identification.identify(two().to(torch.float32), log), "is torch.float32"),
        (lambda: ts.identification.Log(t, q.tolist(), tau), "q is of type list"),
        (lambda: log.part(0, 60), "no part from 0 to 60"),
        (lambda: ts.identification.Log.load(tmp_path / "empty.csv"), "its first line has no names"),
        (
            lambda: ts.identification.Log.load(tmp_path / "head.csv"),
            "no samples below its header",
        ),
        (
            lambda: ts.identification.Log.load(tmp_path / "head.csv", columns={"pos": ["a"]}),
            "for 'pos'",
        ),
    ):
        with pytest.raises(ts.FitError, match=match):
            call()


def test_a_floating_robot_has_no_friction_where_it_floats_and_is_saved_as_its_file(tmp_path):
    mech = ts.load(ts.robots.quadruped, floating_base=True)
    g = torch.Generator().manual_seed(0)
    t = torch.arange(800, dtype=mech.dtype) / 250
    phase, rate, part = torch.rand(3, mech.num_dof, 3, generator=g, dtype=t.dtype)
    w = 2 * np.pi * (0.3 + 2 * rate)
    turn = w * t[:, None, None] + 6 * phase
    x, qd, qdd = (
        (0.2 * part * y).sum(-1) for y in (turn.sin(), w * turn.cos(), -w * w * turn.sin())
    )
    q = [mech.neutral()]
    for k in range(len(t) - 1):
        q.append(ts.integrate(mech, q[-1], qd[k] / 250))
    q = torch.cat([torch.stack(q)[:, :7], x[:, 6:]], -1)
    tau = ts.inverse_dynamics(mech, q, qd, qdd) + 0.3 * qd * (torch.arange(mech.num_dof) > 5)
    log = ts.identification.Log(t.numpy(), q.numpy(), tau.numpy(), qd.numpy())
    fit = ts.identification.identify(mech, log, joint_terms=TERMS, prior=1e-2, cutoff=20.0)
    assert [len(some) for some in fit.terms[:6]] == [0] * 6
    assert any(type(term) is Viscous for some in fit.terms[6:] for term in some)
    fit.save(tmp_path, like=ts.robots.quadruped)
    again = ts.identification.Fit.load(tmp_path)
    assert_close(
        again.inverse_dynamics(q, qd, qdd), fit.inverse_dynamics(q, qd, qdd), rtol=0, atol=1e-9
    )


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_errors_of_a_constant_force_are_reported_in_its_unit(tmp_path):
    """As of a robot in flight, which nothing pushes at its base: over no spread they would be infinite."""
    mech = two()
    t, q, tau, qd = swinging(mech)
    free = np.concatenate([tau[:, :1], np.zeros_like(tau[:, 1:])], 1)
    fit = ts.identification.identify(
        mech, ts.identification.Log(t, q, free, qd), joint_terms=TERMS, method="ols"
    )
    table = str(fit).split("of the force:")[1].split("Identified")[0]
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line}
    told = [float(x.removesuffix("*")) for x in rows["j2"] if x.endswith("*")]
    assert told == pytest.approx([float(x[1]) for x in fit.errors.values()], rel=1e-2)
    assert rows["mean"] == rows["j1"][: len(rows["mean"])] and rows["*"]
    assert "prior" not in str(fit)
    assert "constant_force" not in codes(fit)
    write_report(fit, tmp_path / "report.html")


def test_joints_that_moved_beyond_their_limits_are_named():
    """Not so far that they are surely in another unit."""
    mech = two()
    t, q, tau, qd = swinging(mech)
    lower, upper = -2.5 * torch.ones(2).to(mech.dtype), torch.tensor([2.5, 0.5]).to(mech.dtype)
    for reach in (upper, -lower, torch.tensor([2.5, torch.inf]).to(mech.dtype)):
        limited = mech.replace(lower=lower, upper=reach)
        fit = ts.identification.identify(
            limited, ts.identification.Log(t, q, tau, qd), joint_terms=TERMS, prior=1e-2
        )
        told = texts(fit, "beyond_limits")
        assert len(told) == int(reach is upper)
        assert all(note.startswith("Joint j2 moves from ") for note in told)


def test_a_frozen_force_sensor_is_named():
    mech = two()
    t, q, tau, qd = swinging(mech)
    hangs = np.concatenate([tau[:, :1], np.full_like(tau[:, 1:], 0.7)], 1)
    fit = ts.identification.identify(
        mech, ts.identification.Log(t, q, hangs, qd), joint_terms=TERMS, method="ols"
    )
    (note,) = texts(fit, "constant_force")
    assert note.endswith(": j2.")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: SmoothCoulomb(0.0), "speed of SmoothCoulomb is 0.0"),
        (lambda: SmoothCoulomb(float("nan")), "speed of SmoothCoulomb is nan"),
        (lambda: Dahl(-0.1), "distance of Dahl is -0.1"),
        (lambda: LuGre(time=-1.0), "time of LuGre is -1.0.*\n.*positive or 0"),
        (lambda: Balancer(zero=float("inf")), "zero of Balancer is inf.*\n.*finite"),
    ],
)  # fmt: skip
def test_friction_terms_with_wrong_shapes_are_refused_by_name(make, match):
    with pytest.raises(ts.FitError, match=match):
        make()
    assert LuGre(time=0.0).time == Balancer(zero=-1.0).free == 0.0
    assert SmoothCoulomb(np.float32(0.5)).speed == 0.5  # type: ignore[arg-type]


def test_invalid_terms_and_logs_are_refused_by_name():
    t, q, tau, qd = swinging(two())
    log, fit, viscous = ts.identification.Log(t, q, tau, qd), ts.identification.identify, Viscous()
    stamps = (1e9 * t).astype("datetime64[ns]")
    leaf = torch.from_numpy(q).requires_grad_()
    for call, match in (
        (lambda: fit(two(), log, joint_terms={"j1": viscous}), "joint_terms of joint 'j1' is a Viscous"),
        (lambda: fit(two(), log, joint_terms=[viscous] * 2), "of joint 'j1' appears more than once"),
        (lambda: fit(two(), {"t": t}), "log is a dict"),
        (lambda: fit(two(), "log.csv"), "log is a str"),
        (lambda: ts.identification.Log(stamps, q, tau), "t is datetime64.ns.*\n.*\n.*timedelta64"),
        (lambda: ts.identification.Log(t, q + 0j, tau), "q is complex128"),
        (lambda: ts.identification.Log(t, leaf, tau), "q requires a gradient"),
    ):  # fmt: skip
        with pytest.raises(ts.FitError, match=match):
            call()


def test_forces_from_outside_that_are_known_are_those_of_joints():
    """A log with what contacts are at the joints finds the robot that moved without them."""
    mech = ts.load(ts.robots.panda)
    mech = mech.replace(damping=0 * mech.damping, friction=0 * mech.friction)
    truth = mech.replace(mass=1.2 * mech.mass)
    g = torch.Generator().manual_seed(0)
    t = torch.arange(4000, dtype=mech.dtype) / 400
    q, qd, qdd = ts.identification.exciting_trajectory(mech, generator=g)(t)
    push = torch.randn(mech.num_bodies, 6, generator=g, dtype=t.dtype)
    f_ext = 3 * push * (2 * t).sin().clamp_min(0)[:, None, None]
    drives = ts.inverse_dynamics(truth, q, qd, qdd, f_ext)
    at = q, 0 * qd, 0 * qd
    pushed = ts.inverse_dynamics(mech, *at) - ts.inverse_dynamics(mech, *at, f_ext)
    tau = drives + pushed + 0.01 * torch.randn(qd.shape, generator=g, dtype=t.dtype)
    log = ts.identification.Log(t.numpy(), q.numpy(), tau.numpy(), qd.numpy())
    fit = ts.identification.identify(mech, log, joint_terms=[], prior=1e-4, cutoff=10.0)
    beta = fit.base.of(ts.inertial_parameters(truth).flatten())
    assert (fit.value - beta).norm() < 0.01 * beta.norm()


@pytest.mark.some(5)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("column", ["q", "tau", "qd"])
@pytest.mark.parametrize(
    ("value", "dtype"),
    [(x, np.float64) for x in (1.5e308, -1e160, 1e18, np.inf)]
    + [(3.4e38, np.float32), (np.inf, np.float16)],
)
def test_implausibly_large_numbers_are_outliers(column, value, dtype):
    """Their squares overflowed, and in forces no outlier was found any more: warnings, then no robot."""
    mech = two()
    t, *measured = swinging(mech)
    log = {k: x.astype(dtype) for k, x in zip(("q", "tau", "qd"), measured, strict=True)}
    whole = ts.identification.identify(
        mech, ts.identification.Log(t, **log), joint_terms=TERMS, method="ols"
    )
    spoilt = log[column].copy()
    spoilt[100:1900:60, 0] = value
    log[column] = spoilt
    fit = ts.identification.identify(
        mech, ts.identification.Log(t, **log), joint_terms=TERMS, method="ols"
    )
    notes = texts(fit, "outliers") + texts(fit, "invalid_positions")
    assert any(note.startswith("30 ") and "j1" in note for note in notes)
    assert_close(fit.value, whole.value, rtol=0.05, atol=0.01)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("value", [np.inf, 1.5e308])
def test_positions_that_are_no_numbers_twice_in_a_row_warn_of_nothing(value):
    """Their steps overflowed, or were infinity less infinity."""
    t = np.arange(100) / 100.0
    q = np.sin(t)[:, None].repeat(2, 1)
    q[40:42, 0], q[42, 0] = value, -value
    log, told = unwrap_angles(ts.identification.Log(t, q, q))
    assert not told and np.array_equal(log.q, q)


def test_a_force_that_is_always_zero_is_a_finding_with_the_nominal_force():
    """As drivers write 0 where they know no force: the bodies behind were fitted as nothing."""
    mech = two()
    t, q, tau, qd = swinging(mech)
    none = tau * np.array([1.0, 0.0])
    for force, told in ((tau, 0), (none, 1)):
        fit = ts.identification.identify(
            mech, ts.identification.Log(t, q, force, qd), joint_terms=[Viscous()], method="ols"
        )
        lines = texts(fit, "zero_force")
        assert len(lines) == told, fit.findings
        assert all("of joint j2 is always zero" in line for line in lines)


def floating(falls):
    """A log of a robot that floats while its joint moves, without a force where it floats."""
    builder = ts.MechanismBuilder("floats")
    for name, mass in (("a", 2.0), ("b", 1.0)):
        builder.link(
            name, mass=mass, com=(0.1, 0, 0.05), inertia=np.diag([0.02, 0.03, 0.03]).tolist()
        )
    builder.joint("free", "free", child="a")
    builder.joint("j", "revolute", parent="a", child="b", position=(0.2, 0, 0), axis=(0, 1, 0))
    mech = builder.build()
    t = 0.01 * torch.arange(1000, dtype=mech.dtype)
    move = torch.stack([(3 * t).sin() + (7 * t).sin(), 3 * (3 * t).cos() + 7 * (7 * t).cos(),
                        -9 * (3 * t).sin() - 49 * (7 * t).sin()], -1)  # fmt: skip
    q, qd, qdd = (mech.neutral().repeat(1000, 1), *torch.zeros(2, 1000, 7, dtype=mech.dtype))
    q[:, -1], qd[:, -1], qdd[:, -1] = move.unbind(-1)
    # It falls in the axes of its body, which does not turn.
    qd[:, 5], qdd[:, 5] = -9.81 * falls * t, -9.81 * falls
    q[:, 2] = -9.81 / 2 * falls * t * t
    tau = ts.inverse_dynamics(mech, q, qd, qdd)
    tau[:, :6] = 0.0
    return mech, ts.identification.Log(*(x.numpy() for x in (t, q, tau, qd)))


def test_a_robot_that_floats_without_a_force_but_does_not_fall_is_refused():
    """It stood on a floor whose force nobody measured: a fit found a robot of 9 g, sure to 33 g."""
    mech, log = floating(0.0)
    with pytest.raises(ts.FitError, match=r"'free' is always zero.* needs 30 N") as error:
        ts.identification.identify(mech, log, joint_terms=[], method="ols")
    assert str(error.value).count("\n") == 2
    ts.identification.identify(*floating(1.0), joint_terms=[], method="ols")


def test_a_massless_rotor_and_an_unphysical_body_are_different_findings():
    builder = ts.MechanismBuilder("geared")
    for name in ("a", "b"):
        builder.link(name, mass=1.0, com=(0.3, 0, 0), inertia=np.eye(3).tolist())
    builder.joint("j1", "revolute", child="a", axis=(0, 1, 0))
    builder.joint("j2", "revolute", parent="a", child="b", position=(0.6, 0, 0), axis=(0, 1, 0))
    mech = builder.rotor("j2", ratio=50.0, inertia=2e-5).build()
    thin = torch.diag(torch.tensor([0.05, 0.01, 0.01], dtype=mech.dtype))
    # More about one axis than about both others.
    b = mech.body_names.index("b")
    mech = mech.replace(inertia=torch.cat([mech.inertia[:b], thin[None], mech.inertia[b + 1 :]]))
    t, q, tau, qd = swinging(mech)
    fit = ts.identification.identify(
        mech, ts.identification.Log(t, q, tau, qd), joint_terms=TERMS, cutoff=8.0, prior=1e-3
    )
    (unphysical,) = (x for x in fit.findings if x.code == "unphysical_inertia")
    (rotor,) = (x for x in fit.findings if x.code == "rotor_body")
    assert unphysical.joints == ("b",) and rotor.joints == ("j2_rotor",)


def test_friction_with_memory_has_a_note_on_its_prediction():
    mech = two()
    t, q, tau, qd = swinging(mech)
    learn = {"j1": [LuGre()], "j2": TERMS}
    fit = ts.identification.identify(
        mech, ts.identification.Log(t, q, tau, qd), joint_terms=learn, cutoff=8.0, prior=1e-3
    )
    assert fit.memory is not None and fit.memory.terms[0] == (LuGre(),)
    assert "series=True" in str(fit)
    x = [torch.from_numpy(x) for x in (q, qd, 0 * qd)]
    apart = fit.inverse_dynamics(*x, series=True) - fit.inverse_dynamics(*x)
    assert apart[:, 0].abs().max() > 1e-3
