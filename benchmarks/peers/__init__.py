"""The contestants: for each a module with ``NAME`` and ``enter(case)``, its entries for a case.

``enter`` raises `cases.MissingPeerError`, with the reason, where the library is not installed or does not
build; that is a line in the report, not an error.
"""

from __future__ import annotations

import importlib
from types import ModuleType

MODULES = (
    "torchsko_eager",
    "torchsko_fused",
    "pinocchio_cpp",
    "mujoco_c",
    "adam_torch",
    "frax_jax",
    "bard_torch",
)


def peer(name: str) -> ModuleType:
    """A contestant's module."""
    return importlib.import_module(f"peers.{name}")
