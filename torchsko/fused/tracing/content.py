"""Digests of the content of objects: equal digests mean that a trace finds the same.

Objects of this package, functions of it and of PyTorch with what they capture, tensors, arrays,
numbers and containers have content. Functions and types of the user have none, since their source may change.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from torchsko.contact.contact_model import ContactModel
from torchsko.contact.contact_tables import ContactTables
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.traced_tensor import TracedTensor

_SOURCES = tuple(str(Path(x).parent) for x in (torch.__file__, Path(__file__).parents[1]))
"""Folders whose source does not change within a process."""

Known = dict[int, tuple[object, bytes, list[int]]]
"""Mechanisms and contact models with the digests of their content and the ids of their tensors, by id."""


def digest_of_content(
    *parts: object,
    known: Known,
    is_captured: Callable[[Tensor], bool] = lambda x: False,
    reads_computed: bool = True,
) -> bytes | None:
    """A digest of the content of objects; None if one of them has no content.

    Traced tensors are represented by their identity: two functions of equal content differ in them alone.

    Args:
        *parts: the objects.
        known: mechanisms and contact models that were digested before, to which those among the parts are
            added.
        is_captured: whether another object of equal content does not equal a tensor.
        reads_computed: read values that an object computed from its fields and stores, as a trace does.
    """
    try:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return _Content(known, is_captured, reads_computed).digest(parts)
    except (pickle.PicklingError, ValueError, RuntimeError):  # ValueError: a variable without value
        return None


class _Content(pickle.Pickler):
    """A pickler whose output is compared, never read: pickle walks the containers.

    Args:
        known: see `digest_of_content`.
        is_captured: see `digest_of_content`.
        reads_computed: see `digest_of_content`.

    Attributes:
        numbers: the order in which tensors and functions were met, by their ids.
    """

    def __init__(
        self, known: Known, is_captured: Callable[[Tensor], bool], reads_computed: bool
    ) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, pickle.HIGHEST_PROTOCOL)
        self.fast = True  # equal content in one object or in two has the same bytes
        self.numbers: dict[int, int] = {}
        self._options = known, is_captured, reads_computed

    def digest(self, x: object) -> bytes:
        """The digest of an object."""
        self.dump(x)
        return hashlib.sha256(self._file.getbuffer()).digest()

    def reducer_override(self, x: Any) -> Any:
        """The content of an object that is no plain number, text, list, tuple or dict."""
        if x is tuple:  # which each other object is written as
            return NotImplemented
        return tuple, ((type(x).__qualname__, self._content(x)),)

    def _content(self, x: Any) -> object:
        if isinstance(x, (Tensor, FunctionType)):
            is_new = id(x) not in self.numbers
            number = self.numbers.setdefault(id(x), len(self.numbers))
            return number, self._content_of_new(x) if is_new else None
        if isinstance(x, (Mechanism, ContactModel)):
            return self._stored(x)
        if isinstance(x, ContactTables):
            return x.key
        if isinstance(x, np.ndarray):
            return str(x.dtype), x.shape, x.tobytes()
        if is_dataclass(x) and type(x).__module__.startswith("torchsko."):
            computed = getattr(x, "__dict__", {}) if self._options[2] else {}
            return {f.name: getattr(x, f.name) for f in fields(x)} | computed
        if isinstance(x, (tuple, list)):
            return [*x]
        if isinstance(x, partial):
            return x.func, x.args, x.keywords
        if isinstance(x, MethodType):
            return x.__func__, x.__self__
        if isinstance(x, torch.dtype):
            return str(x)
        raise pickle.PicklingError  # such as a type of the user

    def _content_of_new(self, x: Tensor | FunctionType) -> object:
        """The content of a tensor or a function that is met for the first time."""
        if isinstance(x, FunctionType):
            code = x.__code__
            if not code.co_filename.startswith(_SOURCES):
                raise pickle.PicklingError  # a function of the user
            cells = [cell.cell_contents for cell in x.__closure__ or ()]
            name = code.co_filename, code.co_firstlineno, code.co_qualname
            return name, cells, x.__defaults__, x.__kwdefaults__
        value = torch.func.debug_unwrap(x, recurse=True)
        if isinstance(value, TracedTensor):
            return None
        shape = str(value.dtype), tuple(value.shape), tuple(x.shape)
        content = value.detach().cpu().contiguous().numpy().tobytes()
        return *shape, content, id(x) if self._options[1](x) else None

    def _stored(self, x: Mechanism | ContactModel) -> object:
        """The digest of a large object, which is computed once, and the numbers of its tensors."""
        known = self._options[0]
        if id(x) not in known:
            inner = _Content(*self._options)
            digest = inner.digest([getattr(x, field.name) for field in fields(x)])
            known[id(x)] = x, digest, [*inner.numbers]
        _, digest, tensors = known[id(x)]
        return digest, [self.numbers.setdefault(k, len(self.numbers)) for k in tensors]
