"""torch.compile(fullgraph=True) gives what eager gives, values and gradients, for every verb.

Every verb is one graph of Dynamo's; that AOTAutograd takes it takes twice as long, and is shown of two verbs
with their gradients, nightly of all.
"""

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


DIFFERENTIATED = ("forward_dynamics", "inverse_dynamics")


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if verb.name not in DIFFERENTIATED], ids=lambda verb: verb.name
)
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.nightly)])
def test_compiled_verb_is_the_eager_one(verb, backend):
    compare(verb, ["free", "revolute"], backend, with_gradient=False)


@pytest.mark.nightly
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_of_a_compiled_verb_are_the_eager_ones(name):
    (verb,) = (verb for verb in VERBS if verb.name == name)
    compare(verb, ["free", "revolute"], "aot_eager", with_gradient=True)


@pytest.mark.nightly
def test_generated_code_for_a_pendulum_gives_what_eager_gives():
    # One joint: Inductor takes 10 s or more for each level of a sweep.
    forward_dynamics = next(verb for verb in VERBS if verb.name == "forward_dynamics")
    compare(forward_dynamics, ["revolute"], "inductor", with_gradient=False)
