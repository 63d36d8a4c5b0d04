"""Pieces of a log side by side, on the cores that torch may use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

In = TypeVar("In")
Out = TypeVar("Out")


def side_by_side(do: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
    """Results in order; two threads where torch has several, for each leaves cores idle in turn."""
    if torch.get_num_threads() == 1:
        yield from map(do, items)
        return
    with ThreadPoolExecutor(2) as pool:
        ahead: deque[Future[Out]] = deque()
        for item in items:
            ahead.append(pool.submit(do, item))
            if len(ahead) > 2:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
