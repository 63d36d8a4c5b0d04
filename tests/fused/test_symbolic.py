"""Traced programs equal eager functions, with derivatives."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tests.fused import toy
from tests.fused.evaluate import evaluate
from torchsko.errors import FusedError
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

N = 4
PORTS = [Port("x", (N,)), Port("y", (N,))]
ARM = toy.random_arm(3)


def pair(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, N, dtype=torch.float64, generator=g))


def flat(result) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [x for part in result for x in flat(part)]


def assert_traced_equals_eager(fn, ports=PORTS, inputs=None) -> None:
    inputs = inputs or pair()
    program = trace(fn, ports)
    for traced, eager in zip(evaluate(program, inputs), flat(fn(*inputs)), strict=True):
        expected = eager.detach().to(torch.float64)
        torch.testing.assert_close(traced, expected, rtol=1e-13, atol=1e-13, equal_nan=True)


def mixture(x: Tensor, y: Tensor) -> Tensor:
    """A smooth scalar function with broadcasts, products, views, masks and elementary functions."""
    A = torch.arange(16.0, dtype=x.dtype).reshape(4, 4) / 10
    m = 3 * torch.eye(4, dtype=x.dtype) + torch.outer(x, y) + A
    m = m @ m.mT + torch.cat([x, y]).reshape(2, 4).mT @ torch.stack([x, y])
    turned = torch.linalg.cross(x[:3], y[1:]) * torch.sin(x[0]) / (2 + y[2] ** 2)
    chosen = torch.where(x > 0, x.tanh(), y * y).cumsum(0)
    picked = m.index_select(0, torch.tensor([2, 0, 2])).triu(1).flatten()
    return (
        turned.sum()
        + torch.einsum("ij,i,j->", m, x, y)
        + (chosen[:2] * chosen[2:]).sum()
        + picked.sum()
    )


FUNCTIONS = {
    "broadcast": lambda x, y: x[:, None] - 2 * y + x.sum() / y.exp().mean(),
    "scalar": lambda x, y: (1 - x) * 3 + 2 / (1 + y**2) + torch.rsqrt(1 + x * x) + x.neg() + 2**y,
    "products": lambda x, y: (x @ y, torch.outer(x, y) @ x, torch.einsum("i,j,j->i", x, x, y)),
    "batched": lambda x, y: torch.stack([x, y]).reshape(2, 2, 2) @ y.reshape(2, 2).expand(2, 2, 2),
    "addmm": lambda x, y: torch.addmm(x.reshape(2, 2), y.reshape(2, 2), y.reshape(2, 2), beta=2),
    "reductions": lambda x, y: (
        x.reshape(2, 2).sum(0, keepdim=True),
        x.prod(),
        torch.outer(x, y).mean(-1),
        torch.outer(x, y).amax((0, 1)),
        y.cumsum(0),
        x.sum((), True),
    ),
    "extremes": lambda x, y: (
        *torch.outer(x, y).max(1), *x.clamp(-0.1, 0.1).min(0, keepdim=True),
        torch.outer(x, y).argmin().double() * x, *y.view(2, 2).aminmax(dim=1), *x[0].max(0),
        (x.argmax() == y.argmax(0)) * x, *torch.outer(x, y).view(2, 2, 4).amin(0).max(-2),
    ),
    "chosen": lambda x, y: (
        y.gather(0, x.argmin(0, keepdim=True)), x.scatter(0, y.argmax(0, keepdim=True), 2.0),
        torch.take_along_dim(torch.outer(x, y), torch.outer(y, x).argmax(0, keepdim=True), 0),
        torch.outer(x, y).gather(1, torch.outer(x, x).argmax(1, keepdim=True)[:2]),
        x.scatter_add(0, torch.stack([y.argmax(), x.argmax()]), y[:2]),
        torch.outer(x, y).scatter(1, torch.outer(x, x).argmin(1, keepdim=True), x[:, None]),
    ),
    "whole": lambda x, y: (
        (3 * x).floor() * x, (3 * x).ceil() * x, (3 * y).trunc() * y, (3 * y).round() * y,
        (x * 70).round(decimals=-1) + y.round(decimals=2) * x, (5 * x).frac(),
        torch.remainder(3 * x, y), torch.remainder(y, -0.3), 0.7 % x, torch.fmod(3 * x, y),
        (x + torch.pi) % (2 * torch.pi), (3 * x) // y, torch.div(3 * x, y, rounding_mode="floor"),
        torch.div(3 * x, y, rounding_mode="trunc"), x.clone().floor_(), x.floor_divide(0.1),
    ),
    "masks": lambda x, y: (
        torch.where((x > 0) & ~(y > 1) | (x < y), x, y),
        x.masked_fill(torch.tensor([True, False, True, False]), 2.5),
        x.clamp(-0.5, 0.5),
        torch.minimum(x, y),
        (x >= y).double(),
    ),
    "numbers_alone": lambda x, y: (
        x[0].sum(0), y[1].mean(-1, keepdim=True), x[2].cumsum(0), y.sum().amax(0), x[0].softmax(-1),
        x[:0].reshape(2, 0).cumsum(1), x.max() * y, y.min(), x[:0].var(), x[:1].var(),
        torch.softmax(torch.full_like(x, -torch.inf), -1),
    ),
    "movement": lambda x, y: (
        torch.cat([x[1:3], y.flip(0)]),
        torch.outer(x, y).triu(1) + torch.outer(y, x).tril(-1).mT,
        torch.outer(x, y).movedim(0, 1)[:, [2, 0]],
        torch.nn.functional.pad(x, (1, 2), value=3.0),
        x.gather(0, torch.tensor([3, 3, 0])),
        torch.diag_embed(x),
        x.split((1, 3))[1].unflatten(0, (3, 1)).squeeze(1),
    ),
    "accumulate": lambda x, y: (
        x.index_add(0, torch.tensor([1, 1, 3, 0]), y, alpha=2),
        x.scatter_add(0, torch.tensor([2, 2]), y),
        x.index_put((torch.tensor([0, 0]),), y[:2], accumulate=True),
        x.scatter(0, torch.tensor([1, 3]), 2.5, reduce="add"),
    ),
    "in_place": lambda x, y: x.clone().add_(y).mul_(2.0),
    "functions": lambda x, y: (
        torch.atan2(x, y), x.sigmoid(), torch.nn.functional.softplus(y), x.sign(), x.lerp(y, 0.3),
        x.norm(), torch.exp2(600 * x),
        x.sinh() + y.cosh() + x.atan() + torch.expm1(x) + torch.log1p(y * y) + x.tan(),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_traced_operations_equal_eager(name):
    assert_traced_equals_eager(FUNCTIONS[name])


# Of numbers whose products are not numbers of their kind, where truths have to be told from values.
TRUTHS = {
    "greater": lambda x, y: x > y,
    "some": lambda x, y: (x * 1e-200).bool(),
    "other": lambda x, y: y.relu().bool(),
    "made": lambda x, y: torch.ones_like(x > 0).index_fill(0, torch.tensor([1]), False),
}
OF_TRUTHS = {
    "and": torch.logical_and, "or": torch.bitwise_or, "xor": torch.logical_xor,
    "plus": torch.add, "times": torch.mul, "most": torch.maximum, "least": torch.minimum,
    "same": torch.eq, "chosen": lambda a, b: torch.where(a, b, ~a),
    "counted": lambda a, b: (a.sum() > b.sum()).expand(N),
    "moved": lambda a, b: torch.cat([a, b])[2:6], "in_place": lambda a, b: a.clone().add_(b),
}  # fmt: skip


@given(
    st.sampled_from([*TRUTHS]),
    st.lists(st.tuples(st.sampled_from([*OF_TRUTHS]), st.sampled_from([*TRUTHS])), max_size=5),
)
@example("some", [("and", "some")])
@example("greater", [("plus", "other")])
@example("greater", [("times", "other"), ("chosen", "made")])
def test_truths_stay_truths(first, steps):
    def choose(x, y):
        found = TRUTHS[first](x, y)
        for op, other in steps:
            found = OF_TRUTHS[op](found, TRUTHS[other](x, y))
        both = torch.cat([found, x])  # of truths and numbers, numbers
        return torch.where(~found, x, y), found * y, both + both

    assert_traced_equals_eager(choose)


def test_a_product_of_a_truth_and_a_number_is_a_truth_only_after_conversion():
    def count(x, y):
        product = (x > 0) * y
        return torch.logical_and(product, y < 9) * x, torch.logical_xor(product, x > 0) * y

    assert_traced_equals_eager(count)


def test_the_remainder_of_a_multiple_is_zero_for_divisors_of_both_signs():
    x = torch.tensor([[6.0, -6.0, 6.0, -6.0], [0.0, 0.0, 7.0, -7.0]], dtype=torch.float64)
    y = torch.tensor([[-3.0, -3.0, 3.0, 3.0], [-2.0, 2.0, -2.0, 2.0]], dtype=torch.float64)
    assert_traced_equals_eager(lambda x, y: x.remainder(y), inputs=(x, y))


def gradient_by_accumulation(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    (g,) = torch.autograd.grad(mixture(x, y), x, create_graph=True)
    (h,) = torch.autograd.grad((g * y).sum(), x)
    return g, h


TRANSFORMS = {
    "grad": torch.func.grad(mixture),
    "vjp": lambda x, y: torch.func.vjp(mixture, x, y)[1](mixture(x, y)),
    "jvp": lambda x, y: torch.func.jvp(mixture, (x, y), (y, x)),
    "jacfwd": torch.func.jacfwd(mixture),
    "jacrev of grad": torch.func.jacrev(torch.func.grad(mixture)),
    "hessian": torch.func.hessian(mixture),
    "jvp of grad": lambda x, y: torch.func.jvp(
        torch.func.grad(lambda z: mixture(z, y)), (x,), (y,)
    ),
    "of the largest": torch.func.jacfwd(
        lambda x, y: torch.outer(x, y).max(0).values * x.min(0).values * (2 * y).remainder(x)
    ),
    "of what is chosen": torch.func.hessian(
        lambda x, y: (torch.outer(x, y * y).min(1).values.square() * (x + y).fmod(y)).sum()
    ),
    "autograd twice": gradient_by_accumulation,
    "vmap": lambda x, y: torch.func.vmap(mixture)(torch.stack([x, y]), torch.stack([y, x])),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_derivatives_above_the_tracer_equal_eager(name):
    assert_traced_equals_eager(TRANSFORMS[name])


def first_replaced(x):
    x = x.clone()
    x[0] = x[1] * 2
    return x


def parts_changed(x):
    z = torch.outer(x, x.sin())
    z[:, 1] = x
    z[0].mul_(x)
    z[1:].add_(z[:3].clone())
    return z.t()[2].neg_() + z @ x


def filled(x):
    z = x.new_zeros(2, N)
    z[0] = x
    z[1, ::2] += x[2:].cos()
    return z.sum(0) * z[1]


WRITING = {
    "vjp": lambda f: lambda x, y: torch.func.vjp(f, x)[1](y)[0],
    "jacrev": lambda f: lambda x, y: torch.func.jacrev(f)(x),
    "second": lambda f: lambda x, y: torch.func.jacrev(torch.func.grad(lambda z: y @ f(z)))(x),
}


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("fn", [first_replaced, parts_changed, filled])
def test_functions_that_write_into_their_own_tensors_have_gradients(fn, name):
    assert_traced_equals_eager(WRITING[name](fn))


def test_gradient_that_fans_in_is_accumulated():
    def fan_in(x, y):
        x = x.detach().requires_grad_()
        parts = x.split(1) + (x[1:], x * y, x)
        return torch.autograd.grad(sum((k + 1) * (p * p).sum() for k, p in enumerate(parts)), x)

    assert_traced_equals_eager(fan_in)


def test_writing_in_place_reaches_every_view():
    def write(x, y):
        z = x.clone()
        row = z.view(2, 2)[1]
        row.add_(y[:2])
        z[0] = 5.0
        return z, row

    assert_traced_equals_eager(write)


def test_what_is_held_fixed_stays_fixed():
    # d/dx of x * stop(x) is stop(x); seen through, it would be 2 x.
    def held(x, y):
        return torch.func.grad(lambda z: (z * z.detach() * y).sum())(x)

    assert_traced_equals_eager(held)


def test_pullback_by_the_identity_equals_reverse_mode():
    ports = [Port(name, (3,)) for name in ("q", "qd", "tau", "cotangent")]
    g = torch.Generator().manual_seed(1)
    inputs = tuple(torch.randn(4, 3, dtype=torch.float64, generator=g))
    program = trace(lambda *a: toy.vjp_by_identity(ARM, *a), ports)
    qdd, *gradients = evaluate(program, inputs)
    expected, pullback = torch.func.vjp(lambda *a: toy.forward_dynamics(ARM, *a), *inputs[:3])
    torch.testing.assert_close(qdd, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(gradients, pullback(inputs[3]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_program_runs_on_any_batch(batch):
    program = trace(mixture, PORTS)
    g = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, *batch, N, dtype=torch.float64, generator=g)
    eager = mixture
    for _ in batch:
        eager = torch.func.vmap(eager)
    torch.testing.assert_close(evaluate(program, [x, y])[0], eager(x, y), rtol=1e-13, atol=1e-13)


def test_closed_over_tensors_are_exact_constants():
    table = torch.tensor([0.1, -1 / 3, 6e-17, 1e-300], dtype=torch.float64)
    program = trace(lambda x: x * table, [Port("x", (4,))])
    assert set(program.constants) == set(table.tolist())


def test_shared_port_has_no_batch():
    program = trace(lambda x, y: x * y, [Port("x", (2,), shared=True), Port("y", (2,))])
    x, y = torch.ones(2), torch.ones(5, 2)
    assert evaluate(program, [x, y])[0].shape == (5, 2)
    with pytest.raises(FusedError, match="'x' has shape"):
        evaluate(program, [y, y])


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x, y: x if x.sum() > 0 else y, "torch.where"),
        (lambda x, y: torch.full_like(y, x[0].item()), "item"),
        (lambda x, y: torch.linalg.pinv(torch.outer(x, y)), "pseudo-inverse solve with J"),
        (lambda x, y: x.sort().values, "aten.sort.default has no rule"),
        (lambda x, y: x[y.long()], "int64"),
        (lambda x, y: torch.zeros(4).copy_(x), "torch.cat"),
        (
            lambda x, y: torch.outer(x, y).scatter(0, y.argmax()[None, None], 1.0),
            "traced index must have the shape",
        ),
        (lambda x, y: x[y.argmax(0, keepdim=True)], "Select with torch.where or torch.gather"),
        (lambda x, y: x.scatter(0, torch.tensor([1]), y[:1], reduce="multiply"), "plain scatter"),
        (lambda x, y: x.as_strided((2,), (2,)), "Use view"),
        (lambda x, y: {"x": x}, "nested"),
    ],
)
def test_untraceable_function_is_refused_by_name(fn, words):
    with pytest.raises(FusedError, match=words):
        trace(fn, PORTS)


def test_tensors_do_not_leak_between_traces():
    leaked = []
    trace(lambda x: leaked.append(x) or x, [Port("x", (2,))])
    with pytest.raises(FusedError, match="another trace"):
        trace(lambda x: x + leaked[0], [Port("x", (2,))])


AT_NAN = {
    "product with the number 0": lambda x: x * 0.0,
    "the number 0 divided": lambda x: 0.0 / x,
    "scaled number 0": lambda x: (3 * x) * 0 + 1,
    "quotient with itself": lambda x: x / x,
    "product with the inverse": lambda x: (2 * x) * (1 / x),
    "derivative of a logarithm times its argument": lambda x: x * torch.func.grad(torch.log)(x),
}


@pytest.mark.parametrize("fn", AT_NAN.values(), ids=AT_NAN.keys())
def test_programs_agree_with_eager_at_zero_infinity_and_nan(fn):
    x = torch.tensor([2.0, 0.0, math.inf, math.nan], dtype=torch.float64)
    program = trace(fn, [Port("x", ())])
    (found,) = evaluate(program, [x])
    torch.testing.assert_close(found, torch.vmap(fn)(x), equal_nan=True)
