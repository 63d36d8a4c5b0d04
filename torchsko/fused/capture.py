"""Tensors that a function reads from outside of its arguments, as inputs of its kernels.

`discover` runs the function once and finds them; `Captured` reads them anew at every call, and
refuses the call where what it found then cannot be told from what is there now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchsko.errors import FusedError
from torchsko.fused.clean import concrete, is_wrapped, refuse_when_run
from torchsko.fused.constants import Constants
from torchsko.fused.sources import Link, Reachable, Step, follow_all, names_in
from torchsko.fused.watch import PASS_IT, Swap, Watch, constants_of
from torchsko.mechanism.mechanism import Mechanism
from torchsko.precision import stands_for

_GONE = (LookupError, AttributeError, TypeError, ValueError)


@dataclass(frozen=True)
class Capture:
    """Something that a function reads from outside.

    Attributes:
        name: for messages.
        path: the steps to it from the function.
        shape: of a tensor.
        dtype: of a tensor.
        is_input: whether it is an input of the kernels; else a constant that must not change.
    """

    name: str
    path: tuple[Step, ...]
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    is_input: bool = False


def discover(
    fn: Callable[..., Any],
    run: Callable[[], Any],
    known: Iterable[Tensor],
    dtype: torch.dtype,
    wrapped: Sequence[Tensor] = (),
) -> tuple[Any, tuple[Capture, ...]]:
    """Run a function once, and find what it reads from outside.

    Args:
        fn: the function.
        run: calls it.
        known: tensors that are its arguments, or constants on purpose.
        dtype: of the kernels.
        wrapped: tensors of a transform of torch.func, which does not reach the run; values stand in.

    Returns:
        What the run returned, and the captures.

    Raises:
        FusedError: on a random draw, a write into a tensor from outside, or a tensor that cannot be
            an input.
    """
    values = [concrete(x).reshape(-1, *x.shape)[0] for x in wrapped]
    stands_for = {id(value): x for value, x in zip(values, wrapped, strict=True)}
    swap = Swap(wrapped, values)
    watch = Watch(known, swap, dtype=dtype)
    with watch, swap:
        result = run()
    if not watch.met:
        return result, ()
    reach = Reachable(fn)
    owner = {
        id(x): mech
        for mech in reach.mechanisms()
        for x in constants_of(mech)
        if not (x.requires_grad or is_wrapped(x))
    }
    found: dict[int, Capture] = {}
    for met in watch.met.values():
        x = stands_for.get(id(met), met)
        held = owner.get(id(x), x)
        if id(held) not in found:
            found[id(held)] = _capture(reach, held, dtype)
    return result, tuple(found.values())


def _capture(reach: Reachable, held: Any, dtype: torch.dtype) -> Capture:
    path = reach.path_to(held)
    if path is None:
        raise FusedError(
            f"the function reads a tensor {tuple(held.shape)} from outside, and where it is kept was "
            "not found, or the function has put another one there.\n"
            f"A kernel reads it anew at each call, through names, attributes and containers.\n{PASS_IT}"
        )
    name = reach.name_of(held)
    if isinstance(held, Mechanism):
        return Capture(name, path)
    shape = tuple(held.shape)
    if not held.is_floating_point() and not held.is_complex():
        return Capture(name, path, shape, held.dtype)
    if torch.promote_types(held.dtype, dtype) != dtype:
        raise FusedError(
            f"{name} is {held.dtype}, the mechanism {dtype}.\n"
            f"A kernel has one type, and nothing is rounded in silence.\nMake it {name}.to({dtype})."
        )
    return Capture(name, path, shape, held.dtype, is_input=True)


class Captured:
    """Captures of a function, with the links that lead to them now.

    Attributes:
        inputs: the captures that are inputs of the kernels.
        constants: tensors of mechanisms that the function closes over.
        values: Python's numbers and the like, which are constants.
    """

    def __init__(self, fn: Callable[..., Any], captures: Sequence[Capture]) -> None:
        self.inputs = tuple(c for c in captures if c.is_input)
        self.constants: tuple[Tensor, ...] = ()
        self.values = Constants(fn)
        self._links: list[tuple[Link, ...]] = []
        self._still: list[tuple[str, Link, Any]] = []
        self._fixed: list[tuple[str, tuple[Link, ...], Tensor]] = []
        self._modules: list[tuple[nn.Module, bool, tuple[str, ...], tuple[Any, ...]]] = []
        if not captures:
            return
        reach = Reachable(fn)
        held = [follow_all(fn, c.path) for c in captures]
        for capture, x in zip(captures, held, strict=True):
            if capture.is_input:
                self._links.append(reach.links_to(x))
            elif isinstance(x, Tensor):
                self._fixed.append((capture.name, reach.links_to(x), x.detach().clone()))
            else:
                self.constants += tuple(
                    t for t in constants_of(x) if not (t.requires_grad or is_wrapped(t))
                )
                self._still += [(capture.name, link, x) for link in reach.links_to(x)]
        modules: dict[int, nn.Module] = {}
        for x in reach.holders_of(held):
            self._still += [(reach.name_of(x), link, x) for link in reach.links_to(x)]
            if isinstance(x, nn.Module):
                modules |= {id(m): m for m in x.modules()}
        for x in modules.values():
            name = reach.name_of(x)
            for n, child in x._modules.items():
                self._still.append((f"{name}.{n}", Link(x._modules, ("item", n)), child))
            self._modules.append((x, x.training, tuple(x._modules), _besides(x)))

    def refuse_changed_values(self) -> None:
        """Refuse to make another kernel where a value is no longer that of those before.

        Raises:
            FusedError: names the value.
        """
        if (name := self.values.changed()) is not None:
            raise FusedError(changed(name))

    def current(self) -> tuple[Tensor, ...]:
        """The inputs' tensors as they are now.

        Raises:
            FusedError: something that kernels hold constant has changed, or a tensor does not fit.
        """
        for name, link, held in self._still:
            if not _is(_read(name, link), held):
                raise FusedError(changed(name))
        for module, training, names, besides in self._modules:
            if tuple(module._modules) != names:
                raise FusedError(changed(type(module).__name__))
            if _besides(module) != besides:
                what = f"what a call of {type(module).__name__} runs (its hooks, its forward)"
                raise FusedError(changed(what))
            if module.training is not training and _reads_mode(type(module)):
                raise FusedError(changed(f"the training mode of {type(module).__name__}"))
        for name, links, value in self._fixed:
            _refuse_change(name, _agreed(name, links), value)
        pairs = zip(self.inputs, self._links, strict=True)
        return tuple(_fitting(capture, links) for capture, links in pairs)


def _besides(module: nn.Module) -> tuple[Any, ...]:
    """What a call of a module runs besides what its class says, or instead."""
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )
    own = module.__dict__.get("forward")
    if own is None and not any(hooks):
        return ()
    return own, *(tuple(h.values()) for h in hooks)


def _reads_mode(kind: type) -> bool:
    """Whether a module's own functions ask whether it trains, as dropout's do."""
    owners = kind.__mro__[: kind.__mro__.index(nn.Module)]
    functions = (f for owner in owners for f in vars(owner).values() if isinstance(f, FunctionType))
    return any("training" in names_in(f.__code__) for f in functions)


def _is(now: Any, held: Any) -> bool:
    # A method read from a class is a new object each time.
    return now is held or (isinstance(held, MethodType) and now == held)


def _read(name: str, link: Link) -> Any:
    try:
        return link.read()
    except _GONE:
        raise FusedError(changed(name)) from None


def _agreed(name: str, links: tuple[Link, ...]) -> Tensor:
    """The tensor that all links hold."""
    x = _read(name, links[0])
    for link in links[1:]:
        if _read(name, link) is not x:
            raise FusedError(changed(name))
    if not isinstance(x, Tensor):
        raise FusedError(changed(name))
    return x


def _fitting(capture: Capture, links: tuple[Link, ...]) -> Tensor:
    x = _agreed(capture.name, links)
    other = x.dtype != capture.dtype and not stands_for(x, cast(torch.dtype, capture.dtype))
    if other or x.shape != capture.shape:
        raise FusedError(
            f"{capture.name} is now {tuple(x.shape)} of {x.dtype}.\n"
            f"The kernels were made for {capture.shape} of {capture.dtype}.\n"
            "Call ts.fuse again."
        )
    return x


def _refuse_change(name: str, x: Tensor, value: Tensor) -> None:
    if torch.compiler.is_compiling():
        refuse_when_run((x == value).all(), changed(name))
    elif not torch.equal(x, value):
        raise FusedError(changed(name))


def changed(name: str) -> str:
    """Message that something is no longer what kernels hold constant."""
    return (
        f"{name} has changed since the kernels were made.\n"
        "They hold it constant: only tensors of real numbers are read anew.\n"
        "Call ts.fuse again, or pass what changes as an argument."
    )
