"""torch.func agrees with the batched call and with itself, for every verb and every tensor it reads."""

import warnings

import pytest
import torch
from torch.func import jacfwd, jacrev, jvp, vjp, vmap

import torchsko as ts
from tests.transforms.verbs import CASES, WITH_PARAMETERS, inputs

cases = pytest.mark.parametrize(("verb", "mech"), CASES.values(), ids=CASES)
cases_with_parameters = pytest.mark.parametrize(
    ("verb", "mech"), WITH_PARAMETERS.values(), ids=WITH_PARAMETERS
)


@pytest.fixture(autouse=True)
def no_slow_fallback():
    """A missing batching rule runs sample by sample; torch only warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop.*")
        yield


@cases
def test_vmap_over_states_and_parameters_is_the_batched_call(verb, mech):
    batched = inputs(mech, verb, (3,))
    fn = verb.function(mech)
    torch.testing.assert_close(vmap(fn)(*batched.values()), fn(*batched.values()))


@cases
def test_vmap_over_states_alone_shares_the_robot(verb, mech):
    batched, single = inputs(mech, verb, (3,)), inputs(mech, verb)
    mixed = [batched[name] if name in verb.states else single[name] for name in batched]
    dims = tuple(0 if name in verb.states else None for name in batched)
    fn = verb.function(mech)
    torch.testing.assert_close(vmap(fn, in_dims=dims)(*mixed), fn(*mixed))


@cases_with_parameters
def test_vmap_over_parameters_alone_shares_the_state(verb, mech):
    batched, single = inputs(mech, verb, (3,)), inputs(mech, verb)
    mixed = [single[name] if name in verb.states else batched[name] for name in batched]
    dims = tuple(None if name in verb.states else 0 for name in batched)
    fn = verb.function(mech)
    torch.testing.assert_close(vmap(fn, in_dims=dims)(*mixed), fn(*mixed))


@pytest.mark.some(18)
@cases
def test_forward_and_reverse_jacobians_agree(verb, mech):
    tensors = tuple(inputs(mech, verb).values())
    fn, every = verb.function(mech), tuple(range(len(tensors)))
    forward, reverse = jacfwd(fn, every)(*tensors), jacrev(fn, every)(*tensors)
    torch.testing.assert_close(forward, reverse)


@pytest.mark.some(45)
@cases
def test_jvp_is_the_adjoint_of_vjp(verb, mech):
    tensors = tuple(inputs(mech, verb).values())
    g = torch.Generator().manual_seed(1)
    tangents = tuple(torch.randn(x.shape, generator=g, dtype=x.dtype) for x in tensors)
    fn = verb.function(mech)
    outputs, pushed = jvp(fn, tensors, tangents)
    cotangents = tuple(torch.randn(y.shape, generator=g, dtype=y.dtype) for y in outputs)
    pulled = vjp(fn, *tensors)[1](cotangents)
    torch.testing.assert_close(inner(cotangents, pushed), inner(pulled, tangents))


@pytest.mark.some(30)
@cases
def test_batched_jacobian_is_the_jacobian_of_each_sample(verb, mech):
    states = inputs(mech, verb, (2,))
    first = verb.states[0]
    rest = {name: x for name, x in states.items() if name != first}

    def fn(x, others):
        return verb(mech, **{first: x}, **others)

    together = vmap(jacrev(fn))(states[first], rest)
    one_by_one = [
        jacrev(fn)(states[first][i], {name: x[i] for name, x in rest.items()}) for i in range(2)
    ]
    for k, block in enumerate(together):
        torch.testing.assert_close(block, torch.stack([sample[k] for sample in one_by_one]))


def inner(x: tuple[torch.Tensor, ...], y: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return sum((a * b).sum() for a, b in zip(x, y, strict=True))


def test_hessian_vector_products_of_the_log_determinant_agree_across_modes():
    mech = CASES["innovations.logdet-bare"][1]
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(2))
    v = torch.ones_like(q)

    def logdet(q):
        return ts.innovations(ts.assemble(mech, q)).logdet()

    forward_over_reverse = jvp(jacrev(logdet), (q,), (v,))[1]
    reverse_over_forward = jacrev(lambda q: jvp(logdet, (q,), (v,))[1])(q)
    torch.testing.assert_close(forward_over_reverse, reverse_over_forward)
