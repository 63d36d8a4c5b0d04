"""The default integrator is MuJoCo's Euler with implicit damping: the same trajectories, step by step."""

import pytest
import torch

import torchsko as ts
from tests.strategies import random_mechanism

pytest.importorskip("mujoco")
from tests.oracles.mujoco_bridge import Twin

TREES = {
    "a chain with a ball joint": (["revolute", "prismatic", "spherical"], [-1, 0, 1]),
    "a floating robot": (["free", "revolute", "spherical", "prismatic"], [-1, 0, 0, 1]),
    "a thrown body": (["free"], [-1]),
    "two arms": (["revolute"] * 5, [-1, 0, 1, 0, 3]),
    "two floating robots": (["free", "spherical", "free", "revolute"], [-1, 0, -1, 2]),
}
LOSSES = {"no losses": (0.0, 0.0), "damping": (1.0, 0.0), "damping and friction": (1.0, 1.0)}


def robot(kinds, parents, damping, friction):
    """A random robot with springs and armature, whose free joints are in the inertial frame."""
    mech = random_mechanism(kinds, parents, seed=3, armature=True)
    changes = {"damping": damping * mech.damping, "friction": friction * mech.friction}
    changes |= {name: getattr(mech, name).clone() for name in ("joint_rotation", "joint_position")}
    changes["armature"] = mech.armature.clone()
    for k, (name, kind) in enumerate(zip(mech.joint_names, mech.joint_kinds, strict=True)):
        if kind == "free":
            changes["joint_rotation"][k] = torch.eye(3, dtype=mech.dtype)
            changes["joint_position"][k] = 0.0
            changes["friction"][mech.dof_slice(name)] = 0.0
            # In the body's axes here, in the world's there: the same for damping equal in all axes.
            at = mech.dof_slice(name)
            changes["damping"][at] = damping * mech.damping[at].mean()
    return mech.replace(**changes)


def apart(mech, steps, fused=False):
    """Largest difference of positions and velocities over a trajectory."""
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))
    theirs = Twin.of(mech).trajectory(q, qd, steps)
    assert len(theirs[0]) == steps + 1
    if fused:
        states, tau, step = [(q, qd)], torch.zeros_like(qd), ts.fuse(mech).advance_tensors
        for _ in range(steps):
            states.append(step(*states[-1], tau, 2e-3))
        mine = [torch.stack(x) for x in zip(*states, strict=True)]
    else:
        mine = ts.rollout(mech, ts.State(q, qd), steps=steps)[:2]
    assert (theirs[0][-1] - q).abs().max() > 0.1
    return max((a - b).abs().max().item() for a, b in zip(mine, theirs, strict=True))


@pytest.mark.some(1)
@pytest.mark.parametrize("tree", list(TREES)[:2])
def test_a_thousand_steps_equal_those_of_mujoco(tree):
    assert apart(robot(*TREES[tree], 1.0, 1.0), 1000) < 1e-8


@pytest.mark.nightly
@pytest.mark.parametrize("losses", LOSSES)
@pytest.mark.parametrize("tree", TREES)
def test_a_thousand_steps_of_every_tree_equal_those_of_mujoco(tree, losses):
    assert apart(robot(*TREES[tree], *LOSSES[losses]), 1000) < 1e-8


def test_a_thousand_fused_steps_equal_those_of_mujoco():
    assert apart(robot(*TREES["a floating robot"], 1.0, 1.0), 1000, fused=True) < 1e-8
