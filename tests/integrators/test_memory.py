"""A rollout in parts, each from the last memory and time, equals one rollout."""

import pytest
import torch
from torch import nn

import torchsko as ts
from torchsko.errors import ShapeError, TorchskoError
from torchsko.integrators.controls import Controller

STEPS, DT = 12, 0.02


class Recurrent(nn.Module, Controller):
    """A recurrent policy of the state and the time."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.out = nn.GRUCell(3, 4).double(), nn.Linear(4, 1).double()

    def initial_memory(self, q, qd):
        return q.new_zeros(*q.shape[:-1], 4)

    def act(self, t, dt, q, qd, memory):
        now = torch.as_tensor(t, dtype=q.dtype).expand(q[..., 0].shape)
        seen = torch.cat([q, qd, torch.cos(20 * now)[..., None]], -1)
        hidden = self.cell(seen.reshape(-1, 3), memory.reshape(-1, 4)).reshape(memory.shape)
        return 5 * self.out(hidden), hidden


@pytest.fixture(scope="module")
def pendulum():
    builder = ts.MechanismBuilder("pendulum")
    builder.link("rod", mass=1.0, com=[0, 0, -0.5], inertia=torch.eye(3) * 0.1)
    return builder.joint("hinge", "revolute", child="rod", axis=[0, 1, 0], damping=0.1).build()


@pytest.fixture
def start():
    g = torch.Generator().manual_seed(3)
    return [torch.randn(3, 1, generator=g, dtype=torch.float64) for _ in range(2)]


def in_parts(robot, q, qd, policy, memory, parts, detach=False, **options):
    """States of all parts, and the last memory."""
    t, qs, qds = 0.0, [q[:, None]], [qd[:, None]]
    for n in parts:
        part = ts.rollout(
            robot, ts.State(q, qd), policy, steps=n, dt=DT, memory=memory, t0=t, **options
        )
        q, qd, memory, t = part.q[:, -1], part.qd[:, -1], part.memory, t + n * DT
        qs.append(part.q[:, 1:])
        qds.append(part.qd[:, 1:])
        if detach:
            q, qd, memory = q.detach(), qd.detach(), memory.detach()
    return torch.cat(qs, 1), torch.cat(qds, 1), memory


@pytest.fixture(params=[False, True], ids=["eager", "kernels"])
def robot(request, pendulum):
    return (ts.fuse(pendulum) if request.param else pendulum), {"fused": request.param or None}


def test_consecutive_rollouts_with_memory_equal_one_rollout(robot, pendulum, start):
    robot, options = robot
    policy = Recurrent()
    memory = (policy.initial_memory(*start) + 0.3).requires_grad_()
    leaves = [*start, memory, *policy.parameters()]
    for x in start:
        x.requires_grad_()
    found = ts.rollout(pendulum, ts.State(*start), policy, steps=STEPS, dt=DT, memory=memory)
    whole = found.q, found.qd, found.memory
    joined = in_parts(robot, *start, policy, memory, (5, 4, 3), **options)
    torch.testing.assert_close(joined, whole, rtol=1e-11, atol=1e-12)
    # Gradients of the last memory as well, for later parts.
    mine, theirs = (
        torch.autograd.grad(sum(x.square().sum() for x in found), leaves)
        for found in (joined, whole)
    )
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_parts_that_are_cut_from_each_other_have_the_gradients_of_a_truncated_rollout(
    robot, pendulum, start
):
    robot, options = robot
    policy = Recurrent()
    whole = ts.rollout(pendulum, ts.State(*start), policy, steps=STEPS, dt=DT, truncate=4)[:2]
    joined = in_parts(
        robot, *start, policy, policy.initial_memory(*start), (4, 4, 4), True, **options
    )
    pulled = [
        torch.autograd.grad(x[0].square().sum(), [*policy.parameters()]) for x in (joined, whole)
    ]
    torch.testing.assert_close(*pulled, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "choice", [{"checkpoint": 2}, {"every": 2}, {"lengths": torch.tensor([4, 2, 0])}]
)
def test_the_memory_that_is_given_back_is_that_of_the_last_state(robot, pendulum, start, choice):
    robot, options = robot
    policy = Recurrent()
    lengths = choice.get("lengths", torch.tensor([4, 4, 4]))
    found = ts.rollout(
        robot,
        ts.State(*start),
        policy,
        steps=4,
        dt=DT,
        memory=policy.initial_memory(*start),
        **choice,
        **options,
    )
    for k, n in enumerate(lengths.tolist()):
        x, v = (s[k : k + 1] for s in start)
        memory = policy.initial_memory(x, v)
        if n:
            alone = ts.rollout(pendulum, ts.State(x, v), policy, steps=n, dt=DT, memory=memory)
            memory = alone.memory
            torch.testing.assert_close(found.q[k, -1], alone.q[0, -1])
        torch.testing.assert_close(found.memory[k : k + 1], memory)


def test_time_goes_on_for_functions(robot, start):
    robot, options = robot
    law = lambda t, q, qd: -qd + torch.cos(20 * torch.as_tensor(t, dtype=q.dtype))  # noqa: E731
    whole = ts.rollout(robot, ts.State(*start), law, steps=STEPS, dt=DT, **options)[:2]
    qs, qds, *_ = ts.rollout(robot, ts.State(*start), law, steps=5, dt=DT, **options)
    later = ts.rollout(
        robot, ts.State(qs[:, -1], qds[:, -1]), law, steps=7, dt=DT, t0=5 * DT, **options
    )[:2]
    torch.testing.assert_close([x[:, 5:] for x in whole], list(later), rtol=1e-11, atol=1e-12)


def test_the_memory_is_that_of_the_last_state_if_there_is_one(robot, start):
    robot, options = robot
    policy, state = Recurrent(), ts.State(*start)
    given = ts.rollout(
        robot, state, policy, steps=2, dt=DT, memory=policy.initial_memory(*start), **options
    )
    found = ts.rollout(robot, state, policy, steps=2, dt=DT, **options)
    torch.testing.assert_close(found.memory, given.memory)
    assert ts.rollout(robot, state, policy, steps=3, every=2, dt=DT, **options).memory is None
    assert ts.rollout(robot, state, lambda t, q, qd: -qd, steps=2, dt=DT).memory is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"control": None}, TorchskoError, "memory= was given with a control that has none"),
        ({"memory": torch.zeros(4)}, ShapeError, r"memory is \[4\] of torch.float32"),
        ({"memory": 0.0}, ShapeError, "memory is a float"),
        ({"every": 3}, TorchskoError, "Pass steps=3"),
        ({"t0": float("nan")}, TorchskoError, "t0 is nan"),
    ],
)
def test_what_is_no_memory_or_no_time_is_refused(pendulum, start, options, error, message):
    policy = Recurrent()
    given = {"control": policy, "steps": 4, "dt": DT, "memory": policy.initial_memory(*start)}
    with pytest.raises(error, match=message):
        ts.rollout(pendulum, ts.State(*start), **(given | options))
