"""Detection of the tensors that a function captures, and refusal of what a kernel cannot do.

`Watch` is a dispatch mode below autograd and torch.func. It distinguishes tensors that were made while it is
active from those that existed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
)

from torchsko.errors import FusedError
from torchsko.fused.tracing.swap import Swap, innermost
from torchsko.fused.tracing.symbolic import Symbolic

PASS_IT = (
    "Pass it as an argument: ts.fuse(fn, mech, shapes={name: (...)}). What a law keeps for its next step "
    "is the memory of a controller, an object with initial_memory and act: see ts.rollout."
)
"""What to do with a tensor that a kernel could not read anew."""

DRAW_OUTSIDE = (
    "Draw outside, and pass it as an argument: ts.fuse(fn, mech, shapes={'noise': (...)})."
)
"""Advice for random numbers, which kernels cannot draw."""

_LIFTS = frozenset("lift lift_fresh lift_fresh_copy".split())


class Watch(TorchDispatchMode):
    """Mode that collects captured tensors: read by an operation, neither known nor made while it is active.

    Args:
        known: arguments and constants. Tensors that share the memory of a whole known tensor are known, too;
            of a known view of a larger tensor, only the view and tensors made of it.
        swap: the active `Swap`, which has the name of the running function for messages.
        traces: refuse captured tensors of real numbers instead of collecting them.
        dtype: dtype of the kernel; operations whose result is wider are refused.

    Attributes:
        met: the captured tensors, by id.
    """

    def __init__(
        self,
        known: Iterable[Tensor],
        swap: Swap | None = None,
        *,
        traces: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self._dtype = dtype
        known = list(known)
        self._known = {_memory(x) for x in known if _is_whole(x)} - {None}
        # Keeps ids and memory valid.
        self._made: dict[int, Tensor] = {id(x): x for x in known}
        self._swap, self._traces = swap or Swap(), traces
        self._swap.is_outside = self._is_outside
        self.met: dict[int, Tensor] = {}
        # Memory of captured tensors, and of known views of larger tensors.
        self._outside = {_memory(x) for x in known} - self._known

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports torch._dynamo, which takes seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, is_random, is_mutable = _facts(func)
        if is_random:
            raise _random(self._swap.called or f"torch.{name}", name)
        # A backward pass makes aliases of saved tensors that it never reads, and a mechanism of expressions
        # makes copies: they stay captured tensors.
        is_alias = (
            self._traces and (func.is_view or name == "_to_copy") and self._is_outside(args[0])
        )
        tensors = _tensors((*args, *kwargs.values()) if kwargs else args)
        if name in _LIFTS:
            self._note_made(args)
        elif not is_alias:
            for x in tensors:
                if type(x) is not Symbolic and id(x) not in self._made and self._is_outside(x):
                    self._meet(x, name)
        if self._outside and is_mutable:
            self._refuse_writes(func, args, kwargs)
        result = func(*args, **kwargs)
        if self._dtype != torch.float64:
            self._refuse_wider(args, result)
        if not is_alias and type(result) is not Symbolic:
            self._note_made((result,))
        return result

    def _refuse_wider(self, args: Sequence[Any], result: Any) -> None:
        """Refuse an operation whose result is wider than the kernel's dtype, and its operands are not."""

        def fits(x: Tensor) -> bool:
            return torch.promote_types(x.dtype, self._dtype) == self._dtype

        wide = [x for x in _tensors((result,)) if x.is_floating_point() and not fits(x)]
        if wide and any(x.is_floating_point() and fits(x) for x in _tensors(args)):
            raise FusedError(
                f"{self._swap.called} makes {wide[0].dtype} of {self._dtype} within the function.",
                "A kernel computes in the mechanism's dtype, and would round the result.",
                f"Use {self._dtype} there, or fuse for mech.to({wide[0].dtype}).",
            )

    def _is_outside(self, x: Any) -> bool:
        if type(x) is Symbolic or not isinstance(x, Tensor):
            return False
        return id(x) not in self._made and _memory(x) not in self._known

    def _note_made(self, results: Sequence[Any]) -> None:
        for x in _tensors(results):
            if type(x) is not Symbolic:
                self._made[id(x)] = x
                key = _memory(x)
                if key is not None and key not in self._outside:
                    self._known.add(key)

    def _meet(self, x: Tensor, name: str) -> None:
        if id(x) in self.met:
            return
        if self._traces and x.is_floating_point():
            raise FusedError(
                f"{self._swap.called or name} got a captured tensor of shape {tuple(x.shape)} to which no "
                "path was found.",
                "A kernel would keep its present values as constants.",
                PASS_IT,
            )
        self.met[id(x)] = x
        self._outside.add(_memory(x))

    def _refuse_writes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse an operation that changes a captured tensor."""
        arguments = func._schema.arguments
        given = [*zip(arguments, args, strict=False)]
        given += [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]
        for argument, x in given:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and isinstance(x, Tensor) and _memory(x) in self._outside:
                raise FusedError(
                    f"{self._swap.called or func} writes into a captured tensor of shape {tuple(x.shape)}.",
                    "A kernel returns results and changes nothing.",
                    "Return the new value, and assign it after the call.",
                )


@cache
def _facts(func: Any) -> tuple[str, bool, bool]:
    """The name of an operation, whether it draws random numbers, and whether it writes into an argument."""
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    return func.overloadpacket.__name__, seeded, func._schema.is_mutable


def is_within(inputs: Iterable[Any]) -> bool:
    """True if a call with these arguments is part of a function that is traced, or evaluated for that."""
    if _are_functorch_transforms_active():  # what is traced may be wrapped
        inputs = map(innermost, inputs)
    modes = _get_current_dispatch_mode_stack()
    return any(isinstance(x, Symbolic) for x in inputs) or any(isinstance(x, Watch) for x in modes)


def _tensors(arguments: Sequence[Any]) -> list[Tensor]:
    """The tensors among the arguments of an operation and in lists of them."""
    found = []
    for x in arguments:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, (list, tuple)):
            found += [y for y in x if isinstance(y, Tensor)]
    return found


def _memory(x: Tensor) -> int | None:
    """Address of a tensor's storage; None for a tensor without one."""
    if isinstance(x, Symbolic):
        return None
    try:
        with torch._C.DisableTorchFunction():  # no call of the function's own
            return x.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def _is_whole(x: Tensor) -> bool:
    """True if a tensor covers its whole storage."""
    try:
        return x.untyped_storage().nbytes() <= x.numel() * x.element_size()
    except (NotImplementedError, RuntimeError):
        return False


def _random(called: str, name: str) -> FusedError:
    """The error for an operation that may draw random numbers."""
    function = called.removeprefix("torch.nn.functional.").removeprefix("torch.")
    if "attention" in name:
        return FusedError(
            f"{function} calls {name}, an operation that has no rule for tracing to a scalar program.",
            "It may drop weights at random, which a kernel could not.",
            "Write attention as torch.softmax(q @ k.mT / math.sqrt(n), -1) @ v, or do not fuse it.",
        )
    if "dropout" in called or "dropout" in name:
        advice = "Call .eval() on the module, or draw the mask outside and pass it as an argument."
        return random_draw(function, advice)
    return random_draw(function)


def random_draw(function: str, advice: str = DRAW_OUTSIDE) -> FusedError:
    """The error for random numbers drawn within a function.

    Args:
        function: name of the random generator, or of the function that draws.
        advice: advice of the error.
    """
    return FusedError(
        f"{function} draws random numbers within the function.",
        "A kernel would repeat the numbers drawn while it was traced.",
        advice,
    )


def constants_of(x: Any) -> Iterator[Tensor]:
    """All tensors in an object of dataclasses, tuples, lists and dicts."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict):
        yield from (t for y in x.values() for t in constants_of(y))
    elif isinstance(x, (list, tuple)):
        yield from (t for y in x for t in constants_of(y))
    elif hasattr(x, "__dataclass_fields__") and not isinstance(x, type):
        yield from (t for name in x.__dataclass_fields__ for t in constants_of(getattr(x, name)))
