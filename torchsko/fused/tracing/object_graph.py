"""Objects that a function reaches: its captured tensors with their paths, and Python values.

A function reaches objects through its closure, its defaults, the globals that it names and the object that it
is bound to, and from there through attributes, classes and entries of containers. A path is the sequence of
steps from the function to an object: following it again finds the object that is there now.

Tensors are followed. Python values are constants of a trace, compared where an entry of an object holds them.
Values that no entry holds, such as the state of an iterator, are left to the comparison of results.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import sysconfig
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain
from operator import attrgetter, is_, itemgetter
from pathlib import Path as FilePath
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchsko.contact.contact_tables import ContactTables
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism

Step = tuple[str, Any]
"""Kind ("attr", "cell", "global", "vars" or "item") and key of a step from an object to an entry."""
Path = tuple[Step, ...]
Entries = tuple[Callable[[], Iterable[Any]], Sequence[Step]]
"""A function that reads entries of an object, and the steps to them."""

MAX_ENTRIES = 10_000
"""Entries of objects that are read: comparing so many takes about 0.2 ms a call."""

VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, Fraction, Decimal, np.generic),
    *(slice, range, frozenset, torch.dtype, torch.device, CodeType, ContactTables),
)
"""Types of values, which are compared by their numbers and have no entries."""

GONE = (LookupError, AttributeError, TypeError, ValueError, RuntimeError)
"""Errors raised by a step to an object that is not there any more."""

MISSING = object()
"""In the place of what a path no longer leads to."""

_ARRAYS = (np.ndarray, array, set)  # which are changed in place
_COMPARED = (*VALUES, *_ARRAYS, tuple)
_MEMBERS = ("_parameters", "_buffers", "_modules")
_STATIC = ("fget", "__func__", "func", "args", "keywords", "__self__")
_NAMESPACES = frozenset(("globals", "vars", "eval", "exec"))
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = tuple(
    f"{FilePath(x).parent}{os.sep}"
    for x in (torch.__file__, np.__file__, FilePath(__file__).parents[1])
)


class ObjectGraph:
    """Objects that a function reaches, breadth first, with the Python values found there.

    Objects of this package name the attributes that lead further in ``captured_attributes``.

    Args:
        root: the function, or another object that is called.
        constants: ids of tensors that must stay the same objects; others may be replaced.
        captured: ids of tensors whose values are the first path to them, so that ties are compared.

    Attributes:
        values: all that a program may depend on, by path: numbers, texts, types and keys of objects that have
            entries, objects that have none, and a constant in place of each tensor.
        paths: the first path to each object that is not a number or a text, by its id.
        objects: these objects.
    """

    def __init__(
        self,
        root: Callable[..., Any],
        constants: Collection[int] = (),
        captured: Collection[int] = (),
    ) -> None:
        self.root, self._constants, self._captured = root, constants, captured
        self.values: dict[Path, Any] = {}
        self.paths: dict[int, Path] = {}
        self.objects: list[Any] = []  # keeps the ids valid
        self._expanded: set[tuple[int, frozenset[str]]] = set()
        self._reads: list[Callable[[], Iterable[Any]]] = []
        self._stored: list[Any] = []
        self._arrays: list[tuple[Any, Any]] = []  # and sets
        pending: deque[tuple[Path, Any, frozenset[str]]] = deque([((), root, frozenset())])
        while pending:
            pending.extend(self._visit(*pending.popleft()))

    def _visit(self, path: Path, x: Any, names: frozenset[str]) -> Iterator[tuple[Path, Any, Any]]:
        """Note an object at a path; yields its entries, unless they are known."""
        if isinstance(x, _ARRAYS):
            self.values[path] = copy.copy(x)
            self._arrays.append((x, self.values[path]))
            return
        self.values[path] = x
        if isinstance(x, VALUES):
            return
        if id(x) not in self.paths:
            self.paths[id(x)] = path
            self.objects.append(x)
        first = self.paths[id(x)]
        if isinstance(x, Tensor):
            if id(x) not in self._constants:
                self.values[path] = first if id(x) in self._captured else Tensor
            return
        expansion = id(x), names if isinstance(x, ModuleType) else frozenset()
        if expansion in self._expanded:
            self.values[path] = self.values[first]
            return
        self._expanded.add(expansion)
        sections = [(read, steps, [*read()]) for read, steps in _entries_of(x, names)]
        if len(self._stored) + sum(len(found) for _, _, found in sections) > MAX_ENTRIES:
            return
        if sections and not (isinstance(x, Mechanism) or _is_bound_builtin(x)):
            keys = tuple(step for _, steps, _ in sections for step in steps)
            self.values[path] = type(x), keys[-1:] if isinstance(x, (list, deque)) else keys
        if not isinstance(x, ModuleType):
            names = names_in(x.__code__) if isinstance(x, FunctionType) else frozenset()
        for read, steps, found in sections:
            self._reads.append(read)
            self._stored += found
            for step, y in zip(steps, found, strict=True):
                yield (*path, step), y, names

    def is_unchanged(self) -> bool:
        """True if every entry is the object that it was, and arrays have the same contents."""
        try:
            now = [*chain.from_iterable([read() for read in self._reads])]
        except GONE:
            return False
        if len(now) != len(self._stored) or not all(map(is_, now, self._stored)):
            return False
        return not self._arrays or all(_is_same(x, content) for x, content in self._arrays)

    def changes(self, now: ObjectGraph, ignored: Collection[Path] = ()) -> list[Path]:
        """Paths of values that are others in a later graph of the function."""
        return [
            path
            for path, x in self.values.items()
            if path not in ignored and not _is_same(now.values.get(path, MISSING), x)
        ]

    def name_of_change(self, path: Path, now: ObjectGraph) -> str:
        """A changed value in words; of changed keys the first that is new or gone."""
        old, new = self.values[path], now.values.get(path)
        if isinstance(old, tuple) and isinstance(new, tuple) and old[0] is new[0]:
            path = (*path, *[x for x in (*new[1], *old[1]) if (x in new[1]) != (x in old[1])][:1])
        return self.name(path)

    def tensors(self) -> list[Tensor]:
        """The tensors that the function reaches."""
        return [x for x in self.objects if isinstance(x, Tensor)]

    def name(self, path: Path) -> str:
        """A path in words, such as ``policy.0.weight``."""
        text = ""
        for kind, key in path:
            if kind == "cell":
                text = key[1]
            elif kind == "global" or not text:
                text = str(key)
            elif key == "__defaults__":
                text = f"a default of {text}"
            elif kind == "item":
                text += f"[{key!r}]"
            else:
                text += f".{key}"
        text = text.removesuffix(".__self__").removesuffix(".__code__").removeprefix("__self__.")
        return text.removeprefix("__class__.") or type(self.root).__name__


def follow(holder: Any, path: Path) -> Any:
    """The object at the end of a path, or `MISSING` where a step leads to nothing."""
    try:
        for kind, key in path:
            if kind == "attr":
                holder = getattr(holder, key)
            elif kind == "cell":
                holder = holder.__closure__[key[0]].cell_contents
            elif kind == "global":
                holder = holder.__globals__[key]
            elif kind == "vars":
                holder = vars(holder)[key]
            elif kind == "item":
                holder = holder[key]
    except GONE:
        return MISSING
    return holder


def _is_same(now: Any, old: Any) -> bool:
    """True if values are of one type and equal, nan to nan; other objects are compared by identity."""
    if now is old:
        return True
    if type(now) is not type(old) or not isinstance(now, _COMPARED):
        return False
    if isinstance(now, np.ndarray):
        if now.shape != old.shape or now.dtype != old.dtype:
            return False
        return np.array_equal(now, old, equal_nan=now.dtype.kind in "fc")
    return bool(now == old or (now != now and old != old))


# -- entries -------------------------------------------------------------------------------------


def _entries_of(x: Any, names: frozenset[str]) -> Iterator[Entries]:
    """Entries of an object; of a module those with these names, or that are data."""
    if isinstance(x, FunctionType):
        yield from _of_function(x)
    elif isinstance(x, MethodType):
        yield _of_names(x, ("__self__", "__func__"))
    elif isinstance(x, Mechanism):
        yield _of_names(x, tuple(PARAMETERS))
    elif isinstance(x, (dict, MappingProxyType)):
        yield _of_mapping(x, "item")
    elif isinstance(x, (list, deque, tuple)):
        yield x.__iter__, [("item", k) for k in range(len(x))]
    elif not isinstance(x, (ModuleType, type, logging.Logger)):
        yield from _of_instance(x)
    elif isinstance(x, ModuleType) and not is_library(_file_of(x)):
        yield _of_namespace(vars(x), "attr", names, has_data=True)
    elif isinstance(x, type) and not is_library(_file_of(x)):
        yield _of_names(x, ("__bases__",))
        yield _of_mapping(vars(x), "vars")


def _of_names(x: Any, names: Sequence[str]) -> Entries:
    return _reader(attrgetter, x, names), [("attr", name) for name in names]


def _reader(getter: Any, x: Any, names: Sequence[Any]) -> Callable[[], Iterable[Any]]:
    """A function that reads entries of an object; compiled code reads them where there are several."""
    if not names:
        return tuple
    read = partial(getter(*names), x)
    return read if len(names) > 1 else lambda: (read(),)


def _of_mapping(x: Mapping[Any, Any], kind: str) -> Entries:
    return x.values, [(kind, key) for key in x]


def _of_namespace(
    x: Mapping[str, Any], kind: str, names: frozenset[str], *, has_data: bool
) -> Entries:
    """Entries with these names; with ``has_data`` all others but functions, classes and modules as well."""
    chosen = names & x.keys()
    if has_data:
        inner = (k for k, y in x.items() if not (callable(y) or isinstance(y, ModuleType)))
        chosen |= {k for k in inner if not k.startswith("__")}
    order = sorted(chosen)
    return _reader(itemgetter, x, order), [(kind, name) for name in order]


def _of_function(fn: FunctionType) -> Iterator[Entries]:
    yield _of_names(fn, ("__code__", "__defaults__", "__kwdefaults__"))
    if vars(fn):
        yield _of_mapping(vars(fn), "attr")
    named = enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    steps = [("cell", (k, name)) for k, (name, _) in named]
    steps = [step for step in steps if follow(fn, (step,)) is not MISSING]  # those assigned
    if steps:
        cells = [(fn.__closure__ or ())[key[0]] for _, key in steps]
        yield lambda: [cell.cell_contents for cell in cells], steps
    if not is_library(fn.__code__.co_filename):
        names = names_in(fn.__code__)
        has_data = not names.isdisjoint(_NAMESPACES)
        yield _of_namespace(fn.__globals__, "global", names, has_data=has_data)


def _of_instance(x: Any) -> Iterator[Entries]:
    own = type(x)
    if str(own.__module__).startswith("torchsko.") and hasattr(own, "captured_attributes"):
        yield _of_names(x, own.captured_attributes)
        return
    if hasattr(x, "__dict__"):
        yield _of_mapping(vars(x), "attr")
    if isinstance(x, nn.Module):
        yield from (_of_mapping(vars(x)[name], "attr") for name in _MEMBERS)
    if isinstance(x, (property, staticmethod, classmethod, partial)) or _is_bound_builtin(x):
        yield _of_names(x, [name for name in _STATIC if hasattr(own, name)])
    slots = [name for owner in own.__mro__ for name in _slots_of(owner) if hasattr(x, name)]
    if slots:
        yield _of_names(x, slots)
    if not is_library(_file_of(own)):
        yield _of_names(x, ("__class__",))


def _slots_of(owner: type) -> list[str]:
    slots = vars(owner).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [name for name in names if not name.startswith("__")]


def _is_bound_builtin(x: Any) -> bool:
    """True if an object is a function of compiled code, such as ``rng.normal``."""
    return hasattr(type(x), "__self__") and not isinstance(x, MethodType)


def names_in(code: CodeType) -> frozenset[str]:
    """All names that a function's code, and code within it, uses."""
    inner = (names_in(x) for x in code.co_consts if isinstance(x, CodeType))
    return frozenset(code.co_names).union(*inner)


def _file_of(x: type | ModuleType) -> str:
    """The source file of a class or a module; "<frozen " for what has none."""
    module = x
    if isinstance(x, type):
        code = next((f.__code__ for f in vars(x).values() if isinstance(f, FunctionType)), None)
        if code is not None and not code.co_filename.startswith("<"):
            return code.co_filename
        module = sys.modules.get(x.__module__ if isinstance(x.__module__, str) else "")
    file = getattr(module, "__file__", None)
    is_builtin = getattr(module, "__name__", "builtins") in sys.builtin_module_names
    return file or ("<frozen " if is_builtin or module is None else "")


def is_library(file: str) -> bool:
    """True if a source file belongs to Python's standard library, PyTorch, NumPy or this package."""
    if file.startswith((*_PACKAGES, "<frozen ", "<__array_function__")):
        return True
    return file.startswith(_STANDARD) and "-packages" not in file
