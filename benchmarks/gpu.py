"""Item 7: fused kernels on an NVIDIA GPU, against what its memory and its arithmetic allow.

Usage: python benchmarks/gpu.py [--batch 1048576] [--passes 9]

Writes benchmarks/results/<card>.md. Contestants run interleaved on the same states: fused kernels,
eager torchsko, and MJX (pip install mujoco-mjx "jax[cuda12]") where it is installed. Without CUDA one
line says so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes the card
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from cases import Case, Robot, floating_humanoid, fuse, panda  # noqa: E402
from parts.counts import count  # noqa: E402
from report import Options, Section, at_least, at_most, slug, table, versions  # noqa: E402
from timing import Ratio, ratio  # noqa: E402

import torchsko as ts  # noqa: E402

STEPS = 1000
FMA_SOURCE = """
extern "C" __global__ void chains(float *x, int rounds) {
  int k = blockIdx.x * blockDim.x + threadIdx.x;
  float a[8];
  for (int j = 0; j < 8; ++j) a[j] = x[k] + j;
  for (int r = 0; r < rounds; ++r)
    for (int j = 0; j < 8; ++j) a[j] = fmaf(a[j], 0.999f, 0.001f);
  for (int j = 0; j < 8; ++j) x[k] += a[j];
}
"""


def seconds(call: Callable[[], object]) -> float:
    """Of one call on the GPU, by events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3


def interleaved(calls: dict[str, Callable[[], object]], passes: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each pass, after two passes of warming up."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for k in range(passes + 2):
        for name, call in calls.items():
            took = seconds(call)
            if k >= 2:
                found[name].append(took)
    return found


def copy_rate() -> float:
    """Bytes read and written in a second, copying a gibibyte."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    took = statistics.median(interleaved({"copy": lambda: target.copy_(source)}, 9)["copy"])
    return 2 * source.numel() * 4 / took


def flop_rate() -> float:
    """float32 operations in a second: eight independent chains of multiply-adds in every lane."""
    kernel = torch.cuda._compile_kernel(FMA_SOURCE, "chains")  # by NVRTC
    lanes, rounds = 2**21, 4096
    x = torch.zeros(lanes, device="cuda")
    call = lambda: kernel((lanes // 256, 1, 1), (256, 1, 1), (x, rounds))  # noqa: E731
    took = statistics.median(interleaved({"fma": call}, 5)["fma"])
    return 2.0 * 8 * rounds * lanes / took


def launches(call: Callable[[], object]) -> int:
    """Kernels of one call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in found.key_averages() if event.device_time_total > 0)


def mjx_forward(case: Case) -> Callable[[], object]:
    """MJX's forward dynamics at the same batch, from its own states.

    Raises:
        ImportError: it is not installed.
    """
    import jax
    import jax.numpy as jnp
    import mujoco
    from mujoco import mjx

    model = mujoco.MjModel.from_xml_path(str(case.robot.path_with_joint))
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    on_device, blank = mjx.put_model(model), mjx.make_data(model)
    states = [jnp.asarray(x.cpu().numpy()) for x in (case.q, case.qd, case.tau)]

    @jax.jit
    @jax.vmap
    def forward(q, v, tau):  # type: ignore[no-untyped-def]
        data = blank.replace(qpos=q, qvel=v, qfrc_applied=tau)
        return mjx.forward(on_device, data).qacc

    return lambda: jax.block_until_ready(forward(*states))


def on_gpu(case: Case) -> tuple[torch.Tensor, ...]:
    return tuple(x.cuda() for x in (case.q, case.qd, case.tau))


def measure(robot: Robot, wanted: float, rates: tuple[float, float], options: Options) -> Section:
    """One robot: times, bounds, launches."""
    case = Case.random(robot, torch.float32, options.batch, 1)
    mech, state = robot.mech.to(torch.float32).to("cuda"), on_gpu(case)
    section = Section(f"{robot.name}, float32, batch {options.batch}")
    calls: dict[str, Callable[[], object]] = {
        "torchsko eager": lambda: ts.forward_dynamics(mech, *state)
    }
    fast = fuse(mech) if fuse is not None else None
    if fast is not None:
        right = ts.forward_dynamics(mech, *state)
        error = ((fast.forward_dynamics(*state) - right).abs().amax() / right.abs().amax()).item()
        if error > 1e-3:
            raise AssertionError(f"fused differs from eager by {error:.1e}: not timed")
        calls["torchsko fused"] = lambda: fast.forward_dynamics(*state)
    try:
        calls["MJX"] = mjx_forward(case)
    except ImportError as missing:
        section.lines.append(f"MJX: not measured, {missing}.")
    with torch.no_grad():
        times = interleaved(calls, options.passes)
        rows = [[name, f"{statistics.median(t) * 1e3:.3g}", f"{options.batch / statistics.median(t):.3g}",
                 str(_over(t, times)), str(launches(calls[name])) if name != "MJX" else "-"]
                for name, t in times.items()]  # fmt: skip
    section.table(["", "ms", "evaluations a second", "times the fused kernel's", "launches"], rows)
    traffic = 4 * sum(x.shape[-1] for x in state) + 4 * mech.num_dof
    flops = count(robot, "forward")
    bound = max(traffic / rates[0], flops / rates[1]) * options.batch
    section.lines.append(
        f"Lower bounds: {traffic} bytes a sample, {traffic / rates[0] * 1e12:.1f} ps; {flops} operations, "
        f"{flops / rates[1] * 1e12:.1f} ps."
    )
    took = times.get("torchsko fused")
    per_second = None if took is None else options.batch / statistics.median(took)
    over = None if took is None else statistics.median(took) / bound
    section.demands = [
        at_most("7", f"{robot.name}, forward dynamics, over the larger bound", 3, over, "x"),
        at_least("7", f"{robot.name}, evaluations a second", wanted, per_second, ""),
    ]
    return section


def _over(times: list[float], all_times: dict[str, list[float]]) -> Ratio | str:
    fused = all_times.get("torchsko fused")
    return "-" if fused is None else ratio(times, fused)


def rollout(options: Options) -> Section:
    """A thousand steps of the arm captured in one CUDA graph."""
    section = Section(f"Rollout of {STEPS} steps as one CUDA graph")
    if fuse is None:
        return section
    robot = panda()
    mech = robot.mech.to(torch.float32).to("cuda")
    fast, rows = fuse(mech), []
    for batch in (1024, 16384):
        q0, qd0, tau = on_gpu(Case.random(robot, torch.float32, batch, 1))

        def steps(q=q0, qd=qd0, tau=tau):  # type: ignore[no-untyped-def]
            for _ in range(STEPS):
                q, qd = fast.step(q, qd, 0 * tau, 1e-3)
            return q

        with torch.no_grad():
            plain = steps()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = steps()
            times = interleaved({"launched one by one": steps, "replayed": graph.replay}, 3)
        same = torch.equal(plain, captured)
        rows += [[name, str(batch), f"{statistics.median(t) / STEPS * 1e6:.3g}", str(same)]
                 for name, t in times.items()]  # fmt: skip
    section.table(["", "batch", "us a step", "same result"], rows)
    return section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=2**20)
    parser.add_argument("--passes", type=int, default=9)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("No CUDA device: nothing measured (item 7 needs an NVIDIA GPU).")
        return
    options = Options(quick=False, threads=1, batch=asked.batch, passes=asked.passes)
    card, rates = torch.cuda.get_device_name(), (copy_rate(), flop_rate())
    sections = [
        measure(panda(), 3e8, rates, options),
        measure(floating_humanoid(), 3e7, rates, options),
        rollout(options),
    ]
    lines = [f"# Benchmarks on {card}", "", f"Versions: {versions()}, CUDA {torch.version.cuda}.", "",
             f"Measured: {rates[0] / 1e12:.2f} TB/s copied (reads and writes), {rates[1] / 1e12:.1f} "
             "TFLOP/s of float32 multiply-adds.", "",
             *table(("item", "what", "demanded", "measured", "reached"), []),
             *(demand.row() for section in sections for demand in section.demands)]  # fmt: skip
    for section in sections:
        lines += ["", f"## {section.title}", "", *section.lines]
    text = "\n".join(lines) + "\n"
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"{slug(card)}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
