"""Item 3: one state at a time through Python, and 64 states."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from cases import Case, fuse, panda
from report import Demand, Options, Section, at_most
from timing import interleaved, ratio

import torchsko as ts

STATES = 64


def run(options: Options) -> Section:
    """Forward dynamics of the arm, float64."""
    section = Section("Small batches through Python")
    robot = panda()
    case = Case.random(robot, torch.float64, STATES, options.threads)
    rows = [
        (q.clone(), qd.clone(), tau.clone())
        for q, qd, tau in zip(case.q, case.qd, case.tau, strict=True)
    ]
    state = (case.q, case.qd, case.tau)
    calls: dict[str, Callable[[], object]] = {}
    if fuse is not None:
        fast = fuse(robot.mech)
        with torch.no_grad():
            fast.forward_dynamics(*rows[0])
        calls["torchsko fused, one call of one state"] = lambda: fast.forward_dynamics(*rows[0])
        calls["torchsko fused, one call of 64"] = lambda: fast.forward_dynamics(*state)
        calls["torchsko fused, 64 calls of one"] = lambda: [fast.forward_dynamics(*r) for r in rows]
    mech = robot.mech
    calls["torchsko eager, one call of one state"] = lambda: ts.forward_dynamics(mech, *rows[0])
    try:
        calls["Pinocchio's Python binding, 64 calls of one"] = _pinocchio(robot.urdf, state)
    except ImportError:
        section.lines.append("Pinocchio: not installed.")
    with torch.no_grad():
        seconds = interleaved(calls, 3 if options.quick else 9, 0.02)
    rows_out = [[name, f"{statistics.median(t) * 1e6:.3g}"] for name, t in seconds.items()]
    section.table(["panda, float64, forward dynamics", "us"], rows_out)
    section.demands += _demands(seconds)
    return section


def _pinocchio(urdf: str, state: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    import pinocchio as pin

    model = pin.buildModelFromXML(urdf)
    data = model.createData()
    rows = list(zip(*(x.numpy() for x in state), strict=True))

    def loop() -> None:
        for q, v, tau in rows:
            pin.aba(model, data, q, v, tau)

    return loop


def _demands(seconds: dict[str, list[float]]) -> list[Demand]:
    one = seconds.get("torchsko fused, one call of one state")
    many = seconds.get("torchsko fused, one call of 64")
    loop = seconds.get("Pinocchio's Python binding, 64 calls of one")
    found = None if one is None else statistics.median(one) * 1e6
    demands = [at_most("3", "panda, forward dynamics, one state a call", 15, found, " us")]
    times = None if many is None or loop is None else ratio(loop, many).median
    said = "-" if times is None else f"{times:.3g}x"
    reached = None if times is None else times > 1
    what = "64 states in one call, over Pinocchio's Python binding in a loop"
    return [*demands, Demand("3", what, "faster", said, reached)]
