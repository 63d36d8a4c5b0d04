"""Large matrix products become dense operations with the values of the unrolled products."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchsko as ts
from tests.fused.evaluate import evaluate
from torchsko.errors import FusedError
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

D = torch.float64


def sparse(rows, columns, density, seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.rand(rows, columns, generator=g) < density).to(D)


def masked(fn, *masks):
    """A function of matrices with zeros, some entries negated, some constant."""

    def of(*tensors):
        found = []
        for k, (x, mask) in enumerate(zip(tensors, masks, strict=True)):
            x = x * mask
            x = torch.cat([-x[:1], x[1:]])
            found.append(torch.cat([x[..., :-1], mask[..., -1:] * (k + 0.5)], -1))
        return fn(*found)

    return of


PRODUCTS = {
    "one": lambda a, b: a @ b,
    "chain": lambda a, b: a.mT @ (a @ b),
    "negated": lambda a, b: -(a.mT @ -(a @ b)),
    "rows": lambda a, b: b.mT @ a,
    "read between": lambda a, b: (a.mT @ (a @ b), (a @ b).sum(0)),
    "loop of a loop's rows": lambda a, b: (a @ b) @ (a @ b).mT[:, :20],
    "a part of it": lambda a, b: (a @ b)[3:7].sin() @ b.mT,
}


@pytest.mark.some(2)
@pytest.mark.parametrize("product", PRODUCTS)
@settings(max_examples=4, deadline=None)
@given(n=st.integers(24, 30), m=st.integers(24, 34), seed=st.integers(0, 99))
def test_large_products_are_loops_of_the_same_values(product, n, m, seed):
    masks = sparse(n, n, 0.85, seed), sparse(n, m, 0.9, seed + 1)
    fn = masked(PRODUCTS[product], *masks)
    program = trace(fn, [Port("a", (n, n)), Port("b", (n, m))])
    assert program.loops
    spelt_out = 2 * int((masks[0].sum(0) * masks[1].sum(1)).sum())
    assert len(program.code) < spelt_out
    g = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(2, 3, *shape, generator=g, dtype=D) for shape in ((n, n), (n, m))]
    expected = torch.vmap(torch.vmap(fn))(*inputs)
    for found, wanted in zip(
        evaluate(program, inputs),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-11)


def test_small_ones_and_sparse_ones_are_spelt_out():
    """Products over tree paths are sparse, and of symmetric ones half of the entries are computed."""
    ports = [Port("a", (30, 30))]
    path = torch.ones(30, 30, dtype=D).tril()
    sparse_path = path * torch.eye(30, dtype=D).roll(3, 0).add(torch.eye(30, dtype=D)).gt(0)
    assert not trace(lambda a: (a * sparse_path) @ (a * sparse_path).mT, ports).loops
    assert not trace(lambda a: a[:4] @ a, ports).loops


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("product", "dtype"),
    [
        ("chain", torch.float64),
        pytest.param("read between", torch.float32, marks=pytest.mark.nightly),
    ],
)
def test_kernels_and_their_gradients_are_those_of_the_product(product, dtype):
    n = 24
    fn = masked(PRODUCTS[product], sparse(n, n, 0.5, 1), sparse(n, n, 0.9, 2))
    num = 2 if product == "read between" else 1
    ports = [Port("a", (n, n)), Port("b", (n, n))]
    kernel = FusedFunction(
        lambda *x: fn(*(y.to(D) for y in x)), ports, Traits(num_outputs=num, order=1)
    )
    g = torch.Generator().manual_seed(3)
    given = [torch.randn(11, n, n, generator=g, dtype=D) for _ in ports]
    found, wanted = [], []
    for f, kind, values in ((kernel, dtype, found), (torch.vmap(fn), D, wanted)):
        inputs = [x.to(kind).requires_grad_() for x in given]
        results = f(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        loss = sum(y.square().sum() for y in results)
        grads = torch.autograd.grad(loss, inputs)
        values += [x.detach().to(D) for x in (*results, *grads)]
    for x, y in zip(found, wanted, strict=True):
        scale = float(y.abs().max())
        torch.testing.assert_close(x, y, rtol=0, atol=scale * (1e-13 if dtype == D else 1e-5))


def test_a_round_that_is_too_long_is_refused_before_it_is_written():
    n = 600
    with pytest.raises(FusedError, match="the kernel would have"):
        trace(lambda a, b: a @ b, [Port("a", (n, n)), Port("b", (n, n))])


def test_equal_fixed_matrices_share_one_copy():
    """Operations on the result of an earlier one read it by rows or by columns."""

    def fn(a, b):
        c = a @ b
        return c @ b[:, 0], c.mT @ b[:, 1], c @ b[:, 2]

    program = trace(fn, [Port("a", (24, 24)), Port("b", (24, 24))])
    fixed = [
        code.args[1 + program.loop_of(k).num_variable :]
        for k, code in enumerate(program.code)
        if code.op == "loop"
    ]
    assert len(fixed) == 4 and len(set(fixed)) == 2


def test_derivatives_of_a_humanoids_dynamics_are_eager_ones():
    """Spelled-out and dense products agree with eager mode."""
    mech = ts.load(ts.robots.humanoid, floating_base=True)
    q, qd = mech.random_state(5)
    tau = torch.linspace(-3, 3, mech.num_dof, dtype=D).expand(5, -1)
    sizes = mech.num_q, mech.num_dof, mech.num_dof
    ports = [Port(f"x{k}", (size,)) for k, size in enumerate(sizes)]
    program = trace(lambda *x: ts.forward_dynamics_derivatives(mech, *x), ports)
    eager = ts.forward_dynamics_derivatives(mech, q, qd, tau)
    for found, wanted in zip(evaluate(program, (q, qd, tau)), eager, strict=True):
        scale = float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12 * scale)


@pytest.mark.nightly
def test_the_linear_model_of_a_humanoids_step_is_a_kernel():
    """Regression: row by row this program had 750,000 operations and was refused."""
    mech = ts.load(ts.robots.humanoid, floating_base=True)
    q, qd = mech.random_state(3)
    tau = torch.linspace(-3, 3, mech.num_dof, dtype=D).expand(3, -1)
    fast = ts.fuse(mech).linearize(ts.State(q, qd), tau, dt=2e-3)
    for found, wanted in zip(fast, ts.linearize(mech, ts.State(q, qd), tau, dt=2e-3), strict=True):
        scale = float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12 * scale)
