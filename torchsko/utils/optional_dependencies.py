"""Optional dependencies: imported where they are needed, named where they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from torchsko.errors import MissingExtraError

DISTRIBUTIONS = {"PIL": "pillow", "collada": "pycollada"}
"""What installs a module, where it is called otherwise."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: name to import.
        extra: the extra of torchsko that installs it.

    Returns:
        The module.

    Raises:
        MissingExtraError: when it is not installed; says what to type.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        name = DISTRIBUTIONS.get(missing.name or "", missing.name)
        raise MissingExtraError(
            f"{missing.name} is not installed.",
            f"It comes with the extra {extra!r} of torchsko, which is not needed elsewhere.",
            f'Type pip install {name}, or, in a clone of torchsko, pip install ".[{extra}]".',
        ) from None
