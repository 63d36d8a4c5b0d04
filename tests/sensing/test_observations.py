"""The observations of Gymnasium that docs/sensors.md computes equal those of MuJoCo."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import torchsko as ts

mujoco = pytest.importorskip("mujoco")
gymnasium = pytest.importorskip("gymnasium")
pytestmark = pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")

ASSETS = Path(os.path.dirname(gymnasium.__file__)) / "envs" / "mujoco" / "assets"
PAGE = Path(__file__).parents[2] / "docs" / "sensors.md"


def recipe():
    """The function of the page."""
    (block,) = re.findall(r"```python\n(import mujoco\n.*?)```", PAGE.read_text(), re.DOTALL)
    names = {"torch": torch, "ts": ts}
    exec(block, names)
    return names["observations"]


@pytest.mark.parametrize("robot", ["ant", "humanoid"])
def test_observations_of_gymnasium_equal_those_of_mujoco(robot):
    model = mujoco.MjModel.from_xml_path(str(ASSETS / f"{robot}.xml"))
    model.opt.tolerance, model.opt.iterations = 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    mech, rows = ts.from_mujoco(model), []
    assert mech.num_bodies < model.nbody - 1
    for steps in (60, 120, 180):
        mujoco.mj_resetData(model, data)
        data.qvel[:], data.qpos[2] = rng.normal(size=model.nv), 0.85 * data.qpos[2]
        for _ in range(steps):
            data.ctrl[:] = rng.uniform(-1, 1, size=model.nu)
            mujoco.mj_step(model, data)
        mujoco.mj_forward(model, data)
        mujoco.mj_rnePostConstraint(model, data)
        expected = (data.cinert[1:], data.cvel[1:], data.cfrc_ext[1:], data.qfrc_actuator)
        rows.append([x.copy() for x in (data.qpos, data.qvel, data.ctrl, *expected)])
    qpos, qvel, ctrl, *expected = (torch.tensor(np.array(x)) for x in zip(*rows, strict=True))
    to_mujoco = ts.conventions("mujoco", mech)
    q = to_mujoco.q_from(qpos)
    state = ts.State(q, to_mujoco.qd_from(q, qvel))
    found = recipe()(model, mech, state, ctrl)
    assert (expected[2] != 0).any()
    for value, reference in zip(found, expected, strict=True):
        scale = 1 + float(reference.abs().max())
        torch.testing.assert_close(value / scale, reference / scale, rtol=0, atol=1e-12)


LEG = """<mujoco><worldbody><geom type="plane" size="1 1 1"/><body name="leg" pos="0 0 .5"><freejoint/>
  <geom size=".1" mass="1"/><body name="foot" pos=".1 0 -.3"><geom size=".1" mass="1"/></body></body>
  <body name="stone" pos="0 0 .2"><freejoint/><geom size=".1" mass="2"/></body></worldbody></mujoco>"""


def falling():
    """A leg whose foot touches a stone, which touches nothing else, with its contact model."""
    leg = ts.load(LEG)
    q = leg.initial() + torch.tensor([0.02, 0.01, 0.05, 0, 0, 0, 0] + 7 * [0]).double()
    qd = torch.randn(2, 12, generator=torch.Generator().manual_seed(0)).double()
    return leg, q.expand(2, -1), qd, ts.ContactModel.of(leg)


def test_contacts_of_two_links_are_opposite():
    leg, q, qd, contact = falling()
    links = ["foot", "stone", "leg"]
    foot, stone, other = ts.contact.contact_wrenches(leg, ts.State(q, qd), links=links).unbind(-2)
    assert foot.abs().max() > 1
    torch.testing.assert_close(foot, -stone)
    assert not other.any()
    whole = ts.contact.contact_wrenches(leg, ts.State(q, qd), contact=contact)
    assert whole.shape == (2, 2, 6) and not whole[:, 0].any()


def test_wrenches_of_contacts_have_kernels_and_gradients():
    leg, q, qd, contact = falling()

    def read(mech, q, qd):
        return ts.contact.contact_wrenches(mech, ts.State(q, qd), links=["foot"], contact=contact)

    expected = read(leg, q, qd)
    torch.testing.assert_close(ts.fuse(read, leg)(q, qd), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.func.vmap(lambda *x: read(leg, *x))(q, qd), expected)
    step = torch.randn(qd.shape, generator=torch.Generator().manual_seed(1)).double()

    def moved(s):
        return read(leg, ts.integrate(leg, q, s * step), qd + s * step)

    zero = torch.zeros((), dtype=q.dtype)
    _, slope = torch.func.jvp(moved, (zero,), (torch.ones_like(zero),))
    numeric = (moved(1e-6) - moved(-1e-6)) / 2e-6
    torch.testing.assert_close(slope, numeric, rtol=1e-6, atol=1e-6 * float(numeric.abs().max()))


def test_an_unknown_link_is_refused_by_name():
    leg, q, qd, contact = falling()
    with pytest.raises(ts.MechanismError, match="boot"):
        ts.contact.contact_wrenches(leg, ts.State(q, qd), links=["boot"], contact=contact)
