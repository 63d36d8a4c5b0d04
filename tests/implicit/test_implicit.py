"""Implicit derivatives equal those of the solver, for forward dynamics by all parameters and for roots."""

from __future__ import annotations

from typing import get_type_hints

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import torchsko as ts
from tests.strategies import (
    ALL_KINDS,
    mechanisms,
    random_mechanism,
    with_flexible_link,
    with_fluid,
)
from torchsko import algorithms
from torchsko.implicit.equation import implicit
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism


def by_tape(mech: ts.Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor) -> Tensor:
    """Forward dynamics whose operations autograd records."""
    model = ts.assemble(mech, q, qd, f_ext)
    return algorithms.forward_dynamics(model, tau - ts.passive_force(mech, q, qd))


def problem(mech: ts.Mechanism, batch: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    q, qd = mech.random_state(*batch, generator=g)
    tau, f_ext = (
        torch.randn(*batch, *shape, generator=g, dtype=torch.float64)
        for shape in ((mech.num_dof,), (mech.num_bodies, 6))
    )
    return [q, qd, tau, f_ext, *(getattr(mech, name) for name in PARAMETERS)]


def call(function, mech: ts.Mechanism, *tensors: Tensor) -> Tensor:
    q, qd, tau, f_ext, *parameters = tensors
    changed = mech.replace(
        has_armature=mech.has_armature, **dict(zip(PARAMETERS, parameters, strict=True))
    )
    return function(changed, q, qd, tau, f_ext)


def worst(x: tuple[Tensor, ...], y: tuple[Tensor, ...]) -> float:
    pairs = [
        (a, b) for a, b in zip(x, y, strict=True) if b.numel()
    ]  # no joint may have a parameter
    return max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in pairs)


@given(mechanisms(max_bodies=4))
@settings(max_examples=10)
def test_gradients_to_states_forces_and_parameters_equal_the_tapes(mech: ts.Mechanism) -> None:
    inputs = [x.clone().requires_grad_() for x in problem(mech, (2,))]
    weight = torch.arange(1.0, mech.num_dof + 1, dtype=torch.float64)
    ours, tapes = (
        torch.autograd.grad((call(f, mech, *inputs) * weight).sum(), inputs, materialize_grads=True)
        for f in (ts.forward_dynamics, by_tape)
    )
    assert worst(ours, tapes) < 1e-10


@given(mechanisms(max_bodies=4))
@settings(max_examples=10)
def test_forward_mode_equals_the_tapes(mech: ts.Mechanism) -> None:
    inputs = problem(mech, ())
    tangents = tuple(torch.randn_like(x) for x in inputs)
    ours, tapes = (
        torch.func.jvp(lambda *x, f=f: call(f, mech, *x), tuple(inputs), tangents)[1]
        for f in (ts.forward_dynamics, by_tape)
    )
    assert worst((ours,), (tapes,)) < 1e-10


@pytest.mark.parametrize("outer", [torch.func.jacrev, torch.func.jacfwd])
@pytest.mark.parametrize("inner", [torch.func.jacrev, torch.func.jacfwd])
def test_second_derivatives_equal_the_tapes_in_every_mode(outer, inner) -> None:
    mech = random_mechanism(["spherical", "revolute"], [-1, 0])
    q, qd, tau, f_ext, *_ = problem(mech, ())
    ours, tape = (
        outer(inner(lambda q, f=f: f(mech, q, qd, tau, f_ext)))(q)
        for f in (ts.forward_dynamics, by_tape)
    )
    assert worst((ours,), (tape,)) < 1e-10


def storage_kept(function, *inputs: Tensor) -> tuple[Tensor, int]:
    """A result, and the bytes of distinct storage that autograd saves for the backward pass."""
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        alive.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = function(*inputs)
    return result, sum(kept.values())


def saved_bytes(function, mech: ts.Mechanism, batch: int) -> int:
    inputs = [x.requires_grad_() for x in problem(mech, (batch,))[:3]]
    f_ext = torch.zeros(batch, mech.num_bodies, 6, dtype=torch.float64)
    return storage_kept(function, mech, *inputs, f_ext)[1]


def test_the_backward_keeps_inputs_and_accelerations_only() -> None:
    mech = random_mechanism(["revolute"] * 7, list(range(-1, 6)))
    batch = 64
    # Per sample: q, qd, tau, qdd, the passive force's intermediates (a few vectors), f_ext.
    vectors = 8 * (8 * (mech.num_q + 3 * mech.num_dof) + 6 * mech.num_bodies)
    ours = saved_bytes(ts.forward_dynamics, mech, batch)
    assert ours < batch * vectors
    assert saved_bytes(by_tape, mech, batch) > 5 * ours


def test_the_transpose_of_the_pullback_is_the_forward_derivative() -> None:
    """The VJP is linear in the cotangent; its VJP for a tangent is the JVP."""
    mech = random_mechanism(["revolute", "spherical"], [-1, 0])
    q, qd, tau, *_ = problem(mech, ())
    tangents = tuple(torch.randn_like(x) for x in (q, qd, tau))

    def accelerate(q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
        return ts.forward_dynamics(mech, q, qd, tau)

    pull = torch.func.vjp(accelerate, q, qd, tau)[1]
    (along,) = torch.func.vjp(pull, torch.zeros_like(qd))[1](tangents)
    torch.testing.assert_close(along, torch.func.jvp(accelerate, (q, qd, tau), tangents)[1])


FIELDS = [name for name, kind in get_type_hints(Mechanism).items() if kind is Tensor]
"""Every tensor of a mechanism; a new one is tested without a word."""


def eager_robot() -> tuple[ts.Mechanism, ts.Mechanism]:
    """A mechanism with joints of all kinds, a coupled joint and modes; a function that calls its verbs."""
    parents = [[-1, 0, 1, 1, -1, 4, 2, 4, 7, 3][k % 10] for k in range(len(ALL_KINDS))]
    couplings = {ALL_KINDS.index("helical"): {ALL_KINDS.index("revolute"): 0.7}}
    mech = random_mechanism(list(ALL_KINDS), parents, 4, armature=True, couplings=couplings)
    mech = with_flexible_link(mech, mech.body_names[2])
    mech = with_fluid(mech, (0, 3), torch.Generator().manual_seed(0))
    return mech, mech


def fused_robot() -> tuple[ts.fused.FusedMechanism, ts.Mechanism]:
    """A mechanism with a spring, pitch, coupling, quaternion and modes, with all parameters as inputs."""
    kinds = ["revolute", "helical", "spherical"]
    mech = random_mechanism(kinds, [-1, 0, 0], 4, armature=True, couplings={1: {0: 0.7}})
    mech = with_flexible_link(mech, mech.body_names[2])
    mech = with_fluid(mech, (0, 2), torch.Generator().manual_seed(0))
    return ts.fuse(mech, inputs=FIELDS), mech


CASES = [
    *((eager_robot, batch) for batch in ((), (2,))),
    *(pytest.param((fused_robot, batch), marks=pytest.mark.nightly) for batch in ((), (2,))),
]


@pytest.fixture(
    scope="module", params=CASES, ids=lambda case: f"{case[0].__name__}-{len(case[1])} batch dims"
)
def case(request):
    """Values of all fields, a loss of the accelerations as a function of them, and its gradients."""
    make, batch = request.param
    given, mech = make()
    q, qd, tau, f_ext = problem(mech, (2,))[:4]
    assert qd.all(), "friction is zero at rest"
    weight = torch.arange(1.0, tau.numel() + 1, dtype=torch.float64).reshape(tau.shape)

    def loss(values: dict[str, Tensor], function=ts.forward_dynamics) -> Tensor:
        robot = given if function is ts.forward_dynamics else mech
        return (function(robot.replace(**values), q, qd, tau, f_ext) * weight).sum()

    values = {name: getattr(mech, name) for name in FIELDS}
    values = {name: x.expand(*batch, *x.shape).clone() for name, x in values.items()}
    leaves = {name: x.clone().requires_grad_() for name, x in values.items()}
    found = torch.autograd.grad(loss(leaves), tuple(leaves.values()), materialize_grads=True)
    return values, loss, dict(zip(FIELDS, found, strict=True))


@pytest.mark.some(26)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_has_a_gradient_exactly_where_it_matters(case, field: str) -> None:
    """Gradients equal those of the tape and finite differences, and are zero for fields without effect."""
    values, loss, gradients = case
    value, ours = values[field], gradients[field]
    assert value.numel(), "the robot of this test has no such thing: give it one"
    tape = torch.func.grad(lambda x: loss({**values, field: x}, by_tape))(value)
    pair = ours, tape
    if field == "joint_rotation":
        # Kernels and eager mode continue it differently to matrices that are not rotations.
        pair = tuple(x - value @ (value.mT @ x + x.mT @ value) / 2 for x in pair)
    assert worst(pair[:1], pair[1:]) < 1e-10
    g = torch.Generator().manual_seed(5)
    direction = torch.randn(value.shape, generator=g, dtype=torch.float64)
    near, far = (
        [loss({**values, field: value + sign * h * direction}) for sign in (1, -1)]
        for h in (1e-6, 2e-6)
    )
    difference = (8 * (near[0] - near[1]) - (far[0] - far[1])) / 12e-6  # of fourth order
    scale = 1 + float(near[0].abs()) + float(ours.abs().max())
    assert abs(float(difference - (ours * direction).sum())) < 1e-7 * scale
    assert bool(ours.any()) == bool(near[0] != near[1])


class Root:
    """A x + x^3 = b: its Jacobian A + 3 diag(x^2) is not symmetric, and depends on the solution."""

    def __init__(self, steps: int = 12) -> None:
        self.steps = steps

    def solution(self, *inputs: Tensor) -> Tensor:
        """The root, by Newton's method."""
        x = torch.zeros_like(inputs[1])
        for _ in range(self.steps):
            x = x - self.solve(self.residual(x, *inputs), x, *inputs, transposed=False)
        return x

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The residual A x + x^3 - b."""
        A, b = inputs
        return (A @ x[..., None])[..., 0] + x**3 - b

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """The solution of the linearized equation by a dense factorization."""
        J = inputs[0] + torch.diag_embed(3 * x.square())
        return torch.linalg.solve(J.mT if transposed else J, rhs[..., None])[..., 0]


def root(A: Tensor, b: Tensor) -> Tensor:
    return implicit(Root(), A, b)


def coefficients(*batch: int) -> tuple[Tensor, Tensor]:
    """A with a positive definite symmetric part, so that the root is unique, and b."""
    g = torch.Generator().manual_seed(6)
    A = torch.randn(*batch, 3, 3, generator=g, dtype=torch.float64)
    A = A - A.mT / 2 + 4 * torch.eye(3, dtype=torch.float64)
    b = torch.randn(*batch, 3, generator=g, dtype=torch.float64)
    return A.requires_grad_(), b.requires_grad_()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_root_has_its_derivatives_of_both_orders_in_both_modes(batch) -> None:
    inputs = coefficients(*batch)
    assert torch.autograd.gradcheck(root, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(
        root, inputs, check_fwd_over_rev=True, check_rev_over_rev=True
    )


@pytest.mark.parametrize("outer", [torch.func.jacrev, torch.func.jacfwd])
@pytest.mark.parametrize("inner", [torch.func.jacrev, torch.func.jacfwd])
def test_a_root_s_derivatives_under_vmap_are_those_of_each_sample(outer, inner) -> None:
    A, b = (x.detach() for x in coefficients(3))
    curvature = outer(inner(root, argnums=0), argnums=1)
    each = torch.stack([curvature(*one) for one in zip(A, b, strict=True)])
    torch.testing.assert_close(torch.func.vmap(curvature)(A, b), each, rtol=1e-11, atol=1e-12)
    shared = torch.func.vmap(curvature, (None, 0))(A[0], b)
    torch.testing.assert_close(shared[0], each[0], rtol=1e-11, atol=1e-12)


def test_what_found_a_root_is_not_kept() -> None:
    kept = {}
    for steps in (12, 24):
        A, b = coefficients(50)
        x, kept[steps] = storage_kept(lambda A, b, n=steps: implicit(Root(n), A, b), A, b)
        assert kept[steps] == sum(8 * y.numel() for y in (A, b, x))
    tape = [storage_kept(Root(steps).solution, *coefficients(50))[1] for steps in (12, 24)]
    assert tape[1] > 1.5 * tape[0] > 15 * kept[12]


class DetachedRoot(Root):
    """The equation of `Root` with a solver whose tape has no derivative."""

    def solution(self, *inputs: Tensor) -> Tensor:
        """The root, detached."""
        return super().solution(*inputs).detach()


@pytest.mark.parametrize(
    "derive",
    [
        pytest.param(torch.func.jacrev, marks=pytest.mark.nightly),
        pytest.param(torch.func.jacfwd, marks=pytest.mark.nightly),
        lambda f: torch.func.jacrev(torch.func.jacrev(f)),
        pytest.param(lambda f: torch.func.jacfwd(torch.func.jacrev(f)), marks=pytest.mark.nightly),
    ],
)
def test_a_compiled_root_has_the_derivatives_of_its_equation(derive) -> None:
    A, b = (x.detach() for x in coefficients())

    def derivative(A: Tensor, b: Tensor) -> Tensor:
        return derive(lambda x: implicit(DetachedRoot(), A, x))(b)

    compiled = torch.compile(derivative, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A, b), derivative(A, b), rtol=1e-10, atol=1e-11)
    torch.compiler.reset()


def test_a_compiled_root_in_a_batch_has_gradients() -> None:
    inputs = coefficients(2, 3)
    compiled = torch.compile(
        lambda A, b: implicit(DetachedRoot(), A, b), fullgraph=True, backend="aot_eager"
    )
    found, wanted = (torch.autograd.grad(f(*inputs).sin().sum(), inputs) for f in (compiled, root))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-11)
    torch.compiler.reset()


@pytest.mark.parametrize("outer", [torch.func.jacfwd, torch.func.jacrev])
@pytest.mark.parametrize("inner", [torch.func.jacfwd, torch.func.jacrev])
def test_forward_dynamics_that_is_mapped_has_forward_derivatives(outer, inner):
    """A vmap inside of derivatives, with one argument that is not mapped."""
    arm = ts.load(ts.robots.panda)
    q, qd = arm.random_state(2)
    tau = torch.ones_like(qd[0])

    def batched(q, tau):
        return ts.forward_dynamics(arm, q, qd, tau)

    def mapped(q, tau):
        return torch.vmap(lambda x, v: ts.forward_dynamics(arm, x, v, tau))(q, qd)

    for argnums in (0, 1):
        found, wanted = (inner(f, argnums)(q, tau) for f in (mapped, batched))
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    found, wanted = (outer(inner(lambda q, f=f: f(q, tau).sum()))(q) for f in (mapped, batched))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
