"""Control laws and external forces as functions of the state, with arguments found by their signature.

A law is a function of (t, q, qd), or of (mech, t, q, qd) with the mechanism of the rollout as first argument.
It takes tensors of `LawInputs` by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from torchsko.errors import ShapeError, TorchskoError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import are_broadcastable, is_expandable

Named = Mapping[str, Tensor]
"""Tensors by name."""


@dataclass(frozen=True)
class Signature:
    """Arguments of a function.

    Attributes:
        names: names of all arguments.
        positional: names of arguments that may be positional.
        required: names of arguments without a default.
        takes_any: whether it has ``**kwargs``.
        takes_more: whether it has ``*args``.
    """

    names: tuple[str, ...]
    positional: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool
    takes_more: bool

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> Signature:
        """The signature of a function, or of a module's forward.

        Raises:
            ValueError: for C functions that have no signature.
        """
        source = fn.forward if isinstance(fn, Module) else fn
        if torch.compiler.is_compiling():  # Dynamo cannot trace inspect.signature
            return cls._of_code(source, is_method=isinstance(fn, Module))
        arguments = inspect.signature(source).parameters.values()
        named = [a for a in arguments if a.kind not in (a.VAR_KEYWORD, a.VAR_POSITIONAL)]
        return cls(
            tuple(a.name for a in named),
            tuple(a.name for a in named if a.kind is not a.KEYWORD_ONLY),
            tuple(a.name for a in named if a.default is a.empty),
            any(a.kind is a.VAR_KEYWORD for a in arguments),
            any(a.kind is a.VAR_POSITIONAL for a in arguments),
        )

    @classmethod
    def _of_code(cls, fn: Any, *, is_method: bool) -> Signature:
        """The signature of a Python function from its code; that of a method without ``self``."""
        source = getattr(fn, "__func__", fn)
        if not hasattr(source, "__code__"):
            raise ValueError
        code, defaults = source.__code__, source.__defaults__ or ()
        count, keyword = code.co_argcount, code.co_kwonlyargcount
        names = code.co_varnames[: count + keyword]
        required = (*names[: count - len(defaults)], *names[count:])
        try:
            optional = source.__kwdefaults__ or {}
        except AttributeError:  # Dynamo lacks the attribute for closures that it creates
            optional = {}
        bound = 1 if is_method or hasattr(fn, "__func__") else 0
        return cls(
            tuple(names[bound:]),
            tuple(names[bound:count]),
            tuple(n for n in required[bound:] if n not in optional),
            bool(code.co_flags & inspect.CO_VARKEYWORDS),
            bool(code.co_flags & inspect.CO_VARARGS),
        )


@dataclass(frozen=True)
class Binding:
    """Arguments that a function takes.

    Attributes:
        takes_mechanism: whether the mechanism is the first argument.
        names: names of the tensors that it takes by name.
    """

    takes_mechanism: bool
    names: tuple[str, ...]

    def call(
        self, fn: Callable[..., Any], mech: Mechanism, arguments: Sequence[Any], inputs: Named
    ) -> Any:
        """Call the function."""
        first = (mech,) if self.takes_mechanism else ()
        return fn(*first, *arguments, **{name: inputs[name] for name in self.names})


def bind(fn: Callable[..., Any], count: int, names: Sequence[str] = ()) -> Binding | None:
    """Bind a function of `count` positional arguments, and perhaps of the mechanism before them.

    Args:
        fn: the function or module.
        count: number of positional arguments after the mechanism.
        names: names of tensors that may be passed by name.

    Returns:
        None if the function cannot be called so.
    """
    if isinstance(fn, type):
        return None
    try:
        signature = Signature.of(fn)
    except ValueError:
        return Binding(False, ())
    except TypeError:
        return None
    positional = [name for name in signature.positional if name not in names]
    required = [name for name in positional if name in signature.required]
    keyword = {*signature.required} - {*signature.positional}
    takes_mechanism = len(required) == count + 1
    fits = len(required) <= count and (len(positional) >= count or signature.takes_more)
    if not (takes_mechanism or fits) or not keyword <= {*names}:
        return None
    taken = tuple(n for n in names if n in signature.names or signature.takes_any)
    return Binding(takes_mechanism, taken)


@dataclass(frozen=True, eq=False)
class Law:
    """A function of time [s], configuration and velocity.

    Attributes:
        function: of (t, q, qd), or of (mech, t, q, qd), and of tensors by name.
        binding: its arguments.
    """

    function: Callable[..., Tensor]
    binding: Binding

    def __call__(
        self, mech: Mechanism, t: float | Tensor, q: Tensor, qd: Tensor, inputs: Named
    ) -> Tensor:
        """The value at a state."""
        return self.binding.call(self.function, mech, (t, q, qd), inputs)


def law_of(argument: str, fn: Any, names: Sequence[str], returns: str, example: str) -> Law:
    """Read the arguments of a law.

    Args:
        argument: name of the argument that is the law.
        fn: the function.
        names: names of `LawInputs`.
        returns: description of the result, for the message.
        example: an example of a law.

    Raises:
        TorchskoError: on a function with other arguments.
    """
    binding = bind(fn, 3, names)
    if binding is None:
        known = f", and by name any of {', '.join(names)}" if names else ""
        raise TorchskoError(
            f"{argument} is {getattr(fn, '__name__', fn)}, which cannot be called with t, q and qd, or "
            f"with mech, t, q and qd{known}.",
            f"It maps time [s], configuration and velocity to {returns}.",
            f"Pass {example}; tensors that it takes by name are in params= or series=.",
        )
    return Law(fn, binding)


@dataclass(frozen=True, eq=False)
class LawInputs:
    """Tensors that laws take by name.

    Attributes:
        params: constant in time, `[*batch, *shape]`.
        series: constant over each step, `[*batch, steps or 1, *shape]`.
    """

    params: Named
    series: Named

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return (*self.params, *self.series)

    def merged(self, params: Named, series: Named) -> LawInputs:
        """These tensors and further ones."""
        return LawInputs({**self.params, **params}, {**self.series, **series})


def check_law_inputs(
    params: Any, series: Any, steps: int, batch: Sequence[int], dtype: torch.dtype
) -> LawInputs:
    """Check parameters and series as `torchsko.rollout` takes them.

    Raises:
        ShapeError: names the tensor that does not fit.
        TorchskoError: on an argument that is not a mapping, or a name in both.
    """
    for argument, given in (("params", params), ("series", series)):
        if given is not None and not isinstance(given, Mapping):
            raise TorchskoError(
                f"{argument} is a {type(given).__name__}.",
                "Laws take these tensors by name.",
                f'Pass {argument}={{"target": tensor}}.',
            )
    params, series, lead = {**(params or {})}, {**(series or {})}, len(batch)
    for name in params.keys() & series.keys():
        raise TorchskoError(
            f"{name!r} is in params and in series.",
            "A law takes one tensor by this name.",
            "Rename one of them.",
        )
    for name, x in (*params.items(), *series.items()):
        timed = name in series
        shape = [*batch, *([steps] if timed else []), "..."]
        fits = isinstance(x, Tensor) and x.ndim >= lead + timed
        fits = fits and is_expandable(tuple(x.shape[:lead]), tuple(batch))
        if not fits or (timed and x.shape[lead] not in (1, steps)):
            found = f"has shape {list(x.shape)}" if isinstance(x, Tensor) else f"is {x!r}"
            raise ShapeError(
                f"{name!r} in {'series' if timed else 'params'} {found}.",
                f"The batch is {list(batch)}, and the rollout has {steps} steps.",
                f"Pass a tensor of shape {str(shape).replace(repr('...'), '...')}; dimensions of 1 expand. "
                "A tensor that all samples share can be captured by the law.",
            )
        if x.is_floating_point() and x.dtype != dtype:
            raise ShapeError(
                f"{name!r} is {x.dtype}, the mechanism {dtype}.",
                "Dtypes are not converted implicitly.",
                f"Pass the tensor in {dtype}.",
            )
    return LawInputs(params, series)


def refuse_unused_inputs(inputs: LawInputs, bindings: Sequence[Binding]) -> None:
    """Refuse tensors that no law takes.

    Raises:
        TorchskoError: names the tensor.
    """
    taken = {name for binding in bindings for name in binding.names}
    for name in inputs.names:
        if name not in taken:
            raise TorchskoError(
                f"{name!r} in params or series is taken by no function of the rollout.",
                "Functions and controllers take such tensors as arguments of that name.",
                f"Write def law(t, q, qd, *, {name}), or leave {name!r} out.",
            )


def as_step_series(
    name: str, x: Tensor, shape: tuple[int, ...], steps: int, batch: Sequence[int]
) -> Tensor:
    """A series of steps from a tensor that is constant in time or a series.

    With at most as many leading dimensions as the batch, a tensor is constant in time; with more, the last of
    them is time. The sizes do not decide.

    Args:
        name: name of the argument.
        x: `[*batch, *shape]` or `[*batch, steps or 1, *shape]`; the last dimensions are checked before.
        shape: of one sample and step.
        steps: number of steps.
        batch: batch dimensions of the state.

    Returns:
        `[*batch, steps or 1, *shape]`.

    Raises:
        ShapeError: when the leading dimensions do not fit.
    """
    lead = tuple(x.shape[: x.ndim - len(shape)])
    if len(lead) <= len(batch):
        fits = is_expandable(lead, tuple(batch))
    else:
        fits = lead[-1] in (1, steps) and are_broadcastable(lead[:-1], tuple(batch))
    if fits:
        return x.unsqueeze(-1 - len(shape)) if len(lead) <= len(batch) else x
    last = ", ".join(map(str, shape))
    raise ShapeError(
        f"{name} has shape {list(x.shape)} for {steps} steps and the batch {list(batch)}.",
        "It is constant in time, with the batch dimensions of the state, or has one more dimension, time.",
        f"Pass [*batch, {last}] or [*batch, {steps}, {last}]; {name}[None] is one series for all samples.",
    )
