"""Item 8: cost per sample against batch size, and against the number of links."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cases import Case, Robot, fixed_humanoid, fuse, link_chain, panda
from report import Options, Section, at_most
from timing import interleaved

import torchsko as ts

BATCHES = (1024, 4096, 16384, 65536, 262144, 1_000_000)
LINKS = (8, 16, 32, 64, 128, 256)

Forward = Callable[..., torch.Tensor]


def run(options: Options) -> Section:
    """Forward dynamics; without `ts.fuse` the eager functions, for the shape of the table."""
    section = Section("Scaling of forward dynamics")
    if fuse is None:
        section.lines.append("This torchsko has no fuse: eager functions instead.")
    section.lines.append(
        "Lowest of the passes: what disturbs a pass only adds, and not in proportion to the batch."
    )
    _batches(section, options)
    _links(section, options)
    return section


def _forward(robot: Robot, dtype: torch.dtype) -> Forward:
    mech = robot.mech.to(dtype)
    if fuse is not None:
        return fuse(mech).forward_dynamics
    return lambda *x: ts.forward_dynamics(mech, *x)


def _call(
    forward: Forward, robot: Robot, dtype: torch.dtype, batch: int, options: Options
) -> Callable[[], object]:
    case = Case.random(robot, dtype, batch, options.threads)
    return lambda: forward(case.q, case.qd, case.tau)


def _batches(section: Section, options: Options) -> None:
    batches = BATCHES[:2] if options.quick else BATCHES
    rows = []
    robots = (panda(),) if options.quick else (panda(), fixed_humanoid())
    for robot in robots:
        for dtype in (torch.float64, torch.float32):
            forward = _forward(robot, dtype)
            calls = {str(n): _call(forward, robot, dtype, n, options) for n in batches}
            with torch.no_grad():
                seconds = interleaved(calls, options.passes, options.slot)
            costs = [min(seconds[str(b)]) * 1e6 / b for b in batches]
            name = f"{robot.name}, {str(dtype).removeprefix('torch.')}"
            rows.append([name, *(f"{cost:.3g}" for cost in costs)])
            what = (
                f"{name}, largest over smallest cost a sample, batch {batches[0]} to {batches[-1]}"
            )
            section.demands.append(at_most("8", what, 1.5, max(costs) / min(costs), "x"))
    section.table(["us a sample at batch", *map(str, batches)], rows)


def _links(section: Section, options: Options) -> None:
    links, calls = LINKS[:2] if options.quick else LINKS, {}
    for n in links:
        robot = link_chain(n)
        forward = _forward(robot, torch.float64)
        calls[str(n)] = _call(forward, robot, torch.float64, options.batch, options)
    with torch.no_grad():
        seconds = interleaved(calls, options.passes, options.slot)
    costs = [min(seconds[str(n)]) * 1e9 / options.batch / n for n in links]
    section.table(
        ["chain, float64, links", *map(str, links)],
        [["ns a sample and link", *(f"{cost:.3g}" for cost in costs)]],
    )
    what = f"chains of {links[0]} to {links[-1]} links, largest over smallest cost a link"
    section.demands.append(at_most("8", what, 1.5, max(costs) / min(costs), "x"))
