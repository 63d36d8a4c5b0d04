"""Objects that a function reaches: its captured tensors with their paths, and Python values.

A function reaches objects through its closure, its defaults, the globals that it names and the object that it
is bound to, and from there through attributes, classes and entries of containers. A path is the sequence of
steps from the function to an object: following it again finds the object that is there now.

Tensors are followed. Python values are constants of a trace, compared where an entry of an object holds them.
Values that no entry holds, such as the state of an iterator, are left to the comparison of results.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain
from operator import is_
from pathlib import Path as FilePath
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchsko.contact.contact_tables import ContactTables
from torchsko.fused.tracing.clean import is_wrapped
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism

Step = tuple[str, Any]
"""Kind ("attr", "cell", "global", "vars" or "item") and key of a step from an object to an entry."""
Path = tuple[Step, ...]
Entries = tuple[Callable[[], Iterable[Any]], Sequence[Step]]
"""A function that reads entries of an object, and the steps to them."""

MAX_ENTRIES = 10_000
"""Entries of objects that are read: comparing so many takes about 0.2 ms a call."""

KEYS: Step = ("keys", None)
"""Step to the keys of a dict, or the length of a list."""

VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, Fraction, Decimal, np.generic),
    *(slice, range, frozenset, torch.dtype, torch.device, CodeType, ContactTables),
)
"""Types of values, which are compared by their numbers and have no entries."""

GONE = (LookupError, AttributeError, TypeError, ValueError, RuntimeError)
"""Errors raised by a step to an object that is not there any more."""

MISSING = object()
"""In the place of what a path no longer leads to."""

_UNREAD = (Mechanism, Tensor, logging.Logger)
_MEMBERS = ("_parameters", "_buffers", "_modules")
_STATIC = ("fget", "__func__", "func", "args", "keywords", "__self__")
_OF_NAMESPACES = frozenset(("globals", "vars", "eval", "exec"))
_STANDARD = sysconfig.get_path("stdlib") + os.sep
PACKAGES = tuple(
    f"{FilePath(x).parent}{os.sep}"
    for x in (torch.__file__, np.__file__, FilePath(__file__).parents[1])
)
"""Folders of PyTorch, NumPy and this package."""


class ObjectGraph:
    """Objects that a function reaches, breadth first, with the Python values found there.

    Objects of this package name the attributes that lead further in ``captured_attributes``.

    Args:
        root: the function, or another object that is called.
        constants: ids of tensors that must stay the same objects; others may be replaced.

    Attributes:
        values: all that a program may depend on, by path: numbers, texts, the code of functions, types of
            objects, keys of dicts, and objects of which no entry can be read.
        paths: all paths to each object, by its id.
    """

    def __init__(self, root: Callable[..., Any], constants: Collection[int] = ()) -> None:
        self.root, self._constants = root, constants
        self.values: dict[Path, Any] = {}
        self.paths: dict[int, list[Path]] = {}
        self._objects: dict[int, Any] = {}  # keeps the ids valid
        self._names_read: dict[int, frozenset[str]] = {}  # of modules
        self._reads: list[Callable[[], Iterable[Any]]] = []
        self._stored: list[Any] = []
        self._arrays: list[tuple[Any, Any]] = []  # and sets
        self._pending: deque[tuple[Any, frozenset[str]]] = deque()
        self._visit((), root, frozenset())
        while self._pending:
            self._expand(*self._pending.popleft())

    def _visit(self, path: Path, x: Any, names: frozenset[str]) -> None:
        """Note an object at a path; queue it if it has entries that are not read yet."""
        if isinstance(x, (np.ndarray, set)):
            self.values[path] = x.copy()
            self._arrays.append((x, self.values[path]))
            return
        if isinstance(x, VALUES):
            self.values[path] = x
            return
        is_read = has_entries(x)
        is_input = isinstance(x, Tensor) and id(x) not in self._constants
        is_opaque = not is_read or _is_bound_builtin(x)
        self.values[path] = Tensor if is_input else x if is_opaque else type(x)
        self.paths.setdefault(id(x), []).append(path)
        is_new = id(x) not in self._objects
        self._objects[id(x)] = x
        if isinstance(x, ModuleType) and is_read:
            known = self._names_read.get(id(x), frozenset())
            is_new, self._names_read[id(x)] = is_new or not names <= known, known | names
        if is_new and (is_read or isinstance(x, Mechanism)):
            self._pending.append((x, names))

    def _expand(self, holder: Any, names: frozenset[str]) -> None:
        """Read the entries of an object, or keep the object itself where there are too many."""
        path = self.path_to(holder)
        sections = [(read, steps, [*read()]) for read, steps in _entries_of(holder, names)]
        if len(self._stored) + sum(len(values) for _, _, values in sections) > MAX_ENTRIES:
            self.values[path] = holder
            return
        if isinstance(holder, (list, deque)):
            self.values[*path, KEYS] = len(holder)
        elif not isinstance(holder, FunctionType):
            self.values[*path, KEYS] = tuple(key for _, steps, _ in sections for _, key in steps)
        if isinstance(holder, FunctionType):
            names = names_in(holder.__code__)
        elif not isinstance(holder, ModuleType):
            names = frozenset()
        for read, steps, values in sections:
            self._reads.append(read)
            self._stored += values
            for step, x in zip(steps, values, strict=True):
                self._visit((*path, step), x, names)

    def is_unchanged(self) -> bool:
        """True if every entry is the object that it was, and arrays have the same contents."""
        try:
            now = [*chain.from_iterable(read() for read in self._reads)]
        except GONE:
            return False
        if len(now) != len(self._stored) or not all(map(is_, now, self._stored)):
            return False
        return all(_is_same(x, content) for x, content in self._arrays)

    def changes(self, now: ObjectGraph, ignored: Collection[Path]) -> dict[Path, Any]:
        """Values that are others in a later graph of the function, by path."""
        return {
            path: x
            for path, x in self.values.items()
            if path not in ignored and not _is_same(now.values.get(path, MISSING), x)
        }

    def name_of_change(self, path: Path, now: ObjectGraph) -> str:
        """A changed value in words; of changed keys the first that is new or gone."""
        old, new = self.values[path], now.values.get(path)
        if path[-1] == KEYS and isinstance(old, tuple) and isinstance(new, tuple):
            key = next((k for k in (*new, *old) if (k in new) != (k in old)), None)
            holder = follow(self.root, path[:-1])
            kind = "item" if isinstance(holder, (dict, MappingProxyType)) else "attr"
            path = path if key is None else (*path[:-1], (kind, key))
        return self.name(path)

    def guards(self, ignored: Collection[Path]) -> list[tuple[Path, Any]]:
        """Numbers and texts that attributes, closures, globals and containers hold, by path."""
        return [
            (path, x)
            for path, x in self.values.items()
            if path and path[-1] != KEYS and path not in ignored
            if isinstance(x, (bool, int, float, str)) and not any(s[0] == "vars" for s in path)
        ]

    def path_to(self, x: Any) -> Path:
        """The shortest path to an object.

        Raises:
            KeyError: the function does not reach it.
        """
        return self.paths[id(x)][0]

    def reaches(self, x: Any) -> bool:
        """True if the function reaches an object."""
        return id(x) in self._objects

    def objects(self) -> list[Any]:
        """All objects, without plain values."""
        return list(self._objects.values())

    def wrapped(self) -> list[Tensor]:
        """The tensors that a transform of torch.func has wrapped."""
        return [x for x in self.objects() if isinstance(x, Tensor) and is_wrapped(x)]

    def name(self, path: Path) -> str:
        """A path in words, such as ``policy.0.weight``."""
        text, holder = "", self.root
        for kind, key in path:
            if kind == "cell" and isinstance(holder, FunctionType):
                text = holder.__code__.co_freevars[key]
            elif kind == "global" or (kind in ("attr", "vars") and not text):
                text = str(key)
            elif (kind, key) == KEYS:
                text = f"the entries of {text}"
            elif key == "__defaults__":
                text = f"a default of {text}"
            elif kind in ("attr", "vars"):
                text += f".{key}"
            elif kind == "item":
                text += f"[{key!r}]"
            holder = follow(holder, ((kind, key),))
        text = text.removesuffix(".__self__").removesuffix(".__code__").removeprefix("__self__.")
        return text.removeprefix("__class__.") or type(self.root).__name__


def follow(holder: Any, path: Path) -> Any:
    """The object at the end of a path, or `MISSING` where a step leads to nothing."""
    try:
        for kind, key in path:
            if kind == "attr":
                holder = getattr(holder, key)
            elif kind == "cell":
                holder = holder.__closure__[key].cell_contents
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
    if type(now) is not type(old) or not isinstance(
        now, (*VALUES, np.ndarray, set, MethodType, FunctionType, tuple)
    ):
        return False
    if isinstance(now, np.ndarray):
        if now.shape != old.shape or now.dtype != old.dtype:
            return False
        return np.array_equal(now, old, equal_nan=now.dtype.kind in "fc")
    return bool(now == old or (now != now and old != old))


# -- entries -------------------------------------------------------------------------------------


def has_entries(x: Any) -> bool:
    """True if entries of an object are read."""
    if isinstance(x, (*VALUES, *_UNREAD)):
        return False
    if isinstance(x, (type, ModuleType)):
        return not is_library(_file_of(x))
    return (
        isinstance(x, (FunctionType, MethodType, dict, list, tuple, deque, partial, property))
        or isinstance(x, (staticmethod, classmethod, MappingProxyType))
        or hasattr(x, "__dict__")
        or hasattr(type(x), "__slots__")
        or _is_bound_builtin(x)
    )


def _is_bound_builtin(x: Any) -> bool:
    """True if an object is a function of compiled code, such as ``rng.normal``."""
    return hasattr(type(x), "__self__") and not isinstance(x, MethodType)


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
    elif isinstance(x, ModuleType):
        chosen = [k for k, y in vars(x).items() if k in names or _is_data(k, y)]
        yield _of_namespace(vars(x), "attr", chosen)
    elif isinstance(x, type):
        yield _of_names(x, ("__bases__",))
        yield _of_mapping(vars(x), "vars")
    else:
        yield from _of_instance(x)


def _of_names(x: Any, names: Sequence[str]) -> Entries:
    return lambda: [getattr(x, name) for name in names], [("attr", name) for name in names]


def _of_mapping(x: Mapping[Any, Any], kind: str) -> Entries:
    return x.values, [(kind, key) for key in x]


def _of_namespace(x: Mapping[str, Any], kind: str, names: Sequence[str]) -> Entries:
    return lambda: [x[name] for name in names], [(kind, name) for name in names]


def _of_function(fn: FunctionType) -> Iterator[Entries]:
    yield _of_names(fn, ("__code__", "__defaults__", "__kwdefaults__"))
    if vars(fn):
        yield _of_mapping(vars(fn), "attr")
    steps = [("cell", k) for k in range(len(fn.__closure__ or ()))]
    steps = [step for step in steps if follow(fn, (step,)) is not MISSING]  # those assigned
    if steps:
        cells = [(fn.__closure__ or ())[k] for _, k in steps]
        yield lambda: [cell.cell_contents for cell in cells], steps
    if not is_library(fn.__code__.co_filename):
        names, space = names_in(fn.__code__), fn.__globals__
        if names.isdisjoint(_OF_NAMESPACES):
            yield _of_namespace(space, "global", sorted(names & space.keys()))
        else:
            every = [k for k, y in space.items() if k in names or _is_data(k, y)]
            yield _of_namespace(space, "global", every)


def _of_instance(x: Any) -> Iterator[Entries]:
    own = type(x)
    if str(own.__module__).startswith("torchsko.") and hasattr(own, "captured_attributes"):
        yield _of_names(x, own.captured_attributes)
        return
    members = vars(x) if hasattr(x, "__dict__") else {}
    yield _of_mapping(members, "attr")
    if isinstance(x, nn.Module):
        yield from (_of_mapping(members[name], "attr") for name in _MEMBERS)
    if isinstance(x, (property, staticmethod, classmethod, partial)) or _is_bound_builtin(x):
        yield _of_names(x, [name for name in _STATIC if hasattr(own, name)])
    slots = [name for owner in own.__mro__ for name in _slots_of(owner) if hasattr(x, name)]
    if slots:
        yield _of_names(x, slots)
    if not is_library(_file_of(own)):
        yield _of_names(x, ("__class__",))


def _slots_of(owner: type) -> Sequence[str]:
    slots = vars(owner).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [n for n in names if n not in ("__dict__", "__weakref__") and not n.startswith("__")]


def names_in(code: CodeType) -> frozenset[str]:
    """All names that a function's code, and code within it, uses."""
    inner = (names_in(x) for x in code.co_consts if isinstance(x, CodeType))
    return frozenset(code.co_names).union(*inner)


def _is_data(name: str, x: Any) -> bool:
    """True if an entry of a module is neither internal nor a function, a class or a module."""
    return not (name.startswith("__") or callable(x) or isinstance(x, ModuleType))


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
    if file.startswith((*PACKAGES, "<frozen ", "<__array_function__")):
        return True
    return file.startswith(_STANDARD) and "-packages" not in file
