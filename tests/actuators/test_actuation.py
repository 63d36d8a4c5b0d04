"""Actuators: forces and activations against MuJoCo, force laws, and rollouts."""

import math
import re

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.oracles.test_mjcf import gymnasium_models, names_of_joints
from tests.strategies import agree

BODY = '<inertial pos="0.1 0 -0.2" mass="1" diaginertia="0.05 0.06 0.04"/>'
ALL = f"""
<mujoco model="all"><compiler angle="radian" autolimits="true"/>
<option integrator="Euler" timestep="0.002"/>
<worldbody><site name="base"/>
  <body name="a" pos="0 0 1"><joint name="x" type="slide" axis="1 0 0" damping="0.3"/>
    <joint name="swing" axis="0 1 0" pos="0.1 0 0" ref="0.3" damping="0.5"/>{BODY}
    <body name="b" pos="0.2 0 0"><joint name="knee" axis="0 1 0" damping="0.2" armature="0.1"
        actuatorfrcrange="-3 4"/>{BODY}
      <body name="c" pos="0.1 0 0.4"><joint name="slider" type="slide" axis="1 0 1" ref="0.1"/>{BODY}
        <body name="d"><joint name="ball" type="ball" damping="0.1"/>{BODY}
          <site name="tip" pos="0 0 0.1"/></body></body></body></body>
</worldbody>
<tendon><fixed name="both"><joint joint="knee" coef="0.7"/><joint joint="slider" coef="-1.3"/></fixed>
  <spatial name="string"><site site="tip"/><site site="base"/></spatial></tendon>
<actuator>
  <motor name="motor" joint="x" gear="3" ctrlrange="-0.5 0.5"/>
  <position name="position" joint="swing" kp="20" kv="1.5" forcerange="-4 4"/>
  <position name="late" joint="knee" kp="30" timeconst="0.05" ctrlrange="-1 1"/>
  <velocity name="velocity" joint="slider" kv="7" gear="-0.4"/>
  <intvelocity name="intvelocity" joint="knee" kp="11" kv="0.3" actrange="-0.6 0.6"/>
  <damper name="damper" joint="swing" kv="4" ctrlrange="0 2"/>
  <cylinder name="cylinder" joint="slider" area="0.02" timeconst="0.3" bias="1 2 3"/>
  <general name="general" joint="knee" gainprm="1 2 3" gaintype="affine" biastype="affine"
    biasprm="0.4 0.5 0.6" dyntype="filter" dynprm="0.02" actearly="true" actlimited="true"
    actrange="-0.4 0.4"/>
  <general name="exact" joint="x" dyntype="filterexact" dynprm="0.01" actearly="true"/>
  <general name="sum" joint="swing" dyntype="integrator" biastype="none" gainprm="2"/>
  <motor name="tendon" tendon="both" gear="2"/>
  <motor name="site" site="tip" gear="1 0 0 0 0 0"/>
  <motor name="string" tendon="string"/>
  <muscle name="muscle" joint="knee" lengthrange="0.1 1"/>
  <motor name="ball" joint="ball" gear="1 0 0"/>
</actuator></mujoco>
"""
LEFT_OUT = {"site", "string", "muscle", "ball"}


def states(
    model, mech: ts.Mechanism, drive: ts.actuators.Actuators, batch: int
) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    q, _ = mech.random_state(batch, generator=g)
    sizes = (mech.num_dof, len(drive.activation_names), len(drive.names))
    return (q, *(torch.randn(batch, n, generator=g, dtype=q.dtype) for n in sizes))


def without_others(model) -> None:
    """Actuators that are not modeled are disabled in MuJoCo."""
    for i in range(len(model.actuator_trntype)):
        if model.actuator(i).name in LEFT_OUT:
            model.actuator_gear[i] = 0.0
            model.actuator_gaintype[i], model.actuator_biastype[i] = 0, 0
            model.actuator_gainprm[i], model.actuator_biasprm[i] = 0.0, 0.0


def against_mujoco(model, batch: int = 6) -> ts.actuators.Actuators:
    mech = ts.from_mujoco(model)
    drive = ts.actuators.actuators_of(mech)
    without_others(model)
    there = ts.conventions("mujoco", mech, names_of_joints(model))
    q, qd, act, ctrl = states(model, mech, drive, batch)
    tau, rate = ts.actuators.actuate(mech, drive, q, qd, act, ctrl=ctrl, dt=model.opt.timestep)
    data = mujoco.MjData(model)
    names = [model.actuator(i).name or f"actuator{i}" for i in range(len(model.actuator_trntype))]
    places = [names.index(name) for name in drive.names]
    lively = [int(model.actuator_actadr[names.index(name)]) for name in drive.activation_names]
    for k in range(batch):
        data.qpos[:], data.qvel[:] = there.q_to(q[k]).numpy(), there.qd_to(q[k], qd[k]).numpy()
        data.ctrl[places] = ctrl[k].numpy()
        if lively:
            data.act[lively] = act[k].numpy()
        mujoco.mj_forward(model, data)
        agree(there.tau_to(q, tau)[k][None], torch.tensor(data.qfrc_actuator)[None], 1e-10)
        agree(rate[k][None], torch.tensor(np.asarray(data.act_dot)[lively])[None], 1e-10)
    return drive


def test_every_kind_of_actuator_equals_that_of_mujoco():
    drive = against_mujoco(mujoco.MjModel.from_xml_string(ALL), batch=40)
    assert len(drive.names) == 11 and set(drive.activation_names) == {
        "late", "intvelocity", "cylinder", "general", "exact", "sum"}  # fmt: skip
    told = " ".join(map(str, drive.unused))
    assert all(f"actuator {name!r}" in told for name in LEFT_OUT)


DRIVES = f"""
<mujoco model="drives"><compiler angle="radian" autolimits="true"/>
<worldbody><body><joint name="j" axis="0 1 0" damping="0.2"/>{BODY}
  <body pos="0.3 0 0"><joint name="k" axis="0 1 0"/>{BODY}</body></body></worldbody>
<tendon><fixed name="both"><joint joint="j" coef="0.7"/><joint joint="k" coef="-1.3"/></fixed></tendon>
<actuator>
  <dcmotor name="silent" joint="j" resistance="2" motorconst="0.3" input="none"/>
  <dcmotor name="several" joint="j" resistance="2" motorconst="0.3" input="pos vel ff voltage"
    controller="10 0 1 0 0 0"/>
  <dcmotor name="voltage" joint="j" nominal="24 2 40" gear="3" ctrlrange="-2 2"/>
  <dcmotor name="strong" tendon="both" resistance="2" motorconst="0.5 0.3" saturation="0.2 0 0"/>
  <dcmotor name="place" joint="k" resistance="2" motorconst="0.5" gear="-3" input="pos"
    controller="7 0 0.5 0 0 0"/>
  <dcmotor name="rate" joint="k" resistance="2" motorconst="0.5" input="vel" controller="6 0 2 0 0 0"/>
  <dcmotor name="torque" joint="j" resistance="2" motorconst="0.5" input="ff"/>
  <dcmotor name="coils" joint="j" resistance="2" motorconst="0.3" inductance="1e-3 0"/>
  <dcmotor name="warm" joint="j" resistance="2" motorconst="0.3" thermal="1 10 0 0.004 25 25"/>
  <dcmotor name="rough" joint="j" resistance="2" motorconst="0.3" lugre="10 0.1 0.02 0.03 0.1"/>
  <dcmotor name="cogs" joint="j" resistance="2" motorconst="0.3" cogging="0.01 7 0.2"/>
  <dcmotor name="weak" joint="j" resistance="2" motorconst="0.3" input="pos"
    controller="9 0 0 0 0 1"/>
  <pid name="pid place" joint="k" kp="10" kv="1" input="pos" gear="2" forcerange="-3 5"/>
  <pid name="pid rate" tendon="both" kp="10" kv="1.5" input="vel"/>
  <pid name="pid force" joint="j" kp="4" kv="0.5" input="ff"/>
  <pid name="both inputs" joint="j" kp="10" kv="1"/>
  <pid name="integral" joint="j" kp="10" kv="1" ki="2" input="pos"/>
</actuator></mujoco>
"""


@pytest.mark.skipif(not hasattr(mujoco, "mjtCtrlInput"), reason="MuJoCo has no such loops yet")
def test_dc_motors_and_pid_loops_without_a_state_equal_those_of_mujoco():
    """Regression: all were unsupported, although those with one control are affine."""
    model = mujoco.MjModel.from_xml_string(DRIVES)
    mech = ts.from_mujoco(model)
    drive = ts.actuators.actuators_of(mech)
    assert set(drive.names) == {
        "voltage", "strong", "place", "rate", "torque", "pid place", "pid rate", "pid force"}  # fmt: skip
    told = " ".join(map(str, drive.unused))
    left = {model.actuator(i).name for i in range(model.nactuator)} - set(drive.names)
    assert len(left) == 9 and all(f"actuator {name!r}: it is a" in told for name in left)
    assert any(str(x).startswith("17 actuators: ") for x in mech.unused)  # 22 controls
    q, qd, _, ctrl = states(model, mech, drive, 12)
    data = mujoco.MjData(model)
    for k in range(12):
        data.qpos[:], data.qvel[:] = q[k].numpy(), qd[k].numpy()
        for i, name in enumerate(drive.names):
            a = model.actuator(name).id
            data.ctrl[model.actuator_ctrladr[a]] = ctrl[k, i]
        mujoco.mj_forward(model, data)
        ours = [model.actuator(name).id for name in drive.names]
        force = torch.tensor(data.actuator_force[model.actuator_outadr[ours]])
        expected = (force[:, None] * drive.transmission).sum(0)
        agree(ts.actuators.actuate(mech, drive, q[k], qd[k], ctrl=ctrl[k])[0], expected, 1e-12)


@pytest.mark.parametrize("name", gymnasium_models())
def test_actuators_of_gymnasium_models_equal_those_of_mujoco(name):
    drive = against_mujoco(mujoco.MjModel.from_xml_path(str(gymnasium_models()[name])))
    assert drive.unused == ()


def mujoco_data(model, mech, drive, q, qd, act, ctrl):
    """The conventions of MuJoCo, and its data at a state with activations and controls."""
    there, data = ts.conventions("mujoco", mech, names_of_joints(model)), mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = there.q_to(q).numpy(), there.qd_to(q, qd).numpy()
    names = [model.actuator(i).name for i in range(len(model.actuator_trntype))]
    data.ctrl[[names.index(name) for name in drive.names]] = ctrl.numpy()
    places = [int(model.actuator_actadr[names.index(n)]) for n in drive.activation_names]
    if places:
        data.act[places] = act.numpy()
    return there, data


def test_a_rollout_through_actuators_equals_that_of_mujoco():
    """Activations advance with the step; forces are those at its start."""
    model = mujoco.MjModel.from_xml_string(ALL)
    without_others(model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    mech = ts.from_mujoco(model)
    drive = ts.actuators.actuators_of(mech)
    q, qd, act, ctrl = (x[0] for x in states(model, mech, drive, 1))
    there, data = mujoco_data(model, mech, drive, q, qd, act, ctrl)
    theirs = []
    for _ in range(100):
        mujoco.mj_step(model, data)
        theirs.append(torch.tensor(data.qpos))
    control = ts.actuators.ActuatedControl(drive, ctrl, act)
    ours = ts.rollout(mech, ts.State(q, qd), steps=100, dt=model.opt.timestep, control=control).q
    agree(there.q_to(ours[1:]), torch.stack(theirs), 1e-9)


# In code.


def arm() -> ts.Mechanism:
    return ts.load(ts.robots.panda)


@pytest.mark.parametrize(
    ("tag", "make"),
    [
        ('motor gear="2"', lambda j: ts.actuators.Actuator.motor("a", j, gear=2.0)),
        ('position kp="3" kv="0.2"', lambda j: ts.actuators.Actuator.position("a", j, kp=3.0, kv=0.2)),
        ('position kp="3" timeconst="0.1"',
         lambda j: ts.actuators.Actuator.position("a", j, kp=3.0, time_constant=0.1)),
        ('velocity kv="3" gear="0.5"', lambda j: ts.actuators.Actuator.velocity("a", j, kv=3.0, gear=0.5)),
        ('intvelocity kp="3" actrange="-1 1"',
         lambda j: ts.actuators.Actuator.intvelocity("a", j, kp=3.0, activation_range=(-1, 1))),
        ('damper kv="3" ctrlrange="0 2"',
         lambda j: ts.actuators.Actuator.damper("a", j, kv=3.0, control_range=(0, 2))),
        ('cylinder area="3" timeconst="0.1" bias="1 2 3"',
         lambda j: ts.actuators.Actuator.cylinder("a", j, area=3.0, time_constant=0.1, bias=(1, 2, 3))),
    ],
)  # fmt: skip
def test_an_actuator_written_in_code_is_the_one_of_the_format(tag, make):
    text = f'<mujoco><worldbody><body><joint name="j"/><geom size="1"/></body></worldbody><actuator><{tag} ' \
           'name="a" joint="j"/></actuator></mujoco>'  # fmt: skip
    mech = ts.load(text)
    mine, theirs = ts.actuators.Actuators.of(mech, [make("j")]), ts.actuators.actuators_of(mech)
    q, qd, act, ctrl = states(None, mech, mine, 20)
    for a, b in zip(
        *(ts.actuators.actuate(mech, x, q, qd, act, ctrl=ctrl) for x in (mine, theirs)), strict=True
    ):
        assert torch.equal(a, b)


def test_gains_may_differ_by_sample_and_have_gradients():
    mech = arm()
    servos = [
        ts.actuators.Actuator.position(j, j, kp=100.0, kv=5.0, time_constant=0.1)
        for j in mech.joint_names
    ]
    drive = ts.actuators.Actuators.of(mech, servos)
    q, qd, act, ctrl = states(None, mech, drive, 3)
    kp = 50 + 100 * torch.rand(3, 7, dtype=q.dtype)
    gain = torch.stack([kp, 0 * kp, 0 * kp], -1)
    bias = torch.stack([0 * kp, -kp, -5 + 0 * kp], -1)
    tau, _ = ts.actuators.actuate(mech, drive.replace(gain=gain, bias=bias), q, qd, act, ctrl=ctrl)
    agree(tau, kp * (act - q) - 5 * qd, 1e-13)

    def torque(gain: Tensor, T: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        x = drive.replace(gain=gain, time_constant=T)
        return ts.actuators.actuate(mech, x, *state[:3], ctrl=state[3], dt=0.01)

    inputs = [x[0].clone().requires_grad_() for x in (gain, kp / 100, q, qd, act, ctrl)]
    assert torch.autograd.gradcheck(torque, inputs)
    mapped = torch.vmap(
        lambda g, *s: ts.actuators.actuate(mech, drive.replace(gain=g), *s[:3], ctrl=s[3])
    )
    both = mapped(gain, q, qd, act, ctrl)
    for a, b in zip(
        both,
        ts.actuators.actuate(mech, drive.replace(gain=gain), q, qd, act, ctrl=ctrl),
        strict=True,
    ):
        agree(a, b, 1e-13)


def test_an_exact_filter_takes_any_step_as_many_small_ones():
    mech = arm()
    drive = ts.actuators.Actuators.of(
        mech,
        [
            ts.actuators.Actuator(
                "a", {mech.joint_names[0]: 1.0}, activation="filterexact", time_constant=0.3
            )
        ],
    )
    q, ctrl = mech.middle(), torch.ones(1, dtype=mech.dtype)

    def after(steps: int) -> Tensor:
        act = torch.zeros(1, dtype=mech.dtype)
        for _ in range(steps):
            _, rate = ts.actuators.actuate(mech, drive, q, 0 * q, act, ctrl=ctrl)
            act = drive.next_activation(act, rate, 0.9 / steps)
        return act

    agree(after(1)[None], after(1000)[None], 1e-12)
    assert float(after(1)) == pytest.approx(1 - math.exp(-3))


def test_forces_on_a_joint_that_follows_act_on_what_it_follows():
    builder = ts.MechanismBuilder()
    for name in ("left", "right"):
        builder.link(name, mass=1.0).joint(f"{name}_j", "prismatic", child=name)
    mech = builder.couple("right_j", {"left_j": -0.5}, offset=0.1).build()
    drive = ts.actuators.Actuators.of(
        mech, [ts.actuators.Actuator.position("grip", "right_j", kp=10.0)]
    )
    q = torch.tensor([0.3], dtype=torch.float64)
    tau, _ = ts.actuators.actuate(mech, drive, q, 0 * q, ctrl=0 * q)
    agree(tau[None], torch.tensor([[-0.5 * 10 * (0.5 * 0.3 - 0.1)]]).double(), 1e-15)


def test_the_linear_model_through_actuators_is_the_difference_of_steps_through_them():
    """As the documentation of `linearize` describes, with gears, filters and saturated forces."""
    model = mujoco.MjModel.from_xml_string(ALL)
    without_others(model)
    mech, dt, batch = ts.from_mujoco(model).tree, 2e-3, (2, 3)
    drive, n = ts.actuators.actuators_of(mech), mech.num_dof
    g = torch.Generator().manual_seed(5)
    q, _ = mech.random_state(*batch, generator=g)
    qd = torch.randn(*batch, n, generator=g, dtype=q.dtype)
    act, ctrl = (
        torch.randn(*batch, len(names), generator=g, dtype=q.dtype)
        for names in (drive.activation_names, drive.names)
    )

    def force(x):
        at = ts.integrate(mech, q, x[..., :n]), qd + x[..., n:]
        return ts.actuators.actuate(mech, drive, *at, act, ctrl=ctrl, dt=dt)[0]

    def after(x):
        at = ts.integrate(mech, q, x[..., :n]), qd + x[..., n:]
        control = ts.actuators.ActuatedControl(drive, ctrl, act)
        qs, qds, *_ = ts.rollout(mech, ts.State(*at), steps=1, dt=dt, control=control)
        return qs[..., 1, :], qds[..., 1, :]

    x = torch.zeros(*batch, 2 * n, dtype=q.dtype)
    A, B = ts.linearize(mech, ts.State(q, qd), force(x), dt=dt)
    for e in torch.eye(2 * n, dtype=q.dtype):
        (q_up, qd_up), (q_down, qd_down) = after(x + 1e-6 * e), after(x - 1e-6 * e)
        slope = torch.cat([ts.difference(mech, q_down, q_up), qd_up - qd_down], -1) / 2e-6
        pushed = torch.func.jvp(force, (x,), (e.expand_as(x),))[1]
        agree((A @ e + (B @ pushed[..., None])[..., 0])[None], slope[None], 1e-6)


def test_servos_hold_an_arm_at_their_targets():
    """At rest the force of the servo balances gravity."""
    mech = arm()
    none = torch.zeros_like(
        mech.friction
    )  # without dry friction, which would shift the equilibrium
    mech = mech.replace(armature=none + 0.1, friction=none)
    servos = [ts.actuators.Actuator.position(j, j, kp=200.0, kv=30.0) for j in mech.joint_names]
    target = mech.middle()
    ctrl = target + ts.gravity_force(mech, target) / 200
    control = ts.actuators.ActuatedControl(ts.actuators.Actuators.of(mech, servos), ctrl)
    q = ts.rollout(mech, ts.State(target + 0.1, 0 * target), steps=1500, dt=2e-3, control=control).q
    agree(q[-1][None], target[None], 1e-4)


def test_invalid_actuators_are_refused_by_name():
    mech = arm()
    joint = mech.joint_names[0]
    one = ts.actuators.Actuators.of(mech, [ts.actuators.Actuator.motor("a", joint)])
    q = mech.middle()
    free = ts.load(ts.robots.panda, floating_base=True)
    early = ts.actuators.Actuators.of(
        mech, [ts.actuators.Actuator("a", {joint: 1.0}, activation="filter", early=True)]
    )
    of, motor = ts.actuators.Actuators.of, ts.actuators.Actuator.motor
    refused = [
        (lambda: of(mech, [motor("a", "no")]), "no moving joint is named 'no'"),
        (lambda: of(mech, [motor("a", joint)] * 2), "two actuators are named 'a'"),
        (lambda: of(free, [motor("a", "root_joint")]), "which is free"),
        (lambda: ts.actuators.Actuator("a", {}, activation="fast"), "has the activation 'fast'"),
        (lambda: ts.actuators.Actuator("a", {}, time_constant=0.0), "has the time constant 0.0"),
        (lambda: ts.actuators.Actuator("a", {}, control_range=(1.0, 0.0)), "control_range of actuator 'a'"),
        (lambda: ts.actuators.Actuator.damper("a", joint, kv=1.0, control_range=(-1, 1)), "of damper 'a'"),
        (lambda: ts.actuators.actuate(mech, one, q, q, ctrl=q), "ctrl of the actuators has shape [7]"),
        (lambda: ts.actuators.actuate(mech, one, q, q, q, ctrl=q[:1]), "activation of the actuators"),
        (lambda: ts.actuators.actuate(mech, early, q, q, q[:1], ctrl=q[:1]), "dt is missing"),
        (lambda: one.replace(gain=q), "gain of the actuators cannot be"),
        (lambda: one.replace(power=q), "power of the actuators cannot be"),
    ]  # fmt: skip
    for call, said in refused:
        with pytest.raises(ts.TorchskoError, match=re.escape(said)):
            call()


def double_pendulum() -> ts.Mechanism:
    builder = ts.MechanismBuilder()
    for name, parent in (("a", None), ("b", "a")):
        builder.link(name, mass=1.0, com=(0, 0, -0.5), inertia=np.diag([0.1, 0.1, 0.1]).tolist())
        builder.joint(f"{name}_joint", "revolute", child=name, parent=parent, axis=(0, 1, 0),
                      position=(0, 0, -1 if parent else 0))  # fmt: skip
    return builder.build()


def assert_one_kernel_is_eager(mech, control):
    q, qd = mech.random_state(3, generator=torch.Generator().manual_seed(0))
    eager = ts.rollout(mech, ts.State(q, qd), steps=20, dt=1e-2, control=control)[:2]
    fused = ts.rollout(
        ts.fuse(mech), ts.State(q, qd), steps=20, dt=1e-2, control=control, fused=True
    )[:2]
    for a, b in zip(eager, fused, strict=True):
        agree(b, a, 1e-13)


def test_a_rollout_through_actuators_is_one_kernel():
    mech = double_pendulum()
    servo = ts.actuators.Actuator.position(
        "servo", "a_joint", kp=20.0, kv=1.0, time_constant=0.1, force_range=(-5, 5)
    )
    drive = ts.actuators.Actuators.of(
        mech, [servo, ts.actuators.Actuator.motor("motor", "b_joint")]
    )
    control = ts.actuators.ActuatedControl(drive, torch.tensor([0.5, 0.1], dtype=mech.dtype))
    assert_one_kernel_is_eager(mech, control)


@pytest.mark.parametrize("changed", ["locked", "appended"])
def test_actuators_of_a_robot_before_it_was_changed_are_refused(changed):
    arm = ts.load(ts.robots.panda)
    drive = ts.actuators.Actuators.of(
        arm, [ts.actuators.Actuator.motor(name, name) for name in arm.joint_names]
    )
    if changed == "locked":
        mech = arm.lock({"joint2": 0.3})
    else:
        mech = arm.append(ts.load(ts.robots.panda, floating_base=True), "link7", prefix="upper_")
    q, qd = mech.random_state()
    ctrl = torch.ones(7, dtype=q.dtype)
    with pytest.raises(ts.MechanismError, match=r"with 7 dofs of all joints, 'panda' has (6|14)"):
        ts.actuators.actuate(mech, drive, q, qd, ctrl=ctrl)
