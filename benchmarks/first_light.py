"""All checks and times of the kernels on an NVIDIA GPU, within a few minutes of a lent card.

Usage: python benchmarks/first_light.py --out FILE [--minutes 6] [--steps device kernels ...]
                                        [--robots panda] [--cpu]

Each step is a process with a time limit that appends to FILE as it computes; `parts/card.py` has the steps.
A fault of the card or a call without end stops one step, and the next step runs. The steps share the cache
of kernels. `--cpu` rehearses the steps with small batches: its times have no meaning, and NVRTC compiles the
kernels for an H100 (sm_90).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from report import machine

HERE = Path(__file__).parent
SHARES = {"device": 4, "kernels": 35, "contact": 14, "times": 20, "graph": 5, "thread": 4,
          "integers": 4, "peers": 5, "tests": 15, "whole_body": 8}  # fmt: skip
"""Steps in their order; the remaining time is divided among the remaining steps in these proportions."""


def command(step: str, robots: Sequence[str], on_cpu: bool) -> list[str] | None:
    """Command of a step, or None for a step that needs a card."""
    if step != "tests":
        script = [sys.executable, str(HERE / "parts" / "card.py"), step, *robots]
        return [*script, "--cpu"] if on_cpu else script
    if on_cpu:
        return None
    files = (HERE.parent / "tests").rglob("test_*.py")
    marked = sorted(str(path) for path in files if "mark.cuda" in path.read_text())
    options = ["-m", "cuda", "-q", "--tb=short", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", *options, *marked]


def run_step(step: str, call: Sequence[str] | None, limit: float, out: Path) -> None:
    """Append the output of a step to a file, with the reason if the step failed.

    Args:
        step: its name.
        call: its command, or None for a step that needs a card.
        limit: largest time [s].
        out: the file.
    """
    start = time.perf_counter()
    with out.open("a") as file:
        print(f"\n## {step}\n", file=file, flush=True)
        if call is None:
            result = "skipped on a CPU"
        else:
            process = subprocess.Popen(call, stdout=file, stderr=subprocess.STDOUT, cwd=HERE.parent,
                                       start_new_session=True)  # fmt: skip
            try:
                code = process.wait(limit)
                result = "done" if code == 0 else f"failed, exit code {code}"
            except subprocess.TimeoutExpired:
                result = f"stopped at its time limit of {limit:.3g} s"
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that the step started
                process.wait()
    with out.open("a") as file:
        line = f"{step}: {result} ({time.perf_counter() - start:.1f} s)"
        print(line, file=file)
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--minutes", type=float, default=6.0, help="largest time of all steps")
    parser.add_argument("--steps", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument(
        "--robots", nargs="+", choices=("panda", "talos"), default=["panda", "talos"]
    )
    parser.add_argument("--cpu", action="store_true", help="rehearse on the CPU")
    args = parser.parse_args()
    args.out.write_text(f"# First light: python {' '.join(sys.argv)}\n\n{machine()}\n")
    end = time.perf_counter() + 60.0 * args.minutes
    for k, step in enumerate(args.steps):
        share = SHARES[step] / sum(SHARES[later] for later in args.steps[k:])
        limit = share * (end - time.perf_counter())
        run_step(step, command(step, args.robots, args.cpu), limit, args.out)


if __name__ == "__main__":
    main()
