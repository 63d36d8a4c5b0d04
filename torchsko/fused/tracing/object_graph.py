"""Objects that a function can reach, and the Python values found there.

A function reaches objects through its closure, its defaults, the globals that it names, the object that it
is bound to, and from there through attributes, classes and entries of containers. A path is the sequence of
steps from the function to an object: following it again finds the object that is there now.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from torchsko.fused.tracing.clean import is_wrapped
from torchsko.fused.tracing.object_entries import (
    VALUES,
    Step,
    has_entries,
    is_bound_builtin,
    names_in,
    sections_of,
)
from torchsko.mechanism.mechanism import Mechanism

Path = tuple[Step, ...]

MAX_ENTRIES = 10_000
"""Entries of objects that are read: comparing so many takes about 0.2 ms a call."""

KEYS: Step = ("keys", None)
"""Step to the keys of a dict, or the length of a list."""

MISSING = object()
"""In the place of what a path no longer leads to."""

GONE = (LookupError, AttributeError, TypeError, ValueError, RuntimeError)
"""Errors raised by a step to an object that is not there any more."""

_CTYPES = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
_MUTABLE_VALUES = (np.ndarray, array, bytearray, set, *_CTYPES)


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
        if isinstance(x, VALUES):
            self.values[path] = x
            return
        is_read = has_entries(x)
        is_input = isinstance(x, Tensor) and id(x) not in self._constants
        is_opaque = not is_read or is_bound_builtin(x)
        self.values[path] = Tensor if is_input else x if is_opaque else type(x)
        self.paths.setdefault(id(x), []).append(path)
        is_new = id(x) not in self._objects
        self._objects[id(x)] = x
        if isinstance(x, ModuleType) and is_read:
            known = self._names_read.get(id(x), frozenset())
            is_new, self._names_read[id(x)] = is_new or not names <= known, known | names
        if is_new and (is_read or isinstance(x, Mechanism)):
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
        sections = list(sections_of(holder, names, known))
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
            names = names_in(holder.__code__)
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
        """True if every entry is the object that it was, and arrays have the same contents."""
        try:
            if any(self._empty) or sum(map(len, self._views)) != self._length:
                return False
            if not all(map(is_, self._current(), self._stored)):
                return False
            return all(_is_same(x, content) for x, content in self._contents)
        except GONE:
            return False

    def accepts(self) -> bool:
        """True if all entries that are other objects now have equal values, are tensors, or are ignored.

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
            if path not in self.ignored or has_entries(now) or has_entries(old):
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


def _content(x: Any) -> Any:
    """A copy of an array's, a set's or a C object's contents."""
    if isinstance(x, _CTYPES):
        return bytes(x)
    return x.copy() if isinstance(x, (np.ndarray, set)) else x[:]


def _is_same(now: Any, old: Any) -> bool:
    """True if values are of one type and equal, nan to nan; other objects are compared by identity."""
    if now is old:
        return True
    if isinstance(now, _CTYPES):
        return bytes(now) == old
    if type(now) is not type(old) or not isinstance(now, (*VALUES, *_MUTABLE_VALUES, MethodType)):
        if not isinstance(now, tuple) or not isinstance(old, tuple):
            return False
    if isinstance(now, np.ndarray):
        if not isinstance(old, np.ndarray) or now.shape != old.shape or now.dtype != old.dtype:
            return False
        return np.array_equal(now, old, equal_nan=now.dtype.kind in "fc")
    return bool(now == old or (now != now and old != old))
