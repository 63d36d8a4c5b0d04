"""Robots of `example-robot-data` with damping or dry friction fall, passive: as in MuJoCo, losing energy."""

import functools

import pytest
import torch

import torchsko as ts

pytest.importorskip("pinocchio")
pytest.importorskip("mujoco")

from tests.oracles.mujoco_bridge import Twin
from tests.oracles.pinocchio_bridge import (
    FLOATING_ONLY,
    NO_FORWARD_DYNAMICS,
    UNPHYSICAL,
    robot_files,
)

LEFT_OUT = {*UNPHYSICAL, *FLOATING_ONLY, *NO_FORWARD_DYNAMICS}

# Some joints without losses, or with little: the Coriolis forces, which the default step takes explicitly,
# feed them energy faster than damping takes it. MuJoCo's Euler gains there too, and to no more than that is
# the default held here; "implicit" is held to the law.
GAINING = {
    "alex_description/urdf/alex_nub_hands.urdf": "0.05 N m s at every joint",
    "alex_description/urdf/alex_psyonic_hands.urdf": "0.001 to 0.05 N m s",
    "alex_description/urdf/alex_sake_hands.urdf": "0.05 N m s at every joint",
    "centauro_description/urdf/centauro.urdf": "losses at 2 of 39 joints",
    "talos_data/robots/talos_reduced.urdf": "losses at 20 of 32 joints",
    "talos_data/robots/talos_reduced_box.urdf": "losses at 20 of 32 joints",
    "talos_data/robots/talos_reduced_corrected.urdf": "losses at 20 of 32 joints",
    "panda_description/urdf/panda.urdf": "0.003 N m s at every joint",
    "panda_description/urdf/panda_collision.urdf": "0.003 N m s at every joint",
}


@functools.cache
def lossy():
    """Files with damping or friction, with their mechanisms."""
    files = {name: file for name, file in robot_files().items() if name not in LEFT_OUT}
    mechs = {name: ts.load(file, mimic="independent") for name, file in files.items()}
    return {name: mech for name, mech in mechs.items() if mech.has_losses}


def energy(mech, q, qd):
    pose = ts.forward_kinematics(mech, q)
    com = pose.position + (pose.rotation @ mech.com[..., None])[..., 0]
    kinetic = (qd * (ts.mass_matrix(mech, q) @ qd[..., None])[..., 0]).sum(-1) / 2
    return kinetic - (mech.mass[:, None] * com * mech.gravity).sum((-1, -2))


def fall(mech, q, qd, steps, method="semi_implicit_euler"):
    """States over time, nothing driving them."""
    with torch.no_grad():
        return ts.rollout(mech, ts.State(q, qd), steps=steps, method=method)[:2]


def states(mech, robots):
    """At random, with speeds up to the joints' limits."""
    return mech.random_state(robots, generator=torch.Generator().manual_seed(0))


def energy_gain(mech, qs, qds):
    """The highest energy of each sample above that of its start [J], every 20 ms."""
    with torch.no_grad():
        total = energy(mech, qs[..., ::10, :], qds[..., ::10, :])
    return (total - total[..., :1]).amax(-1)


def assert_nothing_gained(mech, qs, qds):
    assert qs.isfinite().all() and qds.isfinite().all()
    assert energy_gain(mech, qs, qds).max() <= 1e-9 * energy(mech, qs[:, 0], qds[:, 0]).abs().max()


def held_to(name, robots, steps, fused=False):
    """The default method, from rest."""
    mech = lossy()[name]
    q, qd = states(mech, robots)
    qs, qds = fall(ts.fuse(mech) if fused else mech, q, 0 * qd, steps)
    if name not in GAINING:
        assert_nothing_gained(mech, qs, qds)
        return
    for q, qd in zip(qs, qds, strict=True):
        theirs = Twin.of(mech).trajectory(q[0], qd[0], steps)
        finite = (q.isfinite().all(-1) & qd.isfinite().all(-1)).sum()
        gained = not finite == steps + 1 or energy_gain(mech, q, qd) > 0
        assert not gained or len(theirs[0]) <= steps or energy_gain(mech, *theirs) > 0


def implicit_held_to(name, robots, steps, fused=False):
    """The method "implicit": from rest, and at speed."""
    mech = lossy()[name]
    q, qd = states(mech, robots)
    q, qd = torch.cat([q, q]), torch.cat([0 * qd, qd])
    given = ts.fuse(mech) if fused else mech
    assert_nothing_gained(mech, *fall(given, q, qd, steps, "implicit"))


def test_at_least_thirty_robots_are_simulated():
    assert len(lossy()) >= 30 and lossy().keys() >= GAINING.keys()


FEW = ("double_pendulum_description/urdf/double_pendulum.urdf", "xarm_description/urdf/xarm7.urdf")


@pytest.mark.some(1)
@pytest.mark.parametrize("name", FEW)
def test_a_passive_robot_loses_energy(name):
    held_to(name, robots=2, steps=150)
    implicit_held_to(name, robots=2, steps=100)


def test_a_robot_that_gains_energy_by_the_default_method_loses_it_by_the_implicit_one():
    implicit_held_to("panda_description/urdf/panda.urdf", robots=2, steps=100)


def skip_without_losses(name):
    if name not in lossy():
        pytest.skip("the robot has no losses")


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in robot_files() if name not in LEFT_OUT])
def test_a_passive_robot_loses_energy_for_five_seconds(name):
    skip_without_losses(name)
    held_to(name, robots=4, steps=2500, fused=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in robot_files() if name not in LEFT_OUT])
def test_a_passive_robot_loses_energy_for_five_seconds_by_the_implicit_method(name):
    skip_without_losses(name)
    implicit_held_to(name, robots=4, steps=2500, fused=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in robot_files() if name not in LEFT_OUT])
def test_robots_move_as_in_mujoco(name):
    """From random states at their full speeds, while MuJoCo follows."""
    skip_without_losses(name)
    mech = lossy()[name]
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(1))
    theirs = Twin.of(mech).trajectory(q, qd, 50)
    mine = ts.rollout(mech, ts.State(q, qd), steps=len(theirs[0]) - 1)[:2]
    speed = theirs[1].abs().amax()
    assert (mine[1] - theirs[1]).abs().max() <= 1e-8 * speed  # one robot's limit is 0 rad/s
