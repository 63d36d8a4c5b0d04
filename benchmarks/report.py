"""Results of the parts of the suite, and the report as Markdown."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from timing import Ratio

PACKAGES = (
    "torch numpy pin example-robot-data mujoco adam-robotics frax jax jaxlib casadi crocoddyl proxsuite mink"
).split()


@dataclass(frozen=True)
class Options:
    """Options of the command line.

    Attributes:
        quick: few passes, small batches, no slow builds: to see that everything runs.
        threads: cores to use.
        batch: states.
        passes: of an interleaved run.
        slot: seconds of a contestant in a pass.
        robots: names of robots to keep; empty for all.
    """

    quick: bool
    threads: int
    batch: int = 4096
    passes: int = 7
    slot: float = 0.04
    robots: tuple[str, ...] = ()


@dataclass(frozen=True)
class Demand:
    """One line of what the project is held to.

    Attributes:
        item: number in the list of demands.
        what: in words.
        wanted: in words.
        found: in words.
        reached: None where it could not be measured.
    """

    item: str
    what: str
    wanted: str
    found: str
    reached: bool | None

    def row(self) -> str:
        """A row of the table of demands."""
        verdict = {True: "yes", False: "**no**", None: "not measured"}[self.reached]
        return f"| {self.item} | {self.what} | {self.wanted} | {self.found} | {verdict} |"


@dataclass
class Section:
    """One part's result."""

    title: str
    lines: list[str] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Append a table."""
        self.lines += ["", *table(header, rows), ""]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


Figure = float | Ratio | None


def at_least(item: str, what: str, wanted: float, found: Figure, unit: str = "x") -> Demand:
    """A demand met by a large number; of a ratio its median counts."""
    said, value = _as_text(found, unit)
    reached = None if value is None else value >= wanted
    return Demand(item, what, f"at least {wanted:,g}{unit}", said, reached)


def at_most(item: str, what: str, wanted: float, found: Figure, unit: str) -> Demand:
    """A demand met by a small number; of a ratio its median counts."""
    said, value = _as_text(found, unit)
    reached = None if value is None else value <= wanted
    return Demand(item, what, f"at most {wanted:,g}{unit}", said, reached)


def _as_text(found: Figure, unit: str) -> tuple[str, float | None]:
    if found is None:
        return "-", None
    if isinstance(found, Ratio):
        return str(found), found.median
    return (f"{found:,}" if isinstance(found, int) else f"{found:.3g}") + unit, float(found)


def machine() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    model = next((x for x in _field("model\t", "cpu family\t")), "")
    return f"{' '.join(name.split())}{model}, {os.cpu_count()} cores"


def _field(*names: str) -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    values = {}
    for line in lines:
        for name in names:
            if line.startswith(name):
                values.setdefault(name.strip(), line.split(":", 1)[1].strip())
    return (
        [f" (family {values['cpu family']}, model {values['model']})"] if len(values) == 2 else []
    )


def origin(threads: int) -> str:
    """Origin of figures: the call of a script, the machine, and the versions of what it measures.

    Args:
        threads: that the contestants have.
    """
    call = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{call}\n{machine()}, {threads} threads{load}\n{versions()}\n"


def slug(name: str) -> str:
    """A file's name for a machine."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", name.lower())).strip("-")


def versions() -> str:
    """Versions of everything that was measured."""
    found = [f"Python {platform.python_version()}", f"torchsko {commit()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        said = subprocess.run(["g++", "--version"], capture_output=True, text=True).stdout
        found.append(said.splitlines()[0])
    except (OSError, IndexError):
        pass
    return ", ".join(found)


def commit() -> str:
    """The checkout's commit, with a plus sign if the library differs from it."""
    here = Path(__file__).parent.parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "-s", "torchsko"))
    except OSError:
        return "(no git)"


def document(sections: Sequence[Section], options: Options, seconds: float, load: float) -> str:
    """The whole report; ``load`` is the machine's load average before the run."""
    lines = [
        f"# Benchmarks on {machine()}",
        "",
        f"Written by `python benchmarks/run.py {' '.join(sys.argv[1:])}` in {seconds:.0f} s on "
        f"{options.threads} threads; batch {options.batch} unless said, {options.passes} interleaved "
        f"passes. Load average before the run: {load:.1f}"
        + (
            ". Other processes were running: barriers of OpenMP then cost milliseconds, so that eager "
            "PyTorch, ADAM, MuJoCo and Pinocchio look slower than they are (--threads 1 is fairer)."
            if load > 0.5
            else "."
        ),
        "",
        f"Versions: {versions()}.",
        "",
        "A time is the median over passes of one call, divided by the batch. A ratio is that of two "
        "contestants within one pass: median over the passes, and [lowest, highest].",
    ]
    demands = [demand.row() for section in sections for demand in section.demands]
    if demands:
        header = ("item", "what", "demanded", "measured", "reached")
        lines += ["", "## Demanded and reached", "", *table(header, []), *demands]
    for section in sections:
        lines += ["", f"## {section.title}", *section.lines]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def readme(sections: Sequence[Section], options: Options) -> tuple[str, str]:
    """The table of ratios for the README, and the section on performance of docs/performance.md."""
    head = f"Measured on {machine()}, {options.threads} threads, batch {options.batch}, by "
    lines = [head + "`python benchmarks/run.py`:", ""]
    for section in sections:
        lines += section.summary
    ratios = ratio_table(lines)
    return tuple(re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip() for text in (ratios, lines))


def ratio_table(lines: Sequence[str]) -> list[str]:
    """Median ratios of the first table of a summary, one row per peer.

    Variants of a peer, such as "Pinocchio C++ (LOCAL)", are one row with their smallest ratios.
    """
    start = next(k for k, line in enumerate(lines) if line.startswith("| us a sample"))
    header, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in takewhile(lambda line: line.startswith("|"), lines[start:])
    ]
    peers: dict[str, list[float]] = {}
    for name, *cells in rows[1:]:
        found = [re.search(r"\(([\d.e+]+)x", cell) for cell in cells]
        if name.startswith("torchsko fused") or not any(found):
            continue
        best = peers.setdefault(re.sub(r" \((?!PyTorch|JAX).*", "", name), [math.inf] * len(cells))
        for k, match in enumerate(found):
            best[k] = min(best[k], float(match[1])) if match else best[k]
    cells = [
        (name, *(f"{ratio:.3g}x" if ratio < math.inf else "-" for ratio in ratios))
        for name, ratios in peers.items()
    ]
    return table(("peer", *header[1:]), cells)
