"""Exceptions of torchsko. Each has three fields: what is wrong, why it matters, and advice."""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path

import torch

_NOT_THE_CALLER = tuple(
    f"{folder}{os.sep}" for folder in (Path(__file__).parent, Path(torch.__file__).parent)
)


class TorchskoError(ValueError):
    """Base class of every error that torchsko raises on bad input.

    Attributes:
        what: what is wrong, with the name and the value at fault.
        why: why that is an error; empty where it is obvious.
        advice: what the user can type instead; empty where there is no remedy.
    """

    def __init__(self, what: str, why: str = "", advice: str = "") -> None:
        super().__init__(what, why, advice)
        self.what, self.why, self.advice = what, why, advice

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.why, self.advice) if part)


class TreeError(TorchskoError):
    """A topology that is no tree: a cycle, two parents, an unknown parent, a duplicate name."""


class ShapeError(TorchskoError):
    """A tensor whose shape or dtype does not fit the model."""


class MechanismError(TorchskoError):
    """A robot description that is no mechanism: bad parameter, unknown name, singular hinge."""


class RobotFileError(TorchskoError):
    """A robot file that cannot be read; names the element at fault."""


class RobotFileWarning(UserWarning):
    """A robot file loaded in spite of faults; names them, and what was done about each."""


class FusedError(TorchskoError):
    """A function that cannot be traced, or a kernel that cannot be built."""


class CompilerError(FusedError):
    """There is no C++ compiler on this machine, or it failed."""


class MissingExtraError(TorchskoError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class SingularError(TorchskoError):
    """A matrix that has to be inverted is singular; names the samples, says what else there is."""


class FitError(TorchskoError):
    """Measurements or options from which nothing can be fitted; names the field, sample and joint."""


class NonFiniteError(TorchskoError):
    """A rollout that left the finite numbers; names step, sample and joint."""


FEW = 12
"""Names that a message lists; of more the near ones."""


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")


def unknown_name(
    kind: str,
    name: Hashable,
    known: Sequence[str],
    advice: str = "Use one of these names exactly.",
) -> str:
    """Message for a name that is none of the known ones: the near ones, then what to type."""
    import difflib  # only ever needed on the way to an error

    near = known if len(known) <= FEW else difflib.get_close_matches(str(name), known, n=3)
    told = list(near) or list(known[:FEW])
    said = "" if len(told) == len(known) else ", among them"
    return (
        f"no {kind} is named {name!r}.\n"
        f"There are {len(known)}{said}: {', '.join(map(repr, told))}.\n"
        f"{advice}"
    )


def level_of_caller() -> int:
    """How many frames above the one that asks the code is that called this package, or PyTorch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_CALLER):
        frame, level = frame.f_back, level + 1
    return level
