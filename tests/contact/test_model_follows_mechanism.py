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


LUG = """<mujoco><compiler angle="radian"/><worldbody><geom type="plane" size="1 1 1"/><site name="w"/>
<body name="a" pos="0 0 1"><joint name="h" axis="0 1 0" range="-.1 .1" limited="true" ref=".2"/>
<geom type="capsule" fromto="0 0 0 .3 0 0" size=".03" mass="{}"/>
<body name="lug" pos="0 .1 .1" euler=".2 0 0"><geom size=".02" mass=".3" pos=".1 0 0"/><site name="k"/></body>
<body name="b" pos=".3 0 0"><joint name="j" axis="0 1 .2" frictionloss="1"/><geom size=".04" mass=".2"
pos=".1 0 .1"/><site name="s"/></body></body></worldbody><equality>{}</equality></mujoco>"""

EQUALITIES = {
    "weld of a welded body": '<weld body1="lug" body2="b"/>',
    "connect of a welded body": '<connect body1="lug" anchor="0 0 0"/>',
    "connect of a welded body's site": '<connect site1="k" site2="s"/>',
    "weld of a welded body's site": '<weld site1="k" site2="w"/>',
    "joints with an offset": '<joint joint1="j" joint2="h" polycoef=".3 .5 0 0 0"/><connect body1="b" '
    'anchor="0 0 0"/>',
}


@pytest.mark.parametrize("mimic", ["couple", "independent"])
@pytest.mark.parametrize("name", EQUALITIES)
def test_computed_weights_are_those_of_the_compiler(name, mimic):
    """Weights of welded bodies are those of their own centers of mass, also when another body changed."""
    light, heavy = (ts.load(LUG.format(m, EQUALITIES[name]), mimic=mimic) for m in (1.0, 1.7))
    only_heavy_link = LUG.format(1.0, EQUALITIES[name]).replace('mass=".2"', 'mass=".9"')
    other = ts.load(only_heavy_link, mimic=mimic)
    for mech in (light, heavy, other):
        of_file = ts.ContactModel.of(mech)
        assert not any(x.isnan().any() for x in weights(of_file).values())
        found = [of_file.with_weights_of(mech)]
        if mech is other:
            changes = {field: getattr(other, field) for field in ("mass", "com", "inertia")}
            found.append(ts.ContactModel.of(light.replace(**changes)))
        for contact in found:
            torch.testing.assert_close(weights(contact), weights(of_file), rtol=1e-10, atol=1e-12)


def test_a_shifted_center_of_mass_moves_those_of_welded_bodies():
    """Both geoms of a body and those of the body welded to it, each shifted by the same displacement."""
    text = LUG.format(1.0, EQUALITIES["weld of a welded body"]).replace(' euler=".2 0 0"', "")
    model, mech = mujoco.MjModel.from_xml_string(text), ts.load(text)
    shift = torch.tensor([0.03, -0.02, 0.05], dtype=torch.float64, requires_grad=True)
    moves = torch.tensor([[1.0], [0.0]], dtype=torch.float64) * shift
    found = ts.ContactModel.of(mech).with_weights_of(mech.replace(com=mech.com + moves))
    model.body_ipos[1:3] += shift.detach().numpy()
    mujoco.mj_setConst(model, mujoco.MjData(model))
    (lug, b), weight = (model.body(name).id for name in ("lug", "b")), found.equality_invweight[0]
    expected = torch.tensor(model.body_invweight0[lug] + model.body_invweight0[b])
    torch.testing.assert_close(weight, expected, rtol=1e-10, atol=1e-12)
    assert torch.autograd.grad(weight.sum(), shift)[0].norm() > 0


def test_a_ball_of_ten_times_the_mass_rests_as_deep_as_one_that_is_compiled():
    text = """<mujoco><worldbody><geom type="plane" size="5 5 1"/><body pos="0 0 .1"><freejoint/>
      <geom size=".1" mass="{}"/></body></worldbody></mujoco>"""
    model, mech = mujoco.MjModel.from_xml_string(text.format(10)), ts.load(text.format(1))
    data = mujoco.MjData(model)
    heavy = ts.randomize(mech, 1, {"mass": (10.0, 10.0)})
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
