"""The form of linear algebra, dense or scalar."""

import threading

import pytest
import torch

from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.linalg.scalar_form import is_scalar_form, scalar_form


def test_the_form_is_scalar_while_a_function_is_traced_and_dense_after():
    found = []

    def fn(x):
        found.append(is_scalar_form())
        if len(found) > 1:
            raise ValueError
        return 2 * x

    trace(fn, [Port("x", (2,))])
    with pytest.raises(ValueError):
        trace(fn, [Port("x", (2,))])
    assert found == [True, True] and not is_scalar_form()


def test_a_trace_in_one_thread_leaves_the_form_of_others():
    found, traced, read = [], threading.Event(), threading.Event()

    def other():
        traced.wait(10)
        found.append(is_scalar_form())
        read.set()

    thread = threading.Thread(target=other)
    thread.start()
    with scalar_form():
        traced.set()
        assert read.wait(10) and is_scalar_form()
    thread.join()
    assert found == [False]


def test_compiled_code_is_in_dense_form():
    @torch.compile(backend="eager", fullgraph=True)
    def fn(x):
        return x + 1 if is_scalar_form() else x

    x = torch.ones(1)
    with scalar_form():
        assert torch.equal(fn(x), x)
