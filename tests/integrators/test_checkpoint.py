"""Checkpoints change memory only: results agree, or an error is raised."""

from dataclasses import dataclass

import pytest
import torch
from torch import vmap
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jvp, vjp
from torch.utils._python_dispatch import TorchDispatchMode

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.integrators.adaptive_steps import dormand_prince
from torchsko.integrators.binomial import Binomial
from torchsko.integrators.integrators import RK4
from torchsko.integrators.midpoint import ImplicitMidpoint
from torchsko.integrators.step import Integrator

ARM = random_mechanism(["revolute", "spherical"], [-1, 0], seed=5)
Q, QD = ARM.random_state(2, generator=torch.Generator().manual_seed(0))
GAINS = torch.linspace(0.5, 2.0, ARM.num_dof, dtype=ARM.dtype)


def rolled(gains, checkpoint, mech=ARM, control=None):
    """Loss of all states, under a feedback that captures the gains."""
    steering = (lambda t, q, qd: (t - qd) * gains) if control is None else control
    result = ts.rollout(mech, ts.State(Q, QD), steering, steps=5, dt=1e-2, checkpoint=checkpoint)[
        :2
    ]
    return torch.cat(result, -1).square()


LAYING_OUT = (torch.ops.aten.cat.default, torch.ops.aten.empty.memory_format)


class CountComputing(TorchDispatchMode):
    """Counts arithmetic operations, without allocations, views and copies."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.total += not (func.is_view or func in LAYING_OUT)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("stride", [1, 2, 100])
def test_values_and_gradients_to_all_that_was_captured_are_the_same_to_the_bit(stride):
    torch.manual_seed(1)
    policy = torch.nn.Linear(ARM.num_q, ARM.num_dof, dtype=ARM.dtype)
    gains, mass = GAINS.clone().requires_grad_(), ARM.mass.clone().requires_grad_()
    exponential = gains.exp()  # captured, and no leaf

    def noisy(t, q, qd):
        return policy(q) * exponential + 0.1 * torch.randn_like(qd)

    leaves = [gains, mass, *policy.parameters()]
    both = []
    for checkpoint in (None, stride):
        torch.manual_seed(2)
        states = rolled(gains, checkpoint, ARM.replace(mass=mass), noisy)
        both.append((states, *torch.autograd.grad(states.sum(), leaves, retain_graph=True)))
    again = torch.autograd.grad(states.sum(), leaves, retain_graph=True)
    assert all(torch.equal(*x) for x in zip(*both, strict=True))
    assert all(torch.equal(*x) for x in zip(again, both[1][1:], strict=True))


def test_gradients_of_gradients_agree():
    twice = []
    for checkpoint in (None, 2):
        gains = GAINS.clone().requires_grad_()
        (once,) = torch.autograd.grad(rolled(gains, checkpoint).sum(), gains, create_graph=True)
        twice.append(torch.autograd.grad(once.square().sum(), gains))
    torch.testing.assert_close(*twice, rtol=1e-13, atol=1e-15)


def by_series(checkpoint, tau, wrenches, mass, limit, q, **options):
    """Loss of all states under tensor controls."""
    mech = ARM.replace(mass=mass, effort_limit=limit)
    given = {"f_ext": wrenches, "effort": "clamp", "dt": 1e-2, "checkpoint": checkpoint} | options
    return torch.cat(ts.rollout(mech, ts.State(q, QD), tau, steps=5, **given)[:2], -1).square()


def tensors(rows):
    g = torch.Generator().manual_seed(3)
    tau = torch.randn(2, rows, ARM.num_dof, generator=g, dtype=ARM.dtype)
    wrenches = torch.randn(1, rows, ARM.num_bodies, 6, generator=g, dtype=ARM.dtype)
    limit = torch.full_like(ARM.effort_limit, 0.8)
    return [x.clone().requires_grad_() for x in (tau, wrenches, ARM.mass, limit, Q)]


KEPT = pytest.mark.parametrize("kept", [1, 2, 100, Binomial(1), Binomial(3)], ids=str)


@pytest.mark.some(3)
@KEPT
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"method": "rk4", "every": 2}, {"truncate": 2}),
        *({"method": dormand_prince(1e9, 1)}, {"method": ImplicitMidpoint(2)}),
    ],
    ids=["euler", "rk4", "cut", "pair", "midpoint"],
)
def test_values_are_the_same_to_the_bit_and_gradients_but_for_the_order_of_sums(
    kept, rows, options
):
    leaves = tensors(rows)
    both = [by_series(checkpoint, *leaves, **options) for checkpoint in (None, kept)]
    found = [torch.autograd.grad(x.sum(), leaves, retain_graph=True) for x in both]
    again = torch.autograd.grad(both[1].sum(), leaves)
    assert torch.equal(*both)
    assert all(torch.equal(*x) for x in zip(again, found[1], strict=True))
    for mine, theirs in zip(found[1], found[0], strict=True):
        assert (mine - theirs).abs().max() <= 1e-14 * theirs.abs().max()


@pytest.mark.some(3)
@KEPT
def test_second_derivatives_by_all_tensors_agree(kept):
    leaves, twice = tensors(5), []
    for checkpoint in (None, kept):
        end = by_series(checkpoint, *leaves)
        once = torch.autograd.grad(end.sum(), leaves, create_graph=True)
        total = torch.stack([x.square().sum() for x in once]).sum()
        twice.append(torch.autograd.grad(total, leaves))
    for mine, theirs in zip(twice[1], twice[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12 * theirs.abs().max().item())


def test_steps_that_tensors_decide_on_are_one_node_whatever_their_number():
    """The memory of autograd nodes is independent of the batch and is not freed by checkpointing tensors."""

    def nodes(steps, checkpoint, method="semi_implicit_euler"):
        gains = GAINS.clone().requires_grad_()
        states = ts.rollout(
            ARM, ts.State(Q, QD), gains, steps=steps, method=method, checkpoint=checkpoint
        )[:2]
        found, ahead = set(), [x.grad_fn for x in states]
        while ahead:
            node = ahead.pop()
            if node is not None and node not in found:
                found.add(node)
                ahead += [other for other, _ in node.next_functions]
        return len(found)

    assert nodes(8, 4) == nodes(20, 10) == nodes(8, 4, RK4)
    assert nodes(20, None) > nodes(8, None) + 12


def test_checkpointing_costs_one_more_forward_pass():
    def operations(checkpoint, backward=True):
        gains = GAINS.clone().requires_grad_()
        with CountComputing() as count:
            states = rolled(gains, checkpoint)
            if backward:
                states.sum().backward()
        return count.total

    forward = operations(None, backward=False)
    assert operations(2) <= operations(None) + forward


def counting(gains, generator):
    """A law that counts its calls."""
    calls = []

    def law(t, q, qd):
        calls.append(t)
        return -qd * gains * (1 + len(calls) % 3)

    return law


def summing(gains, generator):
    """A law with an internal integral."""
    total = [torch.zeros_like(QD)]

    def law(t, q, qd):
        total.append(total[-1] + 1e-2 * qd)
        return -gains * (qd + total[-1])

    return law


def drawing(gains, generator):
    """A law with noise from a separate generator."""

    def law(t, q, qd):
        return gains * (torch.randn(qd.shape, dtype=qd.dtype, generator=generator) - qd)

    return law


@pytest.mark.parametrize("law", [counting, summing, drawing])
@pytest.mark.parametrize("kept", [2, 100, Binomial(1)], ids=str)
def test_a_law_that_gives_other_forces_when_it_is_called_again_is_refused(law, kept):
    """Gradients would belong to another trajectory: torch counts tensors, but ignores their values."""
    gains = GAINS.clone().requires_grad_()
    states = rolled(gains, kept, control=law(gains, torch.Generator().manual_seed(1)))
    with pytest.raises(
        ts.errors.TorchskoError, match=r"(?s)returned other values.*checkpoint=None"
    ):
        states.sum().backward()


@pytest.mark.filterwarnings("ignore:the rollout of")
def test_states_that_are_not_finite_are_computed_again_as_they_were():
    gains = GAINS.clone().requires_grad_()

    def diverging(t, q, qd):
        return gains * qd * 1e200

    states = rolled(gains, 2, control=diverging)
    assert not states[:, -1].isfinite().all()
    states[:, 0].sum().backward()


def dual(gains, call=lambda gains: rolled(gains, 2)):
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(gains, gains))


def mapped(gains):
    return vmap(lambda gains: rolled(gains, 2))(gains.expand(3, -1))


@pytest.mark.parametrize(
    "transform",
    [
        grad(lambda gains: rolled(gains, 2).sum()),
        jacfwd(lambda gains: rolled(gains, 2)),
        lambda gains: vjp(lambda gains: rolled(gains, 2), gains),
        lambda gains: jvp(lambda gains: rolled(gains, 2), (gains,), (gains,)),
        lambda gains: rolled(gains, 2, control=lambda t, q, qd: grad(lambda v: v.sin().sum())(qd)),
        dual,
        mapped,
        grad(lambda tau: rolled(None, 2, control=tau).sum()),
        jacfwd(lambda tau: rolled(None, 2, control=tau)),
        lambda tau: jvp(lambda tau: rolled(None, 2, control=tau), (tau,), (tau,)),
        lambda tau: dual(tau, lambda tau: rolled(None, 2, control=tau)),
        lambda tau: vmap(lambda tau: rolled(None, 2, control=tau))(tau.expand(3, -1)),
    ],
    ids=[
        *("grad", "jacfwd", "vjp", "jvp", "grad in the control", "dual", "vmap"),
        *("tensor's grad", "tensor's jacfwd", "tensor's jvp", "tensor's dual", "tensor's vmap"),
    ],
)
def test_where_nothing_can_be_computed_again_it_is_refused(transform):
    with pytest.raises(ts.errors.TorchskoError, match=r"(?s)checkpoint.*checkpoint=None"):
        transform(GAINS.clone().requires_grad_())


def test_without_gradients_it_may_be_mapped():
    gains = GAINS * torch.tensor([[1.0], [2.0]], dtype=GAINS.dtype)
    with torch.no_grad():
        costs = [vmap(lambda gains, n=n: rolled(gains, n))(gains) for n in (None, 2)]
    assert torch.equal(*costs)


@pytest.mark.nightly
@pytest.mark.parametrize("kept", [2, Binomial(1)], ids=str)
@pytest.mark.parametrize("control", ["tensor", "function"])
def test_a_checkpointed_rollout_compiles_in_one_graph(kept, control):
    gains = GAINS.clone().requires_grad_()

    def cost(gains):
        return rolled(gains, kept, control=gains if control == "tensor" else None).sum()

    found = [
        call(gains) for call in (cost, torch.compile(cost, fullgraph=True, backend="aot_eager"))
    ]
    slopes = [torch.autograd.grad(x, gains)[0] for x in found]
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)
    torch.testing.assert_close(*slopes, rtol=1e-11, atol=1e-12)


@dataclass(frozen=True)
class Braked(Integrator):
    """A step that multiplies velocities by a factor of each sample and by one of its own."""

    factors: tuple[object, ...] = (1.0,)
    order = 1
    input_names = ("brake", "push")

    def __call__(self, mech, accelerate, t, q, qd, dt, *, brake, push):  # pyright: ignore
        q, qd = RK4(mech, accelerate, t, q, qd, dt)
        return q, self.factors[0] * brake[..., None] * qd + push[..., None]


@pytest.mark.parametrize("control", [None, torch.ones(2, 5, ARM.num_dof, dtype=ARM.dtype)])
def test_tensors_that_a_step_takes_have_their_gradients_with_a_checkpoint(control):
    found = []
    for checkpoint in (None, 2):
        brake, factor = (torch.tensor(x).to(Q).requires_grad_() for x in ([0.9, 0.7], 0.8))
        push = torch.linspace(0, 1, 10).to(Q).reshape(2, 5).requires_grad_()
        for factors in ((1.0,), (factor,)):
            qds = ts.rollout(
                ARM, ts.State(Q, QD), control, steps=5, dt=1e-2, method=Braked(factors),
                params={"brake": brake}, series={"push": push}, checkpoint=checkpoint,
            ).qd  # fmt: skip
            leaves = [x for x in (brake, push, *factors) if isinstance(x, torch.Tensor)]
            found.append(torch.autograd.grad(qds.square().sum(), leaves))
    assert all(x.abs().min() > 0 for x in found[1])
    torch.testing.assert_close(found[2:], found[:2])
