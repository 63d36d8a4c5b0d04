"""torch.compile(fullgraph=True) gives what eager gives, values and gradients, for every verb."""

import pytest
import torch

from tests.strategies import random_mechanism
from tests.transforms.verbs import VERBS, inputs


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compare(verb, kinds: list[str], backend: str, with_gradient: bool) -> None:
    mech = random_mechanism(kinds, list(range(-1, len(kinds) - 1)), seed=6)
    tensors = [x.requires_grad_(with_gradient) for x in inputs(mech, verb, (2,)).values()]
    fn = verb.function(mech)
    compiled, eager = torch.compile(fn, fullgraph=True, backend=backend)(*tensors), fn(*tensors)
    torch.testing.assert_close(compiled, eager)
    if with_gradient:
        totals = [sum(y.sin().sum() for y in outputs) for outputs in (compiled, eager)]
        torch.testing.assert_close(*(torch.autograd.grad(total, tensors) for total in totals))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_compiled_verb_is_the_eager_one(verb):
    with_gradient = verb.name in ("forward_dynamics", "inverse_dynamics")
    compare(verb, ["free", "revolute"], "aot_eager", with_gradient)


def test_generated_code_for_a_pendulum_gives_what_eager_gives():
    # One joint: Inductor takes 10 s or more for each level of a sweep.
    forward_dynamics = next(verb for verb in VERBS if verb.name == "forward_dynamics")
    compare(forward_dynamics, ["revolute"], "inductor", with_gradient=False)
