"""Loops over the steps of a trajectory: one kernel where the step is compiled, else a Python loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def repeat(
    step: Callable[..., Any],
    carry: Sequence[Tensor],
    series: Sequence[Tensor],
    constant: Sequence[Tensor],
    *,
    reverse: bool = False,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Apply a step once for each row of the series.

    Args:
        step: maps (*carry, *rows of the series, *constant) to the next carry and further results.
        carry: at the start, `[*batch, ...]`; the last is a vector for each sample.
        series: `[steps, *batch, ...]`.
        constant: the same in each step, `[*batch, ...]`.
        reverse: from the last row to the first.

    Returns:
        The last carry, `[*batch, ...]`, and the further results of each step, `[steps, *batch, ...]`.
    """
    count = len(carry)
    scan = getattr(step, "scan", None)  # of `torchsko.fuse`
    if scan is not None:
        lead = carry[-1].ndim - 1
        rows = [x.movedim(0, lead) for x in series]
        end, found = scan(carry, rows, constant, reverse=reverse)
        return end, tuple(x.movedim(lead, 0) for x in found)
    results: list[Sequence[Tensor]] = []
    for t in reversed(range(len(series[0]))) if reverse else range(len(series[0])):
        found = step(*carry, *(x[t] for x in series), *constant)
        carry = found[:count]
        results.append(found[count:])
    columns = zip(*(results[::-1] if reverse else results), strict=True)
    return tuple(carry), tuple(torch.stack(x) for x in columns)
