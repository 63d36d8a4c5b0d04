"""Actuators with implicit damping and stiffness, against MuJoCo's implicitfast."""

import mujoco
import pytest
import torch

import torchsko as ts
from tests.actuators.test_actuation import (
    ALL,
    assert_one_kernel_is_eager,
    double_pendulum,
    mujoco_data,
    states,
    without_others,
)
from tests.actuators.test_tendons import MODEL as STRUNG
from tests.strategies import agree
from torchsko.actuators.tendons import Tendon, Tendons


def apart(model, steps: int, seed: int = 0, **choices) -> tuple[torch.Tensor, torch.Tensor]:
    """Difference of the configurations of a rollout and of MuJoCo, under random controls."""
    without_others(model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    mech = ts.from_mujoco(model).tree
    drive, tendons = ts.actuators.actuators_of(mech), ts.actuators.tendons_of(mech)
    q, qd, act, ctrl = (x[seed] for x in states(model, mech, drive, seed + 1))
    there, data = mujoco_data(model, mech, drive, q, qd, act, ctrl)
    theirs = []
    for _ in range(steps):
        mujoco.mj_step(model, data)
        theirs.append(torch.tensor(data.qpos))
    control = ts.actuators.ActuatedControl(drive, ctrl, act, tendons=tendons, **choices)
    dt = model.opt.timestep
    ours = ts.rollout(
        mech, ts.State(q, qd), steps=steps, dt=dt, control=control, nonfinite="ignore"
    ).q
    return there.q_to(ours[1:]), torch.stack(theirs)


def implicit_fast(text: str, dt: float):
    model = mujoco.MjModel.from_xml_string(text)
    model.opt.integrator, model.opt.timestep = mujoco.mjtIntegrator.mjINT_IMPLICITFAST, dt
    return model


STRONG = STRUNG.replace("</mujoco>", """<actuator>
  <velocity name="v" joint="knee" kv="40"/><position name="p" tendon="tight" kp="30" kv="20"/>
  <damper name="d" tendon="slack" kv="9" ctrlrange="0 2"/></actuator></mujoco>""").replace(
    'damping="3"', 'damping="30"')  # fmt: skip


@pytest.mark.parametrize(("text", "dt"), [(ALL, 0.01), (STRONG, 0.02)], ids=["all", "tendons"])
def test_steps_equal_implicitfast_of_mujoco(text, dt):
    ours, theirs = apart(implicit_fast(text, dt), 60, implicit="velocity")
    agree(ours, theirs, 1e-9)
    explicit, theirs = apart(implicit_fast(text, dt), 60)
    assert not (explicit - theirs).abs().max() < 1e-3  # explicit damping is unstable


def pendulum() -> ts.Mechanism:
    builder = ts.MechanismBuilder()
    builder.link("rod", mass=1.0, com=(0, 0, 0), inertia=[[2, 0, 0], [0, 2, 0], [0, 0, 2]])
    return builder.joint("j", "revolute", child="rod", axis=(0, 1, 0)).build()


@pytest.mark.parametrize("method", ["semi_implicit_euler", "implicit"])
@pytest.mark.parametrize("kp", [1.0, 1e3, 1e9])
def test_a_servo_steps_by_the_backward_euler_method_however_stiff(kp, method):
    mech, h, kv, I = pendulum(), 0.01, 0.3, 2.0
    drive = ts.actuators.Actuators.of(
        mech, [ts.actuators.Actuator.position("s", "j", kp=kp, kv=kv)]
    )
    q, qd = (torch.tensor([x], dtype=torch.float64) for x in (0.7, -0.4))
    control = ts.actuators.ActuatedControl(drive, torch.tensor([0.2]).double(), implicit="position")
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), control, steps=30, dt=h, method=method)
    x, v = 0.7, -0.4
    for k in range(30):
        v = (I * v - h * kp * (x - 0.2)) / (I + h * kv + h * h * kp)
        x = x + h * v
        assert float(qs[k + 1]) == pytest.approx(x, abs=1e-8)
        assert float(qds[k + 1]) == pytest.approx(v, abs=1e-6)


def test_the_spring_of_a_taut_tendon_steps_by_the_backward_euler_method():
    mech, h, k, d, I = pendulum(), 0.05, 80.0, 0.3, 2.0
    tendon = Tendon("t", {"j": 1.0}, stiffness=k, damping=d, relaxed=(-0.1, 0.2))
    drive = ts.actuators.Actuators.of(mech, [ts.actuators.Actuator.motor("m", "j")])
    tendons, ctrl = Tendons.of(mech, [tendon]), torch.tensor([0.0]).double()
    control = ts.actuators.ActuatedControl(drive, ctrl, implicit="position", tendons=tendons)
    for x in (0.7, 0.1):  # taut, and slack
        q, qd = (torch.tensor([y], dtype=torch.float64) for y in (x, -0.4))
        qds = ts.rollout(mech, ts.State(q, qd), control, steps=1, dt=h).qd
        spring = k if x > 0.2 else 0.0
        expected = (I * -0.4 - h * spring * (x - 0.2)) / (I + h * d + h * h * spring)
        assert float(qds[1]) == pytest.approx(expected, abs=1e-9)


def test_gradients_pass_through_implicit_actuators_and_gains_differ_by_sample():
    mech = pendulum()
    drive = ts.actuators.Actuators.of(
        mech, [ts.actuators.Actuator.position("s", "j", kp=50.0, kv=8.0)]
    )
    q, qd = (torch.tensor([[x], [-x]], dtype=torch.float64) for x in (0.7, -0.4))

    def end(kv: torch.Tensor, ctrl: torch.Tensor) -> torch.Tensor:
        bias = torch.stack([0 * kv, 0 * kv - 50.0, -kv], -1)
        control = ts.actuators.ActuatedControl(drive.replace(bias=bias), ctrl, implicit="position")
        return ts.rollout(mech, ts.State(q, qd), control, steps=5, dt=0.05).q[:, -1]

    kv = torch.tensor([[3.0], [9.0]], dtype=torch.float64, requires_grad=True)
    ctrl = torch.tensor([[0.1], [0.3]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(end, (kv, ctrl))
    one = ts.actuators.ActuatedControl(
        drive.replace(bias=torch.tensor([[0.0, -50.0, -9.0]]).double()), ctrl[1].detach(),
        implicit="position",
    )  # fmt: skip
    agree(
        end(kv, ctrl)[1:].detach(),
        ts.rollout(mech, ts.State(q[1], qd[1]), one, steps=5, dt=0.05).q[-1:],
        1e-14,
    )


def test_a_saturated_actuator_has_no_damping():
    mech = pendulum()
    servo = ts.actuators.Actuator.position("s", "j", kp=1e4, kv=1e3, force_range=(-2.0, 2.0))
    drive = ts.actuators.Actuators.of(mech, [servo])
    q, qd = torch.zeros(1).double(), torch.zeros(1).double()
    control = ts.actuators.ActuatedControl(drive, torch.ones(1).double(), implicit="position")
    qds = ts.rollout(mech, ts.State(q, qd), control, steps=1, dt=0.01).qd
    assert float(qds[-1]) == pytest.approx(0.01 * 2.0 / 2.0, rel=1e-14)


@pytest.mark.parametrize("implicit", ["velocity", "position"])
def test_the_loss_of_a_gear_holds_a_balanced_wheel_at_rest(implicit):
    """The loss of 5 N m at rest is a damping of 7500 N m s/rad, with which an explicit step chatters."""
    builder = ts.MechanismBuilder().link("wheel", mass=1.0, inertia=torch.eye(3).tolist())
    mech = builder.joint("axle", "revolute", child="wheel").build(gravity=(0, 0, 0))
    geared = ts.actuators.Actuator.torque_source(
        "geared", "axle", stall=1e3, no_load_speed=1e3, efficiency=0.5
    )
    drive = ts.actuators.Actuators.of(mech, [geared, ts.actuators.Actuator.motor("load", "axle")])
    ctrl, zero = torch.tensor([10.0, -10.0]).double(), torch.zeros(1).double()
    final = {}
    for choice in (None, implicit):
        control = ts.actuators.ActuatedControl(drive, ctrl, implicit=choice)
        qds = ts.rollout(mech, ts.State(zero, zero + 0.1), control, steps=100, dt=0.01).qd
        final[choice] = float(qds[-3:].abs().max())
    assert final[implicit] < 1e-12 and final[None] > 1e-2


def test_explicit_methods_and_clamped_efforts_refuse_implicit_actuators():
    mech = pendulum()
    drive = ts.actuators.Actuators.of(mech, [ts.actuators.Actuator.position("s", "j", kp=1e4)])
    q = torch.zeros(1).double()
    control = ts.actuators.ActuatedControl(drive, q, implicit="velocity")
    with pytest.raises(ts.TorchskoError, match="takes damping explicitly"):
        ts.rollout(mech, ts.State(q, q), control, steps=1, method="rk4")
    with pytest.raises(ts.TorchskoError, match="force_range"):
        ts.rollout(mech, ts.State(q, q), control, steps=1, effort="clamp")


@pytest.mark.parametrize("several", [False, True], ids=["joints", "a tendon"])
def test_a_rollout_through_implicit_actuators_is_one_kernel(several):
    mech = double_pendulum()
    belt = {"a_joint": 1.0, "b_joint": -0.5} if several else {"a_joint": 1.0}
    servo = ts.actuators.Actuator("servo", belt, (20.0, 0.0, 0.0), (0.0, -20.0, -1.0))
    drive = ts.actuators.Actuators.of(
        mech, [servo, ts.actuators.Actuator.motor("motor", "b_joint")]
    )
    ctrl = torch.tensor([0.5, 0.1], dtype=mech.dtype)
    control = ts.actuators.ActuatedControl(
        drive, ctrl, implicit="position", delay=ts.actuators.Delay(0.015, dt=1e-2)
    )
    assert_one_kernel_is_eager(mech, control)
