"""Motors, gears and delays: physical laws."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchsko as ts
from tests.strategies import agree

FLYWHEEL = 0.02  # [kg m^2]


def wheel() -> ts.Mechanism:
    builder = ts.MechanismBuilder()
    inertia = [[FLYWHEEL, 0, 0], [0, FLYWHEEL, 0], [0, 0, FLYWHEEL]]
    builder.link("wheel", mass=1.0, inertia=inertia)
    return builder.joint("axle", "revolute", child="wheel").build()


def number(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_speed_of_a_dc_motor_rises_with_its_time_constant():
    """With I w' = g k / R (u - k g w), U / (k g) - w shrinks by 1 - h / T per step, T = I R / (k g)^2."""
    k, R, U, g = 0.05, 1.2, 24.0, 10.0
    mech = wheel()
    motor = ts.actuators.Actuator.dc_motor(
        "m", "axle", torque_constant=k, resistance=R, voltage=U, gear=g
    )
    drive = ts.actuators.Actuators.of(mech, [motor])
    control = ts.actuators.ActuatedControl(drive, number(100.0))  # more than the supply voltage
    T = FLYWHEEL * R / (k * g) ** 2
    steps, dt = 60, T / 20
    qds = ts.rollout(mech, ts.State(number(0.0), number(0.0)), control, steps=steps, dt=dt).qd
    missing = (1 - dt / T) ** torch.arange(steps + 1, dtype=torch.float64)
    agree(qds, U / (k * g) * (1 - missing[:, None]), 1e-12)
    at_rest, _ = ts.actuators.actuate(mech, drive, number(0.0), number(0.0), ctrl=number(U))
    assert float(at_rest) == pytest.approx(g * k * U / R, rel=1e-14)


@settings(max_examples=30)
@given(st.floats(-30, 30), st.floats(-5, 5))
def test_a_torque_speed_curve_bounds_the_torque_and_ends_at_its_corners(speed, asked):
    mech, gear, stall, top = wheel(), 3.0, 2.0, 40.0
    drive = ts.actuators.Actuators.of(
        mech,
        [
            ts.actuators.Actuator.torque_source(
                "m", "axle", stall=stall, no_load_speed=top, gear=gear
            )
        ],
    )
    tau, _ = ts.actuators.actuate(mech, drive, number(0.0), number(speed), ctrl=number(asked))
    motor, w = float(tau) / gear, gear * speed
    assert -stall * (1 + w / top) - 1e-12 <= motor <= stall * (1 - w / top) + 1e-12
    if abs(asked) < stall * (1 - abs(w) / top):
        assert motor == pytest.approx(asked, abs=1e-12)


def test_the_torque_of_a_motor_at_its_top_speed_is_zero():
    mech = wheel()
    motor = ts.actuators.Actuator.torque_source("m", "axle", stall=2.0, no_load_speed=40.0)
    drive = ts.actuators.Actuators.of(mech, [motor])
    tau, _ = ts.actuators.actuate(mech, drive, number(0.0), number(40.0), ctrl=number(9.0))
    assert abs(float(tau)) < 1e-14
    control = ts.actuators.ActuatedControl(drive, number(9.0), implicit="velocity")
    qds = ts.rollout(mech, ts.State(number(0.0), number(0.0)), control, steps=60, dt=0.3).qd
    assert float(qds[-1]) == pytest.approx(40.0, rel=1e-6) and float(qds.max()) <= 40.0 + 1e-9


@settings(max_examples=50)
@given(st.floats(-30, 30), st.floats(-5, 5), st.floats(0.2, 1.0))
def test_a_gear_only_ever_takes_power(speed, torque, efficiency):
    mech = wheel()
    geared = ts.actuators.Actuator("m", {"axle": 2.0}, efficiency=efficiency)
    drive = ts.actuators.Actuators.of(mech, [geared])
    tau, _ = ts.actuators.actuate(mech, drive, number(0.0), number(speed), ctrl=number(torque))
    passed, given_ = float(tau) * speed, torque * 2.0 * speed
    assert passed <= given_ + 1e-12 * abs(given_)
    if abs(speed) > 1:  # the smoothing of the sign is negligible
        share = efficiency if given_ > 0 else 1 / efficiency
        assert passed == pytest.approx(share * given_, rel=1e-5, abs=1e-12)


def test_motors_have_gradients_and_gains_of_each_sample():
    mech = wheel()
    geared = ts.actuators.Actuator.torque_source(
        "m", "axle", stall=2.0, no_load_speed=40.0, efficiency=0.8
    )
    drive = ts.actuators.Actuators.of(mech, [geared])
    stall, droop, share = (x[:, None].requires_grad_() for x in (
        number(2.0, 3.0, 1.0), number(0.1, 0.2, 0.05), number(0.7, 0.9, 0.6)))  # fmt: skip
    q, qd, ctrl = number(0.0), number(3.0, -2.0, 5.0)[:, None], number(0.3, 9.0, -0.9)[:, None]

    def torque(stall, droop, share, qd, ctrl):
        other = drive.replace(stall=stall, droop=droop, efficiency=share)
        return ts.actuators.actuate(mech, other, q, qd, ctrl=ctrl)[0]

    inputs = (stall, droop, share, qd.requires_grad_(), ctrl.requires_grad_())
    assert torch.autograd.gradcheck(torque, inputs)
    no_curve = ts.actuators.Actuators.of(mech, [ts.actuators.Actuator.motor("m", "axle")])
    tau = ts.actuators.actuate(
        mech, no_curve.replace(efficiency=number(0.5)), q, qd[0], ctrl=ctrl[0]
    )[0]
    (slope,) = torch.autograd.grad(tau.sum(), qd)
    assert bool(slope.isfinite().all())  # infinite stall torque and range must not give nan


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_delay_shifts_controls_by_its_steps(late):
    mech, dt = wheel(), 0.01
    drive = ts.actuators.Actuators.of(mech, [ts.actuators.Actuator.motor("m", "axle")])
    sent = lambda t, q, qd: number(math.sin(7 * t) + 1)  # noqa: E731
    arriving = lambda t, q, qd: sent(t - late * dt, q, qd) * float(t > (late - 0.5) * dt)  # noqa: E731
    q = number(0.0)
    delayed = ts.actuators.ActuatedControl(drive, sent, delay=ts.actuators.Delay(late * dt, dt))
    ours = ts.rollout(mech, ts.State(q, q), delayed, steps=20, dt=dt).q
    theirs = ts.rollout(
        mech, ts.State(q, q), ts.actuators.ActuatedControl(drive, arriving), steps=20, dt=dt
    ).q
    agree(ours, theirs, 1e-13)


def test_delays_differ_by_actuator_and_sample_and_have_gradients():
    delay = ts.actuators.Delay(number(0.0, 0.004, 0.01, 0.025).reshape(2, 2), dt=0.01, samples=3)
    times = number(0.0, 0.004, 0.01, 0.025).reshape(2, 2).requires_grad_()

    def arrives(times: Tensor) -> Tensor:
        late = ts.actuators.Delay(times, dt=0.01, samples=3)
        on_its_way, found = late.initial_queue(torch.zeros(2, 1, dtype=torch.float64), 2), []
        for k in range(6):
            now, on_its_way = late.advance(number(k * k, -k), on_its_way)
            found.append(now)
        return torch.stack(found)

    assert delay.samples == 3 and ts.actuators.Delay(0.025, dt=0.01).samples == 3
    late = arrives(times)
    expected = torch.tensor([[25, -5 + 0.4], [16, -2.5]], dtype=torch.float64)
    agree(late[5].detach(), expected, 1e-12)
    (slope,) = torch.autograd.grad(late[5].sum(), times)
    agree(slope[:1, 1:], torch.tensor([[100.0]]).double(), 1e-9)  # d(-5 + T/h) / dT


def test_a_delay_that_outgrows_its_samples_is_refused():
    """Controls would be attenuated or lost; negative delays are refused as well."""
    mech = wheel()
    drive = ts.actuators.Actuators.of(mech, [ts.actuators.Actuator.motor("m", "axle")])
    time = torch.nn.Parameter(number(0.019))
    late = ts.actuators.ActuatedControl(
        drive, number(1.0), delay=ts.actuators.Delay(time, dt=0.01, samples=2)
    )
    q = number(0.0)
    ts.rollout(mech, ts.State(q, q), late, steps=3, dt=0.01).q.sum().backward()
    for learned, said in (
        (0.021, "3 time steps of 0.01 s, with samples=2"),
        (-0.001, "delay is -0.001"),
    ):
        time.data.fill_(learned)
        with pytest.raises(ts.TorchskoError, match=said):
            ts.rollout(mech, ts.State(q, q), late, steps=3, dt=0.01)
    for long in (0.03, number(0.03)):
        with pytest.raises(ts.TorchskoError, match="Pass samples=3 or more"):
            ts.actuators.Delay(long, dt=0.01, samples=2)
    for fits in (torch.zeros(0, 1).double(), torch.tensor(0.07)):  # seven steps, rounded to more
        assert ts.actuators.Delay(fits, dt=0.01, samples=7).samples == 7


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 1.5])
def test_a_delay_of_whole_steps_has_the_derivative_of_the_line_on_one_side(steps):
    """Regression: hat functions had twice this derivative at kinks, and the wrong sign at zero delay."""
    time = number(steps * 0.25).requires_grad_()
    late = ts.actuators.Delay(time, dt=0.25, samples=3)
    arrived, _ = late.advance(number(5.0, 9.0), number(3.0, 8.0, 1.0, 7.0, -1.0, 6.0))
    sent = number(5.0, 3.0, 1.0, -1.0), number(9.0, 8.0, 7.0, 6.0)
    for k, (line, slope) in enumerate(zip(sent, (-8.0, -4.0), strict=True)):
        assert arrived[k].item() == line[0].item() + slope * time.item()
        (to_time,) = torch.autograd.grad(arrived[k], time, retain_graph=True)
        assert to_time.item() == slope


@settings(max_examples=20)
@given(st.floats(0.0, 0.05))
def test_a_constant_control_is_late_only_at_the_start(time):
    late = ts.actuators.Delay(time, dt=0.01, before=number(2.0))
    on_its_way = late.initial_queue(number(0.0), 1)
    for _ in range(6):
        now, on_its_way = late.advance(number(2.0), on_its_way)
        agree(now[None], number(2.0)[None], 1e-12)


def test_invalid_motors_are_refused():
    refused = [
        (lambda: ts.actuators.Actuator("a", {}, efficiency=0.0), "efficiency of actuator 'a' is 0.0"),
        (lambda: ts.actuators.Actuator("a", {}, efficiency=1.5), "efficiency of actuator 'a' is 1.5"),
        (lambda: ts.actuators.Actuator("a", {}, stall=-1.0), "stall of actuator 'a'"),
        (lambda: ts.actuators.Actuator("a", {}, no_load_speed=0.0), "no_load_speed of actuator 'a'"),
        (lambda: ts.actuators.Delay(-0.1, dt=0.01), "delay is -0.1"),
        (lambda: ts.actuators.Delay(math.inf, dt=0.01), "delay is inf"),
        (lambda: ts.actuators.Delay(number(0.1, -0.2), dt=0.01), "delay is -0.2"),
        (lambda: ts.actuators.Delay(0.1, dt=0.01).check_step(0.02), "time step is 0.02"),
    ]  # fmt: skip
    for call, said in refused:
        with pytest.raises(ts.TorchskoError, match=said):
            call()
