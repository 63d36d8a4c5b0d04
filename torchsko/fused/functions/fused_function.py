"""Fused kernels as PyTorch functions: autograd, torch.func and torch.compile see one operator.

A `FusedFunction` is one operator of PyTorch's dispatcher. Its kernels for autograd, vmap, fake
tensors and devices are registered below, so every transform meets it in the same way, inside of
torch.compile and outside; and forward mode is part of its autograd kernel, so that it cannot be
dropped in silence. Its VJP and JVP are FusedFunctions again, made from the same source when first
needed; past a given order of differentiation they run that source eagerly instead of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.fused.capture.watch import is_within
from torchsko.fused.functions.lazy_kernel import Traced
from torchsko.fused.functions.operator import Node, define_operator, is_transformed, node_of
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Port
from torchsko.implicit.jacobians import (
    Flags,
    Function,
    Pullback,
    Tensors,
    gradients_of,
    tangents_of,
)


class FusedFunction(Traced):
    """A function of one sample, run on batches by a kernel and differentiable to any order.

    Derivatives are made when first needed, and kept as programs and kernels are.

    Attributes:
        saves_outputs: whether the backward pass reads the outputs besides the inputs.
        operator: the operator of the dispatcher.
    """

    leads_to = ()  # see `Reachable`

    def __init__(
        self,
        fn: Function,
        inputs: Sequence[Port],
        traits: Traits,
        *,
        pullback: Pullback | None = None,
    ) -> None:
        """Prepare a function; nothing is traced yet.

        Args:
            fn: see `Traced`.
            inputs: the ports, at least one.
            traits: what else is known of it.
            pullback: maps (needed, inputs, outputs, cotangents) to the gradients of the needed
                inputs, for one sample; by default the VJP of ``fn`` by torch.func.
        """
        super().__init__(fn, inputs, traits)
        self.saves_outputs, self._pullback = pullback is not None, pullback
        self._derivatives: dict[tuple[str, Flags], FusedFunction] = {}
        self.operator = define_operator(self)
        self.__name__ = self.operator._opname  # torch.func puts it into its messages

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
            outputs = self.operator(*inputs)
            return (outputs,) if self.num_outputs == 1 else tuple(outputs)
        node = node_of(inputs)
        if node is None:
            return self.run(inputs)
        for port, x in zip(self.inputs, inputs, strict=False):
            if not isinstance(x, Tensor):
                raise ShapeError(_no_tensor(port, x))
        # A kernel of another function that calls this one is made of the source of both; tensors of a trace
        # are none of a node of reverse mode alone.
        within = node is Node and is_within(inputs)
        return self._mapped(*inputs) if within else node.apply(self, *inputs)

    def at_once(self, inputs: Sequence[Tensor], *numbers: float) -> Tensors | None:
        """The results where a call is a kernel's and no more, with numbers in the place of the last tensors.

        None where it is not: nothing is compiled yet, derivatives or transforms are asked for, the
        batch is large.
        """
        if self._quick is None or torch.compiler.is_compiling() or is_transformed(inputs):
            return None
        return self._quick(*inputs, *numbers)

    def pull(
        self,
        needed: Flags,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        by: Sequence[Tensor],
    ) -> Tensors:
        """VJP: the gradients of the needed inputs, each of the shape of its input.

        Args:
            needed: which inputs.
            inputs: as for a call.
            outputs: the results of that call if `saves_outputs`, else none.
            by: cotangents, one per output; their batch shapes broadcast.
        """
        return self._derivative("vjp", needed)(*inputs, *outputs, *by)

    def push(self, given: Flags, inputs: Sequence[Tensor], by: Sequence[Tensor]) -> Tensors:
        """JVP: the tangents of the outputs for the tangents ``by`` of the given inputs."""
        return self._derivative("jvp", given)(*inputs, *by)

    def value_and_vjp(self, needed: Flags) -> FusedFunction:
        """Outputs and gradients from one kernel, as a function of the inputs and the cotangents."""
        return self._derivative("value_and_vjp", needed)

    def _derivative(self, kind: str, flags: Flags) -> FusedFunction:
        with self._lock:
            if (kind, flags) not in self._derivatives:
                self._derivatives[kind, flags] = self._new_derivative(kind, flags)
            return self._derivatives[kind, flags]

    def _new_derivative(self, kind: str, flags: Flags) -> FusedFunction:
        chosen = [k for k, flag in enumerate(flags) if flag]
        num_extra = self.num_outputs
        like: Sequence[int | None] | None
        outputs: Sequence[Port]
        if kind == "jvp":
            ports = [self.inputs[k] for k in chosen]
            like, outputs = self.like, self.outputs
            fn, batched = tangents_of(self.sample, flags), tangents_of(self.eager, flags)
        else:
            with_value = kind == "value_and_vjp"
            like, outputs = chosen, [self.inputs[k] for k in chosen]
            if with_value:
                like = [*(self.like or [None] * num_extra), *chosen]
                outputs = [*self.outputs, *outputs]
            ports = [*self.outputs] * (1 + (self.saves_outputs and not with_value))
            fn = gradients_of(self.sample, flags, num_extra, with_value, self._pullback)
            batched = gradients_of(self.eager, flags, num_extra, with_value)
        ports = [*self.inputs, *ports]
        traits = self.traits.derived(ports, outputs, batched, kind, flags, like=like)
        return FusedFunction(fn, ports, traits)


def _no_tensor(port: Port, x: object) -> str:
    advice = f"torch.as_tensor({port.name}, dtype=...)"
    if x is None:
        advice = f"torch.zeros({', '.join(map(str, port.shape))}, dtype=...), say"
    return (
        f"{port.name} was given as {type(x).__name__}.\n"
        "A kernel reads tensors, so that gradients and devices come along.\n"
        f"Pass {advice}, in the type of the mechanism."
    )
