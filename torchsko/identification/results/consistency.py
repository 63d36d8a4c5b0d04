"""Whether the numbers of a fit that was read belong together, and to the robot's file beside them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchsko.errors import RobotFileWarning, caller_stack_level
from torchsko.mechanism.mechanism import Mechanism

if TYPE_CHECKING:
    from torchsko.identification.results.result import Fit

SAME = 1e-6
"""Of the largest: what a number may lose in a robot's file."""


def at_odds(fit: Fit, joints: Sequence[str]) -> str:
    """What of a fit does not belong together, or to its robot; empty where all does.

    Args:
        fit: as it was read.
        joints: of the tree that its numbers are of.
    """
    mech, base = fit.mechanism, len(fit.base)
    if list(mech.tree_joint_names) != list(joints):
        return f"its joints are {', '.join(map(str, joints[:8]))}"
    inertial = 10 * mech.num_bodies
    shapes = {
        "phi": (fit.phi, (inertial,)), "value": (fit.value, (base,)), "deviation": (fit.deviation, (base,)),
        "covariance": (fit.covariance, (base, base)), "least_squares": (fit.least_squares, (base,)),
        "the matrix of base parameters": (fit.base.matrix, (base, inertial)),
        **{f"the error of {name!r}": (x, (mech.num_dof,)) for name, x in fit.errors.items()},
    }  # fmt: skip
    for name, (x, shape) in shapes.items():
        if tuple(x.shape) != shape:
            return f"{name} has shape {list(x.shape)}, not {list(shape)}"
    for name in ("phi", "value"):
        if not bool(getattr(fit, name).isfinite().all()):
            return f"{name} is not finite"
    rows = {"terms": fit.terms, "numbers": fit.numbers, "deviations": fit.deviations}
    for name, some in rows.items():
        if [len(x) for x in some] != [len(x) for x in fit.terms] or len(some) != mech.num_dof:
            return f"{name} are not one row for each of {mech.num_dof} dofs"
    for name in ("nominal", "mechanism"):
        if not bool((getattr(fit, name).mass >= 0).all()):
            return f"a mass of its {name} robot is negative, or no number"
    return ""


def warn_of_edits(robot: Path, mech: Mechanism, kept: Mechanism) -> None:
    """Say where the robot's file was changed by hand: numbers of fit.pt count."""
    for field in ("mass", "com", "inertia"):
        mine, own = getattr(kept, field), getattr(mech, field)
        off = (mine - own).abs().flatten(1) if mine.ndim > 1 else (mine - own).abs()[:, None]
        far = (off > SAME * mine.abs().max()).any(1)
        if bool(far.any()):
            name = mech.body_names[int(far.int().argmax())]
            warnings.warn(
                f"{robot}: {field} of body {name!r} is not the one of fit.pt.\n"
                "Numbers of a fit are those of fit.pt; of the robot's file names, tree and frames count.\n"
                f"Load the file by itself for its own: ts.load({str(robot)!r}).",
                RobotFileWarning,
                stacklevel=caller_stack_level(),
            )
            return
