"""`mujoco.rollout` of robots without contacts, a thousand steps by each integrator that both have."""

import pytest
import torch

import torchsko as ts

pytest.importorskip("mujoco")
import mujoco

from tests.oracles.mujoco_bridge import Twin
from tests.oracles.test_mujoco_steps import TREES, robot

STEPS, BATCH = 1000, 2
NAMES = {
    "Euler": "semi_implicit_euler",
    "implicitfast": "semi_implicit_euler",
    "RK4": "rk4",
}
"""MuJoCo's names and ours. With no velocity in forces but damping, its implicitfast is its Euler."""

ROBOTS = {
    **{name: TREES[name] for name in ("a chain with a ball joint", "a floating robot", "two arms")},
    "an arm": (["revolute", "prismatic", "revolute"], [-1, 0, 1]),
    "a cart with poles": (["prismatic", "revolute", "revolute"], [-1, 0, 0]),
}
"""RK4 is the same where coordinates are vectors: on others MuJoCo adds up rates of different places."""

CASES = [
    *((r, i) for r in list(ROBOTS)[:3] for i in ("Euler", "implicitfast")),
    *((r, "RK4") for r in list(ROBOTS)[2:]),
]
DAILY = {("an arm", "RK4"), ("an arm", "implicitfast")}


def largest_difference(name, integrator):
    from mujoco import rollout

    mech = robot(*ROBOTS[name], 1.0, 0.0)
    twin = Twin.of(mech)
    twin.model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}")
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(BATCH, generator=g)
    tau = 0.1 * torch.randn(BATCH, STEPS, mech.num_dof, generator=g, dtype=q.dtype)
    there = twin.there
    start = torch.cat([torch.zeros(BATCH, 1), there.q_to(q), there.qd_to(q, qd)], -1)
    control = torch.stack([there.qd_to(q, tau[:, k]) for k in range(STEPS)], 1)
    if "free" in mech.joint_kinds:  # forces on a free joint turn with it
        control = tau = torch.zeros_like(tau)
    data = mujoco.MjData(twin.model)
    states, _ = rollout.rollout(
        twin.model, data, start.numpy(), control.numpy(),
        control_spec=mujoco.mjtState.mjSTATE_QFRC_APPLIED.value,
    )  # fmt: skip
    theirs = torch.from_numpy(states)[..., 1:]
    qs, qds, *_ = ts.rollout(
        ts.fuse(mech), ts.State(q, qd), tau, steps=STEPS, dt=2e-3, method=NAMES[integrator]
    )
    mine = torch.cat([there.q_to(qs), there.qd_to(qs, qds)], -1)[:, 1:]
    assert (mine[:, -1] - mine[:, 0]).abs().max() > 0.1
    return (mine - theirs).abs().max().item()


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("name", "integrator"),
    [pytest.param(*case, marks=[] if case in DAILY else pytest.mark.nightly) for case in CASES]
    + [("an arm", "implicitfast")],
)
def test_a_thousand_steps_are_those_of_mujoco_rollout(name, integrator):
    assert largest_difference(name, integrator) < 1e-8
