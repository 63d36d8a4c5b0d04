"""What takes a mechanism takes whatever gives one: layers, and mechanisms whose verbs are kernels.

`as_mechanism` is the one place that decides. Objects with kernels name in ``kernels`` those of their methods
that replace the function of the same name; lower rooms never import them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.utils.dtype import in_own_type, stands_for

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism

P = ParamSpec("P")
R = TypeVar("R")


class MechanismLike(Protocol):
    """A `Mechanism`, or what gives one: `torchsko.Dynamics`, `torchsko.FusedMechanism`."""

    def mechanism(self) -> Mechanism:
        """The mechanism with the current values."""
        ...


def as_mechanism(given: MechanismLike) -> Mechanism:
    """The mechanism that an object gives; a mechanism itself as it is.

    Args:
        given: a mechanism, a layer, a fused mechanism, or any object with their method ``mechanism``.

    Raises:
        MechanismError: when it gives none; says so where one is wrapped inside.
    """
    give = cast("Callable[[], Mechanism] | None", getattr(given, "mechanism", None))
    if not callable(give):
        raise MechanismError(_refusal(given))
    return give()


def verb(fn: Callable[Concatenate[Mechanism, P], R]) -> Callable[Concatenate[MechanismLike, P], R]:
    """Let a function of a mechanism take whatever gives one; it keeps the mechanism's type under autocast.

    An object that has a kernel for the function runs it, unless an option (a keyword-only argument) asks
    for something else than the kernel does.
    """
    name = fn.__name__
    parameters = inspect.signature(fn).parameters.values()
    options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    compute = in_own_type(fn)

    @wraps(fn)
    def call(mech: MechanismLike, *args: P.args, **kwargs: P.kwargs) -> R:
        if name in kernels_of(mech) and not options & kwargs.keys():
            return getattr(mech, name)(*args, **kwargs)
        robot = as_mechanism(mech)
        for x in (*args, *kwargs.values()):
            if isinstance(x, Tensor):
                if x.dtype is not robot.dtype and stands_for(x, robot.dtype):
                    robot = robot.to(x.dtype)
                break
        return compute(robot, *args, **kwargs)

    return call


def not_here(given: Any, name: str) -> str:
    """Message for an attribute that an object has not; of one that its mechanism has, what to type."""
    from torchsko.mechanism.mechanism import Mechanism  # which is written with what is here

    kind = type(given).__name__
    known = hasattr(Mechanism, name) or name in Mechanism.__dataclass_fields__
    if name.startswith("_") or not known:
        return f"{kind!r} object has no attribute {name!r}"
    return (
        f"a {kind} has no {name!r}: that is its mechanism's.\n"
        "Its methods are the functions of a mechanism; names, limits and states are the mechanism's own.\n"
        f"Type mech.{name}, or x.mechanism().{name} of this one, x."
    )


class OnlyOfMechanism:
    """An attribute that a mechanism has and an object like it has not: reading it says where it is.

    A ``__getattr__`` would say so too, but every other attribute of its class is read more slowly then.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, owner: type) -> Any:
        if obj is None:
            return self
        raise AttributeError(not_here(obj, self.name), name=self.name, obj=obj)

    @staticmethod
    def names(like: type) -> list[str]:
        """Names of what a mechanism has and a class of objects like it has not."""
        from torchsko.mechanism.mechanism import Mechanism  # as above

        every = {*dir(Mechanism), *Mechanism.__dataclass_fields__}
        return sorted(name for name in every if name[0] != "_" and not hasattr(like, name))


def kernels_of(given: Any) -> frozenset[str]:
    """Names of the methods of an object that are kernels, or may be; none of a mechanism."""
    return getattr(given, "kernels", frozenset())


def _refusal(given: Any) -> str:
    kind = type(given).__name__
    inside = _inside(given)
    if inside is None:
        return (
            f"a mechanism was wanted, not a {kind}.\n"
            "Dynamics are those of a Mechanism, a Dynamics layer or a fused mechanism.\n"
            "Pass ts.load(path), ts.Dynamics(mech) or ts.fuse(mech)."
        )
    return (
        f"a {kind} is no mechanism, though it wraps a layer that gives one.\n"
        "A wrapper computes what the layer's forward does, and nothing else of it.\n"
        f"Pass the layer itself: wrapper{inside}."
    )


def _inside(given: Any) -> str | None:
    """How to type the first layer inside of a module that wraps it."""
    named = cast("Callable[[], Any] | None", getattr(given, "named_modules", None))
    if not callable(named):
        return None
    path = next((name for name, part in named() if hasattr(part, "mechanism")), None)
    if path is None:
        return None
    return "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in path.split("."))
