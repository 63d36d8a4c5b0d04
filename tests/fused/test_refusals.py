"""What cannot be fused, or is no argument of a kernel, is refused by name, with what to type."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import while_loop

import torchsko as ts
from tests.strategies import random_mechanism

ARM = random_mechanism(["revolute", "revolute"], [-1, 0], seed=1)


def law(mech, q, qd, gain=1.0):
    return ts.forward_dynamics(mech, q, qd, -gain * qd)


def reach(mech, q, target):
    return target - q


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: ts.fuse(ARM, law),
            r"Mechanism first, and function.*\n.*\nCall ts.fuse\(fn, mech\)",
        ),
        (lambda: ts.fuse(ARM, order=-1), r"order=-1.*\n.*\n.*order=2"),
        (lambda: ts.fuse(ARM, inputs="mass"), r"inputs='mass'.*\n.*\n.*inputs=\('mass',\)"),
        (lambda: ts.fuse(reach, ARM, shapes={"targt": (2,)}), r"'targt'.*\n.*'target'"),
    ],
)
def test_what_fuse_cannot_mean_is_refused(call, words):
    with pytest.raises(ts.FusedError, match=words):
        call()


@pytest.mark.parametrize(
    "fn",
    [
        lambda mech, q: torch.cond(q.sum() > 0, torch.sin, torch.cos, (q,)),
        lambda mech, q: while_loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (q,))[0],
    ],
)
def test_operators_that_take_functions_are_refused_with_what_serves(fn):
    with pytest.raises(ts.FusedError, match=r"torch.cond.*\n.*\nWrite ts.iterate\(.*torch.where"):
        ts.fuse(fn, ARM)


@pytest.mark.parametrize("layer", [False, True])
def test_what_is_no_tensor_is_named_as_eager_functions_do(layer):
    q, qd = ARM.random_state(2)
    fast = ts.Dynamics(ARM, fused=True) if layer else ts.fuse(ARM)
    for place, name in enumerate(("q", "qd", "tau")):
        for wrong in (qd.numpy(), qd.tolist(), *([None] if name != "tau" else [])):
            args = [q, qd, qd]
            args[place] = wrong
            words = (
                rf"^{name} was given as (ndarray|list|NoneType)\.\n.*\nPass (for example )?torch"
            )
            with pytest.raises(ts.ShapeError, match=words):
                fast.forward_dynamics(*args)


def test_arguments_of_a_fused_function_are_named():
    fast, (q, qd) = ts.fuse(law, ARM), ARM.random_state(2)
    for wrong in (qd.numpy(), qd.tolist()):
        with pytest.raises(
            ts.ShapeError, match=r"qd was given as (ndarray|list).*\n.*\n.*as_tensor\(qd"
        ):
            fast(q, wrong)
    for bogus in (qd, 3):
        with pytest.raises(ts.FusedError, match=r"'bogus'.*\n.*'gain'"):
            fast(q, qd, bogus=bogus)
    with pytest.raises(TypeError, match=r"q, qd, gain.*\n.*once"):
        fast(q, qd, 1.0, 2.0)
    with pytest.raises(TypeError, match=r"q, qd, gain.*\n.*once"):
        fast(q, qd, q=q)
    assert torch.allclose(fast(q, qd, gain=2.0), law(ARM, q, qd, 2.0))


@pytest.mark.parametrize(
    ("start", "advice"),
    [
        (lambda: ts.Dynamics(ARM), ".mechanism()"),
        (lambda: ts.fuse(ARM), ".mechanism()"),
        (lambda: ts.robots.panda, "ts.load(path)"),
    ],
)
def test_a_layer_starts_from_a_mechanism(start, advice):
    with pytest.raises(ts.MechanismError) as error:
        ts.Dynamics(start())
    first, _, last = str(error.value).splitlines()
    assert type(start()).__name__ in first and advice in last
