"""Bytes of the content of objects: equal bytes mean that a trace finds the same.

Objects of this package, functions of it and of PyTorch with what they capture, tensors, arrays,
numbers and containers have content. Functions and types of the user have none, since their source may change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import NamedTuple

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
    *parts: object, known: Known, is_captured: Callable[[Tensor], bool] = lambda x: False
) -> bytes | None:
    """A digest of the content of objects; None if one of them has no content.

    Traced tensors are represented by their identity: two functions of equal content differ in them alone.

    Args:
        *parts: the objects.
        known: mechanisms and contact models that were digested before, to which those among the parts are
            added.
        is_captured: whether another object of equal content does not equal a tensor.
    """
    total = hashlib.sha256()
    try:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            for text in _texts(parts, _Walk({}, known, is_captured)):
                total.update(text)
    except (TypeError, ValueError, RuntimeError):  # ValueError: a variable that is not assigned
        return None
    return total.digest()


class _Walk(NamedTuple):
    """State of a digest.

    Attributes:
        numbers: the order in which tensors and functions were met, by their ids.
        known: see `digest_of_content`.
        is_captured: see `digest_of_content`.
    """

    numbers: dict[int, int]
    known: Known
    is_captured: Callable[[Tensor], bool]

    def number(self, key: int) -> bytes:
        """The number of a tensor or a function with this id."""
        return b"%d;" % self.numbers.setdefault(key, len(self.numbers))


def _texts(x: object, walk: _Walk) -> Iterator[bytes]:
    """The bytes of all parts of an object.

    Raises:
        TypeError: a part has no content.
    """
    yield type(x).__qualname__.encode()
    if isinstance(x, (Tensor, FunctionType)):
        is_new = id(x) not in walk.numbers
        yield walk.number(id(x))
        if not is_new:
            return
    if isinstance(x, Tensor):
        yield from _texts_of_tensor(x, walk)
    elif isinstance(x, (Mechanism, ContactModel)):
        digest, tensors = _stored_digest(x, walk)
        yield digest
        yield from map(walk.number, tensors)
    elif isinstance(x, ContactTables):
        yield from _texts(x.key, walk)
    elif isinstance(x, np.ndarray):
        yield repr((x.dtype, x.shape)).encode()
        yield x.tobytes()
    elif is_dataclass(x) and not isinstance(x, type):
        if not type(x).__module__.startswith("torchsko."):
            raise TypeError  # a type of the user
        # Values that were computed before, which the object stores, are read instead of its fields.
        members = {f.name: getattr(x, f.name) for f in fields(x)} | getattr(x, "__dict__", {})
        yield from _texts(members, walk)
    elif isinstance(x, (tuple, list)):
        yield str(len(x)).encode()
        for part in x:
            yield from _texts(part, walk)
    elif isinstance(x, dict):
        yield from _texts(list(x.items()), walk)
    elif isinstance(x, partial):
        yield from _texts((x.func, x.args, x.keywords), walk)
    elif isinstance(x, MethodType):
        yield from _texts((x.__func__, x.__self__), walk)
    elif isinstance(x, FunctionType):
        code = x.__code__
        if not code.co_filename.startswith(_SOURCES):
            raise TypeError  # a function of the user
        yield f"{code.co_filename}:{code.co_firstlineno}:{code.co_qualname};".encode()
        cells = [cell.cell_contents for cell in x.__closure__ or ()]
        yield from _texts((cells, x.__defaults__, x.__kwdefaults__), walk)
    elif x is None or isinstance(x, (bool, int, float, str, torch.dtype)):
        yield repr(x).encode()
        yield b";"
    else:
        raise TypeError


def _stored_digest(x: Mechanism | ContactModel, walk: _Walk) -> tuple[bytes, list[int]]:
    """The digest of a large object, which is computed once, and the ids of its tensors."""
    if id(x) not in walk.known:
        inner, total = walk._replace(numbers={}), hashlib.sha256()
        for field in fields(x):
            for text in _texts(getattr(x, field.name), inner):
                total.update(text)
        walk.known[id(x)] = x, total.digest(), [*inner.numbers]
    return walk.known[id(x)][1:]


def _texts_of_tensor(x: Tensor, walk: _Walk) -> Iterator[bytes]:
    value = torch.func.debug_unwrap(x, recurse=True)
    if isinstance(value, TracedTensor):
        return
    if walk.is_captured(x):
        yield b"%d;" % id(x)
    yield repr((value.dtype, tuple(value.shape), tuple(x.shape))).encode()
    yield value.detach().cpu().contiguous().numpy().tobytes()
