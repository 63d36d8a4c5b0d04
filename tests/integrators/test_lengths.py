"""Samples that end before the rollout: later steps affect neither states nor gradients."""

import pytest
import torch
from torch import vmap
from torch.autograd import forward_ad
from torch.testing import assert_close

import torchsko as ts
from tests.integrators.test_integrators import robot
from torchsko.integrators.adaptive_steps import dormand_prince
from torchsko.integrators.binomial import Binomial
from torchsko.integrators.controls import Controller
from torchsko.integrators.limit_springs import LimitSprings
from torchsko.integrators.midpoint import ImplicitMidpoint

STEPS, DT = 5, 0.02
LENGTHS = torch.tensor([2, 0, 5])


@pytest.fixture(scope="module")
def mech():
    return robot(("revolute", "spherical"))


@pytest.fixture(scope="module")
def hinge():
    """A pendulum, and its kernels."""
    builder = ts.MechanismBuilder("pendulum")
    builder.link("rod", mass=1.0, com=(0, 0, -0.5), inertia=(0.1 * torch.eye(3)).tolist())
    mech = builder.joint("hinge", "revolute", child="rod", axis=(0, 1, 0), damping=0.1).build()
    return mech, ts.fuse(mech)


def states(mech):
    g = torch.Generator().manual_seed(1)
    q, _ = mech.random_state(3, generator=g)
    qd, tau = (torch.randn(*shape, mech.num_dof, generator=g).double() for shape in [(3,), (3, 5)])
    return q, qd, tau


def padded(tau):
    """Values with nan from each sample's end on."""
    over = torch.arange(STEPS) >= LENGTHS[:, None]
    return tau.detach().masked_fill(over[..., None], torch.nan).requires_grad_()


def alone(mech, q, qd, tau, method="semi_implicit_euler", **options):
    """Each sample by itself, its last state repeated."""
    ends = []
    for k, n in enumerate(LENGTHS.tolist()):
        one = ts.rollout(
            mech, ts.State(q[k], qd[k]), tau[k, :n], steps=n, dt=DT, method=method, **options
        )[:2]
        ends.append([torch.cat([x, x[-1:].expand(STEPS - n, -1)]) for x in one])
    return [torch.stack(x) for x in zip(*ends, strict=True)]


def weighed(both):
    w = torch.linspace(-1, 2, both[0].numel() // 3).double().reshape(both[0][0].shape)
    return (both[0] * w).sum() + both[1].square().sum()


OPTIONS = {
    "tensors": {},
    "rk4": {"method": "rk4"},
    "implicit": {"method": "implicit"},
    "midpoint": {"method": ImplicitMidpoint(2)},
    "adaptive": {"method": dormand_prince(1e9, 1)},
    "limits": {"limits": LimitSprings()},
    "checkpoint": {"checkpoint": 2},
    "binomial": {"checkpoint": Binomial(1)},
}


@pytest.mark.some(3)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_are_those_of_each_sample_alone(mech, options):
    q, qd, tau = states(mech)
    q, qd, tau = q.requires_grad_(), qd.requires_grad_(), padded(tau)
    both = ts.rollout(mech, ts.State(q, qd), tau, steps=STEPS, dt=DT, lengths=LENGTHS, **options)[
        :2
    ]
    apart = alone(mech, q, qd, tau, **{k: x for k, x in options.items() if k != "checkpoint"})
    assert_close(list(both), apart)
    mine, theirs = (torch.autograd.grad(weighed(x), [q, qd, tau]) for x in (both, apart))
    assert_close(mine, theirs)
    assert theirs[2].isfinite().all() and (theirs[2] != 0).any()


def test_kernels_of_all_steps_hold_too(hinge):
    mech, fast = hinge
    q, qd, tau = states(mech)
    q, tau = q.requires_grad_(), padded(tau)
    for control in (tau, tau[:1, :1], None):
        ours, theirs = (
            ts.rollout(m, ts.State(q, qd), control, steps=STEPS, dt=DT, lengths=LENGTHS)[:2]
            for m in (fast, mech)
        )
        assert_close(ours, theirs)
        leaves = [q] if control is None else [q, tau]
        slopes = [torch.autograd.grad(weighed(x), leaves) for x in (ours, theirs)]
        assert_close(slopes[0], slopes[1])
        assert all(x.isfinite().all() for x in slopes[0])


@pytest.mark.parametrize("fused", [False, None, True])
def test_a_law_that_blows_up_after_the_end_spoils_no_parameter(hinge, fused):
    """A force exp(100 q) that overflows in the first sample."""
    mech, fast = hinge
    q, still = torch.tensor([[0.3], [-0.3]]).double(), torch.zeros(1).double()
    slopes = []
    for lengths, rows in (([1, 5], slice(2)), ([1], slice(1)), ([5], slice(1, 2))):
        gain = torch.tensor(1e-5).double().requires_grad_()
        law = lambda t, q, qd, gain=gain: gain * torch.exp(100 * q)  # noqa: E731
        ends = torch.tensor(lengths)
        both = ts.rollout(
            fast, ts.State(q[rows], still), law, steps=5, dt=0.1, lengths=ends, fused=fused
        )[:2]
        slopes.append(torch.autograd.grad(both[0].sum(), gain)[0])
    assert slopes[0].isfinite() and slopes[1] > 0
    assert_close(slopes[0], slopes[1] + slopes[2])
    with pytest.warns(RuntimeWarning, match="is not finite at"):
        ts.rollout(mech, ts.State(q, still), law, steps=5, dt=0.1)


@pytest.mark.parametrize("fused", [False, True])
def test_a_law_may_have_no_value_after_the_end_of_its_sample(hinge, fused):
    """A force sqrt(T - t) with another T in each sample, also in an external force."""
    _, fast = hinge
    q, still = torch.tensor([[0.3], [-0.3], [0.1]]).double(), torch.zeros(1).double()
    end, counts = torch.tensor([[0.15], [0.45], [0.25]]).double(), torch.tensor([2, 5, 3])

    def push(t, q, qd, *, gain, end):
        return gain * torch.sqrt(end - t) * torch.exp(qd)

    def wrench(t, q, qd, *, gain, end):
        return push(t, q, qd, gain=gain, end=end)[..., None, :] * torch.ones(6).double()

    def slope(rows, lengths=None):
        gain = torch.ones(1, 1).double().requires_grad_()
        params = {"gain": gain.expand(len(q[rows]), 1), "end": end[rows]}
        steps = 8 if lengths is not None else int(counts[rows][0])
        qs = ts.rollout(
            fast, ts.State(q[rows], still), push, steps=steps, dt=0.1, f_ext=wrench, params=params,
            lengths=lengths, fused=fused,
        ).q  # fmt: skip
        return torch.autograd.grad(qs[:, -1].sum(), gain)[0]

    alone = [slope(slice(k, k + 1)) for k in range(3)]
    assert all(x.abs() > 0 for x in alone)
    assert_close(slope(slice(3), counts), alone[0] + alone[1] + alone[2])


class Growing(Controller):
    """A controller whose memory, squared at each step, overflows."""

    def __init__(self, gain):
        self.gain = gain

    def initial_memory(self, q, qd):
        return 10.0 + 0 * qd

    def act(self, t, dt, q, qd, memory):
        return self.gain * memory.log(), memory**8


def test_a_memory_stays_finite_too(mech):
    q, qd, _ = states(mech)
    gain = torch.tensor(0.1).double().requires_grad_()
    lengths = torch.tensor([1, 0, 2])
    both = ts.rollout(mech, ts.State(q, qd), Growing(gain), steps=9, dt=DT, lengths=lengths)[:2]
    (slope,) = torch.autograd.grad(both[1].sum(), gain)
    assert slope.isfinite() and slope != 0


def test_external_forces_past_the_end_are_not_read(mech):
    q, qd, _ = states(mech)
    q.requires_grad_()
    f = torch.ones(3, STEPS, mech.num_bodies, 6).double()
    over = (torch.arange(STEPS) >= LENGTHS[:, None])[..., None, None]
    for given in (
        f.masked_fill(over, torch.nan),
        lambda t, q, qd: f.masked_fill(over, torch.nan)[:, round(t / DT)],
    ):
        both = ts.rollout(
            mech, ts.State(q, qd), None, steps=STEPS, dt=DT, f_ext=given, lengths=LENGTHS
        )[:2]
        plain = ts.rollout(
            mech, ts.State(q, qd), None, steps=STEPS, dt=DT, f_ext=f, lengths=LENGTHS
        )[:2]
        assert_close(both, plain)
        (slope,) = torch.autograd.grad(weighed(both), q)
        assert slope.isfinite().all()


def test_truncation_and_thinning_keep_to_them(mech):
    q, qd, tau = states(mech)
    tau = padded(tau)
    thin = ts.rollout(
        mech, ts.State(q, qd), tau, steps=STEPS, dt=DT, lengths=LENGTHS, every=2, truncate=3
    )[:2]
    whole = alone(mech, q, qd, tau)
    assert_close(thin[0][0], whole[0][0, [0, 2, 2]])
    assert_close(thin[0][2], whole[0][2, [0, 2, 4]])
    (slope,) = torch.autograd.grad(weighed(thin), tau)
    assert slope.isfinite().all()


def test_forward_mode_and_vmap_keep_to_them(hinge):
    mech, fast = hinge
    q, qd, tau = states(mech)
    tau, along = padded(tau).detach(), torch.ones_like(tau)

    def end(mech, q, qd, tau, n):
        return ts.rollout(mech, ts.State(q, qd), tau, steps=STEPS, dt=DT, lengths=n).qd

    mapped = vmap(lambda *x: end(mech, *x))(q, qd, tau, LENGTHS)
    assert_close(mapped, end(mech, q, qd, tau, LENGTHS))
    tangents = []
    for m in (mech, fast):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(tau, along)
            tangents.append(forward_ad.unpack_dual(end(m, q, qd, dual, LENGTHS)).tangent)
    assert_close(*tangents)
    assert tangents[0].isfinite().all() and (tangents[0][0, 1:] != 0).all()


@pytest.mark.parametrize("lengths", [[1, 2, 3], 2, None])
def test_lengths_that_are_no_tensor_are_named(mech, lengths):
    if lengths is None:
        lengths = torch.tensor([1.5, 1.0, 2.0])
    with pytest.raises(ts.ShapeError, match=r"(?s)lengths.*Pass (torch.as_tensor|integers)"):
        ts.rollout(mech, ts.State(*states(mech)[:2]), steps=4, lengths=lengths)
