"""Tendons on joints: lengths, rates, springs and dampers against MuJoCo."""

import mujoco
import pytest
import torch

import torchsko as ts
from tests.oracles.test_mjcf import names_of_joints
from tests.strategies import agree

BODY = '<inertial pos="0.1 0 -0.2" mass="1" diaginertia="0.05 0.06 0.04"/>'
MODEL = f"""<mujoco><compiler angle="radian" autolimits="true"/><worldbody><site name="base"/>
  <body><joint name="x" type="slide" axis="1 0 0"/><joint name="swing" axis="0 1 0" ref="0.3"/>{BODY}
    <body><joint name="knee" axis="0 1 0"/>{BODY}<body><joint name="toe" axis="0 1 0"/>{BODY}
      <site name="tip" pos="0 0 0.1"/></body></body></body></worldbody>
<tendon>
  <fixed name="slack" stiffness="20" damping="3" springlength="-0.2 0.3" range="-1 1">
    <joint joint="knee" coef="0.7"/><joint joint="swing" coef="-1.3"/></fixed>
  <fixed name="tight" stiffness="7 3 5" damping="0.2 0.5 0.3"><joint joint="x" coef="2"/>
    <joint joint="knee" coef="0.4"/></fixed>
  <fixed name="plain" frictionloss="0.1"><joint joint="toe" coef="1"/></fixed>
  <spatial name="string"><site site="tip"/><site site="base"/></spatial>
</tendon>
<equality><joint joint1="toe" joint2="knee" polycoef="0.1 0.5 0 0 0"/></equality></mujoco>"""


def test_lengths_rates_and_forces_equal_those_of_mujoco():
    model = mujoco.MjModel.from_xml_string(MODEL)
    mech = ts.from_mujoco(model)
    tendons = ts.actuators.tendons_of(mech)
    assert tendons.names == ("slack", "tight", "plain") and tendons.limits[0].tolist() == [-1, 1]
    there, data = ts.conventions("mujoco", mech, names_of_joints(model)), mujoco.MjData(model)
    q, qd = mech.random_state(40, generator=torch.Generator().manual_seed(0))
    length, speed = tendons.length(mech, q), tendons.velocity(mech, qd)
    force = tendons.force(mech, q, qd)
    within = (length[:, 0] > -0.2) & (length[:, 0] < 0.3)
    assert (
        within.any() and (~within).any()
    )  # the spring is relaxed in some samples and stretched in others
    for k in range(40):
        data.qpos[:], data.qvel[:] = there.q_to(q[k]).numpy(), there.qd_to(q[k], qd[k]).numpy()
        mujoco.mj_forward(model, data)
        agree(length[k][None], torch.tensor(data.ten_length[:3])[None], 1e-13)
        agree(speed[k][None], torch.tensor(data.ten_velocity[:3])[None], 1e-13)
        theirs = there.tau_from(q[k], torch.tensor(data.qfrc_passive))
        agree(force[k][None], theirs[None], 1e-12)


def test_unsupported_properties_of_tendons_are_reported():
    mech = ts.load(MODEL)
    told = [str(line) for line in ts.actuators.tendons_of(mech).unused]
    assert any("tendon 'string': it is a spatial tendon" in line for line in told)
    assert any("tendons_of" in str(line) for line in mech.unused)


def test_springs_of_tendons_store_the_work_done_on_them():
    """Without dampers the force is the negative gradient of k x^2 / 2 + k_2 x^3 / 3 + k_3 x^4 / 4."""
    mech = ts.load(MODEL)
    tendons = ts.actuators.tendons_of(mech)
    names = ("damping", "higher_damping")
    tendons = tendons.replace(**{x: torch.zeros_like(getattr(tendons, x)) for x in names})
    q, qd = mech.random_state(20, generator=torch.Generator().manual_seed(2))

    def energy(q):
        length = tendons.length(mech, q)
        x = length - torch.clamp(length, tendons.relaxed[:, 0], tendons.relaxed[:, 1])
        k2, k3 = tendons.higher_stiffness.unbind(-1)
        return (tendons.stiffness * x**2 / 2 + k2 * x**3 / 3 + k3 * x**4 / 4).sum()

    slope = torch.autograd.functional.jacobian(energy, q)
    agree(tendons.force(mech, q, qd), -slope, 1e-12)


def test_invalid_tendons_are_refused():
    mech = ts.load(MODEL)
    with pytest.raises(ts.MechanismError, match="no moving joint is named 'no'"):
        ts.actuators.Tendons.of(mech, [ts.actuators.Tendon("t", {"no": 1.0})])
    with pytest.raises(ts.MechanismError, match="relaxed of tendon 't'"):
        ts.actuators.Tendon("t", {"x": 1.0}, relaxed=(1.0, 0.0))
    with pytest.raises(ts.ShapeError, match="stiffness of the tendons"):
        ts.actuators.tendons_of(mech).replace(stiffness=torch.zeros(2))


def test_reported_properties_of_tendons_are_the_nonzero_fields_of_mujoco():
    text = MODEL.replace('name="tight"', 'name="tight" springyield="0.2" actuatorfrcrange="-1 1"')
    model = mujoco.MjModel.from_xml_string(text)
    told = [str(line) for line in ts.actuators.tendons_of(ts.from_mujoco(model)).unused]
    fields = {
        "actuator force range": model.tendon_actfrclimited != 0,
        "yielding spring": model.tendon_springyield != 0,
    }
    expected = {
        f"{what} of tendon {model.tendon(t).name!r}"
        for what, held in fields.items()
        for t in range(3)
        if held[t]
    }
    assert len(expected) == 2
    named = {line.split(":")[0] for line in told}
    assert named == expected | {"tendon 'string'"}
