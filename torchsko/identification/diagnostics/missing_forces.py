"""Forces where a robot floats that nobody measured: the other joints tell what they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchsko.errors import FitError
from torchsko.identification.logs.log import Log
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.mechanism import Mechanism

AT_ONCE = 200_000
"""Samples of a log that are in memory at once."""


def with_all_forces(mech: Mechanism, log: Log) -> Log:
    """A log whose forces have a column for each dof, nan where the robot floats and there was none.

    Args:
        mech: the robot.
        log: of forces of all joints, or of all but those by which the robot floats.
    """
    floating = [k for name in free_joints(mech) for k in range(mech.num_dof)[mech.dof_slice(name)]]
    if not floating or log.tau.shape[1] != mech.num_dof - len(floating):
        return log
    tau = np.full((len(log), mech.num_dof), np.nan)
    tau[:, np.delete(np.arange(mech.num_dof), floating)] = log.tau
    return replace(log, tau=tau)


def unmeasured(mech: Mechanism, log: Log) -> list[int]:
    """Dofs of joints by which a robot floats whose force is nowhere a finite number.

    Args:
        mech: the robot.
        log: of forces of all its dofs.

    Raises:
        FitError: where these are all that the robot has.
    """
    found = [k for name in free_joints(mech) for k in range(mech.num_dof)[mech.dof_slice(name)]]
    for at in range(0, len(log), AT_ONCE):
        if not found:
            return []
        part = np.any(np.isfinite(np.asarray(log.tau[at : at + AT_ONCE])), axis=0)
        log.release_pages()
        found = [k for k in found if not part[k]]
    if len(found) == mech.num_dof:
        raise FitError(
            f"{log.name}: no force is a finite number.",
            "Forces tell what a robot weighs, and one that floats has none besides those at its base.",
            "Put zeros there for flight, or the wrench that pushed it.",
        )
    return found


def unmeasured_lines(mech: Mechanism, dofs: Sequence[int]) -> list[str]:
    """A line that names dofs which were left out, or none."""
    names = mech.dof_names
    if not dofs:
        return []
    return [
        f"not measured, and left out: forces of {', '.join(names[k] for k in dofs)}. What only they tell is "
        "not told by the data; in flight they are zero, and zeros tell it"
    ]


def without_unmeasured(mech: Mechanism, faults: LogDefects, dofs: Sequence[int]) -> LogDefects:
    """Faults without those of joints whose forces nobody measured: they are no outliers."""
    whole = {
        name
        for name in free_joints(mech)
        if set(range(mech.num_dof)[mech.dof_slice(name)]) <= set(dofs)
    }
    left = {name: n for name, n in faults.outliers.items() if name not in whole}
    return replace(faults, outliers=left)
