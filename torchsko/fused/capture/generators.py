"""Generators of random numbers of Python and of NumPy, whose draws no operation of PyTorch tells of."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from torchsko.fused.capture.sources import Reachable, names_in


class Generators:
    """How far the generators are that a function may draw from, its own and those of all.

    Other threads draw from those of all, too: where some run, these count only if the function names them.

    Args:
        fn: the function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        reach = Reachable(fn)
        held = [(x, _behind(x)) for x in reach.objects()]
        self._held = [(reach.name_of(x), y) for x, y in held if isinstance(y, _KINDS)]
        self._has_shared = threading.active_count() == 1 or any(map(_names_random, reach.objects()))
        self._before = self._states()

    def drawn(self) -> list[str]:
        """Names of those from which something was drawn meanwhile."""
        return [a[0] for a, b in zip(self._before, self._states(), strict=True) if a != b]

    def _states(self) -> list[tuple[str, Any]]:
        own = [(name, _state(x)) for name, x in self._held]
        if not self._has_shared:
            return own
        return [
            *own,
            ("random", random.getstate()),
            ("numpy.random", _bytes(np.random.get_state())),
        ]


_KINDS = (random.Random, np.random.Generator, np.random.RandomState)


def _names_random(x: Any) -> bool:
    """Whether an object is a module of random numbers, or a function that reads such a name."""
    if isinstance(x, FunctionType):
        return "random" in names_in(x.__code__)
    return x is random or x is np.random


def _behind(x: Any) -> Any:
    """The object of a method of compiled code, such as ``rng.normal``; any other is itself."""
    return getattr(x, "__self__", x) if hasattr(type(x), "__self__") else x


def _state(x: Any) -> Any:
    if isinstance(x, random.SystemRandom):
        return None  # the system keeps it
    if isinstance(x, random.Random):
        return x.getstate()
    return _bytes(x.bit_generator.state if isinstance(x, np.random.Generator) else x.get_state())


def _bytes(state: Any) -> bytes:
    """A state that holds arrays, which have no truth value where they are compared."""
    return pickle.dumps(state)
