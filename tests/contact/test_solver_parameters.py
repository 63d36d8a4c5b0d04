"""Solver parameters at and beyond their bounds act as in MuJoCo: friction, weights, warm starts."""

import numpy as np
import pytest
import torch

import torchsko as ts

mujoco = pytest.importorskip("mujoco")

CRATE = """<mujoco><option timestep="0.002" gravity="1 .3 -9.81" cone="{cone}"/><worldbody>
  <geom name="floor" type="plane" size="5 5 1"/>
  <body pos="0 0 .0995"><freejoint/><geom name="crate" type="box" size=".1 .1 .1" mass="2"/>
  </body></worldbody>
  <contact><pair geom1="floor" geom2="crate" condim="{condim}" friction="{friction}"/></contact></mujoco>"""


def error_of_steps(compiled, text, steps, qvel=0.0, ctrl=None, contact=None):
    """Largest difference of positions and velocities from MuJoCo, and the largest residual."""
    model, mech = compiled(text), ts.load(text)
    data, frames = mujoco.MjData(model), ts.conventions("mujoco", mech)
    data.qvel[:] = qvel
    q = frames.q_from(torch.from_numpy(data.qpos.copy()))
    state = ts.State(q, frames.qd_from(q, torch.from_numpy(data.qvel.copy())))
    contact = ts.ContactModel.of(mech) if contact is None else contact(ts.ContactModel.of(mech))
    worst = residual = 0.0
    for _ in range(steps):
        if ctrl is not None:
            data.ctrl[:] = ctrl
        mujoco.mj_step(model, data)
        u = None if ctrl is None else torch.tensor(ctrl, dtype=torch.float64)
        state = ts.step(mech, state, u, contact=contact)
        found = frames.q_to(state.q), frames.qd_to(state.q, state.qd)
        for x, y in zip(found, (data.qpos, data.qvel), strict=True):
            worst = max(worst, float(np.abs(x.numpy() - y).max()))
        residual = max(residual, float(state.residual))
    return worst, residual


@pytest.mark.parametrize("friction", ["0 0 0 0 0", "0 .5 0 0 0", "-1 .3 -1 0 1e-9"])
@pytest.mark.parametrize("condim", [3, 6])
@pytest.mark.parametrize("cone", ["elliptic", "pyramidal"])
def test_friction_coefficients_are_at_least_those_of_mujoco(compiled, cone, condim, friction):
    text = CRATE.format(cone=cone, condim=condim, friction=friction)
    error, residual = error_of_steps(compiled, text, 8, [0.1, 0.05, 0, 0.1, 0.2, 1])
    assert error < 1e-10
    # Edges of a pyramid with friction 1e-5 have weights of 1e11, and forces these errors of rounding.
    assert residual < (1e-9 if cone == "elliptic" else 1e-1)


def test_a_crate_without_friction_rests_on_the_floor_and_slides(compiled):
    text = CRATE.format(cone="elliptic", condim=3, friction="1 1 0 0 0")
    without = compiled(text.replace("1 1 0 0 0", "0 0 0 0 0"))
    data = mujoco.MjData(without)
    for _ in range(5):
        mujoco.mj_step(without, data)
    mech = ts.load(text)
    contact = ts.ContactModel.of(mech)
    contact = contact.replace(friction=torch.zeros_like(contact.friction))
    state = ts.State(mech.initial(), torch.zeros(6, dtype=torch.float64))
    state = ts.step(mech, state, contact=contact, substeps=5)
    np.testing.assert_allclose(state.q[:3], data.qpos[:3], atol=1e-12)


SLED = """<mujoco><option timestep="0.002" gravity="2 1 -9.81"/><worldbody><body name="body">
  <joint name="root" type="free" frictionloss="1.5" solimpfriction=".5 .6 .01 .5 2"/>
  <geom type="box" size=".1 .2 .3" mass="2" pos=".1 0 0"/></body></worldbody></mujoco>"""


def test_dry_friction_of_free_joints_has_the_weights_of_mujoco(compiled):
    error, _ = error_of_steps(compiled, SLED, 1, [0.1, 0.05, 0, 0.1, 0.2, 1])
    assert error < 1e-12


@pytest.mark.parametrize("size", [1e9, 1e300, float("inf"), float("nan")])
def test_a_huge_warm_start_does_not_change_the_acceleration(size):
    mech = ts.load(CRATE.format(cone="elliptic", condim=3, friction=".5 .5 .1 .1 .1"))
    contact = ts.ContactModel.of(mech)
    q, qd = mech.initial().repeat(2, 1), torch.full((2, 6), 0.3, dtype=torch.float64)
    warm = torch.stack([x * torch.ones(6, dtype=torch.float64) for x in (size, 0.0)])
    options = {"contact": contact, "warmstart": warm}
    qdd, _, residual = ts.contact.contact_dynamics(mech, q, qd, 0 * qd, **options)
    torch.testing.assert_close(qdd[0], qdd[1], rtol=1e-12, atol=1e-12)
    assert residual.max() < 1e-9


GRIPPER = """<mujoco><compiler angle="radian"/><option timestep="0.004"/><worldbody>
  <body name="left" pos="0 0 1"><joint name="left" type="slide" axis="0 1 0" {0}/>
  <geom type="box" size=".02 .01 .02" mass=".2" contype="0" conaffinity="0"/></body>
  <body name="right"><joint name="right" type="slide" axis="0 -1 0" {1}/>
  <geom type="box" size=".02 .01 .02" mass=".3" contype="0" conaffinity="0"/></body></worldbody>
  <equality><joint joint1="right" joint2="left" polycoef="{2} 0 0 0" solref=".008 1"
  solimp=".9999 .9999 .001"/></equality><actuator><motor joint="left"/></actuator></mujoco>"""


@pytest.mark.parametrize(
    ("leader", "follower", "poly"),
    [
        ("", 'range="-.01 .02" margin=".01"', "0 1"),
        ("", 'range="-.01 .02" solreflimit=".1 .5" solimplimit=".5 .9 .01 .5 2"', "0 1"),
        ('range="-.03 .04" solreflimit=".05 1"', 'range="-.02 .02"', ".01 -2"),
    ],
)
def test_limits_of_a_follower_have_parameters_of_their_own(compiled, leader, follower, poly):
    text = GRIPPER.format(leader, follower, poly)
    model, mech = compiled(text), ts.load(text)
    assert mech.num_dof == 1
    data = mujoco.MjData(model)
    data.ctrl[:] = 3.0
    for _ in range(400):
        mujoco.mj_step(model, data)
    state = ts.State(*torch.zeros(2, 1, dtype=torch.float64))
    contact = ts.ContactModel.of(mech)
    for _ in range(400):
        state = ts.step(mech, state, torch.full((1,), 3.0).double(), contact=contact)
    # The equality of MuJoCo is soft: it yields by 1e-4 of its own force.
    np.testing.assert_allclose(ts.expand(mech, state.q), data.qpos, rtol=2e-2, atol=2e-5)


def test_replaced_limits_of_coupled_joints_need_another_contact_model():
    mech = ts.load(GRIPPER.format("", 'range="-.01 .02"', "0 1"))
    contact, other = ts.ContactModel.of(mech), mech.replace(upper=0.5 * mech.upper)
    state = ts.State(*torch.zeros(2, 1, dtype=torch.float64))
    with pytest.raises(ts.MechanismError, match="coupled joints"):
        ts.step(other, state, contact=contact)
    ctrl = torch.full((1,), 3.0).double()
    for _ in range(60):
        state = ts.step(other, state, ctrl, contact=ts.ContactModel.of(other))
    assert 0.009 < float(state.q) < 0.012


SLIDE = """<mujoco><compiler angle="radian"/><option timestep="0.002"/><worldbody><body pos="0 0 1">
  <joint type="slide" axis="0 0 1" range="-.002 .01" frictionloss=".5" {0}/><geom size=".05" mass="1"/>
  </body></worldbody></mujoco>"""


@pytest.mark.parametrize("values", [".02 -10", "-500 1", ".02 0", "0 1", "0 0", "-500 0", "0 -10"])
@pytest.mark.parametrize("name", ["solreflimit", "solreffriction"])
def test_solref_of_mixed_signs_and_without_stiffness_is_that_of_mujoco(compiled, name, values):
    error, residual = error_of_steps(compiled, SLIDE.format(f'{name}="{values}"'), 12, -0.5)
    assert error < 1e-11 and residual < 1e-9


@pytest.mark.parametrize(
    "values", ["0 0 .001 .5 2", "1 1 .001 .5 2", ".9 .95 0 .5 2", ".9 .95 .01 0 2", ".9 .95 .01 1 .3"]
)  # fmt: skip
@pytest.mark.parametrize("name", ["solimplimit", "solimpfriction"])
def test_impedances_at_their_bounds_are_those_of_mujoco(compiled, name, values):
    text = SLIDE.format(f'{name}="{values}" margin=".001"')
    error, residual = error_of_steps(compiled, text, 12, -0.5)
    assert error < 1e-11 and residual < 1e-9
