"""Random friction of contact and random gains of actuators, beside random masses."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts

TEXT = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 1"/>
<body pos="0 0 .2"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
<geom name="ball" size=".1" mass="1"/><body pos="0 0 .3"><joint name="h" axis="0 1 0"/>
<geom name="tip" size=".05" mass=".2"/></body></body></worldbody>
<actuator>
<motor name="m" joint="x" gear="3"/>
<position name="p" joint="z" kp="50" kv="4"/><velocity name="v" joint="h" kv="2"/></actuator></mujoco>"""
N = 6


def random(ranges, **options):
    mech = ts.load(TEXT)
    drive = ts.actuators.Actuators.of_file(mech, mech.file_metadata.actuators)
    options = {"contact": ts.ContactModel.of(mech), "actuators": drive} | options
    found = ts.randomize(mech, N, ranges, torch.Generator().manual_seed(0), **options)
    return mech, options["contact"], drive, found


def test_friction_of_contact_has_one_factor_for_each_pair_or_one_for_a_shape():
    _, contact, _, found = random({"contact_friction": (0.5, 2.0)})
    ratio = found.contact.friction / contact.friction
    assert_close(ratio, ratio[..., :1].expand_as(ratio))
    assert ratio.min() >= 0.5 and ratio.max() <= 2 and len(ratio[..., 0].unique()) == 2 * N
    _, contact, _, found = random({"floor.contact_friction": (0.5, 2.0)})
    ratio = found.contact.friction / contact.friction
    assert_close(ratio, ratio[:, :1, :1].expand_as(ratio))
    assert len(ratio[:, 0, 0].unique()) == N


def test_gains_of_servos_and_gears_are_those_of_actuators_made_with_them():
    *_, found = random({"p.kp": (2.0, 2.0), "kv": (3.0, 3.0), "m.gear": (5.0, 5.0)})
    made = ts.load(TEXT.replace('"50"', '"100"').replace('kv="4"', 'kv="12"').replace('kv="2"', 'kv="6"')
                   .replace('gear="3"', 'gear="15"'))  # fmt: skip
    expected = ts.actuators.Actuators.of_file(made, made.file_metadata.actuators)
    for name in ("gain", "bias", "transmission"):
        of_one = getattr(expected, name)
        of_all = getattr(found.actuators, name)
        assert_close(
            of_all, of_one.expand(N, *of_one.shape) if of_all.ndim > of_one.ndim else of_one
        )
    assert_close(found.mech.mass, ts.load(TEXT).mass)


def test_random_robots_step_together_with_the_softness_of_their_masses():
    ranges = {"mass": (0.5, 3.0), "contact_friction": (0.1, 1.0), "kp": (0.5, 2.0)}
    mech, contact, _, found = random(ranges, update_weights=True)
    assert_close(found.contact.shape_invweight, contact.with_weights_of(found.mech).shape_invweight)
    state = ts.State(mech.initial().repeat(N, 1), torch.zeros(N, 3, dtype=torch.float64))
    ctrl = torch.tensor([1.0, -0.15, 0.3], dtype=torch.float64).expand(N, 3)
    options = {"contact": found.contact, "actuators": found.actuators, "substeps": 20}
    together = ts.step(found.mech, state, ctrl, **options)
    assert len(together.q[:, 0].unique()) == N
    assert_close(together.q, ts.step(found.mech, state, ctrl, **options).q)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"flor.contact_friction": (0.5, 1.0)}, "no shape in contact is named 'flor'"),
        ({"q.kp": (0.5, 1.0)}, "no actuator is named 'q'"),
        ({"m.kp": (0.5, 1.0)}, "kp of \\['m'\\] is zero"),
        ({"kp": (-0.5, 1.0)}, "factor of at least 0"),
    ],
)
def test_names_without_a_parameter_are_refused(ranges, words):
    with pytest.raises(ts.MechanismError, match=words):
        random(ranges)
