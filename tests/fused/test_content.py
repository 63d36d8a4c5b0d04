"""Loop bodies of equal content are traced once; comparisons with the source have a budget of time."""

import time
from functools import partial

import torch

import torchsko as ts
import torchsko.fused.tracing.tracer as tracer
from torchsko.bridge.kinematics import Kinematics
from torchsko.fused.capture.verification import Schedule
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.content import digest_of_content
from torchsko.fused.tracing.tracer import trace
from torchsko.implicit.jacobian_products import fix_inputs
from torchsko.implicit.loop import subprogram

BALL = """<mujoco><option integrator="RK4"/><worldbody><geom type="plane" size="1 1 1"/>
  <body pos="0 0 0.1"><joint type="slide" axis="0 0 1"/><geom size="0.1"/></body></worldbody></mujoco>"""


def scaled(mech, x, y):
    """A function of this package, of tensors that it captures."""
    return fix_inputs(lambda *inputs: inputs, (x, y), (True, False))[0]


def test_functions_of_equal_content_have_equal_digests():
    one, two = torch.ones(2), 2 * torch.ones(2)
    digest = partial(digest_of_content, known={})
    assert digest(scaled(None, one, two)) is None  # the inner function is one of the user
    assert digest(partial(fix_inputs, torch.add)) is None  # a function of compiled code
    loops = [
        partial(subprogram, args=args) for args in ((one, two), (one.clone(), two), (two, one))
    ]
    first, equal, swapped = map(digest, loops)
    assert first is not None and first == equal != swapped


def test_digests_tell_one_tensor_from_two_of_equal_values():
    x, y = torch.ones(2), torch.ones(2)
    digest = partial(digest_of_content, known={})
    assert digest(partial(subprogram, args=(x, x))) != digest(partial(subprogram, args=(x, y)))
    seen = [digest_of_content(z, known={}, is_captured=lambda _: True) for z in (x, y)]
    assert seen[0] != seen[1]


def test_values_that_an_object_computed_before_are_content():
    arm = ts.load(ts.robots.panda)
    one, two = (Kinematics.of(arm, arm.neutral()) for _ in range(2))
    digest = partial(digest_of_content, known={})
    assert digest(one) is not None and digest(one) == digest(two)
    two.edge_weight  # noqa: B018
    assert digest(one) != digest(two)


def test_the_stages_of_a_step_are_traced_once(monkeypatch):
    ball, bodies = ts.load(BALL), []

    def counted(fn, inputs, *args, **kwargs):
        bodies.append(inputs)
        return trace(fn, inputs, *args, **kwargs)

    def steps(mech, q, qd, start):
        state = ts.State(q, qd, warmstart=start)
        for _ in range(2):
            state = ts.step(mech, state)
        return state.q, state.qd

    monkeypatch.setattr(tracer, "trace", counted)
    fast = ts.fuse(steps, ball, shapes={"start": (1,)})
    q, zero = torch.full((3, 1), -1e-3, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    found, wanted = fast(q, zero, zero), steps(ball, q, zero, zero)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    program = fast.function(("q", "qd", "start")).program
    calls = [loop for loop in program.loops if loop.program.num_flops > 100]
    assert len(calls) == 8 and len({id(loop.program) for loop in calls}) == 1
    assert 1 <= len(bodies) <= 3  # the stage, and the loops in it


def test_substeps_are_one_loop_with_the_gradient_of_all_of_them():
    ball, sizes = ts.load(BALL), []
    q = torch.full((3, 1), -1e-3, dtype=torch.float64)
    qd = torch.zeros_like(q, requires_grad=True)

    for n in (2, 6):

        def steps(mech, q, qd, start, n=n):
            return ts.step(mech, ts.State(q, qd, warmstart=start), substeps=n)[:2]

        fast = ts.fuse(steps, ball, shapes={"start": (1,)})
        function = fast.function(("q", "qd", "start"))
        vjp = function._derivative("vjp at solutions", (True, True, True))
        sizes.append((function.program.num_flops, vjp.program.num_flops))
    assert sizes[0] == sizes[1]
    found, expected = fast(q, qd, q), steps(ball, q, qd, q)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    found, expected = (
        torch.autograd.grad(sum(x.sin().sum() for x in y), qd) for y in (found, expected)
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_expensive_comparisons_wait_for_their_share_of_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    cheap, expensive = Schedule(1e-3, _start=0.0), Schedule(0.3, _start=0.0)
    checked = []
    for k in range(1, 17):
        if cheap.is_due():
            checked.append(k)
            cheap.verify("nothing", lambda x: x, [torch.ones(1)], [torch.ones(1)])
    assert checked == [1, 2, 4, 8, 16]
    assert not any(expensive.is_due() for _ in range(25))
    now[0] = 9.9
    assert not expensive.is_due()
    now[0] = 10.1  # 2 % of it and 0.1 s are 0.3 s
    assert expensive.is_due()


def test_a_constant_result_of_a_loop_body_is_a_constant():
    port = Port("x", (2,))
    program = trace(lambda x: subprogram(lambda y: (y * y, torch.zeros_like(y)), (x,), 2), [port])
    assert [program.code[k].op for k in program.results[2:]] == ["const", "const"]


def test_a_function_has_one_kernel_for_its_gradients():
    """Whichever arguments need one, as in the first and the later steps of a rollout."""
    arm = ts.load(ts.robots.panda)

    def push(mech, q, qd, tau):
        return ts.integrate(mech, q, 0.1 * qd), qd + 0.1 * tau * q.cos()

    fast, (q, qd) = ts.fuse(push, arm), arm.random_state(2)
    tau = torch.zeros_like(q, requires_grad=True)
    mine = torch.autograd.grad(fast(q, qd, tau)[1].sum(), tau)
    torch.testing.assert_close(mine, torch.autograd.grad(push(arm, q, qd, tau)[1].sum(), tau))
    q.requires_grad_()
    torch.autograd.grad(fast(q, qd, tau)[1].sum(), (q, tau))
    assert len(fast.function(("q", "qd", "tau"))._derivatives) == 1
