"""Environment steps of Gymnasium as kernels: seconds to the first call and the first gradient.

Usage: python benchmarks/environment_steps.py [hopper half_cheetah ant humanoid] [FOLDER ...]
Each step is one kernel: substeps in a loop, then observation, reward and health, as in version 5 of Gymnasium
and read at the state after the step. Each measurement is a new process, without the imports and the load of
the robot, with an empty cache (cold) or with all kernels on disk (warm). Printed are processor seconds with
those of compilers, and seconds on the clock in parentheses, for this checkout and for those in the folders
given. At the end: operations, and errors against Gymnasium and eager mode, relative to the largest number.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROBOTS = ("hopper", "half_cheetah", "ant", "humanoid")
FRAME_SKIP = {"hopper": 4, "half_cheetah": 5, "ant": 5, "humanoid": 5}
PHASES = ("fuse", "first call", "first gradient", "calls 2 to 25")


class Environment(NamedTuple):
    """A robot and its environment step.

    Attributes:
        model: MuJoCo's model.
        mech: the robot.
        step: function of (mech, q, qd, warmstart, ctrl), which returns the next q, qd and warmstart, the
            observation, the reward and whether the robot is healthy.
    """

    model: Any
    mech: Any
    step: Callable[..., tuple[Tensor, ...]]


def environment(name: str) -> Environment:
    """The environment of a name."""
    import mujoco

    import torchsko as ts

    spec = importlib.util.find_spec("gymnasium")
    assert spec is not None and spec.origin is not None
    assets = Path(spec.origin).parent / "envs" / "mujoco" / "assets"
    model = mujoco.MjModel.from_xml_path(str(assets / f"{name}.xml"))
    mech = ts.from_mujoco(model)
    links = link_names(model)
    to_mujoco, actuators = ts.conventions("mujoco", mech), ts.actuators.actuators_of(mech)
    dt = FRAME_SKIP[name] * model.opt.timestep

    def advance(mech: Any, q: Tensor, qd: Tensor, warmstart: Tensor, ctrl: Tensor) -> Any:
        def substep(q: Tensor, qd: Tensor, warmstart: Tensor, ctrl: Tensor) -> tuple[Tensor, ...]:
            after = ts.step(mech, ts.State(q, qd, warmstart=warmstart), ctrl)
            return after.q, after.qd, after.warmstart

        return ts.iterate(substep, (q, qd, warmstart), FRAME_SKIP[name], [ctrl])

    def planar(mech: Any, q: Tensor, qd: Tensor, warmstart: Tensor, ctrl: Tensor) -> Any:
        after = advance(mech, q, qd, warmstart, ctrl)
        qpos, qvel = to_mujoco.q_to(after[0]), to_mujoco.qd_to(after[0], after[1])
        forward = (qpos[..., 0] - to_mujoco.q_to(q)[..., 0]) / dt
        if name == "half_cheetah":
            observation, healthy = torch.cat([qpos[..., 1:], qvel], -1), torch.ones_like(forward)
            reward = forward - 0.1 * ctrl.square().sum(-1)
        else:
            z, angle = qpos[..., 1], qpos[..., 2]
            rest = torch.cat([qpos[..., 2:], qvel], -1)
            healthy = (rest.abs() < 100).all(-1) & (z > 0.7) & (angle.abs() < 0.2)
            observation = torch.cat([qpos[..., 1:], qvel.clamp(-10, 10)], -1)
            reward = forward + healthy - 1e-3 * ctrl.square().sum(-1)
        return *after, observation, reward, healthy

    def wrenches(mech: Any, after: Any, ctrl: Tensor, center: Tensor) -> Tensor:
        state = ts.State(after[0], after[1], warmstart=after[2])
        moment, force = ts.contact.contact_wrenches(mech, state, ctrl, links=links).split(3, -1)
        about = moment - torch.linalg.cross(center[..., None, :].expand_as(force), force)
        return torch.cat([about, force], -1)

    def ant(mech: Any, q: Tensor, qd: Tensor, warmstart: Tensor, ctrl: Tensor) -> Any:
        after = advance(mech, q, qd, warmstart, ctrl)
        qpos, qvel = to_mujoco.q_to(after[0]), to_mujoco.qd_to(after[0], after[1])
        forward = (qpos[..., 0] - to_mujoco.q_to(q)[..., 0]) / dt
        forces = wrenches(mech, after, ctrl, ts.center_of_mass(mech, after[0])).clamp(-1, 1)
        healthy = (qpos[..., 2] >= 0.2) & (qpos[..., 2] <= 1.0)
        cost = 0.5 * ctrl.square().sum(-1) + 5e-4 * forces.square().sum((-2, -1))
        observation = torch.cat([qpos[..., 2:], qvel, forces.flatten(-2)], -1)
        return *after, observation, forward + healthy - cost, healthy

    def humanoid(mech: Any, q: Tensor, qd: Tensor, warmstart: Tensor, ctrl: Tensor) -> Any:
        after = advance(mech, q, qd, warmstart, ctrl)
        qpos, qvel = to_mujoco.q_to(after[0]), to_mujoco.qd_to(after[0], after[1])
        center = ts.center_of_mass(mech, after[0])
        forward = (center[..., 0] - ts.center_of_mass(mech, q)[..., 0]) / dt
        forces = wrenches(mech, after, ctrl, center)
        tau, _ = ts.actuators.actuate(
            mech, actuators, after[0], after[1], qd.new_zeros(1), ctrl=ctrl
        )
        cinert, cvel = inertias_and_velocities(model, mech, after[0], after[1], center)
        parts = cinert.flatten(-2), cvel.flatten(-2), to_mujoco.tau_to(after[0], tau)[..., 6:]
        observation = torch.cat([qpos[..., 2:], qvel, *parts, forces.flatten(-2)], -1)
        healthy = (qpos[..., 2] > 1.0) & (qpos[..., 2] < 2.0)
        contact_cost = (5e-7 * forces.square().sum((-2, -1))).clamp(max=10.0)
        reward = 1.25 * forward + 5.0 * healthy - 0.1 * ctrl.square().sum(-1) - contact_cost
        return *after, observation, reward, healthy

    return Environment(model, mech, {"ant": ant, "humanoid": humanoid}.get(name, planar))


def link_names(model: Any) -> list[str]:
    """Names of the frames of all bodies, also of those that are merged."""
    return [model.body(b).name or f"body{b}" for b in range(1, model.nbody)]


def inertias_and_velocities(
    model: Any, mech: Any, q: Tensor, qd: Tensor, center: Tensor
) -> tuple[Tensor, Tensor]:
    """MuJoCo's cinert and cvel of all bodies about the center of mass."""
    import torchsko as ts
    from torchsko.spatial.rotation import quaternion_to_matrix

    names = link_names(model)
    mass, place, moments, quat = (
        q.new_tensor(getattr(model, f"body_{x}")[1:]) for x in ("mass", "ipos", "inertia", "iquat")
    )
    axes = quaternion_to_matrix(quat)
    inertial = [ts.Frame(*at) for at in zip(names, axes, place, strict=True)]
    R, position = ts.frame_pose(mech, q, inertial)
    d = position - center[..., None, :]
    square = (d * d).sum(-1)[..., None, None] * torch.eye(3) - d[..., :, None] * d[..., None, :]
    I = R @ torch.diag_embed(moments) @ R.mT + mass[:, None, None] * square
    first = mass[:, None] * d
    entries = I[..., [0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
    cinert = torch.cat([entries, first, mass[:, None].expand_as(first[..., :1])], -1)
    w, v = ts.frame_velocity(mech, q, qd, names, reference="world").split(3, -1)
    return cinert, torch.cat([w, v + torch.linalg.cross(w, center[..., None, :].expand_as(w))], -1)


def inputs_of(env: Environment, batch: int) -> list[Tensor]:
    """Inputs of the step after some steps of MuJoCo under random controls."""
    import mujoco
    import numpy as np

    import torchsko as ts

    data, rng, rows = mujoco.MjData(env.model), np.random.default_rng(0), []
    for k in range(batch):
        mujoco.mj_resetData(env.model, data)
        for _ in range(50 + 25 * (k % 8)):
            data.ctrl[:] = rng.uniform(-1, 1, size=env.model.nu)
            mujoco.mj_step(env.model, data)
        rows.append([data.qpos.copy(), data.qvel.copy(), 0 * data.qacc, data.ctrl.copy()])
    qpos, qvel, warmstart, ctrl = (torch.tensor(np.array(x)) for x in zip(*rows, strict=True))
    to_mujoco = ts.conventions("mujoco", env.mech)
    q = to_mujoco.q_from(qpos)
    return [q, to_mujoco.qd_from(q, qvel), warmstart, ctrl]


def measure(name: str) -> dict[str, Any]:
    """Processor seconds and seconds of each phase in this process, and sizes of the kernels."""
    import torchsko as ts

    env, times = environment(name), {}
    inputs = inputs_of(env, 8)

    def clock() -> tuple[float, float]:
        return sum(os.times()[:4]), time.perf_counter()

    def timed(phase: str, call: Callable[[], Any]) -> Any:
        before = clock()
        found = call()
        times[phase] = [b - a for a, b in zip(before, clock(), strict=True)]
        return found

    warmstart, ctrl = inputs[2][0].shape, inputs[3][0].shape
    shapes = {"warmstart": tuple(warmstart), "ctrl": tuple(ctrl)}
    fuse = ts.fuse  # imports it
    fast = timed(PHASES[0], lambda: fuse(env.step, env.mech, shapes=shapes))
    timed(PHASES[1], lambda: fast(*inputs))
    leaves = [x.clone().requires_grad_() for x in inputs]

    def gradient() -> Any:
        *state, observation, reward, _ = fast(*leaves)
        loss = sum(x.sum() for x in state[:2]) + observation.sum() + reward.sum()
        return torch.autograd.grad(loss, [leaves[0], leaves[1], leaves[3]])

    timed(PHASES[2], gradient)
    timed(PHASES[3], lambda: [fast(*inputs) for _ in range(24)])
    function = fast.function(("q", "qd", "warmstart", "ctrl"))
    operations = [function.program.num_flops]
    operations += [x.program.num_flops for x in function._derivatives.values()]
    return {"times": times, "operations": operations}


def errors(name: str) -> tuple[float, float, float]:
    """Errors of the step against Gymnasium; of the kernel and its gradient against eager mode."""
    import gymnasium
    import mujoco
    import numpy as np

    import torchsko as ts

    env = environment(name)
    inputs = inputs_of(env, 8)
    shapes = {k: tuple(x[0].shape) for k, x in zip(("warmstart", "ctrl"), inputs[2:], strict=True)}
    fast = ts.fuse(env.step, env.mech, shapes=shapes)
    found, expected = fast(*inputs), env.step(env.mech, *inputs)
    version = "".join(x.capitalize() for x in name.split("_")) + "-v5"
    peer: Any = gymnasium.make(version).unwrapped
    model, data, to_mujoco = peer.model, peer.data, ts.conventions("mujoco", env.mech)
    # MuJoCo's solvers stop early by default; both sides solve the same equations to rounding.
    model.opt.solver, model.opt.tolerance, model.opt.iterations = 2, 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50

    def place() -> np.ndarray:
        # After a step with RK4 the data are those of its last stage.
        mujoco.mj_forward(model, data)
        mujoco.mj_rnePostConstraint(model, data)
        if name == "humanoid":
            return (model.body_mass @ data.xipos / model.body_mass.sum())[:2].copy()
        return data.qpos[:2].copy()

    rows = []
    qpos, qvel = to_mujoco.q_to(inputs[0]), to_mujoco.qd_to(inputs[0], inputs[1])
    for at, speed, ctrl in zip(*(x.numpy() for x in (qpos, qvel, inputs[3])), strict=True):
        mujoco.mj_resetData(model, data)
        peer.set_state(at, speed)
        before = place()
        peer.do_simulation(ctrl, peer.frame_skip)
        forward = (place() - before)[0] / peer.dt
        reward, _ = peer._get_rew(forward, ctrl)
        rows.append([data.qpos.copy(), data.qvel.copy(), peer._get_obs(), reward])
    after = found[0], found[1]
    ours = to_mujoco.q_to(after[0]), to_mujoco.qd_to(*after), found[3], found[4]
    theirs = [torch.tensor(np.array(x)) for x in zip(*rows, strict=True)]
    leaves = [x.clone().requires_grad_() for x in inputs]
    gradients = [
        torch.autograd.grad(sum(x.sum() for x in (*y[:2], *y[3:5])), [leaves[k] for k in (0, 1, 3)])
        for y in (fast(*leaves), env.step(env.mech, *leaves))
    ]
    return tuple(  # type: ignore[return-value]
        max(float((x - y).abs().max() / (1 + y.abs().max())) for x, y in zip(*pair, strict=True))
        for pair in ((ours, theirs), (found[:2], expected[:2]), gradients)
    )


def child(tree: Path, mode: str, name: str, cache: str) -> Any:
    """The result of a mode of this script in a new process."""
    here = str(Path(__file__).parent)
    variables = {"TORCHSKO_CACHE": cache, "PYTHONPATH": f"{tree}{os.pathsep}{here}"}
    command = [sys.executable, __file__, "--child", mode, name]
    run = subprocess.run(
        command, env={**os.environ, **variables}, cwd=tree, stdout=subprocess.PIPE, check=True
    )
    return json.loads(run.stdout.splitlines()[-1])


def report(name: str, trees: list[Path], with_errors: bool) -> None:
    """Print the measurements of one environment."""
    for tree in trees:
        with tempfile.TemporaryDirectory() as cache:
            for label in ("cold", "warm"):
                found = child(tree, "measure", name, cache)
                times = found["times"]
                parts = [f"{phase} {a:.2f} ({b:.2f})" for phase, (a, b) in times.items()]
                print(f"  {tree.name}, {label}: {'; '.join(parts)} s", flush=True)
            forward, *gradient = found["operations"]
            print(f"  {tree.name}: {forward} operations forward, {gradient} with gradient")
            if with_errors and tree == trees[0]:
                values = child(tree, "errors", name, cache)
                print(
                    "  errors: {:.1e} to Gymnasium; {:.1e}, gradient {:.1e} to eager mode".format(
                        *values
                    )
                )


def main() -> None:
    """Measure the chosen environments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", default=[*ROBOTS], help="robots, and worktrees of other commits"
    )
    parser.add_argument("--no-errors", action="store_true")
    parser.add_argument("--child", choices=("measure", "errors"))
    args = parser.parse_args()
    robots = [x for x in args.names if x in ROBOTS] or [*ROBOTS]
    if args.child:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        found = measure(robots[0]) if args.child == "measure" else errors(robots[0])
        print(json.dumps(found))
        return
    from report import origin

    print(origin(2))
    trees = [Path(__file__).resolve().parents[1]]
    trees += [Path(x).resolve() for x in args.names if x not in ROBOTS]
    for name in robots:
        print(f"{name}, {FRAME_SKIP[name]} substeps")
        report(name, trees, not args.no_errors)


if __name__ == "__main__":
    main()
