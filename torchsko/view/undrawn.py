"""What of a robot is not drawn, said to who looks at it."""

from __future__ import annotations

from collections.abc import Sequence

from torchsko.view.scene import Scene

TOLD = 12
"""Shapes that are named; of more their number is told."""


def told(scenes: Sequence[Scene]) -> str:
    """What of some robots is not drawn, a line each, and what to type; empty where all is."""
    missing = [line for scene in scenes for line in scene.missing]
    advice = dict.fromkeys(line for scene in scenes for line in scene.advice)
    lines = [f"not drawn: {line}" for line in missing[:TOLD]]
    lines += [f"and {len(missing) - TOLD} more" for _ in missing[TOLD : TOLD + 1]]
    return "\n".join([*lines, *list(advice)[:TOLD]])
