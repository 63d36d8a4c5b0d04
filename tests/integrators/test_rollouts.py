"""Rollouts: batches, kinds of control, and gradients."""

import itertools

import numpy as np
import pytest
import torch
from torch.func import jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

import torchsko as ts
from tests.states import normal_state
from tests.strategies import KINDS, random_mechanism
from torchsko.integrators.controls import Controller, check_control
from torchsko.integrators.integrators import INTEGRATORS, SEMI_IMPLICIT_EULER

METHODS = tuple(INTEGRATORS)


def robot(kinds=KINDS):
    return random_mechanism(list(kinds), [-1, 0, 0, 1][: len(kinds)], seed=5)


@pytest.mark.some(3)
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_rollouts_is_the_rollouts_one_by_one(method, batch):
    mech = robot()
    q, qd, tau = normal_state(mech, *batch)
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), tau[..., None, :], steps=3, method=method)
    assert qs.shape == (*batch, 4, mech.num_q) and qds.shape == (*batch, 4, mech.num_dof)
    flat = [x.reshape(-1, x.shape[-1]) for x in (q, qd, tau)]
    for k, one in enumerate(zip(*flat, strict=True)):
        alone = ts.rollout(mech, ts.State(*one[:2]), one[2], steps=3, method=method)[:2]
        assert_close(qs.reshape(-1, 4, mech.num_q)[k], alone[0])
        assert_close(qds.reshape(-1, 4, mech.num_dof)[k], alone[1])


@pytest.mark.some(2)
@pytest.mark.parametrize("method", METHODS)
def test_constant_tensor_function_and_module_controls_agree(method):
    class Constant(torch.nn.Module):
        def __init__(self, tau):
            super().__init__()
            self.tau = torch.nn.Parameter(tau)

        def forward(self, t, q, qd):
            return self.tau

    mech = robot()
    q, qd, tau = normal_state(mech)
    expected = ts.rollout(mech, ts.State(q, qd), tau, steps=4, method=method)[:2]
    for control in (tau[None], tau.expand(4, -1), lambda t, q, qd: tau, Constant(tau)):
        assert_close(
            ts.rollout(mech, ts.State(q, qd), control, steps=4, method=method)[:2], expected
        )


def test_no_control_is_no_force():
    mech = robot()
    q, qd, tau = normal_state(mech, 2)
    assert_close(
        ts.rollout(mech, ts.State(q, qd), steps=3)[:2],
        ts.rollout(mech, ts.State(q, qd), torch.zeros_like(tau[0]), steps=3)[:2],
    )


def test_a_tensor_is_held_over_each_step():
    mech = robot(("revolute", "prismatic"))
    q, qd, _ = normal_state(mech)
    taus = torch.arange(6, dtype=q.dtype).reshape(3, 2)
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), taus, steps=3, method="rk4")
    for k in range(3):
        step = ts.rollout(mech, ts.State(qs[k], qds[k]), taus[k], steps=1, method="rk4")[:2]
        assert_close((step[0][-1], step[1][-1]), (qs[k + 1], qds[k + 1]))


def test_functions_see_the_time_of_every_stage():
    mech = robot(("revolute",))
    q, qd, _ = normal_state(mech)
    seen = []
    ts.rollout(
        mech,
        ts.State(q, qd),
        lambda t, q, qd: seen.append(t) or 0 * qd,
        steps=2,
        dt=0.5,
        method="rk4",
    )
    assert seen == pytest.approx([0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0])


def test_no_step_returns_the_start():
    mech = robot()
    q, qd, _ = normal_state(mech, 2)
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=0)
    assert torch.equal(qs, q[:, None]) and torch.equal(qds, qd[:, None])


def test_robots_states_and_controls_broadcast():
    mech = robot(("revolute", "spherical"))
    q, qd, _ = normal_state(mech)
    scale = torch.tensor([[1.0], [2.0]], dtype=q.dtype)
    fleet = mech.replace(mass=scale * mech.mass)
    taus = torch.randn(
        3, 1, 2, mech.num_dof, dtype=q.dtype, generator=torch.Generator().manual_seed(0)
    )
    qs = ts.rollout(fleet, ts.State(q, qd), taus, steps=2).q
    assert qs.shape == (3, 2, 3, mech.num_q)
    for k in range(2):
        alone = mech.replace(mass=scale[k] * mech.mass)
        assert_close(qs[1, k], ts.rollout(alone, ts.State(q, qd), taus[1, 0], steps=2).q)


def test_the_applied_series_of_each_robot_saturates_at_its_effort_limit():
    mech = robot(("revolute", "prismatic"))
    *_, tau = normal_state(mech, 2)
    limits = torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=tau.dtype)
    series = 9 * torch.stack([tau, -tau], 1)
    fleet = mech.replace(effort_limit=limits)
    applied = check_control(fleet, series, "clamp", 2, 0.1, torch.Size([2]), ()).source
    for k in range(2):
        assert_close(applied[k], series[k].clamp(-limits[k], limits[k]))


@pytest.mark.parametrize("batch", [(3,), (1,), (2, 3), (2, 1)])
def test_a_fleet_follows_a_series_whatever_its_number_of_steps(batch):
    mech = robot(("revolute", "prismatic"))
    q, qd, _ = normal_state(mech)
    scale = torch.tensor([[1.0], [2.0], [3.0]], dtype=q.dtype)
    fleet = mech.replace(mass=scale * mech.mass)
    g = torch.Generator().manual_seed(0)
    taus = torch.randn(*batch, 4, mech.num_dof, dtype=q.dtype, generator=g)
    both = ts.rollout(fleet, ts.State(q, qd), taus, steps=4)[:2]
    shape = torch.broadcast_shapes(batch, (3,))
    series = taus.expand(*shape, 4, mech.num_dof)
    assert both[0].shape == (*shape, 5, mech.num_q)
    for place in itertools.product(*map(range, shape)):
        alone = mech.replace(mass=scale[place[-1]] * mech.mass)
        single = ts.rollout(alone, ts.State(q, qd), series[place], steps=4)[:2]
        for mine, theirs in zip(both, single, strict=True):
            assert_close(mine[place], theirs)


@pytest.mark.some(1)
@pytest.mark.parametrize("method", METHODS)
def test_gradients_to_state_control_and_parameters_pass_gradcheck(method):
    mech = robot(("revolute", "spherical"))
    q, qd, tau = normal_state(mech)

    def final(qd, tau, mass, damping):
        moved = mech.replace(mass=mass, damping=damping)
        qs, qds, *_ = ts.rollout(moved, ts.State(q, qd), tau, steps=2, dt=0.05, method=method)
        return qs[-1], qds[-1]

    leaves = [x.clone().requires_grad_() for x in (qd, tau, mech.mass, mech.damping)]
    assert torch.autograd.gradcheck(final, leaves, check_forward_ad=True, fast_mode=True)


@pytest.mark.some(2)
@pytest.mark.parametrize("method", METHODS)
def test_reverse_forward_and_vmapped_derivatives_agree(method):
    mech = robot(("revolute", "spherical"))
    q, qd, tau = normal_state(mech, 3)

    def final(q, qd, tau):
        return ts.rollout(
            mech, ts.State(q, qd), tau[..., None, :], steps=2, dt=0.05, method=method
        ).q[..., -1, :]

    assert_close(vmap(final)(q, qd, tau), final(q, qd, tau))
    backward = vmap(jacrev(final, (1, 2)))(q, qd, tau)
    assert_close(vmap(jacfwd(final, (1, 2)))(q, qd, tau), backward)
    push = jvp(lambda qd: final(q, qd, tau), (qd,), (torch.ones_like(qd),))[1]
    assert_close(push, backward[0].sum(-1))


def test_checkpointing_keeps_less_for_the_backward_pass():
    mech = robot()
    q, qd, _ = normal_state(mech)
    kept = []

    def pack(x):
        kept[-1] += x.numel()
        return x

    mass = mech.mass.clone().requires_grad_()
    for checkpoint in (None, 5):
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            ts.rollout(mech.replace(mass=mass), ts.State(q, qd), steps=10, checkpoint=checkpoint)
    assert kept[1] < kept[0] / 5


def test_a_learning_layer_rolls_out_and_learns_through_time():
    mech = robot(("revolute", "revolute"))
    layer = ts.Dynamics(
        mech, {"body1": ts.learn.InertiaLogCholesky(), "joint0.damping": ts.learn.Positive()}
    )
    q, qd, tau = normal_state(mech, 4)
    control = tau[:, None]
    qs, qds, *_ = ts.rollout(layer, ts.State(q, qd), control, steps=5)
    assert_close(
        (qs, qds), ts.rollout(mech, ts.State(q, qd), control, steps=5)[:2], rtol=1e-9, atol=1e-9
    )
    qs.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())


def test_float32_stays_float32():
    mech = robot().to(torch.float32)
    q, qd, tau = normal_state(mech, 2)
    for method in METHODS:
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), tau[:, None], steps=2, method=method)
        assert qs.dtype == qds.dtype == torch.float32


def test_a_step_function_of_one_s_own_is_a_method():
    mech = robot()
    q, qd, _ = normal_state(mech)
    actual = ts.rollout(mech, ts.State(q, qd), steps=3, method=SEMI_IMPLICIT_EULER)[:2]
    assert_close(actual, ts.rollout(mech, ts.State(q, qd), steps=3)[:2], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "rk5"}, ["'rk5'", "'rk4'"]),
        ({"steps": -1}, ["steps is -1"]),
        ({"dt": 0.0}, ["dt is 0.0"]),
        ({"checkpoint": 0}, ["checkpoint is 0"]),
        ({"control": torch.zeros(4, 2, dtype=torch.float64)}, ["[4, 2]", "[*batch, 3, 2]"]),
        ({"control": torch.zeros(3, 5, dtype=torch.float64)}, ["control", "[3, 5]"]),
        ({"control": torch.zeros(2)}, ["control", "float32"]),
        ({"control": lambda t, q, qd: torch.zeros(7, 2, dtype=qd.dtype)}, ["[7, 2]", "Expand"]),
    ],
)
def test_wrong_arguments_are_named(change, words):
    mech = robot(("revolute", "prismatic"))
    q, qd, _ = normal_state(mech)
    with pytest.raises(ts.TorchskoError) as caught:
        ts.rollout(mech, ts.State(q, qd), **({"steps": 3} | change))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_robots_and_states_of_other_numbers_are_named():
    mech = robot()
    many, (q, qd, tau) = mech.replace(mass=mech.mass.expand(4, -1)), normal_state(mech, 3)
    said = r"the mechanism has the batch dimensions \[4\], q has \[3\]"
    for call in (
        lambda: ts.rollout(many, ts.State(q, qd))[:2],
        lambda: ts.linearize(many, ts.State(q, qd), tau),
    ):
        with pytest.raises(ts.ShapeError, match=said):
            call()


@pytest.mark.parametrize("batch", [(1,), (2,), (5, 1), (2, 3), (0,)])
def test_a_tensor_with_the_batch_of_the_state_is_constant(batch):
    mech = robot(("revolute", "prismatic"))
    q, qd, tau = normal_state(mech, *batch)
    given = ts.rollout(mech, ts.State(q, qd), tau, steps=4)[:2]
    assert_close(given, ts.rollout(mech, ts.State(q, qd), lambda t, q, qd: tau, steps=4)[:2])


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_forces_of_each_sample_are_constant_for_every_batch_size(batch):
    mech, steps = robot(("revolute", "prismatic")), 3
    q, qd, tau = normal_state(mech, batch)
    f = torch.randn(batch, 2, 6, generator=torch.Generator().manual_seed(1), dtype=q.dtype)
    found = ts.rollout(mech, ts.State(q, qd), tau, steps=steps, f_ext=f)[:2]
    assert_close(
        found, ts.rollout(mech, ts.State(q, qd), tau[:, None], steps=steps, f_ext=f[:, None])[:2]
    )
    for k in range(batch):
        alone = ts.rollout(
            mech, ts.State(q[k], qd[k]), lambda t, q, qd, k=k: tau[k], steps=steps, f_ext=f[k]
        )[:2]
        assert_close([x[k] for x in found], [*alone])


@pytest.mark.parametrize("batch", [2, 4])
def test_a_series_without_batch_is_refused_for_every_batch_size(batch):
    mech = robot(("revolute", "prismatic"))
    q, qd, _ = normal_state(mech, batch)
    series = q.new_zeros(5, 2)
    with pytest.raises(ts.ShapeError, match=r"(?s)\[5, 2\] for 5 steps.*Pass.*control\[None\]"):
        ts.rollout(mech, ts.State(q, qd), series, steps=5)
    assert ts.rollout(mech, ts.State(q, qd), series[None], steps=5).q.shape == (batch, 6, 2)


def test_a_batch_of_any_size_exports_with_constant_forces():
    class Step(torch.nn.Module):
        def forward(self, q, qd, tau):
            return ts.rollout(mech, ts.State(q, qd), tau, steps=2, fused=False).q

    mech = robot(("revolute", "prismatic"))
    args, size = normal_state(mech, 3), torch.export.Dim("size", min=2)
    exported = torch.export.export(Step(), args, dynamic_shapes=[{0: size}] * 3)
    for batch in (2, 7):  # also of as many samples as steps
        args = normal_state(mech, batch)
        assert_close(exported.module()(*args), Step()(*args))


@pytest.mark.parametrize("control", [0.0, [0.0, 0.0], np.zeros(2)])
def test_a_control_that_is_no_tensor_and_cannot_be_called_is_refused(control):
    mech = robot(("revolute", "prismatic"))
    q, qd, _ = normal_state(mech)
    with pytest.raises(ts.ShapeError, match="control was given as"):
        ts.rollout(mech, ts.State(q, qd), control, steps=2)


def test_torch_compile_traces_that_a_tensor_is_no_controller():
    compiled = torch.compile(
        lambda x: x + isinstance(x.new_zeros(1), Controller), fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2))


def test_forces_of_another_batch_are_refused_with_the_control_s_name():
    arm = ts.load(ts.robots.panda)
    q, qd = arm.random_state(3)
    with pytest.raises(ts.ShapeError, match=r"the control returned .*\[4, 7\].*\[3\]"):
        ts.rollout(arm, ts.State(q, qd), lambda t, q, qd: qd.new_zeros(4, 7), steps=2)
