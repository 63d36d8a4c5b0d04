"""The part of a log that a fit does not use, for a test of its predictions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchsko.cli.log_options import load_log
from torchsko.errors import FitError

if TYPE_CHECKING:
    from torchsko.identification.logs.log import Log
    from torchsko.mechanism.mechanism import Mechanism

Part = tuple[float, float]
"""Fractions of the duration of a log: start and end."""

WHOLE: Part = (0.0, 1.0)


@dataclass(frozen=True)
class HeldOut:
    """Logs, and the parts of their common duration, that test a fit.

    Attributes:
        paths: of the logs.
        parts: of the duration.
    """

    paths: Sequence[str]
    parts: Sequence[Part]


def held_out_part(given: argparse.Namespace) -> HeldOut | None:
    """Logs that test the fit by the options --use and --test: by default the rest of the fitted log.

    Raises:
        FitError: if the options are malformed, or the fit uses a part of the test.
    """
    used = parse_part("use", given.use)
    rest = [x for x in ((0.0, used[0]), (used[1], 1.0)) if x[0] < x[1]]
    words = list(given.test)
    part = None
    if words and re.fullmatch(r"[\d.eE+-]*:[\d.eE+-]*", words[-1]):
        part = parse_part("test", words.pop())
    if not words:
        if part is not None:
            words = list(given.log)
        else:
            return HeldOut(given.log, rest) if rest else None
    fitted, tested = ({Path(x).resolve() for x in paths} for paths in (given.log, words))
    if not fitted & tested:
        return HeldOut(words, [part or WHOLE])
    common = ", ".join(sorted(x.name for x in fitted & tested))
    if tested != fitted:
        raise FitError(
            f"--test has {common}, which the fit uses, beside other logs.",
            "Parts are fractions of the duration of all logs of the fit together.",
            "Type --test with all of these logs, or with others alone.",
        )
    if not rest:
        raise FitError(
            f"--test has {common}, and the fit uses all of it.",
            "A test needs data that the fit does not use.",
            "Type --use 0:0.6, so that the rest is the test, or --test with another log.",
        )
    if part is not None and part[0] < used[1] and used[0] < part[1]:
        listed = " or ".join(f"{a:g}:{b:g}" for a, b in rest)
        raise FitError(
            f"--test {part[0]:g}:{part[1]:g} and --use {used[0]:g}:{used[1]:g} overlap.",
            "A test needs data that the fit does not use.",
            f"Type a part within {listed}, or leave it out for the whole rest.",
        )
    return HeldOut(given.log, rest if part is None else [part])


def held_out_log(mech: Mechanism, test: HeldOut, given: argparse.Namespace) -> Log:
    """Load the log of a test; its name has the parts.

    Args:
        mech: the robot.
        test: from `held_out_part`.
        given: result of a parser with the options of `add_log_options`.

    Raises:
        TorchskoError: when a file or an option is invalid.
    """
    from torchsko.identification.logs.log import Log

    whole = load_log(mech, test.paths, given)
    parts = [whole.part(*x) for x in test.parts]
    log = parts[0] if len(parts) == 1 else Log.concatenate(parts)
    if list(test.parts) == [WHOLE]:
        return log
    listed = " and ".join(f"{a:g}:{b:g}" for a, b in test.parts)
    return replace(log, name=f"the part {listed} of {whole.name}")


def parse_part(option: str, text: str) -> Part:
    """Parse a part of a log: ``0:0.6``.

    Args:
        option: name of the option, for messages.
        text: its value.

    Raises:
        FitError: if it is not a part.
    """
    try:
        start, stop = (float(x) for x in text.split(":"))
        valid = 0 <= start < stop <= 1
    except ValueError:
        valid, start, stop = False, 0.0, 0.0
    if not valid:
        raise FitError(
            f"--{option} {text} is not a part of a log.",
            "It must be two fractions of the duration, the first smaller.",
            f"Type --{option} {'0:0.6' if option == 'use' else 'log.csv 0.6:1'}.",
        )
    return start, stop
