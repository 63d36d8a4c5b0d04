"""Item 6: what forward dynamics and its gradient need at a large batch, peak resident set size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from report import Options, Section, at_most

BATCH = 65536
KINDS = {"fused": "torchsko fused", "eager": "torchsko eager, its custom backward",
         "tape": "torchsko eager, plain autograd through the recursion"}  # fmt: skip


def run(options: Options) -> Section:
    """The humanoid with a free base, float64; the eager readings at a smaller batch, scaled."""
    section, rows = Section("Memory of forward dynamics with its gradient"), []
    found = None
    for kind, name in KINDS.items():
        batch = (16384 if options.quick else BATCH) // (1 if kind == "fused" else 16)
        measured = peak(kind, batch, options.threads)
        if measured is None:
            continue
        inputs_outputs, needed = measured
        times = needed / inputs_outputs
        found = times if kind == "fused" else found
        rows.append([name, str(batch), f"{needed / batch:,.0f}",
                     f"{inputs_outputs / batch:,.0f}", f"{times:.3g}"])  # fmt: skip
    section.lines.append(
        "Bytes a sample: inputs (q, qd, tau, cotangent) and outputs (qdd, three gradients), and the "
        "growth of the peak resident set from before the call, inputs added."
    )
    header = ["", "batch", "needed, bytes a sample", "inputs and outputs", "times these"]
    section.table(header, rows)
    what = f"humanoid (free base), batch {BATCH}, over inputs and outputs"
    section.demands.append(at_most("6", what, 3, found, "x"))
    return section


def peak(kind: str, batch: int, threads: int) -> tuple[int, int] | None:
    """Bytes of inputs and outputs; of inputs and the growth of the peak. None without `ts.fuse`.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, __file__, kind, str(batch), str(threads)]
    here = Path(__file__).parent.parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    words = done.stdout.split()
    return None if words[-1] == "none" else (int(words[-2]), int(words[-1]))


def _child(kind: str, batch: int, threads: int) -> None:
    import torch
    from cases import Case, floating_humanoid, fuse

    import torchsko as ts
    from torchsko.algebra.recursions.innovations import swept_innovations

    torch.set_num_threads(threads)
    robot = floating_humanoid()
    mech = robot.mech
    if kind == "fused" and fuse is None:
        print("none")
        return

    def plain(q, qd, tau):  # type: ignore[no-untyped-def]
        return swept_innovations(ts.assemble(mech, q, qd)).forward_dynamics(tau)

    fused = fuse(mech).forward_dynamics if kind == "fused" else None
    fn = {"fused": fused, "eager": lambda *x: ts.forward_dynamics(mech, *x), "tape": plain}[kind]

    def once(case):  # type: ignore[no-untyped-def]
        inputs = [x.requires_grad_() for x in (case.q, case.qd, case.tau)]
        qdd = fn(*inputs)
        return [qdd, *torch.autograd.grad(qdd, inputs, case.cotangent)]

    once(Case.random(robot, torch.float64, 256, threads))  # builds, allocates what stays
    case = Case.random(robot, torch.float64, batch, threads)
    before = reset_mark()
    results = once(case)
    after = resident("VmHWM")
    inputs = (case.q, case.qd, case.tau, case.cotangent)
    given, found = (sum(x.numel() * x.element_size() for x in xs) for xs in (inputs, results))
    print(given + found, given + after - before)


def reset_mark() -> int:
    """Let the high-water mark "VmHWM" start again; bytes resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def resident(name: str) -> int:
    """Bytes of this process: "VmRSS" now, "VmHWM" at most since the mark was reset; 0 elsewhere."""
    text = Path("/proc/self/status").read_text()
    match = re.search(rf"{name}:\s+(\d+) kB", text)
    return int(match[1]) * 1024 if match else 0


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
