"""One step without a rollout equals the step of a rollout, in all modes and with gradients."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.integrators.test_rollout_laws import ARM
from torchsko.integrators.integrators import INTEGRATORS


@pytest.fixture(scope="module")
def fast():
    return ts.fuse(ARM)


def given(*batch):
    g = torch.Generator().manual_seed(0)
    q, qd, tau = (torch.randn(*batch, 2, generator=g, dtype=torch.float64) for _ in range(3))
    f_ext = torch.randn(*batch, 2, 6, generator=g, dtype=torch.float64)
    return [x.requires_grad_() for x in (q, qd, tau, f_ext)]


@pytest.mark.parametrize(
    ("mode", "method"),
    [
        *(("eager", name) for name in INTEGRATORS),
        ("layer", "rk4"),
        ("kernel", "semi_implicit_euler"),
    ],
)
def test_advance_is_the_first_step_of_a_rollout(fast, method, mode):
    robot = {"eager": ARM, "layer": ts.Dynamics(ARM), "kernel": fast}[mode]
    for batch in ((), (3,)):
        q, qd, tau, f_ext = leaves = given(*batch)
        found = ts.integrators.advance(
            robot, ts.State(q, qd), tau, dt=0.01, f_ext=f_ext, method=method
        )[:2]
        rows = ts.rollout(
            ARM, ts.State(q, qd), tau, steps=1, dt=0.01, method=method, f_ext=f_ext, fused=False
        )[:2]
        expected = tuple(x[..., 1, :] for x in rows)
        assert_close(found, expected, rtol=1e-11, atol=1e-12)
        mine, theirs = (
            torch.autograd.grad(sum(x.square().sum() for x in ends), leaves)
            for ends in (found, expected)
        )
        assert_close(mine, theirs, rtol=1e-9, atol=1e-10)
    with torch.no_grad():
        assert_close(
            ts.integrators.advance(
                robot, ts.State(q, qd), tau, dt=0.01, f_ext=f_ext, method=method
            )[:2],
            expected,
        )


@pytest.mark.parametrize("mode", ["eager", "kernel"])
def test_each_sample_has_its_time_step(fast, mode):
    robot = ARM if mode == "eager" else fast
    q, qd, tau, _ = given(3)
    dt = torch.tensor([0.01, 0.02, -0.01]).double()
    found = ts.integrators.advance(robot, ts.State(q, qd), tau, dt=dt)[:2]
    for k in range(3):
        one = ts.integrators.advance(robot, ts.State(q[k], qd[k]), tau[k], dt=float(dt[k]))[:2]
        assert_close([x[k] for x in found], [*one])


def test_arguments_that_do_not_fit_are_refused(fast):
    q, qd, tau, _ = given(3)
    for robot in (ARM, fast):
        with pytest.raises(ts.TorchskoError, match="method"):
            ts.integrators.advance(robot, ts.State(q, qd), tau, dt=0.01, method="euler")
        with pytest.raises(ts.TorchskoError, match="dt is nan"):
            ts.integrators.advance(robot, ts.State(q, qd), tau, dt=float("nan"))
        with pytest.raises(ts.ShapeError, match="tau"):
            ts.integrators.advance(robot, ts.State(q, qd), tau[:, :1], dt=0.01)
