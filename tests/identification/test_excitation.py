"""Optimal trajectories stay within limits, and carry more information than random ones."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.identification.excitation.trajectory_objective import TrajectoryObjective


@pytest.fixture(scope="module")
def arm():
    mech = random_mechanism(["revolute", "revolute"], [-1, 0], seed=2)
    limit = torch.full((2,), 2.0, dtype=mech.dtype)
    return mech.replace(
        lower=-limit, upper=limit, velocity_limit=3 * limit, effort_limit=20 * limit
    )


def test_the_optimum_has_more_information_than_random_motions(arm):
    g = torch.Generator().manual_seed(0)
    best = ts.identification.optimal_trajectory(arm, harmonics=3, steps=60, generator=g)
    others = [
        ts.identification.exciting_trajectory(arm, harmonics=3, generator=g) for _ in range(4)
    ]
    objective = TrajectoryObjective.of(arm, others[0], 0.8, {}, 60)
    information = [float(objective.evaluate(x).information) for x in (best, *others)]
    assert information[0] > max(information[1:])


def parts_of_limits(mech, motion):
    """Largest parts of the limits of positions, velocities and forces that are used, at 20000 samples."""
    state = motion(torch.linspace(0, motion.period, 20_000, dtype=mech.dtype))
    middle, half = (mech.upper + mech.lower) / 2, (mech.upper - mech.lower) / 2
    used = (
        ((state[0] - middle) / half),
        state[1] / mech.velocity_limit,
        ts.inverse_dynamics(mech, *state) / mech.effort_limit,
    )
    return [float(x.abs().max()) for x in used]


@pytest.mark.parametrize(
    ("harmonics", "limit_fraction", "effort", "steps"),
    [(3, 0.8, 40.0, 15), (20, 1.0, 400.0, 15), (12, 1.0, 40.0, 40)],
)
def test_limits_hold_between_samples(arm, harmonics, limit_fraction, effort, steps):
    """Limits of velocities bind, and limits of forces."""
    mech = arm.replace(effort_limit=torch.full((2,), effort, dtype=arm.dtype))
    g = torch.Generator().manual_seed(0)
    best = ts.identification.optimal_trajectory(
        mech, harmonics=harmonics, steps=steps, limit_fraction=limit_fraction, generator=g
    )
    used = parts_of_limits(mech, best)
    assert 0.7 * limit_fraction < max(used) <= limit_fraction, used
    for _ in range(4):
        random = ts.identification.exciting_trajectory(
            mech, harmonics=harmonics, limit_fraction=limit_fraction, generator=g
        )
        used = parts_of_limits(mech, random)[:2]
        assert 0.99 * limit_fraction < max(used) <= limit_fraction, used


def test_a_limit_on_one_side_alone_holds(arm):
    """A joint from 3.5 rad on, and one up to -4 rad, as SDF has them: both lie beyond half a turn."""
    inf = torch.inf
    mech = arm.replace(
        lower=torch.tensor([3.5, -inf]).to(arm.lower), upper=torch.tensor([inf, -4.0]).to(arm.upper)
    )
    g, t = torch.Generator().manual_seed(0), torch.linspace(0, 10.0, 20_000).to(arm.lower)
    for motion in (
        ts.identification.exciting_trajectory(mech, harmonics=3, generator=g),
        ts.identification.optimal_trajectory(mech, harmonics=3, steps=30, generator=g),
    ):
        q = motion(t)[0]
        assert bool((q >= mech.lower).all() and (q <= mech.upper).all())
        assert float((q.amax(0) - q.amin(0)).min()) > 0.5
    # The objective includes the limit: the result does not only start within it.
    objective = TrajectoryObjective.of(mech, motion, 0.8, {}, 60)
    out = ts.identification.Trajectory(
        torch.tensor([3.4, -3.9]).to(arm.lower), motion.cosine, motion.sine, 10.0
    )
    assert bool((objective.worst_violations(out)[:2] > 0).all())


OPTIONS = [
    ({"period": 0.0}, "period is 0.0"),
    ({"period": -3.0}, "period is -3.0"),
    ({"harmonics": 0}, "harmonics is 0"),
    ({"harmonics": 2.5}, "harmonics is 2.5"),
    ({"limit_fraction": 2.0}, "limit_fraction is 2.0"),
    ({"limit_fraction": 0.0}, "limit_fraction is 0.0"),
    ({"limit_fraction": float("nan")}, "limit_fraction is nan"),
]

OPTIMUM_OPTIONS = [
    ({"steps": -1}, "steps is -1"),
    ({"samples": 1}, "samples is 1"),
    ({"workspace": {"hand": ((0, 0, 0), (1, 1, 1))}}, "no frame is named 'hand'"),
    ({"workspace": {"body_1": ((0, 0), (1, 1))}}, "the box of frame"),
    ({"workspace": {"body_1": ((1, 1, 1), (0, 0, 0))}}, "the box of frame"),
]


@pytest.mark.parametrize(("options", "match"), [*OPTIONS, *OPTIMUM_OPTIONS], ids=str)
def test_options_out_of_range_are_refused_by_name(arm, options, match):
    if "body_1" in options.get("workspace", {}):
        options = {"workspace": {arm.body_names[1]: options["workspace"]["body_1"]}}
    motions = [ts.identification.optimal_trajectory]
    motions += [ts.identification.exciting_trajectory] if (options, match) in OPTIONS else []
    for motion in motions:
        with pytest.raises(ts.FitError, match=match) as error:
            motion(arm, **options)
        assert str(error.value).count("\n") == 2


@pytest.mark.parametrize(
    ("field", "called"),
    [("velocity_limit", "velocity limit"), ("effort_limit", "effort limit"), ("upper", "range")],
)
def test_limits_of_a_file_that_are_zero_are_refused_by_name_and_joint(arm, field, called):
    value = torch.stack(
        [getattr(arm, field)[0], getattr(arm, "lower" if field == "upper" else field)[1]]
    )
    if field != "upper":
        value[1] = 0.0
    still, name = arm.replace(**{field: value}), arm.joint_names[1]
    match = rf"(?s)the {called}.* of joint '{name}' is 0.*mech.replace\({field}="
    with pytest.raises(ts.FitError, match=match):
        ts.identification.optimal_trajectory(still)
    if field == "effort_limit":
        t = np.arange(400) / 100
        log = ts.identification.Log(t, np.stack([np.sin(t)] * 2, 1), np.stack([np.cos(t)] * 2, 1))
        with pytest.raises(ts.FitError, match=match):
            ts.identification.identify(still, log)
    else:
        with pytest.raises(ts.FitError, match=match):
            ts.identification.exciting_trajectory(still)


def test_frames_stay_in_their_boxes(arm):
    g = torch.Generator().manual_seed(0)
    frame = arm.body_names[1]
    at = ts.frame_pose(arm, torch.zeros(2, dtype=arm.dtype), (frame,)).position[0]
    free = ts.identification.exciting_trajectory(arm, harmonics=2, generator=g)
    t = torch.linspace(0, free.period, 60, dtype=arm.dtype)

    def away(motion):
        return (ts.frame_pose(arm, motion(t)[0], (frame,)).position[:, 0] - at).abs().max()

    size = 0.8 * float(away(free))
    box = {frame: ((at - size).tolist(), (at + size).tolist())}
    boxed = ts.identification.optimal_trajectory(
        arm, harmonics=2, workspace=box, steps=15, generator=g
    )
    assert away(boxed) < 1.05 * size < away(free)


def test_a_box_that_cannot_be_reached_is_refused(arm):
    box = {arm.body_names[1]: ((50.0, 50.0, 50.0), (51.0, 51.0, 51.0))}
    match = rf"no motion of 'random' within its limits.*of frame '{arm.body_names[1]}'"
    with pytest.raises(ts.FitError, match=match):
        ts.identification.optimal_trajectory(arm, harmonics=2, workspace=box, steps=2)


def test_a_trajectory_is_written_as_a_log_is_read(arm, tmp_path):
    motion = ts.identification.exciting_trajectory(arm, generator=torch.Generator().manual_seed(1))
    motion.write(tmp_path / "motion.csv", arm.joint_names, rate=100.0)
    names = (tmp_path / "motion.csv").read_text().splitlines()[0].split(",")
    table = np.genfromtxt(tmp_path / "motion.csv", delimiter=",", skip_header=1)
    assert names[0] == "t" and len(table) == 1000
    q, qd, qdd = motion(torch.from_numpy(table[:, 0]))
    joints = [f"{x}_{joint}" for x in ("q", "qd", "qdd") for joint in arm.joint_names]
    assert names[1:] == joints
    np.testing.assert_allclose(table[:, 1:], torch.cat([q, qd, qdd], 1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("names", "options", "path", "match"),
    [
        (["a"], {}, "x.csv", "1 names were given for the 2 dofs"),
        (["a", "a"], {}, "x.csv", "1 names were given for the 2 dofs"),
        (["a", "b"], {"rate": 0.0}, "x.csv", "rate is 0.0"),
        (["a", "b"], {}, "none/x.csv", "its folder does not exist"),
    ],
)
def test_a_trajectory_that_cannot_be_written_leaves_no_file(
    arm, tmp_path, names, options, path, match
):
    motion = ts.identification.exciting_trajectory(arm, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ts.FitError, match=match):
        motion.write(tmp_path / path, names, **options)
    assert not list(tmp_path.iterdir())
