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

# Some joints without losses, or with little: the Coriolis forces, which the step takes explicitly, feed them
# energy faster than damping takes it. MuJoCo's Euler gains there too, and only to that is held below.
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


def fall(mech, robots, steps):
    """From rest in random configurations: q and qd over time."""
    q, _ = mech.random_state(robots, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return ts.rollout(mech, q, torch.zeros(robots, mech.num_dof, dtype=q.dtype), steps=steps)


def energy_gain(mech, qs, qds):
    """The highest energy of each sample above that of its start [J], every 20 ms."""
    with torch.no_grad():
        total = energy(mech, qs[..., ::10, :], qds[..., ::10, :])
    return (total - total[..., :1]).amax(-1)


def held_to(name, robots, steps):
    mech = lossy()[name]
    qs, qds = fall(mech, robots, steps)
    if name not in GAINING:
        assert qs.isfinite().all() and qds.isfinite().all()
        assert (
            energy_gain(mech, qs, qds).max() <= 1e-9 * energy(mech, qs[:, 0], qds[:, 0]).abs().max()
        )
        return
    for q, qd in zip(qs, qds, strict=True):
        theirs = Twin.of(mech).trajectory(q[0], qd[0], steps)
        finite = (q.isfinite().all(-1) & qd.isfinite().all(-1)).sum()
        gained = not finite == steps + 1 or energy_gain(mech, q, qd) > 0
        assert not gained or len(theirs[0]) <= steps or energy_gain(mech, *theirs) > 0


def test_there_are_thirty():
    assert len(lossy()) >= 30 and lossy().keys() >= GAINING.keys()


FEW = ("double_pendulum_description/urdf/double_pendulum.urdf", "xarm_description/urdf/xarm7.urdf")


@pytest.mark.parametrize("name", FEW)
def test_a_passive_robot_loses_energy(name):
    held_to(name, robots=2, steps=150)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in robot_files() if name not in LEFT_OUT])
def test_a_passive_robot_loses_energy_for_five_seconds(name):
    if name in lossy():
        held_to(name, robots=4, steps=2500)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in robot_files() if name not in LEFT_OUT])
def test_robots_move_as_in_mujoco(name):
    """From random states at their full speeds, while MuJoCo follows."""
    if name not in lossy():
        return
    mech = lossy()[name]
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(1))
    theirs = Twin.of(mech).trajectory(q, qd, 50)
    mine = ts.rollout(mech, q, qd, steps=len(theirs[0]) - 1)
    speed = theirs[1].abs().amax()
    assert (mine[1] - theirs[1]).abs().max() < 1e-8 * speed
