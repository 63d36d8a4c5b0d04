"""Robots whose joints follow others, files that hold more than a rigid robot: nothing is lost."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import texts
from torchsko.identification.diagnostics.log_quality import unmodeled_force
from torchsko.identification.friction import RotorInertia, SmoothCoulomb, Viscous

LINK = """<link name="{}"><inertial><origin xyz="0.1 {} 0"/><mass value="{}"/>
<inertia ixx=".01" iyy=".02" izz=".02" ixy="0" ixz="0" iyz="0"/></inertial></link>"""
JOINT = """<joint name="{}" type="revolute"><parent link="{}"/><child link="{}"/><origin xyz="{}"/>
<axis xyz="0 1 0"/><limit lower="-2" upper="2" velocity="3" effort="100"/>{}</joint>"""
GRIPPER = "".join(
    [
        '<robot name="gripper"><link name="base"/>',
        LINK.format("a", 0.01, 3),
        LINK.format("b", 0.02, 2),
        LINK.format("c", 0.01, 1),
        JOINT.format("j1", "base", "a", "0 0 0", '<dynamics damping="0.2" friction="0.2"/>'),
        JOINT.format("g1", "a", "b", ".4 0 0", ""),
        JOINT.format(
            "g2", "a", "c", ".4 .1 0",
            '<dynamics damping="0.3" friction="0.1"/><mimic joint="g1" multiplier="-1.5"/>',
        ),
        "</robot>",
    ]
)  # fmt: skip
TENDON = """<mujoco><worldbody><body><joint name="j" axis="0 1 0" range="-60 60"/>
<geom size=".1" pos=".2 0 0"/>
</body></worldbody><tendon><fixed name="band" stiffness="2">
<joint joint="j" coef="1"/></fixed></tendon></mujoco>"""


def log_of(mech, force):
    g = torch.Generator().manual_seed(0)
    t = torch.arange(4000, dtype=mech.dtype) / 200
    motion = ts.identification.exciting_trajectory(
        mech, period=20.0, harmonics=8, limit_fraction=0.6, generator=g
    )
    q, qd, qdd = motion(t)
    tau = ts.inverse_dynamics(mech, q, qd, qdd) + force(qd, qdd)
    tau = tau + 0.01 * torch.randn(tau.shape, generator=g, dtype=tau.dtype)
    return ts.identification.Log(*(x.numpy() for x in (t, q, tau, qd)))


def test_friction_of_joints_that_others_follow_is_the_robots(tmp_path):
    mech = ts.load(GRIPPER)
    nothing = torch.zeros_like(mech.damping)
    log = log_of(
        mech.replace(damping=nothing, friction=nothing),
        lambda qd, qdd: 0.5 * qd + 0.3 * (qd / 0.05).tanh() + 0.04 * qdd,
    )
    terms = [Viscous(), SmoothCoulomb(0.05), RotorInertia()]
    fit = ts.identification.identify(mech, log, joint_terms=terms, prior=1e-4)
    assert_close(torch.stack(fit.numbers)[:, 0], torch.full((2,), 0.5).double(), rtol=0, atol=0.02)
    # At speed the robot is the fit, friction of the joint that follows counted once.
    g = torch.Generator().manual_seed(1)
    q, qd = mech.random_state(50, generator=g)
    qd = qd.sign() * (1 + qd.abs())
    qdd = torch.randn(qd.shape, generator=g, dtype=qd.dtype)
    told = fit.inverse_dynamics(q, qd, qdd)
    assert_close(ts.inverse_dynamics(fit.mechanism, q, qd, qdd), told, rtol=1e-9, atol=1e-9)
    fit.save(tmp_path, like=GRIPPER)
    saved = ts.load(tmp_path / "robot.urdf")
    armature = fit.mechanism.armature  # URDF has none
    assert_close(
        ts.inverse_dynamics(saved.replace(armature=armature), q, qd, qdd),
        told,
        rtol=1e-9,
        atol=1e-9,
    )


def test_a_robot_whose_mimic_joints_are_free_is_saved_and_read_again(tmp_path):
    mech = ts.load(GRIPPER, mimic="independent")
    log = log_of(mech, lambda qd, qdd: 0.0 * qd)
    fit = ts.identification.identify(mech, log, joint_terms=[Viscous()], prior=1e-4, cutoff=8.0)
    fit.save(tmp_path, like=GRIPPER)
    again = ts.identification.Fit.load(tmp_path)
    assert again.mechanism.joint_names == ("j1", "g1", "g2")
    at = mech.random_state(10)
    assert torch.equal(again.inverse_dynamics(*at, at[1]), fit.inverse_dynamics(*at, at[1]))


def test_the_motion_of_a_joint_without_measured_force_is_used_and_its_equation_left_out(tmp_path):
    mech = ts.load(GRIPPER, mimic="independent")
    log = log_of(mech, lambda qd, qdd: 0.2 * qd)
    arrays = {
        f"{name}_{joint}": x[:, k]
        for name, x in (("q", log.q), ("qd", log.qd), ("tau", log.tau))
        for k, joint in enumerate(mech.joint_names)
    }

    def written(columns=None, **more):
        table = {"t": log.t, **arrays, **more}
        path = tmp_path / "log.npz"
        np.savez(path, **{name: x for name, x in table.items() if x is not None})
        return ts.identification.Log.load(path, mech.joint_names, columns=columns)

    with pytest.raises(ts.FitError, match="with - for those that were not measured") as none:
        written(tau_g2=None)
    (option,) = re.findall(r"--column tau=(\S+)\.", str(none.value))
    unknown = written(columns={"tau": option.split(",")}, tau_g2=None)
    blank = written(tau_g2=np.full(len(log), np.nan))
    np.testing.assert_array_equal(unknown.tau, blank.tau)
    whole, half = (
        ts.identification.identify(mech, x, joint_terms=[Viscous()], method="ols")
        for x in (log, blank)
    )
    (note,) = texts(half, "missing_force")
    assert "g2" in note and half.terms[2] == ()
    assert_close(half.numbers[0], whole.numbers[0], rtol=0.02, atol=0.02)
    assert str(none.value).count("\n") == 2
    assert np.array_equal(written(tau_g2=np.zeros(len(log))).tau[:, 2], np.zeros(len(log)))


def test_forces_of_a_joint_that_follows_count_at_the_joint_it_follows_times_the_ratio():
    """As `Log` says of drives of both fingers."""
    free, mech = ts.load(GRIPPER, mimic="independent"), ts.load(GRIPPER)
    free, mech = (x.replace(damping=0 * x.damping, friction=0 * x.friction) for x in (free, mech))
    q, qd, qdd = (torch.linspace(-1, 1, 10).double().reshape(5, 2) + k for k in range(3))
    each = ts.inverse_dynamics(
        free, ts.expand(mech, q), *(ts.expand_velocity(mech, q, x) for x in (qd, qdd))
    )
    felt = torch.stack([each[:, 0], each[:, 1] - 1.5 * each[:, 2]], -1)
    assert_close(ts.inverse_dynamics(mech, q, qd, qdd), felt, rtol=1e-12, atol=1e-12)


def left_out(mech):
    """Messages about forces of a file that the model does not have."""
    context: Any = SimpleNamespace(nominal=mech)
    return [x.message for x in unmodeled_force(context)]


def test_a_report_lists_elements_of_the_file_that_the_model_lacks():
    mech = ts.load(TENDON)
    pulling = ts.actuators.tendons_of(mech)
    log = log_of(mech, lambda qd, qdd: 0.2 * qd)
    pull = pulling.force(mech, *map(torch.from_numpy, (log.q, log.qd))).numpy()
    felt = ts.identification.Log(log.t, log.q, log.tau - pull, log.qd)
    fit = ts.identification.identify(mech, felt, joint_terms=[Viscous()], cutoff=8.0, method="ols")
    head, rest = str(fit).split("that the model does not have:\n")
    assert "tendons" in rest
    # Its spring made a first moment of -0.21 kg m, where there is none, +- 0.0005, without a word above it.
    (note,) = texts(fit, "unmodeled_force")
    assert "1 tendons" in note
    assert note in head and "ts.actuators.tendons_of(mech).force(mech, q, qd) computes" in note
    still = TENDON.replace(' stiffness="2"', "")
    assert not left_out(ts.load(still)) and "tendons" in str(ts.load(still).unused)
    rubbing = TENDON.replace('stiffness="2"', 'frictionloss="1" armature="1"')
    assert all(
        f"tendons with {what}" in str(left_out(ts.load(rubbing)))
        for what in ("dry friction", "armature")
    )


FOUR_BARS = """<mujoco><compiler angle="radian"/><worldbody>
<body name="crank"><joint name="crank" axis="0 1 0"/><geom size=".02" pos="0 0 .1" mass="1"/>
<body name="coupler" pos="0 0 .2"><joint name="pin" axis="0 1 0"/><geom size=".02" pos=".2 0 0" mass="1"/>
</body></body>
<body name="rocker" pos=".5 0 0"><joint name="rocker" axis="0 1 0"/><geom size=".02" pos="0 0 .1" mass="1"/>
<body name="tool" pos="0 0 .3">
<joint name="tool" axis="0 1 0"/><geom size=".02" pos="0 0 .1" mass="1"/></body>
</body></worldbody><equality><connect name="close" body1="coupler" body2="rocker" anchor=".5 0 0"{}/>
</equality></mujoco>"""


def test_a_chain_that_closes_is_refused_by_the_joints_that_move_in_it():
    """Of a log of it a fit found a rocker of no mass, to ten digits: what holds the loop pushes, too."""
    pytest.importorskip("mujoco", reason="comes with the extra mjcf")
    mech = ts.load(FOUR_BARS.format(""))
    log = log_of(mech, lambda qd, qdd: 0.2 * qd)
    with pytest.raises(ts.FitError, match="'close' closes a chain of") as error:
        ts.identification.identify(mech, log, joint_terms=[Viscous()], method="ols")
    assert "joints 'crank', 'pin', 'rocker'.\n" in str(error.value)
    assert str(error.value).count("\n") == 2
    held = mech.lock({"crank": 0.0, "pin": 0.0, "rocker": 0.0})
    force = log_of(held, lambda qd, qdd: 0.2 * qd)
    found = ts.identification.identify(held, force, joint_terms=[Viscous()], method="ols")
    assert_close(found.numbers[0], torch.tensor([0.2]).double(), rtol=0, atol=0.01)
    switched_off = ts.load(FOUR_BARS.format(' active="false"'))
    ts.identification.identify(switched_off, log, joint_terms=[Viscous()], method="ols")


def written(path, mech, log, **more):
    """A log's file, columns named after joints."""
    columns = {
        f"{name}_{joint}": x[:, k]
        for name, x in (("q", log.q), ("qd", log.qd), ("tau", log.tau))
        for k, joint in enumerate(mech.joint_names)
    }
    np.savez(path, t=log.t, **columns | more)
    return ts.identification.Log.load(path, mech.joint_names)


@pytest.fixture
def gripper():
    """A robot without losses, and a log of it."""
    mech = ts.load(GRIPPER)
    mech = mech.replace(damping=0 * mech.damping, friction=0 * mech.friction)
    return mech, log_of(mech, lambda qd, qdd: 0.3 * qd)


def notes_of(mech, log):
    """Findings about coupled joints."""
    fit = ts.identification.identify(mech, log, joint_terms=[Viscous()], cutoff=8.0, method="ols")
    return [str(x) for x in fit.findings if "coupled" in x.code]


def test_unused_and_missing_forces_of_coupled_joints_are_findings(gripper, tmp_path):
    """Their columns were dropped without a word, also where half of what moves a finger was in them."""
    mech, log = gripper
    half = log.tau * [1.0, 0.5]
    parted = ts.identification.Log(log.t, log.q, half, log.qd)
    theirs = half[:, 1] / -1.5  # felt at the joint that it follows: -1.5 times
    lacking = written(tmp_path / "a.npz", mech, parted, tau_g2=theirs)
    (note,) = notes_of(mech, lacking)
    assert "Forces of g1 probably lack those of g2" in note
    assert "tau of g1 + -1.5 * tau of g2" in note
    # As many drivers have it, the motor's force in both columns.
    (note,) = notes_of(mech, written(tmp_path / "b.npz", mech, log, tau_g2=log.tau[:, 1]))
    assert f"are not used: g2 (up to {np.abs(log.tau[:, 1]).max():.3g})" in note
    assert "explains 100 % of g1, 0 % with them" in note
    (note,) = notes_of(mech, written(tmp_path / "c.npz", mech, log, tau_g2=0 * log.t))
    assert note == "Forces of coupled joints are always zero: g2."
    assert not notes_of(mech, written(tmp_path / "d.npz", mech, log))


def test_positions_that_contradict_their_coupling_are_a_finding(gripper, tmp_path):
    mech, log = gripper
    (note,) = notes_of(mech, written(tmp_path / "a.npz", mech, log, q_g2=1.5 * log.q[:, 1]))
    assert "Positions of g2 differ from its coupling" in note
    assert not notes_of(mech, written(tmp_path / "b.npz", mech, log, q_g2=-1.5 * log.q[:, 1]))
