"""Checks of logged positions and forces of coupled joints, which follow other joints by a ratio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.diagnostics.hypothesis_search import MAX_UNEXPLAINED, percent_explained
from torchsko.identification.diagnostics.log_states import States
from torchsko.identification.logs.log import Array
from torchsko.identification.logs.units import currents_of
from torchsko.identification.regression.accumulate import reread_sample
from torchsko.identification.signals.unwrap import TURN
from torchsko.mechanism.coordinates import closed_matrix, independent_forces, tree_q
from torchsko.mechanism.mechanism import Mechanism

MIN_IMPROVEMENT = 4.0
"""Factor by which added forces must reduce the unexplained share before they count as missing."""

MAX_DEVIATION = 0.05
"""Root mean square deviation from the coupling, over the spread of the position, that is tolerated."""

MAX_SAMPLES = 10_000
"""Number of positions that are examined, evenly spread."""


def coupled_joints(mech: Mechanism) -> list[str]:
    """Names of the joints that follow others."""
    return [name for name in mech.tree_joint_names if name not in mech.joint_names]


def coupling_ratios(mech: Mechanism, name: str) -> dict[int, float]:
    """Dofs that a coupled joint follows, and the ratios."""
    unit = torch.zeros(len(mech.damping), dtype=mech.dtype, device=mech.device)
    unit[mech.tree_dof_slice(name)] = 1.0
    return {
        k: x
        for k, x in enumerate(independent_forces(mech, closed_matrix(mech, None), unit).tolist())
        if x
    }


def coupled_position(context: FitContext) -> Iterator[Finding]:
    """Logged positions of coupled joints follow the coupling of the robot's file."""
    mech, log = context.lossless, context.log
    logged = {j: x for j, x in log.others.get("q", {}).items() if j in coupled_joints(mech)}
    if not logged:
        return
    thin = slice(None, None, max(1, len(log) // MAX_SAMPLES))
    q = torch.from_numpy(np.array(log.q[thin], np.float64))
    expected_q = tree_q(mech, q.to(mech.lower)).detach().cpu().numpy()
    for name, x in logged.items():
        expected = expected_q[:, mech.tree_q_slice(name)][:, 0]
        deviation = np.asarray(x[thin], np.float64) - expected
        if mech.joints.kinds[mech.tree_joint_names.index(name)].coordinate_unit == "rad":
            deviation = deviation - TURN * np.rint(deviation / TURN)
        deviation = deviation[np.isfinite(deviation)]
        spread = float(np.nanstd(expected))
        size = float(np.sqrt(np.mean(deviation**2))) if len(deviation) else 0.0
        if size > MAX_DEVIATION * spread:
            yield finding(
                "coupled_position",
                f"Positions of {name} differ from its coupling by {size:.2g} (root mean square); the joint "
                f"moves by {spread:.2g}.",
                'Correct its ratio or offset, or load the robot with mimic="independent" (--independent).',
                joints=[name],
            )


def coupled_force(context: FitContext) -> Iterator[Finding]:
    """Forces of coupled joints are zero, or included in those of the joints that they follow."""
    mech, log = context.lossless, context.log
    forces = {j: x for j, x in log.others.get("tau", {}).items() if j in coupled_joints(mech)}
    largest = {j: float(np.nanmax(np.abs(x), initial=0.0)) for j, x in forces.items()}
    driven = [j for j in forces if largest[j] > 0]
    if zero := [j for j in forces if j not in driven]:
        yield finding(
            "ignored_coupled_force",
            f"Forces of coupled joints are always zero: {', '.join(zero)}.",
            joints=zero,
        )
    if not driven:
        return
    sizes = ", ".join(f"{j} (up to {largest[j]:.3g})" for j in driven)
    if currents_of(log.units):
        yield finding(
            "ignored_coupled_force",
            f"Currents of coupled joints are not used: {sizes}.",
            joints=driven,
        )
        return
    added = replace(log, tau=log.tau + _on_leaders(mech, {j: forces[j] for j in driven}))
    motions = reread_sample(context.problem, added, context.settings).motions
    before, after = (States.of(mech, x).unexplained() for x in (context.motions, motions))
    names, shares, missing = mech.dof_names, [], False
    for k in dict.fromkeys(k for j in driven for k in coupling_ratios(mech, j)):
        without, including = percent_explained(before[k]), percent_explained(after[k])
        if float(after[k]) < MAX_UNEXPLAINED and MIN_IMPROVEMENT * float(after[k]) < float(
            before[k]
        ):
            missing = True
            ratios = {
                j: coupling_ratios(mech, j)[k] for j in driven if k in coupling_ratios(mech, j)
            }
            terms = " + ".join(f"{x:.4g} * tau of {j}" for j, x in ratios.items())
            yield finding(
                "coupled_force",
                f"Forces of {names[k]} probably lack those of {', '.join(ratios)}, which follow it.",
                f"Log tau of {names[k]} + {terms}; or remove the columns of the coupled joints.",
                joints=[names[k], *ratios],
                reason=f"The nominal robot explains {including} of the force with them, and {without} "
                "without them (without friction).",
            )
        shares.append(f"{without} of {names[k]}, {including} with them")
    if not missing:
        yield finding(
            "ignored_coupled_force",
            f"Forces of coupled joints are not used: {sizes}. The nominal robot explains "
            f"{'; '.join(shares)}.",
            "If drives act on coupled joints, add their forces, times the ratio, to the joint they follow.",
            joints=driven,
        )


def _on_leaders(mech: Mechanism, forces: Mapping[str, Array]) -> Array:
    """Forces of coupled joints as forces of the joints that they follow, `[samples, num_dof]`."""
    total = np.zeros((len(next(iter(forces.values()))), mech.num_dof))
    for name, x in forces.items():
        for k, ratio in coupling_ratios(mech, name).items():
            total[:, k] += ratio * x
    return total
