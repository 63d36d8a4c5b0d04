"""Steps of `benchmarks/first_light.py`: python benchmarks/parts/card.py STEP [panda] [talos] [--cpu].

Each step prints its results as it computes them.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent.parent
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # otherwise JAX reserves the memory
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # otherwise products are in TF32
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent)]

import quadratic  # noqa: E402
import torch  # noqa: E402
from cases import Case, Robot, checked_samples, floating_humanoid, panda, tangent  # noqa: E402
from peers.on_gpu import PEERS  # noqa: E402
from report import table, versions  # noqa: E402
from robots import quadruped  # noqa: E402
from timing import ratio  # noqa: E402
from torch import Tensor  # noqa: E402

import torchsko as ts  # noqa: E402
from parts.device import Device  # noqa: E402
from torchsko.fused.calls.cuda_kernel import cubin  # noqa: E402
from torchsko.fused.emit.cpp import ENTRY  # noqa: E402
from torchsko.fused.functions.fused_function import FusedFunction  # noqa: E402
from torchsko.fused.functions.scan import Scan  # noqa: E402
from torchsko.fused.fused_mechanism import FusedMechanism  # noqa: E402
from torchsko.implicit.loop_roles import LoopRoles  # noqa: E402

ROBOTS = {"panda": panda, "talos": floating_humanoid}
DTYPES = (torch.float32, torch.float64)
STEPS, DT = 20, 1e-3
TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-8}
"""Largest difference from eager float64 on the CPU, relative to the largest entry."""

LOCAL_BYTES, REGISTERS = 3, 4
"""Attributes of CUDA's `cuFuncGetAttribute`: local memory of a thread in bytes, registers of a thread."""

Kernel = tuple[FusedFunction, LoopRoles | None]


def kernels(fast: FusedMechanism) -> dict[str, Kernel]:
    """Kernels that the step "times" calls by name, and the roles of scans."""
    forward = fast._positional["forward_dynamics", 3]
    scan = Scan(fast._positional["semi_implicit_euler", 4], LoopRoles(2, 0, 0, 0))
    back = scan.vjp_scan((False, False), all_states=True)
    vjp = forward.value_and_vjp((True,) * 3)
    found: dict[str, Kernel] = {"forward_dynamics with VJP": (vjp, None)}
    found |= {"VJP of the rollout": (back.step, back.roles), "rollout": (scan.step, scan.roles)}
    for verb, count in (("forward_dynamics", 3), ("inverse_dynamics", 3), ("mass_matrix", 1)):
        found[verb] = fast._positional[verb, count], None
    return found


def contact_step(mech: ts.Mechanism, q: Tensor, qd: Tensor, ctrl: Tensor) -> tuple[Tensor, ...]:
    """A step of a quadruped with contact as a function of tensors."""
    after = ts.step(mech, ts.State(q, qd), ctrl)
    return after.q, after.qd, after.residual


def fused_contact_step(mech: ts.Mechanism) -> ts.fused.FusedCall:
    """The step in a kernel."""
    return ts.fuse(contact_step, mech, shapes={"ctrl": (12,)})


def touching_quadruped() -> ts.Mechanism:
    """A quadruped whose file has contact, which only `ts.step` includes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ts.load(quadruped())


def fused_law(mech: ts.Mechanism) -> ts.fused.FusedCall:
    """Whole-body control of a quadruped on four feet."""
    return ts.fuse(lambda mech, q, qd: quadratic.law(mech, q, qd, quadratic.ON_FEET), mech)


def compile_kernel(robot: str, dtype: torch.dtype, kernel: str, architecture: str) -> bytes:
    """Machine code of a kernel, also stored in the disk cache."""
    roles: LoopRoles | None = None
    if kernel == "contact step":
        fast = fused_contact_step(touching_quadruped().to(dtype))
        function = fast.function(("q", "qd", "ctrl"))
    elif robot == "quadruped":
        function = fused_law(quadratic.robot()).function(("q", "qd"))
    else:
        function, roles = kernels(ts.fuse(ROBOTS[robot]().mech.to(dtype)))[kernel]
    return cubin(lambda: function.program, function.traits.identity, dtype, architecture, roles)


def attributes(code: bytes, device: Device) -> tuple[int, int] | None:
    """Bytes of local memory and registers of each thread; None without a card."""
    if not device.is_gpu:
        return None
    driver = torch.cuda._utils._get_gpu_runtime_library()
    kernel = getattr(torch.cuda._utils._cuda_load_module(code), ENTRY)
    found = ctypes.c_int(), ctypes.c_int()
    for value, attribute in zip(found, (LOCAL_BYTES, REGISTERS), strict=True):
        result = driver.cuFuncGetAttribute(ctypes.byref(value), attribute, kernel.func)
        torch.cuda._utils._check_cuda(result)
    return found[0].value, found[1].value


def error_text(found: Sequence[Tensor], right: Sequence[Tensor], dtype: torch.dtype) -> str:
    """Largest difference of results relative to the largest entry of each, marked if it is too large."""
    pairs = zip(found, right, strict=True)
    error = max(float((x.cpu().double() - y).abs().max() / y.abs().max()) for x, y in pairs)
    return f"{error:.0e}" if error <= TOLERANCE[dtype] else f"WRONG {error:.0e}"


def print_device(device: Device, names: list[str]) -> None:
    """Print the device, the driver, the versions, and the measured rates."""
    print(versions())
    print(f"{device.name}, CUDA {torch.version.cuda}, {os.cpu_count()} CPUs")
    if device.is_gpu:
        print(torch.cuda.get_device_properties(0))
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv"]
        print(subprocess.run(query, capture_output=True, text=True).stdout, flush=True)
    print(f"copied {device.copy_rate() / 1e12:.3g} TB/s", flush=True)
    for dtype in DTYPES:
        print(f"{dtype}: {device.flop_rate(dtype) / 1e12:.3g} TFLOP/s of multiply-adds", flush=True)


def print_kernels(device: Device, names: list[str]) -> None:
    """Print size, registers and local memory of every kernel, compiled in parallel."""
    print("robot, kernel: KiB, (bytes of local memory, registers), seconds since the start")
    major, minor = torch.cuda.get_device_capability() if device.is_gpu else (9, 0)
    labels = [("quadruped", torch.float64, "whole-body control")]  # takes longest
    labels += [("quadruped", dtype, "contact step") for dtype in DTYPES]
    for name in reversed(names):
        every = kernels(ts.fuse(ROBOTS[name]().mech))
        labels += [(name, dtype, kernel) for kernel in every for dtype in DTYPES]
    device.wait()  # modules are loaded into the current context
    processes, start = (os.cpu_count() or 1) if device.is_gpu else 1, time.perf_counter()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = {pool.submit(compile_kernel, *x, f"sm_{major}{minor}"): x for x in labels}
        for job in as_completed(jobs):
            label = "{}, {}, {}".format(*jobs[job])
            try:
                code = job.result()
                figures = f"{len(code) / 1024:.0f}, {attributes(code, device)}"
            except Exception as error:  # the other kernels are printed
                figures = f"FAILED, {type(error).__name__}: {error}"
            print(f"{label}: {figures}, {time.perf_counter() - start:.0f}", flush=True)


def calls(fast: FusedMechanism, case: Case, device: Device) -> dict[str, Callable[[], tuple]]:
    """Each verb as a call that returns a tuple of tensors."""
    states = case.q, case.qd, case.qdd, case.tau, case.cotangent
    q, qd, qdd, tau, by = (x.to(device.kind) for x in states)

    def with_vjp() -> tuple:
        value, gradients = fast.forward_dynamics_vjp(q, qd, tau, by)
        return value, *gradients

    return {
        "inverse": lambda: (fast.inverse_dynamics(q, qd, qdd),),
        "forward": lambda: (fast.forward_dynamics(q, qd, tau),),
        "mass_matrix": lambda: (fast.mass_matrix(q),),
        "forward_vjp": with_vjp,
        "rollout": lambda: ts.rollout(
            fast, ts.State(q, qd), tau, steps=STEPS, dt=DT, every=STEPS, nonfinite="ignore"
        )[:2],
    }


def time_robots(device: Device, names: list[str]) -> None:
    """Print times and errors of the verbs and of whole rollouts."""
    batches = (4096, 2**18) if device.is_gpu else (8, 64)
    print(f"Rollouts have {STEPS} steps. Errors are differences from eager float64 on the CPU.")
    for name in names:
        robot = ROBOTS[name]()
        for dtype in DTYPES:
            fast = ts.fuse(robot.mech.to(dtype).to(device.kind))
            for batch in batches:
                time_verbs(robot, fast, Case.random(robot, dtype, batch, 1), device)


def time_verbs(robot: Robot, fast: FusedMechanism, case: Case, device: Device) -> None:
    """Print times and errors at a batch in one dtype."""
    q, qd, tau = (x[case.checked].double() for x in (case.q, case.qd, case.tau))
    ends = ts.rollout(
        robot.mech, ts.State(q, qd), tau, steps=STEPS, dt=DT, every=STEPS, fused=False
    )[:2]
    right = {**case.answers, "rollout": ends}
    for verb, call in calls(fast, case, device).items():
        start = time.perf_counter()
        with torch.no_grad():
            found = tuple(x[case.checked.to(x.device)].cpu() for x in call())
            first = time.perf_counter() - start
            passes = device.interleaved({verb: call}, 5, repeats=10)[verb]
            host = device.host_seconds(call)
        if verb == "forward_vjp":
            found = (found[0], tangent(robot.mech, q, found[1].double()), *found[2:])
        took = statistics.median(passes)
        error = error_text(found, right[verb], case.dtype)
        print(f"{robot.name}, {case.dtype}, batch {case.batch}, {verb}: {1e9 * took / case.batch:.3g} "
              f"ns a sample, {case.batch / took:.3g} a second, {1e6 * host:.3g} us of the processor, "
              f"{device.launches(call)} launches, first call {first:.1f} s, error {error}",
              flush=True)  # fmt: skip


def time_whole_body(device: Device, names: list[str]) -> None:
    """Print the time of whole-body control of one quadruped, and its error."""
    mech, (q, qd) = quadratic.robot(), quadratic.states(1)
    right = quadratic.law(mech, q, qd, quadratic.ON_FEET)[0]
    moved, q, qd = mech.to(device.kind), q.to(device.kind), qd.to(device.kind)
    fast = fused_law(moved)
    start = time.perf_counter()
    error = error_text((fast(q, qd)[0],), (right,), torch.float64)
    print(f"float64, batch 1, 15 iterations: first call {time.perf_counter() - start:.1f} s, error "
          f"{error}", flush=True)  # fmt: skip
    took = device.interleaved({"kernel": lambda: fast(q, qd)}, 20)["kernel"]
    print(f"{1e6 * statistics.median(took):.4g} us a call", flush=True)


def time_contact(device: Device, names: list[str]) -> None:
    """Print times and errors of steps of a quadruped with contact."""
    mech = touching_quadruped()
    for dtype in DTYPES:
        robot = mech.to(dtype).to(device.kind)
        fast = fused_contact_step(robot)
        for batch in (4096, 2**16) if device.is_gpu else (8,):
            time_contact_steps(mech, robot, fast, batch)
        time_contact_rollout(mech, robot, 4096 if device.is_gpu else 8)


def time_contact_steps(
    mech: ts.Mechanism, robot: ts.Mechanism, fast: ts.fused.FusedCall, batch: int
) -> None:
    """Print times of steps forward and with gradients, from states with feet in the floor."""
    given = touching_states(mech, batch)
    checked = checked_samples(batch)
    right = contact_step(mech, *(x[checked] for x in given))
    dtype, device = robot.dtype, Device(robot.device.type)
    inputs = [x.to(robot.mass) for x in given]
    leaves = [x.clone().requires_grad_() for x in inputs]
    start = time.perf_counter()
    found = [y.cpu() for y in fast(*inputs)]
    error = error_text([y[checked] for y in found[:2]], right[:2], dtype)
    print(f"{dtype}, batch {batch}: first call {time.perf_counter() - start:.1f} s, error {error}, "
          f"largest residual {float(found[2].max()):.1g}", flush=True)  # fmt: skip
    runs: dict[str, Callable[[], object]] = {
        "forward": lambda: fast(*inputs),
        "with backward": lambda: torch.autograd.grad(fast(*leaves)[1].square().sum(), leaves),
    }
    for name, took in device.interleaved(runs, 5, repeats=3).items():
        print(f"  {name}: {1e9 * statistics.median(took) / batch:.4g} ns a step", flush=True)


def touching_states(mech: ts.Mechanism, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, qd and controls with the feet in the floor."""
    g, lift = torch.Generator().manual_seed(0), torch.zeros(mech.num_q, dtype=torch.float64)
    lift[2] = 0.4
    moves = 0.1 * torch.randn(3, batch, mech.num_dof, generator=g, dtype=torch.float64)
    q = ts.integrate(mech, (mech.neutral() + lift).expand(batch, -1), moves[0])
    return q, moves[1], moves[2, :, 6:]


def time_contact_rollout(mech: ts.Mechanism, robot: ts.Mechanism, batch: int) -> None:
    """Print the time and the error of a whole rollout with contact under constant controls."""
    fast, device = ts.fuse(robot), Device(robot.device.type)
    states, checked = touching_states(mech, batch), checked_samples(batch)
    method, options = ts.ContactStep(), {"every": STEPS, "nonfinite": "ignore"}
    first = [x[checked] for x in states]
    options |= {"steps": STEPS, "dt": DT, "method": method}
    right = ts.rollout(mech, ts.State(*first[:2]), first[2], fused=False, **options)[:2]
    inputs = [x.to(robot.mass) for x in states]
    start, ctrl = ts.State(*inputs[:2]), inputs[2]
    call = lambda: ts.rollout(fast, start, ctrl, fused=True, **options)[:2]  # noqa: E731
    began = time.perf_counter()
    found = [x[checked.to(x.device)] for x in call()[:2]]
    error = error_text(found, right, robot.dtype)
    print(f"{robot.dtype}, batch {batch}, rollout of {STEPS} steps: first call "
          f"{time.perf_counter() - began:.1f} s, error {error}", flush=True)  # fmt: skip
    took = statistics.median(device.interleaved({"rollout": call}, 5, repeats=3)["rollout"])
    print(f"  {1e9 * took / batch / STEPS:.4g} ns a step", flush=True)


def launch_in_thread(device: Device, names: list[str]) -> None:
    """Launch a built kernel in a thread that has no current context."""
    case = Case.random(panda(), torch.float64, 64, 1)
    call = calls(ts.fuse(case.robot.mech.to(device.kind)), case, device)["forward"]
    (right,), found = call(), []
    other = threading.Thread(target=lambda: found.extend(call()))
    other.start()
    other.join()
    device.wait()
    print(f"equal to the main thread's result: {torch.equal(found[0], right)}")


def capture_integers(device: Device, names: list[str]) -> None:
    """Capture an integer tensor on the device, and change it in place."""
    case = Case.random(panda(), torch.float64, 64, 1)
    mech, q = case.robot.mech.to(device.kind), case.q.to(device.kind)
    order = torch.tensor([6, 0, 3], device=device.kind)
    fast = ts.fuse(lambda mech, q: ts.gravity_force(mech, q).index_select(-1, order), mech)
    for _ in range(2):
        right = ts.gravity_force(mech, q)[:, order].cpu()
        error = error_text((fast(q),), (right,), torch.float64)
        print(f"order {order.tolist()}: error {error}", flush=True)
        order.copy_(order.flip(0))


def time_graph(device: Device, names: list[str]) -> None:
    """Print the time of a step of training in eager mode, fused, and replayed as a CUDA graph."""
    case = Case.random(panda(), torch.float32, 4096 if device.is_gpu else 8, 1)
    layer = ts.Dynamics(case.robot.mech.float(), learn={"link5": ts.learn.InertiaLogCholesky()})
    layer = layer.to(device.kind)
    q, qd, tau, target = (x.to(device.kind) for x in (case.q, case.qd, case.tau, case.qdd))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)

    def step(robot: Any) -> None:
        optimizer.zero_grad(set_to_none=False)
        (ts.forward_dynamics(robot, q, qd, tau) - target).square().mean().backward()
        optimizer.step()

    fast = ts.fuse(layer)
    runs: dict[str, Callable[[], object]] = {
        "eager": lambda: step(layer),
        "fused": lambda: step(fast),
    }
    if device.is_gpu:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(fast)
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step(fast)
        runs["replayed"] = captured.replay
    print_ratios(runs, "fused", device)
    if not device.is_gpu:
        print("CUDA graph: skipped on a CPU")


def time_peers(device: Device, names: list[str]) -> None:
    """Print forward dynamics in float32 beside peers that are installed."""
    for name in names:
        case = Case.random(ROBOTS[name](), torch.float32, 2**18 if device.is_gpu else 8, 1)
        fast = ts.fuse(case.robot.mech.float().to(device.kind))
        runs: dict[str, Callable[[], object]] = {"torchsko": calls(fast, case, device)["forward"]}
        for peer, make in PEERS.items():
            try:
                run, found = make(case)
                run()
                forward = case.answers["forward"]
                error = error_text((found()[case.checked],), forward, torch.float32)
                print(f"{peer}: error {error}", flush=True)
                if "WRONG" not in error:
                    runs[peer] = run
            except Exception as reason:  # a peer of another version may fail in any way
                print(f"{peer}: none ({type(reason).__name__}: {reason})", flush=True)
        print(f"{case.robot.name}, float32, batch {case.batch}")
        print_ratios(runs, "torchsko", device)


def print_ratios(runs: dict[str, Callable[[], object]], base: str, device: Device) -> None:
    """Print a table of interleaved times, as ratios to one contestant."""
    found = device.interleaved(runs, 9)
    rows = [
        [name, f"{1e6 * statistics.median(took):.4g}", str(ratio(took, found[base]))]
        for name, took in found.items()
    ]
    print("\n".join(table(("", "us", f"times {base}"), rows)), flush=True)


def main() -> None:
    step, *rest = sys.argv[1:]
    run = {"device": print_device, "kernels": print_kernels, "times": time_robots, "contact": time_contact,
           "whole_body": time_whole_body, "thread": launch_in_thread, "integers": capture_integers,
           "graph": time_graph, "peers": time_peers}[step]  # fmt: skip
    on_cpu = "--cpu" in rest
    run(Device("cpu" if on_cpu else "cuda"), [name for name in rest if name in ROBOTS])


if __name__ == "__main__":
    main()
