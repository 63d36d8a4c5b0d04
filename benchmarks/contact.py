"""Steps with contact in a kernel, beside MuJoCo on the same core.

Usage: python benchmarks/contact.py [quadruped ant humanoid ...] [--batch 4096] [--passes 7]
       [--instructions native avx2] [--integrator Euler]
The states are on trajectories under random controls, the quadruped with four feet on the floor. One core on
each side, in interleaved passes: `torchsko.step` fused in float64 and float32, forward and with the backward
pass, `mujoco.rollout` and `mujoco.batch`. A rollout of 20 steps gives MuJoCo's time without loading states.
Both sides start from the last acceleration and have the integrator of the file (ant and humanoid RK4,
quadruped Euler), or the given one. Prints microseconds of processor time for a step of one sample, the least
of all passes, ratios to the fastest of MuJoCo, and the rounds of the solver. Ant and humanoid are those of
gymnasium. Kernels for AVX2 are compiled by ``CXX="g++ -mno-avx512f"``; MuJoCo is the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import mujoco.batch
import mujoco.rollout
import numpy as np
import torch
from report import origin
from robots import quadruped
from timing import Passes, interleaved
from torch import Tensor

import torchsko as ts
from torchsko.contact import newton

NUM_STATES, ROLLOUT_STEPS = 256, 20

COMPILERS = {"native": None, "avx2": "g++ -mno-avx512f"}
"""The variable CXX for each instruction set."""


class States(NamedTuple):
    """Reached states in MuJoCo's coordinates, one a row."""

    qpos: np.ndarray
    qvel: np.ndarray
    ctrl: np.ndarray
    warmstart: np.ndarray


def model_of(name: str) -> Any:
    """The compiled model of a robot."""
    if name == "quadruped":
        return mujoco.MjModel.from_xml_string(quadruped())
    spec = importlib.util.find_spec("gymnasium")
    assert spec is not None and spec.origin is not None
    assets = Path(spec.origin).parent / "envs" / "mujoco" / "assets"
    return mujoco.MjModel.from_xml_path(str(assets / f"{name}.xml"))


def reached_states(model: Any, num_contacts: int | None) -> States:
    """States under controls that change every ten steps; with a number of contacts, or with one at least."""
    rng, data, found = np.random.default_rng(0), mujoco.MjData(model), []
    amplitude = 0.15 if num_contacts else 0.4
    while len(found) < NUM_STATES:
        mujoco.mj_resetData(model, data)
        data.qvel[:3] = 0.3 * rng.normal(size=3)
        target = amplitude * rng.normal(size=model.nu)
        for k in range(400):
            if k % 10 == 0:
                data.ctrl[:] = target + amplitude * rng.normal(size=model.nu)
            before = States(*(getattr(data, x).copy() for x in ("qpos", "qvel", "ctrl")),
                            data.qacc_warmstart.copy())  # fmt: skip
            mujoco.mj_step(model, data)
            # After a step the contacts are those of the state before it.
            if k > 150 and k % 17 == 0 and data.ncon and num_contacts in (None, data.ncon):
                found.append(before)
    return States(*(np.stack(x) for x in zip(*found[:NUM_STATES], strict=True)))


def control_step(mech: ts.Mechanism, q: Tensor, qd: Tensor, ctrl: Tensor, start: Tensor) -> Any:
    """A step as a function of tensors."""
    after = ts.step(mech, ts.State(q, qd, warmstart=start), ctrl)
    return after.q, after.qd, after.warmstart, after.residual


def repeated(x: np.ndarray, batch: int) -> np.ndarray:
    """Rows repeated up to a batch."""
    return np.resize(x, (batch, *x.shape[1:]))


def compiled_calls(
    name: str, robot: ts.Mechanism, inputs: Sequence[Tensor]
) -> dict[str, Callable[[], object]]:
    """The step forward, and with the backward pass; its kernels are built."""
    shapes = {key: x.shape[1:] for key, x in zip(("q", "qd", "ctrl", "start"), inputs, strict=True)}
    fast = ts.fuse(control_step, robot, shapes=shapes)
    leaves = [x.clone().requires_grad_() for x in inputs[:3]]
    weights = [torch.randn_like(x) for x in inputs[:2]]

    def gradient() -> object:
        return torch.autograd.grad(fast(*leaves, inputs[3])[:2], leaves, weights)

    calls = {name: lambda: fast(*inputs), f"{name}, with backward": gradient}
    for call in calls.values():
        call()
    return calls


def contestants(
    model: Any, states: States, batch: int, instructions: Sequence[str]
) -> dict[str, Callable[[], object]]:
    """Calls of all contestants; kernels are built."""
    qpos, qvel, ctrl, warm = (repeated(x, batch) for x in states)
    full = np.concatenate([np.zeros((batch, 1)), qpos, qvel], 1)
    data = mujoco.MjData(model)
    roller = mujoco.rollout.Rollout(nthread=0)

    def roll(steps: int) -> Callable[[], object]:
        controls = np.repeat(ctrl[:, None], steps, 1)
        return lambda: roller.rollout(model, data, full, controls, initial_warmstart=warm)

    pool = mujoco.batch.Batch(model, nsim=batch, nthread=1)
    fields = [pool.bind(x) for x in ("qpos", "qvel", "ctrl", "qacc_warmstart")]

    def step_pool() -> None:
        for field, x in zip(fields, (qpos, qvel, ctrl, warm), strict=True):
            field[:] = x
        pool.step()

    calls: dict[str, Callable[[], object]] = {
        "mujoco.rollout, 1 step": roll(1),
        f"mujoco.rollout, {ROLLOUT_STEPS} steps": roll(ROLLOUT_STEPS),
        "mujoco.batch": step_pool,
    }
    mech = ts.from_mujoco(model)
    conventions = ts.conventions("mujoco", mech)
    q = conventions.q_from(torch.tensor(qpos))
    qd = conventions.qd_from(q, torch.tensor(qvel))
    start = conventions.qdd_from(q, qd, torch.tensor(warm))
    for dtype in (torch.float64, torch.float32):
        robot, name = mech.to(dtype), str(dtype).removeprefix("torch.")
        inputs = [x.to(dtype).contiguous() for x in (q, qd, torch.tensor(ctrl), start)]
        for target in instructions:
            compiler, before = COMPILERS[target], os.environ.get("CXX")
            if compiler is not None:
                os.environ["CXX"] = compiler
            label = name if compiler is None else f"{name} {target}"
            calls |= compiled_calls(label, robot, inputs)
            if compiler is not None:
                os.environ.pop("CXX") if before is None else os.environ.update(CXX=before)
        after: Any = calls[label]()
        rounds = rounds_of(robot, [x[:NUM_STATES] for x in inputs])
        print(f"  {name}: largest residual {float(after[3].max()):.2g}; samples by rounds {rounds}")
    return calls


def rounds_of(mech: ts.Mechanism, inputs: list[Tensor]) -> list[list[int]]:
    """Number of samples by their rounds of the solver, for each stage of the step, in eager mode."""
    counts: list[Tensor] = []
    original = newton.iterate

    def counting(body: Any, carry: Any, n: int, args: Any, until: Any) -> Any:
        def counted(*state: Tensor) -> tuple[Tensor, ...]:
            return (*body(*state[: -len(args) - 1], *args), state[-len(args) - 1] + 1)

        def is_done(*state: Tensor) -> Tensor:
            return until(*state[: -len(args) - 1], *args)

        start = (*carry, torch.zeros_like(carry[-1]))
        *found, count = original(counted, start, n, args, until=is_done)
        counts.append(count)
        return tuple(found)

    newton.iterate = counting  # type: ignore[assignment]
    try:
        control_step(mech, *inputs)
    finally:
        newton.iterate = original
    return [torch.bincount(x.to(torch.int64)).tolist() for x in counts]


def report(seconds: dict[str, Passes], batch: int) -> None:
    """Print the times and ratios."""
    times = {name: 1e6 / batch * min(passes) for name, passes in seconds.items()}
    times[f"mujoco.rollout, {ROLLOUT_STEPS} steps"] /= ROLLOUT_STEPS
    fastest = min(x for name, x in times.items() if name.startswith("mujoco"))
    for name, microseconds in times.items():
        line = f"  {name:30s} {microseconds:8.2f} us"
        if not name.startswith("mujoco"):
            line += f"  {fastest / microseconds:6.2f} times MuJoCo's speed"
        if name.endswith("backward"):
            forward = times[name.removesuffix(", with backward")]
            line += f"; {microseconds / forward:.2f} times forward"
        print(line)


def main() -> None:
    """Measure the chosen robots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("robots", nargs="*", default=["quadruped", "ant", "humanoid"])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--instructions", nargs="*", default=["native"], choices=[*COMPILERS])
    parser.add_argument("--integrator", choices=["Euler", "RK4"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(origin(1))
    print(f"batch {args.batch}, one core on each side")
    for name in args.robots:
        model = model_of(name)
        if args.integrator:
            model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{args.integrator.upper()}")
        states = reached_states(model, 4 if name == "quadruped" else None)
        integrator = mujoco.mjtIntegrator(model.opt.integrator).name.removeprefix("mjINT_")
        print(f"{name}, {model.nv} dofs, {integrator}")
        calls = contestants(model, states, args.batch, args.instructions)
        report(interleaved(calls, args.passes, 0.01, time.process_time), args.batch)


if __name__ == "__main__":
    main()
