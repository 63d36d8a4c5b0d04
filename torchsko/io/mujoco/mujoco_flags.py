"""What a compiled MuJoCo model switches off: ``<option><flag spring="disable"/>`` and the like.

Reference: MuJoCo documentation, "XML reference" (option/flag).
"""

from __future__ import annotations

from typing import Any

from torchsko.utils.optional_dependencies import require

CONSTRAINTS = ("equality", "frictionloss", "limit")
"""What the flag ``constraint`` switches off besides contact, as flags of their own do."""

PASSIVE = ("spring", "damper")
"""What acts by itself; with both off, MuJoCo has no passive force at all, of weights and fluids neither."""

HONOURED = ("constraint", "gravity", "clampctrl", "actuation", *CONSTRAINTS, *PASSIVE)
"""Flags that say what acts; others say how MuJoCo solves, integrates and looks for contact."""


def switched_off(model: Any) -> set[str]:
    """The flags of a model that say "disable", and those that follow from them."""
    bits, off = require("mujoco", "mjcf").mjtDisableBit, int(model.opt.disableflags)
    found = {
        name.removeprefix("mjDSBL_").lower()
        for name, bit in bits.__members__.items()
        if name.startswith("mjDSBL_") and off & int(bit)
    }
    if "constraint" in found:
        found |= set(CONSTRAINTS)
    return found | set(PASSIVE) if "passive" in found else found  # one flag for both, before 3.3.6


def without_passive(model: Any) -> bool:
    """Whether no passive force acts at all."""
    return switched_off(model) >= set(PASSIVE)
