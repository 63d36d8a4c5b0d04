"""Which cores a fit works on: pieces of a log side by side, small systems of equations on one."""

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

SIDE_BY_SIDE = 4
"""Pieces at once, at most: each takes its memory."""

WIDE = 250
"""Unknowns from which on torch's threads shorten the algebra of a fit."""


def side_by_side(do: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
    """Results in order, of several items at once where there are several cores, which they share."""
    total = cores()
    count = min(total, SIDE_BY_SIDE)

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
    """Threads that torch works with where nobody said otherwise: in a thread of Python that begins."""
    with _ONE_AT_A_TIME:
        return in_clean_thread(torch.get_num_threads)


def for_unknowns(count: int) -> int:
    """How many threads torch is to solve for so many unknowns with.

    Operations of a fit are thousands, and short. Each waits for the slowest thread, so where others use the
    cores too, two threads are up to ten times slower than one.
    """
    return 1 if count < WIDE else torch.get_num_threads()


def solve_each(A: Tensor, b: Tensor) -> Tensor:
    """Solutions of several systems of equations, one after another.

    Each is solved on the threads there are. Torch spreads a batch over them instead, and with matrices from
    about 150 rows on MKL's LU then finds no pivots (torch 2.13): `torch.linalg.solve` raises.

    Args:
        A: `[*batch, n, n]`.
        b: `[*batch, n]` or `[*batch, n, columns]`.
    """
    apart = A.ndim - 2
    systems = zip(A.reshape(-1, *A.shape[apart:]), b.reshape(-1, *b.shape[apart:]), strict=True)
    return torch.stack([torch.linalg.solve(*one) for one in systems]).reshape(b.shape)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let this thread's operations of torch run on so many threads; other threads' stay as they are."""
    before = torch.get_num_threads()
    _set(count)
    try:
        yield
    finally:
        _set(before)


def _set(count: int) -> None:
    # What a thread says counts for it, and for all that have yet to begin: theirs is set by one of them.
    with _ONE_AT_A_TIME:
        others = in_clean_thread(torch.get_num_threads)
        torch.set_num_threads(count)
        in_clean_thread(lambda: torch.set_num_threads(others))


_ONE_AT_A_TIME = Lock()
"""Torch has one number for threads that have yet to begin: who looks while another sets it, takes his."""
