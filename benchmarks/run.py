"""The benchmark suite: one command measures torchsko and its peers, and writes a report.

Usage: python benchmarks/run.py [--only peers build ...] [--quick] [--threads N] [--robots panda]

The report goes to benchmarks/results/<machine>.md. Contestants that are not installed (`pip install
".[bench]" frax` in a clone) or do not build are named in it. Pinocchio's program is compiled once (minutes,
3 GB for each of two dtypes) and kept in ~/.cache/torchsko-bench. Run it on an idle machine: a barrier of
OpenMP costs milliseconds while another process holds a core, so that eager PyTorch, MuJoCo and Pinocchio
look slower than they are; then compare with --threads 1.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PARTS = ("counts", "peers", "batch1", "scaling", "memory", "build")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART",
                        help=f"parts to run, of {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; numbers mean little"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--robots", nargs="+", default=(), help="robots of the part peers")
    parser.add_argument(
        "--output", type=Path, help="the report's file (default: by machine's name)"
    )
    parser.add_argument("--readme", action="store_true",
                        help="print the sections of the README and docs/performance.md as well")  # fmt: skip
    return parser.parse_args()


def use_cores(threads: int) -> None:
    """Confine everybody, XLA included, to so many cores; before any of them is imported."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def main() -> None:
    asked = arguments()
    use_cores(asked.threads)
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import torch
    from report import Options, document, machine, readme, slug

    torch.set_num_threads(asked.threads)
    options = Options(
        quick=asked.quick,
        threads=asked.threads,
        batch=min(asked.batch, 256) if asked.quick else asked.batch,
        passes=2 if asked.quick else asked.passes,
        slot=0.002 if asked.quick else 0.04,
        robots=tuple(asked.robots),
    )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    start, sections = time.perf_counter(), []
    for part in PARTS:
        if part in asked.only:
            print(f"-- {part}", file=sys.stderr, flush=True)
            sections.append(importlib.import_module(f"parts.{part}").run(options))
    text = document(sections, options, time.perf_counter() - start, load)
    output = asked.output or HERE / "results" / f"{slug(machine())}.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    print(text)
    if asked.readme:
        print("\n\n".join(readme(sections, options)))
    print(f"written to {output}", file=sys.stderr)


if __name__ == "__main__":
    main()
