"""A tensor whose entries are expressions of a scalar graph.

`Symbolic` is a tensor subclass below autograd and torch.func: every operation that PyTorch's own
differentiation and batching produce arrives at ``__torch_dispatch__`` as a plain ATen call. Its
data is an int64 tensor of expression numbers (`torchsko.fused.program.graph`), so

* operations that only move entries run as themselves on the numbers (0 is the constant 0, hence
  zero padding and zero fill are right without further thought);
* arithmetic has a rule in `torchsko.fused.program.rules`, a loop over scalars;
* what has neither is decomposed by PyTorch, or refused by name.

Views of a symbolic tensor are views of its numbers, and an operation in place writes numbers in
place: autograd accumulates gradients that way, and dropping it gives zero gradients in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._prims_common import compute_elementwise_output_strides

from torchsko.errors import FusedError
from torchsko.fused.program.choices import CHOICES, place
from torchsko.fused.program.entries import constants
from torchsko.fused.program.factors import FACTORS, lu, pivots_of
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.kinds import (
    INTO_FIRST,
    are_truths,
    checked,
    leaves,
    of_kind,
    refuse_bits,
    result_kind,
    widest,
)
from torchsko.fused.program.rules import ELEMENTWISE, RULES
from torchsko.fused.tracing.refusals import refusal
from torchsko.fused.tracing.traced_loops import TracedGraph
from torchsko.implicit.jacobians import Tensors
from torchsko.implicit.repetition import Rounds
from torchsko.utils.traced_tensor import TracedTensor

_MOVES = frozenset(
    """
    alias detach view _unsafe_view reshape expand permute transpose t unsqueeze squeeze slice select
    narrow split split_with_sizes unbind chunk diagonal diag_embed cat stack index_select gather
    index flip roll clone repeat unfold lift_fresh lift_fresh_copy slice_backward
    select_backward diagonal_backward select_scatter slice_scatter diagonal_scatter
    index_copy zeros_like empty_like new_zeros new_empty broadcast_in_dim
    """.split()
)
aten = torch.ops.aten
_PYTHON_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)

# Of make_fx, which does not see what symbolic tensors stand for, and would keep them as constants.
_RECORDER = torch._C._TorchDispatchModeKey.PROXY

_FACTORY_OPTIONS = frozenset("dtype layout device pin_memory memory_format".split())


class Symbolic(TracedTensor):
    """A tensor of expressions.

    Attributes:
        graph: the graph that numbers the expressions.
        ids: int64 tensor of the same shape, the expressions.
    """

    graph: TracedGraph
    ids: Tensor

    @staticmethod
    def __new__(  # noqa: D102
        cls, graph: TracedGraph, ids: Tensor, dtype: torch.dtype = torch.float64
    ) -> Symbolic:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            ids.shape,
            strides=ids.stride(),
            storage_offset=ids.storage_offset(),
            dtype=dtype,
            device=ids.device,
        )

    def __init__(self, graph: TracedGraph, ids: Tensor, dtype: torch.dtype = torch.float64) -> None:
        self.graph = graph
        self.ids = ids

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type in which the kernel will compute; see `torchsko.utils.dtype.compute_dtype`."""
        return self.graph.dtype

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Symbolic(shape={tuple(self.shape)}, dtype={self.dtype})"

    def convert_closure(self, step: Callable[..., Any]) -> tuple[Callable[..., Any], list[Tensor]]:
        """A loop body with its captured batched tensors as additional arguments, and these tensors.

        Raises:
            FusedError: the body captures a tensor that is being differentiated.
        """
        return self.graph.convert_closure(step)

    def record_loop(self, rounds: Rounds, tensors: Sequence[Tensor]) -> Tensors:
        """The outputs of a loop, which becomes one instruction; some of the inputs are symbolic."""
        ids = self.graph.trace_loop(rounds, [lift(self.graph, x) for x in tensors])
        return tuple(Symbolic(self.graph, x) for x in ids)

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if torch._C._get_dispatch_mode(_RECORDER) is not None:
            raise FusedError(refusal(func, "recorded"))
        return _run(func, args, kwargs or {})


def lift(graph: Graph, x: Tensor) -> Tensor:
    """Expressions of a tensor: a symbolic one's own, the constants of a concrete one."""
    if not isinstance(x, Symbolic):
        return constants(graph, x)
    if x.graph is not graph:
        raise FusedError(
            "a tensor of another trace was used, such as q of the function around the body of a loop.",
            "The body of a loop is traced by itself, where what it closes over has no meaning.",
            "Pass q to it by args=[q], as ts.loop says; and let no tensor leave a traced function.",
        )
    return x.ids


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run one ATen operation on symbolic tensors."""
    name = func.overloadpacket.__name__
    if name in _SPECIAL:
        return _SPECIAL[name](*args, **kwargs)
    if name in CHOICES and isinstance(args[2], Symbolic):
        return CHOICES[name](*args, **kwargs)
    is_in_place = name.endswith("_") and func._schema.is_mutable
    if "out" in kwargs:
        raise FusedError(refusal(func, "out"))
    base = _rule_of(func, name.removesuffix("_") if is_in_place else name, args)
    if is_in_place and torch.Tag.inplace_view in func.tags and base in _MOVES:
        return _reshape_in_place(func, getattr(aten, base), args, kwargs)
    if base in RULES or name in _MOVES:
        first = next(x for x in leaves((args, kwargs)) if isinstance(x, Symbolic))
        refuse_bits(base, args[:2])
        result = _run_on_ids(first.graph, base, func, args, kwargs)
        kind = result_kind(base, name in _MOVES, args, kwargs)
        if base in INTO_FIRST:
            result = of_kind(first.graph, result, widest(args, [*kwargs.values()]), kind)
        if is_in_place:
            return _write(name, args[0], result, kind)
        return _wrapped(first.graph, result, kind)
    if is_in_place and isinstance(args[0], Symbolic) and hasattr(aten, base):
        found = getattr(aten, base)(*args, **kwargs)
        return _write(name, args[0], lift(args[0].graph, found), found.dtype)
    decomposition = decomposition_table.get(func, func.decompose)
    try:
        result = NotImplemented if func._schema.is_mutable else decomposition(*args, **kwargs)
    except FusedError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        # PyTorch's own, of kinds that it does not write out.
        raise FusedError(refusal(func, name)) from error
    if result is NotImplemented:
        raise FusedError(refusal(func, name))
    return result


def _run_on_ids(
    graph: TracedGraph, base: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    schema = [a.name for a in func._schema.arguments]
    id_args = [_ids(graph, name, x) for name, x in zip(schema, args, strict=False)]
    id_kwargs = {k: _ids(graph, k, x) for k, x in kwargs.items() if k not in _FACTORY_OPTIONS}
    if base in RULES:
        result = RULES[base](graph, *id_args, **id_kwargs)
        return _laid_out(result, id_args) if base in ELEMENTWISE else result
    if kwargs.get("memory_format") is not None:
        id_kwargs["memory_format"] = kwargs["memory_format"]
    if base in ("view", "_unsafe_view"):
        # The numbers may be strided where PyTorch's own copy would be contiguous.
        return id_args[0].reshape(id_args[1])
    if base in ("new_empty", "empty_like"):
        func = aten.new_zeros.default if base == "new_empty" else aten.zeros_like.default
    return func(*id_args, **id_kwargs)


def _laid_out(ids: Tensor, operands: Sequence[Any]) -> Tensor:
    """Expressions in the strides that PyTorch gives its result: views of it are views of these, then."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if all(x.is_contiguous() for x in tensors):
        return ids
    strides = compute_elementwise_output_strides(*torch.broadcast_tensors(*tensors))
    return ids.new_empty_strided(ids.shape, strides).copy_(ids)


def _ids(graph: Graph, name: str, x: Any) -> Any:
    """An argument with its values replaced by expressions; indices and numbers stay."""
    if isinstance(x, (list, tuple)):
        return [_ids(graph, name, y) for y in x]
    if not isinstance(x, Tensor):
        return x
    if name not in ("index", "indices"):
        return lift(graph, x)
    if isinstance(x, Symbolic):
        raise FusedError(
            "an index depends on the values of the inputs, so the program would not be a straight "
            "line.",
            advice="Select with torch.where or torch.gather instead.",
        )
    return x


def _reshape_in_place(func: Any, functional: Any, args: Any, kwargs: Any) -> Symbolic:
    """An operation that gives a tensor another shape in place: its numbers, and PyTorch's own record."""
    target, *rest = args
    target.ids = functional(target.ids, *rest, **kwargs)
    with torch._C._ExcludeDispatchKeyGuard(_PYTHON_KEYS):
        func(target, *rest, **kwargs)
    return target


def _write(name: str, target: Any, ids: Tensor, kind: torch.dtype) -> Symbolic:
    if not isinstance(target, Symbolic):
        raise FusedError(
            f"{name} writes traced values into a constant tensor, which cannot hold them.",
            advice="Build the result with torch.cat or torch.stack, or start from x.new_zeros(...).",
        )
    target.ids.copy_(of_kind(target.graph, ids, kind, target.dtype))
    return target


def _wrapped(graph: TracedGraph, result: Any, dtype: torch.dtype) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(_wrapped(graph, x, dtype) for x in result)
    return Symbolic(graph, result, dtype)


def _rule_of(func: Any, base: str, args: Sequence[Any]) -> str:
    """The name of the rule of an operation that goes by the rule of another."""
    return "logical_or" if base == "add" and are_truths(args[:2]) else base


def _cast(
    x: Symbolic, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any
) -> Tensor:
    """The same values; all floating types are one inside a program, whose kernel has one type."""
    dtype = checked(dtype or x.dtype, x.dtype)
    if device is not None and torch.device(device).type == "meta":
        # Forward mode derives the shape of a sum with a zero tangent from meta tensors.
        return torch.empty(x.shape, dtype=dtype, device="meta")
    if dtype == torch.bool and x.dtype != torch.bool:
        return x != 0  # type: ignore[return-value]
    return Symbolic(x.graph, x.ids.clone(), dtype)


def _zeros_with_batch_of(x: Tensor, like: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Zeros of the shape of ``like`` behind x's batch dimensions (forward mode asks for it)."""
    graph = next(t.graph for t in (x, like) if isinstance(t, Symbolic))
    shape = (*x.shape[:self_num_batch_dims], *like.shape)
    return Symbolic(graph, torch.zeros(shape, dtype=torch.int64))


def _new_strided(
    x: Symbolic,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    """Zeros laid out so; the gradient of a tensor that was written to in part goes there."""
    ids = torch.empty_strided(tuple(size), tuple(stride), dtype=torch.int64).zero_()
    return Symbolic(x.graph, ids, checked(dtype or x.dtype, x.dtype))


def _is_any_true(x: Symbolic) -> Tensor:
    """No: anomaly mode asks of each gradient whether it is nan, and what is traced has no values yet."""
    return torch.zeros((), dtype=torch.bool)


def _as_strided(
    x: Symbolic, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """The view that a backward pass takes of a gradient; functions know no strides, kernels have others."""
    if torch._C._current_graph_task_id() < 0:
        raise FusedError(refusal(aten.as_strided.default, "as_strided"))
    return Symbolic(x.graph, x.ids.as_strided(size, stride, storage_offset), x.dtype)


def _extreme(name: str, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The largest or smallest of all, or along a dimension, with its place there."""
    if dim is None:
        return getattr(aten, name)(x)
    value = getattr(aten, name)(x, [dim], True)
    found: Any = place(x, value, dim) if x.ndim else torch.zeros_like(x)
    where = Symbolic(x.graph, found.ids, torch.int64)
    return (value, where) if keepdim or not x.ndim else (value.squeeze(dim), where.squeeze(dim))


def _place(name: str, x: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where it is."""
    if dim is not None:
        return _extreme(name, x, dim, keepdim)[1]
    found = _extreme(name, x.reshape(-1), 0)[1]
    return found.reshape([1] * x.ndim) if keepdim else found


def _lu_factor(A: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Factors of a matrix, and its pivots."""
    if not pivot:
        raise FusedError(
            "lu_factor was called with pivot=False.",
            "PyTorch itself has that on GPUs only.",
            "Leave pivot out.",
        )
    LU, order, _ = lu(A)
    info = torch.zeros(A.shape[:-2], dtype=torch.int32)
    return LU, Symbolic(A.graph, lift(A.graph, pivots_of(order)), torch.int64), info


_SPECIAL: dict[str, Callable[..., Any]] = {
    **FACTORS,
    "linalg_lu_factor_ex": _lu_factor,
    "_is_any_true": _is_any_true,
    "max": partial(_extreme, "amax"),
    "min": partial(_extreme, "amin"),
    "argmax": partial(_place, "amax"),
    "argmin": partial(_place, "amin"),
    "is_same_size": lambda x, y: x.shape == y.shape,
    "_has_same_storage_numel": lambda x, y: True,
    "_new_zeros_with_same_feature_meta": _zeros_with_batch_of,
    "new_empty_strided": _new_strided,
    "as_strided": _as_strided,
    "_to_copy": _cast,
    "convert_element_type": _cast,
    "_reshape_alias": lambda x, size, stride: Symbolic(x.graph, x.ids.reshape(size), x.dtype),
}
