"""A layer has the values and gradients of its mechanism under all operations of torch on modules."""

import copy
import io
import pickle
import re

import pytest
import torch
from hypothesis import given
from torch.func import functional_call, stack_module_state, vmap
from torch.testing import assert_close

import torchsko as ts
from tests.states import usual_state
from tests.strategies import KINDS, mechanisms, random_mechanism
from torchsko.learn import Bounded, Free, InertiaLogCholesky, Positive, Rotation
from torchsko.mechanism.fields import PARAMETERS


def everything(mech):
    """A parametrization for every learnable parameter."""
    learn = {body: InertiaLogCholesky() for body in mech.body_names}
    for joint in mech.joint_names:
        learn |= {f"{joint}.{field}": Positive() for field in ("damping", "friction")}
        learn |= {f"{joint}.position": Free(), f"{joint}.rotation": Rotation()}
        learn[f"{joint}.armature"] = Positive(init=0.1)
    return learn | {"gravity": Free()}


def branched(dtype=torch.float64):
    """A tree with one joint of each type."""
    return random_mechanism(list(KINDS), [-1, 0, 0, 1], seed=3).to(dtype)


def step_all(layer, size=0.1, seed=0):
    """Change all parameters."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for theta in layer.parameters():
            theta.add_(size * torch.randn(theta.shape, generator=g, dtype=theta.dtype))
    return layer


CHARTS = {
    "body1": InertiaLogCholesky(),
    "body2.mass": Positive(),
    "body2.com": Free(),
    "joint1.damping": Bounded(0.0, 5.0, init=1.0),
    "joint2.friction": Positive(init=0.3),
    "joint1.rotation": Rotation(),
    "gravity": Free(),
}


def test_a_fresh_layer_has_zero_offsets_only():
    for mech, learn in ((branched(), CHARTS), (ts.load(ts.robots.panda), None)):
        layer = ts.Dynamics(mech, learn or everything(mech))
        assert all(not p.any() for p in layer.parameters())


@pytest.mark.parametrize("target", CHARTS)
def test_weight_decay_without_gradient_moves_a_learned_value_to_nominal_and_never_beyond(target):
    nominal = ts.Dynamics(branched(), {target: CHARTS[target]})
    layer = step_all(copy.deepcopy(nominal), size=0.5)
    (key,) = layer.learned
    (theta,) = layer.parameters()
    goal, before = nominal.learned[key]().detach(), layer.learned[key]().detach()
    optimizer = torch.optim.AdamW([theta], lr=0.1, weight_decay=1.0)
    far = distances(layer.mechanism(), nominal.mechanism())
    for _ in range(150):
        theta.grad = torch.zeros_like(theta)
        optimizer.step()
        now = layer.learned[key]().detach()
        near = distances(layer.mechanism(), nominal.mechanism())
        assert (near <= far * (1 + 1e-12) + 1e-14).all()
        if not isinstance(CHARTS[target], InertiaLogCholesky | Rotation):
            assert ((now - goal) * (before - goal) >= 0).all()
        far = near
    assert_close(now, goal, rtol=1e-5, atol=1e-5)


def distances(mech, other):
    """Divergence of inertias, angle between orientations, and absolute differences of other fields."""
    turned = (mech.joint_rotation * other.joint_rotation).sum((-2, -1))
    parts = [ts.learn.inertia_divergence(mech, other), 3 - turned]
    parts += [
        (getattr(mech, f) - getattr(other, f)).abs() for f in ("damping", "friction", "gravity")
    ]
    return torch.cat([x.detach().flatten() for x in parts])


def test_a_value_that_is_assigned_is_the_value_that_is_returned():
    layer = ts.Dynamics(branched(), CHARTS)
    goal = step_all(copy.deepcopy(layer))
    for key, value in layer.learned.items():
        value.assign(goal.learned[key]())
        assert_close(value(), goal.learned[key](), rtol=1e-12, atol=1e-12)
    with pytest.raises(ts.MechanismError, match="initial value"):
        layer.learned["body2/mass"].assign(torch.tensor(-1.0, dtype=torch.float64))


@given(mechanisms(armature=True))
def test_a_fresh_layer_reproduces_its_mechanism(mech):
    learn = everything(mech) | {f"{joint}.armature": Positive() for joint in mech.joint_names}
    there = ts.Dynamics(mech, learn).mechanism()
    for name in PARAMETERS:
        assert_close(getattr(there, name), getattr(mech, name), rtol=1e-12, atol=1e-12)
    q, qd, tau = usual_state(mech, 2)
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    assert_close(
        ts.forward_dynamics(there, q, qd, tau), qdd, rtol=1e-9, atol=1e-9 * qdd.abs().max()
    )


def test_a_layer_that_learns_nothing_is_its_mechanism_exactly():
    mech = branched()
    layer = ts.Dynamics(mech)
    q, qd, tau = usual_state(mech, 3)
    assert not list(layer.parameters())
    assert torch.equal(layer(q, qd, tau), ts.forward_dynamics(mech, q, qd, tau))
    assert torch.equal(layer.inverse_dynamics(q, qd, tau), ts.inverse_dynamics(mech, q, qd, tau))
    assert torch.equal(layer.mass_matrix(q), ts.mass_matrix(mech, q))
    assert torch.equal(layer.bias_force(q, qd), ts.bias_force(mech, q, qd))


@given(mechanisms())
def test_wherever_its_parameters_go_the_mechanism_stays_physical(mech):
    there = step_all(ts.Dynamics(mech, everything(mech)), size=1.5).mechanism()
    second = there.inertia.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] / 2
    second = second * torch.eye(3, dtype=mech.dtype) - there.inertia
    assert (torch.linalg.eigvalsh(second) > 0).all() and (there.mass > 0).all()
    for field in ("damping", "friction", "armature"):
        assert (getattr(there, field) > 0).all()
    q, _, _ = usual_state(mech)
    assert (torch.linalg.eigvalsh(ts.mass_matrix(there, q)) > 0).all()


def test_only_what_is_named_changes():
    mech = branched()
    learn = {"body2": InertiaLogCholesky(), "joint1.damping": Positive(), "body0.com": Free()}
    there = step_all(ts.Dynamics(mech, learn)).mechanism()
    body = mech.body_index
    changed = {
        "mass": {body("body2")},
        "inertia": {body("body2")},
        "com": {body("body0"), body("body2")},
        "damping": {mech.dof_slice("joint1").start},
    }
    for name in PARAMETERS:
        old, new = getattr(mech, name), getattr(there, name)
        different = {
            k for k, pair in enumerate(zip(old, new, strict=True)) if not torch.equal(*pair)
        }
        assert different == changed.get(name, set()), name
    assert not there.has_armature


def test_gradients_are_those_of_the_mechanism_s_own_tensors():
    mech = branched()
    layer = step_all(ts.Dynamics(mech, everything(mech)))
    q, qd, tau = usual_state(mech, 4)

    there = layer.mechanism()
    leaves = {name: getattr(there, name).detach().requires_grad_() for name in PARAMETERS}
    loss = ts.forward_dynamics(mech.replace(**leaves), q, qd, tau).square().mean()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    # The chain rule through mechanism() alone, from the gradients of its tensors.
    pairs = [(getattr(there, name), g) for name, g in zip(leaves, grads, strict=True)]
    pairs = [(tensor, g) for tensor, g in pairs if tensor.requires_grad]
    expected = torch.autograd.grad(
        [tensor for tensor, _ in pairs], list(layer.parameters()), [g for _, g in pairs]
    )
    layer(q, qd, tau).square().mean().backward()
    for (name, theta), g in zip(layer.named_parameters(), expected, strict=True):
        assert theta.grad is not None, name
        # Dynamics does not depend on the pose of the whole robot.
        assert (theta.grad.abs().max() > 0) == ("joint0/position" not in name), name
        assert_close(theta.grad, g, rtol=1e-9, atol=1e-12)


def test_gradients_to_log_cholesky_numbers_pass_gradcheck():
    mech = random_mechanism(["revolute", "spherical"], [-1, 0], seed=1)
    layer = ts.Dynamics(mech, {"body1": InertiaLogCholesky(), "joint0.friction": Positive()})
    names, thetas = zip(*layer.named_parameters(), strict=True)
    q, qd, tau = usual_state(mech)

    def loss(*thetas):
        return functional_call(layer, dict(zip(names, thetas, strict=True)), (q, qd, tau))

    leaves = tuple(theta.detach().clone().requires_grad_() for theta in thetas)
    assert torch.autograd.gradcheck(loss, leaves, check_forward_ad=True)


def test_the_mechanism_given_is_never_written_to():
    mech = branched()
    before = {name: getattr(mech, name).clone() for name in PARAMETERS}
    layer = step_all(ts.Dynamics(mech, everything(mech)))
    other = ts.Dynamics(random_mechanism(list(KINDS), [-1, 0, 0, 1], seed=9), everything(mech))
    layer.load_state_dict(other.state_dict())
    assert all(torch.equal(getattr(mech, name), before[name]) for name in PARAMETERS)


def test_a_state_dict_carries_the_whole_robot_and_loads_with_weights_only():
    learn = everything(branched())
    trained = step_all(ts.Dynamics(branched(), learn))
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    other = ts.Dynamics(random_mechanism(list(KINDS), [-1, 0, 0, 1], seed=9), learn)
    other.load_state_dict(torch.load(file, weights_only=True))
    for name in PARAMETERS:
        assert torch.equal(getattr(other.mechanism(), name), getattr(trained.mechanism(), name))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_equal_and_independent(copied):
    mech = branched()
    layer = step_all(ts.Dynamics(mech, everything(mech)))
    next(layer.parameters()).requires_grad_(False)
    twin = copied(layer)
    q, qd, tau = usual_state(mech, 2)
    before = layer(q, qd, tau)
    assert torch.equal(twin(q, qd, tau), before)
    assert list(twin.state_dict()) == list(layer.state_dict())
    assert [p.requires_grad for p in twin.parameters()] == [
        p.requires_grad for p in layer.parameters()
    ]
    step_all(twin, seed=5)
    assert torch.equal(layer(q, qd, tau), before)
    twin(q, qd, tau).sum().backward()
    assert all(p.grad is None for p in layer.parameters())


def test_functional_call_replaces_parameters():
    mech = branched()
    layer = ts.Dynamics(mech, everything(mech))
    moved = step_all(copy.deepcopy(layer))
    args = usual_state(mech, 2)
    called = functional_call(layer, dict(moved.named_parameters()), args)
    assert torch.equal(called, moved(*args))
    assert not torch.allclose(called, layer(*args))


@pytest.mark.parametrize("skeleton", [lambda x: x, lambda x: copy.deepcopy(x).to("meta")])
def test_vmap_over_stacked_parameters_is_a_loop_over_layers(skeleton):
    mech = branched()
    layers = [step_all(ts.Dynamics(mech, everything(mech)), seed=s) for s in range(3)]
    params, buffers = stack_module_state(layers)
    base = skeleton(layers[0])
    args = usual_state(mech, 2)

    def one(params, buffers):
        return functional_call(base, (params, buffers), args)

    expected = torch.stack([layer(*args) for layer in layers])
    assert_close(vmap(one)(params, buffers), expected, rtol=1e-10, atol=1e-10)


def test_to_converts_and_moves_everything():
    mech = branched()
    layer = ts.Dynamics(mech, everything(mech)).to(torch.float32)
    q, qd, tau = usual_state(branched(torch.float32), 2)
    out = layer(q, qd, tau)
    assert out.dtype == torch.float32 == layer.mechanism().dtype
    expected = ts.Dynamics(mech, everything(mech))(q.double(), qd.double(), tau.double())
    assert_close(out.double(), expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    assert layer.double()(q.double(), qd.double(), tau.double()).dtype == torch.float64


def test_a_layer_without_fluid_shapes_computes_no_fluid_where_values_are_unknown(monkeypatch):
    layer = ts.Dynamics(branched(), {"medium": ts.learn.Positive(init=1.0)})
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not layer.mechanism().has_fluid


@pytest.mark.cuda
def test_to_cuda_moves_index_tensors_too():
    mech = branched()
    layer = ts.Dynamics(mech, everything(mech)).to("cuda")
    args = usual_state(mech, 2)
    assert_close(layer(*(x.cuda() for x in args)).cpu(), ts.Dynamics(mech, everything(mech))(*args))


def test_parameters_of_many_robots_learn_together():
    mech = branched()
    scale = torch.linspace(0.5, 1.5, 5, dtype=mech.dtype)
    fleet = mech.replace(mass=scale[:, None] * mech.mass)
    layer = ts.Dynamics(fleet, {"body1": InertiaLogCholesky(), "joint1.damping": Positive()})
    assert [tuple(p.shape) for p in layer.parameters()] == [(5, 10), (1,)]
    q, qd, tau = usual_state(mech, 5)
    assert_close(layer(q, qd, tau), ts.forward_dynamics(fleet, q, qd, tau), rtol=1e-9, atol=1e-9)


@pytest.mark.nightly
def test_the_layer_compiles_in_one_graph():
    mech = random_mechanism(["revolute", "revolute"], [-1, 0], seed=1)
    layer = ts.Dynamics(mech, {"body1": InertiaLogCholesky(), "joint0.damping": Positive()})
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    args = usual_state(mech, 2)
    assert_close(compiled(*args), layer(*args), rtol=1e-10, atol=1e-10)
    expected = torch.autograd.grad(layer(*args).square().sum(), list(layer.parameters()))
    actual = torch.autograd.grad(compiled(*args).square().sum(), list(layer.parameters()))
    assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_learned_armature_makes_a_massless_hinge_movable():
    builder = ts.MechanismBuilder("whip").link("handle", mass=1.0, com=(0.0, 0.0, -0.2))
    builder.joint("wrist", "revolute", child="handle", axis=(1.0, 0.0, 0.0)).link("thread")
    mech = builder.joint("tip", "revolute", child="thread", parent="handle", axis=(1, 0, 0)).build()
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))
    with pytest.raises(ts.MechanismError, match="'tip'"):
        ts.Dynamics(mech, {"wrist.damping": Positive(init=0.1)})(q, qd, qd)
    learning = ts.Dynamics(mech, {"tip.armature": Positive(init=0.1)})
    M = learning.mass_matrix(q)
    expected = torch.linalg.solve(M, qd - learning.bias_force(q, qd))
    assert_close(learning(q, qd, qd), expected)


@pytest.mark.parametrize("name", ["a.b", "a%2Eb", "type", "parameters"])
def test_any_name_of_a_body_can_be_learned(name):
    builder = ts.MechanismBuilder().link(name, mass=1.0, inertia=torch.eye(3).tolist())
    mech = builder.joint("forward", "revolute", child=name, damping=1.0).build()
    layer = ts.Dynamics(mech, {name: InertiaLogCholesky(), "forward.damping": Positive()})
    assert len(list(layer.parameters())) == 2
    assert_close(layer.mechanism().inertia, mech.inertia)


@pytest.mark.parametrize(
    ("target", "chart", "words"),
    [
        ("joint4.damping", Positive, ["'joint4.damping'", "with parentheses"]),
        ("link5", InertiaLogCholesky, ['{"link5": ts.learn.InertiaLogCholesky()}']),
        ("link9", InertiaLogCholesky(), ["'link9'", "'link7'"]),
        ("joint4.dampping", Positive(), ["'joint4.dampping'", "'joint4.damping'"]),
        ("link5.damping", Positive(), ["'link5.damping'", "'joint5.damping'"]),
        ("link5.inertia", Positive(), ["'link5.inertia'", "InertiaLogCholesky()"]),
        ("joint4.damping", InertiaLogCholesky(), ["InertiaLogCholesky", "Positive()"]),
        ("link5.mass", InertiaLogCholesky(), ["'link5.mass'", '{"link5": ...}']),
        ("link5", Positive(), ["'link5'", "InertiaLogCholesky()"]),
        ("joint4.damping", Free(), ["negative", "Positive()"]),
        ("joint4.damping", Bounded(-1.0, 1.0), ["negative", "Bounded(0.0"]),
        ("joint4.rotation", Free(), ["'joint4.rotation'", "Rotation()"]),
        ("gravity", Rotation(), ["'gravity'", "Free()"]),
        ("joint4.armature", Positive(), ["'joint4.armature'", "Positive(init=0.01)"]),
        ("joint4.friction", Bounded(1.0, 2.0), ["'joint4.friction'", "0.6397"]),
    ],
)
def test_what_cannot_be_learned_is_refused_by_name(target, chart, words):
    with pytest.raises(ts.MechanismError) as caught:
        ts.Dynamics(ts.load(ts.robots.panda), {target: chart})
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    "name",
    ["link5", "joint4.damping", "joint2.rotation", "joint3.position", "link1.com", "gravity"],
)
def test_learn_without_parametrizations_is_refused_with_what_does_for_that_target(name):
    mech = ts.load(ts.robots.panda)
    with pytest.raises(ts.MechanismError, match="no parametrizations") as error:
        ts.Dynamics(mech, learn=[name])
    typed = re.search(r"Pass learn=(.*)\.$", error.value.advice)
    assert [*ts.Dynamics(mech, learn=eval(typed[1], {"ts": ts})).parameters()]
    with pytest.raises(ts.MechanismError, match=r"(?s)named 'damping'.*joint7\.damping"):
        ts.Dynamics(mech, learn="damping")


def test_two_parametrizations_of_one_number_are_refused():
    learn = {"link5": InertiaLogCholesky(), "link5.mass": Positive()}
    with pytest.raises(ts.MechanismError, match=r"'link5' and 'link5.mass' both set the mass"):
        ts.Dynamics(ts.load(ts.robots.panda), learn)


def test_a_massless_or_flat_body_is_refused_by_name():
    mech = ts.load(ts.robots.panda)
    keep = torch.ones_like(mech.mass).index_fill(0, torch.tensor(4), 0.0)
    for bad in (mech.replace(mass=keep * mech.mass),
                mech.replace(inertia=keep[:, None, None] * mech.inertia)):  # fmt: skip
        with pytest.raises(ts.MechanismError, match="'link5' cannot be learned"):
            ts.Dynamics(bad, {"link5": InertiaLogCholesky()})
