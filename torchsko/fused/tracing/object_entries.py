"""Entries of objects: of functions, containers, modules, classes and instances, with the steps to them."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path as FilePath
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism

Step = tuple[str, Any]
"""Kind ("attr", "cell", "global", "vars", "value" or "item") and key of a step from an object to an entry."""

VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, Fraction, Decimal, np.generic),
    *(slice, range, frozenset, torch.dtype, torch.device, CodeType),
)
"""Types of values, which are compared by their numbers and have no entries."""

_UNREAD = (Mechanism, Tensor, logging.Logger)
_MEMBERS = ("_parameters", "_buffers", "_modules")
_OF_NAMESPACES = frozenset(("globals", "vars", "eval", "exec"))
_STANDARD = sysconfig.get_path("stdlib") + os.sep
PACKAGES = tuple(
    f"{FilePath(x).parent}{os.sep}"
    for x in (torch.__file__, np.__file__, FilePath(__file__).parents[1])
)
"""Folders of PyTorch, NumPy and this package."""


class Section(NamedTuple):
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


def has_entries(x: Any) -> bool:
    """True if entries of an object are read."""
    if isinstance(x, (*VALUES, *_UNREAD)):
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
        or is_bound_builtin(x)
    )


def is_bound_builtin(x: Any) -> bool:
    """True if an object is a function of compiled code, such as ``rng.normal``."""
    return hasattr(type(x), "__self__") and not isinstance(x, MethodType)


def sections_of(x: Any, names: frozenset[str], known: Any) -> Iterator[Section]:
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
        yield Section(x if known is None else lambda x: list(x)[:count], _items(count), items)
    elif isinstance(x, tuple):
        yield Section(None, _items(len(x)), x)
    elif isinstance(x, ContextVar):
        yield Section(lambda x: (x.get(None),), (("value", None),), (x.get(None),))
    elif isinstance(x, ModuleType):
        if selected := [k for k, y in vars(x).items() if k in names or _is_data(k, y)]:
            yield _of_names("attr", vars(x), selected)
    elif isinstance(x, type):
        yield _constant(x, ("__bases__",))
        yield from _of_mapping(vars(x), "vars", known)
    else:
        yield from _of_instance(x, known)


def _constant(x: Any, names: Sequence[str]) -> Section:
    """Attributes that cannot be assigned."""
    return Section(None, [("attr", name) for name in names], [getattr(x, name) for name in names])


def _items(count: int) -> list[Step]:
    return [("item", k) for k in range(count)]


def _of_mapping(x: Any, kind: str, known: Sequence[Any] | None) -> Iterator[Section]:
    """Keys and entries of a dict, or only the entries of known keys."""
    if known is not None:
        kept = [key for key in known if key in x]
        values = [x[key] for key in kept]
        yield Section(lambda _: [x.get(key) for key in kept], [(kind, k) for k in kept], values)
        return
    keys, values = list(x.keys()), list(x.values())
    yield Section(x.keys(), [None] * len(keys), keys)
    if keys:
        yield Section(x.values(), [(kind, key) for key in keys], values)


def _of_names(kind: str, namespace: dict[str, Any], names: Sequence[str]) -> Section:
    """Entries of a namespace with these names."""
    get = itemgetter(*names, *names[:1])  # a tuple, also for one name
    read = lambda _: get(namespace)[: len(names)]  # noqa: E731
    return Section(read, [(kind, n) for n in names], [namespace[n] for n in names])


_FIELDS = ("__code__", "__defaults__", "__kwdefaults__")


def _of_function(fn: FunctionType) -> Iterator[Section]:
    yield Section(attrgetter(*_FIELDS), [("attr", n) for n in _FIELDS], attrgetter(*_FIELDS)(fn))
    if vars(fn):
        yield from _of_mapping(vars(fn), "attr", None)
    cells = [(k, c) for k, c in enumerate(fn.__closure__ or ()) if _is_assigned(c)]
    if cells:
        read = lambda _: [c.cell_contents for _, c in cells]  # noqa: E731
        yield Section(read, [("cell", k) for k, _ in cells], read(fn))
    if not is_library(fn.__code__.co_filename):
        names = names_in(fn.__code__)
        every = [k for k, y in fn.__globals__.items() if k in names or _is_data(k, y)]
        whole = not names.isdisjoint(_OF_NAMESPACES)
        read_names = every if whole else sorted(names & fn.__globals__.keys())
        if read_names:
            yield _of_names("global", fn.__globals__, read_names)


def _is_assigned(cell: Any) -> bool:
    """True if a closure's variable has been assigned."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _of_instance(x: Any, known: Sequence[str] | None) -> Iterator[Section]:
    own = type(x)
    if str(own.__module__).startswith("torchsko.") and hasattr(own, "captured_attributes"):
        names = own.captured_attributes
        read = lambda x: [getattr(x, name) for name in names]  # noqa: E731
        yield Section(read, [("attr", name) for name in names], read(x))
        return
    members = vars(x) if hasattr(x, "__dict__") else {}
    yield from _of_mapping(members, "attr", known)
    if isinstance(x, nn.Module):
        for name in _MEMBERS:
            yield from _of_mapping(members[name], "attr", known)
    static = ("fget", "__func__", "func", "args", "keywords", "__self__")
    if isinstance(x, (property, staticmethod, classmethod, partial)) or is_bound_builtin(x):
        yield _constant(x, [name for name in static if hasattr(own, name)])
    slots = [name for owner in own.__mro__ for name in _slots_of(owner) if hasattr(x, name)]
    if slots:
        read = lambda x: [getattr(x, name) for name in slots]  # noqa: E731
        yield Section(read, [("attr", name) for name in slots], read(x))
    if not is_library(_file_of(own)):
        yield _constant(x, ("__class__",))


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
