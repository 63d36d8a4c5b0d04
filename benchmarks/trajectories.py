"""Whole rollouts as kernels: beside `mujoco.rollout` on the same cores, and their gradients.

    python benchmarks/trajectories.py [--threads 2] [--passes 5]

No contacts, float64, joint forces held over each step. Ratios are of one interleaved run: above 1 the other
takes longer. Before anything is timed, both are seen to move the robot alike. Build times are those of an
empty cache.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from cases import Robot, floating_humanoid, panda
from timing import interleaved, ratio
from torch import Tensor

import torchsko as ts

DT = 2e-3
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


def assert_alike(robot: Robot, peer: Peer, fast: ts.FusedMechanism) -> float:
    """The largest difference of 100 steps, of speeds over the largest of them."""
    q, qd = states(robot, 4)
    tau = torch.zeros(4, 100, robot.mech.num_dof, dtype=q.dtype)
    qs, qds = ts.rollout(fast, q, qd, tau, 100, DT)
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
        q, qd = states(robot, batch)
        tau = torch.zeros(batch, steps, robot.mech.num_dof, dtype=q.dtype)
        start = peer.start(q, qd)
        calls: dict[str, Callable[[], object]] = {
            "torchsko": lambda: ts.rollout(fast, q, qd, tau, steps, DT, check=False),
            "mujoco.rollout": lambda: peer.run(start, tau),
        }
        seconds = interleaved(calls, passes, 0.05)
        each = {name: min(found) / batch / steps * 1e6 for name, found in seconds.items()}
        found = ratio(seconds["mujoco.rollout"], seconds["torchsko"])
        print(f"  {batch} x {steps}: {found}  ({each['torchsko']:.3g} against "
              f"{each['mujoco.rollout']:.3g} us a step)")  # fmt: skip


def gradients(robot: Robot, batch: int, steps: int) -> None:
    """Print the time and the memory of a gradient, and how far it is from the eager one."""
    fast = ts.fuse(robot.mech)
    q, qd = states(robot, batch)
    tau = torch.zeros(batch, steps, robot.mech.num_dof, dtype=q.dtype)

    def pulled(mech: object, *given: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in given]
        qs, qds = ts.rollout(mech, *leaves, leaves[-1].shape[-2], DT, check=False)
        return torch.autograd.grad(qs.square().sum() + qds.square().sum(), leaves)

    few = q[:2], qd[:2], tau[:2, :50]
    both = [pulled(mech, *few) for mech in (fast, robot.mech)]
    error = max(((x - y).abs().max() / y.abs().max()).item() for x, y in zip(*both, strict=True))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pulled(fast, q, qd, tau)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    start = time.perf_counter()
    pulled(fast, q, qd, tau)
    print(f"  gradient of {steps} steps, batch {batch}: {time.perf_counter() - start:.3g} s, "
          f"{peak:.0f} MB, equal to the eager one to {error:.1g}")  # fmt: skip


BUILD = """
import time, torch, torchsko as ts
from cases import panda, floating_humanoid
robot = {"panda": panda, "humanoid": floating_humanoid}[%r]()
q, qd = robot.mech.random_state(2)
tau = torch.zeros(2, 1000, robot.mech.num_dof, dtype=q.dtype)
fast = ts.fuse(robot.mech)
t = time.perf_counter(); ts.rollout(fast, q, qd, tau, 1000, 1e-4, check=False)
print(f"{time.perf_counter() - t:.3g} s forward,", end=" ")
tau.requires_grad_()
t = time.perf_counter(); ts.rollout(fast, q, qd, tau, 1000, 1e-4, check=False)[0].sum().backward()
print(f"{time.perf_counter() - t:.3g} s its gradient")
"""


def builds(name: str) -> None:
    """Print how long the first call takes, and the first gradient."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TORCHSKO_CACHE": cache}
        command = [sys.executable, "-c", BUILD % name]
        said = subprocess.run(
            command,
            env=environment,
            cwd=os.path.dirname(__file__),
            text=True,
            stdout=subprocess.PIPE,
        )
    print(f"  build, {name}: {said.stdout.strip()}")


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--robots", nargs="+", default=["panda", "humanoid"])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torchsko {ts.__version__}, torch {torch.__version__}, {given.threads} threads, float64")
    for name in given.robots:
        robot = {"panda": panda, "humanoid": floating_humanoid}[name]()
        beside_mujoco(robot, given.threads, given.passes)
        gradients(robot, 512, 1000)
        builds(name)


if __name__ == "__main__":
    main()
