"""Loops of programs store what is read, compute what is needed, and share scratch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import torchsko as ts
from tests.control.test_whole_body import FEET
from tests.fused.evaluate import evaluate
from torchsko.control import (
    Contact,
    com_objective,
    posture_objective,
    whole_body_control,
)
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.traits import Traits
from torchsko.fused.layout.schedule import schedule
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.implicit import tensor_loop

D = torch.float64


def swing(n: int, x: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Pendulums of gravity g by n steps."""
    return ts.iterate(lambda x, v, g: (x + 0.1 * v, v - 0.1 * g * x.sin()), (x, v), n, [g])


PORTS = [Port(name, (3,)) for name in ("x", "v", "g")]


def vectors(count: int = 3, batch: tuple[int, ...] = (2,)) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(*batch, 3, generator=g, dtype=D).requires_grad_() for _ in range(count)]


def test_a_loop_stores_its_last_carry_alone():
    sizes = []
    for n in (10, 1000):
        program = trace(lambda *x, n=n: swing(n, *x)[0], PORTS)
        assert program.loops[0].kept == ()
        sizes.append(schedule(program, 1000).num_slots)
    assert sizes[0] == sizes[1]


def test_a_carry_that_no_result_depends_on_is_removed():
    def fn(x: Tensor, v: Tensor, g: Tensor) -> Tensor:
        def body(x: Tensor, v: Tensor, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, ...]:
            return x + 0.1 * v, v - g * x, w + x.exp() + u, (u + v).tanh()

        return ts.iterate(body, (x, v, x, v), 5, [g])[0]

    program = trace(fn, PORTS)
    ops = [op for op, _ in program.loops[0].program.code]
    assert program.loops[0].carry == 6 and "exp" not in ops and "tanh" not in ops
    given = [x.detach() for x in vectors()]
    torch.testing.assert_close(evaluate(program, given)[0], torch.vmap(fn)(*given))


def test_a_gradient_by_one_input_computes_no_other():
    function = FusedFunction(lambda *x: swing(6, *x), PORTS, Traits(num_outputs=2))
    gradients = []
    for flags in ((True, False, False), (True, True, True)):
        program = function._derivative("vjp", flags).program
        gradients.append(program.loops[-1])
    one, every = gradients
    assert (one.summed, every.summed) == (0, 3)
    assert one.program.num_flops < every.program.num_flops


def test_loops_that_follow_one_another_share_their_scratch():
    def fn(count: int, *tensors: Tensor) -> Tensor:
        x, v, g = tensors
        for k in range(count):
            x, v = swing(7 + k, x, v, g)
        return x

    once, often = (
        schedule(trace(lambda *x, k=k: fn(k, *x), PORTS), 1000).num_slots for k in (2, 12)
    )
    assert often == once


@pytest.mark.parametrize("n", [7, pytest.param(10, marks=pytest.mark.nightly)])
def test_derivatives_with_recomputed_carries_are_right(n, monkeypatch):
    monkeypatch.setattr(tensor_loop, "MAX_STORED_SCALARS", 0)
    function = FusedFunction(lambda *x: swing(n, *x), PORTS, Traits(num_outputs=2, order=2))
    given = vectors()
    assert gradcheck(function, given)
    assert gradgradcheck(function, given)
    assert gradcheck(function, given, check_forward_ad=True, check_backward_ad=False)


def test_the_last_carry_does_not_change_the_interval_of_stored_carries(monkeypatch):
    """Seven iterations whose second, fourth, sixth and last carry are read."""
    monkeypatch.setattr(tensor_loop, "MAX_STORED_SCALARS", 0)

    def fn(*tensors: Tensor) -> tuple[Tensor, ...]:
        last, pull_back = torch.func.vjp(lambda *x: torch.cat(swing(7, *x)), *tensors)
        return last, *pull_back(last)

    assert trace(fn, PORTS).loops[0].every == 2


def test_the_scratch_of_a_gradient_grows_with_the_root_of_the_iterations():
    slots = []
    for n in (400, 1600):
        function = FusedFunction(lambda *x, n=n: swing(n, *x)[0], PORTS, Traits())
        program = function._derivative("vjp", (True, True, True)).program
        slots.append(schedule(program, 1000).num_slots)
    assert slots[1] < 2.1 * slots[0] < 2000


@pytest.mark.nightly
def test_the_solver_of_whole_body_control_needs_ten_kilobytes():
    dog = ts.load(ts.robots.quadruped)

    def law(mech: ts.Mechanism, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
        target = ts.center_of_mass(mech, mech.middle())
        asked = [com_objective(mech, q, qd, target), posture_objective(mech, q, qd, mech.middle())]
        out = whole_body_control(mech, q, qd, asked, [Contact(foot) for foot in FEET])
        return out.tau, out.forces

    program = ts.fuse(law, dog).function(("q", "qd")).program
    (solver,) = (loop for loop in program.loops if loop.carry)
    assert 8 * (solver.region_size + solver.work_size) < 10_000
