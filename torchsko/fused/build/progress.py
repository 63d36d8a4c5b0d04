"""Progress of the build of a kernel: its stages with an estimate, for the logger ``torchsko`` and tqdm."""

from __future__ import annotations

import logging
from typing import Any

from torchsko.errors import MissingExtraError
from torchsko.utils.optional_dependencies import require

_log = logging.getLogger("torchsko")

SECONDS_PER_UNIT, SECONDS_PER_OPERATION = 1.0, 1.6e-4
"""Processor time in which g++ compiles a unit, and one operation, about 35 characters of source.

Measured for steps with contact of 6,000 to 49,000 operations: within 1.2."""

CHARACTERS_PER_OPERATION = 35

MIN_REPORTED_SECONDS = 10.0
"""Estimate above which the stages of a build are warnings, which Python prints by default."""


def report_stage(stage: str, operations: int) -> None:
    """Log a stage of a build, with an estimate of the processor time of the whole."""
    seconds = SECONDS_PER_UNIT + operations * SECONDS_PER_OPERATION
    message = "kernel of %d operations: %s; the build takes about %d s of processor time"
    _log.log(_level(seconds), message, operations, stage, round(seconds))


class CompileProgress:
    """Progress of a compiler that runs several jobs.

    Args:
        jobs: their number.
        characters: length of all sources.
    """

    def __init__(self, jobs: int, characters: int) -> None:
        operations = characters / CHARACTERS_PER_OPERATION
        seconds = jobs * SECONDS_PER_UNIT + operations * SECONDS_PER_OPERATION
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
