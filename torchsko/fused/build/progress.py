"""Progress of the build of a kernel: its stages with an estimate, for the logger ``torchsko`` and tqdm."""

from __future__ import annotations

import logging
from typing import Any

from torchsko.errors import MissingExtraError
from torchsko.utils.optional_dependencies import require

_log = logging.getLogger("torchsko")

SECONDS_PER_UNIT, SECONDS_PER_OPERATION = 1.0, 2.7e-4
"""Processor time in which g++ compiles a unit, and an operation with its loads.

Measured for environment steps of 5,500 to 127,000 operations and their gradients: from the source text within
1.3, from operations alone within 2, since these do not include copies of rows that loops read."""

CHARACTERS_PER_OPERATION = 60
"""Source text of an operation with its loads; measured for these steps: 58 to 98."""

MIN_REPORTED_SECONDS = 10.0
"""Estimate above which the stages of a build are warnings, which Python prints by default."""


def build_seconds(operations: float, units: int = 1) -> float:
    """Estimate of the processor time of a build."""
    return units * SECONDS_PER_UNIT + operations * SECONDS_PER_OPERATION


def report_stage(stage: str, operations: int) -> None:
    """Log a stage of a build, with an estimate of the processor time of the whole."""
    seconds = build_seconds(operations)
    message = "kernel of %d operations: %s; the build takes about %d s of processor time"
    _log.log(_level(seconds), message, operations, stage, round(seconds))


class CompileProgress:
    """Progress of a compiler that runs several jobs.

    Args:
        jobs: their number.
        characters: length of all sources.
    """

    def __init__(self, jobs: int, characters: int) -> None:
        seconds = build_seconds(characters / CHARACTERS_PER_OPERATION, jobs)
        self._level, self._jobs, self._done = _level(seconds), jobs, 0
        self._bar: Any = None
        if self._level >= logging.WARNING:
            try:
                tqdm = require("tqdm", "identify").tqdm
                self._bar = tqdm(
                    total=jobs,
                    desc=f"compile, about {seconds:.0f} s of processor time",
                    unit="unit",
                )
            except MissingExtraError:
                pass
        if self._bar is None:
            _log.log(
                self._level,
                "kernel: compile %d units, about %d s of processor time",
                jobs,
                round(seconds),
            )

    def advance(self) -> None:
        """Count a job as done."""
        self._done += 1
        if self._bar is None:
            _log.log(self._level, "kernel: compiled unit %d of %d", self._done, self._jobs)
            return
        self._bar.update()
        if self._done == self._jobs:
            self._bar.close()


def _level(seconds: float) -> int:
    return logging.WARNING if seconds >= MIN_REPORTED_SECONDS else logging.INFO
