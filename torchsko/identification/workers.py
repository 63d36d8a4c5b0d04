"""Use of processor cores: pieces of a log in parallel, small systems of equations on one core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor

from torchsko.fused.tracing.clean import in_clean_thread

In = TypeVar("In")
Out = TypeVar("Out")

MAX_PARALLEL = 4
"""Number of pieces in parallel; each needs memory."""

MIN_THREADED_UNKNOWNS = 250
"""Number of unknowns above which several threads speed up the algebra of a fit."""


def side_by_side(do: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
    """Apply a function to items in parallel; the results are in order, and the cores are shared."""
    total = cores()
    count = min(total, MAX_PARALLEL)

    def one(item: In) -> Out:
        with threads(max(1, total // count)):
            return do(item)

    if count == 1:
        yield from map(one, items)
        return
    with ThreadPoolExecutor(count) as pool:
        ahead: deque[Future[Out]] = deque()
        for item in items:
            ahead.append(pool.submit(one, item))
            if len(ahead) > count:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def cores() -> int:
    """Number of threads that torch uses in a new Python thread."""
    with _ONE_AT_A_TIME:
        return in_clean_thread(torch.get_num_threads)


def for_unknowns(count: int) -> int:
    """Number of torch threads for the solution of systems with this many unknowns.

    A fit has thousands of short operations, each of which waits for the slowest thread. If other programs use
    the cores, two threads are up to ten times slower than one.
    """
    return 1 if count < MIN_THREADED_UNKNOWNS else torch.get_num_threads()


def solve_each(A: Tensor, b: Tensor) -> Tensor:
    """Solve several systems of equations, large ones one after another.

    For a batch, torch distributes the systems over threads, and MKL's LU then fails for matrices of about 150
    rows or more (torch 2.13): `torch.linalg.solve` raises.

    Args:
        A: `[*batch, n, n]`.
        b: `[*batch, n]` or `[*batch, n, columns]`.
    """
    if A.shape[-1] <= MAX_BATCHED_ROWS:
        return torch.linalg.solve(A, b)
    apart = A.ndim - 2
    systems = zip(A.reshape(-1, *A.shape[apart:]), b.reshape(-1, *b.shape[apart:]), strict=True)
    return torch.stack([torch.linalg.solve(*one) for one in systems]).reshape(b.shape)


MAX_BATCHED_ROWS = 100
"""Largest size of systems that are solved as a batch."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of torch threads of this Python thread; other Python threads keep theirs."""
    before = torch.get_num_threads()
    _set(count)
    try:
        yield
    finally:
        _set(before)


def _set(count: int) -> None:
    # torch.set_num_threads also sets the default of new threads, which is restored by a new thread.
    with _ONE_AT_A_TIME:
        others = in_clean_thread(torch.get_num_threads)
        torch.set_num_threads(count)
        in_clean_thread(lambda: torch.set_num_threads(others))


_ONE_AT_A_TIME = Lock()
"""Lock of the default number of threads, which torch shares between all Python threads."""
