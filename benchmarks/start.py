"""Start-up cost: `import torchsko` after torch, and the first and a later load of a robot.

Usage: python benchmarks/start.py [FOLDER ...] [--processes 7]

Printed are milliseconds, the least of several fresh processes, with cached bytecode, for this checkout and
for those in the folders given (worktrees of other commits), in turn.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import time, torch
marks = [time.perf_counter()]
import torchsko as ts
marks.append(time.perf_counter())
for _ in range(2):
    ts.load(ts.robots.panda)
    marks.append(time.perf_counter())
print(*(b - a for a, b in zip(marks, marks[1:])))
"""
PARTS = ("import", "first load", "later load")


def started(tree: Path, bytecode: str) -> list[float]:
    """Seconds of each part in a fresh process."""
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": bytecode}
    command = [sys.executable, "-c", PROGRAM]  # looks for torchsko where it starts first
    run = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    return [float(word) for word in run.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--processes", type=int, default=7)
    asked = parser.parse_args()
    trees = [Path(__file__).parents[1], *(folder.resolve() for folder in asked.folders)]
    with tempfile.TemporaryDirectory() as bytecode:
        for tree in trees:
            started(tree, bytecode)
        runs = [[started(tree, bytecode) for tree in trees] for _ in range(asked.processes)]
    print(f"{'':24}" + "".join(f"{part + ' [ms]':>18}" for part in PARTS))
    for tree, found in zip(trees, zip(*runs, strict=True), strict=True):
        least = [min(seconds) * 1e3 for seconds in zip(*found, strict=True)]
        print(f"{tree.name:24}" + "".join(f"{x:18.0f}" for x in least))


if __name__ == "__main__":
    main()
