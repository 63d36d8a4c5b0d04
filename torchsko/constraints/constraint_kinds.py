"""Kinds of constraints by name: the object `KIND` of each file of this package that has one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from torchsko import constraints
from torchsko.constraints.row_kinds import FrameRows, JointRows
from torchsko.errors import MechanismError, unknown_name

_FILES = [
    import_module(f"{constraints.__name__}.{module.name}")
    for module in iter_modules(constraints.__path__)
    if module.name != __name__.rpartition(".")[2]
]

KINDS: dict[str, FrameRows | JointRows] = {
    file.KIND.name: file.KIND for file in _FILES if hasattr(file, "KIND")
}
"""Every kind of constraint by name."""

SYNONYMS = {synonym: kind.name for kind in KINDS.values() for synonym in kind.synonyms}
"""Further names of kinds."""

SOFT_SYNONYMS = SYNONYMS | {
    synonym: kind.name for kind in KINDS.values() for synonym in kind.soft_synonyms
}
"""Further names of kinds as soft constraints."""


def constraint_kind(name: str) -> FrameRows | JointRows:
    """The kind of constraint with a name or synonym.

    Raises:
        MechanismError: when there is none.
    """
    name = SYNONYMS.get(name, name)
    if name not in KINDS:
        raise MechanismError(*unknown_name("kind of constraint", name, (*KINDS, *SYNONYMS)))
    return KINDS[name]


def soft_kind(name: str) -> FrameRows | JointRows | None:
    """The kind with a name or synonym as a soft constraint; None if there is none."""
    kind = KINDS.get(SOFT_SYNONYMS.get(name, name))
    if kind is None:
        return None
    soft = kind.soft
    assert isinstance(soft, FrameRows | JointRows)
    return soft
