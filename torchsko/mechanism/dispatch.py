"""Objects that provide a mechanism, and the decorator with which every verb accepts them.

Verbs accept a `Mechanism` or any object with a ``mechanism()`` method. Classes of this package that provide
one derive from `MechanismSource`, which declares every attribute that other code reads from them, with a
default. It is an ordinary class: ``isinstance`` of an abc or of a Protocol takes longer than the fused kernel
of one time step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from torch import Tensor

from torchsko.errors import MechanismError, TorchskoError
from torchsko.mechanism.fields import Shape
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import SHAPES, check_state
from torchsko.mechanism.verb_docs import full_docstring
from torchsko.utils.dtype import is_traced_as, without_autocast

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[..., Any]


class MechanismLike(Protocol):
    """Type of the first argument of every verb, for type checkers only; see `as_mechanism`."""

    def mechanism(self) -> Mechanism:
        """The mechanism with the current parameter values."""
        ...


class MechanismSource:
    """Base class of objects that provide a mechanism.

    Attributes:
        fused_methods: names of the methods that run compiled kernels in place of the verb of that name.
        fused: True runs kernels from the first call, False never does, None once they pay for their build.
    """

    fused_methods: frozenset[str] = frozenset()
    fused: bool | None = None

    def mechanism(self) -> Mechanism:
        """The mechanism with the current parameter values."""
        raise NotImplementedError

    def fuse_function(
        self,
        key: Hashable,
        fn: Callable[..., Any],
        shapes: Mapping[str, tuple[int, ...]],
        num_outputs: int,
    ) -> Callable[..., Any] | None:
        """Compile a function of the mechanism and of tensors into one kernel; None if that is impossible.

        Args:
            key: identifies the kernel; equal keys stand for equal functions.
            fn: function of the mechanism and of the tensors.
            shapes: shape of each tensor for one sample, by name.
            num_outputs: number of tensors that the function returns.
        """
        return None


class MechanismLayer(MechanismSource):
    """Base class of layers, whose parameter values change between calls; see `torchsko.Dynamics`."""

    @property
    def learned_fields(self) -> tuple[str, ...]:
        """Names of the mechanism's tensors that are learned, in whole or in part."""
        raise NotImplementedError

    @property
    def stored_fields(self) -> Mapping[str, Tensor]:
        """The mechanism's tensors by name, as stored now; learned ones have their initial values."""
        raise NotImplementedError

    def should_fuse(self, samples: int) -> bool:
        """Count eager work, and return whether kernels run from now on.

        Args:
            samples: cost of the call in samples; see `torchsko.fused.automatic`.
        """
        return False

    def fused_mechanism(self) -> MechanismSource | TorchskoError:
        """The kernels of the layer, built once; or the error that explains their absence."""
        raise NotImplementedError


def provides_mechanism(x: object) -> bool:
    """True if an object has a ``mechanism()`` method."""
    return isinstance(x, Mechanism | MechanismSource) or callable(getattr(x, "mechanism", None))


def as_mechanism(source: MechanismLike) -> Mechanism:
    """The mechanism that an object provides; a mechanism provides itself.

    Args:
        source: a mechanism, a layer, a fused mechanism, or any object with a ``mechanism()`` method.

    Raises:
        MechanismError: when the object has no such method; the message names a layer found inside it.
    """
    if not provides_mechanism(source):
        raise _refusal(source)
    return source.mechanism()


def fused_methods_of(source: object) -> frozenset[str]:
    """Names of the methods of an object that run compiled kernels."""
    return source.fused_methods if isinstance(source, MechanismSource) else frozenset()


@overload
def verb(
    fn: Callable[Concatenate[Mechanism, P], R], /
) -> Callable[Concatenate[MechanismLike, P], R]: ...
@overload
def verb(
    *,
    shapes: Mapping[str, Shape] | None = None,
    eager_options: Collection[str] = (),
    check: Check | None = check_state,
) -> Callable[
    [Callable[Concatenate[Mechanism, P], R]], Callable[Concatenate[MechanismLike, P], R]
]: ...
def verb(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    shapes: Mapping[str, Shape] | None = None,
    eager_options: Collection[str] = (),
    check: Check | None = check_state,
) -> Callable[..., Any]:
    """Make a function of a mechanism a verb.

    A verb accepts any object that provides a mechanism; one with a kernel for the verb runs the kernel.
    Arguments annotated as tensors are checked: shape, dtype, device and batch. The docstring is completed by
    `torchsko.mechanism.verb_docs`. Autocast is disabled inside.

    Args:
        fn: the function, if the decorator has no arguments.
        shapes: shapes, for one sample, of tensor arguments that are not in `torchsko.mechanism.state.SHAPES`:
            numbers and names of attributes of the mechanism.
        eager_options: arguments that choose an algorithm. A call that passes one runs eagerly. The verb
            checks those that are tensors.
        check: checks the tensors; `check_coordinates` for a verb that reads no parameter of the mechanism,
            whose batch dimensions do not matter then; None if the function checks them.
    """
    options = {"shapes": shapes or {}, "eager_options": frozenset(eager_options), "check": check}
    return partial(_verb, **options) if fn is None else _verb(fn, **options)


def _verb(
    fn: Callable[..., Any],
    *,
    shapes: Mapping[str, Shape],
    eager_options: frozenset[str],
    check: Check | None,
) -> Callable[..., Any]:
    name = fn.__name__
    _, *arguments = parameters = inspect.signature(fn).parameters.values()
    positional = [p.name for p in arguments if p.kind is not p.KEYWORD_ONLY]
    tensors = _tensor_shapes([p for p in arguments if p.name not in eager_options], shapes)
    optional = {p.name for p in arguments if p.default is None}
    compute = without_autocast(fn)

    @wraps(fn)
    def call(mech: MechanismLike, *args: Any, **kwargs: Any) -> Any:
        if name in fused_methods_of(mech) and not eager_options & kwargs.keys():
            return getattr(mech, name)(*args, **kwargs)
        robot = as_mechanism(mech)
        # Not Signature.bind, which takes longer than the kernel of a sample.
        given = {**dict(zip(positional, args, strict=False)), **kwargs}
        states = {
            n: given[n] for n in tensors if n in given and not (given[n] is None and n in optional)
        }
        for x in states.values():
            if isinstance(x, Tensor):
                robot = in_traced_dtype(robot, x)
                break
        if check is not None:
            check(robot, tensors, **states)
        return compute(robot, *args, **kwargs)

    call.__doc__ = full_docstring(fn.__doc__ or "", [p.name for p in parameters], tensors)
    call.shapes = tensors  # type: ignore[attr-defined]
    return call


def _tensor_shapes(
    arguments: Iterable[inspect.Parameter], declared: Mapping[str, Shape]
) -> dict[str, Shape]:
    """Shapes of tensor arguments by name."""
    names = [p.name for p in arguments if _is_tensor(p.annotation)]
    known = {**SHAPES, **declared}
    if missing := [name for name in names if name not in known]:
        raise TypeError(
            f"the shape of {', '.join(missing)} is not known: declare it, for example "
            f"@verb(shapes={{{missing[0]!r}: (3,)}})"
        )
    return {name: known[name] for name in names}


def _is_tensor(annotation: Any) -> bool:
    """True for the annotations ``Tensor`` and ``Tensor | ...``, as types or as texts."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.removeprefix("torch.").startswith("Tensor")


def in_traced_dtype(mech: Mechanism, x: Tensor) -> Mechanism:
    """The mechanism in the dtype of a traced tensor whose kernel has the dtype of the mechanism."""
    is_other = x.dtype is not mech.dtype and is_traced_as(x, mech.dtype)
    return mech.to(x.dtype) if is_other else mech


def missing_attribute(source: Any, name: str) -> str:
    """Message for a missing attribute, with the expression that reads an attribute of Mechanism."""
    kind = type(source).__name__
    known = hasattr(Mechanism, name) or name in Mechanism.__dataclass_fields__
    if name.startswith("_") or not known:
        return f"{kind!r} object has no attribute {name!r}"
    return (
        f"a {kind} has no attribute {name!r}; a Mechanism has.\n"
        f"The methods of a {kind} are verbs; names, limits and states belong to its mechanism.\n"
        f"Type mech.{name}, or x.mechanism().{name} for this object x."
    )


class MechanismAttribute:
    """Descriptor that refuses an attribute of the mechanism, with the expression that reads it.

    A ``__getattr__`` would slow down every other attribute of the class.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, owner: type) -> Any:
        if obj is None:
            return self
        raise AttributeError(missing_attribute(obj, self.name), name=self.name, obj=obj)

    @staticmethod
    def add_to(owner: type) -> None:
        """Add a descriptor to a class for each public attribute of Mechanism that the class lacks."""
        for name in {*dir(Mechanism), *Mechanism.__dataclass_fields__}:
            if name[0] != "_" and not hasattr(owner, name):
                setattr(owner, name, MechanismAttribute(name))


def _refusal(source: Any) -> MechanismError:
    kind = type(source).__name__
    inner = _inner_layer(source)
    if inner is None:
        return MechanismError(
            f"expected a mechanism, got a {kind}.",
            "Verbs accept a Mechanism or any object with a mechanism() method.",
            "Pass ts.load(path), ts.Dynamics(mech) or ts.fuse(mech).",
        )
    return MechanismError(
        f"expected a mechanism, got a {kind}, which wraps a layer that provides one.",
        "A wrapper has only the layer's forward, not its verbs.",
        f"Pass the layer: wrapper{inner}.",
    )


def _inner_layer(module: Any) -> str | None:
    """Python expression that reads the first layer inside a module, such as ``.module`` or ``[0]``."""
    from torch import nn  # only on the way to an error

    if not isinstance(module, nn.Module):
        return None
    path = next((name for name, part in module.named_modules() if provides_mechanism(part)), None)
    if path is None:
        return None
    return "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in path.split("."))
