"""What a log holds of joints that follow others: it does not count, and may contradict the robot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.diagnostics.log_hypotheses import WELL, States, percent
from torchsko.identification.logs.log import Log
from torchsko.identification.logs.units import CURRENT_UNITS
from torchsko.identification.regression.accumulate import reread_sample
from torchsko.identification.regression.normal_equations import RegressionProblem
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.signals.unwrap import TURN
from torchsko.mechanism.coordinates import all_q, own_forces
from torchsko.mechanism.mechanism import Mechanism

Array = NDArray[np.floating[Any]]

LESS = 4.0
"""Times less that the nominal robot leaves over with forces of joints that follow: not by chance."""

APART = 0.05
"""Root mean square difference of a position from what it follows, over its spread, that is told."""

SAMPLES = 10_000
"""Positions that are looked at, evenly spread."""


def followers(mech: Mechanism) -> list[str]:
    """Names of the joints that follow others."""
    return [name for name in mech.tree_joint_names if name not in mech.joint_names]


def led_by(mech: Mechanism, name: str) -> dict[int, float]:
    """Dofs of the robot that a joint follows, and the ratios."""
    one = torch.zeros(len(mech.damping), dtype=mech.dtype, device=mech.device)
    one[mech.tree_dof_slice(name)] = 1.0
    ratios = own_forces(mech, one)
    return {k: x for k, x in enumerate(ratios.tolist()) if x}


def followers_told(
    mech: Mechanism,
    problem: RegressionProblem,
    log: Log,
    settings: FilterSettings,
    motions: Sequence[FilteredMotion],
) -> list[str]:
    """Lines of what a log holds of joints that follow others, and is not read.

    Args:
        mech: the nominal robot, lossless.
        problem: what explains forces.
        log: of forces.
        settings: how it is filtered.
        motions: of it.

    Raises:
        FitError: where the nominal robot explains the forces of a joint that others follow only if theirs are
            added; names both.
    """
    forces = {j: log.others["tau"][j] for j in followers(mech) if j in log.others.get("tau", {})}
    most = {j: float(np.nanmax(np.abs(x), initial=0.0)) for j, x in forces.items()}
    pushed = [j for j in forces if most[j] > 0]
    lines = _positions_told(mech, log)
    if still := [j for j in forces if j not in pushed]:
        lines.append(f"forces of joints that follow others, zero all along: {', '.join(still)}")
    if not pushed:
        return lines
    told = [f"{j} (up to {most[j]:.3g})" for j in pushed]
    if log.units.get("tau") in CURRENT_UNITS:
        return [*lines, f"currents of joints that follow others do not count: {', '.join(told)}"]
    with_theirs = replace(log, tau=log.tau + _felt(mech, {j: forces[j] for j in pushed}))
    seen = reread_sample(problem, with_theirs, settings).motions
    as_is, added = (States.of(mech, x).left_over() for x in (motions, seen))
    names, shares = mech.dof_names, []
    for k in dict.fromkeys(k for j in pushed for k in led_by(mech, j)):
        if float(added[k]) < WELL and LESS * float(added[k]) < float(as_is[k]):
            _refuse(mech, log, k, pushed, as_is[k], added[k])
        shares.append(f"of {names[k]} {percent(as_is[k])}, with them {percent(added[k])}")
    return [
        *lines,
        f"forces of joints that follow others do not count: {', '.join(told)}. Where drives push there, add "
        "them, times the ratio, to those of the joints that they follow; friction set aside, the nominal "
        f"robot explains {'; '.join(shares)}",
    ]


def _felt(mech: Mechanism, forces: Mapping[str, Array]) -> Array:
    """Forces of joints that follow, as the robot's dofs feel them, `[samples, num_dof]`."""
    felt = np.zeros((len(next(iter(forces.values()))), mech.num_dof))
    for name, x in forces.items():
        for k, ratio in led_by(mech, name).items():
            felt[:, k] += ratio * x
    return felt


def _refuse(
    mech: Mechanism, log: Log, dof: int, pushed: Sequence[str], as_is: Tensor, added: Tensor
) -> None:
    """Refuse a log whose forces are without those of joints that follow."""
    name = mech.dof_names[dof]
    theirs = {j: led_by(mech, j)[dof] for j in pushed if dof in led_by(mech, j)}
    raise FitError(
        f"{log.name}: forces of {name!r} are without those of {', '.join(map(repr, theirs))}, which "
        "follow it, as it seems.",
        f"Of these forces, friction set aside, the nominal robot explains {percent(added)} with them, and "
        f"{percent(as_is)} as they were logged.",
        f"Add them times the ratio, tau of {name} + "
        f"{' + '.join(f'{x:.4g} * tau of {j}' for j, x in theirs.items())}; or leave their columns out, if "
        "the log is right.",
    )


def _positions_told(mech: Mechanism, log: Log) -> list[str]:
    """A line that names joints whose positions are not what they follow."""
    there = {j: x for j, x in log.others.get("q", {}).items() if j in followers(mech)}
    some = slice(None, None, max(1, len(log) // SAMPLES))
    q = torch.from_numpy(np.array(log.q[some], np.float64))
    every = all_q(mech, q.to(mech.lower)).detach().cpu().numpy() if there else np.zeros(())
    odd = []
    for name, x in there.items():
        k = mech.tree_joint_names.index(name)
        expected = every[:, mech.tree_q_slice(name)][:, 0]
        off = np.asarray(x[some], np.float64) - expected
        if mech.joints.kinds[k].coordinate_unit == "rad":
            off = off - TURN * np.rint(off / TURN)
        off, spread = off[np.isfinite(off)], float(np.nanstd(expected))
        if len(off) and (most := float(np.sqrt(np.mean(off**2)))) > APART * spread:
            odd.append(f"{name} by {most:.2g}, where it moves by {spread:.2g}")
    if not odd:
        return []
    return [
        f"positions are not what the robot's file has these joints follow (root mean square): "
        f'{", ".join(odd)}. Its ratio or offset is another, or they do not follow: mimic="independent", '
        "--independent"
    ]
