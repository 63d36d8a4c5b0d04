"""Steps with contact in float32 on a GPU, beside MuJoCo Warp: build, error, times, with gradients last.

Usage: python benchmarks/parts/contact_on_card.py [humanoid:Euler ant:RK4 ...] [--cpu].

A robot is the quadruped of `robots.py` or a file of gymnasium, with the integrator to use. Prints each result
when it is known, so that a time limit loses the rest. MuJoCo Warp is left out where it is not installed.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[k]) for k in (1, 2)]

import mujoco  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from contact import States, control_step, model_of, reached_states, repeated  # noqa: E402
from torch import Tensor  # noqa: E402

import torchsko as ts  # noqa: E402
from parts.device import Device  # noqa: E402

BATCHES = (32768, 4096)
CHECKED = 64
WARP_FIELDS = ("qpos", "qvel", "ctrl", "qacc_warmstart")
ROOM = 1.5
"""Contacts and rows that MuJoCo Warp has room for, over the largest number of the states."""


def inputs_of(mech: ts.Mechanism, states: States, batch: int) -> list[Tensor]:
    """q, qd, controls and the start of the solver, in our conventions."""
    conventions = ts.conventions("mujoco", mech)
    qpos, qvel, ctrl, start = (torch.tensor(repeated(x, batch)) for x in states)
    q = conventions.q_from(qpos)
    qd = conventions.qd_from(q, qvel)
    return [q, qd, ctrl, conventions.qdd_from(q, qd, start)]


class WarpStep:
    """A captured graph of MuJoCo Warp that steps the given states, as its authors time it.

    Raises:
        ImportError: it is not installed.
    """

    def __init__(self, model: Any, states: States, batch: int) -> None:
        import mujoco_warp as library
        import warp

        warp.config.quiet = True
        contacts, rows = 1, 1
        host = mujoco.MjData(model)
        for state in zip(*states, strict=True):
            for name, x in zip(WARP_FIELDS, state, strict=True):
                getattr(host, name)[:] = x
            mujoco.mj_step(model, host)
            contacts, rows = max(contacts, host.ncon), max(rows, host.nefc)
        self.warp, self.model = warp, library.put_model(model)
        self.data = library.make_data(
            model, nworld=batch, nconmax=round(ROOM * contacts), njmax=round(ROOM * rows)
        )
        given = [warp.array(repeated(x, batch), dtype=warp.float32) for x in states]

        def step() -> None:
            for name, x in zip(WARP_FIELDS, given, strict=True):
                warp.copy(getattr(self.data, name), x)
            library.step(self.model, self.data)

        step()  # compiled
        self.run = step
        if warp.is_cuda_available():
            with warp.ScopedCapture() as capture:
                step()
            self.run = lambda: warp.capture_launch(capture.graph)

    def seconds(self, repeats: int = 20) -> float:
        """Of one step, the median of seven rows of steps."""
        found = []
        for _ in range(7):
            self.warp.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                self.run()
            self.warp.synchronize()
            found.append((time.perf_counter() - start) / repeats)
        return statistics.median(found)


def time_steps(device: Device, model: Any, robot: ts.Mechanism, fast: Any, states: States) -> None:
    """Print the first call, errors and times of steps of all batches."""
    mech = robot.double().to("cpu")
    for batch in BATCHES if device.is_gpu else (CHECKED,):
        given = inputs_of(mech, states, batch)
        inputs = [x.to(robot.mass).contiguous() for x in given]
        start = time.perf_counter()
        found = [y.cpu() for y in fast(*inputs)]
        print(f"batch {batch}: first call {time.perf_counter() - start:.1f} s", flush=True)
        right = control_step(mech, *(x[:CHECKED] for x in given))
        errors = [float((y[:CHECKED] - z).abs().max()) for y, z in zip(found, right, strict=True)]
        print(f"  errors of q and qd {errors[:2]}")
        took = statistics.median(device.interleaved({"step": lambda x=inputs: fast(*x)}, 7)["step"])
        print(
            f"  forward: {1e9 * took / batch:.4g} ns a step, {batch / took:.3g} steps/s", flush=True
        )
        try:
            peer = WarpStep(model, states, batch)
        except ImportError as reason:
            print(f"  MuJoCo Warp: none ({reason})", flush=True)
            continue
        took = peer.seconds()
        qpos = peer.data.qpos.numpy()[:CHECKED]
        error = np.abs(qpos - _after(model, states)).max()
        print(f"  MuJoCo Warp: {1e9 * took / batch:.4g} ns a step, {batch / took:.3g} steps/s, "
              f"error of qpos {error:.2g}", flush=True)  # fmt: skip


def _after(model: Any, states: States) -> np.ndarray:
    """Positions that mj_step gives."""
    host, found = mujoco.MjData(model), []
    for state in zip(*(x[:CHECKED] for x in states), strict=True):
        for name, x in zip(WARP_FIELDS, state, strict=True):
            getattr(host, name)[:] = x
        mujoco.mj_step(model, host)
        found.append(host.qpos.copy())
    return np.stack(found)


def time_gradients(device: Device, robot: ts.Mechanism, fast: Any, states: States) -> None:
    """Print the first call and times of steps with gradients of all batches."""
    mech = robot.double().to("cpu")
    for batch in BATCHES if device.is_gpu else (CHECKED,):
        *leaves, start_of_solver = [x.to(robot.mass) for x in inputs_of(mech, states, batch)]
        leaves = [x.requires_grad_() for x in leaves]

        def call(leaves: list[Tensor] = leaves, warm: Tensor = start_of_solver) -> object:
            return torch.autograd.grad(fast(*leaves, warm)[1].square().sum(), leaves)

        start = time.perf_counter()
        call()
        device.wait()
        print(f"batch {batch}: first gradient {time.perf_counter() - start:.1f} s", flush=True)
        took = statistics.median(device.interleaved({"gradient": call}, 7)["gradient"])
        print(f"  with backward: {1e9 * took / batch:.4g} ns a step", flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    device = Device("cpu" if "--cpu" in sys.argv else "cuda")
    names = [x for x in sys.argv[1:] if not x.startswith("--")] or ["humanoid:Euler", "ant:RK4"]
    for name in names:
        file, integrator = name.split(":")
        model = model_of(file)
        model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}")
        states = reached_states(model, 4 if file == "quadruped" else None)
        robot = ts.from_mujoco(model).float().to(device.kind)
        sizes = {"q": (robot.num_q,), "qd": (model.nv,), "ctrl": (model.nu,), "start": (model.nv,)}
        fast = ts.fuse(control_step, robot, shapes=sizes, verify=False)
        print(f"\n{device.name}: {file}, {integrator}, float32", flush=True)
        time_steps(device, model, robot, fast, states)
        time_gradients(device, robot, fast, states)


if __name__ == "__main__":
    main()
