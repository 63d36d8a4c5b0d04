"""What a function reads from outside of its arguments that is no tensor: its kernels hold it constant.

These are Python's numbers, truth values and texts, arrays, functions, robots, how many entries a list has and
which a dict or a set, and the objects that lead to them, as far as the text of the function, or of one that
it names, asks for them by name (``self.gain``, a global, a closure, an entry of a list). They are compared at
each call, so that no kernel runs with one that is no longer there.
"""

from __future__ import annotations

import dis
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import chain, pairwise
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchsko.fused.capture.sources import (
    CALLED,
    GONE,
    Link,
    Reachable,
    Step,
    held_by,
    is_library,
    module_of,
)
from torchsko.fused.tracing.clean import refuse_when_run
from torchsko.mechanism.mechanism import Mechanism

_CHANGING = (np.ndarray, array, bytearray)
_VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, Fraction, Decimal, np.generic),
    *(slice, range, frozenset, torch.dtype, torch.device, *_CHANGING),
)
_CONTAINERS = (list, deque, dict, set)
_MOST = 10_000  # of more no kernel could be made in any case
_ALWAYS = CALLED | frozenset(
    "__class__ __self__ __func__ __kwdefaults__ __wrapped__ forward fget func args keywords".split()
)
_OF_ENTRIES = frozenset(("values", "items"))
_OF_ATTRIBUTES = frozenset(("asdict", "astuple", "vars", "__dict__"))
"""Names by which a text reads all that a dict, or an object, holds, without their own."""
_APART = frozenset(("torch", "torchsko", "numpy"))  # whose objects are watched elsewhere


class _Contents(NamedTuple):
    """A container, and what it had: how many entries, or which."""

    of: Any
    inside: Any


class _Held(NamedTuple):
    """What there was at a link: a value, or an object that is to be the same one."""

    name: str
    link: Link
    kept: Any
    is_value: bool

    def is_same(self) -> bool:
        """Whether it is there still."""
        return (_is_same_value if self.is_value else _is_same_object)(self.link, self.kept)


class Constants:
    """What a function reads now, to be compared with what is there later.

    Args:
        fn: the function, or an object that is called.
        own: names of objects to leave out, because the function makes them itself.
        parts: objects and names of their parts that somebody else compares, by the objects' `id`.
        fixed: tensors that are constants of the kernels, too: those of their robot.
    """

    leads_to = ()  # see `Reachable`

    def __init__(
        self,
        fn: Callable[..., Any],
        own: frozenset[str] = frozenset(),
        parts: frozenset[tuple[int, Any]] = frozenset(),
        fixed: Sequence[Tensor] = (),
    ) -> None:
        links = [
            x
            for x in _links(fn, {id(x) for x in fixed})
            if (id(x[0].holder), x[0].step[1]) not in parts
        ]
        reach = Reachable(fn)
        # Named now, since torch.compile could not follow how.
        held = [
            _Held(_name(reach, link), link, _kept(x), isinstance(x, _VALUES)) for link, x in links
        ]
        self._held = [x for x in held if x.name not in own]

    def changed(self) -> str | None:
        """The name of one that is another now; None where all are as they were."""
        for x in self._held:
            if not x.is_same():
                return x.name
        return None

    def changes(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names of all values that are others now, and of all objects."""
        others = [x for x in self._held if not x.is_same()]
        values = frozenset(x.name for x in others if x.is_value)
        return values, frozenset(x.name for x in others) - values


def _name(reach: Reachable, link: Link) -> str:
    """A link in words, such as ``policy.gain``."""
    kind, key = link.step
    if kind == "cell":
        return str(link.holder.__code__.co_freevars[key])
    if kind == "global":
        return str(key)
    if kind == "default":
        return f"a default of {link.holder.__qualname__}"
    holder = reach.name_of(link.holder)
    return f"{holder}.{key}" if kind == "attr" else f"{holder}[{key!r}]"


def _links(root: Any, fixed: set[int]) -> list[tuple[Link, Any]]:
    """Links to what is read by name, and what they hold: found anew until no further names turn up."""
    names: set[str] = set()
    while True:
        known = len(names)
        found = _visit(root, names, fixed)
        if len(names) == known:
            return _that_matter(found)


def _visit(root: Any, names: set[str], fixed: set[int]) -> list[tuple[Link, Any]]:
    """What is reached from an object by these names; names that functions on the way read are added."""
    seen, pending = {id(root): root}, deque([root])
    found: list[tuple[Link, Any]] = []
    while pending and len(found) < _MOST:
        holder = pending.popleft()
        names |= _names_of(holder)
        for step, x in chain(held_by(holder), _by_class(holder, names)):
            if isinstance(x, Tensor) and id(x) not in fixed:
                continue  # see `Captured`
            if not _is_asked_for(holder, step, names):
                continue
            found.append((Link(holder, step), x))
            if isinstance(x, str):
                names.add(x)  # which getattr may be given
            if not isinstance(x, (*_VALUES, Mechanism, Tensor)) and id(x) not in seen:
                seen[id(x)] = x
                pending.append(x)
    return found


def _that_matter(found: list[tuple[Link, Any]]) -> list[tuple[Link, Any]]:
    """Of links those to values and to what is called, and those on the way there."""
    into: dict[int, list[Link]] = {}
    for link, x in found:
        into.setdefault(id(x), []).append(link)
    ends = [link for link, x in found if _counts(x)]
    leading, pending = set[int](), [link.holder for link in ends if not _is_apart(link.holder)]
    while pending:
        x = pending.pop()
        if id(x) not in leading:
            leading.add(id(x))
            pending += [link.holder for link in into.get(id(x), ())]
    return [
        (link, x)
        for link, x in found
        if not _is_apart(link.holder)
        and (_counts(x) or id(x) in leading)
        and (isinstance(x, _VALUES) or link.holds(x))  # what is made by being read says nothing
    ]


def _counts(x: Any) -> bool:
    """Whether a kernel would be another for another one in its place, by itself."""
    return isinstance(x, (*_VALUES, *_CONTAINERS, Mechanism, Tensor)) or callable(x)


def _names_of(x: Any) -> set[str]:
    """Names, and texts that may be keys, that a user's function reads; what a module of torch does."""
    if isinstance(x, nn.Module):
        forward = getattr(type(x).forward, "__code__", None)
        return set(_read_in(forward)) if forward else set()
    if isinstance(x, FunctionType) and not is_library(x.__globals__.get("__name__")):
        return set(_read_in(x.__code__))
    return set()


def _read_in(code: CodeType) -> Iterator[str]:
    steps = [*dis.get_instructions(code)]
    for step in steps:
        if not step.opname.startswith(("STORE", "DELETE")):
            yield from _texts(step.argval)
    if any(_is_named(x) and y.opname == "GET_ITER" for x, y in pairwise(steps)):
        yield from _OF_ENTRIES  # a loop over something by its name
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from _read_in(x)


def _is_named(step: dis.Instruction) -> bool:
    """Whether an instruction reads something by a name."""
    return step.opname.startswith("LOAD") and step.opname != "LOAD_CONST"


def _texts(x: Any) -> Iterator[str]:
    """A text, or those in a tuple of them that is written out."""
    if isinstance(x, str):
        yield x
    elif isinstance(x, tuple):
        for y in x:
            yield from _texts(y)


def _by_class(x: Any, names: set[str]) -> Iterator[tuple[Step, Any]]:
    """Values that an object has by its class, until it has its own."""
    if is_library(module_of(type(x))):
        return
    for name in names.difference(getattr(x, "__dict__", ())):
        value = next((vars(c)[name] for c in type(x).__mro__ if name in vars(c)), x)
        if isinstance(value, _VALUES):
            yield ("attr", name), value


def _is_apart(x: Any) -> bool:
    """Whether an object is the libraries', whose attributes are no user's, modules apart."""
    return not isinstance(x, nn.Module) and module_of(type(x)).partition(".")[0] in _APART


def _is_asked_for(holder: Any, step: Step, names: set[str]) -> bool:
    kind, key = step
    if isinstance(holder, nn.Module) and key == "training":
        return False  # `Captured` asks for it
    if kind in ("cell", "default") or key in _ALWAYS or key in names:
        return True
    if kind == "item":
        return not isinstance(key, str) or not names.isdisjoint(_OF_ENTRIES)
    if isinstance(holder, nn.Module):
        return key in holder._modules  # which may be run by no name
    if not isinstance(holder, (type, ModuleType, FunctionType)):
        if kind == "attr" and not names.isdisjoint(_OF_ATTRIBUTES):
            return True
    return _is_apart(holder)  # objects of this package ask for their own


def _kept(x: Any) -> Any:
    if isinstance(x, _CONTAINERS):
        return _Contents(x, _inside(x))
    return x.copy() if isinstance(x, np.ndarray) else x[:] if isinstance(x, _CHANGING) else x


def _inside(x: Any) -> Any:
    """What tells that a container has other entries; the entries themselves are looked at one by one."""
    if isinstance(x, set):
        return frozenset(x)
    return tuple(x) if isinstance(x, dict) else len(x)


def _is_same_object(link: Link, x: Any) -> bool:
    if isinstance(x, _Contents):
        return link.holds(x.of) and _inside(x.of) == x.inside
    return link.holds(x)


def _is_same_value(link: Link, x: Any) -> bool:
    try:
        now = link.read()
    except GONE:
        return False
    if now is x:  # which it mostly is; arrays are copies
        return True
    if type(now) is not type(x):
        return False
    if isinstance(x, np.ndarray):
        return _is_same_array(now, x)
    return bool(now == x or (now != now and x != x))


def _is_same_array(now: Any, x: np.ndarray) -> bool:
    if torch.compiler.is_compiling():
        new, old = torch.as_tensor(now), torch.as_tensor(x)
        if new.shape != old.shape or new.dtype != old.dtype:
            return False
        refuse_when_run((new == old).all(), "an array that kernels hold constant has changed.")
        return True
    alike = now.shape == x.shape and now.dtype == x.dtype
    return alike and np.array_equal(now, x, equal_nan=x.dtype.kind in "fc")
