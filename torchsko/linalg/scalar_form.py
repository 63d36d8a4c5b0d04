"""The form in which linear algebra is written: dense for eager tensors, scalar for code that is traced.

Two forms of the same mathematics, whose values agree to rounding. *Dense* is for eager tensors: few, large
tensor operations. *Scalar* is for code that is traced to scalars: every symmetric matrix is computed once,
and a solve is an elimination without pivoting or square roots whose entries all become plain scalar
expressions.

The form is a state of the running trace instead of an argument of each function, so that formulas do not
pass it on. It exists within one ``with`` only; each thread has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_IS_SCALAR = ContextVar("torchsko_scalar_form", default=False)


@contextmanager
def scalar_form() -> Iterator[None]:
    """Write linear algebra in scalar form within the ``with`` statement; for tracers."""
    token = _IS_SCALAR.set(True)
    try:
        yield
    finally:
        _IS_SCALAR.reset(token)


def is_scalar_form() -> bool:
    """True within `scalar_form`."""
    # The first condition is a constant to torch.compile, which does not read the second.
    return not torch.compiler.is_compiling() and _IS_SCALAR.get()
