"""One warning, or error, about faults of a robot file and parts of its dynamics that are not modeled."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torchsko.errors import RobotFileError, RobotFileWarning, caller_stack_level
from torchsko.mechanism.mechanism import Mechanism

MAX_LISTED = 12
"""Entries of each kind that the warning names; ``mech.report`` and ``mech.unused`` have all."""


def check_file(mech: Mechanism, *, strict: bool = False) -> None:
    """Warn of the faults of a mechanism's file, and of elements that change its dynamics.

    Args:
        mech: the mechanism of a file or compiled model.
        strict: raise an error instead; elements that act in `torchsko.step` are accepted.

    Raises:
        RobotFileError: names the first fault or element, if strict.
    """
    missing = [entry for entry in mech.unused if entry.changes_dynamics]
    if not mech.report and not missing:
        return
    absent = [entry for entry in missing if not entry.in_step]
    if strict and (mech.report or absent):
        if mech.report:
            fault = mech.report[0]
            advice = fault.advice or "Correct the file, or load it without strict=True."
            raise RobotFileError(f"{fault}.", fault.why, advice)
        raise RobotFileError(
            f"{absent[0]}.",
            "It changes the dynamics of the file.",
            "Remove it from the file, or load the file without strict=True.",
        )
    name, in_step = repr(mech.name), [entry for entry in missing if entry.in_step]
    lines = [
        *_listed(f"the file of {name} has {{}}:", "fault", mech.report),
        *_listed(f"{name} lacks {{}} of the dynamics in its file:", "part", absent),
        *_listed(f"ts.forward_dynamics and ts.rollout of {name} lack {{}}:", "part", in_step),
        "mech.report lists faults, mech.unused missing parts; load(..., strict=True) refuses faults and "
        "parts that ts.step lacks.",
    ]
    warnings.warn("\n".join(lines), RobotFileWarning, stacklevel=caller_stack_level())


def _listed(title: str, noun: str, entries: Sequence[object]) -> list[str]:
    """Lines with a title and the first entries; none without entries."""
    if not entries:
        return []
    count, more = len(entries), len(entries) - MAX_LISTED
    lines = [
        title.format(f"{count} {noun}{'s' * (count > 1)}"),
        *(f"  {x}" for x in entries[:MAX_LISTED]),
    ]
    return [*lines, f"  and {more} more"] if more > 0 else lines
