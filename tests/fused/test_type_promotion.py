"""Traced tensors have the dtypes and strides of eager tensors."""

import pytest
import torch

from tests.fused.test_symbolic import assert_traced_equals_eager
from torchsko.errors import FusedError
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

PORTS = [Port("x", (4,)), Port("y", (4,))]


def written(make, write):
    def fn(x, y):
        z = make(x, y)
        write(z, x, y)
        return z * x, z + z, z / 2

    return fn


WRITTEN = {
    "a number into a truth": written(
        lambda x, y: torch.zeros_like(x > 0), lambda z, x, y: z[1:].copy_(x[1:])
    ),
    "a constant into truths": written(
        lambda x, y: x > 0, lambda z, x, y: z.masked_fill_(y > 0, -1.5)
    ),
    "all of the truths": written(lambda x, y: x > y, lambda z, x, y: z.fill_(0.3)),
    "a number into a count": written(
        lambda x, y: (x > y).sum().repeat(4), lambda z, x, y: z[:2].copy_(7 * y[:2])
    ),
    "a constant into places": written(
        lambda x, y: x.view(2, 2).argmax(1).repeat(2), lambda z, x, y: z[::2].fill_(2.6)
    ),
}
MADE = {
    "added at an index": lambda x, y: (x > 0).index_add(0, torch.tensor([0, 0]), y[:2] > 0) * y,
    "scattered": lambda x, y: (x > 0).scatter_add(0, torch.tensor([2, 2]), y[:2] > 0) * y,
    "where values say": lambda x, y: (
        (x > 0).scatter(0, y.argmax(0, keepdim=True), 0.3) * x + x.scatter(0, x[1].argmax(), 2.5)
    ),
    "filled": lambda x, y: torch.full_like(x > 0, 2.5) * x + torch.full_like(x.argmax(), 2.5),
    "padded": lambda x, y: torch.nn.functional.pad((x > y).cumsum(0), (1, 1), value=0.7) * y[0],
    "counts as whole numbers": lambda x, y: (x > y).long() * x + (x > y).sum().int() ** 2,
    "divided towards zero": lambda x, y: (
        torch.div(0 * x + 0.3, 0.1, rounding_mode="trunc")
        + torch.div(3 * x.abs().sqrt().square(), x.abs(), rounding_mode="trunc")
        + y / x.abs()
    ),
    "chosen by a number alone": lambda x, y: x.gather(0, y[0].argmax()),
    "without a memory of its own": lambda x, y: torch.func.vjp(torch.sgn, x)[1](y)[0],
}


@pytest.mark.parametrize("name", [*WRITTEN, *MADE])
def test_truths_and_counts_stay_what_they_are_in_eager_mode(name):
    assert_traced_equals_eager({**WRITTEN, **MADE}[name])


LAID_OUT = {
    "turned": lambda x, y: x.view(2, 2).mT + 1,
    "turned and not": lambda x, y: x.view(2, 2).mT * y.view(2, 2),
    "chosen": lambda x, y: torch.where(y.view(2, 2).mT > 0, x.view(2, 2), y.view(2, 2).mT),
    "copied in order": lambda x, y: x.view(2, 2).mT.contiguous(),
    "summed along the first": lambda x, y: torch.outer(x, y).cumsum(0),
    "solved from the right": lambda x, y: torch.linalg.solve(
        3 * torch.eye(2, dtype=x.dtype) + torch.outer(y[:2], y[:2]), x.view(2, 2), left=False
    ),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", LAID_OUT)
def test_writes_through_a_reshaped_view_reach_what_they_reach_in_eager_mode(name, turned):
    def write(x, y):
        z = LAID_OUT[name](x, y)
        row = (z.mT if turned else z).reshape(-1)
        row[::2] *= 3.0
        return z, row

    assert_traced_equals_eager(write)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x, y: (x > 0).sum() & 1, "bitwise_and of integers(.|\n)*torch.remainder"),
        (lambda x, y: ~x.argmax(), "bitwise_not of integers"),
        (lambda x, y: torch.func.linearize(torch.sin, x)[1](y), "linearize(.|\n)*torch.func.jvp"),
        (lambda x, y: torch.addcmul(x.argmax(), x.argmin(), y.argmax(), value=0.5), "has no rule"),
        (
            lambda x, y: torch.mul(x, y, out=torch.empty_like(x)),
            "out=(.|\n)*Use the returned tensor",
        ),
    ],
)
def test_what_would_give_other_numbers_is_refused_by_name(fn, words):
    with pytest.raises(FusedError, match=words):
        trace(fn, PORTS)
