"""Angles and lengths: joints that turn have the one, joints that slide the other."""

from __future__ import annotations

import numpy as np
import torch

from torchsko.errors import FitError
from torchsko.identification.logs.log import Array, Log
from torchsko.identification.logs.units import CURRENT_UNITS, LINEAR_UNITS, SI_SCALE
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics

TURNS = 3.0
"""Range of a joint's positions, in turns, from which on they may be degrees."""

TOLD = 0.4
"""Share of forces that gravity at positions in degrees explains, from which on they are in degrees."""


def _has(kind: JointType, name: str, unit: str) -> bool:
    """Whether this unit fits a joint of this type; only SI units fit rotation combined with translation."""
    if SI_SCALE[unit] == 1 or name == "t" or unit in CURRENT_UNITS:
        return True
    own = kind.coordinate_unit if name == "q" else kind.rate_unit
    return own == ("m" if unit in LINEAR_UNITS else "rad")


def refuse_kinds(mech: Mechanism, log: Log) -> None:
    """Refuse units that were declared of joints that cannot have them.

    Raises:
        FitError: names the joint, and the joints that can.
    """
    kinds = dict(zip(mech.joint_names, mech.joint_types, strict=True))
    for name, unit in log.units.items():
        by = dict.fromkeys(kinds, unit) if isinstance(unit, str) else unit
        for joint, its in by.items():
            if joint in kinds and not _has(kinds[joint], name, its):
                fit = {x: u for x, u in by.items() if x in kinds and _has(kinds[x], name, u)}
                told = "".join(f" --unit {name}.{x}={u}" for x, u in fit.items())
                raise FitError(
                    f"{log.name}: {name} was declared in {its}, and joint {joint!r} is {kinds[joint].name}.",
                    "Angles are of joints that turn, lengths of those that slide.",
                    f"Declare them by joint, units={{{name!r}: {fit}}} or{told or ' none'}; "
                    "others are in SI units.",
                )


def refuse_degrees(mech: Mechanism, log: Log, q: Array, tau: Array) -> None:
    """Refuse positions of joints without limits in degrees, as far as gravity tells them.

    Args:
        mech: the nominal robot.
        log: what messages name.
        q: some positions, `[samples, num_q]`.
        tau: forces there, `[samples, num_dof]`; nan where none was measured.

    Raises:
        FitError: names the joint.
    """
    tau = np.where(np.isfinite(tau).any(0), tau, 0.0)
    fine = np.isfinite(q).all(1) & np.isfinite(tau).all(1)
    q, tau = q[fine], tau[fine]
    kinds = zip(mech.joint_names, mech.joint_types, strict=True)
    turning = [x for x, kind in kinds if kind.num_q == 1 and kind.coordinate_unit == "rad"]
    far = [
        name for name in turning if len(q) and np.ptp(q[:, mech.q_slice(name)]) > TURNS * 2 * np.pi
    ]
    if not far:
        return
    turned = q.copy()
    for name in far:
        turned[:, mech.q_slice(name)] *= SI_SCALE["deg"]
    as_said, in_degrees = (_by_gravity(mech, x, tau) for x in (q, turned))
    if in_degrees > TOLD and in_degrees > 2 * as_said:
        name, more = far[0], "" if log.qd is None else " --unit qd=deg/s"
        turns = np.ptp(q[:, mech.q_slice(name)]) / 2 / np.pi
        raise FitError(
            f"{log.name}: joint {name!r} moves over {turns:.3g} turns, "
            "and its weight shows that these are degrees.",
            f"Of the forces, gravity explains {100 * in_degrees:.0f} % at degrees, {100 * as_said:.0f} % at "
            "radians.",
            f'Declare the unit, units={{"q": "deg", ...}} or --unit q=deg{more}.',
        )


def _by_gravity(mech: Mechanism, q: Array, tau: Array) -> float:
    """Share of forces that gravity explains: the mean square correlation of those of dofs."""
    at = torch.from_numpy(q).to(mech.device)
    still = at.new_zeros(len(q), mech.num_dof)
    with torch.no_grad():
        weight = inverse_dynamics(mech, at, still, still).cpu().numpy()
    weight, tau = weight - weight.mean(0), tau - tau.mean(0)
    both = np.sqrt(np.square(weight).sum(0) * np.square(tau).sum(0))
    told = both > 1e-12 * np.square(tau).sum(0)
    return float(np.mean(((weight * tau).sum(0)[told] / both[told]) ** 2)) if told.any() else 0.0
