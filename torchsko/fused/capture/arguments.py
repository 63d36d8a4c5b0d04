"""Arguments of a fused function after the mechanism, and the choice of them in a call."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from torchsko.actuators.law import Signature
from torchsko.errors import Fields, FusedError, unknown_name
from torchsko.fused.workshop import Eager
from torchsko.mechanism.mechanism import Mechanism


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant argument; equal constants have the same type and value: 1, 1.0 and True are three.

    Attributes:
        value: the argument.
    """

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and exact_key(self.value) == exact_key(other.value)

    def __hash__(self) -> int:
        return hash(exact_key(self.value))


def exact_key(x: Any) -> Any:
    """A dictionary key that distinguishes numbers by type, and that equals itself for nan.

    Args:
        x: a value, or a tuple of values.
    """
    if isinstance(x, tuple):
        return type(x), *map(exact_key, x)
    return (type(x), repr(x)) if isinstance(x, (bool, int, float, complex)) else x


Options = tuple[tuple[str, Constant], ...]
Choice = tuple[tuple[str, ...], Options]
"""Names of the arguments that are tensors, and the others with their values: each choice has a kernel."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of a function after the mechanism.

    Attributes:
        names: names of all arguments.
        positional: names of those that may be positional.
        required: names of those without a default.
        takes_any: whether it takes ``*args`` or ``**kwargs``.
    """

    names: tuple[str, ...]
    positional: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool

    @classmethod
    def of(cls, fn: Eager) -> Arguments:
        """Those of a function, or of a module's forward."""
        found = Signature.of(fn)
        takes_any = found.takes_any or found.takes_more
        return cls(found.names[1:], found.positional[1:], found.required[1:], takes_any)

    def chosen(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], Options]:
        """The tensors of a call by name, and its other arguments, where None is left out."""
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        if len(given) != len(args) + len(kwargs):  # too many, or one of them twice
            raise TypeError(
                f"{len(args)} arguments and {', '.join(kwargs) or 'none'} by name were given.\n"
                f"The function takes, after the mechanism, {', '.join(self.names)}.\n"
                "Pass each of them once."
            )
        states: dict[str, Tensor] = {}
        options: list[tuple[str, Constant]] = []
        for name, x in given.items():
            if isinstance(x, Tensor):
                states[name] = x
            elif x is not None:
                options.append((name, Constant(tuple(x) if isinstance(x, list) else x)))
        return states, tuple(options)

    def refuse_unknown(self, names: Iterable[str]) -> None:
        """Refuse names that the function does not take.

        Raises:
            FusedError: names the first of them, and what it takes.
        """
        for name in names:
            if name not in self.names and not self.takes_any:
                raise FusedError(*unknown_name("argument of the function", name, self.names))

    def call(
        self, fn: Eager, choice: Choice, mech: Mechanism, tensors: Sequence[Tensor]
    ) -> tuple[list[Any], Any]:
        """The results of a call of the function as a flat list, and how they are nested."""
        names, options = choice
        given = {**dict(zip(names, tensors, strict=True)), **{n: x.value for n, x in options}}
        leading = [given.pop(name) for name in takewhile(given.__contains__, self.positional)]
        return pytree.tree_flatten(fn(mech, *leading, **given))


def no_constant(options: Options) -> Fields:
    """Fields of the error that an argument is neither a tensor nor a hashable constant."""
    name, x = next(
        (n, x.value)
        for n, x in options
        if not isinstance(x.value, Hashable) or isinstance(x.value, tuple)
    )
    return (
        f"{name} was given as {'list' if isinstance(x, tuple) else type(x).__name__}.",
        "Arguments of a kernel are tensors; numbers, texts and tuples of them are its constants.",
        f"Pass torch.as_tensor({name}, dtype=...), in the type of the mechanism.",
    )
