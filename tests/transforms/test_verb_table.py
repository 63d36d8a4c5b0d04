"""One table: what is public on a mechanism is a function, a method of layers, and a kernel or a refusal."""

import inspect
import re

import pytest
import torch

import torchsko as ts
from tests.fused.evaluate import evaluate
from tests.strategies import random_mechanism
from tests.transforms.verbs import PARAMETERS, sample
from torchsko.api.rows import ROWS, Verbs
from torchsko.errors import FusedError
from torchsko.fused.functions import lazy_kernel as traced


def public_functions_of_mechanisms():
    """What `torchsko` exports whose first argument is called mech, by name; pictures are no numbers of it."""
    rooms = (ts, ts.actuators, ts.constraints, ts.contact, ts.integrators)
    for name, fn in ((name, getattr(room, name)) for room in rooms for name in dir(room)):
        if not inspect.isfunction(fn) or fn.__module__.startswith("torchsko.view"):
            continue
        if next(iter(inspect.signature(fn).parameters), "") == "mech":
            yield name, fn


def floating_tree():
    """A body afloat with an arm on a hinge and one on a ball; springs, damping, friction, armature."""
    return random_mechanism(["free", "revolute", "spherical"], [-1, 0, 0], seed=3, armature=True)


def in_dtype(dtype):
    return ts.load(ts.robots.panda).to(dtype)


@pytest.fixture
def interpreted(monkeypatch):
    """Programs run by their interpreter: what is traced is under test, not the compiler."""
    ran = []

    def build(program, dtype, identity=None, vector_bytes=None):
        def run(inputs, summed=None):
            ran.append(program)
            outputs = evaluate(program, inputs)
            summed = summed or [False] * len(outputs)
            return tuple(
                y.reshape(-1, *port.shape).sum(0) if whole else y
                for y, port, whole in zip(outputs, program.outputs, summed, strict=True)
            )

        return run

    monkeypatch.setattr(traced, "build_kernel", build)
    monkeypatch.setattr(traced, "load_kernel", lambda *args: None)
    monkeypatch.setattr(traced, "save_program", lambda *args: None)
    return ran


def results(call, states, with_gradients):
    """Results of a call by name, and the gradients of a function of them to every state."""
    leaves = {name: x.clone().requires_grad_(with_gradients) for name, x in states.items()}
    out = call(**leaves)
    out = (out,) if isinstance(out, torch.Tensor) else tuple(out)
    if not with_gradients:
        return out
    total = sum(y.sin().sum() for y in out)
    options = {"allow_unused": True, "materialize_grads": True}
    return *out, *torch.autograd.grad(total, [*leaves.values()], **options)


def check_three(name, mech, *, with_gradients, **options):
    g = torch.Generator().manual_seed(5)
    states = {n: sample(mech, n, (3,), g).to(mech.dtype) for n in ROWS[name].tensors}
    layer, fast, fn = ts.Dynamics(mech), ts.fuse(mech), ROWS[name].function
    expected, of_layer, of_kernel = (
        results(lambda **x: call(**x, **options), states, with_gradients)  # noqa: B023
        for call in (lambda **x: fn(mech, **x), getattr(layer, name), getattr(fast, name))
    )
    torch.testing.assert_close(of_layer, expected, rtol=0, atol=0)
    for mine, theirs in zip(of_kernel, expected, strict=True):
        scale = 1 + float(theirs.detach().abs().max())
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10 * scale)


def options_of(name, mech):
    given = {"frames": mech.frame_names[-1:], "prescribed": mech.joint_names[:1]}
    given["frame"] = mech.frame_names[-1]
    return {n: x for n, x in given.items() if n in ROWS[name].options}


def test_every_public_function_of_mechanisms_is_on_all_three():
    mech = floating_tree()
    public = dict(public_functions_of_mechanisms())
    of_table = {name for name, x in vars(Verbs).items() if inspect.isfunction(x)}
    of_table -= {"_verb", "linear_model"}  # the latter is the kernel of linearize
    missing = sorted(set(public) - of_table)
    assert not missing, f"add a row for {missing} to the class in torchsko/api/verb_table.py"
    missing = sorted(of_table - set(public))
    assert not missing, (
        f"add imports of {missing} to torchsko/api/verb_table.py, or to a stub of a package"
    )
    for given in (ts.Dynamics(mech), ts.fuse(mech)):
        for name, fn in public.items():
            (_, *arguments) = inspect.signature(fn).parameters.values()
            method = inspect.signature(getattr(given, name))
            assert [*method.parameters.values()] == arguments


@pytest.mark.parametrize("name", ROWS)
def test_a_row_declares_the_number_of_outputs_of_its_function(name):
    row, mech = ROWS[name], floating_tree()
    if row.num_outputs:
        g = torch.Generator().manual_seed(0)
        states = {n: sample(mech, n, (), g) for n in row.tensors}
        found = row.function(mech, **states, **options_of(name, mech))
        count = 1 if isinstance(found, torch.Tensor) else len(found)
        assert row.num_outputs == count, (
            f"declare {count} outputs of {name} in its row in torchsko/api/verb_table.py"
        )


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if hasattr(row.function, "shapes")])
def test_the_docstring_of_a_verb_documents_all_its_arguments_and_the_error_of_their_shapes(name):
    row = ROWS[name]
    doc = inspect.getdoc(row.function)
    _, head, arguments = doc.partition("\nArgs:\n")
    documented = re.findall(r"^    (\w+): \S", arguments.partition("\n\n")[0], re.MULTILINE)
    assert head and documented == [*inspect.signature(row.function).parameters]
    assert ("\n    ShapeError: " in doc) == bool(row.shapes)


@pytest.mark.some(12)
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.shapes])
def test_a_tensor_of_another_shape_is_refused_by_name(name):
    row, mech, g = ROWS[name], floating_tree(), torch.Generator().manual_seed(0)
    states = {n: sample(mech, n, (2,), g) for n in row.tensors}
    for tensor, x in states.items():
        with pytest.raises(ts.ShapeError, match=f"{tensor} has shape"):
            row.function(mech, **states | {tensor: x[..., :-1]}, **options_of(name, mech))


def test_every_row_is_traced_or_refused_or_runs_as_it_is():
    kernels = ts.fused.FusedMechanism.fused_methods - {"advance", "trajectory"}
    refused = {name for name, row in ROWS.items() if "" in row.refuses}
    missing, unknown = sorted(kernels - set(PARAMETERS)), sorted(set(PARAMETERS) - kernels)
    assert not missing, f"add a case for {missing} to _OF_ROWS in tests/transforms/verbs.py"
    assert not unknown, (
        f"_OF_ROWS in tests/transforms/verbs.py has cases of {unknown}, without a kernel"
    )
    public = {name for name, _ in public_functions_of_mechanisms()}
    assert public - kernels - refused == {
        "actuate",
        "actuators_of",
        "advance",
        "base_parameters",
        "constrain",
        "contact_dynamics",
        "contact_forces",
        "contact_wrenches",
        "contacts",
        "friction_parameters",
        "equality_forces",
        "inertial_parameters",
        "initial_state",
        "inverse_kinematics",
        "linearize",
        "randomize",
        "rollout",
        "save",
        "sensors",
        "step",
        "stop_at",
        "subtree_masses",
        "tendons_of",
    }


@pytest.mark.some(12)
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_three_agree_with_their_gradients_on_a_floating_tree(name, interpreted):
    mech = floating_tree()
    check_three(name, mech, with_gradients=True, **options_of(name, mech))
    assert len(interpreted) == 2


@pytest.mark.some(30)
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_three_agree_on_the_panda(name, interpreted):
    mech = in_dtype(torch.float64)
    check_three(name, mech, with_gradients=False, **options_of(name, mech))
    assert len(interpreted) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", PARAMETERS)
def test_compiled_kernels_agree_with_their_gradients(name):
    mech = floating_tree()
    check_three(name, mech, with_gradients=True, **options_of(name, mech))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("inverse_dynamics", {"method": "parallel"}),
        ("frame_jacobian", {"reference": "mixed", "relative_to": "body0"}),
        ("frame_acceleration", {"reference": "world", "classical": True, "relative_to": "body0"}),
        ("forward_dynamics", {"method": "composite"}),
        ("linear_model", {"dt": 1e-2}),
        ("linear_model", {"dt": 1e-2, "method": "rk4"}),
        ("operational_space_inertia", {"singular": ("damped", 1e-2)}),
        ("consistent_jacobian_inverse", {"singular": ("damped", 1e-2)}),
    ],
)
def test_options_are_constants_of_kernels_of_their_own(name, options, interpreted):
    mech = floating_tree()
    given = options_of(name, mech) | options
    check_three(name, mech, with_gradients=False, **given)
    assert len(interpreted) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_kernels_call_the_same_samples_singular(dtype, interpreted):
    arm = in_dtype(dtype)
    q, _ = arm.random_state(4, generator=torch.Generator().manual_seed(0))
    outstretched = torch.tensor([1.0, 0, 1, 0, 1, 0, 1], dtype=dtype)
    q = torch.cat([q[:2], q[2:] * outstretched])
    found = ts.fuse(arm).operational_space_inertia(q, ["link7"])
    expected = ts.operational_space_inertia(arm, q, ["link7"])
    assert expected[:2].isfinite().all() and found[2:].isnan().all()
    assert torch.equal(found.isnan(), expected.isnan())
    scale = float(expected[:2].abs().max())
    tolerance = 1e-2 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=tolerance * scale)
    assert len(interpreted) == 1


def refusals():
    for name, row in ROWS.items():
        for option, rule in row.refuses.items():
            for value, reason in rule.items() if isinstance(rule, dict) else [(None, rule)]:
                yield pytest.param(name, option, value, reason, id=f"{name}-{option}-{value}")


@pytest.mark.parametrize(("name", "option", "value", "reason"), [*refusals()])
def test_what_has_no_kernel_is_refused_by_name_with_the_reason(name, option, value, reason):
    mech = floating_tree()
    row, given = ROWS[name], options_of(name, mech)
    if option:
        given[option] = torch.zeros(mech.num_bodies, dtype=torch.int64) if value is None else value
    g = torch.Generator().manual_seed(5)
    states = [x for x in row.tensors if x in row.required]
    given |= {x: torch.zeros(1) if x in ("qs", "qds") else sample(mech, x, (), g) for x in states}
    with pytest.raises(FusedError) as caught:
        getattr(ts.fuse(mech), name)(**given)
    what, why, instead = caught.value.what, caught.value.why, caught.value.advice
    assert f"{name} has no kernel" in what and option in what and why == reason
    assert f"ts.{name}(fast.mechanism(), ...)" in instead


def test_a_call_that_does_not_fit_is_refused_as_the_functions_own():
    mech = floating_tree()
    q, _ = mech.random_state()
    for given in (ts.Dynamics(mech), ts.fuse(mech)):
        for args, options in (((), {}), ((q, q), {}), ((q,), {"q": q}), ((q,), {"qdd": q})):
            with pytest.raises(TypeError, match="argument"):
                given.mass_matrix(*args, **options)


def test_an_option_given_as_a_tensor_is_refused_not_frozen():
    mech = floating_tree()
    (q, _), frames = mech.random_state(), mech.frame_names[-1:]
    with pytest.raises(FusedError, match="rank_tolerance of operational_space_inertia"):
        ts.fuse(mech).operational_space_inertia(q, frames, rank_tolerance=torch.tensor(1e-9))


def test_fusing_traces_and_compiles_nothing(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("asked for by nobody")

    for work in ("trace", "build_kernel", "load_kernel"):
        monkeypatch.setattr(traced, work, never)
    assert ts.fuse(floating_tree()).fused_methods == ts.fused.FusedMechanism.fused_methods


def test_inertial_parameters_of_kernels_are_those_of_the_inputs():
    mech = floating_tree()
    mass = (2 * mech.mass).requires_grad_()
    fast = ts.fuse(mech, inputs=("mass",)).replace(mass=mass)
    found = fast.inertial_parameters()
    torch.testing.assert_close(found, ts.inertial_parameters(mech.replace(mass=mass)))
    assert torch.autograd.grad(found.sum(), mass)[0].isfinite().all()


def test_calls_by_names_compile_as_kernels_too(interpreted):
    mech = floating_tree()
    fast, g = ts.fuse(mech), torch.Generator().manual_seed(0)
    states = {name: sample(mech, name, (2,), g) for name in ("qdd", "q", "qd")}
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda states: fast.inverse_dynamics(**states), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(states), ts.inverse_dynamics(mech, **states))
    assert interpreted
    torch._dynamo.reset()
