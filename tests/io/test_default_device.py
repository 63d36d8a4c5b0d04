"""A robot comes to the device that it is told to, the CPU, whatever PyTorch's default device is."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from torchsko.mechanism.fields import PARAMETERS

MJCF = """<mujoco><worldbody><body name="rod"><joint name="hinge" armature="0.1" range="-1 1"/>
<geom type="capsule" size="0.05" fromto="0 0 0 0 0 1"/></body></worldbody></mujoco>"""


@pytest.mark.parametrize("kind", ["urdf", "mjcf"])
def test_a_default_device_changes_nothing_of_a_robot(kind, tmp_path):
    path = ts.robots.panda
    if kind == "mjcf":
        pytest.importorskip("mujoco")
        path = tmp_path / "rod.xml"
        path.write_text(MJCF)
    expected = ts.load(path)
    torch.set_default_device("meta")
    try:
        found = ts.load(path)
    finally:
        torch.set_default_device(None)  # one that is named, the CPU too, stays a mode
    for name in PARAMETERS:
        assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=0, equal_nan=True)
    q, qd = expected.random_state(2)
    mine, theirs = (ts.forward_dynamics(mech, q, qd, qd) for mech in (found, expected))
    assert_close(mine, theirs, rtol=0, atol=0)
