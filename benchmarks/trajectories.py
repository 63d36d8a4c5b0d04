"""Whole rollouts as kernels: beside `mujoco.rollout` on the same cores, and their gradients.

    python benchmarks/trajectories.py [--threads 2] [--passes 5]

No contacts, float64, joint forces held over each step. Ratios are of one interleaved run: above 1 the other
takes longer. Before anything is timed, both are seen to move the robot alike. Build times are those of an
empty cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from cases import Robot, floating_humanoid, panda
from report import origin
from timing import interleaved, ratio
from torch import Tensor

import torchsko as ts

DT = 1e-3
ROBOTS = {"panda": panda, "humanoid": floating_humanoid}
SIZES = ((1024, 1000), (1, 10_000))


class Peer:
    """MuJoCo's model of a robot, without constraints."""

    def __init__(self, robot: Robot, threads: int) -> None:
        import mujoco
        from mujoco import rollout

        self.model = model = mujoco.MjModel.from_xml_path(str(robot.path_with_joint))
        model.opt.timestep = DT
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
        model.opt.gravity = robot.mech.gravity.tolist()
        self.datas = [mujoco.MjData(model) for _ in range(threads)]
        self.rollout = rollout
        self.spec = mujoco.mjtState.mjSTATE_FULLPHYSICS
        self.size = mujoco.mj_stateSize(model, self.spec)
        self.control = mujoco.mjtState.mjSTATE_QFRC_APPLIED
        self.convention = ts.conventions("mujoco", robot.mech, joint_names=self._names(mujoco))

    def _names(self, mujoco: object) -> list[str]:
        return [self.model.joint(k).name for k in range(self.model.njnt)]

    def start(self, q: Tensor, qd: Tensor) -> Tensor:
        """States as MuJoCo lays them out: time, q, v."""
        both = [self.convention.q_to(q), self.convention.qd_to(q, qd)]
        return torch.cat([torch.zeros(len(q), 1, dtype=q.dtype), *both], -1)

    def run(self, start: Tensor, forces: Tensor) -> Tensor:
        """All states, `[batch, steps, 1 + nq + nv]`."""
        states, _ = self.rollout.rollout(
            self.model, self.datas, start.numpy(), forces.numpy(), control_spec=self.control.value
        )
        return torch.from_numpy(states)


def states(robot: Robot, batch: int) -> tuple[Tensor, Tensor]:
    """Within the limits, slow enough to follow each other for a while."""
    q, qd = robot.mech.random_state(batch, generator=torch.Generator().manual_seed(0))
    return q, qd / 10


def assert_alike(robot: Robot, peer: Peer, fast: ts.fused.FusedMechanism) -> float:
    """The largest difference of 100 steps, of speeds over the largest of them."""
    q, qd = states(robot, 4)
    tau = torch.zeros(4, 100, robot.mech.num_dof, dtype=q.dtype)
    qs, qds, *_ = ts.rollout(fast, ts.State(q, qd), tau, steps=100, dt=DT)
    theirs = peer.run(peer.start(q, qd), tau)[:, -1, 1 + peer.model.nq :]
    ours = peer.convention.qd_to(qs[:, -1], qds[:, -1])
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    assert error < 1e-8, f"{robot.name}: the two differ by {error}"
    return error


def beside_mujoco(robot: Robot, threads: int, passes: int) -> None:
    """Print the ratios of one robot."""
    peer, fast = Peer(robot, threads), ts.fuse(robot.mech)
    error = assert_alike(robot, peer, fast)
    print(f"\n{robot.name}: both move alike to {error:.1g} in 100 steps")
    for batch, steps in SIZES:
        beside_at(robot, peer, fast, batch, steps, passes)


def beside_at(
    robot: Robot, peer: Peer, fast: ts.fused.FusedMechanism, batch: int, steps: int, passes: int
) -> None:
    """Print one ratio."""
    q, qd = states(robot, batch)
    tau = torch.zeros(batch, steps, robot.mech.num_dof, dtype=q.dtype)
    start = peer.start(q, qd)
    calls: dict[str, Callable[[], object]] = {
        "torchsko": lambda: ts.rollout(
            fast, ts.State(q, qd), tau, steps=steps, dt=DT, nonfinite="ignore"
        ),
        "mujoco.rollout": lambda: peer.run(start, tau),
    }
    seconds = interleaved(calls, passes, 0.05)
    mine, theirs = (min(found) / batch / steps * 1e6 for found in seconds.values())
    found = ratio(seconds["mujoco.rollout"], seconds["torchsko"])
    print(f"  {batch} x {steps}: {found}  ({mine:.3g} against {theirs:.3g} us a step)")


ALONE = """
import time, torch, torchsko as ts
from trajectories import DT, ROBOTS, states
robot = ROBOTS[%r]()
torch.set_num_threads(%d)
fast = ts.fuse(robot.mech)

def pulled(mech, batch, steps):
    q, qd = states(robot, batch)
    tau = torch.zeros(batch, steps, robot.mech.num_dof, dtype=q.dtype)
    leaves = [x.requires_grad_() for x in (q, qd, tau)]
    start, tau = ts.State(*leaves[:2]), leaves[2]
    qs, qds, *_ = ts.rollout(mech, start, tau, steps=steps, dt=DT, nonfinite="ignore")
    end = qs[:, -1].square().sum() + qds[:, -1].square().sum()
    return torch.autograd.grad(end, leaves)

def memory(what):
    words = open("/proc/self/status").read().split()
    return int(words[words.index(what) + 1]) / 1024

start = time.perf_counter()
with torch.no_grad():
    ts.rollout(fast, ts.State(*states(robot, 2)), steps=10, dt=DT)
forward = time.perf_counter() - start
start = time.perf_counter()
mine = pulled(fast, 2, 50)
print(f"  build: {forward:.3g} s, its gradient {time.perf_counter() - start:.3g} s more")
open("/proc/self/clear_refs", "w").write("5")  # the peak from here on
before = memory("VmRSS:")
pulled(fast, 512, 1000)
most = memory("VmHWM:") - before
start = time.perf_counter()
pulled(fast, 512, 1000)
took = f"{time.perf_counter() - start:.3g} s, {most:.0f} MB"
theirs = pulled(robot.mech, 2, 50)
error = max(((x - y).abs().max() / y.abs().max()).item() for x, y in zip(mine, theirs))
took += f" with the results, equal to the eager one to {error:.1g}"
print(f"  gradient of the end of 1000 steps to all forces, batch 512: {took}")
"""


def alone(name: str, threads: int) -> None:
    """Print how long builds take, and what a gradient does, of a process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TORCHSKO_CACHE": cache}
        command = [sys.executable, "-c", ALONE % (name, threads)]
        said = subprocess.run(
            command, env=environment, cwd=Path(__file__).parent, text=True, stdout=subprocess.PIPE
        )
    print(said.stdout, end="")


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--robots", nargs="+", default=[*ROBOTS])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(origin(given.threads))
    for name in given.robots:
        beside_mujoco(ROBOTS[name](), given.threads, given.passes)
        alone(name, given.threads)


if __name__ == "__main__":
    main()
