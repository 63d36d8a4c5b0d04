"""Names of bodies and joints of a compiled MuJoCo model, made up where the file has none."""

from __future__ import annotations

from typing import Any

from torchsko.mechanism.welded import WORLD


def body_name(model: Any, b: int) -> str:
    """Name of a body, made up where the file has none."""
    return WORLD if b == 0 else model.body(b).name or f"body{b}"


def joint_names(model: Any, b: int) -> list[str]:
    """Names of the joints of a body, made up where the file has none."""
    first, count = int(model.body_jntadr[b]), int(model.body_jntnum[b])
    body = body_name(model, b)
    return [
        model.joint(j).name or f"{body}_joint" + (f"{j - first}" if count > 1 else "")
        for j in range(first, first + count)
    ]


def all_joint_names(model: Any) -> list[str]:
    """Names of all joints, in MuJoCo's order."""
    return [name for b in range(1, model.nbody) for name in joint_names(model, b)]
