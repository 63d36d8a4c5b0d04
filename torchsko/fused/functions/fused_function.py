"""Fused kernels as PyTorch functions that autograd, torch.func and torch.compile see as one operator.

A call of a fused function is a call of an operator of PyTorch's dispatcher
(`torchsko.fused.functions.operator`), with implementations for autograd, forward mode, vmap, fake tensors
and devices, inside and outside of torch.compile. The VJP and JVP of a `FusedFunction` are FusedFunctions
too, made from the same source on first use. Above a given order of differentiation they run the source
eagerly instead of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.fused.functions.diverged_samples import ZeroWithoutCotangent
from torchsko.fused.functions.lazy_kernel import LazyKernel
from torchsko.fused.functions.operator import (
    TransformNode,
    autograd_node_for,
    needs_dispatch,
    new_key,
    operator_of,
)
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.clean import in_clean_thread
from torchsko.fused.tracing.tracer import at_stored_solutions
from torchsko.fused.tracing.watch import is_within
from torchsko.implicit.jacobian_products import (
    Flags,
    Function,
    Pullback,
    Tensors,
    covering_flags,
    jvp_of,
    select_flagged,
    vjp_of,
)


class FusedFunction(LazyKernel):
    """A function of one sample that a kernel applies to batches, differentiable to any order.

    Derivatives are made on first use and then kept.

    Attributes:
        saves_outputs: whether the backward pass reads the outputs in addition to the inputs.
        operator: the operator in PyTorch's dispatcher, of (key, sizes, *inputs).
        key: the key of the function for the operator.
        sizes: the sizes of the function under this key.
    """

    captured_attributes = ()  # see `torchsko.fused.tracing.object_graph`

    def __init__(
        self,
        fn: Function,
        inputs: Sequence[Port],
        traits: Traits,
        *,
        pullback: Pullback | None = None,
    ) -> None:
        """Store the function under a new key without tracing it.

        Args:
            fn: takes one tensor per port, of the port's shape, and returns one or several tensors.
            inputs: the ports, at least one.
            traits: further properties of the function.
            pullback: maps (needed, inputs, outputs, cotangents) to the gradients of the needed
                inputs, for one sample; by default the VJP of ``fn`` by torch.func.
        """
        super().__init__(fn, inputs, traits)
        self.saves_outputs, self._pullback = pullback is not None, pullback
        if pullback is not None:
            self.traits = replace(traits, stores=False)
        self._derivatives: dict[tuple[str, Flags], FusedFunction] = {}
        self.derived: WeakSet[FusedFunction] = WeakSet()  # steps of scans, made of the same source
        self.key, self.sizes = self._new_key()
        self.operator = operator_of(len(self.inputs), self.num_outputs)
        self.__name__ = f"fused_{self.key}"  # for messages of torch.func

    def _new_key(self) -> tuple[str, tuple[int, ...]]:
        return new_key(self), ()

    def with_sizes(self, *sizes: int) -> FusedFunction:
        """The function itself, which has no sizes; see `torchsko.fused.functions.operator.Keyed`."""
        return self

    def run_operator(self, inputs: Sequence[Tensor]) -> Tensors:
        """Apply the function as the operator of PyTorch's dispatcher."""
        outputs = self.operator(self.key, self.sizes, *inputs)
        return (outputs,) if self.num_outputs == 1 else tuple(outputs)

    def __call__(self, *inputs: Tensor) -> Tensors:
        """Apply the function to a batch.

        Args:
            *inputs: for each port a tensor ``[*batch, *port.shape]``, all of one dtype and device;
                the batch shapes broadcast.

        Returns:
            For each output a tensor ``[*batch, *shape]``.

        Raises:
            ShapeError: number, shape, dtype or device of the inputs does not fit.
            FusedError: the function cannot be traced.
        """
        if torch.compiler.is_compiling():
            if torch._C._are_functorch_transforms_active():
                return self.eager(*inputs)
            return self.run_operator(inputs)
        node = autograd_node_for(inputs)
        if node is None:
            return self.run(inputs)
        for port, x in zip(self.inputs, inputs, strict=False):
            if not isinstance(x, Tensor):
                raise _not_a_tensor(port, x)
        # Inside of another traced function the source becomes part of its program. Symbolic tensors
        # never select the node for reverse mode alone.
        inlined = node is TransformNode and is_within(inputs)
        return self._mapped(*inputs) if inlined else node.apply(self, *inputs)

    def call_native(self, inputs: Sequence[Any], *numbers: float) -> tuple[Any, ...] | None:
        """Apply the kernel by its native call; ``numbers`` are the last inputs as Python floats.

        Args:
            inputs: tensors; arrays of NumPy may take the places of the first ones.
            *numbers: the last inputs.

        Returns:
            The results, arrays if the first input is one; None if there is no native call for these
            inputs: no kernel is compiled yet, derivatives or transforms are active, or the batch is large.
        """
        if self._native_call is None or torch.compiler.is_compiling():
            return None
        tensors = inputs
        if inputs and type(inputs[0]) is np.ndarray:
            tensors = [x for x in inputs if type(x) is not np.ndarray]
        if needs_dispatch(tensors):
            return None
        if not self._is_unchanged():
            return None
        results = self._native_call(*inputs, *numbers)
        return None if results is None else results[: self.num_outputs]

    def vjp(
        self,
        needed: Flags,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        solutions: Sequence[Tensor] = (),
    ) -> Tensors:
        """Gradients of the needed inputs, each of the shape of its input.

        A VJP of more inputs that was made before serves for fewer. Derivatives of gradients do not use
        stored solutions: as functions of the inputs, these would have derivatives of their own.

        Args:
            needed: for each input, whether its gradient is computed.
            inputs: the inputs of the call.
            outputs: its results if `saves_outputs`, else empty.
            cotangents: one per output; their batch shapes broadcast.
            solutions: the stored solutions of the call, or none.
        """
        if solutions and needs_dispatch((*inputs, *cotangents)):
            solutions = ()
        name = "vjp at solutions" if solutions else "vjp"
        wanted = self._jointly(needed)
        flags = covering_flags(wanted, [x for kind, x in self._derivatives if kind == name])
        found = self._derivative(name, flags)(*inputs, *solutions, *outputs, *cotangents)
        return select_flagged(found, flags, needed)

    def _jointly(self, needed: Flags) -> Flags:
        """The needed inputs, with all first ones if one of them is needed: the next call may need others."""
        first, others = needed[: self.traits.num_joint], needed[self.traits.num_joint :]
        return (*(any(first) for _ in first), *others)

    def jvp(self, moving: Flags, inputs: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensors:
        """Tangents of the outputs; ``moving`` flags the inputs that have a tangent in ``tangents``."""
        return self._derivative("jvp", moving)(*inputs, *tangents)

    def value_and_vjp(self, needed: Flags) -> FusedFunction:
        """A function of inputs and cotangents that computes outputs and gradients in one kernel."""
        return self._derivative("value_and_vjp", needed)

    @property
    def is_traced(self) -> bool:
        """True if the program is known."""
        return self._program is not None

    def is_current(self) -> bool:
        """True if new traces of the function and its derivatives equal their programs."""
        if self._program is not None and in_clean_thread(self._trace) != self._program:
            return False
        return all(x.is_current() for x in (*self._derivatives.values(), *self.derived))

    def _derivative(self, kind: str, flags: Flags) -> FusedFunction:
        with self._lock:
            if (kind, flags) not in self._derivatives:
                self._derivatives[kind, flags] = self._new_derivative(kind, flags)
            return self._derivatives[kind, flags]

    def _new_derivative(self, kind: str, flags: Flags) -> FusedFunction:
        chosen = [k for k, flag in enumerate(flags) if flag]
        summed_to: Sequence[int | None] | None
        outputs: Sequence[Port]
        if kind == "jvp":
            ports = [self.inputs[k] for k in chosen]
            summed_to, outputs = self.summed_to, self.outputs
            fn, batched = jvp_of(self.sample, flags), jvp_of(self.eager, flags)
        else:
            with_value = kind == "value_and_vjp"
            summed_to, outputs = chosen, [self.inputs[k] for k in chosen]
            if with_value:
                summed_to = [*(self.summed_to or [None] * self.num_outputs), *chosen]
                outputs = [*self.outputs, *outputs]
            ports = [*self.outputs] * (1 + (self.saves_outputs and not with_value))
            fn = vjp_of(self.sample, flags, self.num_outputs, with_value, self._pullback)
            batched = vjp_of(self.eager, flags, self.num_outputs, with_value)
            drop = ZeroWithoutCotangent(self.outputs, tuple(self.inputs[k] for k in chosen))
            fn, batched = (_dropping(x, drop, self.num_outputs, with_value) for x in (fn, batched))
            if kind == "vjp at solutions":
                ports = [*self.solutions, *ports]
                fn = at_stored_solutions(fn, self.stored, len(self.inputs))
                batched = at_stored_solutions(batched, self.stored, len(self.inputs))
        ports = [*self.inputs, *ports]
        traits = self.traits.derived(ports, outputs, batched, kind, flags, summed_to=summed_to)
        return FusedFunction(fn, ports, traits)


def _dropping(
    gradients: Function, drop: ZeroWithoutCotangent, num_outputs: int, with_value: bool
) -> Function:
    """A VJP whose last arguments are the cotangents, without gradients of samples that have none."""
    values = num_outputs if with_value else 0

    def dropping(*tensors: Tensor) -> Tensors:
        found = tuple(gradients(*tensors))
        return (*found[:values], *drop(found[values:], tensors[-num_outputs:]))

    return dropping


def _not_a_tensor(port: Port, x: object) -> ShapeError:
    advice = f"torch.as_tensor({port.name}, dtype=...)"
    if x is None:
        advice = f"for example torch.zeros({', '.join(map(str, port.shape))}, dtype=...)"
    return ShapeError(
        f"{port.name} was given as {type(x).__name__}.",
        "A kernel reads tensors, which carry gradients and a device.",
        f"Pass {advice}, in the dtype of the mechanism.",
    )
