"""Python values that a function reads from outside of its arguments: its kernels hold them constant.

Numbers, truth values, texts and arrays of NumPy count that the text of the function, or of one that it
names, asks for by name (``self.gain``, a global, a closure, an entry of a list). They are compared at each
call, so that a kernel never runs with a value that is no longer there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from torchsko.fused.clean import refuse_when_run
from torchsko.fused.sources import (
    CALLED,
    Link,
    Reachable,
    Step,
    held_by,
    is_library,
    names_in,
)
from torchsko.mechanism.mechanism import Mechanism

_VALUES = (bool, int, float, complex, str, np.generic, np.ndarray)
_GONE = (LookupError, AttributeError, TypeError, ValueError)
_MOST = 10_000  # values; of more a kernel could not be made in any case
_ALWAYS = CALLED | frozenset(
    "__class__ __self__ __func__ __kwdefaults__ __wrapped__ forward fget func args keywords".split()
)
_KEPT_APART = frozenset(
    ("torch", "torchsko", "numpy")
)  # what their objects hold is watched elsewhere


class Constants:
    """The values that a function reads now, to be compared with those of later.

    Args:
        fn: the function, or an object that is called.
    """

    leads_to = ()  # see `Reachable`

    def __init__(self, fn: Callable[..., Any]) -> None:
        values = _values(fn)
        # Named now, since torch.compile could not follow how.
        reach = Reachable(fn) if values else None
        self._held = [(_name(reach, link), link, _kept(x)) for link, x in values]

    def changed(self) -> str | None:
        """The name of one that is another now; None where all are as they were."""
        for name, link, x in self._held:
            if not _is_same(link, x):
                return name
        return None


def _name(reach: Reachable | None, link: Link) -> str:
    kind, key = link.step
    if kind == "cell":
        return str(link.holder.__code__.co_freevars[key])
    if kind == "global":
        return str(key)
    if kind == "default":
        return f"a default of {link.holder.__qualname__}"
    holder = reach.name_of(link.holder) if reach else ""
    return f"{holder}.{key}" if kind == "attr" else f"{holder}[{key!r}]"


def _values(root: Any) -> list[tuple[Link, Any]]:
    """The values that are read by name, with their links: found anew until no further names turn up."""
    names: set[str] = set()
    while True:
        known = len(names)
        found = _visit(root, names)
        if len(names) == known:
            return found


def _visit(root: Any, names: set[str]) -> list[tuple[Link, Any]]:
    """Values that are reached from an object by these names; names of functions on the way are added."""
    seen, pending = {id(root): root}, deque([root])
    found: list[tuple[Link, Any]] = []
    while pending and len(found) < _MOST:
        holder = pending.popleft()
        names |= _names_of(holder)
        for step, x in (*held_by(holder), *_by_class(holder, names)):
            if isinstance(x, Mechanism) or not _is_asked_for(holder, step, names):
                continue
            if isinstance(x, _VALUES):
                if isinstance(holder, nn.Module) or not _is_apart(holder):
                    found.append((Link(holder, step), x))
            elif id(x) not in seen:
                seen[id(x)] = x
                pending.append(x)
    return found


def _by_class(x: Any, names: set[str]) -> Iterator[tuple[Step, Any]]:
    """Values that an object has by its class, until it has its own."""
    if is_library(type(x).__module__):
        return
    for name in names.difference(getattr(x, "__dict__", ())):
        value = next((vars(c)[name] for c in type(x).__mro__ if name in vars(c)), None)
        if isinstance(value, _VALUES):
            yield ("attr", name), value


def _is_apart(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] in _KEPT_APART


def _names_of(x: Any) -> set[str]:
    """Names, and texts that may be keys, in a user's function; in what a module of torch runs."""
    if isinstance(x, nn.Module):
        forward = getattr(type(x).forward, "__code__", None)
        return names_in(forward) if forward else set()
    if isinstance(x, FunctionType) and not is_library(x.__globals__.get("__name__")):
        return names_in(x.__code__) | set(_texts_in(x.__code__))
    return set()


def _texts_in(code: CodeType) -> Iterator[str]:
    for x in code.co_consts:
        if isinstance(x, str):
            yield x
        elif isinstance(x, CodeType):
            yield from _texts_in(x)


def _is_asked_for(holder: Any, step: Step, names: set[str]) -> bool:
    kind, key = step
    if isinstance(holder, nn.Module) and key == "training":
        return False  # asked for in `Captured`
    if kind in ("cell", "default") or key in _ALWAYS or key in names:
        return True
    if kind == "item":
        return not isinstance(key, str)
    if isinstance(holder, nn.Module):
        return key in holder._modules  # which may be run by no name
    return _is_apart(holder)  # objects of this package ask for their own


def _kept(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def _is_same(link: Link, x: Any) -> bool:
    try:
        now = link.read()
    except _GONE:
        return False
    if type(now) is not type(x):
        return False
    if not isinstance(x, np.ndarray):
        return bool(now == x or (now != now and x != x))
    if torch.compiler.is_compiling():
        new, old = torch.as_tensor(now), torch.as_tensor(x)
        if new.shape != old.shape or new.dtype != old.dtype:
            return False
        refuse_when_run((new == old).all(), "an array that kernels hold constant has changed.")
        return True
    alike = now.shape == x.shape and now.dtype == x.dtype
    return alike and np.array_equal(now, x, equal_nan=x.dtype.kind in "fc")
