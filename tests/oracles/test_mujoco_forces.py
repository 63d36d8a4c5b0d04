"""Fluid, springs, armature and losses of actuators: joint forces and accelerations are those of MuJoCo."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import torchsko as ts

mujoco = pytest.importorskip("mujoco")

FLUID = """<mujoco><option density="900" viscosity="2" wind=".1 -.4 .5"><flag contact="disable"/></option>
<worldbody><body pos="1 0 0"><freejoint/>
  <geom type="box" size=".1 .2 .3" pos=".1 .2 .3" euler="10 20 30" fluidshape="{0}"
   fluidcoef=".5 .25 1.5 1.2 .8"/>
  <body pos=".1 .2 .3"><joint axis="1 2 3" pos=".1 0 0"/><joint type="slide"/>
    <geom type="capsule" size=".05 .2" fluidshape="{0}"/>
    <body pos=".1 0 0" euler="0 0 40"><geom size=".1"/></body>
    <body pos=".3 .1 0"><joint type="ball"/><geom type="cylinder" size=".1 .2" fluidshape="{0}"/></body>
  </body></body></worldbody></mujoco>"""

JOINTS = """<mujoco><option><flag contact="disable"/></option><worldbody><body pos="0 0 1">
  <joint name="root" type="free" armature="1.3" damping=".3" stiffness="2 3 5"/>
  <geom type="box" size=".1 .2 .3" pos=".1 .05 .2"/>
  <body><joint name="j" damping="1 .3 .4" stiffness="4 5 6" armature=".1" springref="20"/><geom size=".1"/>
    <body pos=".1 0 0"><joint type="ball" stiffness="3 2 1" damping=".1 .2 .3" armature=".4"/>
    <geom size=".1" pos=".1 .2 .3"/></body></body></body></worldbody>
<actuator><motor joint="j" gear="3" damping="2 .5 .1" armature="1.5"/>
  <motor joint="j" gear="2" armature="1"/></actuator></mujoco>"""

MODELS = {"boxes": FLUID.format("none"), "ellipsoids": FLUID.format("ellipsoid"), "joints": JOINTS}


def moving(model, seed):
    """Random data of a model, and the same state and acceleration of its mechanism."""
    mech, rng, data = ts.from_mujoco(model), np.random.default_rng(seed), mujoco.MjData(model)
    mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 1.0)
    data.qvel[:], data.qacc[:] = rng.normal(size=(2, model.nv))
    conv = ts.conventions("mujoco", mech)
    q = conv.q_from(torch.tensor(data.qpos))
    qd = conv.qd_from(q, torch.tensor(data.qvel))
    return mech, conv, data, (q, qd, conv.qdd_from(q, qd, torch.tensor(data.qacc)))


@pytest.mark.parametrize("name", MODELS)
def test_forces_and_accelerations_are_those_of_mujoco(name):
    model = mujoco.MjModel.from_xml_string(MODELS[name])
    for seed in range(3):
        mech, conv, data, state = moving(model, seed)
        assert not [x for x in mech.unused if x.affects_forces]
        mujoco.mj_inverse(model, data)
        found = conv.tau_to(state[0], ts.inverse_dynamics(mech, *state)).numpy()
        np.testing.assert_allclose(found, data.qfrc_inverse, rtol=1e-10, atol=1e-10)
        tau = np.random.default_rng(9).normal(size=model.nv)
        data.qfrc_applied[:] = tau
        mujoco.mj_forward(model, data)
        q, qd, _ = state
        qdd = ts.forward_dynamics(mech, q, qd, conv.tau_from(q, torch.tensor(tau)))
        found = conv.qdd_to(q, qd, qdd).numpy()
        np.testing.assert_allclose(found, data.qacc, rtol=1e-9, atol=1e-9)
        passive = conv.tau_to(q, ts.passive_force(mech.replace(has_armature=False), q, qd))
        np.testing.assert_allclose(passive.numpy(), -data.qfrc_passive, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("integrator", ["Euler", "RK4", "implicitfast", "discrete"])
def test_steps_in_a_fluid_are_those_of_mujoco(integrator):
    model = mujoco.MjModel.from_xml_string(MODELS["ellipsoids"])
    numbers = ("Euler", "RK4", "implicit", "implicitfast", "discrete")
    model.opt.integrator = numbers.index(integrator)
    mech, conv, data, (q, qd, _) = moving(model, 0)
    state = ts.step(mech, ts.State(q, qd))
    mujoco.mj_step(model, data)
    np.testing.assert_allclose(conv.q_to(state.q).numpy(), data.qpos, rtol=0, atol=1e-12)
    found = conv.qd_to(state.q, state.qd).numpy()
    np.testing.assert_allclose(found, data.qvel, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_closed_form_derivatives_are_those_of_the_forces(name):
    mech, _, _, state = moving(mujoco.MjModel.from_xml_string(MODELS[name]), 0)
    to_q, to_qd, _ = ts.inverse_dynamics_derivatives(mech, *state)
    q, qd, qdd = state
    zero = torch.zeros_like(qd)

    def force(step, rates):
        return ts.inverse_dynamics(mech, ts.integrate(mech, q, step), qd + rates, qdd)

    of_q, of_qd = torch.autograd.functional.jacobian(force, (zero, zero))
    torch.testing.assert_close(to_q, of_q, rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(to_qd, of_qd, rtol=1e-9, atol=1e-8)


def test_gradients_to_the_fluid_are_right_at_a_batch():
    mech = moving(mujoco.MjModel.from_xml_string(MODELS["ellipsoids"]), 0)[0]
    q, qd = mech.random_state(2, generator=torch.Generator().manual_seed(0))
    names = ("medium", "wind", "fluid_size", "fluid_coefficients", "fluid_position")
    values = [getattr(mech, name).clone().requires_grad_() for name in names]

    def force(qd, *values):
        return ts.passive_force(mech.replace(**dict(zip(names, values, strict=True))), q, qd) / 100

    assert gradcheck(force, (qd.clone().requires_grad_(), *values), fast_mode=True)


def test_a_body_at_rest_in_a_fluid_has_finite_derivatives():
    mech = moving(mujoco.MjModel.from_xml_string(MODELS["ellipsoids"]), 0)[0]
    mech = mech.replace(wind=torch.zeros(3, dtype=torch.float64))
    q = mech.initial().clone().requires_grad_()
    qd = torch.zeros(mech.num_dof, dtype=torch.float64, requires_grad=True)
    for x in torch.autograd.grad(ts.passive_force(mech, q, qd).sum(), (q, qd)):
        assert bool(x.isfinite().all())


def test_the_fluid_of_a_changed_robot_is_saved(tmp_path):
    file, changed = tmp_path / "fish.xml", tmp_path / "changed.xml"
    file.write_text(MODELS["boxes"])
    mech = ts.load(file)
    medium = torch.tensor([1.2, 2.0], dtype=torch.float64)
    ts.save(mech.replace(medium=medium, wind=-mech.wind), changed, like=file)
    loaded = ts.load(changed)
    assert torch.equal(loaded.medium, medium)
    assert torch.equal(loaded.wind, -mech.wind)


def test_damping_of_actuators_is_not_saved_as_that_of_joints(tmp_path):
    file, changed = tmp_path / "arm.xml", tmp_path / "changed.xml"
    file.write_text(JOINTS)
    mech = ts.load(file)
    ts.save(mech.replace(damping=mech.damping * 2, armature=mech.armature + 1), changed, like=file)
    loaded = ts.load(changed)
    torch.testing.assert_close(loaded.damping, mech.damping * 2, rtol=1e-12, atol=0)
    torch.testing.assert_close(loaded.armature, mech.armature + 1, rtol=1e-12, atol=0)
