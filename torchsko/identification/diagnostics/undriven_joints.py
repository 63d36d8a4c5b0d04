"""Forces that are zero all along: of joints that nothing drives, or that nobody measured."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.diagnostics.log_hypotheses import States
from torchsko.identification.logs.log import Log
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.uncertainty.residuals import CONSTANT_TOLERANCE
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics

CARRIED = 0.5
"""Of a robot's weight, needed where a free joint has no force, from which on something carries it.

In free flight a robot needs none, whatever of it is not known; one that stands or hangs needs all.
"""


def refuse_unfelt(mech: Mechanism, log: Log, motions: Sequence[FilteredMotion]) -> None:
    """Refuse a log of a robot that floats, and has no force where it floats, but does not fall.

    Args:
        mech: the nominal robot, lossless.
        log: what messages name.
        motions: of it.

    Raises:
        FitError: names the joint, and the force that the nominal robot needs there.
    """
    floating = free_joints(mech)
    if not floating:
        return
    states = States.of(mech, motions)
    if not len(states.q):
        return
    zero = _zero(states.tau)
    for name in floating:
        at = mech.dof_slice(name)
        if not (zero & states.felt)[at].all():
            continue
        pushed = slice(at.stop - 3, at.stop)
        still = torch.zeros_like(states.qd)
        needed = _size(inverse_dynamics(mech, states.q, states.qd, states.qdd)[:, pushed])
        weight = _size(inverse_dynamics(mech, states.q, still, still)[:, pushed])
        if weight > 0 and needed > CARRIED * weight:
            raise FitError(
                f"{log.name}: the force of joint {name!r} is zero all along, and the nominal robot needs "
                f"{needed:.3g} N there to move so.",
                "What carries a robot that floats, a floor or a stand, pushes it there; without that it has "
                "no weight.",
                "Put the measured wrench there, that of contacts as joints feel it "
                "(ts.identification.Log says how). "
                "Where something carries the base and nobody measured how hard, put nan: it is left out. "
                "Where the base stood still, fit the robot without floating base.",
            )


def undriven(mech: Mechanism, motions: Sequence[FilteredMotion]) -> list[str]:
    """A line that names dofs without a force all along that need one, besides those of free joints.

    Args:
        mech: the nominal robot, lossless.
        motions: of the log.
    """
    states = States.of(mech, motions)
    if not len(states.q):
        return []
    zero = _zero(states.tau) & states.felt
    for name in free_joints(mech):
        zero[mech.dof_slice(name)] = False
    if not zero.any():
        return []
    force = inverse_dynamics(mech, states.q, states.qd, states.qdd)
    needed = force.square().mean(0).sqrt()
    odd = zero & (needed > CONSTANT_TOLERANCE * needed.max())
    rows = zip(mech.dof_names, odd.tolist(), needed.tolist(), strict=True)
    told = [f"{name} ({x:.2g})" for name, is_odd, x in rows if is_odd]
    if not told:
        return []
    return [
        "no force all along, where the nominal robot needs some (N m or N, root mean square): "
        f"{', '.join(told)}. Right of joints that nothing drives; if nobody measured it, the bodies behind "
        "are wrong"
    ]


def _zero(tau: Tensor) -> Tensor:
    """Which dofs have no force all along, `[num_dof]`."""
    most = tau.abs().amax(0)
    return most <= CONSTANT_TOLERANCE * most.max()


def _size(force: Tensor) -> float:
    """Root mean square length of forces `[samples, 3]`."""
    return float(force.square().sum(-1).mean().sqrt())
