"""One operator of PyTorch's dispatcher for each fused function.

`torch.library.custom_op` would be shorter, but its autograd kernel drops the tangents of forward
mode in silence and its registrations live as long as the process. Here the operator lives as long
as its function: the registry of PyTorch itself is needed, since torch.compile and torch.func know
functions that are no tensor operations by their registered names only, but nothing else holds on
to it, and it holds the function weakly.

Some of that has no public name in PyTorch. Private ones, which a later version may change: whether
transforms of torch.func or modes of dispatch are active, and which (`_are_functorch_transforms_active`,
`peek_interpreter_stack`, `_len_torch_dispatch_stack`, `_get_current_dispatch_mode_stack`), the old vmap
of autograd (`_dispatch_tls_is_dispatch_key_included`, `_parse_dispatch_key`), forward mode
(`forward_ad._current_level`, `forward_ad._set_fwd_grad_enabled`), the call below autograd
(`_AutoDispatchBelowAutograd`) and the end of a library (`Library._destroy`). Tracing asks besides
whether make_fx records (`_get_dispatch_mode`), whether torch.func itself calls requires_grad_
(`get_inplace_requires_grad_allowed`), what it wraps (`get_unwrapped`), and for the strides of results
(`compute_elementwise_output_strides`) and PyTorch's own decompositions (`decomposition_table`).
Layers and traces ask whether hooks take what is saved (`_top_saved_tensors_default_hooks`). Kernels on
GPUs are loaded by `torch.cuda._utils._cuda_load_module`.
"""

from __future__ import annotations

import inspect
import uuid
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _dispatch_tls_is_dispatch_key_included,
    _len_torch_dispatch_stack,
)
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]
from torch.nn import Parameter
from torch.overrides import has_torch_function_unary

from torchsko.fused.calls.kernel import broadcast_batch
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.clean import in_clean_thread
from torchsko.implicit.jacobians import Flags, Tensors

_NAMESPACE = "torchsko"
# The vmap of autograd.grad(is_grads_batched=True).
_LEGACY_VMAP: Any = torch._C._parse_dispatch_key("VmapMode")


class BatchedFunction(Protocol):
    """A function on batches; `torchsko.fused.functions.lazy_kernel` implements it."""

    inputs: tuple[Port, ...]
    like: tuple[int | None, ...] | None
    num_outputs: int

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The output ports."""
        ...

    def batch_of(self, k: int, x: Tensor) -> torch.Size:
        """Batch shape of input k."""
        ...


class DifferentiableFunction(BatchedFunction, Protocol):
    """A function with a kernel and derivatives; `torchsko.fused.functions.fused_function` implements it."""

    saves_outputs: bool
    operator: Any

    def __call__(self, *inputs: Tensor) -> Tensors:
        """Apply the function under the transforms that are active."""
        ...

    def run(self, inputs: Sequence[Tensor]) -> Tensors:
        """Apply the kernel to plain tensors."""
        ...

    def pull(
        self,
        needed: Flags,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        by: Sequence[Tensor],
    ) -> Tensors:
        """Gradients of the needed inputs."""
        ...

    def push(self, given: Flags, inputs: Sequence[Tensor], by: Sequence[Tensor]) -> Tensors:
        """Tangents of the outputs."""
        ...


def define_operator(function: DifferentiableFunction) -> Any:
    """Register a function as an operator, which is unregistered when the function is collected.

    Args:
        function: held weakly.
    """
    if torch.compiler.is_compiling():  # which follows no thread, nor a registry that grows
        return in_clean_thread(lambda: _defined(function))
    return _defined(function)


def _defined(function: DifferentiableFunction) -> Any:
    """The operator of a function, registered."""
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    # What a library's own finalizer forgets (PyTorch 2.11) is the name in torch.ops, a trap to those
    # who enumerate them; this clears it as well.
    weakref.finalize(function, library._destroy)
    # Named anew in every process: torch.compile keeps graphs on disk by the names of operators, and
    # would meet there derivatives that this process has not defined, or another function's shapes.
    name = f"k{uuid.uuid4().hex}"
    schema = _schema(len(function.inputs), function.num_outputs)
    library.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
    reference = weakref.ref(function)

    def alive() -> DifferentiableFunction:
        found = reference()
        if found is None:
            raise RuntimeError("a fused function was deleted while a graph still calls it")
        return found

    def packed(outputs: Sequence[Tensor]) -> Any:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def on_device(*inputs: Tensor) -> Any:
        return packed(alive().run(inputs))

    def with_autograd(*inputs: Tensor) -> Any:
        if peek_interpreter_stack() is not None:
            raise RuntimeError(
                "an operator of torchsko was called under torch.func. It has no derivatives there: "
                "call the FusedFunction, which has them."
            )
        return packed(Node.apply(alive(), *inputs))

    def with_shapes(*inputs: Tensor) -> Any:
        return packed(empty_outputs(alive(), inputs))

    library.impl(name, on_device, "CompositeExplicitAutograd")
    library.impl(name, with_autograd, "Autograd")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", with_shapes, lib=library)
    return getattr(getattr(torch.ops, _NAMESPACE), name).default


def _schema(num_inputs: int, num_outputs: int) -> str:
    arguments = ", ".join(f"Tensor x{k}" for k in range(num_inputs))
    results = ", ".join(["Tensor"] * num_outputs)
    return f"({arguments}) -> {results if num_outputs == 1 else f'({results})'}"


class Node(torch.autograd.Function):
    """Autograd and torch.func's view of a function: saves the inputs, and what `pull` wants."""

    @staticmethod
    def forward(function: DifferentiableFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The operator without derivatives."""
        if not is_transformed(inputs):  # the dispatcher would change nothing
            return function.run(inputs)
        with torch._C._AutoDispatchBelowAutograd():
            outputs = function.operator(*inputs)
        return (outputs,) if function.num_outputs == 1 else tuple(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the inputs, and the outputs if `pull` reads them."""
        function, *tensors = inputs
        _keep(ctx, function, tensors, output)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs that need them."""
        # Aliases: torch.func cannot wrap again what it saved at a level that has ended since.
        return _pulled(ctx, [x.view_as(x) for x in ctx.saved_tensors], cotangents)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        """Tangents of the outputs."""
        given = tuple(x is not None for x in tangents[1:])
        by = [x for x in tangents[1:] if x is not None]
        # Torch turns forward mode off in here, which would make the JVP of a JVP zero in silence.
        # Turned on again, it must not see the tangents of this level.
        with forward_ad._set_fwd_grad_enabled(True):
            inputs = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            return ctx.function.push(given, inputs, by)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The function over a batch with one more dimension."""
        outputs = _vmap(arguments[0], info.batch_size, in_dims[1:], arguments[1:])
        return outputs, (0,) * len(outputs)


# Function.apply looks the signature up at every call; else that takes a fifth of a small call's time.
Node.forward.__signature__ = inspect.signature(Node.forward)


class PlainNode(torch.autograd.Function):
    """`Node` where there is reverse mode and nothing else: torch.func's way in takes twice as long."""

    @staticmethod
    def forward(ctx: Any, function: DifferentiableFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The kernel; saves what `Node` does."""
        outputs = function.run(inputs)
        _keep(ctx, function, inputs, outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs that need them."""
        return _pulled(ctx, ctx.saved_tensors, cotangents)


def _keep(
    ctx: Any,
    function: DifferentiableFunction,
    inputs: Sequence[Tensor],
    outputs: tuple[Tensor, ...],
) -> None:
    ctx.function = function
    ctx.save_for_backward(*inputs, *(outputs if function.saves_outputs else ()))
    ctx.set_materialize_grads(False)


def _pulled(
    ctx: Any, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    function: DifferentiableFunction = ctx.function
    inputs, outputs = saved[: len(function.inputs)], saved[len(function.inputs) :]
    # A zero without batch dimensions broadcasts to any.
    by = [
        inputs[0].new_zeros(port.shape) if y is None else y
        for y, port in zip(cotangents, function.outputs, strict=True)
    ]
    needed = tuple(ctx.needs_input_grad[1:])
    found = iter(function.pull(needed, inputs, outputs, by))
    return None, *(next(found) if flag else None for flag in needed)


def is_transformed(inputs: Iterable[Tensor]) -> bool:
    """Whether a call must pass PyTorch's dispatcher: gradients, transforms, modes, subclasses."""
    return node_of(inputs) is not None


def node_of(inputs: Iterable[Tensor]) -> type[Node] | type[PlainNode] | None:
    """What a call has to pass: nothing, a node of reverse mode, or one for all that PyTorch knows."""
    if (
        _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack() > 0
        or has_torch_function_unary(None)  # by a mode: tensors are looked at below
        or is_tracing()
        or _dispatch_tls_is_dispatch_key_included(_LEGACY_VMAP)
    ):
        return Node
    with_grad, node = torch.is_grad_enabled(), None
    for x in inputs:
        if type(x) is not Tensor and type(x) is not Parameter:
            return Node
        if with_grad and x.requires_grad:
            node = PlainNode
    return node


def empty_outputs(function: BatchedFunction, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Uninitialised tensors of the outputs' shapes, like the inputs in dtype and device."""
    leads = [function.batch_of(k, x) for k, x in enumerate(inputs)]
    batch = broadcast_batch(function.inputs, leads)
    like = function.like or (None,) * function.num_outputs
    return tuple(
        inputs[0].new_empty((*batch, *port.shape) if k is None else inputs[k].shape)
        for k, port in zip(like, function.outputs, strict=True)
    )


def _vmap(
    function: DifferentiableFunction,
    size: int,
    in_dims: Sequence[int | None],
    inputs: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """The function with the mapped dimension as first batch dimension, there in all outputs too."""
    like = function.like or (None,) * function.num_outputs
    own, ranks, is_mapped = [], [], []
    for k, (x, dim) in enumerate(zip(inputs, in_dims, strict=True)):
        if dim is not None:
            x = x.movedim(dim, 0)
        elif k in like:  # a gradient belongs to one mapped sample even if its input serves all
            x = x.expand(size, *x.shape)
        own.append(x)
        is_mapped.append(dim is not None or k in like)
        ranks.append(len(function.batch_of(k, x)) - is_mapped[k])
    # Ones between the mapped dimension and the others let the others broadcast from the right.
    aligned = [
        x.reshape(size, *[1] * (max(ranks) - rank), *x.shape[1:]) if flag else x
        for x, rank, flag in zip(own, ranks, is_mapped, strict=True)
    ]
    outputs = function(*aligned)
    return tuple(
        y if k is None else y.reshape(own[k].shape) for k, y in zip(like, outputs, strict=True)
    )
