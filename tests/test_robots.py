"""Robots that ship, and those that are found."""

import re

import pytest
import torch

import torchsko as ts
from tests.oracles.pinocchio_bridge import Robot, worst_error

pin = pytest.importorskip("pinocchio")

LEGGED = {
    "quadruped": (ts.robots.quadruped, 12, "foot"),
    "humanoid": (ts.robots.humanoid, 21, "sole"),
}
each = pytest.mark.parametrize("name", LEGGED)


def load(name: str) -> ts.Mechanism:
    return ts.load(LEGGED[name][0], floating_base=True, strict=True)


@each
def test_a_robot_that_ships_has_no_fault_and_stands_level_and_symmetric(name):
    mech, (_, joints, foot) = load(name), LEGGED[name]
    assert mech.num_dof == 6 + joints and mech.report == () and mech.singular_joints == ()
    q = mech.neutral()
    heights = ts.frame_pose(mech, q, [n for n in mech.frame_names if n.endswith(foot)]).position[
        :, 2
    ]
    assert float(heights.max() - heights.min()) < 1e-15
    assert abs(float(ts.center_of_mass(mech, q)[1])) < 1e-15
    M = ts.mass_matrix(mech, q)[:3, :3]  # the whole robot's inertia, about the base
    assert float(M[0, 1].abs() + M[1, 2].abs()) < 1e-15


@each
def test_left_and_right_move_alike(name):
    """Reflected in the middle plane: turns about y and shifts along x and z stay, others change sign."""
    mech = load(name)
    g = torch.Generator().manual_seed(0)
    qd = torch.randn(mech.num_dof, generator=g, dtype=mech.dtype)
    mirrored = torch.empty_like(qd)
    mirrored[:6] = qd[:6] * torch.tensor([-1.0, 1, -1, 1, -1, 1], dtype=qd.dtype)
    for joint in mech.joint_names[1:]:
        other = re.sub("left|right", lambda m: {"left": "right", "right": "left"}[m[0]], joint)
        k, at = mech.joint_index(joint), mech.dof_slice(joint)
        about_y = bool(mech.axis[k, 1].abs() == 1)
        same = mech.axis[k] if about_y else -mech.axis[k]
        sign = 1.0 if torch.equal(mech.axis[mech.joint_index(other)], same) else -1.0
        mirrored[mech.dof_slice(other)] = sign * qd[at]
    q = mech.neutral()
    energies = [float(ts.kinetic_energy(mech, q, rates)) for rates in (qd, mirrored)]
    assert energies[0] == pytest.approx(energies[1], rel=1e-12)


def test_masses_are_those_of_the_sources():
    assert float(load("humanoid").mass.sum()) == pytest.approx(73.0, rel=1e-12)
    # body, four legs of three links, twelve rotors
    expected = 3.3 + 4 * (0.54 + 0.634 + 0.064) + 12 * 0.055
    assert float(load("quadruped").mass.sum()) == pytest.approx(expected, rel=1e-12)


@each
def test_pinocchio_reads_it_alike(name):
    """Pinocchio does not read rotors."""
    both = Robot.load(LEGGED[name][0], True)
    q, qd, qdd, _ = both.states(8)
    tau = both.map(pin.rnea, q, qd, qdd)
    bare = both.mech.replace(armature=torch.zeros_like(both.mech.armature))
    assert worst_error(ts.inverse_dynamics(bare, q, qd, qdd), tau) < 1e-12


def test_the_rotors_of_the_quadruped_are_those_of_its_motors():
    """Katz et al.: 63e-6 kg m^2 behind gears of 6 (abduction, hip) and 9.33 (knee)."""
    mech = load("quadruped")
    for name in mech.joint_names[1:]:
        gear = 9.33 if name.endswith("knee") else 6.0
        assert float(mech.armature[mech.tree_dof_slice(name)]) == pytest.approx(gear**2 * 63e-6)
    assert not mech.armature[:6].any()


@pytest.mark.parametrize(("kv", "implicit"), [(5.0, None), (20.0, "velocity")])
def test_servo_gains_of_the_documentation_are_stable(kv, implicit):
    """An explicit damping is stable below 2 / (dt (M^-1)_jj), here 12 N m s/rad at the knees."""
    mech, dt = ts.load(ts.robots.quadruped), 1e-3
    stand = torch.tensor([0.0, -0.8, 1.6] * 4, dtype=mech.dtype)
    q, qd = stand + 0.1, torch.zeros_like(stand)
    bound = 2 / (dt * torch.linalg.inv(ts.mass_matrix(mech, q)).diagonal())
    assert 10 < float(bound.min()) < 15
    moved = {}
    for gain in {kv, 20.0}:
        drives = [ts.actuators.Actuator.position(n, n, kp=40.0, kv=gain) for n in mech.joint_names]
        control = ts.actuators.ActuatedControl(
            ts.actuators.Actuators.of(mech, drives), stand, implicit=implicit
        )
        options = {"steps": 200, "dt": dt, "nonfinite": "ignore", "fused": False}
        with torch.no_grad():
            qs = ts.rollout(mech, ts.State(q, qd), control, **options).q
        moved[gain] = float((qs[-1] - stand).abs().max())
    assert moved[kv] < 0.11
    assert implicit or not moved[20.0] < 1.0


def test_installed_packages_are_found_and_no_others():
    known = ts.robots.available()
    sources = {name.split("/")[0] for name in known}
    assert {"torchsko", "example-robot-data", "gymnasium"} <= sources
    assert all(path.is_file() and path.suffix in (".urdf", ".xml") for path in known.values())
    assert (
        ts.robots.find("humanoid.urdf") == ts.robots.find("torchsko/humanoid") == ts.robots.humanoid
    )
    assert ts.load(ts.robots.find("ant")).num_dof == 14
    assert ts.robots.find("anymal-kinova").parent.name == "robots"


def test_a_folder_given_is_looked_through_and_not_left(tmp_path):
    checkout, outside = tmp_path / "menagerie", tmp_path / "secret.urdf"
    (checkout / "maker").mkdir(parents=True)
    (checkout / "maker" / "walker3.xml").write_text("<!-- a robot -->\n<mujoco/>")
    (checkout / "maker" / "notes.xml").write_text("<notes/>")
    outside.write_text("<robot/>")
    (checkout / "link.urdf").symlink_to(outside)
    (checkout / "maker" / "up").symlink_to(tmp_path)
    mine = {name for name in ts.robots.available(checkout) if name.startswith("menagerie/")}
    assert mine == {"menagerie/maker/walker3.xml"}
    assert ts.robots.find("walker3", checkout) == checkout / "maker" / "walker3.xml"
    for name in (
        "../secret.urdf",
        "/etc/passwd",
        "maker/../../secret.urdf",
        "C:\\robot",
        "..\\secret",
    ):
        with pytest.raises(ts.RobotFileError, match="outside of the robot folders"):
            ts.robots.find(name, checkout)
    with pytest.raises(ts.RobotFileError, match="no robot is named 'secret'"):
        ts.robots.find("secret", checkout)
    with pytest.raises(ts.RobotFileError, match="is not a folder"):
        ts.robots.available(tmp_path / "none")
    with pytest.raises(ts.RobotFileError, match="2 robots are named 'panda'"):
        ts.robots.find("panda")


def test_models_in_the_cache_of_robot_descriptions_are_found_without_a_download(
    tmp_path, monkeypatch
):
    (tmp_path / "maker").mkdir()
    (tmp_path / "maker" / "arm9.urdf").write_text("<robot/>")
    monkeypatch.setenv("ROBOT_DESCRIPTIONS_CACHE", str(tmp_path))
    assert ts.robots.find("arm9") == tmp_path / "maker" / "arm9.urdf"
    monkeypatch.setenv("ROBOT_DESCRIPTIONS_CACHE", str(tmp_path / "none"))
    assert "robot_descriptions/maker/arm9.urdf" not in ts.robots.available()
