"""Mutation check: small faults, each put into a copy of the package and run against the nearest day tests.

The table is `mutations.tsv`, with \\n for a line break. Run by hand: ``python tests/mutations.py [WORDS]``,
with parts of the rooms, modules or texts to run. It prints the test that finds each fault, and fails if a
fault does not apply to the package any more or if too few are found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TIME_LIMIT = 300
"""Time of the tests of one fault [s]; a fault that exceeds it counts as missed."""
MIN_SHARE_FOUND = 0.9
"""Share of faults that the day suite has to find."""


class Mutation(NamedTuple):
    """A fault: the text `old` of a module, which occurs once, becomes `new`."""

    room: str
    module: str
    old: str
    new: str
    tests: str


def read_table() -> list[Mutation]:
    """Faults of `mutations.tsv`, one in a line."""
    lines = (Path(__file__).with_suffix(".tsv")).read_text().splitlines()[1:]
    rows = [[x.replace("\\n", "\n") for x in line.split("\t")] for line in lines]
    return [Mutation(*row) for row in rows]


def copy_project(folder: Path) -> None:
    """Copy the checkout without what a test does not read."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def first_failure(folder: Path, tests: str) -> str:
    """The first test that fails in a copy, or nothing."""
    env = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()]
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIME_LIMIT
        )
    except subprocess.TimeoutExpired:
        return ""
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    return found[1]


def main(chosen: list[str]) -> int:
    """Run the chosen faults and print the table; the exit status is 1 if too few are found."""
    faults = read_table()
    for fault in faults:
        count = (ROOT / "torchsko" / fault.module).read_text().count(fault.old)
        assert count == 1, f"{fault.module} has {count} times {fault.old!r}: correct the table"
    rows = [x for x in faults if not chosen or any(s in " ".join(x[:4]) for s in chosen)]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy_project(Path(folder))
        print("| room | fault | found by | s |\n|---|---|---|---|")
        for fault in rows:
            path = Path(folder, "torchsko", fault.module)
            text = path.read_text()
            path.write_text(text.replace(fault.old, fault.new))
            start = time.monotonic()
            found = first_failure(Path(folder), fault.tests)
            path.write_text(text)
            missed += [] if found else [fault]
            change = f"{fault.old.strip()} -> {fault.new.strip() or '(deleted)'}".replace(
                "\n", " "
            ).replace("|", "or")
            seconds = time.monotonic() - start
            print(
                f"| {fault.room} | {fault.module}: {change} | {found or '**none**'} | {seconds:.0f} |",
                flush=True,
            )
    print(f"\n{len(rows) - len(missed)} of {len(rows)} faults found.")
    return int(len(missed) > (1 - MIN_SHARE_FOUND) * len(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
