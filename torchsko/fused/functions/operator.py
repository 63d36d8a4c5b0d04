"""The operators of PyTorch's dispatcher that run fused functions.

torch.compile and torch.func recognize functions by registered operators only. PyTorch keeps memory of each
registration for ever, so functions with equal numbers of inputs and outputs share one operator. It takes the
key of a function, and finds the function by a weak reference. A single operator of lists of tensors would
not do: the vmap of autograd refuses it. `torch.library.custom_op` would be shorter, but its autograd
implementation silently drops the tangents of forward mode.

The following private names of PyTorch are used by fused functions and may change in later versions.

* Active transforms and dispatch modes: `_are_functorch_transforms_active`, `peek_interpreter_stack`,
  `_len_torch_dispatch_stack`, `_is_tracing`, `_get_current_dispatch_mode_stack`, `_get_dispatch_mode`.
* The vmap of autograd: `_dispatch_tls_is_dispatch_key_included`, `_parse_dispatch_key`.
* Forward mode: `forward_ad._current_level`, `forward_ad._set_fwd_grad_enabled`.
* Calls below autograd: `_AutoDispatchBelowAutograd`; backward passes: `_engine_run_backward`.
* Tracing: `get_inplace_requires_grad_allowed`, `get_unwrapped`, `compute_elementwise_output_strides`,
  `decomposition_table`.
* Saved-tensor hooks: `_top_saved_tensors_default_hooks`.
* Kernels on GPUs: `torch.cuda._utils._cuda_load_module`, `_get_gpu_runtime_library`, `_check_cuda`.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _dispatch_tls_is_dispatch_key_included,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.overrides import has_torch_function_unary

from torchsko.fused.calls.kernel import broadcast_batch
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.clean import in_clean_thread
from torchsko.implicit.jacobian_products import Flags, Tensors
from torchsko.implicit.loop_roles import split_by_sizes

_NAMESPACE = "torchsko"
# The vmap of autograd.grad(is_grads_batched=True).
_LEGACY_VMAP: Any = torch._C._parse_dispatch_key("VmapMode")


class BatchedFunction(Protocol):
    """A function on batches; `torchsko.fused.functions.lazy_kernel.LazyKernel` implements it."""

    inputs: tuple[Port, ...]
    summed_to: tuple[int | None, ...] | None
    num_outputs: int
    batch_of: Callable[[int, Tensor], torch.Size]

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The output ports."""
        ...


class DifferentiableFunction(BatchedFunction, Protocol):
    """A function with derivatives; `torchsko.fused.functions.fused_function.FusedFunction` implements it."""

    saves_outputs: bool
    run_operator: Callable[[Sequence[Tensor]], Tensors]
    __call__: Callable[..., Tensors]
    run: Callable[[Sequence[Tensor]], Tensors]
    run_storing: Callable[[Sequence[Tensor]], Tensors]
    vjp: Callable[..., Tensors]
    jvp: Callable[[Flags, Sequence[Tensor], Sequence[Tensor]], Tensors]


class Keyed(Protocol):
    """An object with a key that stands for fused functions of some sizes."""

    def with_sizes(self, *sizes: int) -> DifferentiableFunction:
        """The function of these sizes."""
        ...


def new_key(owner: Keyed) -> str:
    """A key for `run_operator`, which refers to the object weakly.

    The key is new in every process: torch.compile caches graphs on disk, and a cached graph could name
    derivatives that this process has not made.
    """
    key = uuid.uuid4().hex
    _owners()[key] = owner
    return key


@cache
def _owners() -> WeakValueDictionary[str, Keyed]:
    """The objects by their keys."""
    return WeakValueDictionary()


def _function(key: str, sizes: Sequence[int]) -> DifferentiableFunction:
    owner = _owners().get(key)
    if owner is None:
        raise RuntimeError("a fused function was deleted while a graph still calls it")
    return owner.with_sizes(*sizes)


def operator_of(num_inputs: int, num_outputs: int) -> Any:
    """The operator of functions with these numbers of tensors, from (key, sizes, *inputs) to the outputs."""
    if torch.compiler.is_compiling():  # Dynamo cannot trace a registration
        return in_clean_thread(lambda: _operator(num_inputs, num_outputs)[0])
    return _operator(num_inputs, num_outputs)[0]


@cache  # PyTorch keeps memory of each registration for ever
def _operator(num_inputs: int, num_outputs: int) -> tuple[Any, torch.library.Library]:
    """The operator, and the library that owns its registration."""
    library, name = torch.library.Library(_NAMESPACE, "FRAGMENT"), f"run_{num_inputs}_{num_outputs}"
    arguments = "".join(f", Tensor x{k}" for k in range(num_inputs))
    results = ", ".join(["Tensor"] * num_outputs)
    schema = (
        f"(str key, int[] sizes{arguments}) -> {results if num_outputs == 1 else f'({results})'}"
    )
    library.define(name + schema, tags=torch.Tag.pt2_compliant_tag)

    def packed(outputs: Sequence[Tensor]) -> Any:
        return outputs[0] if num_outputs == 1 else tuple(outputs)

    def on_device(key: str, sizes: Sequence[int], *inputs: Tensor) -> Any:
        return packed(_function(key, sizes).run(inputs))

    def with_autograd(key: str, sizes: Sequence[int], *inputs: Tensor) -> Any:
        if peek_interpreter_stack() is not None:
            raise RuntimeError(
                "an operator of torchsko was called under torch.func, where it has no derivatives: "
                "call the FusedFunction instead."
            )
        return packed(TransformNode.apply(_function(key, sizes), *inputs))

    def with_shapes(key: str, sizes: Sequence[int], *inputs: Tensor) -> Any:
        return packed(empty_outputs(_function(key, sizes), inputs))

    library.impl(name, on_device, "CompositeExplicitAutograd")
    library.impl(name, with_autograd, "Autograd")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", with_shapes, lib=library)
    return getattr(getattr(torch.ops, _NAMESPACE), name).default, library


class TransformNode(torch.autograd.Function):
    """Autograd function for all transforms: reverse mode, forward mode and vmap."""

    @staticmethod
    def forward(function: DifferentiableFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Apply the operator without derivatives."""
        if not needs_dispatch(inputs):  # a direct call is faster
            return function.run(inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return function.run_operator(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the inputs, and the outputs if the VJP reads them."""
        function, *tensors = inputs
        _save(ctx, function, tensors, output)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs that need them."""
        # Aliases, since torch.func cannot wrap a tensor again that it saved at a level that has ended.
        return _backward(ctx, [x.view_as(x) for x in ctx.saved_tensors], cotangents)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        """Tangents of the outputs."""
        moving = tuple(x is not None for x in tangents[1:])
        directions = [x for x in tangents[1:] if x is not None]
        # PyTorch disables forward mode here, so a JVP of a JVP would silently be zero. It is enabled again
        # for outer levels, and the tangents of this level are removed.
        with forward_ad._set_fwd_grad_enabled(True):
            inputs = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            return ctx.function.jvp(moving, inputs, directions)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Apply the function to a batch with one more dimension."""
        outputs = _vmap(arguments[0], info.batch_size, in_dims[1:], arguments[1:])
        return outputs, (0,) * len(outputs)


# Function.apply computes the signature at every call, a fifth of the time of a small call, unless
# it is stored here.
TransformNode.forward.__signature__ = inspect.signature(TransformNode.forward)


class ReverseModeNode(torch.autograd.Function):
    """Autograd function for reverse mode alone; `TransformNode` takes twice as long for small calls."""

    @staticmethod
    def forward(ctx: Any, function: DifferentiableFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Apply the kernel, and save the inputs and what the VJP reads."""
        results, count = function.run_storing(inputs), function.num_outputs
        _save(ctx, function, inputs, results[:count], results[count:])
        return results[:count]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs that need them."""
        return _backward(ctx, ctx.saved_tensors, cotangents)


def _save(
    ctx: Any,
    function: DifferentiableFunction,
    inputs: Sequence[Tensor],
    outputs: Tensors,
    solutions: Tensors = (),
) -> None:
    ctx.function = function
    ctx.save_for_backward(*inputs, *(outputs if function.saves_outputs else ()), *solutions)
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    function: DifferentiableFunction = ctx.function
    count = function.num_outputs if function.saves_outputs else 0
    inputs, outputs, solutions = split_by_sizes(saved, (len(function.inputs), count))
    # A zero without batch dimensions broadcasts to any batch.
    gradients = [
        inputs[0].new_zeros(port.shape) if y is None else y
        for y, port in zip(cotangents, function.outputs, strict=True)
    ]
    needed = tuple(ctx.needs_input_grad[1:])
    results = iter(function.vjp(needed, inputs, outputs, gradients, solutions))
    return None, *(next(results) if flag else None for flag in needed)


def needs_dispatch(inputs: Iterable[Tensor]) -> bool:
    """True if gradients, transforms, modes or tensor subclasses require PyTorch's dispatcher."""
    return autograd_node_for(inputs) is not None


def autograd_node_for(
    inputs: Iterable[Tensor],
) -> type[TransformNode] | type[ReverseModeNode] | None:
    """The autograd function for a call; None if no derivative and no transform is active."""
    if (
        _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack() > 0
        or has_torch_function_unary(None)  # an active mode; tensors are checked below
        or _is_tracing()
        or _dispatch_tls_is_dispatch_key_included(_LEGACY_VMAP)
    ):
        return TransformNode
    with_grad, node = torch.is_grad_enabled(), None
    for x in inputs:
        if type(x) is not Tensor and type(x) is not Parameter:
            return TransformNode
        if with_grad and x.requires_grad:
            node = ReverseModeNode
    return node


def empty_outputs(function: BatchedFunction, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Uninitialized tensors with the shapes of the outputs and the dtype and device of the inputs."""
    leads = [function.batch_of(k, x) for k, x in enumerate(inputs)]
    batch = broadcast_batch(function.inputs, leads)
    summed_to = function.summed_to or (None,) * function.num_outputs
    return tuple(
        inputs[0].new_empty((*batch, *port.shape) if k is None else inputs[k].shape)
        for k, port in zip(summed_to, function.outputs, strict=True)
    )


def _vmap(
    function: DifferentiableFunction,
    size: int,
    in_dims: Sequence[int | None],
    inputs: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Apply the function with the mapped dimension as first batch dimension of inputs and outputs."""
    summed_to = function.summed_to or (None,) * function.num_outputs
    moved, ranks, is_mapped = [], [], []
    for k, (x, dim) in enumerate(zip(inputs, in_dims, strict=True)):
        if dim is not None:
            x = x.movedim(dim, 0)
        elif k in summed_to:  # each mapped sample has a gradient, even if it shares the input
            x = x.expand(size, *x.shape)
        moved.append(x)
        is_mapped.append(dim is not None or k in summed_to)
        ranks.append(len(function.batch_of(k, x)) - is_mapped[k])
    # Dimensions of size 1 after the mapped one let the others broadcast from the right.
    aligned = [
        x.reshape(size, *[1] * (max(ranks) - rank), *x.shape[1:]) if flag else x
        for x, rank, flag in zip(moved, ranks, is_mapped, strict=True)
    ]
    outputs = function(*aligned)
    return tuple(
        y if k is None else y.reshape(moved[k].shape)
        for k, y in zip(summed_to, outputs, strict=True)
    )
