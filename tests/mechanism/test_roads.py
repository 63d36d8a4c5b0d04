"""Every edit keeps every field: the motion afterwards is that of the robot written by hand in MJCF."""

import pickle
import tempfile
import warnings
from pathlib import Path

import pytest
import torch

import torchsko as ts
from tests.mechanism.road_models import ANGLE, FEATURES, Feature, Texts, texts

mujoco = pytest.importorskip("mujoco")

STEPS = 12

PLAIN = Feature("")


def loaded(text: str) -> ts.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ts.RobotFileWarning)
        return ts.load(text, mimic="independent")


EDITS = {
    "lock a joint": (lambda t: loaded(t.robot).lock({"wrist": ANGLE}), "locked"),
    "lock the first joint": (lambda t: loaded(t.robot).lock({"shoulder": 0.0}), "static"),
    "append to a cart": (lambda t: loaded(t.cart).append(loaded(t.bare), "mount"), "on_cart"),
    "append a tool": (lambda t: loaded(t.robot).append(loaded(t.tool), "flange"), "with_tool"),
}
"""Edits that change the tree, and the name of the text of the result."""


class Twin:
    """A mechanism and MuJoCo's model of the robot written by hand, from one random state."""

    def __init__(self, mech: ts.Mechanism, text: str) -> None:
        self.mech, self.model = mech, mujoco.MjModel.from_xml_string(text)
        self.model.opt.tolerance, self.model.opt.iterations = 0.0, 200
        self.model.opt.ls_tolerance, self.model.opt.ls_iterations = 1e-12, 100
        names = [self.model.joint(j).name for j in range(self.model.njnt)]
        self.convert = ts.conventions("mujoco", mech, names)
        self.contact = ts.ContactModel.of(mech)
        self.data = mujoco.MjData(self.model)
        g = torch.Generator().manual_seed(0)
        for name in sorted(names):
            joint = self.data.joint(name)
            dq, v = torch.randn(2, 6, generator=g, dtype=torch.float64).numpy()
            joint.qvel[:] = v[: len(joint.qvel)]
            if len(joint.qpos) == 1:
                joint.qpos[:] += 0.02 * dq[0]

    def run(self, ctrl: tuple[float, ...]) -> tuple[float, float]:
        """Largest errors of coordinates and velocities after each step, and of readings at the end."""
        model, data, worst = self.model, self.data, 0.0
        mujoco.mj_forward(model, data)
        qpos, qvel = torch.tensor(data.qpos.copy()), torch.tensor(data.qvel.copy())
        q = self.convert.q_from(qpos)
        state, u = (
            ts.State(q, self.convert.qd_from(q, qvel)),
            torch.tensor(ctrl, dtype=torch.float64),
        )
        data.ctrl[:] = ctrl
        for _ in range(STEPS):
            mujoco.mj_step(model, data)
            state = ts.step(self.mech, state, u if len(u) else None, contact=self.contact)
            found = self.convert.q_to(state.q), self.convert.qd_to(state.q, state.qd)
            for x, y in zip(found, (data.qpos, data.qvel), strict=True):
                worst = max(worst, float((x - torch.tensor(y)).abs().max()))
        mujoco.mj_forward(model, data)
        readings = ts.sensors(self.mech, state, u if len(u) else None, contact=self.contact)
        values = torch.cat([*readings.values(), u[:0]])
        assert len(values) == model.nsensordata
        errors = (values - torch.tensor(data.sensordata.copy())).abs()
        return worst, float((errors / (1 + values.abs())).max()) if len(errors) else 0.0


def controls(feature: Feature, edit: str) -> tuple[float, ...]:
    return (*feature.ctrl, 0.01) if edit == "append a tool" else feature.ctrl


def kept(mech: ts.Mechanism) -> ts.Mechanism:
    return mech


def pickled(mech: ts.Mechanism) -> ts.Mechanism:
    return pickle.loads(pickle.dumps(mech))


def through_file(mech: ts.Mechanism) -> ts.Mechanism:
    """The robot of a new file, which has all of the mechanism."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "robot.xml"
        ts.save(mech, path, strict=True)
        return loaded(path.read_text())


@pytest.mark.some(18)
@pytest.mark.parametrize("then", [kept, pickled, through_file])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", FEATURES)
def test_the_motion_after_an_edit_is_that_of_the_robot_written_by_hand(name, edit, then):
    feature = FEATURES[name]
    found: Texts = texts(feature)
    road, result = EDITS[edit]
    twin = Twin(then(road(found)), getattr(found, result))
    motion, readings = twin.run(controls(feature, edit))
    assert motion < 1e-10
    assert readings < 1e-8
