"""Signature of a verb, as layers and kernels use it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from torchsko.errors import FusedError
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.fields import PARAMETERS, Shape
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import SHAPES
from torchsko.verbs.frame import Frame

P = ParamSpec("P")
R = TypeVar("R")
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Row:
    """Signature of a verb; made by `make_row`.

    Attributes:
        name: name of the verb.
        function: the function, whose first argument is a mechanism.
        positional: arguments after the mechanism that may be passed by position.
        required: arguments without a default.
        arguments: all arguments after the mechanism.
        shapes: shape for one sample of each argument that is a tensor, in the order of the signature.
        options: default value of each other argument.
        num_outputs: number of tensors that the function returns; 0 if it returns something else.
        pack: makes the result from a tuple of tensors.
        refuses: reason why an option has no kernel, for all its values or by value; the name "" stands for
            the verb itself.
        default_of: functions of (mechanism, options) that give the value of an option passed as None.
    """

    name: str
    function: Callable[..., Any]
    positional: tuple[str, ...]
    required: frozenset[str]
    arguments: frozenset[str]
    shapes: Mapping[str, Shape]
    options: Mapping[str, Any]
    num_outputs: int
    pack: Callable[[tuple[Tensor, ...]], Any]
    refuses: Mapping[str, str | Mapping[Any, str]]
    default_of: Mapping[str, Callable[..., Any]]

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the arguments that are tensors."""
        return tuple(self.shapes)

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], Options]:
        """Separate the arguments of a call into tensors by name and the values of all options.

        Raises:
            TypeError: as a call of the function with these arguments would.
        """
        given = dict(zip(self.positional, args, strict=False))
        given.update(kwargs)
        all_known = len(given) == len(args) + len(kwargs) and self.required.issubset(given)
        if not all_known or not self.arguments.issuperset(given):
            inspect.signature(self.function).bind(None, *args, **kwargs)
        states = {n: given[n] for n in self.shapes if given.get(n) is not None}
        options = [(n, _as_key(given.get(n, default))) for n, default in self.options.items()]
        return states, tuple(options)

    def refusal(self, options: Options) -> FusedError | None:
        """The error for options that have no kernel; None if there is one."""
        for name, value in (("", None), *options):
            rule = self.refuses.get(name)
            reason = rule.get(value) if isinstance(rule, Mapping) else rule
            if reason is not None and (not name or value is not self.options[name]):
                option = f"{name}={value!r}" if isinstance(rule, Mapping) else name
                what = f"{self.name} has no kernel" + (f" for {option}" if name else "")
                return FusedError(f"{what}.", reason, f"Call {self._eager_call}.")
        if names := [name for name, value in options if _holds_tensors(value)]:
            return FusedError(
                f"{', '.join(names)} of {self.name} is a tensor, or a Frame, which contains tensors.",
                "It is a constant of the kernel, but a tensor's values may differ from call to call.",
                "Pass a number or names. Or fuse a function that captures the tensor, "
                f"ts.fuse(lambda mech, q: ts.{self.name}(mech, q, ...), mech). Or call {self._eager_call}.",
            )
        return None

    @property
    def _eager_call(self) -> str:
        return f"ts.{self.name}(fast.mechanism(), ...), which runs eagerly"

    def bound(self, names: Iterable[str], options: Options, like: Mechanism) -> Callable[..., Any]:
        """The verb as a function of the mechanism and of positional tensors, with fixed options.

        Args:
            names: names of the tensors, in their order.
            options: values of the options.
            like: mechanism whose dtype gives defaults; a traced mechanism has no dtype.
        """
        names, chosen = tuple(names), dict(options)
        for name, default in self.default_of.items():
            chosen[name] = default(like, chosen) if chosen[name] is None else chosen[name]

        def call(mech: Mechanism, *tensors: Tensor) -> Any:
            return self.function(mech, **dict(zip(names, tensors, strict=True)), **chosen)

        return call


def make_row(
    function: Callable[..., Any],
    outputs: int | type[tuple] = 1,
    *,
    tensors: str = "",
    name: str | None = None,
    refuses: Mapping[str, str | Mapping[Any, str]] | None = None,
    default_of: Mapping[str, Callable[..., Any]] | None = None,
) -> Row:
    """Declare a verb.

    Args:
        function: function whose first argument is a mechanism.
        outputs: number of tensors that it returns, or the named tuple of them.
        tensors: names of its tensor arguments, separated by spaces; those of `verb` if left out.
        name: name of the verb; that of the function if left out.
        refuses: see `Row`.
        default_of: see `Row`.
    """
    arguments = [*inspect.signature(function).parameters.values()][1:]
    known = {**PARAMETERS, **SHAPES}
    shapes = {n: known[n] for n in tensors.split()} or getattr(function, "shapes", {})
    return Row(
        name or function.__name__,
        function,
        tuple(a.name for a in arguments if a.kind is not a.KEYWORD_ONLY),
        frozenset(a.name for a in arguments if a.default is a.empty),
        frozenset(a.name for a in arguments),
        shapes,
        {a.name: a.default for a in arguments if a.name not in shapes},
        outputs if isinstance(outputs, int) else len(outputs._fields),  # type: ignore[attr-defined]
        tuple if isinstance(outputs, int) else outputs._make,  # type: ignore[attr-defined]
        refuses or {},
        default_of or {},
    )


def _holds_tensors(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, Tensor | Frame) for part in parts)


def _as_key(value: Any) -> Any:
    """An option's value as part of a dictionary key: sequences of names become tuples."""
    if value is None or isinstance(value, (str, tuple, Tensor)) or not isinstance(value, Iterable):
        return value
    return tuple(value)


def method(
    function: Callable[Concatenate[MechanismLike, P], R],
    outputs: int | type[tuple] = 1,
    **row: Any,
) -> Callable[Concatenate[Any, P], R]:
    """Make a verb a method of objects that provide a mechanism; arguments as in `make_row`."""
    made = make_row(function, outputs, **row)

    @wraps(function)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._verb(made, args, kwargs)

    call.__doc__ = f"{(function.__doc__ or '').partition(chr(10))[0]} See `torchsko.{made.name}`."
    call.row = made  # type: ignore[attr-defined]
    return call
