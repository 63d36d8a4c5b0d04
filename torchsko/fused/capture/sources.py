"""Where the tensors that a function reads from outside of its arguments are kept.

A function reaches objects through its closure, the globals that it names, its defaults, the object
that it is bound to, attributes and containers. Each step is a `Link`: the object that holds, and how
the held one is read from it. Reading a link again gives what is there now, so a tensor bound anew
(``layer.weight = nn.Parameter(...)``) is found, and an object put in the place of another is noticed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchsko.fused.tracing.clean import is_wrapped
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism

Step = tuple[str, Any]

_LIBRARIES = frozenset(("torch", "torchsko", "numpy")) | sys.stdlib_module_names
_MOST_OBJECTS = 200_000
CALLED = frozenset(("__call__", "__getattr__", "__getitem__"))
"""Names of a class under which Python itself looks for functions."""
_MEMBERS = ("_parameters", "_buffers", "_modules")


GONE = (LookupError, AttributeError, TypeError, ValueError)
"""What reading a link raises where nothing is there any more."""


class Link(NamedTuple):
    """One step from an object to one that it holds.

    Attributes:
        holder: the object.
        step: kind ("cell", "global", "default", "item" or "attr") and key.
    """

    holder: Any
    step: Step

    def read(self) -> Any:
        """What is there now.

        Raises:
            LookupError, AttributeError, ValueError: nothing is.
        """
        return follow(self.holder, self.step)

    def holds(self, x: Any) -> bool:
        """Whether an object is still there."""
        try:
            now = self.read()
        except GONE:
            return False
        # A method read from a class is a new object each time.
        return now is x or (isinstance(x, MethodType) and now == x)


def follow(holder: Any, step: Step) -> Any:
    """What an object holds at a step."""
    kind, key = step
    if kind == "attr":
        return getattr(holder, key)
    if kind == "cell":
        return holder.__closure__[key].cell_contents
    if kind == "global":
        return holder.__globals__[key]
    if kind == "default":
        return holder.__defaults__[key]
    return holder[key]


def follow_all(holder: Any, path: Iterable[Step]) -> Any:
    """What is at the end of a path."""
    for step in path:
        holder = follow(holder, step)
    return holder


class Reachable:
    """All objects that a function can reach, breadth first, with every link between them.

    Objects of this package lead to what their class says by ``leads_to``, if it does: what else they keep
    comes and goes.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.root = fn
        self._objects: dict[int, Any] = {id(fn): fn}  # held, so that numbers stay theirs
        self._into: dict[int, list[Link]] = {id(fn): []}
        pending = deque([fn])
        while pending and len(self._objects) < _MOST_OBJECTS:
            holder = pending.popleft()
            for step, held in held_by(holder):
                if _is_leaf(held):
                    continue
                if id(held) not in self._objects:
                    self._objects[id(held)] = held
                    self._into[id(held)] = []
                    pending.append(held)
                self._into[id(held)].append(Link(holder, step))

    def links_to(self, x: Any) -> tuple[Link, ...]:
        """The links that hold an object; none if it cannot be reached."""
        return tuple(self._into.get(id(x), ()))

    def path_to(self, x: Any) -> tuple[Step, ...] | None:
        """The steps to an object from the function, the shortest; None if there are none."""
        path: list[Step] = []
        while x is not self.root:
            links = self.links_to(x)
            if not links:
                return None
            path.append(links[0].step)
            x = links[0].holder
        return tuple(reversed(path))

    def name_of(self, x: Any) -> str:
        """The path to an object in words, such as ``policy.0.weight``."""
        text, holder = "", self.root
        for kind, key in self.path_to(x) or ():
            if kind == "cell":
                text = holder.__code__.co_freevars[key]
            elif kind == "global" or (kind == "attr" and not text):
                text = str(key)
            elif kind == "attr":
                text += f".{key}"
            else:
                text += f"[{key!r}]"
            holder = follow(holder, (kind, key))
        return text.removeprefix("__self__.") or type(x).__name__

    def objects(self) -> Iterator[Any]:
        """All of them."""
        return iter(self._objects.values())

    def mechanisms(self) -> Iterator[Mechanism]:
        """The mechanisms among them."""
        return (x for x in self._objects.values() if isinstance(x, Mechanism))

    def wrapped(self) -> list[Tensor]:
        """The tensors among them that a transform of torch.func has wrapped."""
        return [x for x in self._objects.values() if isinstance(x, Tensor) and is_wrapped(x)]

    def holders_of(self, tensors: Iterable[Tensor]) -> list[Any]:
        """All objects but the function through which the tensors are reached."""
        found: dict[int, Any] = {}
        pending: list[Any] = list(tensors)
        while pending:
            for holder, _ in self.links_to(pending.pop()):
                if id(holder) not in found and holder is not self.root:
                    found[id(holder)] = holder
                    pending.append(holder)
        return list(found.values())


def _is_leaf(x: Any) -> bool:
    """Whether an object holds no tensor, by its type."""
    return x is None or isinstance(x, (bool, int, float, complex, str, bytes, CodeType))


def held_by(x: Any) -> Iterator[tuple[Step, Any]]:
    """What an object holds, and where; nothing behind a tensor, a mechanism's parameters only."""
    if isinstance(x, Tensor):
        return
    if isinstance(x, FunctionType):
        yield from _of_function(x)
    elif isinstance(x, MethodType):
        yield ("attr", "__self__"), x.__self__
        yield ("attr", "__func__"), x.__func__
    elif isinstance(x, partial):
        yield from ((("attr", name), getattr(x, name)) for name in ("func", "args", "keywords"))
    elif isinstance(x, Mechanism):
        yield from ((("attr", name), getattr(x, name)) for name in PARAMETERS)
    elif isinstance(x, dict):
        yield from ((("item", key), value) for key, value in list(x.items()))
    elif isinstance(x, (list, tuple, deque)):
        yield from ((("item", k), value) for k, value in enumerate(x))
    elif isinstance(x, (type, ModuleType)):
        yield from _of_namespace(x)
    else:
        yield from _of_instance(x)


def _of_function(fn: FunctionType) -> Iterator[tuple[Step, Any]]:
    for k, cell in enumerate(fn.__closure__ or ()):
        try:
            yield ("cell", k), cell.cell_contents
        except ValueError:  # not bound yet
            continue
    for k, value in enumerate(fn.__defaults__ or ()):
        yield ("default", k), value
    if fn.__kwdefaults__:
        yield ("attr", "__kwdefaults__"), fn.__kwdefaults__
    yield from ((("attr", name), value) for name, value in vars(fn).items())
    if not is_library(fn.__globals__.get("__name__")):
        for name in sorted(names_in(fn.__code__)):
            if name in fn.__globals__:
                yield ("global", name), fn.__globals__[name]


def names_in(code: CodeType) -> set[str]:
    """All names that a function's text and the functions within it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def _of_namespace(x: type | ModuleType) -> Iterator[tuple[Step, Any]]:
    """A user's class or module; those of libraries hold no tensors of users."""
    if isinstance(x, ModuleType):
        if not is_library(x.__name__):
            yield from ((("attr", name), value) for name, value in list(vars(x).items()))
        return
    for owner in x.__mro__:
        if not is_library(module_of(owner)):
            for name in vars(owner):
                if not name.startswith("__") or name in CALLED:
                    yield ("attr", name), getattr(x, name, None)


def _of_instance(x: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(x, property):
        yield ("attr", "fget"), x.fget
        return
    if module_of(type(x)).startswith("torchsko.") and hasattr(type(x), "leads_to"):
        yield from ((("attr", name), getattr(x, name)) for name in type(x).leads_to)
        return
    for name, value in list(getattr(x, "__dict__", {}).items()):
        if isinstance(x, nn.Module) and name in _MEMBERS:
            yield from ((("attr", key), member) for key, member in list(value.items()))
        else:
            yield ("attr", name), value
    for owner in type(x).__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(x, name):
                yield ("attr", name), getattr(x, name)
    if not is_library(module_of(type(x))):
        yield ("attr", "__class__"), type(x)


def module_of(cls: type) -> str:
    """The name of a class's module; "" for that of Cython's functions, which has no name there."""
    return cls.__module__ if isinstance(cls.__module__, str) else ""


def is_library(module: str | None) -> bool:
    """Whether a module's name is that of a library, whose functions name nothing of users."""
    return (module or "").partition(".")[0] in _LIBRARIES
