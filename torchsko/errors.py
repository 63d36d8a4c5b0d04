"""Exceptions of torchsko. Each has three fields: what is wrong, why it matters, and advice."""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Self

import torch

_INTERNAL_FOLDERS = tuple(
    f"{folder}{os.sep}" for folder in (Path(__file__).parent, Path(torch.__file__).parent)
)
"""Folders whose frames `caller_stack_level` skips."""

MAX_LISTED_NAMES = 12
"""Names that a message lists in full."""

Fields = tuple[str, str, str]
"""The fields of an error: what, why, advice."""


class TorchskoError(ValueError):
    """Base class of every error that torchsko raises on bad input.

    Attributes:
        what: what is wrong, with the name and the value at fault.
        why: why that is an error; empty where it is obvious.
        advice: what the user can type instead; empty where there is no remedy.
    """

    def __init__(self, what: str, why: str = "", advice: str = "") -> None:
        # No call of super().__init__: Dynamo cannot trace it, and BaseException.__new__ has set args.
        self.what, self.why, self.advice = what, why, advice

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.why, self.advice) if part)

    def located(self, place: str) -> Self:
        """A copy of this error that names the place of the fault first, such as a file."""
        return type(self)(f"{place}: {self.what}", self.why, self.advice)


class TreeError(TorchskoError):
    """The topology is not a tree: it has a cycle, a second parent, an unknown parent or a duplicate name."""


class ShapeError(TorchskoError):
    """The shape or dtype of a tensor does not fit the model."""


class MechanismError(TorchskoError):
    """The robot description is invalid: a bad parameter, an unknown name or a singular hinge."""


class RobotFileError(TorchskoError):
    """A robot file cannot be read. The message names the faulty element."""


class RobotFileWarning(UserWarning):
    """A robot file has faults, or parts of its dynamics are not modeled. The message names them."""


class FusedError(TorchskoError):
    """A function cannot be traced, or its kernel cannot be built."""


class CompilerError(FusedError):
    """No C++ compiler was found, or compilation failed."""


class MissingExtraError(TorchskoError, ImportError):
    """An optional dependency is not installed. The message names the extra to install."""


class SingularError(TorchskoError):
    """A matrix to be inverted is singular. The message names the samples and the alternatives."""


class FitError(TorchskoError):
    """Measurements or options do not permit a fit. The message names the field, sample and joint."""


class NonFiniteError(TorchskoError):
    """A rollout produced values that are not finite. The message names the step, sample and joint."""


def name_list(names: Sequence[str]) -> str:
    """Names separated by commas; beyond `MAX_LISTED_NAMES` only the number of further names."""
    more = len(names) - MAX_LISTED_NAMES
    return ", ".join(names[:MAX_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def unknown_name(
    kind: str,
    name: Hashable,
    known: Sequence[str],
    advice: str = "Use one of these names exactly.",
) -> Fields:
    """Fields of the error for an unknown name, with the most similar known names.

    Args:
        kind: noun for the named objects, such as "joint".
        name: the unknown name.
        known: all valid names.
        advice: what the user can type instead.
    """
    import difflib  # imported here: only an error needs it

    few = len(known) <= MAX_LISTED_NAMES
    similar = known if few else difflib.get_close_matches(str(name), known, n=3)
    shown = list(similar) or list(known[:MAX_LISTED_NAMES])
    partial = "" if len(shown) == len(known) else ", among them"
    return (
        f"no {kind} is named {name!r}.",
        f"There are {len(known)}{partial}: {', '.join(map(repr, shown))}.",
        advice,
    )


def caller_stack_level() -> int:
    """The `stacklevel` of `warnings.warn` at which the code outside this package and PyTorch stands."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INTERNAL_FOLDERS):
        frame, level = frame.f_back, level + 1
    return level
