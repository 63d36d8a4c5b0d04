"""Derivatives of forward dynamics by the identity equal those of the recursion's own tape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import torchsko as ts
from tests.strategies import mechanisms, random_mechanism
from torchsko import algorithms
from torchsko.implicit import DIFFERENTIABLE


def by_tape(mech: ts.Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor) -> Tensor:
    """Forward dynamics that autograd differentiates operation by operation."""
    model = ts.assemble(mech, q, qd, f_ext)
    return algorithms.forward_dynamics(model, tau - ts.passive_force(mech, q, qd))


def problem(mech: ts.Mechanism, batch: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    q, qd = mech.random_state(*batch, generator=g)
    tau, f_ext = (
        torch.randn(*batch, *shape, generator=g, dtype=torch.float64)
        for shape in ((mech.num_dof,), (mech.num_bodies, 6))
    )
    return [q, qd, tau, f_ext, *(getattr(mech, name) for name in DIFFERENTIABLE)]


def call(function, mech: ts.Mechanism, *tensors: Tensor) -> Tensor:
    q, qd, tau, f_ext, *parameters = tensors
    changed = mech.replace(
        has_armature=mech.has_armature, **dict(zip(DIFFERENTIABLE, parameters, strict=True))
    )
    return function(changed, q, qd, tau, f_ext)


def worst(x: tuple[Tensor, ...], y: tuple[Tensor, ...]) -> float:
    pairs = [
        (a, b) for a, b in zip(x, y, strict=True) if b.numel()
    ]  # no joint may have a parameter
    return max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in pairs)


@given(mechanisms(max_bodies=4))
@settings(max_examples=10)
def test_gradients_to_states_forces_and_parameters_equal_the_tapes(mech: ts.Mechanism) -> None:
    inputs = [x.clone().requires_grad_() for x in problem(mech, (2,))]
    weight = torch.arange(1.0, mech.num_dof + 1, dtype=torch.float64)
    ours, tapes = (
        torch.autograd.grad((call(f, mech, *inputs) * weight).sum(), inputs, materialize_grads=True)
        for f in (ts.forward_dynamics, by_tape)
    )
    assert worst(ours, tapes) < 1e-10


@given(mechanisms(max_bodies=4))
@settings(max_examples=10)
def test_forward_mode_equals_the_tapes(mech: ts.Mechanism) -> None:
    inputs = problem(mech, ())
    tangents = tuple(torch.randn_like(x) for x in inputs)
    ours, tapes = (
        torch.func.jvp(lambda *x, f=f: call(f, mech, *x), tuple(inputs), tangents)[1]
        for f in (ts.forward_dynamics, by_tape)
    )
    assert worst((ours,), (tapes,)) < 1e-10


@pytest.mark.parametrize("outer", [torch.func.jacrev, torch.func.jacfwd])
@pytest.mark.parametrize("inner", [torch.func.jacrev, torch.func.jacfwd])
def test_second_derivatives_equal_the_tapes_in_every_mode(outer, inner) -> None:
    mech = random_mechanism(["spherical", "revolute"], [-1, 0])
    q, qd, tau, f_ext, *_ = problem(mech, ())
    ours, tape = (
        outer(inner(lambda q, f=f: f(mech, q, qd, tau, f_ext)))(q)
        for f in (ts.forward_dynamics, by_tape)
    )
    assert worst((ours,), (tape,)) < 1e-10


def saved_bytes(function, mech: ts.Mechanism, batch: int) -> int:
    """Distinct storage that autograd keeps between forward and backward."""
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        alive.append(x)
        return x

    alive: list[Tensor] = []
    inputs = [x.requires_grad_() for x in problem(mech, (batch,))[:3]]
    f_ext = torch.zeros(batch, mech.num_bodies, 6, dtype=torch.float64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        function(mech, *inputs, f_ext)
    return sum(kept.values())


def test_the_backward_keeps_inputs_and_accelerations_only() -> None:
    mech = random_mechanism(["revolute"] * 7, list(range(-1, 6)))
    batch = 64
    # Per sample: q, qd, tau, qdd, the passive force's intermediates (a few vectors), f_ext.
    vectors = 8 * (8 * (mech.num_q + 3 * mech.num_dof) + 6 * mech.num_bodies)
    ours = saved_bytes(ts.forward_dynamics, mech, batch)
    assert ours < batch * vectors
    assert saved_bytes(by_tape, mech, batch) > 5 * ours


def test_the_transpose_of_the_pullback_is_the_forward_derivative() -> None:
    """The pullback is linear; pulling a tangent back through it gives the derivative along it."""
    mech = random_mechanism(["revolute", "spherical"], [-1, 0])
    q, qd, tau, *_ = problem(mech, ())
    tangents = tuple(torch.randn_like(x) for x in (q, qd, tau))

    def accelerate(q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
        return ts.forward_dynamics(mech, q, qd, tau)

    pull = torch.func.vjp(accelerate, q, qd, tau)[1]
    (along,) = torch.func.vjp(pull, torch.zeros_like(qd))[1](tangents)
    torch.testing.assert_close(along, torch.func.jvp(accelerate, (q, qd, tau), tangents)[1])
