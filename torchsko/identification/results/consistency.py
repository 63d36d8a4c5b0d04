"""Checks of a loaded fit: shapes and values of its numbers, and agreement with the robot file beside it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from torchsko.errors import RobotFileWarning, caller_stack_level
from torchsko.identification.results.fit_result import FitResult
from torchsko.mechanism.mechanism import Mechanism

TOLERANCE = 1e-6
"""Relative rounding error of numbers in a robot file."""


def other_joints(mech: Mechanism, joints: Sequence[str]) -> str:
    """Name the joints that a fit was saved with if those of a robot differ; empty otherwise."""
    if list(mech.tree_joint_names) == list(joints):
        return ""
    return f"its joints are {', '.join(map(str, joints[:8]))}"


def inconsistency(fit: FitResult) -> str:
    """Describe the first inconsistency of a loaded fit; empty if there is none."""
    mech, base = fit.mechanism, len(fit.base)
    inertial = 10 * mech.num_bodies
    shapes = {
        "phi": (fit.phi, (inertial,)), "value": (fit.value, (base,)), "deviation": (fit.deviation, (base,)),
        "covariance": (fit.covariance, (base, base)),
        **{f"phi of {name!r}": (x.phi, (inertial,)) for name, x in fit.references.items()},
        "the matrix of base parameters": (fit.base.matrix, (base, inertial)),
        **{f"the error of {name!r}": (x, (mech.num_dof,)) for name, x in fit.errors.items()},
    }  # fmt: skip
    for name, (x, shape) in shapes.items():
        if tuple(x.shape) != shape:
            return f"{name} has shape {list(x.shape)}, not {list(shape)}"
    for name in ("phi", "value"):
        if not bool(getattr(fit, name).isfinite().all()):
            return f"{name} is not finite"
    for model in (fit, fit.memory or fit):
        for name in ("terms", "numbers", "deviations"):
            sizes = [len(x) for x in getattr(model, name)]
            if sizes != [len(x) for x in model.terms] or len(sizes) != mech.num_dof:
                return f"{name} do not have one row for each of {mech.num_dof} dofs"
    for name in ("nominal", "mechanism"):
        if not bool((getattr(fit, name).mass >= 0).all()):
            return f"a mass of its {name} robot is negative or nan"
    return ""


def warn_of_edits(robot: Path, from_file: Mechanism, from_fit: Mechanism) -> None:
    """Warn if the robot file beside a fit was edited; the numbers of the fit are used."""
    for field in ("mass", "com", "inertia"):
        mine, edited = getattr(from_fit, field), getattr(from_file, field)
        difference = (mine - edited).abs()
        difference = difference.flatten(1) if mine.ndim > 1 else difference[:, None]
        different = (difference > TOLERANCE * mine.abs().max()).any(1)
        if bool(different.any()):
            name = from_file.body_names[int(different.int().argmax())]
            warnings.warn(
                f"{robot}: {field} of body {name!r} differs from fit.pt.\n"
                "The fit uses the numbers of fit.pt, and the tree, names and frames of the robot file.\n"
                f"Use ts.load({str(robot)!r}) for the numbers of the file.",
                RobotFileWarning,
                stacklevel=caller_stack_level(),
            )
            return
