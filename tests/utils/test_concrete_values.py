"""A check looks at numbers where they are there, and never where looking would change what is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

import torchsko as ts
from torchsko.errors import TorchskoError
from torchsko.utils.concrete_values import concrete_values

torch.manual_seed(0)


def seen_by(x: Tensor, transform) -> list:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append(concrete_values(x))
        return x.sum()

    transform(look)(x)
    return seen


def test_numbers_are_seen_through_derivatives_and_not_of_mapped_samples():
    x = torch.randn(4, dtype=torch.float64)
    for transform in (lambda f: f, grad, lambda f: grad(lambda x: grad(f)(x).sum())):
        for found in seen_by(x, transform):
            np.testing.assert_array_equal(found, x.numpy())
    rows = x.expand(3, 4)
    assert seen_by(rows, vmap) == [None]
    assert seen_by(rows, lambda f: vmap(grad(f))) == [None]


def test_numbers_are_read_under_a_default_device_and_not_under_other_modes():
    class Recorder(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    x = torch.arange(3.0)
    with torch.device("meta"):
        np.testing.assert_array_equal(concrete_values(x), x.numpy())
        with Recorder():
            assert concrete_values(x) is None
    with Recorder(), torch.device("cpu"):
        assert concrete_values(x) is None


def test_numbers_of_every_type_and_of_what_learns():
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool):
        x = torch.tensor([0, 1], dtype=dtype)
        found = concrete_values(x)
        assert found is not None and found.tolist() == [0, 1]
    learned = torch.nn.Parameter(torch.ones(2))
    found = concrete_values(learned)
    assert found is not None and found.tolist() == [1, 1]
    assert concrete_values(torch.ones(2, device="meta")) is None
    assert concrete_values(torch.ones(3), most=2) is None


def test_a_time_step_from_outside_is_an_input_of_a_kernel():
    slide = ts.MechanismBuilder("slide").link("mass", mass=1.0)
    mech = slide.joint("slide", "prismatic", child="mass").build()
    dt = torch.tensor(0.1, dtype=torch.float64)

    def end(mech, q, qd):
        return ts.rollout(mech, ts.State(q, qd), torch.zeros_like(qd), steps=2, dt=dt).q[..., -1, :]

    q, qd = torch.zeros(2, 3, 1, dtype=torch.float64), torch.ones(2, 3, 1, dtype=torch.float64)
    fast = ts.fuse(end, mech)
    torch.testing.assert_close(fast(q, qd), end(mech, q, qd))
    dt.mul_(2)  # read anew at each call
    torch.testing.assert_close(fast(q, qd), end(mech, q, qd))


@pytest.mark.parametrize("dt", [torch.tensor(0.05, dtype=torch.float64), np.float32(0.05)])
def test_a_problem_takes_any_number_of_seconds(dt):
    slide = ts.MechanismBuilder("slide").link("mass", mass=1.0)
    mech = slide.joint("slide", "prismatic", child="mass").build(gravity=(0, 0, 0))
    start, push = torch.zeros(1, dtype=torch.float64), torch.zeros(20, 1, dtype=torch.float64)

    def found(dt):
        phase = ts.control.Phase(
            mech, 20, dt, lambda mech, q, qd, u: 1e-2 * u, lambda mech, q, qd: q - 1
        )
        problem = ts.control.optimal_control([phase])
        return ts.control.ilqr(problem, start, start, push)

    torch.testing.assert_close(found(dt).q, found(float(dt)).q)
    with pytest.raises(TorchskoError, match="finite number of seconds"):
        found(-dt)
