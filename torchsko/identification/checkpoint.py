"""Where a fit got to, kept on disk, so that one that was stopped goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from torchsko.errors import FitError
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.regression.solution import ModelStructure, TermChoice
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.mechanism.mechanism import PARAMETERS
from torchsko.utils.atomic_write import temporary_path

PIECE = 100_000
"""Samples that are looked at at once."""


@dataclass
class Checkpoint:
    """A file that holds the normal equations and the choices so far of one fit.

    Attributes:
        path: of the file; None where nothing is kept.
        key: says which fit it is: of another one nothing is read.
    """

    path: Path | None
    key: str = ""

    @classmethod
    def of(
        cls, path: str | os.PathLike[str] | None, problem: RegressionProblem, log: Log,
        settings: FilterSettings, *options: Any,
    ) -> Checkpoint:  # fmt: skip
        """The checkpoint of a fit."""
        if path is None:
            return cls(None)
        if not Path(path).absolute().parent.is_dir():
            raise FitError(
                f"checkpoint {os.fspath(path)}: its folder is not there.",
                "What was done so far is kept in a file, to go on from.",
                "Make the folder first, or pass a path in one that is there.",
            )
        told = sha256(
            repr(
                (
                    problem.base.names,
                    problem.terms,
                    settings.rate,
                    settings.cutoff,
                    len(log),
                    options,
                )
            ).encode()
        )
        for name in PARAMETERS:
            told.update(getattr(problem.mech, name).detach().cpu().numpy().tobytes())
        for x in (log.t, log.q, log.tau, *(() if log.qd is None else (log.qd,))):
            # In pieces: arrays may be larger than the memory.
            for at in range(0, len(x), PIECE):
                told.update(x[at : at + PIECE].tobytes())
        return cls(Path(path), told.hexdigest())

    def read(self) -> dict[str, Any]:
        """What was kept of this fit; empty where nothing was."""
        if self.path is None or not self.path.is_file():
            return {}
        try:
            state = torch.load(self.path, weights_only=True)
        except Exception:
            return {}  # a file cut short when the machine stopped: begin again
        return state if state.get("key") == self.key else {}

    def write(
        self, normal: NormalEquations, faults: LogDefects, model: ModelStructure | None = None, at: int = 0,
        before: TermChoice | None = None,
    ) -> None:  # fmt: skip
        """Keep where the fit is; the old file stays until the new one is whole.

        Args:
            normal: the normal equations.
            faults: of the log.
            model: so far.
            at: how many choices are made.
            before: terms of each dof when their last round began.
        """
        if self.path is None:
            return
        state = {
            "key": self.key, "sums": normal.sums, "count": normal.count, "faults": asdict(faults),
            "model": None if model is None else asdict(model), "at": at,
            "before": before,
        }  # fmt: skip
        put(state, self.path)

    def done(self) -> None:
        """Forget it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def put(state: Mapping[str, Any], path: Path) -> None:
    """Write a file of tensors and numbers; an old one stays until the new one is whole."""
    part = temporary_path(path)
    try:
        # Into an open file: by its name, torch.save refuses a hidden one that has no ending.
        with part.open("wb") as file:
            torch.save(state, file)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
