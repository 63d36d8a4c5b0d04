"""C++ kernels compute the same as the interpreter."""

import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fused.evaluate import evaluate
from tests.fused.programs import every_operation, random_program
from torchsko.errors import FusedError, ShapeError
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.calls.kernel import build_kernel
from torchsko.fused.emit import cpp
from torchsko.fused.emit.cpp import emit_cpp, plan
from torchsko.fused.emit.literals import literal
from torchsko.fused.layout.schedule import schedule
from torchsko.fused.program.program import Instr, Port, Program
from torchsko.fused.tracing.tracer import trace

DTYPES = [torch.float64, torch.float32]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-5}


def agree(program, kernel, inputs):
    tolerance = TOLERANCE[inputs[0].dtype]
    expected = evaluate(program, inputs)
    for mine, theirs in zip(kernel(inputs), expected, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


def random_inputs(program, batch, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn((*batch, *p.shape), generator=g, dtype=dtype) for p in program.inputs]


# Vectors of 64 bytes where the processor has them, of 32, of 16; for Arm see test_neon.py.
TARGETS = ["native", "x86-64-v3", "x86-64"]


def toolchain_for(target):
    try:
        toolchain = find_toolchain(target)
    except FusedError:
        pytest.skip(f"this compiler knows no {target}")
    if target != "native" and "avx2" not in open("/proc/cpuinfo").read():
        pytest.skip("this processor cannot run that")
    return toolchain


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def sample(request):
    program = random_program(0, num_ops=300)
    return program, build_kernel(program, request.param), request.param


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_agrees_with_torch_on_special_values_too(dtype, target):
    program = every_operation()
    special = [0.0, -0.0, 0.3, -0.7, 1.0, 2.5, -40.0, 1e4, math.inf, -math.inf, math.nan]
    x, y = torch.tensor([(a, b) for a in special for b in special], dtype=dtype).unbind(-1)
    c = (torch.arange(len(x)) % 3 - 1).to(dtype)
    agree(program, build_kernel(program, dtype, toolchain_for(target)), [x, y, c])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_is_the_same_to_the_last_digit_beside_any_other(dtype):
    program = every_operation()
    kernel = build_kernel(program, dtype)
    x, y, c = random_inputs(program, (64,), dtype)
    (plain,) = kernel([x, y, c])
    for odd in (0.0, -1.0, 1e-40, 1e6, 1e30, math.inf, math.nan):
        beside = x.clone()
        beside[::3] = odd
        (found,) = kernel([beside, y, c])
        kept = torch.arange(64) % 3 != 0
        torch.testing.assert_close(found[kept], plain[kept], rtol=0, atol=0, equal_nan=True)


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS[1:])
def test_batch_sizes_around_every_width_agree(dtype, target):
    program = random_program(0)
    kernel = build_kernel(program, dtype, toolchain_for(target))
    for size in range(1, 20):
        agree(program, kernel, random_inputs(program, (size,), dtype, size))


def test_batch_sizes_from_1_to_67_agree(sample):
    program, kernel, dtype = sample
    for size in range(1, 68):
        agree(program, kernel, random_inputs(program, (size,), dtype, size))


@pytest.mark.parametrize("batch", [(), (0,), (3, 0), (2, 3), (1, 1), (5000,)])
def test_batch_shapes_agree(sample, batch):
    program, kernel, dtype = sample
    inputs = random_inputs(program, batch, dtype)
    if 0 in batch:
        assert [y.shape for y in kernel(inputs)] == [(*batch, *p.shape) for p in program.outputs]
    else:
        agree(program, kernel, inputs)


def test_batch_dimensions_broadcast(sample):
    program, kernel, dtype = sample
    a, b, c = random_inputs(program, (4, 5), dtype)
    agree(program, kernel, [a, b[:1], c[:, :1]])
    agree(program, kernel, [a, b[0, 0], c[0]])
    agree(program, kernel, [a[:1, :1], b[0, 0], c[0, 0]])


def test_strides_do_not_matter(sample):
    program, kernel, dtype = sample
    a, b, c = random_inputs(program, (50,), dtype)
    wide = torch.randn(50, 9, dtype=dtype)
    for sliced in (wide[:, 2:5], wide[:, ::3], wide.T.contiguous().T[:, 4:7], a[:1].expand(50, 3)):
        agree(program, kernel, [sliced, b.mT, c])
    agree(program, kernel, [a[::2], b[::2], c[::2]])


def test_threads_change_nothing(sample):
    program, kernel, dtype = sample
    inputs = random_inputs(program, (40_000,), dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = kernel(inputs, (True, False))
        torch.set_num_threads(3)
        together = kernel(inputs, (True, False))
    finally:
        torch.set_num_threads(before)
    for x, y in zip(alone, together, strict=True):
        assert torch.equal(x, y)


def test_callers_share_the_helpers_whatever_their_number(sample):
    program, kernel, dtype = sample
    inputs = random_inputs(program, (20_000,), dtype)
    expected = kernel(inputs)
    before = torch.get_num_threads()

    def call(number):
        # Pauses longer and shorter than helpers stay awake; fewer threads than before, and more.
        time.sleep((0, 1e-4, 1e-3)[number % 3])
        torch.set_num_threads((2, 5, 1, 3)[number % 4])
        return all(map(torch.equal, kernel(inputs), expected))

    try:
        with ThreadPoolExecutor(4) as callers:
            assert all(callers.map(call, range(200)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("size", [0, 1, 13, 3000])
def test_summed_outputs_are_sums_over_the_batch(sample, size):
    program, kernel, dtype = sample
    inputs = random_inputs(program, (size,), dtype)
    total, each = kernel(inputs, (True, False))
    full = kernel(inputs)
    # Values lie within [-1, 1], their sum within [-size, size]: that is a unit in its last place.
    unit = torch.finfo(dtype).eps * size
    torch.testing.assert_close(total.double(), full[0].double().sum(0), rtol=0.0, atol=unit)
    assert torch.equal(each, full[1])


@settings(max_examples=2)
@given(st.integers(0, 10_000), st.sampled_from([3, 17, 50]))
def test_cuts_and_units_change_nothing(seed, max_ops):
    program = random_program(seed)
    toolchain = find_toolchain()
    width = toolchain.vector_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp, "_MIN_UNIT_STATEMENTS", 5)
        patch.setattr(
            "torchsko.fused.build.kernel_library.plan", lambda p, width, roles: schedule(p, max_ops)
        )
        patch.setattr("torchsko.fused.build.library_cache.load_cached_library", lambda key: None)
        units = emit_cpp(schedule(program, max_ops), bits=64, vector_bytes=width, max_units=2)
        kernel = build_kernel(program, torch.float64, toolchain)
    assert len(units) == 2
    agree(program, kernel, random_inputs(program, (9,), torch.float64, seed))


def sine_and_cosine():
    code = (Instr("input", (0,)), Instr("sin", (0,)), Instr("cos", (0,)))
    return Program((Port("x", ()),), (Port("s", ()), Port("c", ())), code, (), (1, 2))


@pytest.mark.some(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_sine_and_cosine_are_within_three_units_in_the_last_place(dtype, target):
    kernel = build_kernel(sine_and_cosine(), dtype, toolchain_for(target))
    g = torch.Generator().manual_seed(0)
    for scale in (0.8, 10.0, 1e3, 1e5, 1e8, 1e15):
        x = (2 * torch.rand(20_001, generator=g, dtype=torch.float64) - 1) * scale
        # The hardest arguments: next to multiples of pi/2.
        x = torch.cat([x, (x / (math.pi / 2)).round() * (math.pi / 2)]).to(dtype)
        for mine, exact in zip(kernel([x]), (np.sin, np.cos), strict=True):
            reference = exact(x.numpy().astype(np.longdouble))
            unit = np.spacing(np.abs(reference.astype(mine.numpy().dtype)))
            assert np.max(np.abs(mine.numpy() - reference) / unit) < 3.0


ELEMENTARY = ("exp", "expm1", "tanh", "log")


def elementary_functions():
    code = (Instr("input", (0,)), *(Instr(name, (0,)) for name in ELEMENTARY))
    ports = tuple(Port(name, ()) for name in ELEMENTARY)
    return Program((Port("x", ()),), ports, code, (), (1, 2, 3, 4))


@pytest.mark.some(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_elementary_functions_are_within_three_units_in_the_last_place(dtype, target):
    kernel = build_kernel(elementary_functions(), dtype, toolchain_for(target))
    g = torch.Generator().manual_seed(0)
    reach = 700.0 if dtype == torch.float64 else 87.0
    for scale in (1e-8, 1e-3, 0.3, 1.0, 10.0, reach):
        x = (2 * torch.rand(20_001, generator=g, dtype=torch.float64) - 1) * scale
        x, positive = x.to(dtype), torch.exp(x).to(dtype)
        results = [*kernel([x])[:3], kernel([positive])[3]]
        for name, mine in zip(ELEMENTARY, results, strict=True):
            at = positive if name == "log" else x
            reference = getattr(np, name)(at.numpy().astype(np.longdouble))
            unit = np.spacing(np.abs(reference.astype(mine.numpy().dtype)))
            assert np.max(np.abs(mine.numpy() - reference) / unit) < 3.0, (name, scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials_and_logarithms_end_where_their_results_do(dtype):
    kernel = build_kernel(elementary_functions(), dtype)
    info = torch.finfo(dtype)
    edges = torch.tensor([info.max, info.tiny, info.smallest_normal], dtype=dtype)
    ends = torch.cat([edges.log(), torch.tensor([0.0, 20.0, 40.0, 745.0], dtype=dtype)])
    steps = torch.arange(-9, 10).to(dtype) * info.eps
    x = torch.cat([(ends[:, None] * (1 + steps)).flatten(), -ends, edges, edges / 2, -edges])
    for name, mine in zip(ELEMENTARY, kernel([x]), strict=True):
        with np.errstate(all="ignore"):
            exact = getattr(np, name)(x.numpy().astype(np.longdouble)).astype(mine.numpy().dtype)
        torch.testing.assert_close(
            mine,
            torch.from_numpy(exact),
            rtol=3 * info.eps,
            atol=info.tiny * info.eps,
            equal_nan=True,
        )


def test_names_do_not_reach_the_source():
    evil = '"; system("x"); //'
    code = (Instr("input", (0,)), Instr("neg", (0,)))
    program = Program((Port(evil, ()),), (Port(evil, ()),), code, (), (1,))
    (text,) = emit_cpp(plan(program, 16), bits=64, vector_bytes=16)
    assert "system" not in text


@pytest.mark.some(5)
@pytest.mark.parametrize("x", [0.1, -1e300, 5e-324, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e39])
@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_are_exact(x, dtype):
    code = (Instr("input", (0,)), Instr("const", (0,)))
    program = Program((Port("x", ()),), (Port("y", ()),), code, (x,), (1,))
    (y,) = build_kernel(program, dtype)([torch.zeros(3, dtype=dtype)])
    expected = torch.full((3,), x, dtype=torch.float64).to(dtype)
    assert torch.equal(y.signbit(), expected.signbit()) or math.isnan(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    assert '"' not in literal(x, 64) or math.isnan(x)


def test_an_unknown_instruction_is_refused_by_name():
    program = Program((Port("x", ()),), (Port("y", ()),), (Instr("frobnicate", ()),), (), (0,))
    with pytest.raises(FusedError, match="frobnicate"):
        emit_cpp(plan(program, 16), bits=64, vector_bytes=16)


def test_inputs_that_do_not_fit_are_refused_by_name(sample):
    program, kernel, dtype = sample
    a, b, c = random_inputs(program, (4,), dtype)
    other = torch.float32 if dtype == torch.float64 else torch.float64
    with pytest.raises(ShapeError, match="a has shape"):
        kernel([a[:, :2], b, c])
    with pytest.raises(ShapeError, match="b is torch"):
        kernel([a, b.to(other), c])
    with pytest.raises(ShapeError, match=r"a has the batch dimensions \[3\], b has \[4\]"):
        kernel([a[:3], b, c])
    with pytest.raises(FusedError, match="float16"):
        build_kernel(program, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_columns_of_zeros_are_written_for_every_sample(dtype):
    """Constant results between others, at the ends of rows, in the first and last samples."""

    def fn(x):
        zeros = torch.zeros(40, dtype=torch.float64)
        return torch.cat([x, zeros, 2 * x, zeros[:3]]), torch.cat([zeros, x]), zeros

    kernel = build_kernel(trace(fn, [Port("x", (9,))]), dtype)
    for batch in (1, 3, 8, 16, 37, 4096):
        for _ in range(2):  # memory of results is used again
            x = torch.randn(batch, 9, dtype=dtype)
            found = kernel([x])
            wanted = [y.to(dtype) for y in torch.vmap(fn)(x.double())]
            for mine, right in zip(found, wanted, strict=True):
                assert torch.equal(mine, right)
                mine.fill_(7.0)


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_every_length_are_read_and_written_whole_and_alone(target, dtype, monkeypatch):
    """Rows of every length modulo the vector width; memory behind a result is unchanged."""
    lengths = range(1, 36)

    def fn(*xs):
        return tuple(torch.cat([x.flip(0), x[:1]]) for x in xs)

    ports = [Port(f"x{n}", (n,)) for n in lengths]
    kernel = build_kernel(trace(fn, ports), dtype, toolchain_for(target))
    kept = []

    def with_guard(x, shape):
        memory = torch.full((math.prod(shape) + 64,), 7.0, dtype=x.dtype)
        kept.append(memory[-64:])
        return memory[:-64].view(shape)

    monkeypatch.setattr(torch.Tensor, "new_empty", with_guard)
    monkeypatch.setattr(torch, "empty_like", lambda x: with_guard(x, x.shape))
    for batch in (*range(1, 35), 67):
        xs = [torch.randn(batch, n, dtype=dtype) for n in lengths]
        for mine, x in zip(kernel(xs), xs, strict=True):
            assert torch.equal(mine, torch.cat([x.flip(1), x[:, :1]], 1))
    assert len(kept) == 35 * len(lengths)
    assert all((guard == 7).all() for guard in kept)


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_results_larger_than_the_caches_are_those_of_any_batch(target, dtype):
    """Rows of every length modulo the vector width, few and many zeros, a batch that is no multiple of it."""
    lengths = (*range(32, 48), *range(200, 216))

    def fn(x):
        few, many = (torch.zeros(n, dtype=torch.float64) for n in (17, 170))
        total = x.sum()[None]
        ends = torch.cat([x, few, total, few, 2 * x])
        within = torch.cat([x[:3], many, total, x, few, x, x, x])
        first = torch.cat([many, few, x, many])
        return tuple((ends if n < 48 else within if n < 208 else first)[:n] for n in lengths)

    toolchain = toolchain_for(target)
    kernel = build_kernel(trace(fn, [Port("x", (6,))]), dtype, toolchain)
    batch = (3 << 23) // (sum(lengths) * dtype.itemsize) + 5
    x = torch.randn(batch, 6, generator=torch.Generator().manual_seed(0), dtype=dtype)
    parts = [kernel([part]) for part in x.split(500)]
    for _ in range(2):  # memory of results is used again
        found = kernel([x])
        for k, mine in enumerate(found):
            assert torch.equal(mine, torch.cat([part[k] for part in parts]))
            mine.fill_(7.0)


def test_inputs_that_nothing_is_read_of_may_hold_anything():
    """A port that only a sine, a factor or a result reads, between other ports."""

    def fn(by_angle, unread, factor, result):
        return torch.stack([factor * by_angle.sin().sum() for _ in range(8)]), result

    program = trace(
        fn, [Port("by_angle", (2,)), Port("unread", (3,)), Port("factor", ()), Port("result", ())]
    )
    kernel = build_kernel(program, torch.float64)
    x, factor, result = torch.randn(37, 2), torch.randn(37), torch.randn(37)
    inputs = [
        x.double(),
        torch.full((37, 3), torch.nan, dtype=torch.float64),
        factor.double(),
        result.double(),
    ]
    first, second = kernel(inputs)
    right = inputs[2] * inputs[0].sin().sum(1)
    torch.testing.assert_close(first, right[:, None].expand(37, 8))
    assert torch.equal(second, inputs[3])
    (text,) = emit_cpp(plan(program, 16), bits=64, vector_bytes=16)
    assert "IS_READ[] = {1, 0, 1, 1," in text
