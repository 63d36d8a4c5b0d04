"""Loops in programs equal unrolled loops, in all code generators and with derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import torchsko as ts
from tests.fused.evaluate import evaluate
from torchsko.fused.emit.cpp import emit_cpp, plan
from torchsko.fused.emit.cuda import emit_cuda
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.traits import Traits
from torchsko.fused.layout.schedule import schedule
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.implicit.loop import iterate, subprogram

D = torch.float64


def written_out(body, carry, n, args=(), until=None):
    """The reference: an unrolled loop."""
    state = (carry,) if isinstance(carry, torch.Tensor) else tuple(carry)
    for _ in range(n):
        found = body(*state, *args)
        found = (found,) if isinstance(carry, torch.Tensor) else tuple(found)
        if until is not None:
            done = until(*state, *args) != 0
            found = [
                torch.where(done[(...,) + (None,) * (x.ndim - done.ndim)], x, y)
                for x, y in zip(state, found, strict=True)
            ]
        state = tuple(found)
    return state[0] if isinstance(carry, torch.Tensor) else state


def pendulum(repeat, n):
    """A loop with two carried tensors and an invariant matrix, and operations before and after it."""

    def fn(x, v, A):
        def body(x, v, A, start):
            x = x + 0.1 * v
            return x, v - 0.1 * torch.sin(x @ A) + 0.01 * start

        start = x.square()
        x, v = repeat(body, (x, v), n, (A, start))
        return (x * v.sum(-1, keepdim=True)).cos(), v.exp()

    return fn, [Port("x", (3,)), Port("v", (3,)), Port("A", (3, 3))]


def roots(repeat, n):
    """Newton's method with a tolerance for each sample, a loop within a loop."""

    def fn(a):
        def inner(y, x):
            return y - (y.square() - x) / (2 * y)

        def body(x, a):
            y = repeat(inner, x + 1, 4, (x.square() + 1e-3,))
            return (x + a / x) / 2 + 1e-3 * (y - (x.square() + 1e-3).sqrt())

        return repeat(body, a + 1, n, (a,), until=lambda x, a: ((x * x - a).abs() < 1e-9).all(-1))

    return fn, [Port("a", (2,))]


def marked(repeat, n):
    """Carried and invariant bool tensors, a captured tensor made in the function, in-place operations."""

    def fn(x, y):
        weight = torch.linspace(0.5, 1.5, 3, dtype=x.dtype)

        def body(x, on, off):
            z = x.clone()
            z[1:] = torch.where(on & ~off, x * weight, x.sin() + 0.1)[1:]
            z[0] += 0.1 * x[2]
            return z, on & (z < 0.8)

        x, on = repeat(body, (x * y, x < 0.9), n, (y > 1,))
        return torch.where(~on, x, x * x)

    return fn, [Port("x", (3,)), Port("y", (3,))]


CASES = {"pendulum": pendulum, "roots": roots, "marked": marked}


def inputs(ports, batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        0.2 + torch.rand(*batch, *p.shape, dtype=D, generator=generator).requires_grad_()
        for p in ports
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_traced_loop_is_the_loop_written_out(case, n):
    fn, ports = CASES[case](iterate, n)
    plain, _ = CASES[case](written_out, n)
    program = trace(fn, ports)
    assert n == 1 or len(program.loops) == 1
    for batch in ((), (1,), (2, 3)):
        given = [x.detach() for x in inputs(ports, batch)]
        expected = torch.vmap(plain)(
            *(x.reshape(-1, *p.shape) for x, p in zip(given, ports, strict=True))
        )
        expected = (expected,) if isinstance(expected, torch.Tensor) else expected
        for found, wanted in zip(evaluate(program, given), expected, strict=True):
            torch.testing.assert_close(found.reshape(wanted.shape), wanted, rtol=1e-13, atol=1e-13)


def fused(case, n, order=2):
    fn, ports = CASES[case](iterate, n)
    plain, _ = CASES[case](written_out, n)
    both = []
    for f in (fn, plain):
        num = 2 if case == "pendulum" else 1
        both.append(FusedFunction(f, ports, Traits(num_outputs=num, order=order)))
    return *both, ports


@pytest.mark.some(2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kernels_agree_with_the_loop_written_out(case, dtype):
    mine, plain, ports = fused(case, 9)
    given = [x.detach().to(dtype) for x in inputs(ports, (37,))]
    tolerance = 1e-12 if dtype == D else 1e-5
    for x, y in zip(mine(*given), plain(*given), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)
    assert mine.program.num_flops < plain.program.num_flops / 3


@pytest.mark.some(1)
@pytest.mark.parametrize("case", CASES)
def test_derivatives_are_loops_and_right(case):
    mine, plain, ports = fused(case, 3)
    given = inputs(ports, (5,))
    loss = [sum(y.square().sum() for y in f(*given)) for f in (mine, plain)]
    gradients = [torch.autograd.grad(x, given, create_graph=True) for x in loss]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
    again = [torch.autograd.grad(sum(g.sin().sum() for g in x), given) for x in gradients]
    torch.testing.assert_close(*again, rtol=1e-9, atol=1e-9)
    few = inputs(ports, (2,), 3)
    assert gradcheck(mine, few)
    assert gradgradcheck(mine, few)
    assert gradcheck(mine, few, check_forward_ad=True, check_backward_ad=False)


def called(call):
    """A function that is called three times, twice with arguments of equal structure, once in a loop."""

    def part(a, b):
        return a * b.sin() + a.flip(0).cos(), (a @ b)[None].tanh()

    def fn(x, y):
        u, v = call(part, (x, y), 2)

        def body(u, y):
            u, v = call(part, (u, y), 2)
            return u * 0.5 + v

        u = iterate(body, u + v, 3, (y,))
        zero = torch.zeros_like(x[:1])
        return u + call(part, (torch.cat([zero, x[:2]]), y), 2)[0]

    return fn, [Port("x", (3,)), Port("y", (3,))]


def test_a_subprogram_is_there_once_and_what_is_known_of_arguments_is_known_within():
    fn, ports = called(subprogram)
    plain, _ = called(lambda fn, args, _: fn(*args))
    program, longer = trace(fn, ports), trace(plain, ports)
    _, first, body, other = program.distinct_programs()  # the loop's body calls the first again
    assert body.loops[0].program == first != other
    assert other.num_flops < first.num_flops  # a zero is known
    assert program.num_flops < longer.num_flops
    given = [x.detach() for x in inputs(ports, (4,))]
    expected = torch.vmap(plain)(*given)
    torch.testing.assert_close(evaluate(program, given)[0], expected, rtol=1e-13, atol=1e-13)
    (text,) = emit_cpp(plan(program, 16), bits=64, vector_bytes=16)
    assert text.count("= vcos(") == 3 + 2  # of the second one is known


def test_kernels_with_subprograms_and_their_derivatives_are_those_written_out():
    both = [
        FusedFunction(called(call)[0], called(call)[1], Traits(order=2))
        for call in (subprogram, lambda fn, args, _: fn(*args))
    ]
    given = inputs(both[0].inputs, (5,))
    losses = [f(*given)[0].square().sum() for f in both]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(x, given, create_graph=True) for x in losses]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
    again = [torch.autograd.grad(sum(g.sin().sum() for g in x), given) for x in gradients]
    torch.testing.assert_close(*again, rtol=1e-9, atol=1e-9)
    assert gradcheck(both[0], given, check_forward_ad=True, check_backward_ad=False)


def test_a_programs_derivative_does_not_grow_with_the_rounds():
    sizes = []
    for n in (10, 80):
        fn, ports = pendulum(iterate, n)
        flat = [*ports, Port("by", (3,))]
        program = trace(
            lambda x, v, A, by, fn=fn: torch.func.vjp(lambda *z: fn(*z)[0], x, v, A)[1](by), flat
        )
        sizes.append(program.num_flops)
    assert sizes[0] == sizes[1]


def test_a_function_may_differentiate_its_loops():
    def through(x, a):
        return iterate(lambda y, a: (y * a).sin(), x, 4, [a])

    ports = [Port("x", (3,)), Port("a", (3,))]
    given = [x.detach() for x in inputs(ports, (2,))]
    derivatives = (
        torch.func.jacrev,
        torch.func.jacfwd,
        lambda f: torch.func.grad(lambda *z: f(*z).sum()),
        lambda f: torch.func.jacfwd(torch.func.jacrev(f)),
        lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
        lambda f: torch.func.jacfwd(torch.func.jacfwd(f, 1)),
    )
    for derive in derivatives:
        found = evaluate(trace(derive(through), ports), given)[0]
        expected = torch.vmap(derive(through))(*given)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_eager_loops_have_every_transform():
    fn, ports = roots(iterate, 8)
    (a,) = inputs(ports, (4,))
    plain, _ = roots(written_out, 8)
    assert torch.equal(fn(a), plain(a))
    torch.testing.assert_close(torch.vmap(fn)(a), plain(a))
    torch.testing.assert_close(fn(a), a.sqrt(), rtol=1e-7, atol=1e-7)
    assert gradcheck(fn, (a,), check_forward_ad=True)


def test_an_eager_loop_stops_when_all_samples_are_finished():
    """A mapped loop, and one that is differentiated, evaluate their body as often."""
    calls = []

    def halve(x, **options):
        def body(x):
            calls.append(1)
            return x / 2

        return iterate(body, x, 40, until=lambda x: x < 1, **options)

    x = torch.tensor([0.5, 3.0, 100.0], dtype=D)
    counts = []
    for call in (
        lambda: halve(x),
        lambda: torch.vmap(halve)(x),
        lambda: torch.func.jacrev(halve)(x),
        lambda: torch.vmap(torch.func.jacfwd(halve))(x),
        lambda: halve(x[:1]),
        lambda: halve(x, stop_early=False),
    ):
        calls.clear()
        call()
        counts.append(len(calls))
    assert counts == [7, 7, 7, 7, 0, 40]
    compiled = torch.compile(halve, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), halve(x), rtol=0, atol=0)


def test_a_mapped_loop_in_a_kernel_stops_when_all_of_its_samples_are_finished():
    def fn(a):
        def root(a):
            return iterate(lambda x: (x + a / x) / 2, a + 1, 30, until=lambda x: x * x - a < 1e-9)

        return torch.vmap(root)(a * torch.linspace(1.0, 2.0, 5, dtype=a.dtype))

    function = FusedFunction(fn, [Port("a", ())], Traits())
    (text,) = emit_cpp(plan(function.program, 16), bits=64, vector_bytes=16)
    assert function.program.loops[0].flags == 5 and text.count("break;") == 1
    a = torch.linspace(0.5, 9.0, 21, dtype=D)
    torch.testing.assert_close(function(a)[0], torch.vmap(fn)(a), rtol=1e-12, atol=0)
    assert gradcheck(function, (a[:2].requires_grad_(),))


def test_a_verb_in_a_loop_in_a_kernel():
    """The configuration at which joint springs hold gravity, by damped iterations, with its gradient."""
    arm = ts.load(ts.robots.panda)

    def hold(mech, q, stiffness):
        def body(q, rest, stiffness):
            force = ts.gravity_force(mech, q) + stiffness * (q - rest)
            return q - 0.5 * force / (stiffness + 60.0)

        return iterate(body, q, 30, (q, stiffness))

    fast = ts.fuse(hold, arm, shapes={"stiffness": (7,)})
    q = arm.random_state(3)[0]
    stiffness = torch.full((7,), 300.0, dtype=D, requires_grad=True)
    found = []
    for f in (lambda: fast(q, stiffness), lambda: hold(arm, q, stiffness)):
        y = f()
        found.append((y.detach(), torch.autograd.grad(y.square().sum(), stiffness)[0]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_the_cuda_source_holds_the_loop():
    fn, ports = roots(iterate, 6)
    source = emit_cuda(schedule(trace(fn, ports), 500), bits=64)
    assert source.count("for (int step = 0;") == 2


X = torch.zeros(3, dtype=D)


@pytest.mark.parametrize(
    ("body", "given", "words"),
    [
        (lambda x: x[:2], (X, 3), r"shapes \[\(2,\)\]"),
        (lambda x: None, (X, 3), "returns NoneType"),
        (lambda x: (x, 1.0), ((X,), 3), "returns tuple"),
        (lambda x: x, (X, 3.0), "n=3.0"),
        (lambda x: x, (X, -1), "n=-1"),
        (lambda x: x, ({"x": X}, 3), "carry of a loop contains dict"),
        (lambda x: x, ((X, 2.0), 3), r"contains float.*\n.*\n.*torch.tensor"),
        (lambda x, y: x, (X, 3, X), r"args is a single tensor.*\n.*\n.*args=\[x\]"),
    ],
)
def test_what_is_no_loop_is_named(body, given, words):
    with pytest.raises(ts.ShapeError, match=words):
        iterate(body, *given)


def test_a_loop_in_a_control_of_a_rollout_in_one_kernel():
    arm = ts.load(ts.robots.panda)
    fast, (q, qd) = ts.fuse(arm), arm.random_state(3)
    gain = torch.tensor(2.0, dtype=D, requires_grad=True)

    def control(t, q, qd):
        def body(u, q, qd, gain):
            return 0.7 * u - gain * (q + 0.1 * qd) / (1 + u.square().sum(-1, keepdim=True))

        return iterate(body, torch.zeros_like(qd), 10, (q, qd, gain))

    found = []
    for fused_ in (True, False):
        qs, qds, *_ = ts.rollout(fast, ts.State(q, qd), control, steps=12, fused=fused_)
        (gradient,) = torch.autograd.grad(qs.square().sum() + qds.sum(), gain)
        found.append((qs.detach(), qds.detach(), gradient))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_what_a_control_closes_over_comes_to_a_loop_by_its_arguments():
    """A body may take it as an argument or close over it: it is an input, read at each call."""
    arm = ts.load(ts.robots.panda)
    gain = torch.tensor(0.5, dtype=D)
    fast = ts.fuse(lambda mech, q: iterate(lambda x, g: g * x, q, 5, (gain,)), arm)
    q = arm.random_state(2)[0]
    for value in (0.5, 0.25):
        gain.fill_(value)
        torch.testing.assert_close(fast(q), value**5 * q, rtol=1e-13, atol=1e-13)
        closing = ts.fuse(lambda mech, q: iterate(lambda x: gain * x, q, 5), arm)
        torch.testing.assert_close(closing(q), value**5 * q, rtol=1e-13, atol=1e-13)


def test_a_single_number_halts_where_it_is_done():
    halved = iterate(lambda x: x / 2, torch.tensor(8.0, dtype=D), 9, until=lambda x: x < 1)
    assert halved == 0.5


def along(f):
    """Value and tangent of a function by forward mode, along fixed directions."""

    def derived(*inputs):
        turn = tuple((x + 1).cos() for x in inputs)
        value, tangent = torch.func.jvp(f, inputs, turn)
        values, tangents = ((z,) if isinstance(z, torch.Tensor) else z for z in (value, tangent))
        return (*values, *tangents)

    return derived


@pytest.mark.parametrize("case", CASES)
def test_a_forward_derivative_within_a_kernel_is_a_loop_and_right(case):
    mine, plain = (along(CASES[case](repeat, 6)[0]) for repeat in (iterate, written_out))
    _, ports = CASES[case](iterate, 6)
    num = 4 if case == "pendulum" else 2
    fast = FusedFunction(mine, ports, Traits(num_outputs=num, order=1))
    slow = FusedFunction(plain, ports, Traits(num_outputs=num, order=-1))
    assert len(fast.program.loops) in (1, 2)  # the values', and theirs with tangents
    for batch in ((), (1,), (2, 3)):
        given = inputs(ports, batch)
        torch.testing.assert_close(fast(*given), slow(*given), rtol=1e-11, atol=1e-11)
        losses = [sum(y.sin().sum() for y in f(*given)) for f in (fast, slow)]
        gradients = [torch.autograd.grad(loss, given) for loss in losses]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)
    few = inputs(ports, (2,), 3)
    assert gradcheck(fast, few)
    mapped = [torch.vmap(f)(*few) for f in (fast, slow)]
    torch.testing.assert_close(*mapped, rtol=1e-11, atol=1e-11)


def test_a_programs_forward_derivative_does_not_grow_with_the_rounds():
    sizes = [
        trace(along(pendulum(iterate, n)[0]), pendulum(iterate, n)[1]).num_flops for n in (10, 80)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("derive", [torch.func.grad, torch.func.jacfwd, torch.func.jacrev])
def test_a_derivative_by_what_the_body_closes_over_is_right(derive):
    def closing(q):
        gain = torch.tensor(1.5, dtype=D)
        return derive(lambda g: iterate(lambda x: g * x, q, 3).sum())(gain)

    def given(q):
        gain = torch.tensor(1.5, dtype=D)
        return derive(lambda g: iterate(lambda x, g: g * x, q, 3, [g]).sum())(gain)

    ports, q = [Port("q", (2,))], torch.ones(2, dtype=D)
    for fn in (closing, given):
        torch.testing.assert_close(evaluate(trace(fn, ports), [q])[0], closing(q))


def test_a_derivative_of_a_derivative_by_what_the_body_closes_over_is_right():
    def closing(q):
        gain = torch.tensor(1.5, dtype=D)

        def outer(g):
            return torch.func.grad(lambda x: iterate(lambda y: (g * y).sin(), q * x, 3).sum())(
                torch.ones_like(g)
            )

        return torch.func.grad(outer)(gain)

    q = torch.ones(2, dtype=D)
    program = trace(closing, [Port("q", (2,))])
    torch.testing.assert_close(evaluate(program, [q])[0], closing(q))


@pytest.mark.parametrize("derive", [torch.func.jacfwd, torch.func.jacrev])
def test_a_programs_jacobian_does_not_grow_with_the_rounds(derive):
    sizes = []
    for n in (10, 80):
        fn, ports = pendulum(iterate, n)
        program = trace(derive(lambda *z, fn=fn: fn(*z)[0], (0, 1)), ports)
        given = [x.detach() for x in inputs(ports, ())]
        plain = pendulum(written_out, n)[0]
        wanted = torch.func.jacrev(lambda *z, f=plain: f(*z)[0], (0, 1))(*given)
        torch.testing.assert_close(tuple(evaluate(program, given)), wanted, rtol=1e-10, atol=1e-12)
        sizes.append(program.num_flops)
    assert sizes[0] == sizes[1]


@pytest.mark.nightly
def test_a_fused_policys_forward_sensitivity_is_that_of_the_plain_function():
    """A solver within a verb, differentiated in forward mode by a user function, through `ts.fuse`."""
    arm = ts.load(ts.robots.panda)

    def sensitivity(mech, q, dq, stiffness):
        def hold(q, stiffness):
            def body(x, rest, k):
                return x - 0.5 * (ts.gravity_force(mech, x) + k * (x - rest)) / (k + 60.0)

            return iterate(body, q, 20, (q, stiffness))

        return torch.func.jvp(lambda q: hold(q, stiffness), (q,), (dq,))[1]

    fast = ts.fuse(sensitivity, arm, shapes={"dq": (7,), "stiffness": (7,)})
    stiffness = torch.full((7,), 300.0, dtype=D, requires_grad=True)
    for batch in ((), (1,), (2, 3)):
        q, dq = arm.random_state(*batch)
        found = []
        for f in (lambda: fast(q, dq, stiffness), lambda: sensitivity(arm, q, dq, stiffness)):  # noqa: B023
            y = f()
            found.append((y.detach(), torch.autograd.grad(y.square().sum(), stiffness)[0]))
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_a_nested_loop_has_the_gradient_of_eager_mode_in_a_kernel():
    """The body of its derivative consists of products and returns some of its inputs."""
    gain = 0.4

    def nested(mech, q):
        g = torch.full_like(q, gain)

        def outer(x, g):
            return x - 1e-3 * g * ts.iterate(lambda y, g, x: y * g + x, x, 2, [g, x])

        return ts.iterate(outer, q, 3, [g])

    arm = ts.MechanismBuilder("arm").link("a", mass=1.0, com=(0, 0, 1))
    arm = arm.joint("x", "revolute", child="a", axis=(0, 1, 0)).build()
    q = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(6, 1).requires_grad_()
    fast = ts.fuse(nested, arm)
    (found,) = torch.autograd.grad(fast(q).sin().sum(), q)
    (expected,) = torch.autograd.grad(nested(arm, q).sin().sum(), q)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_kernels_of_four_substeps_have_at_most_1_3_times_the_operations_of_one():
    arm = ts.load(ts.robots.panda)
    totals = []
    for n in (1, 4):

        def step(mech, q, qd, target, n=n):
            def body(q, qd):
                return ts.integrators.advance(
                    mech, ts.State(q, qd), 20 * (target - q) - qd, dt=1e-3
                )[:2]

            return ts.iterate(body, (q, qd), n)

        fast = ts.fuse(step, arm, shapes={"target": (7,)}, verify=False)
        function = fast.function(("q", "qd", "target"))
        vjp = function._derivative("vjp", (True, True, True))
        totals.append(function.program.num_flops + vjp.program.num_flops)
    assert totals[1] < 1.3 * totals[0]
