"""The native call equals the Python call bit by bit, and returns None for unsupported inputs."""

import gc
import sys

import pytest
import torch

import torchsko as ts
from torchsko.errors import ShapeError
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Port

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="PyTorch has no exchange interface",
)

PORTS = (Port("x", (3,)), Port("c", ()), Port("m", (2, 3)))


def source(x, c, m):
    return m @ x * c, torch.outer(x, m[0]).exp(), (x * x).sum()


@pytest.fixture(scope="module", params=[torch.float64, torch.float32])
def made(request):
    """The function with a compiled kernel, and a function that makes inputs of given batch shapes."""
    function = FusedFunction(source, PORTS, Traits(num_outputs=3))

    def inputs(*leads):
        g = torch.Generator().manual_seed(3)
        return [
            torch.randn((*lead, *port.shape), generator=g, dtype=request.param)
            for lead, port in zip(leads, PORTS, strict=True)
        ]

    function(*inputs((), (), ()))
    return function, inputs


def the_long_way(function, inputs):
    """Strided inputs use the Python call."""
    return function(*(torch.stack([x, x], -1)[..., 0] for x in inputs))


LEADS = [
    ((), (), ()),
    ((1,), (1,), (1,)),
    ((2, 3), (2, 3), (2, 3)),
    ((5,), (), (5,)),
    ((), (4, 1), ()),
]


@pytest.mark.parametrize("leads", LEADS, ids=str)
def test_results_are_those_of_the_python_call(made, leads):
    function, inputs = made
    tensors = inputs(*leads)
    mine = function.call_native(tensors)
    assert mine is not None
    for x, y in zip(mine, the_long_way(function, tensors), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)


def test_a_number_stands_for_a_tensor_of_no_dimension():
    x, m = torch.ones(4, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    again = FusedFunction(
        lambda x, m, c: source(x, c, m), [PORTS[0], PORTS[2], PORTS[1]], Traits(num_outputs=3)
    )
    theirs = again(x, m, torch.tensor(0.1, dtype=torch.float64))
    mine = again.call_native((x, m), 0.1)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_unusual_arguments_use_the_python_call(made):
    function, inputs = made
    x, c, m = inputs((2,), (2,), (2,))

    class Sub(torch.Tensor):
        pass

    unusual = {
        "type": (x.to(torch.float16), c, m),
        "device": (x.to("meta"), c, m),
        "layout": (x.to_sparse(), c, m),
        "shape": (x[:, :2].contiguous(), c, m),
        "rank": (x[0, 0], c, m),
        "strides": (x.mT.contiguous().mT, c, m),
        "batch shapes": (x, c[:1], m),
        "empty": (x[:0], c[:0], m[:0]),
        "subclass": (x.as_subclass(Sub), c, m),
        "gradient": (x.clone().requires_grad_(), c, m),
        "many": (x[:1].expand(10**6, 3).contiguous(), c[0], m[0]),
    }
    for what, tensors in unusual.items():
        assert function.call_native(tensors) is None, what
    assert function.call_native((x, c)) is None


def test_under_a_transform_it_is_left_to_the_dispatcher(made):
    function, inputs = made
    tensors = inputs((2,), (2,), (2,))
    seen = []

    def spy(x, c, m):
        seen.append(function.call_native((x, c, m)))
        return function(x, c, m)

    torch.func.vmap(spy)(*tensors)
    assert seen == [None]


def test_a_sign_that_is_yet_to_be_changed_is_changed():
    function = FusedFunction(lambda x: 2 * x, [Port("x", (1,))], Traits())
    x = torch.complex(torch.zeros(1), torch.full((1,), 3.0)).conj().imag
    assert x.is_neg() and x.is_contiguous()
    function(x.clone())
    assert function(x)[0].item() == -6


def test_wrong_inputs_raise_the_errors_of_the_python_call(made):
    function, inputs = made
    x, c, m = inputs((2,), (2,), (2,))
    with pytest.raises(ShapeError, match="x has shape"):
        function(x[:, :2].contiguous(), c, m)


def test_reference_counts_are_unchanged_by_a_call(made):
    function, inputs = made
    tensors = inputs((2,), (2,), (2,))
    function.call_native(tensors)
    before = [sys.getrefcount(x) for x in tensors], sys.getrefcount(None)
    for _ in range(1000):
        results = function.call_native(tensors)
        function.call_native((tensors[0].mT, *tensors[1:]))
    counts = [sys.getrefcount(x) for x in tensors]
    assert counts == before[0] and abs(sys.getrefcount(None) - before[1]) < 100
    assert [sys.getrefcount(y) for y in results] == [3] * 3  # the tuple, the loop, the call
    held = results[0].clone()
    del results
    gc.collect()
    assert torch.equal(function.call_native(tensors)[0], held)


def test_a_step_is_the_same_for_a_number_and_a_tensor():
    mech = ts.load(ts.robots.panda)
    fast = ts.fuse(mech)
    q, qd = mech.random_state(3, generator=torch.Generator().manual_seed(0))
    tau = torch.ones_like(qd)
    ours = fast.advance_tensors(q, qd, tau, 1e-3)
    theirs = fast.advance_tensors(q, qd, tau, torch.tensor(1e-3, dtype=q.dtype))
    third = fast.advance_tensors(q, qd, tau, 1e-3)
    assert all(
        torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(ours, theirs, third, strict=True)
    )
