"""Robot files of fits: what a format or a mechanism cannot express is in fit.pt and in one warning."""

import warnings

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.test_fit import arm, log_of
from tests.identification.test_fit import friction as usual_friction
from torchsko.identification import Fit, identify
from torchsko.identification.friction import (
    Coulomb,
    Offset,
    RotorInertia,
    SmoothCoulomb,
    Spring,
    Stribeck,
    StribeckCoulomb,
    Viscous,
)


def wrist(kind="revolute", follows=True):
    """Two joints whose second one is driven by a motor at the base, or has a kind of its own."""
    builder = ts.MechanismBuilder("wrist")
    for name, mass in (("a", 2.0), ("b", 1.0), ("rotor", 0.01)):
        inertia = [[0.01, 0, 0], [0, 0.01, 0], [0, 0, 0.01]]
        builder.link(name, mass=mass, com=(0.05, 0.02, 0.1), inertia=inertia)
    builder.joint(
        "joint_5", "revolute", child="a", axis=(0, 1, 0), lower=-1.5, upper=1.5, velocity=3
    )
    more = {"pitch": 0.1} if kind == "helical" else {}
    builder.joint(
        "joint_6", kind, child="b", parent="a", position=(0, 0, 0.2), axis=(1, 0, 0), lower=-1.5,
        upper=1.5, velocity=3, **more,
    )  # fmt: skip
    builder.joint(
        "motor_6", "revolute", child="rotor", axis=(0, 0, 1), lower=-1.5, upper=1.5, velocity=3
    )
    if follows:
        builder.couple("joint_6", {"motor_6": 1.0, "joint_5": -1.0})
    return builder.build()


def fitted(mech, terms, force=usual_friction, **options):
    log, motion = log_of(mech, force, seconds=6.0, rate=200.0, noise=0.02)
    return identify(mech, log, joint_terms=terms, cutoff=8.0, **options), motion[:3]


def saved(fit, folder, **options):
    """The name of the robot file, and the only warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        name = fit.save(folder, **options)
    assert len(caught) <= 1 and all(issubclass(x.category, ts.RobotFileWarning) for x in caught)
    return name, "".join(str(x.message) for x in caught)


ROBOTS = {"differential": wrist(), "screw": wrist("helical", follows=False)}


@pytest.mark.parametrize("file_format", ["urdf", "mjcf"])
@pytest.mark.parametrize("robot", ROBOTS)
def test_a_fit_is_saved_whatever_the_format_can_express(robot, file_format, tmp_path):
    mech = ROBOTS[robot]
    fit, motion = fitted(mech, [Viscous()], lambda q, qd: 0.3 * qd, prior=1e-4)
    (tmp_path / "robot.urdf").write_text("an old one")
    name, warning = saved(fit, tmp_path, file_format=file_format)
    assert (name is None) == ("was not written" in warning)
    files = {x.name for x in tmp_path.iterdir()}
    assert files == {"fit.pt"} | ({name} if name else set())
    again = Fit.load(tmp_path, robot=mech)
    assert torch.equal(again.inverse_dynamics(*motion), fit.inverse_dynamics(*motion))
    assert again.mechanism.tree_joint_names == mech.tree_joint_names
    if name is None:
        assert "joint_6" in warning and "Fit.load(folder, robot=mech)" in warning
        with pytest.raises(ts.FitError, match=r"(?s)no robot.urdf.*robot=mech"):
            Fit.load(tmp_path)
        with pytest.raises(ts.FitError, match="fit of wrist: its joints are"):
            Fit.load(tmp_path, robot=mech.lock({"joint_5": 0.0}))
    else:
        loaded = Fit.load(tmp_path)
        assert torch.equal(loaded.inverse_dynamics(*motion), fit.inverse_dynamics(*motion))


def test_one_format_at_least_cannot_express_a_screw(tmp_path):
    fit, _ = fitted(ROBOTS["screw"], [], lambda q, qd: 0 * qd, method="ols")
    name, warning = saved(fit, tmp_path)
    assert name is None and "joint_6" in warning


EXACT = [Viscous(), SmoothCoulomb(0.05), Offset(), RotorInertia()]
TERMS = {
    "all in the mechanism": (EXACT, ()),
    "Stribeck": ([*EXACT, Stribeck(0.1)], ("Stribeck(speed=0.1, smooth=0.02)",)),
    "Stribeck and Coulomb in one": ([StribeckCoulomb()], ("StribeckCoulomb(speed=0.1, ratio=1.5)",)),
    "a spring": ([*EXACT, Spring()], ("Spring",)),
    "two laws of dry friction": ([SmoothCoulomb(1.0), Coulomb()], ("SmoothCoulomb(speed=1)", "Coulomb")),
}  # fmt: skip


@pytest.mark.parametrize("case", TERMS)
def test_the_mechanism_is_the_whole_model_or_what_it_lacks_is_named(case, tmp_path):
    """A warning called a mechanism without 1.4 N m of Stribeck friction the complete robot."""
    terms, lacks = TERMS[case]
    truth, _ = arm()

    def force(q, qd):
        low = (qd / 0.02).tanh() * (-((qd / 0.1) ** 2)).exp()
        return 0.3 * qd + 0.5 * qd.tanh() + 0.4 * qd.sign() + 1.6 * low + 2 * q + 0.5

    fit, motion = fitted(truth, terms, force, prior=1e-4)
    named = {x.split(" term of ")[0] for x in fit.missing_from_mechanism}
    assert named <= set(lacks) and bool(named) == bool(lacks)
    lost = fit.inverse_dynamics(*motion) - ts.inverse_dynamics(fit.mechanism, *motion)
    assert (float(lost.abs().max()) > 0.05) == bool(lacks)
    _, warning = saved(fit, tmp_path)
    assert all(x in warning for x in named)
    assert ("all but the" in warning) == bool(lacks)
    assert all(x in str(fit) for x in fit.missing_from_mechanism)


def test_a_least_squares_robot_without_its_inertias_says_so(tmp_path):
    fit, _ = fitted(arm()[0], EXACT, method="ols")
    assert fit.missing_from_mechanism == ("identified inertias (not physical) of all bodies",)
    assert "identified inertias" in saved(fit, tmp_path)[1]


@pytest.mark.parametrize("terms", [[RotorInertia(), Viscous()], [Viscous()]])
def test_rotors_of_a_urdf_robot_survive_in_mjcf(terms, tmp_path):
    truth, _ = arm()
    nominal = tmp_path / "nominal.urdf"
    ts.save(truth, nominal)
    rotors = ts.load(nominal)
    rotors = rotors.replace(armature=torch.full_like(rotors.armature, 0.3))  # known, or fitted
    fit, _ = fitted(rotors, terms, lambda q, qd: 0.3 * qd, prior=1e-4)
    assert float(fit.mechanism.armature.min()) > 0.2
    name, warning = saved(fit, tmp_path / "urdf", like=nominal)
    assert name == "robot.urdf" and "rotor inertia" in warning and "--format mjcf" in warning
    name, warning = saved(fit, tmp_path / "mjcf", like=nominal, file_format="mjcf")
    assert name == "robot.xml" and not warning
    assert_close(ts.load(tmp_path / "mjcf" / "robot.xml").armature, fit.mechanism.armature)
    assert torch.equal(Fit.load(tmp_path / "mjcf").mechanism.mass, fit.mechanism.mass)
    with pytest.raises(ts.FitError, match="the file format of the robot is 'sdf'"):
        fit.save(tmp_path, file_format="sdf")
