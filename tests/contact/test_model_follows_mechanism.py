"""A contact model follows the mechanism that it is used with, or refuses it by name."""

import numpy as np
import pytest
import torch

import torchsko as ts

mujoco = pytest.importorskip("mujoco")

ARM = """<mujoco><compiler autolimits="true"/><worldbody><geom type="plane" size="5 5 1"/>
<body name="cart" pos="0 0 .5"><joint name="slide" type="slide" axis="0 0 1" range="-1 1" frictionloss=".1"/>
<geom name="a" size=".1" mass="{0}"/>
<body pos=".1 0 0"><geom name="b" size=".05" pos="0 .1 0" mass="1"/></body>
<body name="arm" pos="0 0 .2"><joint name="hinge" axis="0 1 0"/><geom name="c" size=".1" mass="2"/>
<body name="hand" pos=".1 0 .2"><joint name="ball" type="ball" range="0 1"/>
<geom name="d" type="box" size=".1 .2 .03" mass="1"/></body></body></body>
<body name="free"><joint name="root" type="free" frictionloss="1"/>
<geom name="e" size=".1" pos=".1 .1 0"/></body>
</worldbody><equality><weld body1="hand" body2="free"/><connect body1="arm" body2="free" anchor="0 0 0"/>
</equality></mujoco>"""
WEIGHTS = ("shape_invweight", "equality_invweight", "limit_invweight", "loss_invweight")


def weights(contact):
    return {name: getattr(contact, name) for name in WEIGHTS}


def loaded():
    return ts.load(ARM.format(1.0))


def test_weights_of_changed_masses_are_those_of_a_recompiled_model():
    mech = loaded()
    same = mech.replace(mass=1 * mech.mass)
    found, expected = (weights(ts.ContactModel.of(x)) for x in (same, mech))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    heavy = ts.ContactModel.of(mech.replace(mass=10 * mech.mass, inertia=10 * mech.inertia))
    for name, x in weights(heavy).items():
        torch.testing.assert_close(10 * x, expected[name], rtol=1e-12, atol=1e-12)


def test_weights_are_recomputed_per_sample_with_gradients():
    mech = loaded()
    contact = ts.ContactModel.of(mech)
    factor = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64, requires_grad=True)
    many = mech.replace(
        mass=factor[:, None] * mech.mass, inertia=factor[:, None, None, None] * mech.inertia
    )
    found = weights(contact.with_weights_of(many))
    torch.testing.assert_close(found, weights(ts.ContactModel.of(many)))
    for name, x in weights(contact).items():
        scale = factor.reshape(-1, *[1] * x.ndim)
        torch.testing.assert_close(found[name], x / scale, rtol=1e-11, atol=1e-13)
    (slope,) = torch.autograd.grad(found["shape_invweight"].sum(), factor)
    torch.testing.assert_close(slope, -weights(contact)["shape_invweight"].sum() / factor**2)


def test_locked_and_appended_robots_have_the_weights_of_their_masses():
    mech = loaded()
    locked = ts.ContactModel.of(mech.lock({"hinge": 0.0}))
    text = ARM.format(1.0).replace('<joint name="hinge" axis="0 1 0"/>', "")
    expected = ts.ContactModel.of(ts.load(text))
    for name in ("limit_invweight", "loss_invweight"):
        torch.testing.assert_close(getattr(locked, name), getattr(expected, name))
    place = [locked.shape_names.index(name) for name in expected.shape_names]
    torch.testing.assert_close(locked.shape_invweight[place], expected.shape_invweight)


def test_a_ball_of_ten_times_the_mass_rests_as_deep_as_one_that_is_compiled():
    text = """<mujoco><worldbody><geom type="plane" size="5 5 1"/><body pos="0 0 .1"><freejoint/>
      <geom size=".1" mass="{}"/></body></worldbody></mujoco>"""
    model, mech = mujoco.MjModel.from_xml_string(text.format(10)), ts.load(text.format(1))
    data = mujoco.MjData(model)
    heavy = ts.randomise(mech, 1, {"mass": (10.0, 10.0)})
    contact = ts.ContactModel.of(heavy)
    state = ts.State(mech.initial()[None], torch.zeros(1, 6, dtype=torch.float64))
    for _ in range(60):
        mujoco.mj_step(model, data)
        state = ts.step(heavy, state, contact=contact)
    np.testing.assert_allclose(state.q[0, 2], data.qpos[2], atol=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.replace(friction=m.friction + 1), "friction of joint 'hinge' is .*no row"),
        (
            lambda m: m.replace(upper=torch.zeros_like(m.upper)),
            "upper of joint 'hinge' is .*no row",
        ),
        (lambda m: m.lock({"hinge": 0.0}), "joints .*'hinge'.*ContactModel.of"),
    ],
)
def test_a_mechanism_without_rows_for_its_values_is_refused_by_name(change, words):
    mech = loaded()
    contact, other = ts.ContactModel.of(mech), change(mech)
    state = ts.State(other.initial(), torch.zeros(other.num_dof, dtype=torch.float64))
    with pytest.raises(ts.MechanismError, match=f"(?s){words}"):
        ts.step(other, state, contact=contact)
    ts.step(other, state, contact=ts.ContactModel.of(other))


def test_a_batch_of_friction_that_fits_no_state_is_refused():
    mech = loaded()
    contact = ts.ContactModel.of(mech)
    contact = contact.replace(friction=contact.friction.expand(2, -1, -1))
    state = ts.State(mech.initial().repeat(3, 1), torch.zeros(3, mech.num_dof).double())
    with pytest.raises(ts.MechanismError, match=r"friction .*\[2\], the states have \[3\]"):
        ts.step(mech, state, contact=contact)
