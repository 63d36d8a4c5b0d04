"""Derivatives of every verb, to every state and every physical parameter, are those of differences."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import torchsko as ts
from tests.transforms.verbs import CASES, inputs

# fast_mode compares v* J u for random v per output, and one random u for all inputs side by side, so that
# differences take few calls; the tolerance is that of a small share in the sum. All entries of J are
# compared, reverse mode against forward mode, in test_verb_functorch.
FAST = {"fast_mode": True, "check_undefined_grad": False, "rtol": 1e-6, "atol": 1e-7}

cases = pytest.mark.parametrize(("verb", "mech"), CASES.values(), ids=CASES)


def leaves(mech: ts.Mechanism, verb) -> tuple[torch.Tensor, ...]:
    return tuple(x.requires_grad_() for x in inputs(mech, verb).values())


def side_by_side(mech: ts.Mechanism, verb):
    """The verb as a function of one vector, all its inputs one after the other; and that vector."""
    tensors = tuple(inputs(mech, verb).values())
    sizes, fn = [x.numel() for x in tensors], verb.function(mech)

    def packed(vector: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = zip(vector.split(sizes), tensors, strict=True)
        return fn(*(part.reshape(x.shape) for part, x in parts))

    return packed, torch.cat([x.flatten() for x in tensors]).requires_grad_()


@pytest.mark.some(45)
@cases
def test_first_derivatives_in_reverse_and_forward_mode(verb, mech):
    assert gradcheck(*side_by_side(mech, verb), check_forward_ad=True, **FAST)


@pytest.mark.some(24)
@cases
def test_second_derivatives(verb, mech):
    assert gradgradcheck(*side_by_side(mech, verb), **FAST)


@pytest.mark.some(12)
@cases
def test_second_derivatives_are_the_same_whichever_mode_comes_first(verb, mech):
    fn, vector = side_by_side(mech, verb)
    vector = vector.detach()
    way = torch.randn(vector.shape, dtype=vector.dtype, generator=torch.Generator().manual_seed(1))

    def total(x):
        return sum(y.sin().sum() for y in fn(x))

    def along(function):
        return lambda x: torch.func.jvp(function, (x,), (way,))[1]

    reverse_first, forward_first = (
        each(vector) for each in (along(torch.func.grad(total)), torch.func.grad(along(total)))
    )
    scale = reverse_first.abs().max()
    torch.testing.assert_close(forward_first, reverse_first, rtol=0, atol=float(1e-9 * scale))


@cases
def test_a_second_backward_gives_the_same_gradient(verb, mech):
    tensors = leaves(mech, verb)
    total = sum(y.sin().sum() for y in verb.function(mech)(*tensors))
    # expand_velocity depends on q with loops alone.
    options = {"retain_graph": True, "materialize_grads": True}
    first, second = (torch.autograd.grad(total, tensors, **options) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def at_rest(mech: ts.Mechanism, verb) -> dict[str, torch.Tensor]:
    """Inputs at q = 0 and identity quaternions, every vector zero."""
    special = {name: mech.neutral() for name in ("q", "start", "end", "spring_reference")}
    given = inputs(mech, verb)
    return {
        name: special.get(name, torch.zeros_like(x) if name in verb.states else x)
        for name, x in given.items()
    }


@pytest.mark.some(60)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@cases
def test_no_derivative_is_nan_at_rest_in_the_neutral_configuration(verb, mech, dtype):
    tensors = tuple(x.to(dtype).requires_grad_() for x in at_rest(mech, verb).values())
    outputs = verb.function(mech.to(dtype))(*tensors)
    g = torch.Generator().manual_seed(0)
    total = sum((torch.randn(y.shape, generator=g, dtype=dtype) * y).sum() for y in outputs)
    for _ in range(2):
        if not total.requires_grad:
            break  # linear in all it reads, as `expand` is: it has no second derivative
        gradients = torch.autograd.grad(
            total, tensors, create_graph=True, allow_unused=True, materialize_grads=True
        )
        assert all(y.isfinite().all() for y in gradients)
        total = sum((torch.randn(y.shape, generator=g, dtype=dtype) * y).sum() for y in gradients)
