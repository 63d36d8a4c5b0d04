"""Objects that a function can reach, and the Python values found there.

A function reaches objects through its closure, its defaults, the globals that it names, the object that it
is bound to, and from there through attributes, classes and entries of containers. A path is the sequence of
steps from the function to an object: following it again finds the object that is there now.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import sysconfig
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain
from operator import attrgetter, is_, itemgetter
from pathlib import Path as FilePath
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchsko.fused.tracing.clean import is_wrapped
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism

Step = tuple[str, Any]
Path = tuple[Step, ...]

MAX_ENTRIES = 10_000
"""Entries of objects that are read: comparing so many takes about 0.2 ms a call."""

KEYS: Step = ("keys", None)
"""Step to the keys of a dict, or the length of a list."""

MISSING = object()
"""In the place of what a path no longer leads to."""

GONE = (LookupError, AttributeError, TypeError, ValueError, RuntimeError)
"""Errors raised by a step to an object that is not there any more."""

_VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, Fraction, Decimal, np.generic),
    *(slice, range, frozenset, torch.dtype, torch.device, CodeType),
)
_CTYPES = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
_MUTABLE_VALUES = (np.ndarray, array, bytearray, set, *_CTYPES)
_UNREAD = (Mechanism, Tensor, logging.Logger, torch.dtype, torch.device)
_MEMBERS = ("_parameters", "_buffers", "_modules")
_OF_NAMESPACES = frozenset(("globals", "vars", "eval", "exec"))
_STANDARD = sysconfig.get_path("stdlib") + os.sep
PACKAGES = tuple(
    f"{FilePath(x).parent}{os.sep}" for x in (torch.__file__, np.__file__, FilePath(__file__).parents[1])
)  # fmt: skip


class _Section(NamedTuple):
    """Entries of one object.

    Attributes:
        read: an iterable of the entries as they are now, a function of the object that gives one, or None
            for entries that cannot change.
        steps: the step to each entry; None for the keys of a dict.
        values: the entries.
    """

    read: Iterable[Any] | Callable[[Any], Iterable[Any]] | None
    steps: Sequence[Step | None]
    values: Sequence[Any]


class ObjectGraph:
    """Objects that a function reaches, breadth first, with the Python values found there.

    Objects of this package name the attributes that lead further in ``captured_attributes``.

    Args:
        root: the function, or another object that is called.
        ignored: paths of values to pass over; the entry of a path that ends with `KEYS` is the keys to read.
        constants: ids of tensors that must stay the same objects; others may be replaced.

    Attributes:
        values: all that a program may depend on, by path: numbers, texts, the code of functions, types of
            objects, keys of dicts, and objects of which no entry can be read.
        paths: all paths to each object, by its id.
    """

    def __init__(
        self,
        root: Callable[..., Any],
        ignored: Mapping[Path, Any] | None = None,
        constants: frozenset[int] = frozenset(),
    ) -> None:
        self.root, self.ignored, self._constants = root, ignored or {}, constants
        self.values: dict[Path, Any] = {}
        self.paths: dict[int, list[Path]] = {}
        self._objects: dict[int, Any] = {}  # keeps the ids valid
        self._names_read: dict[int, frozenset[str]] = {}  # of modules
        self._empty: list[
            Any
        ] = []  # containers; a module has dozens, whose truth values are fast to read
        self._views: list[Any] = []
        self._reads: list[tuple[Callable[[Any], Iterable[Any]], Any]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._pending: deque[tuple[Any, frozenset[str]]] = deque()
        self._count = 0
        of_views: list[tuple[Path | None, Any]] = []
        of_reads: list[tuple[Path | None, Any]] = []
        self._visit((), root, frozenset())
        while self._pending:
            holder, names = self._pending.popleft()
            self._expand(holder, names, of_views, of_reads)
        self._length = len(of_views)
        self._entries = [path for path, _ in (*of_views, *of_reads)]
        self._stored = [x for _, x in (*of_views, *of_reads)]

    def _visit(self, path: Path, x: Any, names: frozenset[str]) -> None:
        """Note an object at a path; queue it if it has entries that are not read yet."""
        if isinstance(x, _MUTABLE_VALUES):
            if path not in self.ignored:
                self.values[path] = content = _content(x)
                self._note_content(x, content)
            return
        if isinstance(x, _VALUES):
            self.values[path] = x
            return
        has_entries = _has_entries(x)
        is_input = isinstance(x, Tensor) and id(x) not in self._constants
        is_opaque = not has_entries or _is_bound_builtin(x)
        self.values[path] = Tensor if is_input else x if is_opaque else type(x)
        self.paths.setdefault(id(x), []).append(path)
        is_new = id(x) not in self._objects
        self._objects[id(x)] = x
        if isinstance(x, ModuleType) and has_entries:
            known = self._names_read.get(id(x), frozenset())
            is_new, self._names_read[id(x)] = is_new or not names <= known, known | names
        if is_new and (has_entries or isinstance(x, Mechanism)):
            self._pending.append((x, names))

    def _note_content(self, x: Any, content: Any) -> None:
        if isinstance(x, set) and not x:
            self._empty.append(x)
        else:
            self._contents.append((x, content))

    def _expand(
        self,
        holder: Any,
        names: frozenset[str],
        of_views: list[tuple[Path | None, Any]],
        of_reads: list[tuple[Path | None, Any]],
    ) -> None:
        """Read the entries of an object, or keep the object itself where there are too many."""
        path = self.path_to(holder)
        known = self.ignored.get((*path, KEYS))
        sections = list(_sections(holder, names, known))
        self._count += sum(len(section.values) for section in sections)
        if self._count > MAX_ENTRIES:
            self._count -= sum(len(section.values) for section in sections)
            self.values[path] = holder
            return
        if known is None and isinstance(holder, (list, deque)):
            self.values[*path, KEYS] = len(holder)
        elif known is None:
            keys = [
                x for s in sections for step, x in zip(s.steps, s.values, strict=True) if not step
            ]
            self.values[*path, KEYS] = tuple(keys)
        if isinstance(holder, FunctionType):
            names = _names_in(holder.__code__)
        elif not isinstance(holder, ModuleType):
            names = frozenset()
        for read, steps, values in sections:
            entries = [((*path, s) if s else None, x) for s, x in zip(steps, values, strict=True)]
            if callable(read):
                of_reads += entries
                self._reads.append((read, holder))
            elif read is not None and not entries:
                self._empty.append(read)
            elif read is not None:
                of_views += entries
                self._views.append(read)
            for at, x in entries:
                if at is not None:
                    self._visit(at, x, names)

    def _current(self) -> Iterator[Any]:
        """All entries as they are now, in the order of the stored ones."""
        read = chain.from_iterable([read(x) for read, x in self._reads])
        return chain(chain.from_iterable(self._views), read)

    def is_unchanged(self) -> bool:
        """Whether every entry is the object that it was, and arrays have the same contents."""
        try:
            if any(self._empty) or sum(map(len, self._views)) != self._length:
                return False
            if not all(map(is_, self._current(), self._stored)):
                return False
            return all(_is_same(x, content) for x, content in self._contents)
        except GONE:
            return False

    def accepts(self) -> bool:
        """Whether all entries that are other objects now have equal values, are tensors, or are ignored.

        They are the entries that `is_unchanged` compares with from then on.
        """
        try:
            if any(self._empty) or sum(map(len, self._views)) != self._length:
                return False
            current = list(self._current())
            if not all(_is_same(x, content) for x, content in self._contents):
                return False
        except GONE:
            return False
        for path, now, old in zip(self._entries, current, self._stored, strict=True):
            if now is old or _is_same(now, old):
                continue
            if (
                isinstance(now, Tensor)
                and isinstance(old, Tensor)
                and id(old) not in self._constants
            ):
                continue
            if path not in self.ignored or _has_entries(now) or _has_entries(old):
                return False
        self._stored = current
        return True

    def changes(self, now: ObjectGraph) -> dict[Path, Any]:
        """Values that are others in a later graph of the function, by path."""
        return {
            path: x
            for path, x in self.values.items()
            if path not in self.ignored and not _is_same(now.values.get(path, MISSING), x)
        }

    def name_of_change(self, now: ObjectGraph) -> str:
        """The first of the changes in words: a value, or a key that is new or gone."""
        path, old = next(iter(self.changes(now).items()))
        new = now.values.get(path)
        if path[-1] == KEYS and isinstance(old, tuple) and isinstance(new, tuple):
            key = next((k for k in (*new, *old) if (k in new) != (k in old)), None)
            holder = follow(self.root, path[:-1])
            if key is not None:
                kind = "item" if isinstance(holder, (dict, MappingProxyType)) else "attr"
                path = (*path[:-1], (kind, key))
        return self.name(path)

    def places(self, x: Any) -> list[int]:
        """Positions of an object among the entries."""
        return [k for k, y in enumerate(self._stored) if y is x]

    def at(self, places: Sequence[int]) -> Any:
        """The object at these positions; None if they hold several."""
        first = self._stored[places[0]]
        return first if all(self._stored[k] is first for k in places) else None

    def guards(self) -> list[tuple[Path, Any]]:
        """Numbers and texts that attributes, closures, globals and containers hold, by path."""
        return [
            (path, x)
            for path, x in self.values.items()
            if path
            and path[-1][0] in ("attr", "cell", "global", "item")
            and path not in self.ignored
            if isinstance(x, (bool, int, float, str)) and not any(s[0] == "vars" for s in path)
        ]

    def path_to(self, x: Any) -> Path:
        """The shortest path to an object.

        Raises:
            KeyError: the function does not reach it.
        """
        return self.paths[id(x)][0]

    def reaches(self, x: Any) -> bool:
        """Whether the function reaches an object."""
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


def follow(holder: Any, path: Path, default: Any = MISSING) -> Any:
    """The object at the end of a path, or the default where a step leads to nothing."""
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
            elif kind == "value":
                holder = holder.get(None)
            elif kind == "item":
                holder = holder[key]
    except GONE:
        return default
    return holder


def ignorable(changes: Mapping[Path, Any]) -> dict[Path, Any]:
    """Changes that may be ignored from now on: of values, not of tensors and mechanisms."""
    kept = {p: x for p, x in changes.items() if not isinstance(x, (Tensor, Mechanism))}
    return {p: x if p[-1] == KEYS else None for p, x in kept.items() if x is not Tensor}


def _has_entries(x: Any) -> bool:
    """Whether entries of an object are read."""
    if isinstance(x, (*_VALUES, *_UNREAD)):
        return False
    if isinstance(x, (type, ModuleType)):
        return not is_library(_file_of(x))
    return (
        isinstance(
            x, (FunctionType, MethodType, dict, list, tuple, deque, MappingProxyType, ContextVar)
        )
        or isinstance(x, (partial, property, staticmethod, classmethod))
        or hasattr(x, "__dict__")
        or hasattr(type(x), "__slots__")
        or _is_bound_builtin(x)
    )


def _is_bound_builtin(x: Any) -> bool:
    """Whether an object is a function of compiled code, such as ``rng.normal``."""
    return hasattr(type(x), "__self__") and not isinstance(x, MethodType)


def _sections(x: Any, names: frozenset[str], known: Any) -> Iterator[_Section]:
    """Entries of an object; of a module those with these names, or that are data."""
    if isinstance(x, FunctionType):
        yield from _of_function(x)
    elif isinstance(x, MethodType):
        yield _constant(x, ("__self__", "__func__"))
    elif isinstance(x, Mechanism):
        yield _constant(x, tuple(PARAMETERS))
    elif isinstance(x, (dict, MappingProxyType)):
        yield from _of_mapping(x, "item", known)
    elif isinstance(x, (list, deque)):
        count = len(x) if known is None else min(known, len(x))
        items = list(x)[:count]
        yield _Section(x if known is None else lambda x: list(x)[:count], _items(count), items)
    elif isinstance(x, tuple):
        yield _Section(None, _items(len(x)), x)
    elif isinstance(x, ContextVar):
        yield _Section(lambda x: (x.get(None),), (("value", None),), (x.get(None),))
    elif isinstance(x, ModuleType):
        if selected := [k for k, y in vars(x).items() if k in names or _is_data(k, y)]:
            yield _of_names("attr", vars(x), selected)
    elif isinstance(x, type):
        yield _constant(x, ("__bases__",))
        yield from _of_mapping(vars(x), "vars", known)
    else:
        yield from _of_instance(x, known)


def _constant(x: Any, names: Sequence[str]) -> _Section:
    """Attributes that cannot be assigned."""
    return _Section(None, [("attr", name) for name in names], [getattr(x, name) for name in names])


def _items(count: int) -> list[Step]:
    return [("item", k) for k in range(count)]


def _of_mapping(x: Any, kind: str, known: Sequence[Any] | None) -> Iterator[_Section]:
    """Keys and entries of a dict, or only the entries of known keys."""
    if known is not None:
        kept = [key for key in known if key in x]
        values = [x[key] for key in kept]
        yield _Section(lambda _: [x.get(key) for key in kept], [(kind, k) for k in kept], values)
        return
    keys, values = list(x.keys()), list(x.values())
    yield _Section(x.keys(), [None] * len(keys), keys)
    if keys:
        yield _Section(x.values(), [(kind, key) for key in keys], values)


def _of_names(kind: str, namespace: dict[str, Any], names: Sequence[str]) -> _Section:
    """Entries of a namespace with these names."""
    get = itemgetter(*names, *names[:1])  # a tuple, also for one name
    read = lambda _: get(namespace)[: len(names)]  # noqa: E731
    return _Section(read, [(kind, n) for n in names], [namespace[n] for n in names])


_FIELDS = ("__code__", "__defaults__", "__kwdefaults__")


def _of_function(fn: FunctionType) -> Iterator[_Section]:
    yield _Section(attrgetter(*_FIELDS), [("attr", n) for n in _FIELDS], attrgetter(*_FIELDS)(fn))
    if vars(fn):
        yield from _of_mapping(vars(fn), "attr", None)
    cells = [
        (k, c) for k, c in enumerate(fn.__closure__ or ()) if _content_of_cell(c) is not MISSING
    ]
    if cells:
        read = lambda _: [c.cell_contents for _, c in cells]  # noqa: E731
        yield _Section(read, [("cell", k) for k, _ in cells], read(fn))
    if not is_library(fn.__code__.co_filename):
        names = _names_in(fn.__code__)
        every = [k for k, y in fn.__globals__.items() if k in names or _is_data(k, y)]
        whole = not names.isdisjoint(_OF_NAMESPACES)
        read_names = every if whole else sorted(names & fn.__globals__.keys())
        if read_names:
            yield _of_names("global", fn.__globals__, read_names)


def _content_of_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return MISSING


def _of_instance(x: Any, known: Sequence[str] | None) -> Iterator[_Section]:
    own = type(x)
    if str(own.__module__).startswith("torchsko.") and hasattr(own, "captured_attributes"):
        names = own.captured_attributes
        read = lambda x: [getattr(x, name) for name in names]  # noqa: E731
        yield _Section(read, [("attr", name) for name in names], read(x))
        return
    members = vars(x) if hasattr(x, "__dict__") else {}
    yield from _of_mapping(members, "attr", known)
    if isinstance(x, nn.Module):
        for name in _MEMBERS:
            yield from _of_mapping(members[name], "attr", known)
    static = ("fget", "__func__", "func", "args", "keywords", "__self__")
    if isinstance(x, (property, staticmethod, classmethod, partial)) or _is_bound_builtin(x):
        yield _constant(x, [name for name in static if hasattr(own, name)])
    slots = [name for owner in own.__mro__ for name in _slots_of(owner) if hasattr(x, name)]
    if slots:
        read = lambda x: [getattr(x, name) for name in slots]  # noqa: E731
        yield _Section(read, [("attr", name) for name in slots], read(x))
    if not is_library(_file_of(own)):
        yield _constant(x, ("__class__",))


def _slots_of(owner: type) -> Sequence[str]:
    slots = vars(owner).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [n for n in names if n not in ("__dict__", "__weakref__") and not n.startswith("__")]


def _names_in(code: CodeType) -> frozenset[str]:
    """All names that a function's code, and code within it, uses."""
    inner = (_names_in(x) for x in code.co_consts if isinstance(x, CodeType))
    return frozenset(code.co_names).union(*inner)


def _is_data(name: str, x: Any) -> bool:
    """Whether an entry of a module is neither internal nor a function, a class or a module."""
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
    """Whether a source file belongs to Python's standard library, PyTorch, NumPy or this package."""
    if file.startswith((*PACKAGES, "<frozen ", "<__array_function__")):
        return True
    return file.startswith(_STANDARD) and "-packages" not in file


def _content(x: Any) -> Any:
    """A copy of an array's, a set's or a C object's contents."""
    if isinstance(x, _CTYPES):
        return bytes(x)
    return x.copy() if isinstance(x, (np.ndarray, set)) else x[:]


def _is_same(now: Any, old: Any) -> bool:
    """Whether values are of one type and equal, nan to nan; other objects are compared by identity."""
    if now is old:
        return True
    if isinstance(now, _CTYPES):
        return bytes(now) == old
    if type(now) is not type(old) or not isinstance(now, (*_VALUES, *_MUTABLE_VALUES, MethodType)):
        if not isinstance(now, tuple) or not isinstance(old, tuple):
            return False
    if isinstance(now, np.ndarray):
        if now.shape != old.shape or now.dtype != old.dtype:
            return False
        return np.array_equal(now, old, equal_nan=now.dtype.kind in "fc")
    return bool(now == old or (now != now and old != old))
