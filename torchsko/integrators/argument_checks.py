"""Validation of the arguments of a rollout."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.nn import Module

from torchsko.actuators.law import bind
from torchsko.errors import TorchskoError, unknown_name
from torchsko.integrators.binomial import Binomial
from torchsko.integrators.integrators import INTEGRATORS
from torchsko.integrators.step import Integrator, Step
from torchsko.utils.numbers import as_integer, as_number


def check_counts(
    steps: Any, every: Any, checkpoint: Any, truncate: Any
) -> tuple[int, int, int | Binomial | None, int | None]:
    """Check the integer arguments of a rollout."""
    if isinstance(checkpoint, Binomial):
        states = _integer("checkpoint", checkpoint, checkpoint.states, 0, "Binomial(20), or None")
        checkpoint = Binomial(states)
    elif checkpoint is not None:
        checkpoint = _integer("checkpoint", checkpoint, checkpoint, 1, "20, Binomial(20), or None")
    if truncate is not None:
        truncate = _integer("truncate", truncate, truncate, 1, "50, or None")
    return (
        _integer("steps", steps, steps, 0, "500"),
        _integer("every", every, every, 1, "1"),
        checkpoint,
        truncate,
    )


def _integer(name: str, value: Any, x: Any, least: int, advice: str) -> int:
    count = as_integer(x)
    if count is None or count < least:
        raise TorchskoError(
            f"{name} is {value!r}.",
            f"It is an integer of at least {least}.",
            f"Pass {name}={advice}, say.",
        )
    return count


def check_start(t0: Any) -> None:
    """Check the start time."""
    x = as_number(t0)
    if x is None or not -math.inf < x < math.inf:
        raise TorchskoError(
            f"t0 is {t0!r}.",
            "The start time is a finite number of seconds.",
            "Pass t0=0.0, say.",
        )


def check_memory_steps(steps: int, every: int) -> None:
    """Check that the last step has a row in the result, since the returned memory belongs to the last row."""
    if steps % every:
        raise TorchskoError(
            f"memory= was given with steps={steps}, which is not a multiple of every={every}.",
            "The returned memory belongs to the last returned state.",
            f"Pass steps={steps // every * every or every}, say.",
        )


def step_names(step: Callable[..., Any], names: Sequence[str]) -> tuple[str, ...]:
    """Names of the tensors that a step takes by name."""
    if isinstance(step, Integrator):
        return tuple(name for name in names if name in step.input_names)
    bound = bind(step, 6, names)
    return () if bound is None else bound.names


def resolve_step(method: Any, names: Sequence[str] = ()) -> Step:
    """The integrator of a method of `torchsko.rollout`, with names of tensors that it may take."""
    if isinstance(method, str):
        if method not in INTEGRATORS:
            raise TorchskoError(*unknown_name("method", method, tuple(INTEGRATORS)))
        return INTEGRATORS[method]
    if not (callable(method) and (accepts_arguments(method, 6) or step_names(method, names))):
        name = getattr(method, "__name__", None)
        instance = f"method={name}(), or " if callable(method) and name else ""
        raise TorchskoError(
            f"method is {name or repr(method)}, which is not a step.",
            "A step is a function of (mech, accelerate, t, q, qd, dt), or the name of one.",
            f"Pass {instance}one of {', '.join(map(repr, INTEGRATORS))}.",
        )
    return cast(Step, method)


def accepts_arguments(fn: Callable[..., Any], count: int) -> bool:
    """True if a function, or a module's forward, can be called with `count` positional arguments."""
    if torch.compiler.is_compiling():  # Dynamo cannot trace inspect.signature
        return True
    if isinstance(fn, type):
        return False
    try:
        inspect.signature(fn.forward if isinstance(fn, Module) else fn).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some C functions have no signature
        return True
    return True
