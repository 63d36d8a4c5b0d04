"""A changed Python value that a fused function captures gives the eager result or an error."""

import contextvars
import copy
import ctypes
import dataclasses
import enum
import functools
import itertools
import multiprocessing
import operator
import os
import tempfile
import threading
import time
import types
from collections import ChainMap, UserDict, namedtuple
from pathlib import Path

import pytest
import torch

import torchsko as ts
from torchsko.errors import FusedError
from torchsko.fused.capture.verification import Schedule, verify
from torchsko.fused.fused_call import FusedCall

NAMES = ("left", "right")
GAINS = {"left_kp": 3.0, "right_kp": 5.0}
CONFIG = types.ModuleType("config")
CONFIG.left_kp = CONFIG.right_kp = 3.0  # pyright: ignore
LAWS = {}


def law(fn):
    """Register a function that returns a law of (q, qd) and a change of a number that the law reads."""
    LAWS[fn.__name__] = fn
    return fn


def joints(q, gain_of):
    """Forces with a gain for each joint."""
    return torch.stack([-gain_of(name) * q[..., k] for k, name in enumerate(NAMES)], -1)


def gains():
    return {"left_kp": 3.0, "right_kp": 5.0}


@law
def an_entry_by_a_literal_key():
    g = {"kp": 3.0}
    return lambda q, qd: -g["kp"] * q, lambda: g.update(kp=30.0)


@law
def an_entry_by_an_f_string():
    g = gains()
    return lambda q, qd: joints(q, lambda n: g[f"{n}_kp"]), lambda: g.update(left_kp=30.0)


@law
def an_entry_by_a_sum_of_texts():
    g = gains()
    return lambda q, qd: joints(q, lambda n: g[n + "_kp"]), lambda: g.update(left_kp=30.0)


@law
def an_entry_by_format():
    g = gains()
    return lambda q, qd: joints(q, lambda n: g["{}_kp".format(n)]), lambda: g.update(left_kp=30.0)  # noqa: UP032


@law
def an_entry_by_get():
    g = gains()
    return lambda q, qd: joints(q, lambda n: g.get(f"{n}_kp", 0.0)), lambda: g.update(left_kp=30.0)


@law
def entries_by_the_robots_joint_names():
    g = {"left": 3.0, "right": 5.0}

    def control(q, qd):
        return torch.stack([-g[n] * q[..., k] for k, n in enumerate(ARM.joint_names)], -1)

    return control, lambda: g.update(left=30.0)


@law
def entries_by_map():
    g = {"left": 3.0, "right": 5.0}
    return lambda q, qd: -torch.tensor([*map(g.get, NAMES)], dtype=q.dtype) * q, lambda: g.update(
        left=30.0
    )


@law
def entries_in_sorted_order():
    g = gains()

    def control(q, qd):
        return torch.stack([-g[n] * q[..., k] for k, n in enumerate(sorted(g))], -1)

    return control, lambda: g.update(left_kp=30.0)


@law
def entries_by_a_list_of_keys():
    g = gains()
    return lambda q, qd: joints(q, lambda n: g[next(iter(g))]), lambda: g.update(left_kp=30.0)


@law
def entries_as_keyword_arguments():
    g = gains()

    def inner(q, left_kp, right_kp):
        return joints(q, {"left": left_kp, "right": right_kp}.__getitem__)

    return lambda q, qd: inner(q, **g), lambda: g.update(left_kp=30.0)


@law
def an_entry_of_a_global_dict():
    return lambda q, qd: joints(q, lambda n: GAINS[f"{n}_kp"]), lambda: GAINS.update(
        left_kp=GAINS["left_kp"] + 9
    )


@law
def an_entry_by_a_tuple():
    g = {("left", "kp"): 3.0, ("right", "kp"): 5.0}
    return lambda q, qd: joints(q, lambda n: g[n, "kp"]), lambda: g.update({("left", "kp"): 30.0})


@law
def an_entry_by_upper_case():
    g = {"KP": 3.0}
    return lambda q, qd: -g["kp".upper()] * q, lambda: g.update(KP=30.0)


@law
def entries_by_a_split_text():
    g = {"kp": 3.0, "kd": 1.0}

    def control(q, qd):
        p, d = "kp kd".split()
        return -g[p] * q - g[d] * qd

    return control, lambda: g.update(kp=30.0)


@law
def an_entry_by_the_value_of_an_enum():
    side = enum.Enum("Side", {"L": "left", "R": "right"})
    g = {"left": 3.0, "right": 5.0}

    def control(q, qd):
        return torch.stack([-g[s.value] * q[..., k] for k, s in enumerate(side)], -1)

    return control, lambda: g.update(left=30.0)


@law
def an_entry_of_a_mapping_proxy():
    g = gains()
    view = types.MappingProxyType(g)
    return lambda q, qd: joints(q, lambda n: view[f"{n}_kp"]), lambda: g.update(left_kp=30.0)


@law
def an_entry_of_a_chain_of_dicts():
    g = ChainMap({}, gains())
    return lambda q, qd: joints(q, lambda n: g[f"{n}_kp"]), lambda: g.update(left_kp=30.0)


@law
def an_entry_of_a_user_dict():
    g = UserDict(gains())
    return lambda q, qd: joints(q, lambda n: g[f"{n}_kp"]), lambda: g.update(left_kp=30.0)


class Sides:
    """Gains as attributes, read by texts that are made when the law runs."""

    def __init__(self):
        self.left_gain, self.right_gain = 3.0, 5.0

    def __call__(self, q, qd):
        return joints(q, lambda n: getattr(self, n + "_gain"))


@law
def an_attribute_by_getattr():
    control = Sides()
    return control, lambda: setattr(control, "left_gain", 30.0)


@law
def an_attribute_that_has_a_default():
    control = Sides()
    law = lambda q, qd: -getattr(control, "gain", 2.0) * q  # noqa: E731
    return law, lambda: setattr(control, "gain", 30.0)


class Net(torch.nn.Module):
    """Gains as attributes and entries of a module."""

    def __init__(self):
        super().__init__()
        self.left_gain, self.right_gain, self.table = 3.0, 5.0, gains()

    def forward(self, q, qd):
        return joints(q, lambda n: getattr(self, f"{n}_gain") + self.table[f"{n}_kp"])


@law
def an_attribute_of_a_module():
    control = Net()
    return control, lambda: setattr(control, "left_gain", 30.0)


@law
def an_entry_of_a_module():
    control = Net()
    return control, lambda: control.table.update(left_kp=30.0)


@law
def an_attribute_of_a_class():
    class Gains:
        left_kp, right_kp = 3.0, 5.0

    return lambda q, qd: joints(q, lambda n: getattr(Gains, f"{n}_kp")), lambda: setattr(
        Gains, "left_kp", 30.0
    )


@law
def an_attribute_behind_a_hook():
    class Config:
        def __init__(self):
            self._entries = {"kp": 3.0}

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return self._entries[name]

    config = Config()
    return lambda q, qd: -config.kp * q, lambda: config._entries.update(kp=30.0)


@law
def an_attribute_behind_a_property():
    class Config:
        def __init__(self):
            self._kp = 3.0

        @property
        def kp(self):
            return 2 * self._kp

    config = Config()
    return lambda q, qd: -config.kp * q, lambda: setattr(config, "_kp", 30.0)


@law
def an_attribute_in_a_slot():
    class Config:
        __slots__ = ("kp",)

    config = Config()
    config.kp = 3.0
    return lambda q, qd: -getattr(config, "k" + "p") * q, lambda: setattr(config, "kp", 30.0)


@law
def nested_attributes_by_attrgetter():
    config = types.SimpleNamespace(left=types.SimpleNamespace(kp=3.0))
    return lambda q, qd: -operator.attrgetter("left.kp")(config) * q, lambda: setattr(
        config.left, "kp", 30.0
    )


@law
def fields_of_a_dataclass():
    @dataclasses.dataclass
    class Gains:
        left: float = 3.0
        right: float = 5.0

    g = Gains()

    def control(q, qd):
        values = [getattr(g, f.name) for f in dataclasses.fields(g)]
        return -torch.tensor(values, dtype=q.dtype) * q

    return control, lambda: setattr(g, "left", 30.0)


@law
def an_entry_of_a_named_tuple():
    point = namedtuple("point", NAMES)
    held = [point(3.0, 5.0)]
    return lambda q, qd: joints(q, lambda n: getattr(held[0], n)), lambda: held.__setitem__(
        0, point(30.0, 5.0)
    )


@law
def a_global_by_globals():
    return lambda q, qd: -globals()["SCALE_" + "kp".upper()] * q, lambda: globals().update(
        SCALE_KP=SCALE_KP + 9
    )


@law
def an_attribute_of_a_users_module():
    return lambda q, qd: joints(q, lambda n: getattr(CONFIG, f"{n}_kp")), lambda: setattr(
        CONFIG, "left_kp", CONFIG.left_kp + 9
    )


@law
def a_function_of_a_users_module_named_as_one_of_the_standard_library():
    module = types.ModuleType("statistics")
    exec("scale = 3.0\ndef gain(): return scale", vars(module))
    return lambda q, qd: -module.gain() * q, lambda: setattr(module, "scale", 30.0)


@law
def an_argument_of_a_partial():
    g = gains()
    return functools.partial(
        lambda g, q, qd: joints(q, lambda n: g[f"{n}_kp"]), g
    ), lambda: g.update(left_kp=30.0)


@law
def a_result_that_is_cached():
    g = gains()

    @functools.cache
    def gain(name):
        return g[name]

    def change():
        g.update(left_kp=30.0)
        gain.cache_clear()

    return lambda q, qd: -gain("left" + "_kp") * q, change


@law
def an_event():
    event = threading.Event()
    return lambda q, qd: -q if event.is_set() else -3 * q, event.set


@law
def a_context_variable():
    gain = contextvars.ContextVar("gain", default=3.0)
    return lambda q, qd: -gain.get() * q, lambda: gain.set(30.0)


@law
def a_value_shared_by_processes():
    gain = multiprocessing.Value("d", 3.0)
    return lambda q, qd: -gain.value * q, lambda: setattr(gain, "value", 30.0)


@law
def a_number_of_c():
    gain = ctypes.c_double(3.0)
    return lambda q, qd: -gain.value * q, lambda: setattr(gain, "value", 30.0)


@law
def an_iterator():
    numbers = itertools.count(3)
    return lambda q, qd: -next(numbers) * q, lambda: next(numbers)


@law
def a_clock():
    start = time.perf_counter()
    return lambda q, qd: (start - time.perf_counter()) * q, lambda: None


@law
def a_variable_of_the_environment():
    name = "TORCHSKO_TEST_GAIN"
    os.environ[name] = "3"
    return lambda q, qd: -float(os.environ[name]) * q, lambda: os.environ.update({name: "30"})


@law
def a_file():
    file = Path(tempfile.mkdtemp()) / "gain"
    file.write_text("3")
    return lambda q, qd: -float(file.read_text()) * q, lambda: file.write_text("30")


SCALE_KP = 3.0


def two_joints():
    builder = ts.MechanismBuilder("two")
    for name in ("a", "b"):
        inertia = [[0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]]
        builder.link(name, mass=1.0, com=(0.1, 0, 0.2), inertia=inertia)
    builder.joint("left", "revolute", child="a", axis=(0, 1, 0))
    return builder.joint(
        "right", "revolute", child="b", parent="a", axis=(0, 1, 0), position=(0, 0, 0.3)
    ).build()


ARM = two_joints()


CHECKED = {
    *("a_context_variable", "a_value_shared_by_processes", "a_number_of_c", "an_iterator"),
    *("a_clock", "a_variable_of_the_environment", "a_file"),
}
"""Laws whose number no entry of an object holds: the comparison with the source finds the change."""


@pytest.fixture(scope="module")
def states():
    return ARM.random_state(3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", LAWS)
def test_a_changed_number_is_followed_or_refused(name, states):
    control, change = LAWS[name]()

    def torque(mech, q, qd):
        return control(q, qd)

    try:
        fast = ts.fuse(torque, ARM)
        before = fast(*states)
        change()
        found = fast(*states)
    except FusedError:
        assert name in CHECKED
        return
    torch.testing.assert_close(found, control(*states), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found, before)


@pytest.mark.parametrize("name", ["an_entry_by_an_f_string", "an_attribute_by_getattr", "an_event"])
def test_rollouts_follow_a_changed_number_of_their_control(name, states):
    control, change = LAWS[name]()
    fast, policy = ts.fuse(ARM), lambda t, q, qd: control(q, qd)
    ts.rollout(fast, ts.State(*states), policy, steps=3, dt=1e-2, fused=True)
    change()
    found, wanted = (
        ts.rollout(mech, ts.State(*states), policy, steps=3, dt=1e-2, fused=mech is fast).q
        for mech in (fast, ARM)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


class Counter:
    """A law with a number that does not matter, one that does, and a list that grows."""

    def __init__(self):
        self.calls, self.gain, self.log = 0, 2.0, []

    def __call__(self, mech, q):
        return self.gain * q


def test_a_value_without_effect_costs_one_trace(states, monkeypatch, caplog):
    counter, traces = Counter(), []
    fast, q = ts.fuse(counter, ARM), states[0]
    fast(q)
    function = fast.function(("q",))
    trace = function._trace
    monkeypatch.setattr(function, "_trace", lambda: traces.append(1) or trace())
    for _ in range(4):
        counter.calls += 1
        counter.log.append(counter.calls)
        assert torch.equal(fast(q), 2 * q)
    assert len(traces) == 1 and fast.function(("q",)) is function
    counter.gain = 3.0
    assert torch.equal(fast(q), 3 * q)
    assert "gain has changed" in caplog.text and len(caplog.messages) == 1


def test_a_value_on_which_only_a_derivative_depends_is_followed(states):
    counter = Counter()

    def fn(mech, q):
        return 2 * (q.detach() if counter.calls % 2 else q)

    fast, q = ts.fuse(fn, ARM), states[0].clone().requires_grad_()
    for calls in (0, 1):  # the values do not depend on it
        counter.calls = calls
        fast(q)
    for calls in (1, 2, 3):
        counter.calls = calls
        found = torch.autograd.grad(fast(q).sum(), q, allow_unused=True)[0]
        assert torch.equal(found, torch.full_like(q, 0.0 if calls % 2 else 2.0))


def test_a_function_that_notes_its_own_calls_has_one_kernel(states, caplog):
    counter = Counter()

    def fn(mech, q):
        counter.calls += 1
        counter.log.append(q.shape)
        return 2 * q

    fast = ts.fuse(fn, ARM)
    for _ in range(3):
        assert torch.equal(fast(states[0]), 2 * states[0])
    assert not caplog.records


def hidden_gain():
    """A generator of a gain, which no object graph reaches, and a change of it."""
    gain = [2.0]

    def numbers():
        while True:
            yield gain[0]

    return numbers(), lambda value: gain.__setitem__(0, value)


def test_the_comparison_with_the_source_names_the_function_and_retrace(states):
    numbers, change = hidden_gain()

    def torque(mech, q):
        return next(numbers) * q

    fast, fast_unverified, q = ts.fuse(torque, ARM), ts.fuse(torque, ARM, verify=False), states[0]
    for call in (fast, fast_unverified):
        assert torch.equal(call(q), 2 * q)
    change(3.0)
    with pytest.raises(FusedError, match=r"torque(.|\n)*retrace\(\)"):
        fast(q)
    fast.retrace()
    assert torch.equal(fast(q), 3 * q)
    assert torch.equal(fast_unverified(q), 2 * q)


def test_results_that_are_rounding_errors_are_not_compared():
    def residual(inputs):
        return [1e-3 * (torch.round(inputs[0] * 1e5) % 2)]

    for x in torch.linspace(0.1, 1.0, 200):
        verify("residual", residual, [x], residual([x * (1 - 6e-7)]), {})


def test_sensitivity_to_rounding_is_measured_once():
    calls = []

    def sensitive(inputs):
        calls.append(inputs)
        return [torch.sin(1e6 * inputs[0])]

    schedule, x = Schedule(0.0), torch.tensor([0.3, 0.7])
    rounded = [torch.sin(1e6 * (x * (1 + 2e-7)))]
    for count in (
        3,
        4,
        5,
    ):  # the first comparison repeats the evaluation, and maps it over changed inputs
        schedule.verify("sensitive", sensitive, [x], rounded)
        assert len(calls) == count


def test_rollouts_compare_their_control_with_the_source(states):
    numbers, change = hidden_gain()
    fast, control = ts.fuse(ARM), lambda t, q, qd: -next(numbers) * q
    ts.rollout(fast, ts.State(*states), control, steps=4, dt=1e-2, fused=True)
    change(3.0)
    with pytest.raises(FusedError, match=r"retrace\(\)"):
        ts.rollout(fast, ts.State(*states), control, steps=4, dt=1e-2, every=2, fused=True)
    fast.retrace()
    found = ts.rollout(fast, ts.State(*states), control, steps=4, dt=1e-2, fused=True)[:2]
    torch.testing.assert_close(
        found, ts.rollout(ARM, ts.State(*states), control, steps=4, dt=1e-2)[:2]
    )


def test_a_property_that_changes_at_each_read_is_refused(states):
    """After a new trace, the name of the changed value was taken for tensors."""
    counter = Counter()

    class Toggle:
        def __get__(self, instance, owner):
            counter.calls += 1
            return counter.calls

    class Law:
        number = Toggle()

        def __call__(self, mech, q):
            return self.number * q

    with pytest.raises(FusedError, match="another result at each evaluation"):
        ts.fuse(Law(), ARM)(states[0])


def test_a_value_that_another_thread_changes_all_the_time_is_refused(states, monkeypatch):
    counter = Counter()
    fast, q = ts.fuse(counter, ARM), states[0]
    fast(q)
    make = FusedCall._make

    def make_and_change(self, choice):
        made = make(self, choice)
        counter.gain += 1.0
        return made

    monkeypatch.setattr(FusedCall, "_make", make_and_change)
    counter.gain += 1.0
    with pytest.raises(FusedError, match="gain changes at each read"):
        fast(q)
    monkeypatch.undo()
    assert torch.equal(fast(q), counter.gain * q)


@pytest.mark.parametrize("name", ["mass", "damping"])
def test_a_mechanism_that_is_changed_in_place_is_followed(states, name, caplog):
    mech = ARM.replace(mass=ARM.mass.clone(), damping=torch.full_like(ARM.damping, 0.1))
    fast, tau = ts.fuse(mech), torch.zeros_like(states[1])
    call = ts.fuse(lambda mech, q, qd: ts.forward_dynamics(mech, q, qd, 0 * qd), mech)
    twin = copy.deepcopy(fast)
    kept = fast.forward_dynamics(*states, tau)
    call(*states), twin.forward_dynamics(*states, tau)
    getattr(mech, name).mul_(2)
    wanted = ts.forward_dynamics(mech, *states, tau)
    for _ in range(2):
        torch.testing.assert_close(
            fast.forward_dynamics(*states, tau), wanted, rtol=1e-11, atol=1e-11
        )
        torch.testing.assert_close(call(*states), wanted, rtol=1e-11, atol=1e-11)
    assert not torch.allclose(kept, wanted)
    assert len(caplog.messages) == 2 and "changed in place" in caplog.text
    torch.testing.assert_close(twin.forward_dynamics(*states, tau), kept, rtol=0, atol=0)
    getattr(mech, name).numpy()[:] *= 2  # which PyTorch does not count
    for options in ({}, {"method": "rk4"}):
        found, wanted = (
            ts.rollout(x, ts.State(*states), tau, steps=4, dt=1e-2, **options)[:2]
            for x in (fast, mech)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    found, wanted = (
        ts.rollout(x, ts.State(*states), lambda t, q, qd: -q, steps=3, dt=1e-2)[:2]
        for x in (fast, mech)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_a_backward_pass_after_a_change_in_place_is_refused(states):
    mech = ARM.replace(mass=ARM.mass.clone())
    fast, tau = ts.fuse(mech), torch.zeros_like(states[1]).requires_grad_()
    qdd = fast.forward_dynamics(*states, tau)
    mech.mass.mul_(2)
    with pytest.raises(FusedError, match="changed in place"):
        qdd.sum().backward()
