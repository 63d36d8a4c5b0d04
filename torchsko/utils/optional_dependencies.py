"""Imports of optional dependencies."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from torchsko.errors import MissingExtraError

DISTRIBUTIONS = {"PIL": "pillow", "collada": "pycollada"}
"""Package that installs a module, where the two names differ."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: name to import.
        extra: the extra of torchsko that installs it.

    Returns:
        The module.

    Raises:
        MissingExtraError: if it is not installed; the advice is the command that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        name = DISTRIBUTIONS.get(missing.name or "", missing.name)
        raise MissingExtraError(
            f"{missing.name} is not installed.",
            f"The optional extra {extra!r} of torchsko contains it.",
            f'Type pip install {name}, or, in a clone of torchsko, pip install ".[{extra}]".',
        ) from None
