"""Pairwise combinations of rollout options agree with single steps of single samples, with gradients."""

import itertools
import random

import pytest
import torch

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.integrators.adaptive_steps import dormand_prince
from torchsko.integrators.binomial import Binomial
from torchsko.integrators.controls import Controller
from torchsko.integrators.limit_springs import LimitSprings
from torchsko.integrators.midpoint import ImplicitMidpoint

STEPS, DT = 6, 0.02
PAIR = dormand_prince(1e9, 1)
CHOICES = {
    "method": ("semi_implicit_euler", "implicit", "rk4", "newmark", ImplicitMidpoint(2), PAIR),
    "control": ("none", "constant", "series", "law", "memory"),
    "run": ("eager", "kernels", "one kernel"),
    "f_ext": ("none", "series", "law"),
    "checkpoint": (None, 2, Binomial(1)),
    "lengths": (None, torch.tensor([3, 6])),
    "limits": (None, LimitSprings(1e3, 10.0)),
    "every": (1, 2),
    "truncate": (None, 4),
    "effort": (None, "clamp"),
}


def goes_together(case):
    """True if a rollout supports the combination."""
    own, tensors = not isinstance(case["method"], str), case["control"] not in ("law", "memory")
    again = case["checkpoint"] is not None and isinstance(case["method"], ImplicitMidpoint)
    if case["limits"] is not None and case["method"] not in ("semi_implicit_euler", "implicit"):
        return False
    if again and not (tensors and case["f_ext"] != "law" and case["run"] == "eager"):
        return False
    if case["run"] == "one kernel":
        return not (tensors and (own or case["limits"] is not None or case["f_ext"] == "law"))
    return True


def pairs(case):
    return set(itertools.combinations([(k, str(x)) for k, x in case.items()], 2))


def covering():
    """A small set of cases that covers all supported pairs of options, found greedily."""
    draw, place = random.Random(0), {}
    drawn = [{k: draw.choice(x) for k, x in CHOICES.items()} for _ in range(8000)]
    able = [case for case in drawn if goes_together(case)]
    # Sets of pairs as bit masks, for fast comparison.
    held = [sum(1 << place.setdefault(pair, len(place)) for pair in pairs(case)) for case in able]
    left, cases = (1 << len(place)) - 1, []
    while left:
        best = max(range(len(able)), key=lambda k: (held[k] & left).bit_count())
        cases.append(able[best])
        left &= ~held[best]
    return cases


CASES = covering()


def named(case):
    words = {k: x if isinstance(x, (str, int)) else type(x).__name__ for k, x in case.items()}
    return "-".join(f"{k} {x}" for k, x in words.items() if x not in ("NoneType", "none", 1))


@pytest.fixture(scope="module")
def mech():
    made = random_mechanism(["revolute", "spherical"], [-1, 0], seed=3)
    return made.replace(
        effort_limit=torch.full_like(made.effort_limit, 1.5),
        lower=torch.full_like(made.lower, -0.2),
        upper=torch.full_like(made.upper, 0.2),
    )


@pytest.fixture(scope="module")
def fast(mech):
    return ts.fuse(mech, inputs=("mass", "damping"))


class Remembering(Controller):
    """A controller that integrates the velocity."""

    def __init__(self, push):
        self.push = push

    def initial_memory(self, q, qd):
        return torch.zeros_like(qd)

    def act(self, t, dt, q, qd, memory):
        return self.push - 3.0 * memory, memory + dt * qd


def forces(case, push, pull):
    """The control and the f_ext of a case, of two parameters with gradients."""
    g = torch.Generator().manual_seed(1)
    tau = torch.randn(2, STEPS, len(push), generator=g, dtype=push.dtype) + push
    control = {
        "none": None,
        "constant": tau[:, 0],
        "series": tau,
        "law": lambda t, q, qd: (
            push * torch.cos(torch.as_tensor(5.0 * t, dtype=qd.dtype)) - 0.5 * qd
        ),
        "memory": Remembering(push),
    }[case["control"]]
    wrenches = pull * torch.randn(2, STEPS, 2, 6, generator=g, dtype=push.dtype)
    f_ext = {
        "none": None,
        "series": wrenches,
        "law": lambda t, q, qd: (
            pull * (1 + qd.sum(-1)[..., None, None]) * torch.ones(2, 6).double()
        ),
    }[case["f_ext"]]
    return control, f_ext


def one_by_one(case, mech, q, qd, control, f_ext):
    """Single steps of single samples, by the definition of each option."""
    chosen = {k: case[k] for k in ("method", "limits", "effort")}
    qs, qds, every = [], [], case["every"]
    for sample in range(2):
        last = STEPS if case["lengths"] is None else int(case["lengths"][sample]) // every * every
        x, v, memory = q[sample], qd[sample], torch.zeros_like(qd[sample])
        rows = [(x, v)]
        for k in range(STEPS):
            if case["truncate"] is not None and k and k % case["truncate"] == 0:
                x, v, memory = x.detach(), v.detach(), memory.detach()
            if k < last:
                now = control
                if isinstance(control, torch.Tensor):
                    now = control[sample] if control.ndim == 2 else control[sample, k]
                elif isinstance(control, Remembering):
                    now, memory = control.act(k * DT, DT, x, v, memory)
                elif control is not None:
                    now = lambda t, q, qd, k=k: control(t + k * DT, q, qd)  # noqa: E731
                push = f_ext[sample, k : k + 1] if isinstance(f_ext, torch.Tensor) else f_ext
                after = ts.rollout(
                    mech, ts.State(x, v), now, steps=1, dt=DT, f_ext=push, fused=False, **chosen
                )[:2]
                x, v = (s[-1] for s in after)
            rows.append((x, v))
        for found, states in zip((qs, qds), zip(*rows, strict=True), strict=True):
            found.append(torch.stack(states)[::every])
    return torch.stack(qs), torch.stack(qds)


def at_once(case, mech, q, qd, control, f_ext):
    options = {k: case[k] for k in CHOICES if k not in ("control", "run", "f_ext")}
    fused = {"eager": False, "kernels": None, "one kernel": True}[case["run"]]
    return ts.rollout(
        mech, ts.State(q, qd), control, steps=STEPS, dt=DT, f_ext=f_ext, fused=fused, **options
    )[:2]


def test_every_pair_of_options_is_combined():
    met = set().union(*map(pairs, CASES))
    for (one, xs), (other, ys) in itertools.combinations(CHOICES.items(), 2):
        apart = [(x, y) for x in xs for y in ys if ((one, str(x)), (other, str(y))) not in met]
        assert all(_excluded({one: x, other: y}) for x, y in apart), (one, other, apart)


def _excluded(two):
    """True if no case supports both options."""
    free = {k: (two[k],) if k in two else x for k, x in CHOICES.items()}
    return not any(
        goes_together(dict(zip(free, x, strict=True))) for x in itertools.product(*free.values())
    )


@pytest.mark.some(2)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_states_and_gradients_are_those_of_single_steps(mech, fast, case):
    g = torch.Generator().manual_seed(2)
    q, qd = mech.random_state(2, generator=g)
    push = torch.tensor([0.5, -0.3, 0.8, 0.2]).double()
    given = [q, qd, push, torch.tensor(0.4).double(), mech.mass, mech.damping]
    found = []
    for run, robot in ((one_by_one, mech), (at_once, mech if case["run"] == "eager" else fast)):
        leaves = [x.clone().requires_grad_() for x in given]
        control, f_ext = forces(case, *leaves[2:4])
        own = robot.replace(mass=leaves[4], damping=leaves[5])
        states = run(case, own, leaves[0], leaves[1], control, f_ext)
        total = torch.stack([(x.cumsum(-2) * x).sum() for x in states]).sum()
        gradients = torch.autograd.grad(total, leaves, materialize_grads=True, allow_unused=True)
        found.append((*states, *gradients))
    for theirs, mine in zip(*found, strict=True):
        assert (mine - theirs).abs().max() <= 1e-9 * (1 + theirs.abs().max())
