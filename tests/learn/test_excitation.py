"""Trajectories that tell most stay within limits, and tell more than random ones."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.learn.optimal import Judge


@pytest.fixture(scope="module")
def arm():
    mech = random_mechanism(["revolute", "revolute"], [-1, 0], seed=2)
    limit = torch.full((2,), 2.0, dtype=mech.dtype)
    return mech.replace(
        lower=-limit, upper=limit, velocity_limit=3 * limit, effort_limit=20 * limit
    )


def test_the_optimum_tells_more_than_random_motions_within_the_limits(arm):
    g = torch.Generator().manual_seed(0)
    best = ts.learn.optimal_trajectory(arm, harmonics=3, steps=60, generator=g)
    others = [ts.learn.exciting_trajectory(arm, harmonics=3, generator=g) for _ in range(4)]
    judge = Judge.of(arm, others[0], 0.8, {}, 60)
    told = [float(judge(x).information) for x in (best, *others)]
    assert told[0] > max(told[1:])
    q, qd, _ = best(torch.linspace(0, best.period, 60, dtype=arm.dtype))
    # Between the moments that were looked at it may go a little further.
    for x, limit in ((q, 2.0), (qd, 6.0)):
        assert x.abs().max() < 0.85 * limit


def test_frames_stay_in_their_boxes(arm):
    g = torch.Generator().manual_seed(0)
    frame = arm.body_names[1]
    at = ts.frame_pose(arm, torch.zeros(2, dtype=arm.dtype), (frame,)).position[0]
    free = ts.learn.exciting_trajectory(arm, harmonics=2, generator=g)
    t = torch.linspace(0, free.period, 60, dtype=arm.dtype)

    def away(motion):
        return (ts.frame_pose(arm, motion(t)[0], (frame,)).position[:, 0] - at).abs().max()

    size = 0.8 * float(away(free))
    box = {frame: ((at - size).tolist(), (at + size).tolist())}
    held = ts.learn.optimal_trajectory(arm, harmonics=2, workspace=box, steps=15, generator=g)
    assert away(held) < 1.05 * size < away(free)


def test_a_box_that_cannot_be_reached_is_refused(arm):
    box = {arm.body_names[1]: ((50.0, 50.0, 50.0), (51.0, 51.0, 51.0))}
    with pytest.raises(ts.FitError, match="no motion of 'random' within its limits"):
        ts.learn.optimal_trajectory(arm, harmonics=2, workspace=box, steps=2)


def test_a_trajectory_is_written_as_a_log_is_read(arm, tmp_path):
    motion = ts.learn.exciting_trajectory(arm, generator=torch.Generator().manual_seed(1))
    motion.write(tmp_path / "motion.csv", arm.joint_names, rate=100.0)
    names = (tmp_path / "motion.csv").read_text().splitlines()[0].split(",")
    table = np.genfromtxt(tmp_path / "motion.csv", delimiter=",", skip_header=1)
    assert names[0] == "t" and len(table) == 1000
    q, qd, qdd = motion(torch.from_numpy(table[:, 0]))
    joints = [f"{x}_{joint}" for x in ("q", "qd", "qdd") for joint in arm.joint_names]
    assert names[1:] == joints
    np.testing.assert_allclose(table[:, 1:], torch.cat([q, qd, qdd], 1), rtol=1e-6, atol=1e-6)
