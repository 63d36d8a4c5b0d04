"""Tensors that a function reads from outside of its arguments, as inputs of its kernels.

`discover` runs the function once and finds them; `Captured` reads them anew at every call, and tells what
is no longer as it was found then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchsko.errors import FusedError
from torchsko.fused.capture.constants import Constants
from torchsko.fused.capture.sources import GONE, Link, Reachable, Step, follow_all, names_in
from torchsko.fused.capture.watch import PASS_IT, Swap, Watch, constants_of
from torchsko.fused.tracing.clean import concrete, is_wrapped, refuse_when_run
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import is_traced_as


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
            "not found, or the function has put another one there.",
            "A kernel reads it anew at each call, through names, attributes and containers.",
            f"{PASS_IT}",
        )
    name = reach.name_of(held)
    if isinstance(held, Mechanism):
        return Capture(name, path)
    shape = tuple(held.shape)
    if not held.is_floating_point() and not held.is_complex():
        return Capture(name, path, shape, held.dtype)
    if torch.promote_types(held.dtype, dtype) != dtype:
        raise FusedError(
            f"{name} is {held.dtype}, the mechanism {dtype}.",
            "A kernel has one type, and nothing is rounded in silence.",
            f"Make it {name}.to({dtype}).",
        )
    return Capture(name, path, shape, held.dtype, is_input=True)


class Captured:
    """Captures of a function, with the links that lead to them now.

    Attributes:
        inputs: the captures that are inputs of the kernels.
        constants: tensors of mechanisms that the function closes over.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        captures: Sequence[Capture],
        own: frozenset[str] = frozenset(),
        fixed: Sequence[Tensor] = (),
    ) -> None:
        self.inputs = tuple(c for c in captures if c.is_input)
        self.constants: tuple[Tensor, ...] = ()
        self._links: list[tuple[Link, ...]] = []
        self._still: list[tuple[str, Link, Any]] = []
        self._fixed: list[tuple[str, tuple[Link, ...], Tensor]] = []
        self._lists: list[tuple[str, nn.Module, tuple[str, ...]]] = []
        self._learnable: list[tuple[str, Tensor]] = []
        self._modules: list[tuple[nn.Module, bool, tuple[str, ...], tuple[Any, ...]]] = []
        if not captures:
            self._values = Constants(fn, own, fixed=fixed)
            return
        reach = Reachable(fn)
        held = [follow_all(fn, c.path) for c in captures]
        for capture, x in zip(captures, held, strict=True):
            if capture.is_input:
                self._links.append(reach.links_to(x))
            elif isinstance(x, Tensor):
                self._fixed.append((capture.name, reach.links_to(x), x.detach().clone()))
            else:
                constants = [t for t in constants_of(x) if not (t.requires_grad or is_wrapped(t))]
                self.constants += tuple(constants)
                self._learnable += [(capture.name, t) for t in constants if t.is_floating_point()]
                self._still += [(capture.name, link, x) for link in reach.links_to(x)]
        modules: dict[int, nn.Module] = {}
        for x in reach.holders_of(held):
            self._still += [(reach.name_of(x), link, x) for link in reach.links_to(x)]
            if isinstance(x, nn.Module):
                modules |= {id(m): m for m in x.modules()}
            if isinstance(x, (nn.ParameterList, nn.ParameterDict)):  # read by no name
                self._lists.append((reach.name_of(x), x, _entries(x)))
        parts = frozenset((id(x), n) for x in modules.values() for n in x._modules)
        self._still = [s for s in self._still if (id(s[1].holder), s[1].step[1]) not in parts]
        for x in modules.values():
            name = reach.name_of(x)
            for n, child in x._modules.items():
                self._still.append((f"{name}.{n}", Link(x._modules, ("item", n)), child))
            self._modules.append((x, x.training, tuple(x._modules), _besides(x)))
        self._values = Constants(fn, own, parts, fixed)

    def read(self) -> tuple[Tensor, ...] | str:
        """The inputs' tensors as they are now, or the name of a constant of the kernels that is another.

        Raises:
            FusedError: a tensor does not fit the kernels.
        """
        if (name := self._changed()) is not None:
            return name
        current = []
        for capture, links in zip(self.inputs, self._links, strict=True):
            x = _one(links)
            if x is None:
                return capture.name
            current.append(_fitting(capture, x))
        return tuple(current)

    def _changed(self) -> str | None:
        if (name := self._values.changed()) is not None:
            return name
        for name, link, held in self._still:
            if not link.holds(held):
                return name
        for module, training, names, besides in self._modules:
            kind = type(module).__name__
            if tuple(module._modules) != names:
                return kind
            if _besides(module) != besides:
                return f"what a call of {kind} runs (its hooks, its forward)"
            if module.training is not training and _reads_mode(type(module)):
                return f"the training mode of {kind}"
        for name, module, entries in self._lists:
            if _entries(module) != entries:
                return name
        for name, links, value in self._fixed:
            x = _one(links)
            if x is None or _differs(name, x, value):
                return name
        return next((name for name, x in self._learnable if x.requires_grad), None)


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


def _entries(module: nn.Module) -> tuple[str, ...]:
    """Names of the tensors that a module holds."""
    return *module._parameters, *module._buffers


def _reads_mode(kind: type) -> bool:
    """Whether a module's own functions ask whether it trains, as dropout's do."""
    owners = kind.__mro__[: kind.__mro__.index(nn.Module)]
    functions = (f for owner in owners for f in vars(owner).values() if isinstance(f, FunctionType))
    return any("training" in names_in(f.__code__) for f in functions)


def _read(link: Link) -> Any:
    """What is at a link now; None if nothing is."""
    try:
        return link.read()
    except GONE:
        return None


def _one(links: tuple[Link, ...]) -> Tensor | None:
    """The tensor that all links hold; None if there is none."""
    x = _read(links[0])
    for link in links[1:]:
        if _read(link) is not x:
            return None
    return x if isinstance(x, Tensor) else None


def _fitting(capture: Capture, x: Tensor) -> Tensor:
    other = x.dtype != capture.dtype and not is_traced_as(x, cast(torch.dtype, capture.dtype))
    if other or x.shape != capture.shape:
        raise FusedError(
            f"{capture.name} is now {tuple(x.shape)} of {x.dtype}.",
            f"The kernels were made for {capture.shape} of {capture.dtype}.",
            "Call ts.fuse again.",
        )
    return x


def _differs(name: str, x: Tensor, value: Tensor) -> bool:
    if torch.compiler.is_compiling():
        refuse_when_run((x == value).all(), f"{name} has changed, which kernels hold constant.")
        return False
    return not torch.equal(x, value)
