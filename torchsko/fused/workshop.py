"""Fused functions of one mechanism."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import FunctionType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active

from torchsko.errors import FusedError, ShapeError, unknown_name
from torchsko.fused.build.program_cache import digest, identity_of
from torchsko.fused.calls.memory_snapshot import MemorySnapshot
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.traits import TraceContext, Traits
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.clean import (
    concrete,
    hidden_from_saved_tensor_hooks,
    in_clean_thread,
    is_differentiated,
)
from torchsko.fused.tracing.watch import constants_of
from torchsko.implicit.jacobian_products import Pullback, Tensors
from torchsko.mechanism.dispatch import MechanismLayer, MechanismLike, as_mechanism
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import SHAPES, dtype_advice, no_tensor, sizes
from torchsko.utils.dtype import is_traced_as

T = TypeVar("T")
Eager = Callable[..., Any]
"""A function of a mechanism and further arguments."""

_RECENT = 8
_log = logging.getLogger("torchsko")

_AGAIN = (
    "kernels of %s are traced again: it is a new function of the same text. Make it once, before the loop, "
    "and keep in tensors what changes: they are read anew at each call"
)


class Workshop:
    """Makes and stores the fused functions of one mechanism.

    Attributes:
        parameters: names of the parameters that are inputs.
        mechanism: the mechanism of the kernels; of the parameters that are inputs only the shapes matter.
        choices: the parameters and the order of derivatives.
        is_unchanged: function that returns True if the other parameters have unchanged values.
    """

    captured_attributes = ("mechanism",)  # see `torchsko.fused.tracing.object_graph`

    def __init__(
        self, mech: Mechanism, inputs: Sequence[str], order: int, around: TraceContext = nullcontext
    ) -> None:
        """Prepare to make functions; ``around`` is the default context of traces."""
        for name in inputs:
            if name not in PARAMETERS:
                raise FusedError(*unknown_name("parameter", name, tuple(PARAMETERS)))
        if _are_functorch_transforms_active():
            in_clean_thread(lambda: self._hold(unwrapped(mech), inputs))
        else:
            self._hold(mech, inputs)
        _refuse_lost_gradients(mech, self.parameters)
        self._order, self._around = order, around
        self.choices = (self.parameters, order)
        self._made: dict[Any, Any] = {}
        self._recent: dict[Any, Any] = {}
        self._told = False
        self._lock = threading.Lock()

    def _hold(self, mech: Mechanism, inputs: Sequence[str]) -> None:
        batched = [
            name for name, shape in PARAMETERS.items() if getattr(mech, name).ndim > len(shape)
        ]
        self.parameters = tuple(dict.fromkeys([*inputs, *batched]))
        # Replaced by itself, a parameter is no longer assumed to be absent or aligned.
        self.mechanism = mech.replace(**{name: getattr(mech, name) for name in self.parameters})
        fixed = [getattr(mech, name) for name in PARAMETERS if name not in self.parameters]
        self.is_unchanged = MemorySnapshot(fixed).is_unchanged
        blank = self.mechanism.replace(**self._blank(self.mechanism.mass))
        self._identity = identity_of(blank, self.parameters)

    def _blank(self, like: Tensor) -> dict[str, Tensor]:
        """Zeros in place of the parameters that are inputs, so that a trace cannot read their values."""
        kind = {"dtype": like.dtype, "device": like.device}
        return {n: torch.zeros(cast(tuple, self.shape(n)), **kind) for n in self.parameters}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a parameter or a common argument for one sample, None for an unknown name."""
        shape = PARAMETERS.get(name, SHAPES.get(name))
        return None if shape is None else sizes(self.mechanism, shape)

    @property
    def constants(self) -> list[Tensor]:
        """All tensors of the mechanism but the parameters that are inputs."""
        inputs = {id(getattr(self.mechanism, name)) for name in self.parameters}
        return [x for x in constants_of(self.mechanism) if id(x) not in inputs]

    def find(self, key: Any) -> FusedFunction | None:
        """A stored function, None if it was not made."""
        return self._made.get(key)

    def make(
        self,
        key: Any,
        fn: Eager,
        arguments: Mapping[str, tuple[int, ...]],
        num_outputs: int = 1,
        pullback: Pullback | None = None,
        *,
        broadcasts: bool = True,
        name: str | None = None,
        around: TraceContext | None = None,
        num_joint: int = 0,
        label: str = "",
    ) -> FusedFunction:
        """The fused form of ``fn(mech, *arguments)``, which returns a flat tuple or a tensor.

        ``broadcasts`` means that fn accepts batches; ``name`` identifies it and what
        it captures, so that its program can be stored on disk; ``around`` is the context of its trace,
        if it differs from the default; for ``num_joint`` see `Traits`; ``label`` is its name in
        messages.
        """

        def make_function() -> FusedFunction:
            ports = [Port(name, shape) for name, shape in arguments.items()]
            ports += [Port(name, cast(tuple, self.shape(name))) for name in self.parameters]

            def source(*tensors: Tensor) -> Any:
                return fn(*self.split(tensors))

            traits = Traits(
                num_outputs,
                self._order,
                batched=source if broadcasts else None,
                identity=name and self._identity and digest(self._identity, name, ports),
                trace_context=around or self._around,
                dtype=self.mechanism.dtype,
                is_unchanged=self.is_unchanged,
                num_joint=num_joint,
                name=label or name or "",
            )
            return FusedFunction(source, ports, traits, pullback=pullback)

        return self.get_or_make(key, make_function)

    def renewed(self, mech: Mechanism) -> Workshop:
        """A workshop for a mechanism whose tensors were changed in place; logs a warning."""
        _log.warning(
            "kernels of %r are made again: a tensor of the mechanism was changed in place. Name tensors that "
            "change often in inputs of ts.fuse: they are read at each call",
            mech.name,
        )
        return Workshop(mech, *self.choices, self._around)

    def remove(self, key: Any) -> None:
        """Remove a function; `make` makes it again."""
        with self._lock:
            self._made.pop(key, None)

    def get_or_make(self, key: Any, make: Callable[[], T]) -> T:
        """The object stored under a key, made at the first call."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def get_or_make_recent(self, key: Any, make: Callable[[], T]) -> T:
        """The object stored under a key, of the eight keys used last."""
        with self._lock:
            found, others = self._recent.pop(key, None), [*self._recent]
        if found is None:
            self._warn_of_retrace(key, others)
            found = make()
        with self._lock:
            self._recent[key] = found
            for old in [*self._recent][:-_RECENT]:
                del self._recent[old]
            return found

    def clear_recent(self) -> None:
        """Remove all objects of `get_or_make_recent`."""
        with self._lock:
            self._recent.clear()

    def _warn_of_retrace(self, key: tuple[Any, ...], others: Sequence[tuple[Any, ...]]) -> None:
        """Log once that a function is traced whose source text is that of an earlier function.

        It may capture other values, so it has separate kernels; a loop that defines it in each iteration
        spends its time on traces.
        """
        before = [x for other in others for x in other if isinstance(x, FunctionType)]
        for x in key:
            if isinstance(x, FunctionType) and any(
                x.__code__ is y.__code__ and x is not y for y in before
            ):
                if not self._told:
                    _log.warning(_AGAIN, x.__qualname__)
                self._told = True

    def split(self, tensors: Tensors) -> tuple[Any, ...]:
        """The mechanism with its parameters taken from the last tensors, then the other tensors."""
        num_states = len(tensors) - len(self.parameters)
        mech = self.mechanism
        like = tensors[0] if tensors else mech.mass
        dtype, device = mech.dtype, mech.device
        if (dtype, device) != (like.dtype, like.device):
            mech = replace(mech, **self._blank(like))
        if dtype != like.dtype:
            mech = mech.to(like.dtype)
        if device != like.device:
            mech = mech.to(like.device)
        values = dict(zip(self.parameters, tensors[num_states:], strict=True))
        return mech.replace(**values), *tensors[:num_states]


def workshop_of(
    source: MechanismLike,
    inputs: Sequence[str],
    order: int,
    around: TraceContext = nullcontext,
) -> Workshop:
    """The workshop of a mechanism, or of a layer at copies of its values; learned parameters are inputs.

    Args:
        source: the mechanism, or a layer, whose tensors may be wrapped by a transform of torch.func.
        inputs: further parameters that are inputs.
        order: order of derivatives; see `torchsko.fuse`.
        around: makes a context to trace in.
    """
    if not isinstance(source, MechanismLayer):
        return Workshop(as_mechanism(source), inputs, order, around)
    with hidden_from_saved_tensor_hooks():
        robot = source.mechanism()
    derived = [name for name in PARAMETERS if is_differentiated(getattr(robot, name))]
    names = (*source.learned_fields, *inputs, *derived)
    return in_clean_thread(lambda: Workshop(unwrapped(robot), names, order, around))


def unwrapped(mech: Mechanism) -> Mechanism:
    """The mechanism at copies of its values, without what torch.func wraps; in a clean thread only."""
    # Flags stay: `Mechanism.replace` would reset them to unknown.
    return replace(mech, **{name: concrete(getattr(mech, name)) for name in PARAMETERS})


def _refuse_lost_gradients(mech: Mechanism, inputs: Sequence[str]) -> None:
    lost = [n for n in PARAMETERS if n not in inputs and is_differentiated(getattr(mech, n))]
    if lost:
        raise FusedError(
            f"{', '.join(lost)} of {mech.name!r} require gradients.",
            "Constants of a kernel have no gradients.",
            f"Call ts.fuse(..., inputs={tuple(lost)}), or detach them.",
        )


def refuse_constants(workshop: Workshop, changes: Mapping[str, Tensor]) -> None:
    """Refuse new values of parameters that are constants of the kernels.

    Raises:
        FusedError: names them and the alternative.
    """
    constant = tuple(name for name in changes if name not in workshop.parameters)
    if constant:
        raise FusedError(
            f"{', '.join(constant)} cannot be replaced: constants of the kernels.",
            f"Inputs are: {', '.join(workshop.parameters) or 'none'}.",
            f"Call ts.fuse(..., inputs={(*workshop.parameters, *constant)}).",
        )


def check_dtype(mech: Mechanism, x: Tensor) -> None:
    """Refuse another dtype than the mechanism's, as eager functions do; kernels check the rest."""
    if getattr(x, "dtype", None) is not mech.mass.dtype:
        if not isinstance(x, Tensor):
            raise ShapeError(*no_tensor("q", x, mech, (mech.num_q,)))
        if is_traced_as(x, mech.dtype):
            return
        raise ShapeError(
            f"the state is {x.dtype}, the mechanism {mech.dtype}.",
            "Nothing is cast in silence.",
            f"{dtype_advice('q', x.dtype, mech.dtype)}",
        )
