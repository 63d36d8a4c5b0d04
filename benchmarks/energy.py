"""Energy error of the integrators: robots without losses, released from rest, against MuJoCo's Euler.

Usage: python benchmarks/energy.py [--scale 0.1] [--robots "double pendulum" talos]
Printed is the energy less that at the start, over the largest kinetic energy of the most accurate method
(rk4 at a quarter of the step): the largest in size over the motion, and that at its end. "lost" with the
time means that a state left the finite numbers. `--scale` shortens the motions.
Needs example-robot-data (pip install "torchsko[bench]"); without mujoco its row is left out.
"""

from __future__ import annotations

import argparse
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import torch
from torch import Tensor

import torchsko as ts
from torchsko.fused.fused_mechanism import FusedMechanism
from torchsko.integrators.integrators import INTEGRATORS

ROBOTS = {
    "double pendulum": ("double_pendulum_description/urdf/double_pendulum.urdf", 20.0, 1.0),
    "talos": ("talos_data/robots/talos_reduced.urdf", 10.0, 0.1),
}
"""Robots of example-robot-data: file, seconds of motion, and every coordinate at the start [rad]."""

DT = 2e-3
"""Time step [s]."""


def example(file: str) -> Path:
    """A file of example-robot-data."""
    try:
        import pinocchio
    except ImportError:
        raise SystemExit('not installed: pip install "torchsko[bench]"') from None
    folder = Path(pinocchio.__file__).parents[4] / "share" / "example-robot-data" / "robots"
    return folder / file


def without_losses(file: Path) -> ts.Mechanism:
    mech = ts.load(file, mimic="independent")
    none = torch.zeros_like(mech.damping)
    return mech.replace(damping=none, friction=none, has_losses=False)


def energies(mech: ts.Mechanism, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
    """Kinetic and potential energy [J] at each of many states."""
    kinetic = (qd * (ts.mass_matrix(mech, q) @ qd[..., None])[..., 0]).sum(-1) / 2
    pose = ts.forward_kinematics(mech, q)
    com = pose.position + (pose.rotation @ mech.com[..., None])[..., 0]
    return kinetic, -(mech.mass[:, None] * com * mech.gravity).sum((-1, -2))


def motion(
    fast: FusedMechanism, start: float, method: str, seconds: float, dt: float
) -> tuple[Tensor, Tensor]:
    """Kinetic energy and energy less that at the start, every 10 ms while finite."""
    mech = fast.mechanism()
    q, qd = torch.full((mech.num_q,), start, dtype=mech.dtype), torch.zeros_like(mech.damping)
    states, tau = [(q, qd)], torch.zeros_like(qd)
    every = round(1e-2 / dt)
    for k in range(1, round(seconds / dt) + 1):
        q, qd = fast.advance_tensors(q, qd, tau, dt, method=method)
        if k % every == 0:
            states.append((q, qd))
            if not (q.isfinite().all() and qd.isfinite().all()):
                break
    kinetic, potential = energies(mech, *map(torch.stack, zip(*states, strict=True)))
    total = kinetic + potential
    return kinetic, total - total[0]


def mujoco_motion(mech: ts.Mechanism, file: Path, start: float, seconds: float) -> Tensor | None:
    """The same of MuJoCo's Euler on the same file; None without MuJoCo."""
    try:
        import mujoco
    except ImportError:
        return None
    tree = ET.parse(file).getroot()
    for link in tree.iter("link"):
        for shape in (*link.findall("visual"), *link.findall("collision")):
            link.remove(shape)
    model = mujoco.MjModel.from_xml_string(ET.tostring(tree, encoding="unicode"))
    model.opt.timestep, model.opt.gravity = DT, mech.gravity.numpy()
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    model.dof_damping[:] = 0
    data, found = mujoco.MjData(model), []
    data.qpos[:] = start
    for k in range(round(seconds / DT) + 1):
        if k % round(1e-2 / DT) == 0:
            mujoco.mj_forward(model, data)
            found.append(sum(data.energy))
        mujoco.mj_step(model, data)
        if any(warning.number for warning in data.warning):
            found.append(math.nan)
            break
    total = torch.tensor(found, dtype=torch.float64)
    return total - total[0]


def row(name: str, gain: Tensor, scale: float) -> None:
    finite = gain.isfinite()
    if finite.all():
        worst, end = (100 * x / scale for x in (gain.abs().max().item(), gain[-1].item()))
        print(f"  {name:26} largest {worst:9.3g} %   at the end {end:+9.2g} %", flush=True)
    else:
        print(f"  {name:26} lost after {0.01 * finite.sum().item():.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--robots", nargs="+", choices=ROBOTS, default=list(ROBOTS))
    args = parser.parse_args()
    for name in args.robots:
        _, full, start = ROBOTS[name]
        file, seconds = example(ROBOTS[name][0]), args.scale * full
        mech = without_losses(file)
        fast = ts.fuse(mech)
        kinetic, exact = motion(fast, start, "rk4", seconds, DT / 4)
        scale = kinetic[kinetic.isfinite()].max().item()
        print(f"{name}: {mech.num_dof} dofs, {seconds:g} s at {1e3 * DT:g} ms")
        for method in INTEGRATORS:
            row(method, motion(fast, start, method, seconds, DT)[1], scale)
        row("rk4, a quarter of the step", exact, scale)
        if (theirs := mujoco_motion(mech, file, start, seconds)) is not None:
            row("MuJoCo's Euler", theirs, scale)


if __name__ == "__main__":
    main()
