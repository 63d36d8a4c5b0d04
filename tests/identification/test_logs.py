"""Logs: loading, checks, filter design and preprocessing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import texts
from tests.strategies import random_mechanism
from torchsko.identification.friction import Coulomb, Viscous
from torchsko.identification.logs.units import SI_SCALE
from torchsko.identification.regression.base_columns import BaseColumns
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import FilterSettings, design_filters
from torchsko.identification.signals.filters import (
    DerivativeFilter,
    butterworth_filter,
    differentiate_filter,
)
from torchsko.identification.signals.preprocess import filter_log
from torchsko.identification.signals.saturation import saturation_limits

signal = pytest.importorskip("scipy.signal")
ROOT = Path(__file__).parents[2]
JOINTS = ("shoulder", "elbow")


def arrays(n=400, dt=1e-3):
    t = dt * np.arange(n)
    q = np.stack([np.sin(3 * t), np.cos(5 * t)], -1)
    return t, q, np.gradient(q, dt, axis=0), 2 * q + 1


def table(path, names, columns):
    np.savetxt(path, np.stack(columns, -1), delimiter=",", header=",".join(names), comments="")


@pytest.mark.parametrize(
    "style", ["q_shoulder", "shoulder.q", "Position shoulder", "q1", "tau[1]"], ids=str
)
def test_columns_are_assigned_to_joints_by_name_or_number_in_any_order(tmp_path, style):
    t, q, _, tau = arrays()
    named = {
        "q_shoulder": [f"{x}_{j}" for x in ("q", "tau") for j in JOINTS],
        "shoulder.q": [f"{j}.{x}" for x in ("q", "tau") for j in JOINTS],
        "Position shoulder": [f"{x} {j}" for x in ("Position", "Torque") for j in JOINTS],
        "q1": [f"{x}{k}" for x in ("q", "tau") for k in (1, 2)],
        "tau[1]": [f"{x}[{k}]" for x in ("q", "tau") for k in (0, 1)],
    }[style]
    columns = dict(zip(named, [*q.T, *tau.T], strict=True)) | {"time": t}
    order = sorted(columns)  # not that of the joints
    table(tmp_path / "log.csv", order, [columns[name] for name in order])
    log = ts.identification.Log.load(tmp_path / "log.csv", JOINTS)
    for mine, theirs in ((log.t, t), (log.q, q), (log.tau, tau)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    assert log.qd is None


def test_declared_units_are_converted_to_si(tmp_path):
    t, q, qd, tau = arrays()
    np.savez(tmp_path / "a.npz", t=1e3 * t, q=np.rad2deg(q), qd=qd * 30 / np.pi, tau=1e3 * tau)
    units = {"t": "ms", "q": "deg", "qd": "rpm", "tau": "mNm"}
    log = ts.identification.Log.load(tmp_path / "a.npz", units=units)
    for mine, theirs in ((log.t, t), (log.q, q), (log.qd, qd), (log.tau, tau)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-15)


def test_units_have_the_factors_of_the_si():
    degree, pound_foot = 0.017453292519943295, 1.3558179483314004
    assert SI_SCALE == pytest.approx({
        "s": 1, "ms": 0.001, "us": 0.000001, "ns": 0.000000001,
        "rad": 1, "deg": degree, "m": 1, "mm": 0.001,
        "rad/s": 1, "deg/s": degree, "m/s": 1, "mm/s": 0.001, "rpm": 6 * degree,
        "Nm": 1, "mNm": 0.001, "Nmm": 0.001, "Ncm": 0.01, "kNm": 1000, "kgfcm": 0.0980665,
        "lbft": pound_foot, "N": 1, "kN": 1000, "A": 1, "mA": 0.001,
    }, rel=1e-14, abs=0)  # fmt: skip


def refused(call, match):
    with pytest.raises(ts.FitError, match=match) as caught:
        call()
    assert str(caught.value).count("\n") == 2, str(caught.value)


def test_errors_of_files_name_the_file_and_the_column(tmp_path):
    t, q, _, tau = arrays()

    def load(name, *, joints=JOINTS, **options):
        return lambda: ts.identification.Log.load(tmp_path / name, joints, **options)

    refused(load("none.csv"), "there is no such file")
    refused(load("log.mat"), "no known extension")
    table(tmp_path / "a.csv", ["t", "q_shoulder", "q_elbow", "tau_shoulder"], [t, *q.T, t])
    refused(load("a.csv"), "no column is tau of joint 'elbow'")
    table(tmp_path / "b.csv", ["t", "q1", "q2"], [t, *q.T])
    refused(load("b.csv"), r"no column is a joint force \('tau'\)")
    refused(load("b.csv", columns={"tau": ["x"]}), "no column 'x'")
    table(tmp_path / "c.csv", ["t", "q1", "q2", "q3"], [t, *q.T, t])
    refused(load("c.csv"), "3 columns are q, the robot has 2 joints")
    (tmp_path / "d.csv").write_text("0,1,2\n1,2,3\n")
    refused(load("d.csv"), "its first line has no names")
    (tmp_path / "e.npz").write_text("nothing")
    refused(load("e.npz"), "cannot be read")
    np.savez(tmp_path / "f.npz", t=t, q=q, tau=tau)
    refused(load("f.npz", units={"q": "inch"}), "the unit of q is 'inch'")
    refused(load("f.npz", units={"qd": "rpm"}), "a unit is given for 'qd'")
    refused(lambda: ts.identification.Log(t[:5], q[:5], tau[:5]), "the time has shape")
    refused(lambda: ts.identification.Log(t, q, tau[:9]), "tau has shape")


def test_currents_are_used_only_if_their_unit_is_declared(tmp_path):
    t, q, _, tau = arrays()
    names = ["t", *(f"{x}_{j}" for x in ("q", "current") for j in JOINTS)]
    table(tmp_path / "a.csv", names, [t, *q.T, *tau.T])
    load = lambda name, **units: ts.identification.Log.load(tmp_path / name, JOINTS, units=units)  # noqa: E731
    refused(lambda: load("a.csv"), "'current_shoulder' is a current, and no unit is declared")
    for unit, size, current in (("A", 1.0, True), ("mA", 1e-3, True), ("Nm", 1.0, False)):
        log = load("a.csv", tau=unit)
        assert log.current is current
        np.testing.assert_allclose(log.tau, size * tau, rtol=1e-12)
    both = [*names, *(f"tau_{j}" for j in JOINTS)]
    table(tmp_path / "b.csv", both, [t, *q.T, *tau.T, *(5 * tau.T)])
    np.testing.assert_allclose(load("b.csv").tau, 5 * tau, rtol=1e-12)
    np.testing.assert_allclose(load("b.csv", tau="Nm").tau, 5 * tau, rtol=1e-12)
    np.testing.assert_allclose(load("b.csv", tau="A").tau, tau, rtol=1e-12)


def test_the_filter_is_a_zero_phase_butterworth_filter():
    """Amplitudes of sines are scaled by 1 / (1 + (tan / tan)^8), and derivatives are exact."""
    rate, cutoff = 500.0, 12.0
    low = butterworth_filter(cutoff, rate)
    first = differentiate_filter(low, rate)
    t = torch.arange(4000, dtype=torch.float64) / rate
    for f in (1.0, 5.0, 12.0, 20.0):
        warped = np.tan(np.pi * f / rate) / np.tan(np.pi * cutoff / rate)
        gain = 1 / (1 + warped**8)
        w = 2 * np.pi * f
        x, xd = (w * t).sin(), w * (w * t).cos()
        inside = slice(low.half_width, len(t) - low.half_width)
        assert_close(low(x), gain * x[inside], rtol=0, atol=2e-4)
        inside = slice(first.half_width, len(t) - first.half_width)
        assert_close(first(x), gain * xd[inside], rtol=0, atol=4e-4 * w)


@pytest.mark.parametrize(
    ("rate", "cutoff", "every", "steps"),
    [(1000.0, 10.0, 6, 1), (1000.0, 3.75, 16, 2), (10_000.0, 5.0, 125, 2)],
)
def test_decimation_in_two_steps_equals_decimation_in_one(rate, cutoff, every, steps):
    """The frequency response is that of the Butterworth filter, without aliasing."""
    bank = DerivativeFilter.of(cutoff, rate, every)
    assert (bank.anti_alias is not None) == (steps == 2)
    t = np.arange(2 * bank.half_width + 1 + 20 * bank.decimation) / rate
    at = t[bank.half_width :: bank.decimation][:21]
    for f in [*np.linspace(0.1, 8, 30) * cutoff, *np.linspace(0.05, 0.49, 40) * rate]:
        gain, w = (
            1 / (1 + (np.tan(np.pi * f / rate) / np.tan(np.pi * cutoff / rate)) ** 8),
            2 * np.pi * f,
        )
        found = bank(torch.from_numpy(np.sin(w * t + 0.3))[None], 0, 1, 2)
        true = np.sin(w * at + 0.3), w * np.cos(w * at + 0.3), -w * w * np.sin(w * at + 0.3)
        for k, (mine, wanted) in enumerate(zip(found, true, strict=True)):
            unit = (2 * np.pi * cutoff) ** k
            np.testing.assert_allclose(
                mine[0].numpy() / unit, gain * wanted / unit, rtol=0, atol=2e-4
            )


def test_independent_entries_give_the_whole_regressor_and_the_joint_forces():
    """For an arm and for a floating robot."""
    for mech in (ts.load(ts.robots.panda), ts.load(ts.robots.humanoid, floating_base=True)):
        leading = BaseColumns.of(mech, ts.base_parameters(mech))
        q, qd = mech.random_state(3)
        Y = ts.torque_regressor(mech, q, qd, qd)
        entries, scale = leading.select(Y), float(Y.abs().max())
        assert entries.shape[-1] < 0.5 * Y[0].numel()
        columns = leading.columns(entries, leading.column_index(0))
        assert_close(columns @ leading.matrix, Y.flatten(-2), rtol=0, atol=1e-7 * scale)
        phi = ts.inertial_parameters(mech).flatten()
        force = Y.flatten(-2) @ phi
        assert_close(
            entries @ leading.forces(phi), force, rtol=0, atol=1e-7 * float(force.abs().max())
        )


def arm_log(mech, n=6000, rate=500.0, seed=0):
    motion = ts.identification.exciting_trajectory(
        mech, generator=torch.Generator().manual_seed(seed)
    )
    t = torch.arange(n, dtype=mech.dtype) / rate
    q, qd, qdd = motion(t)
    return ts.identification.Log(
        t.numpy(), q.numpy(), ts.inverse_dynamics(mech, q, qd, qdd).numpy()
    ), motion


@pytest.mark.parametrize("cutoff", [10.0, 3.0])  # in one step, in two
def test_a_log_filtered_piece_by_piece_equals_the_log_filtered_at_once(cutoff):
    mech = ts.load(ts.robots.panda)
    log, _ = arm_log(mech, n=9000)
    settings = FilterSettings.of(500.0, cutoff)
    whole, pieces = (
        [*filter_log(mech, log, settings, LogDefects(), piece)] for piece in (10**6, 1500)
    )
    (whole,) = whole
    assert len(pieces) > 2
    kernel = settings.double_filter
    taus = torch.cat([kernel(piece.tau) for piece in pieces])
    assert_close(taus, kernel(whole.tau), rtol=0, atol=1e-11)
    assert_close(torch.cat([kernel(p.qdd) for p in pieces]), kernel(whole.qdd), rtol=0, atol=1e-9)


def test_the_automatic_cutoff_preserves_the_motion():
    mech = ts.load(ts.robots.panda)
    log, motion = arm_log(mech)
    settings = design_filters(log)
    (found,) = filter_log(mech, log, settings, LogDefects())
    for mine, true in zip((found.q, found.qd, found.qdd), motion(found.t), strict=True):
        assert (mine - true).abs().max() < 2e-3 * true.abs().max()


def test_long_gaps_do_not_change_the_bandwidth_of_a_motion():
    """Segments of 3 s bound the length of the filter."""
    mech = ts.load(ts.robots.panda)
    log, _ = arm_log(mech, n=12000)
    whole, keep = design_filters(log).cutoff, log.t % 5 < 3
    parts = replace(log, t=log.t[keep], q=log.q[keep], tau=log.tau[keep], qd=None)
    assert whole <= design_filters(parts).cutoff <= max(1.4 * whole, 20 / 3)


def test_uneven_times_gaps_outliers_and_saturation_are_handled_and_counted():
    mech = ts.load(ts.robots.panda)
    log, motion = arm_log(mech, n=12000)
    rng = np.random.default_rng(0)
    keep = np.ones(len(log), bool)
    keep[5000:5600] = False
    t = (log.t + 4e-4 * rng.random(len(log)))[keep]
    q, qd, qdd = motion(torch.from_numpy(t))
    tau = ts.inverse_dynamics(mech, q, qd, qdd).numpy().copy()
    tau[100, 3], tau[200, 4] = 70.0, np.nan
    tau[7000:7100, 5] = mech.effort_limit[5].item()
    faults, settings = LogDefects(), FilterSettings.of(500.0, 10.0)
    parts = [*filter_log(mech, ts.identification.Log(t, q.numpy(), tau), settings, faults)]
    assert faults.gaps == 1 and len(parts) == 2
    assert faults.saturated == {mech.joint_names[5]: 100}
    assert {mech.joint_names[k] for k in (3, 4)} <= set(faults.outliers)
    for part in parts:
        true = motion(part.t)
        for mine, exact in zip((part.q, part.qd), true, strict=False):
            assert (mine - exact).abs().max() < 5e-3 * exact.abs().max()
        marked = (part.t > t[7000]) & (part.t < t[7099])
        assert not part.valid[marked, 5].any()


def test_forces_clipped_below_the_effort_limits_are_ignored():
    """The fit to the other forces is as good as with all forces."""
    mech = ts.load(ts.robots.panda)
    log, motion = arm_log(mech, n=12000)
    top = 0.7 * np.abs(log.tau).max(0)
    cut = replace(log, tau=np.clip(log.tau, -top, top))
    assert (top < mech.effort_limit.numpy()).all()
    state = motion(torch.linspace(1.234, 8.0, 400, dtype=mech.dtype))
    tau = ts.inverse_dynamics(mech, *state)
    options = {"joint_terms": [Viscous(), Coulomb()], "method": "wls", "cutoff": 10.0}
    whole, part = (ts.identification.identify(mech, x, **options) for x in (log, cut))
    assert not texts(whole, "saturated_forces")
    for joint in mech.joint_names:
        assert any(f"of {joint} are at" in note for note in texts(part, "saturated_forces"))
    for fit in (whole, part):
        assert ((fit.inverse_dynamics(*state) - tau).std(0) < 0.02 * tau.std(0)).all()


def test_forces_that_are_repeatedly_zero_are_not_saturated():
    """A lifted foot and a flying base have zero force."""
    x = np.maximum(np.sin(np.linspace(0, 60, 6000))[:, None], 0.0)
    assert np.isinf(saturation_limits(x)).all()
    assert np.isfinite(saturation_limits(x + 1.0)[0]).all()  # elsewhere it would be


def test_quantized_forces_and_a_robot_at_rest_are_not_saturated():
    mech = ts.load(ts.robots.panda)
    log, _ = arm_log(mech, n=12000)
    for parts in (30, 300, 3000):
        step = np.ptp(log.tau, axis=0) / parts
        tau = step * np.round(log.tau / step)
        assert np.isinf(saturation_limits(tau)).all()
        rest = np.repeat(tau.max(0, keepdims=True), 500, 0)
        assert np.isinf(saturation_limits(np.concatenate([rest, tau]))).all()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"q": 180 / np.pi}, "Joint 'joint1' moves from .* its limits are"),
        ({"qd": 180 / np.pi}, "--unit qd=deg/s"),
        ({"qd": 30 / np.pi}, "--unit qd=rpm"),
        ({"t": 1e3}, "--unit t=ms"),
        ({"q": 2.9, "qd": 2.9 * np.pi / 180}, "--unit q=deg"),
        ({"qd": -1.0}, r"(?s)joint1 -1 times.*--column qd=-"),
    ],
)
def test_quantities_in_implausible_units_are_refused_with_the_likely_unit(wrong, match):
    mech = ts.load(ts.robots.panda)
    log, motion = arm_log(mech)
    qd = motion(torch.from_numpy(log.t))[1].numpy()
    noisy = qd + 0.05 * np.random.default_rng(0).normal(size=qd.shape)
    log = replace(log, qd=noisy)
    log = replace(log, **{name: factor * getattr(log, name) for name, factor in wrong.items()})
    refused(lambda: ts.identification.identify(mech, log, joint_terms=[], method="ols"), match)


def test_logs_of_another_robot_or_at_rest_are_refused():
    mech = ts.load(ts.robots.panda)
    log, _ = arm_log(mech)
    few = ts.identification.Log(log.t, log.q[:, :6], log.tau)
    refused(lambda: ts.identification.identify(mech, few), "q has 6 columns")
    still = ts.identification.Log(log.t, 0 * log.q, log.tau)
    refused(lambda: ts.identification.identify(mech, still), "no joint moves")
    back = ts.identification.Log(log.t[::-1], log.q, log.tau)
    refused(lambda: ts.identification.identify(mech, back), "Times must increase")
    refused(lambda: ts.identification.identify(mech, log, cutoff=400.0), "the cut-off is 400 Hz")
    refused(
        lambda: ts.identification.identify(mech, log.part(0, 0.01)), "no sample of joint|cut-off"
    )
    fifth = (np.arange(len(log)) % 5 == 0)[:, None]
    rare = replace(log, tau=np.where(fifth, log.tau, np.nan))
    refused(lambda: ts.identification.identify(mech, rare), "80 percent of the forces of joint")
    # The median force is below the limit, and every second contains forces at the limit.
    top = 0.2 * np.abs(log.tau).max(0)
    faint = replace(log, tau=np.where(fifth, log.tau.clip(-top, top), 0.1 * log.tau))
    weak = mech.replace(effort_limit=torch.from_numpy(top))
    refused(
        lambda: ts.identification.identify(weak, faint), "is left.\n.* percent .* effort limit of"
    )
    names = replace(log, t=np.where(np.arange(len(log)) == 7, np.nan, log.t))
    refused(
        lambda: ts.identification.identify(mech, names),
        "1 times are not finite, the first at sample 7",
    )


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (
            lambda t: np.where(np.arange(len(t)) < 900, t, t - 1.0),
            "sample 900 is 8 s, after 8.99 s",
        ),
        (lambda t: np.where(np.arange(len(t)) == 900, np.nan, t), "first at sample 900"),
        (lambda t: (1e6 + t).astype(np.float32), "resolution of float32 is 0.062 s"),
    ],
)
def test_all_times_are_checked_and_a_low_resolution_is_named(monkeypatch, spoil, match):
    """Also after the samples from which the cut-off is chosen."""
    monkeypatch.setattr("torchsko.identification.signals.filter_settings.MAX_SPECTRUM_SAMPLES", 450)
    mech = ts.load(ts.robots.panda)
    log, _ = arm_log(mech)
    wrong = replace(log, t=spoil(0.01 * np.arange(len(log))))
    refused(lambda: ts.identification.identify(mech, wrong, joint_terms=[], method="ols"), match)


def test_parts_of_a_log_check_its_times_and_explain_faults():
    """A missing first time is reported as such."""
    mech = ts.load(ts.robots.panda)
    log, _ = arm_log(mech)
    t = log.t
    hole = replace(log, t=np.where(np.arange(len(log)) == 0, np.nan, t))
    assert len(hole.part(0, 1)) == len(log)
    refused(lambda: hole.part(0, 0.5), "1 times are not finite, the first at sample 0")
    set_back = replace(log, t=np.where(np.arange(len(log)) < 900, t, t - t[500]))
    refused(
        lambda: set_back.part(0, 0.5), r"\[log.pick\(slice\(900\)\), log.pick\(slice\(900, None"
    )
    coarse = replace(log, t=np.floor(1.7e9 + t))
    refused(
        lambda: ts.identification.identify(mech, coarse, method="ols"),
        "times repeat the previous one",
    )
    mixed = np.arange(len(log)) ^ 1
    refused(
        lambda: ts.identification.identify(mech, replace(log, t=t[mixed]), method="ols"),
        "Sort the samples",
    )


def test_masked_arrays_are_refused_with_advice():
    """Masked values would count as measured."""
    mech = ts.load(ts.robots.panda)
    log, _ = arm_log(mech)
    mask = np.zeros(log.q.shape, bool)
    assert len(replace(log, q=np.ma.array(log.q, mask=mask))) == len(log)
    mask[3, 2] = True
    refused(lambda: replace(log, q=np.ma.array(log.q, mask=mask)), "q is masked in 1 places")


def test_sign_flips_of_quaternions_are_removed():
    mech = random_mechanism(["spherical", "revolute"], [-1, 0], seed=1)
    t = np.arange(4000) / 400
    turn = torch.from_numpy(np.stack([np.sin(t), np.cos(2 * t), np.sin(3 * t), t], -1))
    q = ts.integrate(mech, mech.neutral().expand(4000, -1), turn)
    qd = torch.from_numpy(np.gradient(turn.numpy(), t, axis=0))
    flipped = torch.where(((torch.arange(4000) // 37) % 2 == 0)[:, None], q, -q)
    flipped[:, 4:] = q[:, 4:]
    settings = FilterSettings.of(400.0, 10.0)
    states = [
        next(
            filter_log(
                mech,
                ts.identification.Log(t, x.numpy(), qd.numpy(), qd.numpy()),
                settings,
                LogDefects(),
            )
        ).q
        for x in (q, flipped)
    ]
    assert_close(*states, rtol=1e-12, atol=1e-12)
