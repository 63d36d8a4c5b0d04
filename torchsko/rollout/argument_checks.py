"""Whether the numbers and the method of a rollout are some: each is refused by its name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from numbers import Real
from operator import index
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module

from torchsko.errors import ShapeError, TorchskoError, unknown_name
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.binomial import Binomial
from torchsko.rollout.integrators import INTEGRATORS
from torchsko.rollout.step import Step
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import is_expandable


def as_integer(x: Any) -> int | None:
    """A whole number, also one of numpy, as an int; None of what is none."""
    if isinstance(x, bool) or (isinstance(x, Tensor) and x.dtype == torch.bool):
        return None
    if isinstance(x, int | torch.SymInt):
        return x  # type: ignore[return-value]
    try:
        return index(x)
    except (TypeError, RuntimeError):
        return None


def as_number(x: Any) -> float | None:
    """A number as it is, also one of numpy; None of what is none."""
    known = isinstance(x, float | int | torch.SymFloat | torch.SymInt) or isinstance(x, Real)
    return x if known and not isinstance(x, bool) else None  # type: ignore[return-value]


def check_counts(
    steps: Any, every: Any, checkpoint: Any, truncate: Any
) -> tuple[int, int, int | Binomial | None, int | None]:
    """The whole numbers of a rollout, as ints.

    Args:
        steps: see `torchsko.rollout`, as for all others.
        every: likewise.
        checkpoint: likewise.
        truncate: likewise.

    Raises:
        TorchskoError: names the one that is out of range, or no whole number.
    """
    kept: Any = checkpoint
    if isinstance(checkpoint, Binomial):
        states = _whole("checkpoint", checkpoint, checkpoint.states, 0, "Binomial(20), or None")
        kept = Binomial(states)
    elif checkpoint is not None:
        kept = _whole("checkpoint", checkpoint, checkpoint, 1, "20, Binomial(20), or None")
    if truncate is not None:
        truncate = _whole("truncate", truncate, truncate, 1, "50, or None")
    return (
        _whole("steps", steps, steps, 0, "500"),
        _whole("every", every, every, 1, "1"),
        kept,
        truncate,
    )


def _whole(name: str, given: Any, x: Any, least: int, advice: str) -> int:
    found = as_integer(x)
    if found is None or found < least:
        raise TorchskoError(
            f"{name} is {given!r}.",
            "Time runs forward, in whole steps.",
            f"Pass {name}={advice}, say.",
        )
    return found


def check_dt(mech: Mechanism, dt: Any, batch: tuple[int, ...] | None, *, backward: bool) -> None:
    """Refuse a time step that is none; the value of a tensor where it is free to read.

    Args:
        mech: the mechanism.
        dt: a number [s], or a tensor.
        batch: what a tensor's shape has to expand to; None: it has none.
        backward: whether time may run back.

    Raises:
        ShapeError: a tensor of another shape or dtype.
        TorchskoError: what is no number, or none above 0.
    """
    if not isinstance(dt, Tensor):
        x = as_number(dt)
        fits = x is not None and 0 < (abs(x) if backward else x) < math.inf
    else:
        _check_tensor(mech, dt, batch)
        read = concrete_values(dt)
        size = None if read is None else abs(read) if backward else read
        fits = size is None or bool(((size > 0) & (size < math.inf)).all())
    if not fits:
        told = "less than 0 back in time" if backward else "above 0: time runs forward"
        raise TorchskoError(
            f"dt is {dt!r}.",
            f"A time step is a finite number of seconds, {told}.",
            "Pass dt=2e-3, say.",
        )


def check_start(t0: Any) -> None:
    """Refuse a time of a start that is none.

    Raises:
        TorchskoError: what is no finite number.
    """
    x = as_number(t0)
    if x is None or not -math.inf < x < math.inf:
        raise TorchskoError(
            f"t0 is {t0!r}.",
            "Time at the start is a finite number of seconds.",
            "Pass t0=0.0, say.",
        )


def check_memory_steps(steps: int, every: int) -> None:
    """Refuse a memory that would be of a later time than the last state.

    Raises:
        TorchskoError: when the last step gives no state.
    """
    if steps % every:
        raise TorchskoError(
            f"memory= was given with {steps} steps, of which every={every} leaves the last state out.",
            "The memory that a rollout ends with is that of its last state.",
            f"Pass steps={steps // every * every or every}, say.",
        )


def _check_tensor(mech: Mechanism, dt: Tensor, batch: tuple[int, ...] | None) -> None:
    """Refuse a tensor that is no time step by shape or dtype."""
    if batch is None:
        if dt.ndim:
            raise ShapeError(
                f"dt has shape {list(dt.shape)}.",
                "The samples of a rollout take one time step.",
                "Pass a number, or a tensor of shape [], and roll out once for each.",
            )
    elif not is_expandable(tuple(dt.shape), tuple(batch)):
        raise ShapeError(
            f"dt has shape {list(dt.shape)}, the state the batch dimensions {list(batch)}.",
            "A time step is a number, or one for each sample.",
            f"Pass a float, or a tensor of shape {list(batch)}.",
        )
    if dt.dtype != mech.dtype:
        raise ShapeError(
            f"dt is {dt.dtype}, the mechanism {mech.dtype}.",
            "Nothing is cast in silence.",
            f"Pass dt.to({mech.dtype}), or a number.",
        )


def check_method_name(method: Any, function: str) -> None:
    """Refuse a method that is none of those with a name.

    Raises:
        TorchskoError: when no integrator has that name.
    """
    if not isinstance(method, str):
        name = getattr(method, "__name__", type(method).__name__)
        raise TorchskoError(
            f"method is {name}, which has no name among the integrators.",
            f"The steps that {function} takes are known by name; rollout alone takes others.",
            f"Pass one of {', '.join(map(repr, INTEGRATORS))}.",
        )
    if method not in INTEGRATORS:
        raise TorchskoError(*unknown_name("method", method, tuple(INTEGRATORS)))


def resolve_step(method: Any) -> Step:
    """The step of a method of `torchsko.rollout`.

    Raises:
        TorchskoError: when no integrator has that name, or it is no step.
    """
    if isinstance(method, str):
        if method not in INTEGRATORS:
            raise TorchskoError(*unknown_name("method", method, tuple(INTEGRATORS)))
        return INTEGRATORS[method]
    if not (callable(method) and accepts_arguments(method, 6)):
        name = getattr(method, "__name__", None)
        made = f"method={name}(), where it makes a step, or " if callable(method) and name else ""
        raise TorchskoError(
            f"method is {name or repr(method)}, which is no step.",
            "A step is a function of (mech, accelerate, t, q, qd, dt), or the name of one.",
            f"Pass {made}one of {', '.join(map(repr, INTEGRATORS))}.",
        )
    return cast(Step, method)


def accepts_arguments(fn: Callable[..., Any], count: int) -> bool:
    """Whether a function, or a module's forward, can be called with so many arguments."""
    if torch.compiler.is_compiling():  # which cannot look at signatures
        return True
    if isinstance(fn, type):
        return False
    try:
        inspect.signature(fn.forward if isinstance(fn, Module) else fn).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some functions in C have none
        return True
    return True
