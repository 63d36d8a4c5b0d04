"""A mask of the loss keeps samples that diverge out of the gradient of shared parameters."""

import warnings

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts

BALL = ts.load("""<mujoco><option timestep=".004"/><worldbody><geom type="plane" size="5 5 1"/>
<body pos="0 0 .0999"><freejoint/><geom size=".1" mass="1"/></body></worldbody></mujoco>""")
CONTACT = ts.ContactModel.of(BALL)
ARM = ts.load(ts.robots.panda)
GOOD = torch.tensor([True, False, True])


def masked(x):
    """Sum of the squares of finite vectors."""
    return torch.where(x.isfinite().all(-1, keepdim=True), x, 0.0).square().sum()


def balls(value):
    """Three balls of which one starts with a velocity."""
    start = ts.initial_state(BALL, 3)
    return start._replace(qd=torch.where(GOOD[:, None], start.qd + 0.1, value))


def one_step(mech, q, qd, tau):
    state = ts.step(mech, ts.State(q, qd), tau, contact=CONTACT)
    return ts.step(mech, state, tau, contact=CONTACT)[:2]


@pytest.fixture(scope="module")
def fused_ball():
    return ts.fuse(one_step, BALL, inputs=("mass",))


def ball_gradient(kind, fused_ball, state):
    """Gradients of a shared force and a shared mass through two steps."""
    mass, w = BALL.mass.clone().requires_grad_(), torch.full((6,), 0.2).double().requires_grad_()
    tau = w.expand(len(state.q), 6)
    robot = BALL.replace(mass=mass)
    if kind == "fused":
        q, qd = fused_ball.replace(mass=mass)(*state[:2], tau)
    elif kind == "step":
        q, qd = one_step(robot, *state[:2], tau)
    else:
        q, qd, *_ = ts.rollout(robot, state, tau, steps=2, method=ts.ContactStep(), nonfinite=kind)
        q, qd = q[:, -1], qd[:, -1]
    return torch.autograd.grad(masked(q) + masked(qd), (w, mass))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.some(8)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e200])
@pytest.mark.parametrize("kind", ["step", "fused", "warn", "ignore", "zero"])
def test_a_masked_sample_leaves_the_gradients_of_the_others(fused_ball, kind, value):
    state = balls(value)
    found = ball_gradient(kind, fused_ball, state)
    rest = ts.State(state.q[GOOD], state.qd[GOOD])
    assert_close(found, ball_gradient(kind, fused_ball, rest), rtol=1e-12, atol=1e-14)
    assert all(x.abs().max() > 1e-6 for x in found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["step", "fused", "warn"])
def test_gradients_are_zero_if_every_sample_diverges(fused_ball, kind):
    state = balls(torch.nan)
    state = ts.State(state.q[1:2].expand(2, -1), state.qd[1:2].expand(2, -1))
    assert not any(x.any() for x in ball_gradient(kind, fused_ball, state))


def failing(t, q, qd, *, gain, end):
    """A push whose force is infinite beyond a position."""
    return 5 * gain / (end - q).clamp(0, 1) - qd


@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_finite_part_of_a_sample_that_diverges_has_its_gradient(fused):
    q, qd = ARM.random_state(3, generator=torch.Generator().manual_seed(0))
    end = q + torch.where(GOOD, 10.0, 0.01)[:, None]
    mass = ARM.mass.clone().requires_grad_()
    robot = (ts.fuse(ARM, inputs=("mass",)) if fused else ARM).replace(mass=mass)

    def gradients(steps, rows):
        gain = torch.ones(3, 1).double()[rows].requires_grad_()
        params = {"gain": gain, "end": end[rows]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            qs, qds, _, taus, *_ = ts.rollout(
                robot, ts.State(q[rows], 0 * qd[rows]), failing, steps=steps, dt=0.005, fused=fused,
                params=params,
            )  # fmt: skip
        return qs, torch.autograd.grad(masked(qs) + masked(qds) + masked(taus), (mass, gain))

    qs, (of_mass, of_gain) = gradients(8, slice(None))
    count = int(qs[1].isfinite().all(-1).sum())
    assert 2 < count < 8 and qs[GOOD].isfinite().all()
    _, (rest_mass, rest_gain) = gradients(8, GOOD)
    _, (own_mass, own_gain) = gradients(count - 1, slice(1, 2))
    assert_close(of_gain[GOOD], rest_gain, rtol=1e-9, atol=1e-12)
    assert_close(of_gain[1:2], own_gain, rtol=1e-9, atol=1e-12)
    assert_close(of_mass, rest_mass + own_mass, rtol=1e-9, atol=1e-12)


def test_gradients_of_zero_cotangents_keep_their_derivatives():
    """The JVP as the VJP of the VJP at a zero cotangent."""
    fast, (q, qd) = ts.fuse(ARM), ARM.random_state(generator=torch.Generator().manual_seed(0))
    direction = torch.linspace(-1, 1, 7).double()

    def tangent(mech):
        def acceleration(q):
            return ts.forward_dynamics(mech, q, qd, qd)

        return torch.autograd.functional.jvp(acceleration, (q,), (direction,))[1]

    assert_close(tangent(fast), tangent(ARM), rtol=1e-9, atol=1e-9)


def test_kernels_of_functions_have_the_choices_of_rollouts():
    def force(mech, q, qd):
        return ts.inverse_dynamics(mech, q, qd, qd), q * 2

    q, qd = ARM.random_state(3, generator=torch.Generator().manual_seed(0))
    qd = torch.where(GOOD[:, None], qd, torch.nan)
    mass = ARM.mass.clone().requires_grad_()

    def kernel(choice):
        return ts.fuse(force, ARM, inputs=("mass",), nonfinite=choice).replace(mass=mass)

    def gradient(choice, rows):
        tau, twice = kernel(choice)(x, qd)
        return torch.autograd.grad(masked(tau) + twice[rows].sum(), (mass, x))

    x = q.requires_grad_()
    of_good, of_all = gradient("ignore", GOOD), gradient("zero", slice(None))
    assert_close(of_all, of_good, rtol=0, atol=0)
    assert not of_all[1][1].any() and (of_all[1][GOOD] != 0).any()
    with pytest.warns(RuntimeWarning, match=r"(?s)force are not finite in 1 samples.*\[1\]"):
        kernel("warn")(x, qd)
    with pytest.raises(ts.NonFiniteError, match=r"(?s)force are not finite.*Reset the sample"):
        kernel("raise")(x, qd)
    with pytest.raises(ts.TorchskoError, match="skip"):
        kernel("skip")
    with pytest.raises(ts.FusedError, match=r"(?s)without a function.*ts.rollout"):
        ts.fuse(ARM, nonfinite="zero")
