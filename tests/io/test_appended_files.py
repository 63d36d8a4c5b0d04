"""Robots of robots in new files: bodies stand there depth first, however they were put together."""

import pytest
import torch

import torchsko as ts
from tests.strategies import agree, random_mechanism
from torchsko.io.common.losses import Losses
from torchsko.io.mjcf.new_mjcf import new_mjcf

pytest.importorskip("mujoco")


def branched() -> ts.Mechanism:
    """Two branches on a trunk, and a third robot on the end of the first of them."""
    dog = random_mechanism(
        ["free", "revolute", "prismatic", "revolute"], [-1, 0, 1, 0], seed=1, passive=False
    )
    arm = random_mechanism(["free", "revolute", "planar"], [-1, 0, 1], seed=2, passive=False)
    still = {"joint_rotation": torch.eye(3, dtype=dog.dtype), "joint_position": torch.zeros(3)}
    at = {name: getattr(dog, name).clone() for name in still}
    for name, x in still.items():
        at[name][0] = x
    dog = dog.replace(**at)
    axis, along = arm.axis.clone(), torch.tensor([1.0, 0.0, 0.0], dtype=arm.dtype)
    axis[2] = torch.tensor([0.0, 0.0, 1.0])
    arm = arm.replace(axis=axis, joint_parameters=along)
    return dog.append(arm, dog.body_names[2], position=(0.1, 0.2, 0.3), prefix="arm_")


@pytest.mark.parametrize("suffix", [".xml", ".urdf"])
def test_what_was_appended_hangs_in_a_new_file_where_it_was_put(suffix, tmp_path):
    mech = branched()
    assert mech.parents.index(2) > mech.parents.index(0, 2)  # not depth first
    ts.save(mech, tmp_path / f"two{suffix}")
    other = ts.load(tmp_path / f"two{suffix}")
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(5, generator=g)
    qdd = torch.randn(qd.shape, generator=g, dtype=qd.dtype)

    def there(x, slices):
        names = dict(zip(mech.body_names, mech.tree_joint_names, strict=True))
        return torch.cat([x[..., getattr(mech, slices)(names[n])] for n in other.body_names], -1)

    mine = ts.inverse_dynamics(mech, q, qd, qdd)
    theirs = ts.inverse_dynamics(
        other, there(q, "q_slice"), there(qd, "dof_slice"), there(qdd, "dof_slice")
    )
    agree(theirs, there(mine, "dof_slice"), 1e-12)


@pytest.mark.nightly
def test_a_long_chain_is_written(tmp_path):
    """No call of the writer for each link: Python's stack has some thousand."""
    chain = ts.MechanismBuilder("chain")
    I = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    for k in range(1500):
        chain.link(f"l{k}", mass=1.0, inertia=I)
        parent = f"l{k - 1}" if k else None
        chain.joint(f"j{k}", "revolute", parent=parent, child=f"l{k}", axis=(0, 1, 0))
    mech = chain.build()
    assert new_mjcf(mech, Losses("chain", "MJCF")).count("</body>") == 1500
