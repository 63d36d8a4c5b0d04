"""Fused kernels on an NVIDIA GPU, against what its memory and its arithmetic allow, and against its peers.

Usage: python benchmarks/gpu.py [panda] [talos] [--dtypes float32 float64] [--batch 1048576] [--passes 9]
                                [--no-tests] [--rehearse]

Runs `pytest -m cuda`, then times inverse and forward dynamics, the mass matrix, forward dynamics with its
VJP, whole rollouts of 4096 samples and more, and a step of training as a CUDA graph, each after a check
against eager float64 on the CPU. MJX (pip install mujoco-mjx "jax[cuda13]") and MuJoCo Warp (pip install
mujoco-warp) take part where they are installed. Contestants run interleaved on the same states. Writes
benchmarks/results/<card>.md after each part, so that a run cut short leaves what it has.

Without CUDA, NVRTC compiles every kernel for an H100 (sm_90), and nothing is timed. `--rehearse` makes all
calls on the CPU, with few samples: it shows that the script runs, its times say nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes the card
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from cases import Case, Robot, floating_humanoid, panda, tangent  # noqa: E402
from parts.counts import count  # noqa: E402
from parts.device import REALS, Device  # noqa: E402
from peers.on_gpu import PEERS  # noqa: E402
from report import Demand, Section, at_least, at_most, slug, table, versions  # noqa: E402
from timing import ratio  # noqa: E402

import torchsko as ts  # noqa: E402
from torchsko.errors import CompilerError  # noqa: E402
from torchsko.fused.build.kernel_library import BITS  # noqa: E402
from torchsko.fused.build.nvrtc import find_nvrtc  # noqa: E402
from torchsko.fused.emit.cuda import cuda_plan, emit_cuda  # noqa: E402
from torchsko.fused.functions.scan import Scan  # noqa: E402
from torchsko.fused.fused_mechanism import FusedMechanism  # noqa: E402
from torchsko.implicit.loop_roles import LoopRoles  # noqa: E402

ROBOTS = {"panda": panda, "talos": floating_humanoid}
VERBS = {"inverse": "inverse dynamics", "forward": "forward dynamics", "mass_matrix": "mass matrix",
         "forward_vjp": "forward and VJP"}  # fmt: skip
WANTED = {("panda", "float32", "forward"): 3e8, ("talos", "float32", "forward"): 3e7}
STEPS, DT = 100, 1e-3
OFF = {torch.float32: 2e-3, torch.float64: 1e-8}
"""Largest difference from eager float64 on the CPU, relative to the largest entry; more is not timed."""


def calls(fast: FusedMechanism, case: Case, device: Device) -> dict[str, Callable[[], tuple]]:
    """Torchsko's call for each verb; each gives a tuple of tensors."""
    q, qd, qdd, tau, by = (
        x.to(device.kind) for x in (case.q, case.qd, case.qdd, case.tau, case.cotangent)
    )

    def with_vjp() -> tuple:
        value, gradients = fast.forward_dynamics_vjp(q, qd, tau, by)
        return value, *gradients

    return {
        "inverse": lambda: (fast.inverse_dynamics(q, qd, qdd),),
        "forward": lambda: (fast.forward_dynamics(q, qd, tau),),
        "mass_matrix": lambda: (fast.mass_matrix(q),),
        "forward_vjp": with_vjp,
    }


def off(found: tuple, right: tuple) -> float:
    """The largest difference of results, relative to the largest entry of each."""
    pairs = zip(found, right, strict=True)
    return max(float((x.cpu().double() - y).abs().max() / y.abs().max()) for x, y in pairs)


def checked(name: str, found: tuple, right: tuple, dtype: torch.dtype) -> float:
    """Error of results.

    Raises:
        AssertionError: too far to be timed.
    """
    error = off(found, right)
    if not error <= OFF[dtype]:
        raise AssertionError(f"{name}: fused differs from eager by {error:.1e}: not timed")
    return error


def verbs(robot: Robot, dtype: torch.dtype, device: Device, asked: argparse.Namespace,
          rates: tuple[float, float]) -> Section:  # fmt: skip
    """Every verb of one robot: times, bounds, launches."""
    case, kind = Case.random(robot, dtype, asked.batch, 1), str(dtype).removeprefix("torch.")
    fast = ts.fuse(robot.mech.to(dtype).to(device.kind))
    section, rows = Section(f"{robot.name}, {kind}, batch {asked.batch}"), []
    size, n, nq = BITS[dtype] // 8, robot.mech.num_dof, robot.mech.num_q
    numbers = {"inverse": nq + 3 * n, "forward": nq + 3 * n, "mass_matrix": nq + n * n,
               "forward_vjp": 2 * nq + 6 * n}  # fmt: skip
    for verb, call in calls(fast, case, device).items():
        start = time.perf_counter()
        found = call()
        device.wait()
        built = time.perf_counter() - start
        some = tuple(x[case.checked.to(x.device)].cpu() for x in found)
        if verb == "forward_vjp":
            q = case.q[case.checked].double()
            some = (some[0], tangent(robot.mech, q, some[1].double()), *some[2:])
        error = checked(verb, some, case.answers[verb], dtype)
        with torch.no_grad():
            took = device.interleaved({"fused": call}, asked.passes)["fused"]
        flops = count(robot, "forward and VJP" if verb == "forward_vjp" else verb)
        traffic = size * numbers[verb]
        each = statistics.median(took) / asked.batch
        bound = max(traffic / rates[0], flops / rates[1])
        rows.append([VERBS[verb], f"{built:.1f}", f"{error:.0e}", f"{each * 1e9:.3g}",
                     f"{1 / each:.3g}", f"{traffic}", f"{flops}", f"{bound * 1e9:.3g}",
                     f"{each / bound:.2f}x", str(device.launches(call))])  # fmt: skip
        what = f"{robot.name}, {kind}, {VERBS[verb]}"
        section.demands.append(at_most("10.9", f"{what}, over the bound", 3, each / bound, "x"))
        if (least := WANTED.get((robot.name, kind, verb))) is not None:
            section.demands.append(at_least("10.9", f"{what}, a second", least, 1 / each, ""))
    section.table(["", "first call s", "difference", "ns", "a second", "bytes", "operations", "bound ns",
                   "over the bound", "launches"], rows)  # fmt: skip
    return section


def beside_peers(robot: Robot, device: Device, asked: argparse.Namespace) -> Section:
    """Forward dynamics in float32 beside others, and eager torchsko, at a batch that all can hold."""
    batch = min(asked.batch, 2**16)
    case = Case.random(robot, torch.float32, batch, 1)
    section = Section(f"{robot.name}, float32, batch {batch}, forward dynamics beside others")
    mech = robot.mech.to(torch.float32).to(device.kind)
    fast = ts.fuse(mech)
    state = tuple(x.to(device.kind) for x in (case.q, case.qd, case.tau))
    runs: dict[str, Callable[[], object]] = {
        "torchsko fused": lambda: fast.forward_dynamics(*state),
        "torchsko eager": lambda: ts.forward_dynamics(mech, *state),
    }
    for name, peer in PEERS.items():
        try:
            run, found = peer(case)
            run()
            error = checked(name, (found()[case.checked],), case.answers["forward"], torch.float32)
            runs[name] = run
            section.lines.append(f"{name}: differs by {error:.0e}.")
        except Exception as reason:  # a peer of another version may fail in any way
            section.lines.append(f"{name}: not measured, {type(reason).__name__}: {reason}.")
    with torch.no_grad():
        times = device.interleaved(runs, asked.passes)
    rows = [[name, f"{statistics.median(t) * 1e9 / batch:.3g}", f"{batch / statistics.median(t):.3g}",
             str(ratio(t, times["torchsko fused"]))] for name, t in times.items()]  # fmt: skip
    section.table(["", "ns", "evaluations a second", "times the fused kernel's"], rows)
    return section


def rollouts(robot: Robot, dtype: torch.dtype, device: Device, asked: argparse.Namespace,
             rates: tuple[float, float]) -> Section:  # fmt: skip
    """Whole rollouts, one launch each, of more and more samples; and with the gradient of their end."""
    kind = str(dtype).removeprefix("torch.")
    section, rows = Section(f"{robot.name}, {kind}, {STEPS} steps"), []
    mech = robot.mech.to(dtype).to(device.kind)
    fast, every = ts.fuse(mech), STEPS
    few = Case.random(robot, dtype, 64, 1)
    right = ts.rollout(robot.mech, few.q.double(), few.qd.double(), few.tau[0].double(), STEPS, dt=DT,
                       fused=False)  # fmt: skip
    given = (few.q.to(device.kind), few.qd.to(device.kind), few.tau[0].to(device.kind))
    error = checked("rollout", ts.rollout(fast, *given, STEPS, dt=DT), right, dtype)
    flops, n, nq = count(robot, "forward"), robot.mech.num_dof, robot.mech.num_q
    for batch in sorted({min(x, asked.batch) for x in (4096, 2**16, 2**20)}):
        case = Case.random(robot, dtype, batch, 1)
        q, qd, tau = (x.to(device.kind) for x in (case.q, case.qd, case.tau[0]))
        start = q.clone().requires_grad_()

        def ahead(q=q, qd=qd, tau=tau):  # type: ignore[no-untyped-def]
            with torch.no_grad():
                return ts.rollout(fast, q, qd, tau, STEPS, dt=DT, every=every, nonfinite="ignore")

        def there_and_back(start=start, qd=qd, tau=tau):  # type: ignore[no-untyped-def]
            qs, _ = ts.rollout(fast, start, qd, tau, STEPS, dt=DT, every=10, nonfinite="ignore")
            return torch.autograd.grad(qs[:, -1].sum(), start)

        runs = {"rollout": ahead, "rollout and gradient": there_and_back}
        for name, call in runs.items():
            each = statistics.median(device.interleaved({name: call}, 3)[name]) / (batch * STEPS)
            bound = max(flops / rates[1], 4 * (nq + n) * BITS[dtype] / 8 / STEPS / rates[0])
            over = f"{each / bound:.2f}x" if name == "rollout" else "-"
            rows.append([name, str(batch), f"{each * 1e9:.3g}", f"{1 / each:.3g}", over,
                         str(device.launches(call))])  # fmt: skip
    section.lines.append(f"Differs from eager float64 by {error:.0e} at its end.")
    section.table(
        ["", "samples", "ns a step", "steps a second", "over the bound", "launches"], rows
    )
    return section


def training(device: Device, asked: argparse.Namespace) -> Section:
    """A step of training launched operation by operation, and replayed as a CUDA graph."""
    section = Section("A step of training, Panda, float32, 4096 samples")
    robot = panda()
    mech = robot.mech.to(torch.float32)
    layer = ts.Dynamics(mech, learn={"link5": ts.learn.InertiaLogCholesky()}).to(device.kind)
    fast = ts.fuse(layer)
    case = Case.random(robot, torch.float32, min(asked.batch, 4096), 1)
    q, qd, tau, target = (x.to(device.kind) for x in (case.q, case.qd, case.tau, case.qdd))
    optimiser = torch.optim.SGD(layer.parameters(), lr=1e-6)

    def step(robot: object = layer) -> torch.Tensor:
        optimiser.zero_grad(set_to_none=False)
        loss = (ts.forward_dynamics(robot, q, qd, tau) - target).square().mean()
        loss.backward()
        optimiser.step()
        return loss

    runs: dict[str, Callable[[], object]] = {"eager": step, "fused": lambda: step(fast)}
    for call in runs.values():
        call()
    if device.is_gpu:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(fast)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(fast)
        runs["fused, replayed"] = graph.replay
        torch.cuda.set_sync_debug_mode("error")  # raises where the host would wait
        try:
            for call in (lambda: step(layer), lambda: step(fast)):
                call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        section.lines.append("No step waits for the GPU (torch.cuda.set_sync_debug_mode).")
    times = device.interleaved(runs, asked.passes)
    rows = [[name, f"{statistics.median(t) * 1e6:.4g}", str(ratio(t, times["fused"]))]
            for name, t in times.items()]  # fmt: skip
    section.table(["", "us", "times the fused step's"], rows)
    return section


def kernels(fast: FusedMechanism) -> Iterator[tuple[str, object, LoopRoles | None]]:
    """Every kernel that is timed: its name, its function, and its roles if it repeats."""
    for verb, number in (("inverse_dynamics", 3), ("forward_dynamics", 3), ("mass_matrix", 1)):
        yield verb, fast._positional[verb, number], None
    forward = fast._positional["forward_dynamics", 3]
    yield "forward_dynamics with VJP", forward.value_and_vjp((True,) * 3), None
    scan = Scan(fast._positional["semi_implicit_euler", 4], LoopRoles(2, 0, 0, 0))
    yield "rollout", scan.step, scan.roles
    back = scan.vjp_scan((False, False), all_states=True)
    yield "rollout's VJP", back.step, back.roles


def compiled(asked: argparse.Namespace) -> None:
    """Compile every kernel for an H100, and say how large and how long."""
    compiler = find_nvrtc()
    print("No CUDA device: nothing is timed. NVRTC {}.{} for sm_90:".format(*compiler.version))
    rows = []
    for name in asked.robots:
        for dtype in asked.dtypes:
            fast = ts.fuse(ROBOTS[name]().mech.to(getattr(torch, dtype)))
            for what, function, roles in kernels(fast):
                plan = cuda_plan(function.program)  # type: ignore[attr-defined]
                start = time.perf_counter()
                bits = BITS[getattr(torch, dtype)]
                module = compiler.compile(emit_cuda(plan, bits=bits, roles=roles), "sm_90")
                took = time.perf_counter() - start
                rows.append([name, dtype, what, f"{took:.1f}", f"{len(module) / 1024:.0f}"])
    print("\n".join(table(("robot", "", "kernel", "s", "KiB"), rows)))


def tests() -> list[str]:
    """Last lines of `pytest -m cuda`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "cuda",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests",
    ]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)
    said = [x for x in done.stdout.splitlines() if x.strip()]
    return [f"`pytest -m cuda`: rc {done.returncode}; {said[-1] if said else done.stderr[-200:]}"]


def sections(device: Device, asked: argparse.Namespace) -> Iterator[Section]:
    """All parts, the most important first; each runs on request."""
    copied = device.copy_rate()
    rates = {d: (copied, device.flop_rate(getattr(torch, d))) for d in asked.dtypes}
    said = [f"{d}: {r[1] / 1e12:.1f} TFLOP/s of multiply-adds" for d, r in rates.items()]
    yield Section(f"Measured: {copied / 1e12:.2f} TB/s copied; " + "; ".join(said))
    if not asked.no_tests and device.is_gpu:
        yield Section("Tests", tests())
    for name in asked.robots:
        robot = ROBOTS[name]()
        for dtype in asked.dtypes:
            yield verbs(robot, getattr(torch, dtype), device, asked, rates[dtype])
            yield rollouts(robot, getattr(torch, dtype), device, asked, rates[dtype])
    yield training(device, asked)
    for name in asked.robots:
        yield beside_peers(ROBOTS[name](), device, asked)


def written(device: Device, done: list[Section]) -> str:
    """The report on what is done so far."""
    demands: list[Demand] = [demand for section in done for demand in section.demands]
    lines = [f"# Benchmarks on {device.name}", "",
             f"Written by `python benchmarks/gpu.py {' '.join(sys.argv[1:])}`. Versions: {versions()}, CUDA "
             f"{torch.version.cuda}.", "",
             *table(("item", "what", "demanded", "measured", "reached"), []),
             *(demand.row() for demand in demands)]  # fmt: skip
    for section in done:
        lines += ["", f"## {section.title}", "", *section.lines]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("robots", nargs="*", choices=[*ROBOTS, []], help="all when left out")
    parser.add_argument("--dtypes", nargs="+", choices=[str(x)[6:] for x in REALS],
                        default=["float32", "float64"])  # fmt: skip
    parser.add_argument("--batch", type=int, default=2**20)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    asked = parser.parse_args()
    asked.robots = asked.robots or list(ROBOTS)
    if not torch.cuda.is_available() and not asked.rehearse:
        try:
            compiled(asked)
        except CompilerError as error:
            print(f"No CUDA device, and nothing to compile with: nothing measured.\n{error}")
        return
    device = Device("cpu" if asked.rehearse else "cuda")
    if asked.rehearse:
        asked.batch, asked.passes = min(asked.batch, 256), 1
    path, done = HERE / "results" / f"{slug(device.name)}.md", []
    for section in sections(device, asked):
        done.append(section)
        print(f"\n## {section.title}\n", *section.lines, sep="\n", flush=True)
        if device.is_gpu:
            path.parent.mkdir(exist_ok=True)
            path.write_text(written(device, done))
    if not device.is_gpu:
        print(written(device, done))


if __name__ == "__main__":
    main()
