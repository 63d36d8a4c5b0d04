"""A fused mechanism gives what the eager functions give."""

import copy
import math
import pathlib
import subprocess

import pytest
import torch
from hypothesis import given
from torch.autograd import gradcheck, gradgradcheck

import torchsko as ts
from tests.states import usual_state
from tests.strategies import few, mechanisms
from torchsko.errors import CompilerError, FusedError, ShapeError
from torchsko.fused.build import library_cache as build
from torchsko.fused.calls import kernel
from torchsko.fused.functions import fused_function as register
from torchsko.fused.functions import lazy_kernel as traced

FRAMES = ("link7", "link4")


def innovations(mech, q):
    return ts.innovations(ts.assemble(mech, q))


def assert_same(mine, theirs, tolerance=1e-12):
    mine = mine if isinstance(mine, tuple) else (mine,)
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    for x, y in zip(mine, theirs, strict=True):
        assert x.dtype == y.dtype
        scale = float(y.detach().abs().max()) if y.numel() else 1.0
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance * max(scale, 1e-3))


VERBS = {
    "forward_dynamics": lambda ts, m, q, qd, x, f: ts.forward_dynamics(*m, q, qd, x),
    "forward_dynamics, pushed": lambda ts, m, q, qd, x, f: ts.forward_dynamics(*m, q, qd, x, f),
    "inverse_dynamics": lambda ts, m, q, qd, x, f: ts.inverse_dynamics(*m, q, qd, x),
    "inverse_dynamics, pushed": lambda ts, m, q, qd, x, f: ts.inverse_dynamics(*m, q, qd, x, f),
    "bias_force": lambda ts, m, q, qd, x, f: ts.bias_force(*m, q, qd, f),
    "mass_matrix": lambda ts, m, q, qd, x, f: ts.mass_matrix(*m, q),
    "forward_kinematics": lambda ts, m, q, qd, x, f: ts.forward_kinematics(*m, q),
    "frame_pose": lambda ts, m, q, qd, x, f: ts.frame_pose(*m, q, list(FRAMES)),
    "frame_jacobian": lambda ts, m, q, qd, x, f: ts.frame_jacobian(*m, q, FRAMES),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_verbs_agree_with_eager(arm, fast, verb, batch):
    call = VERBS[verb]
    state = usual_state(arm, *batch, wrench=True)
    assert_same(call(fast, (), *state), call(ts, (arm,), *state))


def test_solve_and_logdet_are_those_of_the_innovations(arm, fast):
    q, _, x = usual_state(arm, 5)
    assert_same(fast.solve(q, x), innovations(arm, q).solve(x))
    assert_same(fast.logdet(q), innovations(arm, q).logdet())


@pytest.mark.parametrize("method", ["semi_implicit_euler", "implicit", "rk4"])
def test_a_step_is_a_rollout_of_one_step(arm, fast, method):
    if method != "semi_implicit_euler":
        arm = two_links()
        fast = ts.fuse(arm)
    q, qd, tau = usual_state(arm, 4)
    qs, qds, *_ = ts.rollout(arm, ts.State(q, qd), tau[:, None], steps=1, dt=0.01, method=method)
    assert_same(
        fast.advance(ts.State(q, qd), tau, dt=0.01, method=method)[:2], (qs[:, 1], qds[:, 1])
    )
    dt = torch.full((4,), 0.01, dtype=q.dtype)
    each = fast.advance(ts.State(q, qd), tau, dt=dt, method=method)[:2]
    assert_same(each, (qs[:, 1], qds[:, 1]))


@pytest.mark.parametrize("dt", ["0.01", 0, 0.0, None, math.nan])
def test_a_time_step_that_is_none_is_refused(arm, fast, dt):
    q, qd = arm.random_state(2)
    with pytest.raises(ts.TorchskoError, match=r"^dt is .*\n.*\nPass dt="):
        fast.advance_tensors(q, qd, qd, dt)


def test_states_that_are_no_tensors_are_refused(arm, fast):
    q, qd = arm.random_state(2)
    with pytest.raises(ts.ShapeError, match=r"^q was given as ndarray"):
        fast.advance_tensors(q.numpy(), qd, qd, 1)


def test_states_broadcast(arm, fast):
    q, qd, tau = usual_state(arm, 4)
    assert_same(
        fast.forward_dynamics(q, qd[:1], tau[0]), ts.forward_dynamics(arm, q, qd[:1], tau[0])
    )


@pytest.mark.some(2)
@pytest.mark.parametrize("verb", ["forward_dynamics", "inverse_dynamics, pushed", "mass_matrix"])
def test_gradients_agree_with_eager(arm, fast, verb):
    gradients = []
    for module, first in ((fast, ()), (ts, (arm,))):
        inputs = [x.requires_grad_() for x in usual_state(arm, 3, wrench=True)]
        out = VERBS[verb](module, first, *inputs)
        gradients.append(
            torch.autograd.grad(out.sin().sum(), inputs, allow_unused=True, materialize_grads=True)
        )
    assert_same(gradients[0], gradients[1], 1e-10)


def two_links():
    return (
        ts.MechanismBuilder("two links")
        .link("upper", mass=1.0, com=[0.1, 0.2, -0.3], inertia=[[0.2, 0, 0], [0, 0.3, 0], [0, 0, 0.4]])
        .joint("shoulder", "revolute", child="upper", axis=[0, 1, 0])
        .link("lower", mass=0.5, com=[0.2, 0, 0.1], inertia=[[0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
        .joint("elbow", "prismatic", child="lower", parent="upper", axis=[1, 0, 0])
        .build()
    )  # fmt: skip


@pytest.mark.nightly
def test_gradcheck_and_gradgradcheck_of_forward_dynamics():
    mech = two_links()
    fast = ts.fuse(mech)
    q, qd, tau, f_ext = (x.requires_grad_() for x in usual_state(mech, 2, wrench=True))
    assert gradcheck(fast.forward_dynamics, (q, qd, tau, f_ext), check_forward_ad=True)
    assert gradgradcheck(fast.forward_dynamics, (q, qd, tau), check_fwd_over_rev=True)


def test_transforms_of_forward_dynamics_agree():
    mech = two_links()
    fast = ts.fuse(mech)
    q, qd, tau = usual_state(mech, 3)

    def eager(q, qd, tau):
        return ts.forward_dynamics(mech, q, qd, tau)

    for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        mine = torch.func.vmap(transform(fast.forward_dynamics, (0, 1)))(q, qd, tau)
        theirs = torch.func.vmap(transform(eager, (0, 1)))(q, qd, tau)
        for x, y in zip(_leaves(mine), _leaves(theirs), strict=True):
            assert_same(x, y, 1e-10)


def _leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


def test_forward_dynamics_saves_its_inputs_and_its_result(arm, fast):
    inputs = [x.requires_grad_() for x in usual_state(arm, 50, wrench=True)[:3]]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        qdd = fast.forward_dynamics(*inputs)
    assert {x.data_ptr() for x in saved} == {x.data_ptr() for x in (*inputs, qdd)}


def curvature(dynamics, q, qd, tau):
    """A Hessian's product with a vector, by reverse over reverse and by forward over reverse."""
    inputs = [x.detach().requires_grad_() for x in (q, qd, tau)]
    along = [torch.sin(3 * x) for x in (q, qd, tau)]
    gradients = torch.autograd.grad(dynamics(*inputs).cos().sum(), inputs, create_graph=True)
    slope = sum((x * y).sum() for x, y in zip(gradients, along, strict=True))
    reverse = torch.autograd.grad(slope, inputs)
    gradient = torch.func.grad(lambda *x: dynamics(*x).cos().sum(), (0, 1, 2))
    return *reverse, *torch.func.jvp(gradient, (q, qd, tau), tuple(along))[1]


@pytest.mark.nightly
def test_second_derivatives_are_kernels_too(arm, fast, monkeypatch):
    q, qd, tau = usual_state(arm, 7)
    expected = curvature(lambda *x: ts.forward_dynamics(arm, *x), q, qd, tau)
    assert_same(curvature(ts.fuse(arm, order=1).forward_dynamics, q, qd, tau), expected, 1e-9)

    def eager(*inputs):
        raise AssertionError("the source ran instead of a kernel")

    monkeypatch.setattr(register.FusedFunction, "eager", eager)
    assert_same(curvature(fast.forward_dynamics, q, qd, tau), expected, 1e-9)


def test_value_and_gradients_come_from_one_call(arm, fast):
    q, qd, tau = usual_state(arm, 6)
    weights = torch.cos(q)
    qdd, gradients = fast.forward_dynamics_vjp(q, qd, tau, weights)
    expected, pull = torch.func.vjp(lambda *x: ts.forward_dynamics(arm, *x), q, qd, tau)
    assert_same((qdd, *gradients), (expected, *pull(weights)), 1e-10)


def test_a_compiled_simulation_step_agrees_in_value_and_gradient(arm, fast):
    def step(dynamics, q, qd, tau):
        qd = qd + 0.01 * dynamics(q, qd, tau)
        return q + 0.01 * qd, qd

    compiled = torch.compile(
        lambda *x: step(fast.forward_dynamics, *x), fullgraph=True, backend="aot_eager"
    )
    results = []
    for fn in (compiled, lambda *x: step(lambda *y: ts.forward_dynamics(arm, *y), *x)):
        inputs = [x.requires_grad_() for x in usual_state(arm, 3, wrench=True)[:3]]
        out = fn(*inputs)
        results.append((*out, *torch.autograd.grad(out[1].sin().sum(), inputs)))
    assert_same(results[0], results[1], 1e-10)


def test_frames_that_were_never_asked_for_compile_as_eager_operations(arm):
    fast = ts.fuse(arm)
    q = usual_state(arm, 3, wrench=True)[0]
    compiled = torch.compile(
        lambda q: fast.frame_jacobian(q, FRAMES), fullgraph=True, backend="aot_eager"
    )
    assert_same(compiled(q), ts.frame_jacobian(arm, q, FRAMES))


PARAMETERS = ("mass", "com", "inertia", "damping", "armature", "gravity")


@pytest.fixture(scope="module")
def learnable():
    mech = two_links()
    return mech, ts.fuse(mech, inputs=PARAMETERS)


@pytest.mark.parametrize("shared", [True, False])
def test_parameters_as_inputs_have_values_and_gradients(learnable, shared):
    mech, fast = learnable
    states = usual_state(mech, 5, wrench=True)
    g = torch.Generator().manual_seed(1)
    results = []
    for module in (fast, ts):
        values = {}
        for name in PARAMETERS:
            value = getattr(mech, name) + 0.1
            value = value if shared else value.expand(5, *value.shape) * 1.0
            values[name] = value.clone().requires_grad_()
        inputs = [x.clone().requires_grad_() for x in states]
        if module is ts:
            out = ts.forward_dynamics(mech.replace(**values), *inputs)
        else:
            out = fast.replace(**values).forward_dynamics(*inputs)
        weights = torch.randn(out.shape, generator=g.manual_seed(1), dtype=out.dtype)
        leaves = (*inputs, *values.values())
        results.append((out, *torch.autograd.grad((out * weights).sum(), leaves)))
    assert_same(results[0], results[1], 1e-10)


def test_parameters_with_batch_dimensions_are_inputs_unasked():
    mech = two_links()
    mech = mech.replace(mass=mech.mass * torch.tensor([[1.0], [2.0], [3.0]], dtype=mech.dtype))
    q, qd, tau = usual_state(mech, 3)
    assert_same(ts.fuse(mech).forward_dynamics(q, qd, tau), ts.forward_dynamics(mech, q, qd, tau))


def test_gradients_that_constants_would_lose_are_refused():
    mech = two_links()
    learned = mech.replace(mass=mech.mass.clone().requires_grad_())
    with pytest.raises(FusedError, match="mass"):
        ts.fuse(learned)
    with pytest.raises(FusedError, match="inputs="):
        ts.fuse(mech).replace(mass=mech.mass)
    with pytest.raises(FusedError, match="damping"):
        ts.fuse(mech, inputs=("dampning",))


def test_float32_agrees_to_single_precision(arm):
    mech = arm.to(torch.float32)
    q, qd, tau = usual_state(mech, 50)
    fast = ts.fuse(mech)
    double = ts.forward_dynamics(arm, q.double(), qd.double(), tau.double())
    assert_same(fast.forward_dynamics(q, qd, tau), double.float(), 1e-5)
    with pytest.raises(ShapeError, match="float64"):
        fast.forward_dynamics(q.double(), qd.double(), tau.double())


def test_what_was_built_before_is_neither_traced_nor_compiled_again(arm, monkeypatch):
    q, qd, tau = usual_state(arm, 4)
    first = ts.fuse(arm).forward_dynamics_vjp(q, qd, tau, q)
    monkeypatch.setattr(traced, "trace", None)
    monkeypatch.setattr(build, "compile_library", None)
    again = ts.fuse(ts.load(ts.robots.panda)).forward_dynamics_vjp(q, qd, tau, q)
    assert torch.equal(first[0], again[0])
    heavier = ts.fuse(arm.replace(mass=1.1 * arm.mass))
    with pytest.raises(TypeError, match="NoneType"):
        heavier.forward_dynamics(q, qd, tau)


def test_functions_of_this_package_are_not_traced_again_and_those_of_users_are(arm, monkeypatch):
    q = usual_state(arm, 4)[0]

    def through_verb(mech, q):
        return ts.mass_matrix(mech, q)

    first = [ts.fuse(fn, arm)(q) for fn in (ts.mass_matrix, through_verb)]
    monkeypatch.setattr(traced, "trace", None)
    again = ts.fuse(ts.mass_matrix, ts.load(ts.robots.panda))
    assert torch.equal(again(q), first[0])
    with pytest.raises(TypeError, match="NoneType"):
        ts.fuse(through_verb, arm)(q)


def kinetic_energy(mech, q, qd):
    return 0.5 * (qd * (ts.mass_matrix(mech, q) @ qd[..., None])[..., 0]).sum(-1)


def test_any_function_of_a_mechanism_can_be_fused(arm):
    q, qd, *_ = usual_state(arm, 2, 3)
    energy = ts.fuse(kinetic_energy, arm)
    assert_same(energy(q, qd), kinetic_energy(arm, q, qd))
    assert_same(energy(qd=qd, q=q[0, 0]), kinetic_energy(arm, q[0, 0], qd))
    gradient = ts.fuse(torch.func.grad(kinetic_energy, 1), arm)
    theirs = torch.autograd.grad(kinetic_energy(arm, q.requires_grad_(), qd).sum(), q)
    assert_same(gradient(q.detach(), qd), theirs)


def test_results_of_a_function_keep_their_types(arm):
    def limits(mech, q, qd):
        fast = qd.abs() > 1
        return fast, fast.sum(-1), torch.where(fast, q, qd).float(), q * qd

    q, qd, *_ = usual_state(arm, 4)
    fused = ts.fuse(limits, arm)
    for mine in (fused, ts.fuse(limits, arm), copy.deepcopy(fused), torch.func.vmap(fused)):
        found, expected = mine(q, qd), limits(arm, q, qd)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    leaf = q.clone().requires_grad_()
    fast, _, chosen, _ = fused(leaf, qd)
    (gradient,) = torch.autograd.grad(chosen.sum(), leaf)
    torch.testing.assert_close(gradient, fast.to(q.dtype))


@pytest.mark.some(1)
@pytest.mark.parametrize("method", ["semi_implicit_euler", "rk4"])
def test_steps_under_feedback_are_one_kernel(method):
    mech = two_links()

    def controlled(mech, q, qd, target):
        def pd(t, q, qd):
            return 40.0 * ts.difference(mech, q, target) - 3.0 * qd

        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), pd, steps=2, dt=0.01, method=method)
        return qs[..., -1, :], qds[..., -1, :]

    q, qd, target, _ = (x.requires_grad_() for x in usual_state(mech, 5, wrench=True))
    fused = ts.fuse(controlled, mech, shapes={"target": (mech.num_q,)})
    mine, theirs = fused(q, qd, target), controlled(mech, q, qd, target)
    assert_same(mine, theirs)
    pairs = [torch.autograd.grad((x[0].sum(), x[1].sin().sum()), (q, qd, target))
             for x in (mine, theirs)]  # fmt: skip
    assert_same(*pairs, 1e-10)


@pytest.mark.nightly
def test_nested_results_optional_tensors_and_constants_pass(arm):
    def both(mech, q, qd, tau, f_ext=None, *, frames=("link7",), scale=None):
        qdd = ts.forward_dynamics(mech, q, qd, tau, f_ext)
        return {
            "qdd": qdd if scale is None else qdd * scale,
            "pose": ts.frame_pose(mech, q, frames),
        }

    q, qd, tau, f_ext = usual_state(arm, 4, wrench=True)
    fused = ts.fuse(both, arm, shapes={"scale": ()})
    for options in (
        {},
        {"f_ext": f_ext},
        {"frames": ["link4"]},
        {"scale": torch.tensor(2.0, dtype=q.dtype)},
    ):
        mine, theirs = fused(q, qd, tau, **options), both(arm, q, qd, tau, **options)
        assert_same(mine["qdd"], theirs["qdd"])
        assert isinstance(mine["pose"], ts.Pose)
        assert_same(tuple(mine["pose"]), tuple(theirs["pose"]))
    with pytest.raises(FusedError, match="shapes="):
        ts.fuse(both, arm)(q, qd, tau, scale=q)
    with pytest.raises(FusedError, match="mech"):
        ts.fuse(both)


@pytest.fixture
def uncompiled(arm, monkeypatch):
    def none(*args):
        raise CompilerError("no C++ compiler")

    monkeypatch.setattr(kernel, "find_toolchain", none)
    return ts.fuse(arm)


def test_without_a_compiler_results_are_the_same(arm, uncompiled):
    q, qd, tau = usual_state(arm, 4)
    with pytest.warns(UserWarning, match=r"no kernel of forward_dynamics\("):
        assert_same(uncompiled.forward_dynamics(q, qd, tau), ts.forward_dynamics(arm, q, qd, tau))


@few
@given(mechanisms())
def test_random_mechanisms_agree(mech):
    fast = ts.fuse(mech)
    q, qd, x, f_ext = usual_state(mech, 3, wrench=True)
    theirs = ts.inverse_dynamics(mech, q, qd, x, f_ext)
    assert_same(fast.inverse_dynamics(q, qd, x, f_ext), theirs, 1e-11)
    assert_same(fast.mass_matrix(q), ts.mass_matrix(mech, q), 1e-11)
    if not mech.singular_joints:
        theirs = ts.forward_dynamics(mech, q, qd, x, f_ext)
        assert_same(fast.forward_dynamics(q, qd, x, f_ext), theirs, 1e-8)


def test_the_warning_without_a_compiler_points_at_the_line_that_called(arm, uncompiled):
    q, qd, tau = usual_state(arm, 4)
    tau.requires_grad_()
    with pytest.warns(UserWarning, match="eager") as told:
        qdd = uncompiled.forward_dynamics(q, qd, tau)
        qdd.sum().backward()
    assert [warning.filename for warning in told] == [__file__] * 2


def test_a_fused_mechanism_goes_to_another_type_and_a_layer_goes_itself(arm):
    single = ts.fuse(arm).to(torch.float32)
    q, qd = arm.to(torch.float32).random_state(3)
    found = single.forward_dynamics(q, qd, qd)
    assert found.dtype == torch.float32
    expected = ts.forward_dynamics(arm, q.double(), qd.double(), qd.double())
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    with pytest.raises(ts.FusedError, match=r"Type ts\.fuse\(layer\.to"):
        ts.fuse(ts.Dynamics(arm)).to(torch.float32)


def test_constants_of_other_types_have_other_kernels(arm):
    """1, 1.0 and True are equal in Python; nan differs from itself."""

    def scaled(mech, q, factor):
        return q + 1 if factor is True else q * factor * isinstance(factor, int)

    fast, q = ts.fuse(scaled, arm), arm.random_state(2)[0]
    for factor in (1, 1.0, True, 2, 1):
        torch.testing.assert_close(fast(q, factor=factor), scaled(arm, q, factor))
    count = len(fast._made)
    for _ in range(3):
        assert fast(q, factor=math.nan).isnan().all()
    assert len(fast._made) == count + 1


def test_kernels_of_a_second_object_start_no_compiler_and_read_no_source(arm, monkeypatch):
    q, qd = arm.random_state(2)
    first = ts.fuse(arm).inverse_dynamics(q, qd, qd)
    reads = []
    monkeypatch.setattr(subprocess, "run", reads.append)
    monkeypatch.setattr(subprocess, "Popen", reads.append)
    read_bytes = pathlib.Path.read_bytes

    def watched(path):
        if path.suffix in (".py", ".hpp", ".cpp", ".cuh"):
            reads.append(path)
        return read_bytes(path)

    monkeypatch.setattr(pathlib.Path, "read_bytes", watched)
    second = ts.fuse(arm.replace()).inverse_dynamics(q, qd, qd)
    assert torch.equal(first, second) and not reads
