"""Scans equal loops over their steps, with derivatives of any order, for all batch shapes and lengths."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from torchsko.errors import CompilerError, FusedError
from torchsko.fused.calls import scan_kernel
from torchsko.fused.emit.cpp import LoopRoles
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.scan import Scan
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Port
from torchsko.implicit.loop_roles import split_by_sizes

PORTS = [Port("a", (3,)), Port("b", (2,)), Port("x", (3,)), Port("c", ()), Port("p", (2,))]


def step(a, b, x, c, p):
    """A step with two carried tensors, two stacked outputs and one summed output."""
    turned = torch.sin(a) * p[0] + 0.3 * x * b.sum()
    slowed = b * torch.tanh(p[1]) + 0.1 * c * a[:2] * x[0]
    return turned, slowed, (a * x).sum(), x * p[0] + a, p[1] * (a * a).sum()


@pytest.fixture(scope="module")
def scan():
    return Scan(FusedFunction(step, PORTS, Traits(num_outputs=5, order=2)), LoopRoles(2, 2, 2, 1))


@pytest.fixture(scope="module")
def unsummed():
    """States and stacked outputs."""
    function = FusedFunction(
        lambda *inputs: step(*inputs)[:4], PORTS, Traits(num_outputs=4, order=2)
    )
    return Scan(function, LoopRoles(2, 2, 2, 0))


def inputs(steps, leads, dtype=torch.float64):
    g = torch.Generator().manual_seed(5)
    shapes = [(3,), (2,), (steps, 3), (steps,), (2,)]
    return [
        (torch.randn((*lead, *shape), generator=g, dtype=dtype) / 2).requires_grad_()
        for lead, shape in zip(leads, shapes, strict=True)
    ]


def one_by_one(steps, a, b, x, c, p):
    """The reference: a Python loop over the steps."""
    rows = []
    states = [(a, b)]
    for t in range(steps):
        a, b, *rest = step(a, b, x[t], c[t], p)
        states.append((a, b))
        rows.append(rest)
    first, second, third = zip(*rows, strict=True)
    return (
        *map(torch.stack, zip(*states, strict=True)),
        torch.stack(first),
        torch.stack(second),
        sum(third),
    )


@pytest.mark.parametrize("steps", [1, 7, 8, 21])
def test_a_scan_is_the_loop_over_its_steps(scan, steps):
    given = inputs(steps, [()] * 5)
    mine, theirs = scan.of_length(steps)(*given), one_by_one(steps, *given)
    cotangents = [torch.randn_like(y) for y in theirs]
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-13, atol=1e-13)
    pulled = [torch.autograd.grad(outputs, given, cotangents) for outputs in (mine, theirs)]
    for x, y in zip(*pulled, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


LEADS = st.lists(st.sampled_from([(), (1,), (3,), (2, 3), (2, 1)]), min_size=5, max_size=5)


@settings(max_examples=25)
@given(LEADS, st.integers(0, 18), st.sampled_from([0, 1]))
def test_batches_broadcast_and_gradients_have_the_shapes_of_inputs(scan, leads, steps, every):
    given = inputs(steps, leads)
    function = scan.of_length(steps, every)
    mine = function(*given)
    batch = torch.broadcast_shapes(*leads)
    theirs = [y.expand(x.shape) for x, y in zip(mine, function.eager(*given), strict=True)]
    for x, port, y in zip(mine, function.outputs, theirs, strict=True):
        assert x.shape == (*batch, *port.shape)
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)
    if steps:
        cotangents = [torch.randn_like(y) for y in mine]
        pulled = [torch.autograd.grad(outputs, given, cotangents) for outputs in (mine, theirs)]
        for x, y in zip(*pulled, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("leads", [[(0,)] * 5, [(0,), (1,), (), (2, 0), ()]])
def test_an_empty_batch_is_an_empty_batch(scan, leads):
    given = inputs(4, leads)
    found = scan.of_length(4)(*given)
    batch = torch.broadcast_shapes(*leads)
    for y, port in zip(found, scan.of_length(4).outputs, strict=True):
        assert y.shape == (*batch, *port.shape)
    for x, y in zip(given, torch.autograd.grad(sum(y.sum() for y in found), given), strict=True):
        assert y.shape == x.shape
        assert not y.any()


@pytest.mark.filterwarnings("ignore:no C")
@pytest.mark.parametrize("compiler", [True, False])
@pytest.mark.parametrize("every", [0, 1])
def test_no_step_leaves_the_start_of_the_whole_batch(every, compiler, unsummed, monkeypatch):
    """Regression: without a compiler the gradient raised a shape error."""
    if not compiler:
        monkeypatch.setattr(scan_kernel, "find_toolchain", _none)
        unsummed = Scan(unsummed.step, unsummed.roles)
    given = inputs(0, [(4,), (), (), (), (1,)])
    found = unsummed.of_length(0, every)(*given)
    starts = [x.expand(4, -1) for x in given[:2]]
    starts = [x[:, None] for x in starts] if every else starts
    for x, y in zip(found[:2], starts, strict=True):
        assert torch.equal(x, y)
    assert [x.shape for x in found[2:]] == [(4, 0), (4, 0, 3)]
    grads = torch.autograd.grad(sum(x.sum() for x in found), given)
    for x, count in zip(grads, (1, 4, 0, 0, 0), strict=True):
        assert torch.equal(x, torch.full_like(x, count))


def _none(*args):
    raise CompilerError("no C++ compiler")


@pytest.mark.some(1)
@pytest.mark.parametrize("every", [0, 1])
def test_derivatives_of_both_modes_and_of_second_order(scan, every):
    given = inputs(3, [(2,), (), (2,), (2,), ()])
    assert gradcheck(scan.of_length(3, every), given, check_forward_ad=True)
    assert gradgradcheck(scan.of_length(3, every), given)


@pytest.mark.some(3)
@pytest.mark.parametrize(("steps", "every"), [(7, 3), (6, 2), (2, 3), (1, 2)])
def test_thinned_states_are_those_of_the_whole_and_so_are_gradients(unsummed, steps, every):
    given = inputs(steps, [(2,), (2,), (2,), (), ()])
    thinned = unsummed.of_length(steps, every)(*given)
    states, stacked = split_by_sizes(unsummed.of_length(steps)(*given), (2,))
    whole = [*(y[:, ::every] for y in states), *(y[:, every - 1 :: every] for y in stacked)]
    cotangents = [torch.randn_like(y) for y in whole]
    assert all(torch.equal(x, y) for x, y in zip(thinned, whole, strict=True))
    pulled = [torch.autograd.grad(outputs, given, cotangents) for outputs in (thinned, whole)]
    for x, y in zip(*pulled, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-13, atol=1e-13)
    eager = unsummed.of_length(steps, every).eager(*given)
    torch.testing.assert_close(tuple(thinned), tuple(eager), rtol=1e-13, atol=1e-13)


@pytest.mark.nightly
def test_thinned_results_have_derivatives_of_both_modes_and_of_second_order(unsummed):
    given = inputs(5, [(2,), (2,), (2,), (), ()])
    function = unsummed.of_length(5, 2)
    assert gradcheck(function, given, check_forward_ad=True)
    assert gradgradcheck(function, given)


def test_thinning_is_refused_where_something_else_comes_out(scan):
    with pytest.raises(FusedError, match="every="):
        scan.of_length(4, 2)


def test_a_series_that_stays_the_same_is_read_once(scan):
    given = inputs(9, [(4,), (4,), (4,), (4,), ()])
    given[2] = given[2][:, :1].expand(-1, 9, -1)
    mine = scan.of_length(9)(*given)
    theirs = scan.of_length(9)(*given[:2], given[2].contiguous(), *given[3:])
    assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


def test_a_scan_has_a_vmap(scan):
    a, b, x, c, p = inputs(5, [(4,), (4,), (4,), (4,), ()])
    mapped = torch.func.vmap(scan.of_length(5), (0, 0, 0, 0, None))(a, b, x, c, p)
    for y, z in zip(mapped, scan.of_length(5)(a, b, x, c, p), strict=True):
        torch.testing.assert_close(y, z, rtol=1e-14, atol=1e-14)


def test_single_precision_rounds_and_does_no_more(scan):
    given = inputs(12, [(3,)] * 5)
    exact = scan.of_length(12)(*given)
    for x, y in zip(scan.of_length(12)(*(x.float() for x in given)), exact, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("few", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_few_samples_are_rows_of_many(scan, few, dtype):
    given = inputs(9, [(20,)] * 4 + [()], dtype)
    whole = scan.of_length(9)(*given)
    close = 4 * torch.finfo(dtype).eps
    for x, y in zip(scan.of_length(9)(*(x[:few] for x in given[:4]), given[4]), whole, strict=True):
        torch.testing.assert_close(x, y[:few], rtol=close, atol=close)


def test_a_library_is_built_for_few_samples_and_one_for_many_when_they_are_run(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHSKO_CACHE", str(tmp_path))
    scan = Scan(FusedFunction(step, PORTS, Traits(num_outputs=5)), LoopRoles(2, 2, 2, 1))
    built = []
    for samples in (1, 2, 20, 1, 200):
        scan.of_length(3)(*(x.detach() for x in inputs(3, [(samples,)] * 5)))
        built.append(len(list(tmp_path.glob("*.so"))))
    threads_and_memory = 1
    assert built == [threads_and_memory + n for n in (1, 1, 2, 2, 2)]


def test_threads_change_nothing(scan):
    given = [x.detach() for x in inputs(40, [(257,)] * 4 + [()])]
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(scan.of_length(40)(*given))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_a_scan_keeps_the_functions_of_few_lengths(scan):
    """A function for each number of steps would be a leak for episodes of any length."""
    kept = [weakref.ref(scan.of_length(steps)) for steps in range(100)]
    gc.collect()
    assert sum(x() is not None for x in kept) <= 16
    assert scan.of_length(7) is scan.of_length(7)
