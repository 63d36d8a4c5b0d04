"""Saving and loading of fits: tensors, numbers and names, which are loaded without execution of code."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from torchsko.errors import FitError, RobotFileError
from torchsko.identification.diagnostics.findings import Finding
from torchsko.identification.friction import Term, term_classes
from torchsko.identification.results.consistency import inconsistency, other_joints, warn_of_edits
from torchsko.identification.results.fit_result import FitInfo, FitResult
from torchsko.identification.results.reference_models import MemoryModel, ReferenceModel
from torchsko.identification.results.robot_file import ROBOTS, Folders
from torchsko.identification.uncertainty.prior_covariance import MassUncertainty
from torchsko.identification.uncertainty.residuals import Residuals
from torchsko.io.loading.files import load
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.atomic_write import temporary_path
from torchsko.verbs.base_parameters import BaseParameters

AnyFit = TypeVar("AnyFit", bound=FitResult)

VERSION = 7
"""Version of the format of fit.pt."""

PLAIN = (
    "phi",
    "numbers",
    "deviations",
    "value",
    "deviation",
    "covariance",
    "condition",
    "errors",
)
"""Fields of a fit that are tensors and numbers."""


def write_fit(fit: FitResult, path: Path) -> None:
    """Write the numbers of a fit; an old file stays until the new one is complete."""
    part = temporary_path(path)
    try:
        # An open file, because torch.save refuses the names of hidden files without a suffix.
        with part.open("wb") as file:
            torch.save(pack(fit), file)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def pack(fit: FitResult) -> dict[str, Any]:
    """A fit as tensors, numbers, strings and containers of them, which `torch.load` reads without code."""
    return {
        "version": VERSION,
        **{name: getattr(fit, name) for name in PLAIN},
        "terms": _of_terms(fit.terms),
        "references": {name: (x.phi, _of_terms(x.terms), x.numbers) for name, x in fit.references.items()},
        "memory": _of_memory(fit.memory),
        "masses": None if fit.masses is None else dataclasses.asdict(fit.masses),
        "base": dataclasses.asdict(fit.base),
        "residuals": {f.name: getattr(fit.residuals, f.name) for f in dataclasses.fields(fit.residuals)},
        "info": dataclasses.asdict(fit.info),
        "findings": [dataclasses.asdict(x) for x in fit.findings],
        "nominal": _numbers(fit.nominal),
        "mechanism": _numbers(fit.mechanism),
        "joints": list(fit.mechanism.tree_joint_names),
    }  # fmt: skip


def _numbers(mech: Mechanism) -> dict[str, torch.Tensor]:
    # A new file has a frame for the inertial frame; frames change no force.
    names = (name for name in PARAMETERS if not name.startswith("frame_"))
    return {name: getattr(mech, name).detach().clone() for name in names}


def _of_terms(terms: Sequence[Sequence[Term]]) -> list[list[tuple[str, dict[str, float]]]]:
    return [[_of_term(term) for term in some] for some in terms]


def _terms(kept: list[list[tuple[str, dict[str, float]]]]) -> tuple[tuple[Term, ...], ...]:
    return tuple(tuple(_term(*term) for term in some) for some in kept)


def _of_memory(memory: MemoryModel | None) -> tuple[Any, ...] | None:
    """Estimates of a model with memory."""
    if memory is None:
        return None
    return memory.phi, _of_terms(memory.terms), memory.numbers, memory.deviations


def _memory(kept: tuple[Any, ...] | None) -> MemoryModel | None:
    """The model with memory of `_of_memory`."""
    if kept is None:
        return None
    phi, terms, numbers, deviations = kept
    return MemoryModel(phi, _terms(terms), numbers, deviations)


def _of_term(term: Term) -> tuple[str, dict[str, float]]:
    name = type(term).__name__
    if term_classes().get(name) is not type(term):
        raise FitError(
            f"another class of terms is named {name!r}, too.",
            "A saved fit stores the class names of its terms, so these must be unique.",
            "Rename your class.",
        )
    return name, dataclasses.asdict(term)


def _term(name: str, shape: dict[str, float]) -> Term:
    classes = term_classes()
    if name not in classes:
        raise FitError(
            f"the fit has a term {name!r}, whose class is not defined.",
            "The file stores the name of the class and its parameters, not its code.",
            f"Import the module that defines {name} first.",
        )
    return classes[name](**shape)


def load_fit(
    kind: type[AnyFit],
    folder: Path,
    robot: MechanismLike | None = None,
    mesh_path: Folders | None = None,
) -> AnyFit:
    """Load a fit from a folder.

    The tree, names and frames are those of the robot file, or of `robot`, all numbers those of fit.pt. If
    inertial parameters of both files differ, there is a warning.

    Raises:
        FitError: when the folder has no fit, or fit.pt is incomplete or has another format version.
    """
    path = folder / "fit.pt"
    file = next((folder / x for x in ROBOTS if (folder / x).is_file()), None)
    if not path.is_file():
        raise FitError(
            f"{os.fspath(folder)} has no fit.",
            "A fit is a folder with fit.pt and robot.urdf or robot.xml.",
            "Pass the folder that Fit.save or python -m torchsko identify wrote.",
        )
    if file is None and robot is None:
        raise FitError(
            f"{os.fspath(folder)} has fit.pt, but no robot.urdf or robot.xml.",
            "The tree of the robot is not in fit.pt.",
            "Pass the robot that was identified: Fit.load(folder, robot=mech).",
        )
    try:
        data = torch.load(path, weights_only=True)
        version = data["version"]
    except Exception as error:
        raise _invalid_fit(path, error) from error
    if version != VERSION:
        raise FitError(
            f"{path} has the format version {version!r}, this torchsko needs {VERSION}.",
            "The format has changed.",
            "Repeat the fit, or load it with the torchsko that wrote it.",
        )
    try:
        mech = _robot_of(data, file, mesh_path) if robot is None else as_mechanism(robot)
        wrong = other_joints(mech, data["joints"])
        fit = None if wrong else _fit(kind, mech, data)
        wrong = wrong if fit is None else inconsistency(fit)
    except (FitError, RobotFileError):
        raise
    except Exception as error:
        raise _invalid_fit(path, error) from error
    if fit is None or wrong:
        raise FitError(
            f"{path} is not a fit of {file.name if file and robot is None else mech.name}: {wrong}.",
            "The numbers must belong to the robot file beside it, or to the robot that was passed.",
            "Write both again with Fit.save.",
        )
    if file is not None and robot is None:
        warn_of_edits(file, mech, fit.mechanism)
    return fit


def _robot_of(data: dict[str, Any], file: Any, mesh_path: Folders | None) -> Mechanism:
    """The robot of a fit from the robot file beside it."""
    coupled = data["nominal"]["coupling_ratio"].numel() > 0
    return load(
        file, floating_base=_floats(file, data["joints"]),
        mimic="couple" if coupled else "independent", mesh_path=mesh_path,
    )  # fmt: skip


def _invalid_fit(path: Path, error: Exception) -> FitError:
    cause = f"{type(error).__name__} {error}".splitlines()[0][:80].strip()
    return FitError(
        f"{path} is not a fit: {cause}.",
        "Only files of Fit.save can be loaded.",
        "Write it again with Fit.save.",
    )


def _fit(kind: type[AnyFit], mech: Mechanism, data: dict[str, Any]) -> AnyFit:
    references = {
        name: ReferenceModel(phi, _terms(terms), numbers)
        for name, (phi, terms, numbers) in data["references"].items()
    }
    plain = {name: data[name] for name in PLAIN}
    robots = {
        name: mech.replace(
            **data[name],
            has_losses=name == "mechanism",
            has_higher_damping=mech.has_higher_damping,
            has_smooth_friction=bool(data[name]["friction_speed"].any()),
            has_force_offset=bool(data[name]["force_offset"].any()),
            has_gravcomp=mech.has_gravcomp,
            replaced=mech.replaced,
        )
        for name in ("nominal", "mechanism")
    }
    return kind(
        **robots, terms=_terms(data["terms"]), **plain, references=references,
        base=BaseParameters(**data["base"]),
        residuals=Residuals(**data["residuals"]), info=FitInfo(**data["info"]),
        findings=tuple(Finding(**x | {"joints": tuple(x["joints"])}) for x in data["findings"]),
        memory=_memory(data["memory"]),
        masses=None if data["masses"] is None else MassUncertainty(**data["masses"]),
    )  # fmt: skip


def _floats(robot: Path, joints: list[str]) -> bool:
    """True if the robot was loaded with a free joint that its file does not have."""
    return (
        robot.suffix == ".urdf"
        and "root_joint" in joints
        and "root_joint" not in robot.read_text("utf-8")
    )
