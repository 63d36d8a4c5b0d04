"""Check that functions of a rollout capture no mechanism with batch dimensions.

Kernels evaluate a function for one sample, in which a captured mechanism of many robots has no sample. The
function takes the mechanism of the rollout as its first argument instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from torchsko.actuation.controller import Controller
from torchsko.errors import MechanismError
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.mechanism.dispatch import MechanismLayer, MechanismSource
from torchsko.mechanism.mechanism import Mechanism

MAX_DEPTH = 4
"""Largest number of references from a function to a mechanism that it captures."""


def refuse_batched_captures(mech: Mechanism, **functions: Any) -> None:
    """Refuse functions that capture a mechanism with batch dimensions.

    Args:
        mech: the mechanism of the rollout.
        **functions: by the name of the argument; anything else than functions is ignored.

    Raises:
        MechanismError: names the argument, the mechanism and the variable.
    """
    if is_scalar_form() or torch.compiler.is_compiling():  # the trace of a caller
        return
    for argument, fn in functions.items():
        if not callable(fn) and not isinstance(fn, Controller):
            continue
        found = _find_batched(fn)
        if found is not None:
            name, robot = found
            raise MechanismError(
                f"{argument} captures {name}, the mechanism {robot.name!r} with batch dimensions "
                f"{list(robot.batch_shape)}.",
                "A kernel evaluates the function for one sample, which is a sample of the rollout alone.",
                f"Take the mechanism of the rollout as the first argument: def {argument}(mech, t, q, qd).",
            )


def _find_batched(fn: Any) -> tuple[str, Mechanism] | None:
    """Name and value of a captured mechanism with batch dimensions."""
    seen: set[int] = set()
    level = [("it", fn)]
    for _ in range(MAX_DEPTH + 1):
        below: list[tuple[str, Any]] = []
        for name, x in level:
            if id(x) in seen:
                continue
            seen.add(id(x))
            if isinstance(x, Mechanism | MechanismSource) and not isinstance(x, MechanismLayer):
                robot = x.mechanism()
                if robot.batch_shape:
                    return name, robot
            elif x is not None:
                below += _references(name, x)
        level = below
    return None


def _references(name: str, x: Any) -> Iterator[tuple[str, Any]]:
    """Objects to which an object refers, with their names."""
    if isinstance(x, FunctionType):
        code = x.__code__
        cells: tuple[CellType, ...] = x.__closure__ or ()
        for variable, cell in zip(code.co_freevars, cells, strict=True):
            try:
                yield variable, cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield from ((name, value) for value in (x.__defaults__ or ()))
        yield from (x.__kwdefaults__ or {}).items()
        for variable in code.co_names:
            value = x.__globals__.get(variable)
            if isinstance(value, Mechanism | MechanismSource | FunctionType | partial):
                yield variable, value
    elif isinstance(x, MethodType):
        yield from ((name, x.__self__), (name, x.__func__))
    elif isinstance(x, partial):
        yield from ((name, value) for value in (x.func, *x.args, *x.keywords.values()))
    elif isinstance(x, dict):
        yield from ((f"{name}[{key!r}]", value) for key, value in x.items())
    elif isinstance(x, list | tuple):
        yield from ((f"{name}[{k}]", value) for k, value in enumerate(x))
    elif isinstance(x, torch.nn.Module):
        yield from ((f"{name}.{key}", v) for key, v in vars(x).items() if not key.startswith("_"))
        yield from ((f"{name}.{key}", module) for key, module in x.named_children())
    elif not isinstance(x, type | torch.Tensor) and hasattr(x, "__dict__"):
        yield from ((f"{name}.{key}", value) for key, value in vars(x).items())
