"""Kalman's smoother by scans is the mean and covariance of the motion, given the positions."""

import numpy as np
import pytest

import torchsko as ts
from torchsko.identification.signals.smoother import smoothed


def motion(n=400, noise=1e-3, seed=0):
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.uniform(0.5e-2, 1.5e-2, n))
    q = np.stack([np.sin(3 * t), 0.4 * np.cos(5 * t)], -1)
    qd = np.stack([3 * np.cos(3 * t), -2 * np.sin(5 * t)], -1)
    qdd = np.stack([-9 * np.sin(3 * t), -10 * np.cos(5 * t)], -1)
    return t, (q, qd, qdd), q + noise * rng.normal(size=q.shape)


def test_the_scans_are_the_normal_distribution_given_the_positions():
    """Means and deviations are those of one dense least squares problem: jerk, noise, all samples."""
    t, _, seen = motion(n=30)
    r, jerk = 1e-3, 40.0
    n = len(t)
    rows, rights = [], []
    for k in range(n):
        row = np.zeros(3 * n)
        row[3 * k] = 1 / r
        rows.append(row)
        rights.append(seen[k] / r)
    for k in range(n - 1):
        h = t[k + 1] - t[k]
        F = np.array([[1, h, h**2 / 2], [0, 1, h], [0, 0, 1]])
        Q = np.array([[h**5 / 20, h**4 / 8, h**3 / 6], [h**4 / 8, h**3 / 3, h**2 / 2],
                      [h**3 / 6, h**2 / 2, h]])  # fmt: skip
        W = np.linalg.inv(np.linalg.cholesky(jerk**2 * Q))
        block = np.zeros((3, 3 * n))
        block[:, 3 * k : 3 * k + 3], block[:, 3 * k + 3 : 3 * k + 6] = -W @ F, W
        rows += list(block)
        rights += [np.zeros(2)] * 3
    A = np.array(rows)
    x = np.linalg.lstsq(A, np.array(rights), rcond=None)[0].reshape(n, 3, 2)
    wide = np.sqrt(np.diag(np.linalg.inv(A.T @ A))).reshape(n, 3)
    found = smoothed(t, seen, r, jerk)
    for k, mine in enumerate((found.q, found.qd, found.qdd)):
        # The start is vague, not unknown: a millionth.
        np.testing.assert_allclose(mine, x[:, k], rtol=1e-4, atol=1e-4 * np.abs(x[:, k]).max())
        np.testing.assert_allclose(found.deviation[k], np.tile(wide[:, [k]], 2), rtol=1e-3)


def test_what_is_smoothed_is_nearer_to_the_truth_and_says_how_near():
    t, truth, seen = motion()
    found = smoothed(t, seen, 1e-3)
    for k, (mine, true) in enumerate(zip((found.q, found.qd, found.qdd), truth, strict=True)):
        z = (mine - true)[20:-20] / found.deviation[k][20:-20]
        assert 0.2 < np.sqrt((z**2).mean()) < 1.5
    assert np.abs(found.q - truth[0]).std() < 0.5e-3


def test_deviations_are_those_of_the_log_backwards_also_of_a_motion_that_hardly_jerks():
    """Where nothing is known of the start, time has no direction; its vagueness rounds nothing off."""
    t = 1e-3 * np.arange(300)
    seen = np.cos(3 * t)[:, None] + 1e-3 * np.random.default_rng(0).normal(size=(300, 1))
    for jerk in (30.0, 3.0, 0.1):
        found = smoothed(t, seen, 1e-3, jerk).deviation
        np.testing.assert_allclose(found, found[:, ::-1], rtol=2e-3, atol=0)


def test_a_log_is_smoothed_and_a_noise_of_nothing_is_refused():
    t, (_, qd, _), seen = motion()
    log = ts.identification.Log(t, seen, seen)
    again = log.smoothed(1e-3)
    assert np.abs(again.qd - qd).std() < 0.2 * np.abs(np.gradient(seen, t, axis=0) - qd).std()
    with pytest.raises(ts.FitError, match=r"the noise is 0\.0"):
        log.smoothed(0.0)


def test_positions_that_are_missing_or_far_off_tell_nothing():
    """The others are as if the log had been without these samples; a fit finds them as missing."""
    t, _, seen = motion()
    bad = np.zeros(seen.shape, bool)
    bad[[0, 50, 51, 399], 0] = True
    spoilt = np.where(bad, np.nan, seen)
    spoilt[200, 1] += 0.5  # an encoder's glitch
    bad[200, 1] = True
    log = ts.identification.Log(t, spoilt, seen)
    found, without = smoothed(t, spoilt, 1e-3), log.smoothed(1e-3)
    np.testing.assert_array_equal(found.unseen, bad)
    np.testing.assert_array_equal(np.isnan(without.q), bad)
    np.testing.assert_array_equal(np.isnan(without.qd), bad)
    for j in range(2):
        keep = ~bad[:, j]
        alone = smoothed(t[keep], seen[keep][:, [j]], 1e-3, found.jerk[j])
        for mine, other in ((found.q, alone.q), (found.qd, alone.qd), (found.qdd, alone.qdd)):
            size = np.abs(other).max()
            np.testing.assert_allclose(mine[keep, j], other[:, 0], atol=1e-5 * size)
        np.testing.assert_allclose(
            found.deviation[:, keep, j], alone.deviation[..., 0], rtol=1e-4, atol=0
        )


def test_logs_that_are_joined_are_smoothed_each_by_itself():
    logs = [
        ts.identification.Log(t, x + 2.0 * k, x) for k in (0, 1) for t, _, x in [motion(seed=k)]
    ]
    joined = ts.identification.Log.joined(logs)
    both = smoothed(joined.t, joined.q, 1e-3, 40.0)
    alone = [smoothed(log.t, log.q, 1e-3, 40.0) for log in logs]
    for k, name in enumerate(("q", "qd", "qdd")):
        parts = np.concatenate([getattr(x, name) for x in alone])
        off = np.abs(getattr(both, name) - parts) / both.deviation[k]
        assert off.max() < 0.01  # starts are vague, and rounded as such
    parts = np.concatenate([x.deviation for x in alone], 1)
    np.testing.assert_allclose(both.deviation, parts, rtol=1e-3)


def test_a_log_in_single_precision_is_smoothed_in_double():
    t, _, seen = motion()
    single = ts.identification.Log(t, seen.astype(np.float32), seen).smoothed(1e-3)
    np.testing.assert_allclose(
        single.q, ts.identification.Log(t, seen, seen).smoothed(1e-3).q, atol=1e-6
    )


def test_what_cannot_be_smoothed_is_refused_by_name():
    t, _, seen = motion()
    late = t.copy()
    late[100] = late[99]
    none = t.copy()
    none[100] = np.nan
    for log, options, match in (
        (ts.identification.Log(late, seen, seen), (1e-3,), "the time at sample 100 is"),
        (ts.identification.Log(none, seen, seen), (1e-3,), "the time at sample 100 is nan"),
        (
            ts.identification.Log(t, np.tile(seen, (1, 2)), seen),
            (1e-3,),
            "4 positions and 2 forces",
        ),
        (ts.identification.Log(t, seen, seen), ([1e-3] * 3,), "of each of 2"),
        (ts.identification.Log(t, seen, seen), (1e-3, -1.0), "the jerk is -1"),
        (ts.identification.Log(t, seen, seen), (1e-3, 0.0), "the jerk is 0"),
    ):
        with pytest.raises(ts.FitError, match=match):
            log.smoothed(*options)
