"""Fused functions under every PyTorch transform equal their source."""

import gc
import itertools
import warnings
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.overrides import TorchFunctionMode
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.strategies import few
from torchsko.errors import CompilerError, FusedError, ShapeError
from torchsko.fused.calls import kernel
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Port
from torchsko.implicit.jacobian_products import MAX_SEPARATE_VJPS, covering_flags

func = torch.func
A = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3).cos()
PORTS = (Port("x", (3,)), Port("y", (3,)), Port("p", (2,)))


def source(x, y, p):
    return torch.sin(A @ x) * y * p[0] + p[1] * x, (x * y).sum() * torch.cos(p).sum()


@pytest.fixture(scope="module")
def fused():
    return FusedFunction(source, PORTS, Traits(num_outputs=2))


def tensors(*shapes, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g, dtype=dtype) for shape in shapes]


def leaves(*shapes):
    return [x.requires_grad_() for x in tensors(*shapes)]


def assert_same(mine, theirs, tolerance=1e-11):
    mine, theirs = tree_leaves(mine), tree_leaves(theirs)
    assert len(mine) == len(theirs)
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


BATCHES = {
    "none": ((3,), (3,), (2,)),
    "one": ((1, 3), (1, 3), (1, 2)),
    "two": ((2, 4, 3), (2, 4, 3), (2, 4, 2)),
    "shared": ((5, 3), (5, 3), (2,)),
    "broadcast": ((2, 1, 3), (4, 3), (1, 1, 2)),
}


@pytest.mark.parametrize("shapes", BATCHES.values(), ids=BATCHES.keys())
def test_values_and_gradients_are_those_of_the_source(fused, shapes):
    inputs = leaves(*shapes)
    mine, theirs = fused(*inputs), fused.eager(*inputs)
    assert_same(mine, theirs)
    weights = [torch.cos(y.detach()) for y in theirs]
    gradients = [torch.autograd.grad(y, inputs, weights) for y in (mine, theirs)]
    assert_same(*gradients)
    assert [g.shape for g in gradients[0]] == list(shapes)


def test_gradcheck_in_reverse_and_forward_mode_and_batched(fused):
    inputs = leaves((2, 3), (2, 3), (2,))
    flags = {"check_forward_ad": True, "check_batched_forward_grad": True}
    assert gradcheck(fused, inputs, check_batched_grad=True, **flags)


def test_gradgradcheck_in_reverse_and_forward_mode(fused):
    inputs = leaves((2, 3), (2, 3), (2,))
    assert gradgradcheck(fused, inputs, check_fwd_over_rev=True, check_batched_grad=True)


BOTH = (0, 2)
TRANSFORMS = {
    "vmap": lambda f: func.vmap(f, (0, 0, None)),
    "vmap of vmap": lambda f: func.vmap(func.vmap(f, (0, None, None)), (None, 0, None)),
    "vmap into the last": lambda f: func.vmap(f, (0, 0, None), -1),
    "vmap of jacrev": lambda f: func.vmap(func.jacrev(f, BOTH), (0, 0, None)),
    "vmap of jacfwd": lambda f: func.vmap(func.jacfwd(f, BOTH), (0, 0, None)),
    "vmap of hessian": lambda f: func.vmap(func.hessian(f, BOTH), (0, 0, None)),
    "jacrev": lambda f: func.jacrev(f, BOTH),
    "jacfwd": lambda f: func.jacfwd(f, BOTH),
    "hessian": lambda f: func.hessian(f, BOTH),
    "jacrev of jacrev": lambda f: func.jacrev(func.jacrev(f, BOTH), BOTH),
    "jacrev of jacfwd": lambda f: func.jacrev(func.jacfwd(f, BOTH), BOTH),
    "jacfwd of jacfwd": lambda f: func.jacfwd(func.jacfwd(f, BOTH), BOTH),
    "jacrev of jacfwd of a weighted sum": lambda f: (
        lambda *z: func.jacrev(func.jacfwd(lambda x: sum((2 * y).sum() for y in f(x, *z[1:]))))(
            z[0]
        )
    ),
    "third derivative": lambda f: func.jacrev(func.jacfwd(func.jacrev(f, 0), 0), 2),
    "jvp": lambda f: lambda x, y, p: func.jvp(lambda x: f(x, y, p), (x,), (y,)),
    "jvp of vjp": lambda f: (
        lambda x, y, p: func.jvp(
            lambda x, p: func.vjp(lambda *z: f(z[0], y, z[1]), x, p)[1](f(x, y, p)), (x, p), (y, p)
        )
    ),
    "jvp of jvp": lambda f: (
        lambda x, y, p: func.jvp(lambda x: func.jvp(lambda z: f(z, y, p), (x,), (y,)), (x,), (y,))
    ),
    "linearize": lambda f: lambda x, y, p: func.linearize(lambda z: f(z, y, p), x)[1](y),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torch_func_agree(fused, name):
    inputs = tensors((2, 3), (2, 3), (2,))
    transform = TRANSFORMS[name]
    assert_same(transform(fused)(*inputs), transform(fused.eager)(*inputs))


def test_tangents_of_forward_mode_are_right(fused):
    x, y, p, dx = tensors((4, 3), (4, 3), (2,), (4, 3))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, dx)
        mine = [forward_ad.unpack_dual(out).tangent for out in fused(dual, y, p)]
    _, theirs = func.jvp(lambda x: fused.eager(x, y, p), (x,), (dx,))
    assert_same(mine, theirs)


def test_grads_can_be_batched(fused):
    x, y, p = leaves((4, 3), (4, 3), (2,))
    mine, theirs = (
        torch.autograd.grad(
            f(x, y, p)[1], (x, p), torch.eye(4, dtype=x.dtype), is_grads_batched=True
        )
        for f in (fused, fused.eager)
    )
    assert_same(mine, theirs)


def compiled(fn):
    return torch.compile(fn, fullgraph=True, backend="aot_eager")


# Dynamo of these versions fails on torch.func.vmap(torch.func.hessian(torch.sin)) as well.
nested_vmap = pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.13", reason="PyTorch below 2.13 cannot compile nested vmap"
)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "name",
    [
        "vmap",
        "jvp",
        pytest.param("vmap of jacrev", marks=nested_vmap),
        pytest.param("hessian", marks=nested_vmap),
    ],
)
def test_transforms_inside_of_a_compiled_function_agree(fused, name):
    inputs = tensors((2, 3), (2, 3), (2,))
    transform = TRANSFORMS[name]
    assert_same(compiled(transform(fused))(*inputs), transform(fused.eager)(*inputs))


def loss(f):
    def value(x, y, p):
        a, b = f(2 * x, y, p)
        return a.sin().sum() + b.square().sum()

    return value


@pytest.mark.parametrize("shapes", [BATCHES["shared"], BATCHES["none"]])
def test_compiled_functions_have_the_same_value_and_gradient(fused, shapes):
    inputs = leaves(*shapes)
    fn = compiled(loss(fused))
    for _ in range(2):
        mine, theirs = fn(*inputs), loss(fused.eager)(*inputs)
        assert_same(mine, theirs)
        assert_same(torch.autograd.grad(mine, inputs), torch.autograd.grad(theirs, inputs))


def test_one_compiled_graph_serves_all_batch_sizes(fused):
    fn = torch.compile(lambda *x: fused(*x), fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (2, 5, 9):
        inputs = tensors((size, 3), (size, 3), (2,))
        assert_same(fn(*inputs), fused.eager(*inputs))
    assert_same(fn(*tensors((7, 3), (7, 3), (2,))), fused.eager(*tensors((7, 3), (7, 3), (2,))))


@pytest.mark.nightly
def test_inductor_calls_the_kernel(fused):
    inputs = leaves((4, 3), (4, 3), (2,))
    mine = torch.compile(loss(fused), fullgraph=True)(*inputs)
    theirs = loss(fused.eager)(*inputs)
    assert_same(mine, theirs)
    assert_same(torch.autograd.grad(mine, inputs), torch.autograd.grad(theirs, inputs))


def test_forward_mode_through_a_compiled_function_is_right_or_refused(fused):
    x, y, p, dx = tensors((4, 3), (4, 3), (2,), (4, 3))
    fn = compiled(lambda *z: fused(*z))
    fn(x, y, p)
    with pytest.raises(Exception, match=r"functorch|torch\.func"):
        func.jvp(lambda z: fn(z, y, p), (x,), (dx,))
    _, theirs = func.jvp(lambda z: fused.eager(z, y, p), (x,), (dx,))
    with forward_ad.dual_level():
        out = fn(forward_ad.make_dual(x, dx), y, p)
        assert_same([forward_ad.unpack_dual(z).tangent for z in out], theirs)


def test_the_bare_operator_under_torch_func_is_refused(fused):
    x, y, p = tensors((3,), (3,), (2,))
    with pytest.raises(RuntimeError, match="call the FusedFunction"):
        func.jvp(lambda z: fused.run_operator((z, y, p)), (x,), (y,))


@pytest.mark.some(2)
@pytest.mark.parametrize("shapes", BATCHES.values(), ids=BATCHES.keys())
def test_opcheck_passes_for_the_operator_and_its_derivatives(fused, shapes):
    inputs = leaves(*shapes)
    torch.library.opcheck(fused.operator, (fused.key, (), *inputs))
    torch.library.opcheck(fused.operator, (fused.key, (), *(x.detach() for x in inputs)))
    outputs = [y.detach().requires_grad_() for y in fused(*inputs)]
    fused.vjp((True,) * 3, inputs, (), outputs)
    for (kind, _), derivative in list(fused._derivatives.items()):
        if kind == "vjp" and len(derivative.outputs) == 3:
            arguments = (derivative.key, (), *inputs, *outputs)
            torch.library.opcheck(derivative.operator, arguments)


def test_meta_tensors_give_shapes(fused):
    inputs = [x.to("meta") for x in tensors((2, 1, 3), (4, 3), (2,))]
    assert [y.shape for y in fused(*inputs)] == [(2, 4, 3), (2, 4)]


def test_exported_programs_call_the_operator(fused):
    inputs = tensors((4, 3), (4, 3), (2,))

    class Model(torch.nn.Module):
        def forward(self, x, y, p):
            return fused(x, y, p)

    exported = torch.export.export(Model(), tuple(inputs)).module()
    assert_same(exported(*inputs), fused.eager(*inputs))


def test_only_inputs_are_saved_for_the_backward_pass(fused):
    inputs = leaves((50, 3), (50, 3), (2,))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        fused(*inputs)
    assert {x.data_ptr() for x in saved} == {x.data_ptr() for x in inputs}


def test_unneeded_gradients_are_not_in_the_kernel():
    fused = FusedFunction(source, PORTS, Traits(num_outputs=2))
    x, y, p = leaves((2, 3), (2, 3), (2,))
    fused(x, y.detach(), p.detach())[1].sum().backward()
    ((_, derivative),) = fused._derivatives.items()
    assert [port.name for port in derivative.outputs] == ["x"]
    assert x.grad is not None and y.grad is None


def test_a_gradient_by_fewer_inputs_uses_the_kernel_of_more():
    fused = FusedFunction(source, PORTS, Traits(num_outputs=2))
    x, y, p = leaves((2, 3), (2, 3), (2,))
    every = torch.autograd.grad(fused(x, y, p)[1].sum(), (x, y, p))
    for k in range(3):
        given = [z if i == k else z.detach() for i, z in enumerate((x, y, p))]
        (found,) = torch.autograd.grad(fused(*given)[1].sum(), given[k])
        assert_same((found,), (every[k],))
    assert len(fused._derivatives) == 1


def test_gradients_by_all_subsets_of_inputs_need_few_kernels():
    built: list[tuple[bool, ...]] = []
    for needed in itertools.product((False, True), repeat=8):
        flags = covering_flags(needed, built)
        assert all(a >= b for a, b in zip(flags, needed, strict=True))
        built += [] if flags in built else [flags]
    assert len(built) <= MAX_SEPARATE_VJPS + 8


def test_a_pullback_of_ones_own_reads_the_saved_outputs():
    def root(x):
        return torch.sqrt(x)

    def pullback(needed, inputs, outputs, by):
        return [by[0] / (2 * outputs[0])]

    fused = FusedFunction(root, (Port("x", (2,)),), Traits(), pullback=pullback)
    x = (torch.rand(3, 2, dtype=torch.float64) + 1).requires_grad_()
    assert gradcheck(fused, (x,)) and gradgradcheck(fused, (x,), check_fwd_over_rev=True)
    hessian = func.vmap(func.hessian(lambda z: fused(z)[0].sum()))(x.detach())
    assert_same(hessian, torch.diag_embed(-0.25 * x.detach() ** -1.5))
    ((_, derivative),) = [item for item in fused._derivatives.items() if item[0][0] == "vjp"]
    assert "sqrt" not in [instr.op for instr in derivative.program.code]


def test_value_and_gradient_come_from_one_kernel(fused):
    x, y, p, a, b = tensors((5, 3), (5, 3), (2,), (5, 3), (5,))
    both = fused.value_and_vjp((True, False, True))
    *values, to_x, to_p = both(x, y, p, a, b)
    expected, pullback = func.vjp(lambda x, p: fused.eager(x, y, p), x, p)
    assert_same((values, to_x, to_p), (list(expected), *pullback((a, b))))
    assert to_p.shape == (2,)


def test_modes_and_traces_see_the_operator(fused):
    x, y, p = tensors((4, 3), (4, 3), (2,))
    seen = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watching():
        fused(x, y, p)
    assert fused.operator in seen
    traced = torch.jit.trace(lambda x: fused(x, y, p)[0], x)
    torch.testing.assert_close(traced(2 * x), fused(2 * x, y, p)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_and_inference_mode_pass(fused, dtype):
    if dtype == torch.float32:
        fused = FusedFunction(lambda x, y, p: x * y * p[0], PORTS, Traits())
    x, y, p = tensors((4, 3), (4, 3), (2,), dtype=dtype)
    with torch.no_grad():
        expected = fused(x, y, p)
        assert_same(fused(torch.nn.Parameter(x), y, p), expected)
    with torch.inference_mode():
        assert_same(fused(x, y, p), expected)


@pytest.fixture
def without_compiler(monkeypatch):
    def none(*args):
        raise CompilerError("no C++ compiler")

    monkeypatch.setattr(kernel, "find_toolchain", none)


def test_without_a_compiler_the_source_runs_and_some_calls_say_so(without_compiler):
    fused = FusedFunction(source, PORTS, Traits(num_outputs=2, name="source"))
    inputs = leaves((4, 3), (4, 3), (2,))
    with pytest.warns(UserWarning, match=r"no kernel of source\((.|\n)*eager"):
        out = fused(*[x.detach() for x in inputs])
    assert_same(out, fused.eager(*inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            fused(*[x.detach() for x in inputs])
    with pytest.warns(UserWarning, match=r"call 10\)"):
        fused(*[x.detach() for x in inputs])
    with pytest.warns(UserWarning, match="no kernel of vjp of source"):
        gradients = torch.autograd.grad(fused(*inputs)[1].sum(), inputs)
    assert_same(gradients, torch.autograd.grad(fused.eager(*inputs)[1].sum(), inputs))


class Onward(TorchDispatchMode):
    """Changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def below(mode, fn):
    def call(*inputs):
        with mode():
            return fn(*inputs)

    return call


@pytest.mark.filterwarnings("ignore:no C\\+\\+ compiler")
@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("way", ["compiled", "below a mode"])
def test_the_source_runs_where_a_mode_calls_it(way, order, without_compiler):
    """Regression: PyTorch hides transforms from these calls, so a vmap failed and a derivative crashed."""
    fused = FusedFunction(source, PORTS, Traits(num_outputs=2, order=order))
    inputs = leaves((4, 3), (4, 3), (2,))
    fn = compiled(lambda *x: fused(*x)) if way == "compiled" else below(Onward, fused)
    found, expected = fn(*inputs), fused.eager(*inputs)
    assert_same(found, expected)

    def grad(y):
        return torch.autograd.grad(y.sin().sum(), inputs)

    mine = (grad if way == "compiled" else below(Onward, grad))(found[1])
    assert_same(mine, grad(expected[1]))


@pytest.mark.filterwarnings("ignore:no C\\+\\+ compiler")
@pytest.mark.parametrize("lead", [(0,), (2, 0)])
def test_an_empty_batch_needs_no_compiler(lead, without_compiler):
    """Regression: a Jacobian within the source also maps, and failed on an empty batch."""
    fused = FusedFunction(torch.func.jacrev(lambda x: x.sin() * x.sum()), PORTS[:1], Traits())
    (x,) = leaves((*lead, 3))
    (found,) = fused(x)
    assert found.shape == (*lead, 3, 3)
    assert torch.autograd.grad(found.sum(), x)[0].shape == x.shape
    assert torch.vmap(lambda x: fused(x)[0], -2)(x.new_zeros(0, 4, 3)).shape == (4, 0, 3, 3)


def test_functions_of_equal_ports_share_one_operator_and_are_collected():
    """PyTorch keeps memory of each registered operator for ever."""
    functions = [FusedFunction(lambda x: 2 * x, (Port("x", ()),), Traits()) for _ in range(3)]
    for fused in functions:
        fused(torch.ones(3, requires_grad=True))[0].sum().backward()
    assert functions[0].operator is functions[2].operator
    gone, key = weakref.ref(functions[0]), functions[0].key
    del functions, fused
    gc.collect()
    assert gone() is None
    with pytest.raises(RuntimeError, match="deleted while a graph still calls it"):
        torch.ops.torchsko.run_1_1(key, (), torch.ones(3))


def test_wrong_calls_are_refused_by_name(fused):
    x, y, p = tensors((3,), (3,), (2,))
    with pytest.raises(ShapeError, match="Pass x, y, p"):
        fused(x, y)
    with pytest.raises(FusedError, match="num_outputs=2"):
        FusedFunction(source, PORTS, Traits())(x, y, p)


OPERATIONS = st.lists(
    st.sampled_from(
        [
            lambda x, p: x * p[0],
            lambda x, p: torch.sin(x + p[1]),
            lambda x, p: torch.cat([x[1:], x[:1]]) + x,
            lambda x, p: x / (2 + torch.cos(x)),
            lambda x, p: torch.outer(x, x) @ torch.tanh(x) / (1 + x @ x),
            lambda x, p: torch.sqrt(1 + x * x) - p.sum(),
            lambda x, p: torch.where(p[0] > 0, x, torch.exp(-x * x)),
        ]
    ),
    min_size=1,
    max_size=4,
)


@few
@given(OPERATIONS)
def test_random_functions_pass_gradcheck_and_agree(operations):
    def fn(x, p):
        for operation in operations:
            x = operation(x, p)
        return x

    fused = FusedFunction(fn, (Port("x", (3,)), Port("p", (2,))), Traits())
    x, p = leaves((2, 3), (2,))
    assert_same(fused(x, p), fused.eager(x, p))
    assert gradcheck(fused, (x, p), check_forward_ad=True)
    transform = func.vmap(func.hessian(lambda x, p: fused(x, p)[0], (0, 1)), (0, None))
    reference = func.vmap(func.hessian(fn, (0, 1)), (0, None))
    assert_same(transform(x.detach(), p.detach()), reference(x.detach(), p.detach()))
