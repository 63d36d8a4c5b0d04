"""Compensated weights (MJCF's gravcomp) and damping of higher order: against MuJoCo, and as parameters."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.fused.evaluate import evaluate
from tests.oracles.test_mjcf import WITHOUT, against_mujoco, error, names_of_joints
from tests.states import normal_state
from torchsko.bridge.kinematics import Kinematics
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.integrators.step import implicit_losses

mujoco = pytest.importorskip("mujoco")

LIFTED = """
<mujoco><option gravity="1 2 -9.81"/><worldbody>
  <body name="arm" gravcomp="0.5" pos=".1 .2 .3" euler="10 20 30">
    <joint name="hinge" axis="0 1 0" damping="1 2 3" stiffness="4" springref="20" ref="10"/>
    <geom size=".1" pos=".3 0 0"/>
    <body name="wrist" pos="1 0 0"><joint name="socket" type="ball" damping="1 2 3"/>
      <geom size=".1" pos=".3 .1 0"/>
      <body name="welded" pos="1 0 0" gravcomp="1.5" euler="30 10 5"><geom size=".1" pos=".3 .1 0"/></body>
      <body name="slider" pos="1 0 0" gravcomp="-1.5">{slide}<geom size=".1" pos=".3 .1 0"/></body>
    </body></body>
  <body name="box" gravcomp="0.7"><joint name="loose" type="free" damping=".1"/>
    <geom size=".1" pos=".3 0 0"/></body>
</worldbody></mujoco>"""
SLIDE = '<joint name="slide" type="slide" axis="0 1 1" damping="0 .4"/>'


def lifted() -> ts.Mechanism:
    return ts.load(LIFTED.format(slide=SLIDE))


def test_forces_and_accelerations_equal_those_of_mujoco():
    model = mujoco.MjModel.from_xml_string(LIFTED.format(slide=SLIDE))
    mech = against_mujoco(model, states=5)
    assert not any("gravcomp" in str(x) or "higher" in str(x) for x in mech.unused)
    there, data = ts.conventions("mujoco", mech, names_of_joints(model)), mujoco.MjData(model)
    q, qd, _, _ = normal_state(mech, 4, vectors=3)
    passive = ts.passive_force(mech, q, qd)
    qdd = ts.forward_dynamics(mech, q, qd, torch.zeros_like(qd))
    for i in range(4):
        data.qpos[:] = there.q_to(q[i]).numpy()
        data.qvel[:] = there.qd_to(q[i], qd[i]).numpy()
        mujoco.mj_forward(model, data)
        assert np.abs(data.qfrc_gravcomp).max() > 1.0
        theirs = (torch.tensor(x) for x in (data.qfrc_passive, data.qacc_smooth))
        assert error(-passive[i], there.tau_from(q[i], next(theirs))) < 1e-12
        assert error(qdd[i], there.qdd_from(q[i], qd[i], next(theirs))) < 1e-11


def test_compensation_by_actuators_is_within_their_range():
    """Forces of joints and accelerations are MuJoCo's; a model without actuators has a note."""
    limited = (
        'name="hinge" actuatorgravcomp="true" actuatorfrcrange="-90 90" actuatorfrclimited="true"'
    )
    text = LIFTED.format(slide=SLIDE).replace('name="hinge"', limited)
    assert any("actuatorgravcomp" in str(x) for x in ts.load(text).unused)
    motors = '<actuator><motor joint="hinge"/><motor joint="slide"/></actuator></mujoco>'
    model = mujoco.MjModel.from_xml_string(text.replace("</mujoco>", motors))
    mech, data = ts.from_mujoco(model), mujoco.MjData(model)
    assert not any("actuatorgravcomp" in str(x) for x in mech.unused)
    there = ts.conventions("mujoco", mech, names_of_joints(model))
    drive = ts.actuators.actuators_of(mech)
    assert not drive.unused
    q, qd, _, _ = normal_state(mech, 6, vectors=3)
    ctrl = torch.linspace(-150, 150, 6, dtype=q.dtype)[:, None].expand(6, 2)
    tau, _ = ts.actuators.actuate(mech, drive, q, qd, ctrl=ctrl)
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    saturated = 0
    for i in range(6):
        data.qpos[:] = there.q_to(q[i]).numpy()
        data.qvel[:] = there.qd_to(q[i], qd[i]).numpy()
        data.ctrl[:] = ctrl[i].numpy()
        mujoco.mj_forward(model, data)
        saturated += int(abs(data.qfrc_actuator[0]) == 90)
        theirs = torch.tensor(data.qfrc_actuator + data.qfrc_passive)
        total = tau[i] - ts.passive_force(mech, q[i], qd[i])
        assert error(total, there.tau_from(q[i], theirs)) < 1e-12
        assert error(qdd[i], there.qdd_from(q[i], qd[i], torch.tensor(data.qacc_smooth))) < 1e-11
    assert 0 < saturated < 6


def test_without_gravity_nothing_is_compensated():
    mech = lifted()
    q, qd, _, _ = normal_state(mech, 3, vectors=3)
    still = mech.replace(gravity=torch.zeros(3, dtype=q.dtype))
    parts = ts.passive_force_parts(still, q, qd)
    assert not parts.compensation.any() and parts.damping.any()


def test_a_robot_whose_weight_is_all_compensated_needs_no_force_to_rest():
    mech = ts.load(ts.robots.humanoid, floating_base=True)
    all_of_it = torch.zeros_like(mech.gravcomp)
    all_of_it[:, 0] = 1.0
    light = mech.replace(gravcomp=all_of_it)
    q, _ = mech.random_state(4)
    zero = q.new_zeros(4, mech.num_dof)
    assert ts.bias_force(mech, q, zero).abs().max() > 10.0
    assert ts.bias_force(light, q, zero).abs().max() < 1e-11
    heavy = light.replace(mass=2 * mech.mass)  # it is a share
    assert ts.bias_force(heavy, q, zero).abs().max() < 1e-11


def test_energy_and_power_count_what_is_compensated():
    mech = lifted()
    q, qd, _, tau = normal_state(mech, 3, vectors=3)
    power = ts.power_balance(mech, q, qd, tau)
    balance = power.kinetic + power.potential - power.drives - power.external + power.losses
    assert balance.abs().max() < 1e-11
    parts = ts.passive_force_parts(mech, q, qd)
    whole = ts.passive_force(mech, q, qd)
    torch.testing.assert_close(sum(parts[1:], parts[0]), whole, rtol=1e-12, atol=1e-12)
    for i in range(3):
        slope = torch.func.grad(
            lambda u, i=i: ts.potential_energy(mech, ts.integrate(mech, q[i], u))
        )(torch.zeros_like(qd[i]))
        held = ts.gravity_force(mech, q[i]) + parts.springs[i] + parts.compensation[i]
        torch.testing.assert_close(slope, held, rtol=1e-12, atol=1e-11)


def test_closed_derivatives_are_those_of_the_forces():
    mech = lifted()
    q, qd, qdd, _ = normal_state(mech, 2, vectors=3)
    to_q, to_qd, _ = ts.inverse_dynamics_derivatives(mech, q, qd, qdd)
    for i in range(2):
        step = torch.func.jacfwd(
            lambda u, i=i: ts.inverse_dynamics(mech, ts.integrate(mech, q[i], u), qd[i], qdd[i])
        )(torch.zeros_like(qd[i]))
        rate = torch.func.jacfwd(lambda v, i=i: ts.inverse_dynamics(mech, q[i], v, qdd[i]))(qd[i])
        torch.testing.assert_close(to_q[i], step, rtol=1e-12, atol=1e-11)
        torch.testing.assert_close(to_qd[i], rate, rtol=1e-12, atol=1e-11)


def test_shares_and_coefficients_are_parameters_with_gradients_and_batches():
    mech = lifted()
    q, qd, _, tau = normal_state(mech, vectors=3)
    shares = torch.stack([mech.gravcomp, 0.3 * mech.gravcomp])
    coefficients = torch.stack([mech.higher_damping, 0 * mech.higher_damping])
    both = ts.forward_dynamics(
        mech.replace(gravcomp=shares, higher_damping=coefficients), q, qd, tau
    )
    for one, share, higher in zip(both, shares, coefficients, strict=True):
        alone = ts.forward_dynamics(mech.replace(gravcomp=share, higher_damping=higher), q, qd, tau)
        torch.testing.assert_close(one, alone, rtol=1e-12, atol=1e-12)

    def qdd(share, higher, mass):
        numbers = {"gravcomp": share, "higher_damping": higher, "mass": mass}
        return ts.forward_dynamics(mech.replace(**numbers), q, qd, tau)

    leaves = [x.clone().requires_grad_() for x in (mech.gravcomp, mech.higher_damping, mech.mass)]
    assert torch.autograd.gradcheck(qdd, leaves, eps=1e-6, atol=1e-6)


def test_traced_programs_agree_and_other_robots_have_none_of_it():
    mech = lifted()
    fns = {name: getattr(ts, name) for name in ("inverse_dynamics", "forward_dynamics")}
    x = [part[0] for part in normal_state(mech, 1, vectors=3)][:3]
    ports = [Port(f"x{k}", (len(part),)) for k, part in enumerate(x)]
    counts = {}
    for label, robot in (("with", mech), ("without", bare(mech))):
        for name, fn in fns.items():
            program = trace(lambda *args, fn=fn, robot=robot: fn(robot, *args), ports)
            (mine,) = evaluate(program, x)
            torch.testing.assert_close(mine, fn(robot, *x), rtol=1e-12, atol=1e-11)
            counts[label, name] = program.num_flops
    never = {"has_gravcomp": False, "has_higher_damping": False}
    plain = mech.replace(**never)
    for name, fn in fns.items():
        program = trace(lambda *args, fn=fn: fn(plain, *args), ports)
        assert program.num_flops == counts["without", name] < counts["with", name]


def bare(mech: ts.Mechanism) -> ts.Mechanism:
    """The robot without the two, as a file would give it."""
    text = LIFTED.format(slide=SLIDE).replace('damping="1 2 3"', 'damping="1"')
    text = text.replace("0 .4", "0")
    for share in ("0.5", "1.5", "-1.5", "0.7"):
        text = text.replace(f'gravcomp="{share}"', "")
    return ts.load(text)


def test_locked_and_appended_they_are_those_of_the_file_that_welds():
    welded, whole = ts.load(LIFTED.format(slide="")), lifted()
    held = whole.lock({"slide": 0.0})
    q, qd, _, _ = normal_state(welded, 3, vectors=3)
    one, other = (ts.passive_force(mech, q, qd) for mech in (welded, held))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    empty = ts.load("""<mujoco><worldbody><body name="rail"><joint type="slide" name="rail"/>
      <geom size="1"/></body></worldbody></mujoco>""", gravity=whole.gravity.tolist())  # fmt: skip
    stopped = {"loose": torch.tensor([0.0] * 3 + [1.0] + [0.0] * 3).double()}
    alone, both = whole.lock(stopped), empty.append(whole, "rail").lock(stopped)
    assert both.has_gravcomp and both.has_higher_damping
    q, qd, _, _ = normal_state(alone, 3, vectors=3)
    on = ts.passive_force(both, *(torch.cat([x.new_zeros(3, 1), x], -1) for x in (q, qd)))
    torch.testing.assert_close(on[:, 1:], ts.passive_force(alone, q, qd), rtol=1e-12, atol=1e-12)


def test_a_new_file_has_the_compensation(tmp_path):
    text = LIFTED.format(slide=SLIDE).replace('gravcomp="1.5"', "")
    mech = ts.load(text.replace('name="wrist"', 'name="wrist" gravcomp="0.25"').replace(
        'name="welded"', 'name="welded" gravcomp="0.25"'))  # fmt: skip
    ts.save(mech, tmp_path / "new.xml")
    again = ts.load(tmp_path / "new.xml")
    torch.testing.assert_close(again.gravcomp, mech.gravcomp, rtol=1e-14, atol=1e-14)
    assert torch.equal(again.higher_damping, mech.higher_damping)
    mixed = lifted()
    ts.save(mixed, tmp_path / "mixed.xml")
    kept = ts.load(tmp_path / "mixed.xml").gravcomp
    torch.testing.assert_close(kept, mixed.gravcomp, rtol=1e-12, atol=1e-12)
    arm = ts.load(ts.robots.panda)
    with pytest.warns(ts.RobotFileWarning, match="gravity compensation"):
        ts.save(arm.replace(gravcomp=torch.ones_like(arm.gravcomp)), tmp_path / "arm.urdf")


def test_steps_equal_euler_steps_of_mujoco():
    text = """<mujoco><option timestep="0.01"/><worldbody><body gravcomp="0.4">
      <joint name="h" axis="0 1 0" damping="0.1 2 3"/>
      <inertial mass="1" pos="0.2 0 0.1" diaginertia="1 1 1"/>
      <body pos="0 0 1"><joint name="s" type="slide" axis="1 0 1" damping="0.3 0 .7"/>
      <inertial mass="1" pos="0.2 0 0.1" diaginertia="1 1 1"/></body></body></worldbody></mujoco>"""
    model, mech = mujoco.MjModel.from_xml_string(text), ts.load(text)
    model.opt.disableflags |= int(WITHOUT)
    data, q = mujoco.MjData(model), torch.tensor([0.3, -0.2]).double()
    qd = torch.tensor([2.0, -1.5]).double()
    data.qpos[:], data.qvel[:] = q.numpy(), qd.numpy()
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), None, steps=40, dt=0.01, fused=False)
    for _ in range(40):
        mujoco.mj_step(model, data)
    assert error(qs[-1], torch.tensor(data.qpos)) < 1e-12
    assert error(qds[-1], torch.tensor(data.qvel)) < 1e-12
    opposed = implicit_losses(Kinematics.of(mech, q, qd), 0.01, 1e-4)
    pushed = ts.passive_force(mech.replace(gravcomp=torch.zeros_like(mech.gravcomp)), q, qd)
    torch.testing.assert_close(opposed.damping * qd, pushed)
