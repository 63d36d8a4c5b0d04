"""A rollout in parts, each from the last memory and time, equals one rollout."""

import pytest
import torch
from torch import nn

import torchsko as ts
from torchsko.errors import ShapeError, TorchskoError
from torchsko.rollout.controls import Controller

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
        more, rates, memory = ts.rollout(
            robot, q, qd, policy, n, DT, memory=memory, t0=t, **options
        )
        q, qd, t = more[:, -1], rates[:, -1], t + n * DT
        qs.append(more[:, 1:])
        qds.append(rates[:, 1:])
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
    whole = ts.rollout(pendulum, *start, policy, STEPS, DT, memory=memory)
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
    whole = ts.rollout(pendulum, *start, policy, STEPS, DT, truncate=4)
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
        robot, *start, policy, 4, DT, memory=policy.initial_memory(*start), **choice, **options
    )
    for k, n in enumerate(lengths.tolist()):
        x, v = (s[k : k + 1] for s in start)
        memory = policy.initial_memory(x, v)
        if n:
            qs, _, memory = ts.rollout(pendulum, x, v, policy, n, DT, memory=memory)
            torch.testing.assert_close(found[0][k, -1], qs[0, -1])
        torch.testing.assert_close(found[2][k : k + 1], memory)


def test_time_goes_on_for_functions(robot, start):
    robot, options = robot
    law = lambda t, q, qd: -qd + torch.cos(20 * torch.as_tensor(t, dtype=q.dtype))  # noqa: E731
    whole = ts.rollout(robot, *start, law, STEPS, DT, **options)
    qs, qds = ts.rollout(robot, *start, law, 5, DT, **options)
    later = ts.rollout(robot, qs[:, -1], qds[:, -1], law, 7, DT, t0=5 * DT, **options)
    torch.testing.assert_close([x[:, 5:] for x in whole], list(later), rtol=1e-11, atol=1e-12)


def test_without_a_memory_given_there_are_two_results(pendulum, start):
    assert len(ts.rollout(pendulum, *start, Recurrent(), 2, DT)) == 2


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
        ts.rollout(pendulum, *start, **(given | options))
