"""Smooth contact obeys Coulomb's law and the rolling of a ball, and has exact gradients."""

import math

import pytest
import torch

import torchsko as ts

pytest.importorskip("mujoco")

BALL = """<mujoco><worldbody><geom type="plane" size="9 9 1" friction="0.5"/>
<body pos="0 0 0.1"><freejoint/><geom size="0.1" mass="1" friction="0.5"/></body></worldbody></mujoco>"""
SLED = """<mujoco><worldbody><geom type="plane" size="9 9 1" friction="0.5"/><body pos="0 0 0.1">
<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>
<geom size="0.1" mass="1" friction="0.5"/></body></worldbody></mujoco>"""
LEG = """<mujoco><worldbody><geom type="plane" size="9 9 1" friction="0.5"/><body pos="0 0 0.3">
<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/><geom size="0.05" mass="1"/>
<body><joint name="knee" axis="0 1 0" limited="true" range="-10 60" frictionloss="0.2" damping="0.1"/>
<geom name="foot" size="0.05" pos="0.05 0 -0.26" mass="0.3"/></body></body></worldbody></mujoco>"""
DT = 0.002


def speed_along_x(mech, speed):
    """Velocity of a translation along x."""
    at = 3 if mech.num_dof == 6 else 0
    return speed * torch.eye(mech.num_dof, dtype=mech.dtype)[at]


def simulate(mech, qd, steps, **parameters):
    """The state after steps that begin at the height of rest."""
    contact, state = ts.contact.SmoothContact.of(mech, **parameters), ts.State(mech.initial(), qd)
    for _ in range(steps):
        state = ts.step(mech, state, contact=contact, dt=DT)
    return state


def test_a_body_slides_the_distance_of_coulombs_law():
    sled = ts.load(SLED)
    state = simulate(sled, speed_along_x(sled, 1.0), 150)
    assert float(state.q[0]) == pytest.approx(1.0 / (2 * 0.5 * 9.81), rel=0.02)


def test_a_sliding_ball_rolls_at_five_sevenths_of_its_speed():
    ball = ts.load(BALL)
    state = simulate(ball, speed_along_x(ball, 1.0), 120, slip=0.02)
    forward = float(state.q[0])  # of the next step, in inertial axes
    contact = ts.contact.SmoothContact.of(ball, slip=0.02)
    forward = float(ts.step(ball, state, contact=contact, dt=DT).q[0]) - forward
    assert forward / DT == pytest.approx(5 / 7, rel=5e-3)
    assert 0.1 * float(state.qd[1]) == pytest.approx(5 / 7, rel=5e-3)


@pytest.mark.parametrize(("stiffness", "width"), [(1e3, 1e-2), (1e4, 5e-4), (1e6, 1e-4)])
def test_a_body_rests_at_the_stated_height(stiffness, width):
    ball = ts.load(BALL)
    depth = width * math.log(math.exp(9.81 / (stiffness * width)) - 1)
    q = ball.initial() - depth * torch.eye(7, dtype=ball.dtype)[2]
    contact = ts.contact.SmoothContact.of(ball, stiffness=stiffness, width=width)
    state = ts.State(q, torch.zeros(6, dtype=ball.dtype))
    for _ in range(5):
        state = ts.step(ball, state, contact=contact, dt=DT)
    torch.testing.assert_close(state.q, q, rtol=0, atol=1e-12)
    assert float(state.qd.abs().max()) < 1e-11


def leg_states():
    """A leg whose foot touches the floor and whose knee is at its limit."""
    leg = ts.load(LEG)
    q = leg.initial() + torch.tensor([[0, 0.0, -0.16], [0, 0.005, 0.2]], dtype=leg.dtype)
    qd = torch.tensor([[0.2, -0.1, -0.3], [-0.3, 0.05, 0.4]], dtype=leg.dtype)
    return leg, q, qd, torch.zeros_like(qd)


def smooth_step(leg, q, qd, tau, mass, friction, stiffness, width, dissipation, slip):
    contact = ts.contact.SmoothContact.of(leg)
    contact = contact.replace(
        shapes=contact.shapes.replace(friction=friction), stiffness=stiffness, width=width,
        dissipation=dissipation, slip=slip,
    )  # fmt: skip
    state = ts.step(leg.replace(mass=mass), ts.State(q, qd), tau, contact=contact, dt=DT)
    return state.q, state.qd


def test_a_step_has_exact_gradients():
    leg, *states = leg_states()
    contact = ts.contact.SmoothContact.of(leg)
    names = ("stiffness", "width", "dissipation", "slip")
    inputs = [*states, leg.mass, contact.shapes.friction, *(getattr(contact, x) for x in names)]
    inputs = [x.clone().requires_grad_() for x in inputs]
    options = {"eps": 1e-7, "atol": 1e-5, "rtol": 1e-5, "fast_mode": True}
    assert torch.autograd.gradcheck(
        lambda *x: smooth_step(leg, *x), inputs, check_forward_ad=True, **options
    )


def test_a_kernel_equals_the_eager_step():
    leg, q, qd, tau = leg_states()
    contact = ts.contact.SmoothContact.of(leg)

    def one_step(mech, q, qd, tau):
        return ts.step(mech, ts.State(q, qd), tau, contact=contact, dt=DT)[:2]

    found, expected = ts.fuse(one_step, leg)(q, qd, tau), one_step(leg, q, qd, tau)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_an_integrator_is_refused():
    ball = ts.load(BALL)
    state = ts.State(ball.initial(), torch.zeros(6, dtype=ball.dtype))
    with pytest.raises(ts.MechanismError, match="RK4"):
        ts.step(ball, state, contact=ts.contact.SmoothContact.of(ball), integrator="RK4")
