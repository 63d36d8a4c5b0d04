"""Derivatives of every verb, to every state and every physical parameter, are those of differences."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import torchsko as ts
from tests.transforms.verbs import CASES, inputs

# fast_mode compares v* J u for random u and v, per input and output; all entries of J are compared, reverse
# mode against forward mode, in test_verb_functorch.
FAST = {"fast_mode": True, "check_undefined_grad": False}

cases = pytest.mark.parametrize(("verb", "mech"), CASES.values(), ids=CASES)


def leaves(mech: ts.Mechanism, verb) -> tuple[torch.Tensor, ...]:
    return tuple(x.requires_grad_() for x in inputs(mech, verb).values())


@cases
def test_first_derivatives_in_reverse_and_forward_mode(verb, mech):
    tensors = leaves(mech, verb)
    assert gradcheck(verb.function(mech), tensors, check_forward_ad=True, **FAST)


@cases
def test_second_derivatives(verb, mech):
    assert gradgradcheck(verb.function(mech), leaves(mech, verb), **FAST)


@cases
def test_a_second_backward_gives_the_same_gradient(verb, mech):
    tensors = leaves(mech, verb)
    total = sum(y.sin().sum() for y in verb.function(mech)(*tensors))
    first, second = (torch.autograd.grad(total, tensors, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def at_rest(mech: ts.Mechanism, verb) -> dict[str, torch.Tensor]:
    """Inputs at q = 0 and identity quaternions, every vector zero."""
    special = {name: mech.neutral() for name in ("q", "start", "end", "spring_reference")}
    given = inputs(mech, verb)
    return {
        name: special.get(name, torch.zeros_like(x) if name in verb.states else x)
        for name, x in given.items()
    }


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
