"""Replacement of tensors in a function, above autograd, so that gradients reach the new tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._C._functorch import (
    get_inplace_requires_grad_allowed,
    get_unwrapped,
    is_functorch_wrapped_tensor,
)
from torch.overrides import TorchFunctionMode

from torchsko.errors import FusedError
from torchsko.fused.program.factorizations import DETERMINANTS
from torchsko.fused.tracing.symbolic import Symbolic

_READS = frozenset(
    "item tolist numpy __array__ __bool__ __float__ __int__ __index__ __complex__ __dlpack__ data_ptr "
    "storage untyped_storage".split()
)
"""Tensor methods that read values."""


_CHECKED = frozenset((*_READS, *DETERMINANTS, "__deepcopy__", "requires_grad_"))
"""Functions that are not simply called."""


class Swap(TorchFunctionMode):
    """Mode that replaces tensors in calls of PyTorch functions, and determinants of symbolic matrices.

    Attributes:
        is_outside: whether a tensor was made outside of the function; `Watch` sets it.
    """

    def __init__(self, old: Sequence[Tensor] = (), new: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._held = old  # keeps their ids valid
        self._new = {id(x): y for x, y in zip(old, new, strict=True)}
        self._function: Any = None
        self.is_outside: Callable[[Any], bool] = lambda x: False

    @property
    def called(self) -> str:
        """Name of the PyTorch function that runs."""
        func = self._function
        if func is None:
            return ""
        name = getattr(func, "__name__", str(func))
        return f"{getattr(func, '__module__', None) or 'torch'}.{name}"

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self._function = func
        kwargs = kwargs or {}
        if self._new and any(map(self._is_replaced, (*args, *kwargs.values()))):
            args, kwargs = self._swapped(args), self._swapped(kwargs)
        name = getattr(func, "__name__", "")
        return (
            self._checked(name, func, args, kwargs) if name in _CHECKED else func(*args, **kwargs)
        )

    def _checked(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of `_CHECKED`."""
        if name == "__deepcopy__":  # PyTorch's implementation copies the storage
            return torch.clone(args[0].detach())
        if name in _READS and self._is_unknown(args[0]):
            raise FusedError(
                f"{name} reads a value within the function.",
                "A kernel is straight-line code: values are known only when it runs.",
                "Replace branches on values by torch.where, and keep numbers in tensors.",
            )
        # torch.func calls this function as well, and then allows it.
        if name == "requires_grad_" and not get_inplace_requires_grad_allowed():
            if _are_functorch_transforms_active() and isinstance(innermost(args[0]), Symbolic):
                raise FusedError(
                    "requires_grad_ was called within the function, for a derivative by torch.autograd.",
                    "Gradients of kernels are traced by torch.func, which does not support this.",
                    "Take the derivative by torch.func.grad, vjp or jacrev.",
                )
        if name in DETERMINANTS:
            (matrix,) = (*args, *kwargs.values())[:1]
            if isinstance(innermost(matrix), Symbolic):
                return DETERMINANTS[name](matrix)
        return func(*args, **kwargs)

    def _is_unknown(self, x: Any) -> bool:
        return isinstance(innermost(x), Symbolic) or self.is_outside(x)

    def replacement(self, x: Tensor) -> Tensor:
        """The tensor that replaces another; the tensor itself if it is not replaced."""
        return self._new.get(id(x), x)

    def _is_replaced(self, x: Any) -> bool:
        """True for a tensor that is replaced, and for containers, which may have one."""
        return id(x) in self._new or type(x) in (list, tuple, dict)

    def _swapped(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self._new.get(id(x), x)
        if isinstance(x, dict):
            return {key: self._swapped(y) for key, y in x.items()}
        if type(x) in (list, tuple):
            return type(x)(self._swapped(y) for y in x)
        return x


def innermost(x: Any) -> Any:
    """The tensor inside of all wrappers of torch.func."""
    while isinstance(x, Tensor) and is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x
