"""Python values that a fused function reads from outside: no kernel runs with one that is no longer there."""

import copy
import functools
import types
from array import array
from collections import deque
from dataclasses import astuple, dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import torchsko as ts
from torchsko.errors import FusedError

GLOBAL_SCALE = 2.0


class Law:
    """A law that reads its values in all ways that an object has."""

    by_class = 2.0
    mode = "damped"

    def __init__(self):
        self.own = 2.0
        self.table = {"damping": 2.0, "of nobody": 2.0}
        self.rows = [[1.0, 2.0]]
        self.array = np.array([1.0, 2.0])
        self.space = types.SimpleNamespace(inner=2.0)
        self.unread = 2.0
        self.act = torch.tanh
        self.offset = None

    @property
    def doubled(self):
        return 2 * self.own

    def scaled(self, x):
        return self.doubled * x + self.by_class * x.sin()

    def reset(self):
        self.unread = 0.0

    def __call__(self, mech, q, qd):
        if self.mode == "damped":
            q = q * self.table["damping"]
        if self.offset is not None:
            q = q + self.offset
        q = self.act(q)
        return (
            self.scaled(q) + self.rows[0][1] * qd * torch.as_tensor(self.array) + self.space.inner
        )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.LeakyReLU(0.25)])
        self.gain = 2.0
        self.steps = 0

    def forward(self, mech, q, qd):
        for layer in self.layers:
            q = layer(q)
        return self.scaled(q) + qd

    def scaled(self, q):
        return self.gain * q

    def training_step(self):
        self.steps += 1


def settings(law):
    """Changes of values that the law reads."""
    return {
        "own": lambda: setattr(law, "own", 3.0),
        "by_class": lambda: setattr(law, "by_class", 3.0),
        "mode": lambda: setattr(law, "mode", "free"),
        "table['damping']": lambda: law.table.update(damping=3.0),
        "rows[0][1]": lambda: law.rows[0].__setitem__(1, 3.0),
        "array": lambda: law.array.__setitem__(1, 3.0),
        "inner": lambda: setattr(law.space, "inner", 3.0),
        "space": lambda: setattr(law, "space", types.SimpleNamespace(inner=3.0)),
        "act": lambda: setattr(law, "act", torch.relu),
        "offset": lambda: setattr(law, "offset", 3.0),
    }


def assert_follows(fast, eager, change, states, caplog, name):
    """After a change the kernels give what the function gives now, which is something else than before."""
    before = fast(*states)
    torch.testing.assert_close(before, eager(None, *states))
    assert not caplog.messages
    change()
    now = fast(*states)
    torch.testing.assert_close(now, eager(None, *states))
    assert not torch.allclose(now, before)
    (message,) = caplog.messages
    assert name in message and "has changed" in message
    torch.testing.assert_close(fast(*states), now)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("name", settings(Law()))
def test_values_of_an_object_are_followed(slider, states, caplog, name):
    law = Law()
    assert_follows(ts.fuse(law, slider), law, settings(law)[name], states, caplog, name)


def test_values_of_modules_are_followed(slider, states, caplog):
    net = Net()
    fast = ts.fuse(net, slider)
    assert_follows(fast, net, lambda: setattr(net, "gain", 3.0), states, caplog, "gain")
    caplog.clear()
    slope = functools.partial(setattr, net.layers[0], "negative_slope", 0.5)
    assert_follows(fast, net, slope, states, caplog, "negative_slope")


def test_values_of_functions_are_followed(slider, states, caplog, monkeypatch):
    scale, bound = 2.0, {"most": 2.0}

    def inner(x, shift=1.0):
        return scale * x + shift

    def law(mech, q, qd, **bounds):
        return inner(q) * GLOBAL_SCALE + qd * bounds["most"]

    def fn(mech, q, qd):
        return law(mech, q, qd, **bound)

    def rescale():
        nonlocal scale
        scale = 3.0

    fast = ts.fuse(fn, slider)
    assert_follows(fast, fn, rescale, states, caplog, "scale")
    changes = {
        "GLOBAL_SCALE": lambda: monkeypatch.setitem(globals(), "GLOBAL_SCALE", 3.0),
        "a default of": lambda: setattr(inner, "__defaults__", (2.0,)),
        "bound['most']": lambda: bound.update(most=3.0),
    }
    for name, change in changes.items():
        caplog.clear()
        before = fast(*states)
        change()
        found = fast(*states)
        torch.testing.assert_close(found, fn(None, *states))
        assert not torch.allclose(found, before) and name in caplog.text


def test_values_without_effect_make_no_kernels(slider, states, caplog):
    law, net = Law(), Net()
    laws = {id(x): ts.fuse(x, slider) for x in (law, net)}
    before = [fast(*states) for fast in laws.values()]
    law.unread, law.own, law.more = 3.0, 2.0, 1.0
    net.training_step()
    law.space.other = net.other = 1.0
    torch.testing.assert_close([fast(*states) for fast in laws.values()], before)
    assert not caplog.messages


@pytest.mark.parametrize("what", ["robot", "tensor"])
def test_the_kernels_own_robot_read_by_another_way_is_followed(slider, states, caplog, what):
    """What a function reads there is a constant of the kernels; something else may be put in its place."""
    robot, mass = slider, slider.mass

    def fn(mech, q, qd):
        return ts.mass_matrix(robot, q) * mass[0]

    def change():
        nonlocal robot, mass
        if what == "robot":
            robot = slider.replace(mass=2 * slider.mass)
        else:
            mass = 2 * slider.mass

    name = "robot" if what == "robot" else "mass"
    assert_follows(ts.fuse(fn, slider), fn, change, states, caplog, name)


def test_what_is_not_a_number_is_the_same_as_itself(slider, states, caplog):
    law = Law()
    fast = ts.fuse(lambda mech, q, qd: torch.where(q > 0, q, law.own), slider)
    law.own = float("nan")
    found = fast(*states)
    caplog.clear()
    law.own = float("-nan")
    torch.testing.assert_close(fast(*states), found, equal_nan=True)
    assert not caplog.messages


def test_rollouts_follow_the_values_of_their_laws(slider, states, caplog):
    fast, law = ts.fuse(slider), Law()
    control = lambda t, q, qd: -law.scaled(q)  # noqa: E731
    before = ts.rollout(fast, ts.State(*states), control, steps=3, dt=1e-2, fused=True)[:2]
    law.own = 3.0
    found = ts.rollout(fast, ts.State(*states), control, steps=3, dt=1e-2, fused=True)[:2]
    torch.testing.assert_close(
        found, ts.rollout(slider, ts.State(*states), control, steps=3, dt=1e-2)[:2]
    )
    assert not torch.allclose(found[0], before[0])
    (said,) = caplog.messages
    assert "own has changed" in said and "in a tensor" in said


def test_gradients_of_another_value_are_refused_by_name(slider, states):
    """The kernel of a gradient is made by the backward pass, when the value may be another."""
    law = Law()
    fast = ts.fuse(law, slider)
    q = states[0].clone().requires_grad_()
    result = fast(q, states[1]).sum()
    law.own = 3.0
    with pytest.raises(FusedError, match="own has changed"):
        result.backward()
    found = torch.autograd.grad(fast(q, states[1]).sum(), q)
    torch.testing.assert_close(found, torch.autograd.grad(law(None, q, states[1]).sum(), q))


def test_functions_that_are_put_in_place_of_others_are_followed(
    slider, states, caplog, monkeypatch
):
    law = Law()
    fast = ts.fuse(law, slider)
    change = functools.partial(monkeypatch.setattr, Law, "scaled", lambda self, x: 3 * x)
    assert_follows(fast, law, change, states, caplog, "scaled")


def test_objects_that_a_function_makes_itself_are_its_own(slider, states, caplog):
    """What it notes for others to read is lost, and makes no kernels at each call."""
    law = Law()

    def fn(mech, q, qd):
        law.space = types.SimpleNamespace(inner=2.0)
        law.noted = float(len(q))
        return law.space.inner * q

    fast = ts.fuse(fn, slider)
    for _ in range(3):
        torch.testing.assert_close(fast(*states), 2 * states[0])
    assert not caplog.messages


def test_a_function_that_counts_is_refused(slider, states):
    law = Law()

    def counts(mech, q, qd):
        law.own += 1
        return law.own * q

    with pytest.raises(FusedError, match="another result at each evaluation"):
        ts.fuse(counts, slider)(*states)


def test_what_a_function_sets_up_once_is_its_own(slider, states):
    law = Law()
    law.own = 0.0

    def sets_up(mech, q, qd):
        if law.own == 0:
            law.own = 4.0
        return law.own * q

    torch.testing.assert_close(ts.fuse(sets_up, slider)(*states), 4 * states[0])


def test_a_compiled_call_refuses_another_value(slider, states):
    law = Law()
    fast = ts.fuse(law, slider)
    compiled = torch.compile(lambda q, qd: fast(q, qd), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*states), law(None, *states))
    law.own = 3.0
    # Dynamo of PyTorch 2.11 gives the class of the error without its text.
    with pytest.raises(Exception, match=r"own has changed|FusedError\(\(\)\)"):
        compiled(*states)
    fast(*states)
    torch.testing.assert_close(compiled(*states), law(None, *states))


class Held:
    """What a law may hold that a text reads without naming all of it."""

    def __init__(self):
        self.numbers, self.entries = [1.0], {"a": 1.0}
        self.queue, self.chosen = deque([1.0]), {1.0}
        self.tensors = [torch.ones(2, dtype=torch.float64)]
        self.weights = nn.ParameterList([torch.ones(2, dtype=torch.float64)])
        self.raw, self.part, self.rows = array("d", [1.0]), slice(0, 1), range(1)
        self.share, self.text, self.name = Fraction(1, 2), b"a", "first"
        self.first = self.second = 2.0
        self.gains = Gains(2.0, torch.ones(2, dtype=torch.float64))


@dataclass
class Gains:
    stiffness: float
    damping: torch.Tensor


def more(_):
    return torch.full((2,), 3.0, dtype=torch.float64)


# What a law makes of its states, and a change.
UNNAMED = {
    "a longer list": (lambda h, q: sum(h.numbers) * q, lambda h: h.numbers.append(2.0)),
    "the length of a list": (lambda h, q: len(h.numbers) * q, lambda h: h.numbers.append(2.0)),
    "a longer queue": (lambda h, q: sum(h.queue) * q, lambda h: h.queue.append(2.0)),
    "another set": (lambda h, q: sum(h.chosen) * q, lambda h: h.chosen.add(2.0)),
    "values of a dict": (lambda h, q: sum(h.entries.values()) * q, lambda h: h.entries.update(a=3.0)),
    "a loop over a dict": (
        lambda h, q: sum(h.entries[k] for k in h.entries) * q,
        lambda h: h.entries.update(a=3.0),
    ),
    "a dict's new entry": (lambda h, q: sum(h.entries.values()) * q, lambda h: h.entries.update(b=3.0)),
    "a longer list of tensors": (lambda h, q: sum(h.tensors) * q, lambda h: h.tensors.append(more(h))),
    "a longer ParameterList": (lambda h, q: sum(h.weights) * q, lambda h: h.weights.append(more(h))),
    "an array of Python": (lambda h, q: h.raw[0] * q, lambda h: h.raw.__setitem__(0, 3.0)),
    "a slice": (lambda h, q: q + q[..., h.part], lambda h: setattr(h, "part", slice(1, 2))),
    "a range": (lambda h, q: sum(q[..., k, None] for k in h.rows), lambda h: setattr(h, "rows", range(2))),
    "a fraction": (lambda h, q: float(h.share) * q, lambda h: setattr(h, "share", Fraction(3, 2))),
    "bytes": (lambda h, q: h.text[0] * q, lambda h: setattr(h, "text", b"b")),
    "an attribute by a text": (lambda h, q: getattr(h, h.name) * q, lambda h: setattr(h, "first", 3.0)),
    "attributes by several": (
        lambda h, q: sum(getattr(h, name) for name in ("first", "second")) * q,
        lambda h: setattr(h, "second", 3.0),
    ),
    "fields of a dataclass": (
        lambda h, q: astuple(h.gains)[0] * q,
        lambda h: setattr(h.gains, "stiffness", 3.0),
    ),
    "a copy of a tensor": (
        lambda h, q: copy.deepcopy(h.gains.damping) * q,
        lambda h: setattr(h.gains, "damping", more(h)),
    ),
}  # fmt: skip


@pytest.mark.some(6)
@pytest.mark.parametrize("name", UNNAMED)
def test_what_a_text_reads_without_its_name_is_no_constant_for_ever_either(slider, name):
    law, change = UNNAMED[name]
    held, q = Held(), torch.tensor([[0.3, -0.7], [1.1, 0.4]], dtype=torch.float64)
    fast = ts.fuse(lambda mech, q: law(held, q), slider)
    before = fast(q)
    torch.testing.assert_close(before, law(held, q))
    change(held)
    torch.testing.assert_close(fast(q), law(held, q))
    assert not torch.equal(fast(q), before)


def test_what_a_function_notes_in_a_list_makes_no_kernels_anew(slider, caplog):
    noted = []

    def fn(mech, q):
        noted.append(1.0)
        return 2 * q

    q = torch.ones(2, dtype=torch.float64)
    fast = ts.fuse(fn, slider)
    for _ in range(3):
        assert torch.equal(fast(q), 2 * q)
        noted.append(2.0)
    assert not caplog.records
