"""Trajectories of steps with contact equal those of MuJoCo, and have exact gradients."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.contact.models import MODELS

mujoco = pytest.importorskip("mujoco")

INTEGRATORS = {"Euler": 0, "RK4": 1, "implicitfast": 3}


def deviation(model, steps, seed=0, lower=0.0, speed=0.3):
    """Largest difference of positions and of velocities from MuJoCo's, and its largest number of rows."""
    mech = ts.from_mujoco(model)
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
    ("name", "lower"), [("hopper", 0.07), ("quadruped", 0.02), ("boxes", 0.03)]
)
def test_steps_equal_those_of_mujoco(compiled, name, lower, integrator):
    model = compiled(MODELS[name](cone="elliptic"))
    model.opt.integrator = INTEGRATORS[integrator]
    worst, rows = deviation(model, 12, lower=lower, speed=0.1)
    assert worst < 1e-10
    assert rows >= 3


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cone", ["elliptic", "pyramidal"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_trajectories_equal_those_of_mujoco(compiled, name, cone, integrator):
    model = compiled(MODELS[name](cone=cone))
    model.opt.integrator = INTEGRATORS[integrator]
    worst, rows = deviation(model, 250)
    assert worst < 1e-8
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
