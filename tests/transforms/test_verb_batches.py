"""Batch dimensions broadcast between states and parameters; dtype and inputs stay as they were."""

import pytest
import torch

from tests.strategies import BATCHES, KINDS, random_mechanism
from tests.transforms.verbs import CASES, VERBS, WITH_PARAMETERS, inputs

FULL_RANK = ("operational_space_inertia", "consistent_jacobian_inverse")
"""Verbs that invert a 6 x 6 compliance: fewer than six dofs leave nothing to invert."""

cases = pytest.mark.parametrize(("verb", "mech"), CASES.values(), ids=CASES)
cases_with_parameters = pytest.mark.parametrize(
    ("verb", "mech"), WITH_PARAMETERS.values(), ids=WITH_PARAMETERS
)


def one_by_one(verb, mech, given, batch, shapes) -> tuple[torch.Tensor, ...]:
    """Results for every sample of a batch, computed alone and stacked; `shapes` by input name."""
    event = {name: x.shape[len(shapes[name]) :] for name, x in given.items()}
    full = {
        name: x.expand(*batch, *event[name]).reshape(-1, *event[name]) for name, x in given.items()
    }
    count = torch.Size(batch).numel()
    results = [verb(mech, **{name: x[i] for name, x in full.items()}) for i in range(count)]
    return tuple(
        torch.stack(parts).reshape((*batch, *parts[0].shape))
        for parts in zip(*results, strict=True)
    )


@pytest.mark.some(90)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@cases
def test_a_batch_is_its_samples(verb, mech, batch):
    given = inputs(mech, verb, batch)
    alone = one_by_one(verb, mech, given, batch, dict.fromkeys(given, batch))
    torch.testing.assert_close(verb(mech, **given), alone)


@pytest.mark.some(43)
@cases_with_parameters
def test_batches_of_states_and_of_parameters_broadcast(verb, mech):
    shapes = {name: (3, 1) if name in verb.states else (2,) for name in verb.reads(mech)}
    given = {name: inputs(mech, verb, shape)[name] for name, shape in shapes.items()}
    alone = one_by_one(verb, mech, given, (3, 2), shapes)
    torch.testing.assert_close(verb(mech, **given), alone)


@pytest.mark.some(9)
@cases
def test_any_one_input_may_carry_the_batch(verb, mech):
    single, batched = inputs(mech, verb), inputs(mech, verb, (2, 1))
    for name in single:
        given = single | {name: batched[name]}
        shapes = dict.fromkeys(given, ()) | {name: (2, 1)}
        alone = one_by_one(verb, mech, given, (2, 1), shapes)
        for result, expected in zip(verb(mech, **given), alone, strict=True):
            torch.testing.assert_close(result.expand_as(expected), expected, msg=name)


@cases
def test_results_have_the_type_of_the_mechanism(verb, mech):
    for dtype in (torch.float32, torch.float64):
        given = {name: x.to(dtype) for name, x in inputs(mech, verb, (2,)).items()}
        assert all(y.dtype == dtype for y in verb(mech.to(dtype), **given))


@cases
def test_no_input_is_written_to(verb, mech):
    given = inputs(mech, verb, (2,))
    before = {name: x.clone() for name, x in given.items()}
    versions = {name: x._version for name, x in given.items()}
    verb(mech, **given)
    assert versions == {name: x._version for name, x in given.items()}
    torch.testing.assert_close(given, before, rtol=0, atol=0)


def test_4096_robots_at_4096_states_in_one_call():
    verb, mech = CASES["forward_dynamics-bare"]
    given = inputs(mech, verb, (4096,))
    (together,) = verb(mech, **given)
    for i in (0, 1717, 4095):
        (alone,) = verb(mech, **{name: x[i] for name, x in given.items()})
        torch.testing.assert_close(together[i], alone)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_runs_on_one_joint_of_each_kind(verb):
    for kind in KINDS if verb.name not in FULL_RANK else ("free",):
        mech = random_mechanism([kind], [-1], seed=5)
        given = inputs(mech, verb, (2,))
        alone = one_by_one(verb, mech, given, (2,), dict.fromkeys(given, (2,)))
        torch.testing.assert_close(verb(mech, **given), alone)


@pytest.mark.cuda
@cases
def test_gpu_agrees_with_cpu(verb, mech):
    given = inputs(mech, verb, (2, 3))
    on_gpu = verb(mech.to("cuda"), **{name: x.cuda() for name, x in given.items()})
    assert all(y.is_cuda for y in on_gpu)
    torch.testing.assert_close(tuple(y.cpu() for y in on_gpu), verb(mech, **given))
