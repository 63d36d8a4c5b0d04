"""A SCARA arm: gravity acts on one prismatic joint, and the nominal robot lacks the rotors of its drives."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.finding_codes import texts
from torchsko.identification import Log
from torchsko.identification.drive_gains import torque_constants
from torchsko.identification.friction import Offset, RotorInertia
from torchsko.identification.signals.filter_settings import design_filters


def link(name, mass, x, inertia):
    return (
        f'<link name="{name}"><inertial><origin xyz="{x} 0 -0.02"/><mass value="{mass}"/><inertia '
        f'ixx="{inertia}" ixy="0" ixz="0" iyy="{inertia}" iyz="0" izz="{inertia}"/></inertial></link>'
    )


def joint(name, kind, parent, child, x):
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{x} 0 0"/><axis xyz="0 0 1"/>'
        '<limit lower="-2" upper="2" effort="300" velocity="9"/></joint>'
    )


SCARA = "".join(
    [
        '<robot name="scara"><link name="base"/>',
        link("upper_arm", 6, 0.2, 0.1) + joint("shoulder", "revolute", "base", "upper_arm", 0),
        link("forearm", 4, 0.14, 0.05) + joint("elbow", "revolute", "upper_arm", "forearm", 0.35),
        link("quill", 1.2, 0, 0.008) + joint("slide", "prismatic", "forearm", "quill", 0.3),
        link("flange", 1.5, 0.03, 0.004) + joint("wrist", "revolute", "quill", "flange", 0),
        "</robot>",
    ]
)
ROTORS = (0.35, 0.12, 4.0, 0.004)
CONSTANTS = np.array([12.0, 9.0, 60.0, 0.9])


def scara_log(seed):
    """The nominal robot, and a log with masses off by 3 %, rotors, friction, offsets and noise."""
    nominal = ts.load(SCARA)
    factor = torch.tensor([1.03, 0.97, 1.03, 0.97], dtype=nominal.dtype)
    truth = nominal.replace(
        mass=factor * nominal.mass, inertia=factor[:, None, None] * nominal.inertia,
        armature=factor.new_tensor(ROTORS),
    )  # fmt: skip
    t = torch.arange(0, 15, 0.01, dtype=nominal.dtype)
    g = torch.Generator().manual_seed(seed)
    q, qd, qdd = ts.identification.exciting_trajectory(nominal, generator=g)(t)
    q, qd, qdd = (x * factor.new_tensor([1, 1, 0.1, 1]) for x in (q, qd, qdd))
    tau = ts.inverse_dynamics(truth, q, qd, qdd)
    tau = tau + (qd / 0.03).tanh() * factor.new_tensor([2.5, 1.6, 12, 0.25])
    tau = tau + qd * factor.new_tensor([1.5, 0.8, 25, 0.05])
    tau = tau + factor.new_tensor([0.3, -0.2, 1.0, 0.02])
    noise = torch.randn(tau.shape, generator=g, dtype=tau.dtype)
    tau = tau + noise * factor.new_tensor([0.3, 0.2, 1.0, 0.02])
    q = q + 2e-5 * torch.randn(q.shape, generator=g, dtype=q.dtype)
    return nominal, Log(t.numpy(), q.numpy(), tau.numpy())


def test_a_vertical_prismatic_joint_keeps_its_mass_apart_from_rotor_and_offset():
    """Mass, rotor and offset make two numbers. Without the rotor the mass was 6.7 kg and the offset -38 N."""
    nominal, log = scara_log(0)
    fit = ts.identification.identify(nominal, log)
    slide = dict(zip(fit.terms[2], fit.numbers[2].tolist(), strict=True))
    assert float(fit.mechanism.mass[2:].sum()) == pytest.approx(2.69, rel=0.05)
    assert slide[RotorInertia()] == pytest.approx(4.0, rel=0.05)
    assert abs(slide[Offset()]) < 3
    notes = texts(fit, "unidentifiable")
    assert any("RotorInertia of slide" in note for note in notes)
    assert all("nearest to the nominal robot" in note for note in notes)
    errors = fit.test(scara_log(1)[1]).nrmse
    assert errors["physical"].mean() < 0.5 * errors["least squares"].mean()


def test_torque_constants_do_not_depend_on_rotors_that_the_nominal_robot_lacks():
    """Without rotors in the estimate the constants were 20 % too small, and that of the slide 60 %."""
    nominal, log = scara_log(0)
    currents = Log(log.t, log.q, log.tau / CONSTANTS, current=True)
    value = torque_constants(nominal, currents, design_filters(currents, 8.0)).value.numpy()
    np.testing.assert_allclose(value[[0, 1, 3]], CONSTANTS[[0, 1, 3]], rtol=0.05)
    assert np.isnan(value[2])
