"""Items 1 to 3: all contestants on the same states and cores, checked before they are timed."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field

import peers
import torch
from cases import (
    VERBS,
    Case,
    Entry,
    MissingPeerError,
    Robot,
    floating_humanoid,
    largest_error,
    panda,
)
from peers.torchsko_fused import AUTOGRAD, PER_SAMPLE, PER_SAMPLE_AUTOGRAD
from peers.torchsko_fused import NAME as FUSED
from report import Demand, Options, Section, at_least, at_most, table
from timing import Passes, Ratio, interleaved, ratio

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-2}
HEADINGS = {
    "inverse": "inverse dynamics",
    "forward": "forward dynamics",
    "mass_matrix": "mass matrix",
    "forward_vjp": "forward and VJP",
}
WANTED = {  # robot number, verb: times Pinocchio
    0: {"forward": 12, "inverse": 10, "forward_vjp": 15, "mass_matrix": 4},
    1: {"forward": 8, "inverse": 8, "forward_vjp": 10},
}


@dataclass
class Outcome:
    """Times and errors of one case, by (contestant, verb)."""

    case: Case
    seconds: dict[tuple[str, str], Passes] = field(default_factory=dict)
    errors: dict[tuple[str, str], float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    autodiff: set[str] = field(default_factory=set)

    def ratio(self, name: str, verb: str, to: str = FUSED) -> Ratio | None:
        """Time of a contestant relative to another."""
        if (name, verb) not in self.seconds or (to, verb) not in self.seconds:
            return None
        return ratio(self.seconds[name, verb], self.seconds[to, verb])

    def fastest(self, prefix: str, verb: str) -> str | None:
        """The fastest contestant whose name begins so."""
        found = {n: statistics.median(t) for (n, v), t in self.seconds.items()
                 if v == verb and n.startswith(prefix)}  # fmt: skip
        return min(found, key=found.__getitem__) if found else None


def run(options: Options) -> Section:
    """Every robot in both dtypes."""
    section = Section("All contestants")
    robots = [panda(), floating_humanoid()]
    for number, robot in enumerate(robots):
        if options.robots and robot.name not in options.robots:
            continue
        for dtype in (torch.float64, torch.float32):
            outcome = compete(robot, dtype, options)
            _write(section, outcome, options)
            section.demands += _demands(number, outcome)
    return section


def compete(robot: Robot, dtype: torch.dtype, options: Options) -> Outcome:
    """Enter, check and time everybody."""
    case = Case.random(robot, dtype, options.batch, options.threads)
    outcome, entries = Outcome(case), []
    for module in map(peers.peer, peers.MODULES):
        print(f"{robot.name}, {case.dtype}: {module.NAME}", file=sys.stderr, flush=True)
        try:
            entries += [entry for entry in module.enter(case) if _is_right(outcome, entry)]
        except MissingPeerError as reason:
            outcome.remarks.append(f"{module.NAME}: not measured, {reason}.")
        except Exception as error:  # a peer's own failure is a line in the report
            outcome.remarks.append(f"{module.NAME}: failed, {_brief(error)}.")
    for verb in VERBS:
        calls = {entry.name: entry.run for entry in entries if entry.verb == verb}
        for name, passes in interleaved(calls, options.passes, options.slot).items():
            outcome.seconds[name, verb] = passes
    outcome.autodiff.update(entry.name for entry in entries if entry.autodiff)
    return outcome


def _is_right(outcome: Outcome, entry: Entry) -> bool:
    try:
        error = largest_error(outcome.case, entry, entry.run())
    except Exception as failure:
        outcome.remarks.append(f"{entry.name}, {HEADINGS[entry.verb]}: failed, {_brief(failure)}.")
        return False
    outcome.errors[entry.name, entry.verb] = error
    if error <= TOLERANCE[outcome.case.dtype]:
        return True
    outcome.remarks.append(
        f"{entry.name}, {HEADINGS[entry.verb]}: not timed, its result differs from eager torchsko by "
        f"{error:.1e}."
    )
    return False


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def _write(section: Section, outcome: Outcome, options: Options) -> None:
    case = outcome.case
    mech, name = case.robot.mech, str(case.dtype).removeprefix("torch.")
    title = f"{case.robot.name}, {mech.num_dof} dof, {name}"
    section.lines += ["", f"### {title}", ""]
    contestants = list(dict.fromkeys(name for name, _ in outcome.seconds))
    header = ("us a sample (times the fused kernel's)", *HEADINGS.values(), "largest error")
    rows = [
        [n, *(_cell(outcome, n, verb) for verb in VERBS), _error(outcome, n)] for n in contestants
    ]
    section.lines += table(header, rows)
    section.lines += ["", *(f"- {remark}" for remark in outcome.remarks), f"- {_winners(outcome)}"]
    kept = [row for row in rows if not row[0].startswith(PER_SAMPLE)]
    section.summary += ["", f"**{title}**", "", *table(header[:-1], [row[:-1] for row in kept]), "",
                        _winners(outcome)]  # fmt: skip


def _cell(outcome: Outcome, name: str, verb: str) -> str:
    if (name, verb) not in outcome.seconds:
        return "-"
    time = statistics.median(outcome.seconds[name, verb]) * 1e6 / outcome.case.batch
    found = outcome.ratio(name, verb)
    return f"{time:.3g}" if name == FUSED or found is None else f"{time:.3g} ({found})"


def _error(outcome: Outcome, name: str) -> str:
    return f"{max(e for (n, _), e in outcome.errors.items() if n == name):.0e}"


def _winners(outcome: Outcome) -> str:
    won = []
    for name, verb in outcome.seconds:
        found = outcome.ratio(name, verb)
        if not name.startswith(FUSED) and found is not None and found.median < 1:
            won.append(f"{name} in {HEADINGS[verb]} ({1 / found.median:.2g} times faster)")
    if not any(name == FUSED for name, _ in outcome.seconds):
        return "No fused kernel took part in this run."
    if not won:
        return "No peer was faster than the fused kernels here."
    return f"Faster than the fused kernels here: {'; '.join(won)}."


def _demands(number: int, outcome: Outcome) -> list[Demand]:
    item, case = str(number + 1), outcome.case
    where = f"{case.robot.name}, {str(case.dtype).removeprefix('torch.')}"
    demands = []
    wanted = WANTED[number] if number == 0 or case.dtype == torch.float64 else {}
    for verb, times in wanted.items():
        name = outcome.fastest("Pinocchio", verb)
        found = outcome.ratio(name, verb) if name else None
        what = f"{where}, {HEADINGS[verb]}, over the fastest Pinocchio C++ ({name})"
        demands.append(at_least(item, what, times, found))
        if verb == "forward_vjp" and name:
            found = outcome.ratio(name, verb, AUTOGRAD)
            what = f"{where}, {HEADINGS[verb]} by autograd, over the same"
            demands.append(at_least(item, what, times, found))
        if verb == "forward" and case.dtype == torch.float32:
            found = outcome.ratio("Pinocchio C++ (LOCAL)", verb)
            what = f"{where}, {HEADINGS[verb]}, over Pinocchio's accurate convention (LOCAL)"
            demands.append(at_least(item, what, times, found))
    if case.dtype == torch.float64:
        for verb in VERBS[:3]:
            found = outcome.ratio("MuJoCo C", verb)
            demands.append(at_least(item, f"{where}, {HEADINGS[verb]}, over MuJoCo C", 1,
                                    found))  # fmt: skip
    if number == 1 and case.dtype == torch.float64:
        found = outcome.ratio(PER_SAMPLE, "forward")
        what = f"{where}, forward dynamics, inertial parameters per sample over constants"
        demands.append(at_most(item, what, 2.5, found, "x"))
        found = outcome.ratio(PER_SAMPLE_AUTOGRAD, "forward_vjp", AUTOGRAD)
        what = f"{where}, forward and VJP by autograd, likewise"
        demands.append(at_most(item, what, 2.5, found, "x"))
    return [*demands, _against_autodiff(where, outcome)]


def _against_autodiff(where: str, outcome: Outcome) -> Demand:
    ratios = [outcome.ratio(name, "forward_vjp") for name in outcome.autodiff]
    found = min((r for r in ratios if r is not None), key=lambda r: r.median, default=None)
    return at_least("3", f"{where}, forward and VJP, over the fastest autodiff library", 80, found)
