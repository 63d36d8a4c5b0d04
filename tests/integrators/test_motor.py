"""Motors with feed-forward and PID (Isobe and Yagi, Eqs. 7-8) in closed loop, and controllers."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.integrators.controls import Controller
from torchsko.integrators.motor import PID, Motor, MotorControl

ROOT = Path(__file__).parent.parent.parent
MOTOR, GAINS = Motor(3.84e-4, 1.5e-4, 1.5e-4), PID(15.0, 0.80, 0.10)


def arm(passive=False):
    return random_mechanism(["revolute", "revolute", "prismatic"], [-1, 0, 0], 4, passive=passive)


def sway(t):
    """A motion of 0.5 rad and back in 2 s."""
    c, s, w = math.cos(math.pi * t), math.sin(math.pi * t), math.pi
    size = torch.tensor([0.5, -0.4, 0.1], dtype=torch.float64)
    return size * (1 - c) / 2, size * w * s / 2, size * w**2 * c / 2


def control(mech, **changes):
    return replace(MotorControl(mech, sway, MOTOR, GAINS), **changes)


def tracking_error(mech, steering, steps=200, duration=1.0, batch=()):
    plant, dt = MOTOR.on(mech), duration / steps
    start = [x.expand(*batch, -1) for x in sway(0.0)[:2]]
    with torch.no_grad():
        qs = ts.rollout(plant, ts.State(*start), steering, steps=steps, dt=dt, method="rk4").q
    target = torch.stack([sway(k * dt)[0] for k in range(steps + 1)])
    return (qs - target).abs().amax((-2, -1))


@pytest.mark.shows("Isobe and Yagi (undated), General-purpose expression", "Eqs. 7-8", MotorControl)
def test_the_torque_is_that_of_equations_7_and_8():
    mech = arm()
    steering = control(mech)
    g = torch.Generator().manual_seed(0)
    q, qd, integral = torch.randn(3, 3, generator=g, dtype=torch.float64)
    tau, memory = steering.act(0.3, 0.01, q, qd, integral)
    q_d, qd_d, qdd_d = sway(0.3)
    plant = MOTOR.on(mech)  # with the rotors, damping and friction of the dynamics
    motion = ts.inverse_dynamics(plant, q_d, qd_d, qdd_d)
    feedback = 15.0 * (q_d - q) + 0.80 * integral + 0.10 * (qd_d - qd)
    torch.testing.assert_close(tau, motion + feedback, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(memory, integral + 0.01 * (q_d - q))


def test_departs_friction_takes_the_sign_of_the_rate():
    """Eq. 7 prints f_c without a sign, which would accelerate a joint in negative direction."""
    mech, motor = arm(), replace(MOTOR, friction=0.5)
    steering = control(mech, motor=motor)
    frictionless = control(mech, motor=replace(motor, friction=0.0))
    bare = frictionless.motion_torque(0.3) + motor.friction
    q_d, qd_d, qdd_d = sway(0.3)
    needed = ts.inverse_dynamics(motor.on(mech), q_d, qd_d, qdd_d)
    torch.testing.assert_close(steering.motion_torque(0.3), needed)
    wrong = torch.tensor([0.0, 2 * motor.friction, 0.0], dtype=torch.float64)
    assert qd_d[1] < 0 < qd_d[0]
    torch.testing.assert_close(bare - needed, wrong)


def test_feed_forward_tracks_where_feedback_alone_lags():
    mech = arm()
    share = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    alone, forward = tracking_error(mech, control(mech, feed_forward=share), batch=(2,))
    assert forward < 0.02 * alone
    assert alone > 0.02


def test_what_feed_forward_leaves_is_the_holding_of_the_torque():
    mech = arm()
    errors = [tracking_error(mech, control(mech), steps, 0.4) for steps in (40, 80)]
    assert 0.7 < math.log2(errors[0] / errors[1]) < 1.3


def test_a_constant_disturbance_is_integrated_away():
    links = arm()
    # Inertias below kp kd / ki, so that the PID is stable.
    light = {name: 0.1 * getattr(links, name) for name in ("mass", "inertia")}
    mech = links.replace(gravity=torch.zeros(3, dtype=torch.float64), **light)
    still = (torch.zeros(3, dtype=torch.float64),) * 3
    spring = torch.tensor([2.0, 2.0, 2.0], dtype=torch.float64)
    pushed = mech.replace(stiffness=spring, spring_reference=torch.full((3,), 0.2).double())
    ends = []
    for ki in (0.0, 30.0):
        steering = control(mech, target=lambda t: still, pid=PID(15.0, ki, 6.0))
        with torch.no_grad():
            qs = ts.rollout(
                MOTOR.on(pushed), ts.State(still[0], still[0]), steering, steps=600, dt=1e-2
            ).q
        ends.append(qs[-1].abs().max())
    assert ends[0] > 0.01
    assert ends[1] < 0.05 * ends[0]


def test_connectivity_of_the_feed_forward_is_data():
    mech = random_mechanism(["revolute"] * 3, [-1, 0, 1], 4, passive=False)
    other = random_mechanism(["revolute"] * 3, [-1, 0, 0], 4, passive=False)
    known = mech.replace(joint_position=other.joint_position, joint_rotation=other.joint_rotation)
    parents = torch.tensor(other.parents)
    torque = control(known, parents=parents).motion_torque(0.7)
    torch.testing.assert_close(torque, control(other).motion_torque(0.7))


def test_a_controller_is_one_by_its_methods():
    assert isinstance(control(arm()), Controller)
    assert not isinstance(lambda t, q, qd: qd, Controller)


def test_memory_passes_through_checkpoints_gradients_and_vmap():
    mech = arm()
    q, qd, _ = sway(0.1)

    def end(kp, q, checkpoint=None):
        steering = control(mech, pid=PID(kp, 5.0, 0.1))
        qs = ts.rollout(
            MOTOR.on(mech), ts.State(q, qd), steering, steps=4, dt=1e-2, checkpoint=checkpoint
        ).q
        return qs[..., -1, :]

    kp = torch.tensor([15.0, 10.0, 5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda kp: end(kp, q), kp, check_forward_ad=True)
    plain = torch.autograd.grad(end(kp, q).sum(), kp)
    again = torch.autograd.grad(end(kp, q, checkpoint=2).sum(), kp)
    torch.testing.assert_close(again, plain)
    several = torch.stack([q, q + 0.1])
    mapped = torch.vmap(end, (None, 0))(kp.detach(), several)
    torch.testing.assert_close(mapped, end(kp.detach(), several))


@pytest.mark.nightly
def test_the_example_tracks_both_systems(tmp_path):
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/06_motor_tracking.py"), "--steps", "250"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    errors = [float(line.split()[-2]) for line in done.stdout.splitlines()[:4]]
    assert len(errors) == 4
    for alone, forward in (errors[:2], errors[2:]):
        assert forward < 0.2 * alone
    assert (tmp_path / "motor_tracking.png").stat().st_size > 10_000
