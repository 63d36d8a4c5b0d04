"""Equalities that are couplings by default keep their softness, names and tendons on every road."""

import pickle

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.io.coupling_models import COUPLINGS, SOFT
from tests.io.road_fields import held, robot
from tests.io.test_roads_through_files import compiled, quiet, states

pytest.importorskip("mujoco")


def saved(mech, path, **options):
    ts.save(mech, path, strict=True, **options)
    return path


def twice(mech, folder, text):
    return saved(quiet(saved(mech, folder / "once.xml")), folder / "twice.xml")


ROADS = {
    "new file": lambda mech, folder, text: saved(mech, folder / "new.xml"),
    "two files": twice,
    "pickle": lambda mech, folder, text: saved(
        pickle.loads(pickle.dumps(mech)).to(torch.float64), folder / "new.xml"
    ),
    "like": lambda mech, folder, text: saved(mech, folder / "like.xml", like=text),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", COUPLINGS)
def test_a_coupling_is_the_soft_equality_of_its_file(name, road, tmp_path):
    text = robot(**COUPLINGS[name])
    mech = quiet(text)
    assert mech.coupling is not None and not mech.closures
    path = ROADS[road](mech, tmp_path, text)
    theirs, ours = states(compiled(text)), states(compiled(path))
    assert np.abs(ours - theirs).max() < 1e-10
    again = quiet(path)
    assert again.dependent_joint_names == mech.dependent_joint_names
    for field in ("coupling_ratio", "coupling_offset", "lower", "upper"):
        assert torch.allclose(getattr(again, field), getattr(mech, field), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", COUPLINGS)
def test_the_softness_of_a_coupling_matters(name):
    """The default parameters give another motion, so that the test above compares them."""
    text = robot(**COUPLINGS[name])
    plain = text.replace(SOFT, "").replace('solref="-200 -7"', "")
    assert np.abs(states(compiled(text)) - states(compiled(plain))).max() > 1e-5


def test_a_changed_coupling_keeps_its_softness(tmp_path):
    text = robot(**COUPLINGS["joints"])
    mech = quiet(text)
    changed = mech.replace(coupling_ratio=-2 * mech.coupling_ratio)
    path = saved(changed, tmp_path / "new.xml")
    model, again = compiled(path), quiet(path)
    assert model.eq(0).name == "q"
    assert model.eq_solref[0].tolist() == [0.05, 0.7]
    assert model.eq_solimp[0].tolist() == [0.6, 0.8, 0.02, 0.4, 3]
    assert again.coupling_ratio.tolist() == changed.coupling_ratio.tolist()
    assert torch.allclose(again.coupling_offset, changed.coupling_offset, rtol=0, atol=1e-15)


def test_locked_and_appended_couplings_are_those_of_the_robot_written_by_hand(tmp_path):
    parts = COUPLINGS["three joints"]
    locked = quiet(robot(**parts)).lock({"w": 0.3})
    path = saved(locked, tmp_path / "locked.xml")
    model = compiled(path)
    (equality,) = locked.file_metadata.coupled
    assert equality.equality.solref == (0.05, 0.7)
    assert model.eq_solref[0].tolist() == [0.05, 0.7]
    assert model.eq_solimp[0].tolist() == [0.6, 0.8, 0.02, 0.4, 3]
    assert (model.eq(0).name, model.tendon(0).name) == ("q", "sum")
    again = quiet(path)
    q, _ = again.random_state(3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ts.expand(again, q), ts.expand(locked, q), rtol=0, atol=1e-13)

    cart = """<mujoco model="cart"><worldbody><body name="cart"><joint name="rail" type="slide"/>
    <geom size="1" mass="2"/><site name="mount" pos="0 0 1"/></body></worldbody></mujoco>"""
    arm = quiet(robot(**parts))
    both = quiet(cart).append(arm, "mount", prefix="a_")
    path = tmp_path / "both.xml"
    with pytest.warns(ts.RobotFileWarning, match="lacks:\n  shapes: 1 of kind plane\n"):
        ts.save(both, path)
    model = compiled(path)
    assert model.eq(0).name == "a_q" and model.eq_solref[0].tolist() == [0.05, 0.7]
    assert quiet(path).dependent_joint_names == tuple("a_" + x for x in arm.dependent_joint_names)


def test_redundant_equalities_are_named(tmp_path):
    text = robot(
        **held('<joint joint1="w" joint2="h"/>', '<joint name="again" joint1="h" joint2="w"/>')
    )
    with pytest.raises(ts.MechanismError, match="equality 'again'"):
        saved(quiet(text), tmp_path / "new.xml")


def test_urdf_names_the_parameters_of_couplings(tmp_path):
    mech = quiet(robot(**COUPLINGS["joints"]))
    with pytest.raises(ts.MechanismError, match="solver parameters of couplings q"):
        saved(mech, tmp_path / "new.urdf")
