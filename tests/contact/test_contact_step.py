"""Trajectories of steps with contact equal those of MuJoCo, and have exact gradients."""

from pathlib import Path

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.contact.models import MODELS

mujoco = pytest.importorskip("mujoco")

CONES = ("elliptic", "pyramidal")
INTEGRATORS = {"Euler": 0, "RK4": 1, "implicitfast": 3, "discrete": 4}

STIFF = """<mujoco><option integrator="discrete" cone="{0}" timestep=".004"/><worldbody>
<geom type="plane" size="9 9 1" friction=".6 .02 .01" solref=".003 1"/>
<body pos="0 0 .2"><joint type="slide" axis="0 0 1" stiffness="200 10 20" damping="3 1 .5" springref=".1"/>
<joint axis="0 1 0" name="a" damping="2" stiffness="30" range="-5 5" limited="true" frictionloss=".2"
 solreflimit=".003 1" solreffriction=".003 1"/>
<geom type="capsule" size=".03" fromto="0 0 0 .3 0 -.15" solref=".003 1" condim="{1}"/>
<body pos=".3 .1 -.1"><joint name="b" axis=".1 1 .2" damping=".1" stiffness="3 1 .5"/>
<geom size=".05" pos=".1 0 -.04" solref="-4000 -90" condim="{1}"/></body></body>
</worldbody><actuator><position joint="a" kp="50" kv="3"/><position joint="b" kp="20" kv="1"/>
</actuator></mujoco>"""
"""A robot with springs, servos and constraints stiffer than the time step resolves."""


def deviation(model, steps, seed=0, lower=0.0, speed=0.3):
    """Largest difference of positions and of velocities from MuJoCo's, and its largest number of rows."""
    mech = ts.from_mujoco(model, mimic="independent")
    to_mujoco, contact = ts.conventions("mujoco", mech), ts.ContactModel.of(mech)
    rng, data = np.random.default_rng(seed), mujoco.MjData(model)
    data.qpos[2 if model.jnt_type[0] == 0 else 1] -= lower
    data.qvel[:] = speed * rng.normal(size=model.nv)
    q = to_mujoco.q_from(torch.tensor(data.qpos))
    state = ts.State(q, to_mujoco.qd_from(q, torch.tensor(data.qvel)))
    worst, rows = 0.0, 0
    for _ in range(steps):
        data.ctrl[:] = rng.uniform(-1, 1, model.nu)
        mujoco.mj_step(model, data)
        ctrl = torch.tensor(data.ctrl) if model.nu else None
        state = ts.step(mech, state, ctrl, contact=contact)
        qvel = to_mujoco.qd_to(state.q, state.qd).numpy()
        worst = max(worst, np.abs(to_mujoco.q_to(state.q).numpy() - data.qpos).max())
        worst = max(worst, np.abs(qvel - data.qvel).max())
        rows = max(rows, data.nefc)
    assert float(state.t) == pytest.approx(data.time)
    return worst, rows


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize(
    ("name", "lower"),
    [("hopper", 0.07), ("quadruped", 0.02), ("boxes", 0.03), ("welded", 0.06), ("tendons", 0.02)],
)
def test_steps_equal_those_of_mujoco(compiled, name, lower, integrator):
    model = compiled(MODELS[name](cone="elliptic"))
    model.opt.integrator = INTEGRATORS[integrator]
    worst, rows = deviation(model, 6, lower=lower, speed=0.1)
    assert worst < 1e-10
    assert rows >= 3


@pytest.mark.parametrize("cone", CONES)
def test_steps_at_the_end_of_which_stiff_forces_act_equal_those_of_mujoco(compiled, cone):
    for condim in (3, 4):
        worst, rows = deviation(compiled(STIFF.format(cone, condim)), 4, lower=-0.1, speed=0.5)
        assert worst < 1e-10
        assert rows >= 6


def test_gradients_of_a_step_that_acts_at_its_end(compiled):
    mech = ts.from_mujoco(compiled(STIFF.format("elliptic", 3)))
    contact = ts.ContactModel.of(mech)
    q = torch.tensor([0.0, 0.1, -0.02], dtype=torch.float64)
    names = ("mass", "stiffness", "damping")
    values = [getattr(mech, name).clone().requires_grad_() for name in names]
    qd = torch.tensor([-0.3, 0.4, 0.2], dtype=torch.float64)
    inputs = (q, qd, torch.tensor([0.3, -0.2], dtype=torch.float64), contact.friction)

    def after(q, qd, ctrl, friction, *values):
        robot = mech.replace(**dict(zip(names, values, strict=True)))
        surfaces = contact.replace(friction=friction)
        state = ts.step(robot, ts.State(q, qd), ctrl, contact=surfaces)
        return state.qd

    inputs = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(after, (*inputs, *values), rtol=1e-5, fast_mode=True)


FINGERS = """<mujoco><option timestep=".01"/><worldbody>
<body><joint name="a" axis="0 1 0" range="-5 5" limited="true"/><geom size=".1" pos=".1 0 -.2"/></body>
<body pos="1 0 0"><joint name="b" axis="0 1 0"/><geom size=".1" pos="0 0 -.2"/></body></worldbody>
<tendon><fixed name="c" armature=".1"><joint joint="a" coef="1"/><joint joint="b" coef="-.5"/>
</fixed></tendon><actuator><position tendon="c" kp="30" kv="2"/></actuator></mujoco>"""
"""Two fingers that one servo moves."""


def test_a_kernel_of_a_step_with_a_tendon_over_two_branches_equals_the_eager_step():
    mech = ts.load(FINGERS)
    contact = ts.ContactModel.of(mech)

    def one_step(mech, q, qd, ctrl):
        state = ts.State(q, qd)
        return ts.step(mech, state, ctrl, contact=contact, integrator="discrete")[:2]

    fast = ts.fuse(one_step, mech, shapes={"ctrl": (1,)})
    q = torch.tensor([[-0.1, 0.2], [0.05, -0.3]], dtype=torch.float64)
    qd, ctrl = -q.flip(0), torch.tensor([[0.4], [-0.2]], dtype=torch.float64)
    found, expected = fast(q, qd, ctrl), one_step(mech, q, qd, ctrl)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def rounding_growth(model, steps, seed=0, speed=0.3):
    """Largest difference of velocities between MuJoCo's trajectories from two states a rounding apart."""
    rng, pair = np.random.default_rng(seed), [mujoco.MjData(model) for _ in range(2)]
    qvel = speed * rng.normal(size=model.nv)
    pair[1].qpos[:] += 2e-16 * np.sign(rng.normal(size=model.nq))
    worst = 0.0
    for data in pair:
        data.qvel[:] = qvel
    for _ in range(steps):
        ctrl = rng.uniform(-1, 1, model.nu)
        for data in pair:
            data.ctrl[:] = ctrl
            mujoco.mj_step(model, data)
        worst = max(worst, np.abs(pair[1].qvel - pair[0].qvel).max())
    return worst


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cone", CONES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_trajectories_equal_those_of_mujoco(compiled, name, integrator, cone):
    """The velocities differ by less than 1e-8, or ten times what a rounding of the first state changes.

    The points of an upright cylinder on a plane turn about its axis by a rounding over its tilt, which tends
    to zero at rest. MuJoCo's velocities then change by 1e-6 with the rounding of the first state.
    """
    model = compiled(MODELS[name](cone=cone))
    model.opt.integrator = INTEGRATORS[integrator]
    worst, rows = deviation(model, 250)
    assert worst < max(1e-8, 10 * rounding_growth(model, 250))
    assert rows >= 3


def box_on_plane():
    return mujoco.MjModel.from_xml_string(
        """<mujoco><option cone="elliptic" timestep="0.005"/><worldbody>
        <geom type="plane" size="1 1 1" friction="0.4 0.01 0.01"/>
        <body pos="0 0 .099"><freejoint/><geom type="sphere" size=".1" mass="2"/></body>
        </worldbody></mujoco>"""
    )


def test_gradients_through_steps_equal_central_differences():
    mech = ts.from_mujoco(box_on_plane())
    contact = ts.ContactModel.of(mech)
    q, direction = (
        mech.file_metadata.initial,
        torch.tensor([0, 0, 0, 1.0, 0, -0.1], dtype=torch.float64),
    )

    def place(speed, friction, mass, steps=8):
        surfaces = contact.replace(friction=friction * torch.ones_like(contact.friction))
        robot = mech.replace(mass=mass[None])
        state = ts.State(q, speed * direction)
        for _ in range(steps):
            state = ts.step(robot, state, contact=surfaces)
        return state.q[0] + state.qd[1]

    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (1.0, 0.4, 2.0)]
    gradient = torch.autograd.grad(place(*inputs), inputs)
    for k, found in enumerate(gradient):
        ends = []
        for sign in (1, -1):
            moved = [x.detach() + sign * 1e-6 * (j == k) for j, x in enumerate(inputs)]
            ends.append(place(*moved))
        expected = (ends[0] - ends[1]) / 2e-6
        assert float(found) == pytest.approx(float(expected), rel=1e-5, abs=1e-7)


def test_substeps_are_steps():
    mech = ts.from_mujoco(box_on_plane())
    state = ts.State(mech.file_metadata.initial, torch.ones(6, dtype=torch.float64))
    twice = ts.step(mech, ts.step(mech, state))
    once = ts.step(mech, state, substeps=2)
    torch.testing.assert_close(once.q, twice.q, rtol=0, atol=0)
    assert once.t == twice.t


def test_batches_are_independent():
    mech = ts.from_mujoco(box_on_plane())
    heights = torch.tensor([0.0, 0.5, -0.02], dtype=torch.float64)
    q = mech.file_metadata.initial.repeat(3, 1)
    q = torch.cat([q[:, :2], q[:, 2:3] + heights[:, None], q[:, 3:]], -1)
    qd = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = ts.step(mech, ts.State(q, qd))
    for k in range(3):
        alone = ts.step(mech, ts.State(q[k], qd[k]))
        torch.testing.assert_close(together.q[k], alone.q, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(together.qd[k], alone.qd, rtol=1e-9, atol=1e-11)


def test_an_unknown_integrator_is_refused():
    mech = ts.from_mujoco(box_on_plane())
    state = ts.State(mech.file_metadata.initial, torch.zeros(6, dtype=torch.float64))
    with pytest.raises(ts.MechanismError, match="leapfrog"):
        ts.step(mech, state, integrator="leapfrog")


FALLING = """<mujoco><option cone="elliptic" timestep="{0}"/><worldbody>
<geom type="plane" size="9 9 1" friction=".4 .01 .001"/>
<body pos="0 0 .3"><freejoint/><geom type="box" size=".2 .15 .1" mass="2"/></body>
<body pos="0 2 .1"><freejoint/><geom type="box" size=".2 .15 .1" mass="2"/></body>
<body pos="0 4 .1"><freejoint/><geom size=".1" mass="1" condim="6"/></body></worldbody></mujoco>"""
"""A box that falls, a box that slides and a ball that rolls."""


@pytest.mark.nightly
@pytest.mark.parametrize("milliseconds", [1, 2, 5, 10])
def test_a_second_of_falling_sliding_and_rolling_equals_that_of_mujoco(compiled, milliseconds):
    model = compiled(FALLING.format(milliseconds / 1e3))
    mech, data = ts.from_mujoco(model), mujoco.MjData(model)
    data.qvel[6], data.qvel[12], data.qvel[16] = 1.0, 1.0, 10.0
    conv, contact = ts.conventions("mujoco", mech), ts.ContactModel.of(mech)
    q = conv.q_from(torch.tensor(data.qpos))
    state, worst = ts.State(q, conv.qd_from(q, torch.tensor(data.qvel))), 0.0
    for _ in range(1000 // milliseconds):
        mujoco.mj_step(model, data)
        state = ts.step(mech, state, contact=contact)
        worst = max(worst, np.abs(conv.q_to(state.q).numpy() - data.qpos).max())
        worst = max(worst, np.abs(conv.qd_to(state.q, state.qd).numpy() - data.qvel).max())
    assert data.qpos[2] < 0.11 and worst < 1e-10


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["hopper.xml", "ant.xml"])
def test_a_second_of_robots_of_gymnasium_equals_that_of_mujoco(compiled, name):
    gymnasium = pytest.importorskip("gymnasium")
    path = Path(gymnasium.__file__).parent / "envs/mujoco/assets" / name
    model = mujoco.MjModel.from_xml_path(str(path))
    model.opt.tolerance, model.opt.iterations = 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50
    worst, rows = deviation(model, round(1 / model.opt.timestep), speed=0.1)
    assert worst < 1e-9
    assert rows >= 3


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["quadruped", "hopper", "boxes", "stiff"])
def test_gradients_of_two_hundred_steps_equal_central_differences(compiled, name):
    text = STIFF.format("elliptic", 3) if name == "stiff" else MODELS[name](cone="elliptic")
    mech = ts.from_mujoco(compiled(text))
    contact = ts.ContactModel.of(mech)
    g = torch.Generator().manual_seed(3)
    direction = torch.randn(mech.num_dof, generator=g, dtype=torch.float64)
    drive = mech.file_metadata.actuators.actuators

    def place(speed, steps=200):
        state = ts.State(mech.initial(), speed * direction)
        ctrl = torch.zeros(len(drive), dtype=torch.float64) if drive else None
        for _ in range(steps):
            state = ts.step(mech, state, ctrl, contact=contact)
        return (state.q[:3] * torch.tensor([1.0, 0.3, 0.7], dtype=torch.float64)).sum()

    speed = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(place(speed), speed)
    with torch.no_grad():
        ends = [place(0.1 + sign * 1e-6) for sign in (1, -1)]
    assert float(found) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-8)
