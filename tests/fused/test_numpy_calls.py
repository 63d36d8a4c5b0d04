"""`numpy` of a fused function gives arrays that equal the results of the call with tensors bit by bit."""

import sys

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.errors import FusedError, ShapeError

GAIN = torch.tensor(2.0, dtype=torch.float64)


def law(mech, q, qd, aim):
    """Computed torque, and the pose of the hand."""
    tau = ts.inverse_dynamics(mech, q, qd, GAIN * (aim - q) - qd)
    pose = ts.frame_pose(mech, q, "flange")
    return {"tau": tau, "pose": (pose.position, pose.rotation)}


@pytest.fixture(scope="module")
def arm():
    return ts.load(ts.robots.panda)


@pytest.fixture(scope="module")
def fast(arm):
    return ts.fuse(law, arm, shapes={"aim": (7,)})


def states(arm, *batch):
    g = torch.Generator().manual_seed(1)
    q, qd = arm.random_state(*batch, generator=g)
    return [x.numpy() for x in (q, qd, arm.random_state(*batch, generator=g)[0])]


def assert_equals_tensors(fast, *args, **kwargs):
    found = fast.numpy(*args, **kwargs)
    given = [torch.tensor(x) for x in args], {k: torch.tensor(x) for k, x in kwargs.items()}
    expected = fast(*given[0], **given[1])
    for x, y in zip(*map(torch.utils._pytree.tree_leaves, (found, expected)), strict=True):
        assert type(x) is np.ndarray and x.shape == tuple(y.shape)
        assert np.array_equal(x, y.numpy())
    return found


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (5000,)])
def test_arrays_of_each_batch_give_the_results_of_tensors(arm, fast, batch):
    found = assert_equals_tensors(fast, *states(arm, *batch))
    assert found["tau"].shape == (*batch, 7) and found["pose"][1].shape == (*batch, 3, 3)


def test_small_calls_use_the_native_call(arm, fast):
    q, qd, aim = states(arm, 4)
    fast.numpy(q, qd, aim)
    function, captured = fast.current(("q", "qd", "aim"))
    results = function.call_native((q, qd, aim, *captured))
    assert all(type(x) is np.ndarray for x in results)
    q[0, 0] = 7.0
    assert all(np.isfinite(x).all() for x in results) and results[0].flags.owndata


def test_views_keywords_and_shared_arguments_give_the_results_of_tensors(arm, fast):
    q, qd, aim = states(arm, 4)
    assert_equals_tensors(fast, q[::2], qd[::2], aim[::2])
    assert_equals_tensors(fast, np.asfortranarray(q), qd, aim)
    assert_equals_tensors(fast, q, qd, aim[0])
    assert_equals_tensors(fast, q, aim=aim, qd=qd)
    for x in (q, qd, aim):
        x.flags.writeable = False
    assert_equals_tensors(fast, q, qd, aim)
    assert_equals_tensors(fast, q[::2], qd[::2], aim[::2])


def test_arrays_that_do_not_fit_are_refused_by_name(arm, fast):
    q, qd, aim = states(arm)
    with pytest.raises(ShapeError, match=r"qd has shape \(6,\)"):
        fast.numpy(q, qd[:6], aim)
    with pytest.raises(ShapeError, match="float32"):
        fast.numpy(q, qd, aim.astype(np.float32))


def test_captured_values_are_read_at_each_call(arm):
    gain = [1.0]
    stiffness = torch.ones(7, dtype=torch.float64)
    fast = ts.fuse(lambda mech, q: gain[0] * stiffness * q, arm)
    q = states(arm)[0]
    assert np.array_equal(fast.numpy(q), q)
    stiffness.mul_(2)
    assert np.array_equal(fast.numpy(q), 2 * q)
    gain[0] = 3.0
    assert np.array_equal(fast.numpy(q), 6 * q)


def test_learned_parameters_are_read_without_gradients(arm):
    layer = ts.Dynamics(arm, learn={"link3.mass": ts.learn.Positive()})
    fast = ts.fuse(lambda mech, q: ts.gravity_force(mech, q), layer)
    q = states(arm)[0]
    assert np.array_equal(fast.numpy(q), fast(torch.tensor(q)).detach().numpy())


def test_results_that_do_not_equal_the_function_are_refused(arm):
    numbers = iter(range(10**6))
    fast = ts.fuse(lambda mech, q: q * next(numbers), arm)
    q = states(arm)[0]
    with pytest.raises(FusedError):
        for _ in range(8):
            fast.numpy(q)


def test_reference_counts_are_unchanged_by_a_call(arm, fast):
    given = states(arm)
    fast.numpy(*given)
    before = [sys.getrefcount(x) for x in given], sys.getrefcount(np.empty)
    for _ in range(1000):
        fast.numpy(*given)
    after = [sys.getrefcount(x) for x in given], sys.getrefcount(np.empty)
    assert after[0] == before[0] and abs(after[1] - before[1]) < 10
