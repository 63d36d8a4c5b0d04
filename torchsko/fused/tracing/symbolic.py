"""Symbolic tensors, whose entries are expressions of a scalar graph.

`Symbolic` is a tensor subclass below autograd and torch.func: every operation of PyTorch's
differentiation and batching arrives at ``__torch_dispatch__`` as a plain ATen call. The data is an
int64 tensor of expression numbers (`torchsko.fused.program.graph`).

* Operations that only move entries run unchanged on the numbers. Number 0 is the constant 0, so
  zero padding is right.
* Arithmetic follows a rule of `torchsko.fused.program.rules`, a loop over scalars.
* All other operations are decomposed by PyTorch, or refused by name.

Views of a symbolic tensor are views of its numbers, and in-place operations write these numbers.
Autograd accumulates gradients in place; without this, gradients would be zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from torchsko.errors import FusedError
from torchsko.fused.program.dense_block import DenseBlock
from torchsko.fused.program.elementwise import constants, flat_list, ids_tensor
from torchsko.fused.program.factorizations import FACTORIZATIONS, lu, pivots_of
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.indexing import VALUE_INDEXED, first_index_of
from torchsko.fused.program.rules import ELEMENTWISE, RULES
from torchsko.fused.program.sparse_products import forward_adjoint, gram, store, vector_product
from torchsko.fused.program.type_promotion import (
    WRITES_INTO_FIRST,
    are_all_bool,
    converted,
    leaves,
    promoted_dtype,
    refuse_bitwise,
    result_dtype,
    traced_dtype,
)
from torchsko.fused.tracing.traced_loops import TracedGraph
from torchsko.fused.tracing.unsupported import unsupported_operation
from torchsko.implicit.jacobian_products import Tensors
from torchsko.implicit.table_loop import TableLoop
from torchsko.implicit.tensor_loop import TensorLoop
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

# The mode of make_fx, which would record symbolic tensors as constants.
_RECORDER = torch._C._TorchDispatchModeKey.PROXY

_FACTORY_OPTIONS = frozenset("dtype layout device pin_memory memory_format".split())


class Symbolic(TracedTensor):
    """A tensor of expressions.

    Attributes:
        graph: the graph of the expressions.
        ids: int64 tensor of the same shape, the numbers of the expressions.
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
        """The dtype of the kernel; see `torchsko.utils.dtype.compute_dtype`."""
        return self.graph.dtype

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Symbolic(shape={tuple(self.shape)}, dtype={self.dtype})"

    def convert_closure(self, body: Callable[..., Any]) -> tuple[Callable[..., Any], list[Tensor]]:
        """A loop body with its captured traced tensors as additional arguments, and these tensors."""
        return self.graph.convert_closure(body)

    def record_loop(self, loop: TensorLoop, tensors: Sequence[Tensor]) -> Tensors:
        """The outputs of a loop, which becomes one instruction; some of the inputs are symbolic."""
        ids = self.graph.trace_loop(loop, [lift(self.graph, x) for x in tensors])
        return tuple(Symbolic(self.graph, x) for x in ids)

    def record_table_loop(self, loop: TableLoop, tensors: Sequence[Tensor]) -> Tensors:
        """The outputs of a loop over rows, which becomes one instruction."""
        ids = self.graph.trace_table_loop(loop, [lift(self.graph, x) for x in tensors])
        return tuple(Symbolic(self.graph, x) for x in ids)

    def record_solution(self, solve: Callable[[], Tensor]) -> Tensor:
        """The solution of an equation: the stored one in a backward pass, else what ``solve`` returns."""
        ids = self.graph.solutions.record(lambda: lift(self.graph, solve()))
        return Symbolic(self.graph, ids)

    def record_block(
        self, kind: str, rows: int, variable: Tensor, fixed: Tensor | None = None, **sizes: Any
    ) -> Tensor:
        """The result of a dense operation, which becomes one instruction."""
        block, args = DenseBlock(kind, rows, **sizes), flat_list(lift(self.graph, variable))
        if fixed is not None:
            args += flat_list(lift(self.graph, fixed))
        node = self.graph.block(block, args)
        parts = [self.graph.part(node, k) for k in range(block.sizes[2])]
        return Symbolic(self.graph, ids_tensor(parts, (len(parts),)))

    def record_product(self, kind: str, shift: float, *tensors: Tensor) -> Tensor:
        """A product with a sparse matrix; see `torchsko.fused.program.sparse_products`."""
        products: dict[str, Callable[..., Tensor]] = {
            "gram_matrix": partial(gram, shift=shift),
            "sparse_matvec": vector_product,
            "forward_adjoint": forward_adjoint,
        }
        ids = products[kind](self.graph, *(lift(self.graph, x) for x in tensors))
        return Symbolic(self.graph, ids)

    def record_store(self, num_matrices: int, tensors: Sequence[Tensor]) -> Tensors:
        """Copies of a symmetric matrix, of matrices and of vectors, behind all of their entries."""
        symmetric, *others = (lift(self.graph, x) for x in tensors)
        matrices, vectors = others[:num_matrices], others[num_matrices:]
        entries, symmetric, matrices, vectors = store(self.graph, symmetric, matrices, vectors)
        return tuple(Symbolic(self.graph, x) for x in (entries, symmetric, *matrices, *vectors))

    def mark_regular(self) -> None:
        """Declare that all entries are finite and not zero."""
        self.graph.mark_regular(flat_list(self.ids))

    def can_be_nonzero(self) -> Tensor:
        """Mask of the entries that are not the constant 0."""
        return self.ids != 0

    def mark_rare(self) -> None:
        """Declare that few samples fulfil the conditions."""
        self.graph.mark_rare(flat_list(self.ids))

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():  # modes of functions are active in a backward pass
            result = _run_by_rule(func, args, kwargs)
        return _run_otherwise(func, args, kwargs) if result is NotImplemented else result


class Recording(TorchDispatchMode):
    """Mode that runs operations of symbolic tensors without PyTorch's dispatch to their class.

    That dispatch imports torch.distributed.tensor, which takes longer than the trace of an arm.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports torch._dynamo, which takes seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if Symbolic not in types:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            result = _run_by_rule(func, args, kwargs)
        if result is NotImplemented:
            with self:
                result = _run_otherwise(func, args, kwargs)
        return result


def lift(graph: Graph, x: Tensor) -> Tensor:
    """Expressions of a tensor: those of a symbolic one, constants for a concrete one."""
    if not isinstance(x, Symbolic):
        return constants(graph, x)
    if x.graph is not graph:
        raise FusedError(
            f"a traced tensor of shape {tuple(x.shape)} was used in another trace.",
            "A loop body is traced separately. It finds tensors in closures, globals, attributes and "
            "containers, not in generators and weak references.",
            "Pass the tensor by args=[...] of ts.iterate, and do not store traced tensors.",
        )
    return x.ids


class _Operation(NamedTuple):
    """Facts about an ATen operation that do not depend on its arguments.

    Attributes:
        name: without overload.
        base: without trailing underscore, if the operation works in place.
        is_in_place: whether it does.
        arguments: names of its arguments.
        moves: whether it only moves entries.
        follows_rule: whether it has a rule or moves entries.
    """

    name: str
    base: str
    is_in_place: bool
    arguments: tuple[str, ...]
    moves: bool
    follows_rule: bool


@cache
def _operation(func: Any) -> _Operation:
    name = func.overloadpacket.__name__
    is_in_place = name.endswith("_") and func._schema.is_mutable
    base = name.removesuffix("_") if is_in_place else name
    if is_in_place and torch.Tag.inplace_view in func.tags:
        follows_rule = False
    else:
        follows_rule = name not in _SPECIAL and (base in RULES or name in _MOVES)
    arguments = tuple(a.name for a in func._schema.arguments)
    return _Operation(name, base, is_in_place, arguments, name in _MOVES, follows_rule)


def _run_by_rule(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run one ATen operation that has a rule or moves entries; NotImplemented for another."""
    if torch._C._get_dispatch_mode(_RECORDER) is not None:
        raise unsupported_operation(func, "recorded")
    found = _operation(func)
    name, base = found.name, found.base
    if not found.follows_rule or (name in VALUE_INDEXED and isinstance(args[2], Symbolic)):
        return NotImplemented
    if "out" in kwargs:
        raise unsupported_operation(func, "out")
    base = _rule_of(base, args)
    first = (
        args[0]
        if type(args[0]) is Symbolic
        else next(x for x in leaves((args, kwargs)) if isinstance(x, Symbolic))
    )
    refuse_bitwise(base, args[:2])
    result = _run_on_ids(first.graph, base, func, args, kwargs)
    dtype = result_dtype(base, found.moves, args, kwargs)
    if base in WRITES_INTO_FIRST:
        source = promoted_dtype(args, [*kwargs.values()])
        result = converted(first.graph, result, source, dtype)
    if found.is_in_place:
        return _write(name, args[0], result, dtype)
    return _wrapped(first.graph, result, dtype)


def _run_otherwise(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run one ATen operation by other operations."""
    found = _operation(func)
    name, base = found.name, found.base
    if name in _SPECIAL:
        return _SPECIAL[name](*args, **kwargs)
    if name in VALUE_INDEXED and isinstance(args[2], Symbolic):
        return VALUE_INDEXED[name](*args, **kwargs)
    if "out" in kwargs:
        raise unsupported_operation(func, "out")
    if found.is_in_place and torch.Tag.inplace_view in func.tags and base in _MOVES:
        return _reshape_in_place(func, getattr(aten, base), args, kwargs)
    if found.is_in_place and isinstance(args[0], Symbolic) and hasattr(aten, base):
        result = getattr(aten, base)(*args, **kwargs)
        return _write(name, args[0], lift(args[0].graph, result), result.dtype)
    decomposition = decomposition_table.get(func, func.decompose)
    try:
        result = NotImplemented if func._schema.is_mutable else decomposition(*args, **kwargs)
    except FusedError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        # Some decompositions fail on tensor subclasses.
        raise unsupported_operation(func, name) from error
    if result is NotImplemented:
        raise unsupported_operation(func, name)
    return result


def _run_on_ids(
    graph: TracedGraph, base: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    names = _operation(func).arguments
    id_args = [_ids(graph, name, x) for name, x in zip(names, args, strict=False)]
    id_kwargs = {k: _ids(graph, k, x) for k, x in kwargs.items() if k not in _FACTORY_OPTIONS}
    if base in RULES:
        result = RULES[base](graph, *id_args, **id_kwargs)
        return _with_pytorch_strides(result, id_args) if base in ELEMENTWISE else result
    if kwargs.get("memory_format") is not None:
        id_kwargs["memory_format"] = kwargs["memory_format"]
    if base in ("view", "_unsafe_view"):
        # The numbers may be strided where PyTorch's copy is contiguous.
        return id_args[0].reshape(id_args[1])
    if base in ("new_empty", "empty_like"):
        func = aten.new_zeros.default if base == "new_empty" else aten.zeros_like.default
    return func(*id_args, **id_kwargs)


def _with_pytorch_strides(ids: Tensor, operands: Sequence[Any]) -> Tensor:
    """Expressions with the strides of PyTorch's result, so that views of it are views of the expressions."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if all(x.is_contiguous() for x in tensors):
        return ids
    # PyTorch's own function for strides imports sympy, which takes longer than a trace.
    operation: Callable[..., Tensor] = (torch.neg, torch.add, torch.addcmul)[len(tensors) - 1]
    strides = operation(*tensors).stride()
    return ids.new_empty_strided(ids.shape, strides).copy_(ids)


def _ids(graph: Graph, name: str, x: Any) -> Any:
    """An argument with values replaced by expressions; indices and numbers are unchanged."""
    if type(x) is Symbolic and x.graph is graph and name not in ("index", "indices"):
        return x.ids
    if isinstance(x, (list, tuple)):
        return [_ids(graph, name, y) for y in x]
    if not isinstance(x, Tensor):
        return x
    if name not in ("index", "indices"):
        return lift(graph, x)
    if isinstance(x, Symbolic):
        raise FusedError(
            "an index depends on traced values.",
            "Kernels are straight-line code, in which every index is constant.",
            "Select with torch.where or torch.gather instead.",
        )
    return x.cpu()  # as the expressions, wherever a captured index lies


def _reshape_in_place(func: Any, functional: Any, args: Any, kwargs: Any) -> Symbolic:
    """Reshape a tensor in place: its numbers, and the sizes and strides that PyTorch stores."""
    target, *rest = args
    target.ids = functional(target.ids, *rest, **kwargs)
    with torch._C._ExcludeDispatchKeyGuard(_PYTHON_KEYS):
        func(target, *rest, **kwargs)
    return target


def _write(name: str, target: Any, ids: Tensor, dtype: torch.dtype) -> Symbolic:
    if not isinstance(target, Symbolic):
        raise FusedError(
            f"{name} writes traced values into a constant tensor.",
            advice="Build the result with torch.cat or torch.stack, or start from x.new_zeros(...).",
        )
    target.ids.copy_(converted(target.graph, ids, dtype, target.dtype))
    return target


def _wrapped(graph: TracedGraph, result: Any, dtype: torch.dtype) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(_wrapped(graph, x, dtype) for x in result)
    return Symbolic(graph, result, dtype)


def _rule_of(base: str, args: Sequence[Any]) -> str:
    """The name of the rule of an operation: the sum of bool tensors is a logical or."""
    return "logical_or" if base == "add" and are_all_bool(args[:2]) else base


def _cast(
    x: Symbolic, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any
) -> Tensor:
    """Convert the dtype; all floating-point types are one type in a program."""
    dtype = traced_dtype(dtype or x.dtype, x.dtype)
    if device is not None and torch.device(device).type == "meta":
        # Forward mode computes the shape of a sum with a zero tangent with meta tensors.
        return torch.empty(x.shape, dtype=dtype, device="meta")
    if dtype == torch.bool and x.dtype != torch.bool:
        return x != 0  # type: ignore[return-value]
    return Symbolic(x.graph, x.ids.clone(), dtype)


def _zeros_with_batch_of(x: Tensor, like: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Zeros of the shape of ``like`` behind the batch dimensions of x; forward mode calls this."""
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
    """Zeros with given strides; autograd needs them for the gradient of a partly overwritten tensor."""
    ids = torch.empty_strided(tuple(size), tuple(stride), dtype=torch.int64).zero_()
    return Symbolic(x.graph, ids, traced_dtype(dtype or x.dtype, x.dtype))


def _any(x: Symbolic, dim: Any = None, keepdim: bool = False) -> Tensor:
    """True where an entry is not 0. PyTorch's decompositions of any, all and isinf import torch._dynamo."""
    truths = x if x.dtype == torch.bool else x != 0
    return truths.sum(dim, keepdim=keepdim) != 0  # type: ignore[return-value]


def _all(x: Symbolic, dim: Any = None, keepdim: bool = False) -> Tensor:
    """True where no entry is 0."""
    return torch.logical_not(torch.any(torch.logical_not(x), dim, keepdim=keepdim))


def _is_any_true(x: Symbolic) -> Tensor:
    """False, since traced gradients have no values; anomaly mode asks whether any of them is nan."""
    return torch.zeros((), dtype=torch.bool)


def _as_strided(
    x: Symbolic, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A strided view, allowed in backward passes only, since kernels have other strides."""
    if torch._C._current_graph_task_id() < 0:
        raise unsupported_operation(aten.as_strided.default, "as_strided")
    return Symbolic(x.graph, x.ids.as_strided(size, stride, storage_offset), x.dtype)


def _extreme(name: str, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The extreme entry, or the extreme entries along a dimension and their indices."""
    if dim is None:
        return getattr(aten, name)(x)
    value = getattr(aten, name)(x, [dim], True)
    first: Any = first_index_of(x, value, dim) if x.ndim else torch.zeros_like(x)
    index = Symbolic(x.graph, first.ids, torch.int64)
    return (value, index) if keepdim or not x.ndim else (value.squeeze(dim), index.squeeze(dim))


def _extreme_index(name: str, x: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the extreme entry, or indices along a dimension."""
    if dim is not None:
        return _extreme(name, x, dim, keepdim)[1]
    index = _extreme(name, x.reshape(-1), 0)[1]
    return index.reshape([1] * x.ndim) if keepdim else index


def _lu_factor(A: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """LU factors of a matrix and LAPACK pivots."""
    if not pivot:
        raise FusedError(
            "lu_factor was called with pivot=False.",
            "PyTorch supports this on GPUs only.",
            "Omit pivot.",
        )
    LU, order, _ = lu(A)
    info = torch.zeros(A.shape[:-2], dtype=torch.int32)
    return LU, Symbolic(A.graph, lift(A.graph, pivots_of(order)), torch.int64), info


_SPECIAL: dict[str, Callable[..., Any]] = {
    **FACTORIZATIONS,
    "linalg_lu_factor_ex": _lu_factor,
    "any": _any,
    "all": _all,
    "isinf": lambda x: x.abs() == math.inf,
    "_is_any_true": _is_any_true,
    "max": partial(_extreme, "amax"),
    "min": partial(_extreme, "amin"),
    "argmax": partial(_extreme_index, "amax"),
    "argmin": partial(_extreme_index, "amin"),
    "is_same_size": lambda x, y: x.shape == y.shape,
    "_has_same_storage_numel": lambda x, y: True,
    "_new_zeros_with_same_feature_meta": _zeros_with_batch_of,
    "new_empty_strided": _new_strided,
    "as_strided": _as_strided,
    "_to_copy": _cast,
    "convert_element_type": _cast,
    "_reshape_alias": lambda x, size, stride: Symbolic(x.graph, x.ids.reshape(size), x.dtype),
}
