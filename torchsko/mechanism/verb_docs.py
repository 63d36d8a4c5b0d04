"""Docstrings of verbs: lines that common arguments share are written once, here.

The docstring of a verb in the source has what is particular to it. `full_docstring` adds the arguments and
errors below in the order of the signature, so that `help` shows all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from torchsko.mechanism.state import SHAPES

F = TypeVar("F", bound=Callable[..., Any])

ARGUMENTS: dict[str, str] = {
    "mech": "the mechanism, or a layer or fused mechanism, which provides one.",
    "q": "configuration, `[*batch, num_q]`.",
    "qd": "velocity, `[*batch, num_dof]` [rad/s or m/s].",
    "qdd": "acceleration, `[*batch, num_dof]` [rad/s^2 or m/s^2].",
    "tau": "joint forces, `[*batch, num_dof]` [N m or N].",
    "f_ext": "external force on each body, `[*batch, num_bodies, 6]`, in the body frame at its origin,\n"
    "        [moment; force] [N m, N].",
    "frames": "names from ``mech.frame_names``, `Frame` of your own, or one of these.",
    "reference": '"body", the frame\'s own axes at its origin; "world", the inertial frame\'s axes at the\n'
    "        inertial origin; or \"mixed\", the inertial frame's axes at the frame's origin.",
    "relative_to": "a frame that moves, in the role of the inertial frame; None for the inertial frame.",
    "active": "mask of the constraints, `[*batch, constraints]`, 1 or True where they are active; all are\n"
    "        without it.",
    "classical": "add omega x v to the linear part.",
}
"""Documentation of common arguments by name."""


def documented(function: F) -> F:
    """Complete the docstring of a function that checks its tensors itself; `verb` does it for verbs."""
    arguments = inspect.signature(function).parameters
    tensors = [name for name in arguments if name in SHAPES]
    function.__doc__ = full_docstring(function.__doc__ or "", [*arguments], tensors)
    return function


def full_docstring(text: str, arguments: Collection[str], tensors: Collection[str]) -> str:
    """The docstring of a verb, with the lines of its common arguments and of the errors that they raise.

    Args:
        text: docstring in the source, in Google's style. Lines that it has for an argument or error remain.
        arguments: names of all arguments, in the order of the signature.
        tensors: names of the arguments that are tensors, whose shapes are checked.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    errors = {}
    if "frames" in arguments:
        unknown = ", or an unknown reference" if "reference" in arguments else ""
        errors["MechanismError"] = f"on an unknown frame, or none{unknown}."
    if tensors:
        mask = ", or the mask the constraints" if "active" in arguments else ""
        errors["ShapeError"] = f"when a shape or dtype does not fit the mechanism{mask}."
    common = {name: ARGUMENTS[name] for name in arguments if name in ARGUMENTS}
    _add_entries(paragraphs, "Args:", common, arguments)
    _add_entries(paragraphs, "Raises:", errors, errors)
    return "\n\n".join(paragraphs)


def _add_entries(
    paragraphs: list[str], title: str, common: Mapping[str, str], order: Collection[str]
) -> None:
    """Add entries to a section that has none of their names, in this order and before all others."""
    heads = [paragraph.partition("\n")[0] for paragraph in paragraphs]
    entries = {name: f"    {name}: {text}" for name, text in common.items()}
    if title in heads:
        at, name = heads.index(title), ""
        for line in paragraphs.pop(at).splitlines()[1:]:
            if line[4] != " ":
                name = line.partition(":")[0].strip()
                entries[name] = line
            else:
                entries[name] += f"\n{line}"
    elif "Returns:" in heads:
        at = heads.index("Returns:") + (title == "Raises:")
    else:
        at = len(paragraphs)
    names = [*(name for name in order if name in entries), *(n for n in entries if n not in order)]
    if names:
        paragraphs.insert(at, "\n".join([title, *(entries[name] for name in names)]))
